"""The source that reads: rows from a file, one batch a step. What a row is, the functions that it is given know."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from trimtab.data import collate
from trimtab.data.judged import Labelled, Pair
from trimtab.data.order import Order
from trimtab.data.prompts import Demonstration
from trimtab.types import Batch, Sample

Read = TypeVar("Read")
SHOWN = 4
"""Rows of a batch that are shown to people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind(Generic[Read]):
    """What a source does with rows of one kind."""

    collated: Callable[[Sequence[Read], Sequence[int]], Batch]
    """Rows and their places in the run -> their batch."""
    samples: Callable[[Read], Sequence[Sample]]
    """A row as it is shown to people."""


class ReadingSource(Generic[Read]):
    """Reads `rows_per_step` rows (pairs count as one) a step; on several ranks each reads its own share of them."""

    def __init__(
        self,
        rows: Sequence[Read],
        order: Order,
        kind: Kind[Read],
        *,
        rows_per_step: int,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        self.rows = rows
        self.order = order
        self.kind = kind
        self.rows_per_step = rows_per_step
        self.rank, self.ranks = rank, ranks
        self._newest: list[Read] = []

    def next_batch(self) -> Batch:
        first = self.order.drawn
        taken = self.order.take(self.rows_per_step)
        mine = range(self.rank, self.rows_per_step, self.ranks)
        self._newest = [self.rows[taken[place]] for place in mine]
        return self.kind.collated(self._newest, [first + place for place in mine])

    def samples(self) -> tuple[Sample, ...]:
        return tuple(sample for row in self._newest[:SHOWN] for sample in self.kind.samples(row))

    def figures(self) -> Mapping[str, float]:
        return {"data/epoch": float(self.order.epoch)}

    def refresh(self, *, version: int) -> None:
        """Nothing to do: what is read does not depend on the weights."""

    def state(self) -> Mapping[str, Any]:
        return {"order": dict(self.order.state())}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.order.load_state(state["order"])


def _sample(row: Demonstration, label: str | None = None) -> Sample:
    return Sample(
        prompt_id=row.prompt.id,
        prompt=row.prompt.text,
        completion=row.text,
        reward=None,
        reward_parts={},
        is_truncated=False,
        label=label,
    )


DEMONSTRATIONS: Kind[Demonstration] = Kind(collated=collate.of_demonstrations, samples=lambda row: (_sample(row),))
PAIRS: Kind[Pair] = Kind(
    collated=collate.of_pairs,
    samples=lambda pair: (_sample(pair.chosen, "chosen"), _sample(pair.rejected, "rejected")),
)
LABELLED: Kind[Labelled] = Kind(
    collated=collate.of_labelled,
    samples=lambda row: (_sample(row.row, "desirable" if row.is_desirable else "undesirable"),),
)
