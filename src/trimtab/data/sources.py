"""The source that reads: demonstrations from a file, one batch a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trimtab.data import collate
from trimtab.data.order import Order
from trimtab.data.prompts import Demonstration
from trimtab.types import Batch, Sample


class DemonstrationSource:
    """Reads `rows_per_step` demonstrations a step; on several ranks each reads its own share of them."""

    def __init__(
        self,
        rows: Sequence[Demonstration],
        order: Order,
        *,
        rows_per_step: int,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        self.rows = rows
        self.order = order
        self.rows_per_step = rows_per_step
        self.rank, self.ranks = rank, ranks
        self._newest: list[Demonstration] = []

    def next_batch(self) -> Batch:
        first = self.order.drawn
        taken = self.order.take(self.rows_per_step)
        mine = range(self.rank, self.rows_per_step, self.ranks)
        self._newest = [self.rows[taken[place]] for place in mine]
        return collate.of_demonstrations(self._newest, [first + place for place in mine])

    def samples(self) -> tuple[Sample, ...]:
        return tuple(
            Sample(
                prompt_id=row.prompt.id,
                prompt=row.prompt.text,
                completion=row.text,
                reward=None,
                reward_parts={},
                is_truncated=False,
            )
            for row in self._newest[:4]
        )

    def figures(self) -> Mapping[str, float]:
        return {"data/epoch": float(self.order.epoch)}

    def refresh(self, *, version: int) -> None:
        """Nothing to do: what is read does not depend on the weights."""

    def state(self) -> Mapping[str, Any]:
        return {"order": dict(self.order.state())}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.order.load_state(state["order"])
