"""From which memory a model's files are written: from the weights themselves, or from a copy that training cannot reach."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from trimtab.models.lora import Adapter

Weights = Mapping[str, Tensor]
Take = Callable[[Weights], Weights]
"""`as_they_are` or `copied`."""
Write = Callable[[Path], None]
"""Writes files into a directory, which it makes."""


def as_they_are(weights: Weights) -> Weights:
    """The same tensors: what is written is what they are by then."""
    return weights


def copied(weights: Weights) -> dict[str, Tensor]:
    """Each tensor once more, on the CPU. Names that share one share its copy, which is how tied weights are known."""
    made: dict[Any, Tensor] = {}
    found = {}
    for name, tensor in weights.items():
        same = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if same not in made or not tensor.numel():
            made[same] = tensor.detach().to("cpu", copy=True)
        found[name] = made[same]
    return found


class TokenizerFiles:
    """The tokenizer's part of a checkpoint.

    A tokenizer may be used by one thread at a time, and using it changes what it would write of itself (padding,
    truncation). So another thread writes from a copy, which is made once: training changes nothing in a tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._copy: Any = None

    def of(self, take: Take) -> Any:
        if take is as_they_are:
            return self.tokenizer
        if self._copy is None:
            self._copy = copy.deepcopy(self.tokenizer)
        return self._copy


def policy_writer(model: Any, files: TokenizerFiles, adapter: Adapter | None, take: Take) -> Write:
    """Of the policy as a Hugging Face directory, tokenizer and all; of one with an adapter, the adapter alone."""
    tokenizer = files.of(take)
    if adapter is not None:
        write_weights = adapter.writer(take)
    else:
        weights = take(model.state_dict())

        def write_weights(directory: Path) -> None:
            model.save_pretrained(str(directory), state_dict=dict(weights))

    def write(directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        write_weights(directory)
        tokenizer.save_pretrained(str(directory))

    return write
