"""Numbers that are no numbers, wherever one counts: found before they reach a weight, and before they reach a file.

A clipped ratio hides an infinite log-prob, a clamp an infinite log-ratio, a `max` a NaN: so it is not the loss alone that
is looked at but everything it is made of, at the places that count. What stands where no token counts is 0 already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from trimtab.errors import NumericalError
from trimtab.types import Advantages, Batch, Frozen, Policy

PER_ROW = ("rewards", "margins", "bootstrap_values", "scores")
"""[B] fields that are looked at, beside every field of [B, T] numbers."""
NAMES = (
    *("rewards", "token_rewards", "margins", "rollout_log_probs", "old_log_probs", "ref_log_probs", "old_values"),
    *("bootstrap_values", "advantages", "returns", "log_probs", "entropy", "values", "scores"),
)
"""Of what an update is made of. `advantages` are the values of `Advantages`."""


def of_rows(batch: Batch, frozen: Frozen, advantages: Advantages) -> dict[str, float]:
    """How many values are not finite, by name; nothing if all are.

    Args:
        batch, frozen, advantages: rows of an update. Rewards count where a row is scored, for they are compared over the
            group; every other number of a row where the row has a token that counts.
    """
    named = [*_numbers(batch), *_numbers(frozen)]
    named += [("advantages" if name == "values" else name, value) for name, value in _numbers(advantages)]
    rows = batch.loss_mask.any(1)
    return _wrong(named, lambda name: batch.is_scored if name == "rewards" else rows)


def of_policy(policy: Policy) -> dict[str, float]:
    """Likewise of what a forward pass gives; the device is asked once.

    The entropy is looked at only where it has a gradient: as a figure it is 0 x infinity for a vocabulary with masked
    tokens, and nothing learns from it.
    """
    named = [(n, value) for n, value in _numbers(policy) if n != "entropy" or value.requires_grad]
    rows = policy.loss_mask.any(1)
    return _wrong(named, lambda _: rows)


def _numbers(record: Any) -> Iterable[tuple[str, Tensor]]:
    for spec in fields(record):
        value = getattr(record, spec.name)
        if value is not None and value.is_floating_point() and (spec.metadata.get("per_token") or spec.name in PER_ROW):
            yield spec.name, value


def _wrong(named: Iterable[tuple[str, Tensor]], counted: Callable[[str], Tensor]) -> dict[str, float]:
    """
    Args:
        named: [B, T] or [B] each.
        counted: [B] bool of a name, which rows count.
    """
    names, counts = [], []
    for name, value in named:
        bad, rows = ~value.detach().isfinite(), counted(name)
        names.append(name)
        counts.append((bad & (rows[:, None] if bad.ndim == 2 else rows)).sum())
    found = torch.stack(counts).tolist() if counts else []
    return {name: float(count) for name, count in zip(names, found, strict=True) if count}


def tensors(given: Iterable[Tensor]) -> float:
    """How many of these tensors hold a value that is not finite; the device is asked once."""
    flags = [tensor.detach().isfinite().all() for tensor in given]
    return float((~torch.stack(flags)).sum()) if flags else 0.0


def refuse(named: Mapping[str, Tensor], what: str) -> None:
    """
    Args:
        named: what is about to be written.
        what: of what they are, for the message.

    Raises:
        NumericalError: one has a value that is not finite; nothing of the kind is ever saved.
    """
    bad = [(name, tensor) for name, tensor in named.items() if tensors([tensor])]
    if bad:
        name, tensor = bad[0]
        count = int((~tensor.detach().isfinite()).sum())
        others = f", and {len(bad) - 1} more tensors likewise" if len(bad) > 1 else ""
        raise NumericalError(
            f"{what} is not saved: {count} of {tensor.numel():,} values of {name} are not finite{others}; "
            "go on from the newest checkpoint, with a lower optim.learning_rate if it happens again"
        )
