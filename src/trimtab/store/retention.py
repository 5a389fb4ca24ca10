"""Which checkpoints stay."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trimtab.catalogue import is_better_lower
from trimtab.store.settings import Checkpoint


def best(manifests: Mapping[int, Mapping[str, Any]], metric: str) -> int | None:
    """The step with the best value of a metric in its own manifest; of equal ones the latest; None if none has it.

    What is not finite is no value.
    """
    given = {step: m["metrics"][metric] for step, m in manifests.items() if metric in m.get("metrics", {})}
    valued = {step: value for step, value in given.items() if math.isfinite(value)}
    if not valued:
        return None
    sign = -1.0 if is_better_lower(metric) else 1.0
    return max(valued, key=lambda step: (sign * valued[step], step))


def rolling_interval(settings: Checkpoint, max_steps: int) -> int:
    """Steps between the checkpoints that a crash goes back to."""
    return settings.rolling_every or max(1, max_steps // 50)


def most_kept(settings: Checkpoint, max_steps: int, *, is_evaluated: bool) -> tuple[int, int]:
    """How many checkpoints a run has at its end, at most: that can be gone on from, and of the policy's weights alone.

    The first are step 0, the kept, the rolling and the best.

    >>> most_kept(Checkpoint(weights_every=500), 10000, is_evaluated=True)
    (10, 20)
    """
    rolling = min(max(settings.rolling_keep, 2), -(-max_steps // rolling_interval(settings, max_steps)))
    kept = min(settings.keep, max_steps // settings.every)
    return 1 + kept + rolling + is_evaluated, max_steps // settings.weights_every if settings.weights_every else 0


def superfluous(
    manifests: Mapping[int, Mapping[str, Any]], settings: Checkpoint, rolling_every: int, metric: str
) -> list[int]:
    """Steps whose checkpoints may go. Step 0, the newest two and the best one never do.

    >>> steps = {s: {"metrics": {}} for s in range(0, 110, 10)}
    >>> superfluous(steps, Checkpoint(every=50, keep=1, rolling_keep=2), 10, "")
    [10, 20, 30, 40, 50, 60, 70, 80]
    """
    steps = sorted(manifests)
    kept = [s for s in steps if s % settings.every == 0 and s > 0][-settings.keep :]
    rolling = [s for s in steps if s > 0][-max(settings.rolling_keep, 2) :]
    stay = {0, *kept, *rolling, best(manifests, metric)}
    return [s for s in steps if s not in stay]


@dataclass(frozen=True, slots=True)
class Rules:
    """What stays, of the checkpoints of one run."""

    settings: Checkpoint
    rolling_every: int
    metric: str

    def superfluous(self, manifests: Mapping[int, Mapping[str, Any]]) -> list[int]:
        """As the function of that name."""
        return superfluous(manifests, self.settings, self.rolling_every, self.metric)

    def is_passing(self, step: int, manifests: Mapping[int, Mapping[str, Any]]) -> bool:
        """Whether nothing but its age makes a checkpoint stay, so that a newer one takes its place."""
        if step == 0 or step % self.settings.every == 0 or step == best(manifests, self.metric):
            return False
        return manifests.get(step, {}).get("resumable", True) is True
