"""Weights as numbers: a sum that tells whether they are equal, and whether those of a file fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn


def sum_of(parameters: Iterable[nn.Parameter]) -> str:
    """An order-free 64-bit sum over the bits of all weights, hexadecimal."""
    total = 0
    for parameter in parameters:
        width = torch.int32 if parameter.element_size() == 4 else torch.int16
        total += int(parameter.detach().contiguous().view(width).sum(dtype=torch.int64))
    return f"{total & ((1 << 64) - 1):016x}"


def faults_of(told: Mapping[str, Any]) -> dict[str, list[str]]:
    """What `from_pretrained` with `output_loading_info` found wrong: names by kind, empty if all weights fit."""
    kinds = ("missing_keys", "unexpected_keys", "mismatched_keys")
    return {kind: sorted(told[kind]) for kind in kinds if told[kind]}
