"""Numerators and denominators of a step's metrics, and how those of all ranks become figures."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch

from trimtab.train.ranks import Ranks

WRONG = "non_finite/"
"""Of the numbers that were not finite, by name."""
EVERYWHERE = ("loss/", "grad_norm/", "updates/", WRONG)
"""Families whose numbers are the same on every rank already."""
COUNTS = ("updates/count", "updates/skipped", "updates/non_finite", "updates/overflow", "updates/stopped")
"""Sums over the step, not means."""


@dataclass(slots=True)
class Tally:
    """What one rank has seen in a step, and the seconds that it took."""

    sums: dict[str, list[float]] = field(default_factory=dict)
    highest: dict[str, float] = field(default_factory=dict)
    lowest: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, total: float, count: float = 1.0) -> None:
        pair = self.sums.setdefault(name, [0.0, 0.0])
        pair[0] += total
        pair[1] += count

    def least(self, name: str, value: float) -> None:
        self.lowest[name] = min(self.lowest.get(name, float("inf")), value)

    def most(self, name: str, value: float) -> None:
        self.highest[name] = max(self.highest.get(name, -float("inf")), value)

    def mark(self) -> Tally:
        """What has been seen so far, to go back to; seconds are spent whatever comes of them."""
        sums = {name: [*pair] for name, pair in self.sums.items()}
        return Tally(sums=sums, highest={**self.highest}, lowest={**self.lowest})

    def back(self, mark: Tally) -> None:
        """Forget what was seen since a mark."""
        kept = mark.mark()
        self.sums, self.highest, self.lowest = kept.sums, kept.highest, kept.lowest

    def since(self, name: str, started: float) -> float:
        """Charge the seconds since `started` to a part of the step; now."""
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - started
        return now

    def figures(self, ranks: Ranks) -> dict[str, float]:
        """Sums over ranks, then quotients; extremes and seconds of the rank that had the most."""
        found = dict.fromkeys(COUNTS, 0.0)
        for name, (total, count) in self.sums.items():
            if name in COUNTS or name.startswith(WRONG):
                found[name] = total
            elif name.startswith(EVERYWHERE) and count:
                found[name] = total / count
        named = sorted({n for names in ranks.gather([*self.sums]) for n in names if not n.startswith(EVERYWHERE)})
        if named:
            local = torch.tensor([self.sums.get(n, [0.0, 0.0]) for n in named], dtype=torch.float64)
            for name, (total, count) in zip(named, ranks.sum(local).tolist(), strict=True):
                if count:
                    found[name] = total / count
        for highest, lowest, seconds in ranks.gather((self.highest, self.lowest, self.seconds)):
            for name, value in highest.items():
                found[name] = max(found.get(name, value), value)
            for name, value in lowest.items():
                found[name] = min(found.get(name, value), value)
            for name, value in seconds.items():
                found[f"time/{name}"] = max(found.get(f"time/{name}", 0.0), value)
        return found
