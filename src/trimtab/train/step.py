"""One batch on its way through a step: what was computed of it once, and which of its rows are whose."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trimtab.algorithms.base import Algorithm, Coefficient, Kl
from trimtab.train import batches
from trimtab.train.passes import Passes
from trimtab.types import Advantages, Batch, Frozen, Need


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """An algorithm with its settings; the first of a run, or one that `mix` adds with a weight."""

    algorithm: Algorithm
    config: Any
    weight: Coefficient = 1.0
    """Of its whole loss. Its batch and its denominators are its own."""
    prefix: str = ""
    """Before the names of its terms."""

    @property
    def need(self) -> Need:
        return self.algorithm.needs(self.config)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The batch with everything that was computed of it once; all ranks' rows and where this rank's stand in them."""

    number: int
    objective: Objective
    """With the numbers of this step in the place of schedules."""
    batch: Batch
    frozen: Frozen
    advantages: Advantages
    ranges: tuple[range, ...]
    """Where each rank's rows stand in the batch."""
    mine: range

    @property
    def algorithm(self) -> Algorithm:
        return self.objective.algorithm

    @property
    def config(self) -> Any:
        return self.objective.config

    @property
    def kl(self) -> Kl | None:
        """The algorithm's `kl` section at this step, if it has one."""
        return getattr(getattr(self.config, "shared", None), "kl", None)

    def own(self, rows: Tensor) -> Tensor:
        """[n] bool, which of these rows are this rank's."""
        return (rows >= self.mine.start) & (rows < self.mine.stop)

    def passes(self, rows: Tensor, passes: Passes) -> Iterator[Tensor]:
        """Places in `rows` of each forward pass; the rows of a pair stay together."""
        pairs = self.batch.pair_ids
        return passes.micro_batches(self.batch.lengths[rows], None if pairs is None else pairs[rows])

    def rows(self, index: Tensor) -> tuple[Batch, Frozen, Advantages]:
        rows = self.batch.rows(index)
        width = rows.loss_mask.shape[1]
        return rows, self.frozen.rows(index, width), self.advantages.rows(index, width)

    def on(self, index: Tensor, device: torch.device) -> tuple[Batch, Frozen, Advantages]:
        batch, frozen, advantages = self.rows(index)
        return batches.on(batch, device), batches.on(frozen, device), batches.on(advantages, device)

    def sample(self, rows: Tensor, tokens: int) -> Tensor:
        """The first of each rank's rows that together have its share of so many completion tokens."""
        share = -(-tokens // len(self.ranges))
        found = []
        for place in self.ranges:
            own = rows[(rows >= place.start) & (rows < place.stop)]
            lengths = self.batch.completion_lengths[own]
            count = int((lengths.cumsum(0) - lengths < share).sum())
            if (pairs := self.batch.pair_ids) is not None:  # a pair is whole
                own = own[torch.isin(pairs[own], pairs[own[:count]])]
                count = len(own)
            found.append(own[:count])
        return torch.cat(found)
