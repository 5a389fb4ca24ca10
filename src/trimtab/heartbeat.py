"""Signs of life of this process's roles, for whoever looks at it from another thread.

A role that is at work says so whenever it gets further: a sampled token, a pass over the model, an answer of a reward's
process, a file of a checkpoint. One that has nothing to do is not expected to.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ROLES = ("trainer", "rollout", "reward", "saving")


class Heartbeats:
    """Since when each role has been silent.

    >>> now = iter([0.0, 40.0])
    >>> beats = Heartbeats(clock=lambda: next(now))
    >>> with beats.at_work("reward"):
    ...     beats.ages()["reward"]
    40.0
    >>> beats.ages()["reward"]
    0.0
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._beat: dict[str, float] = {}
        self._depth: dict[str, int] = {}
        """How often a role is at work: a save in its own thread may meet another one."""

    @contextmanager
    def at_work(self, role: str) -> Iterator[None]:
        """From here on the role is expected to beat."""
        self._beat[role] = self._clock()
        self._depth[role] = self._depth.get(role, 0) + 1
        try:
            yield
        finally:
            self._depth[role] -= 1

    def beat(self, role: str) -> None:
        """The role has got further. Costs next to nothing."""
        self._beat[role] = self._clock()

    def ages(self) -> dict[str, float]:
        """Seconds since the last sign of life of each role; 0 for one that has nothing to do."""
        working = [role for role in ROLES if self._depth.get(role)]
        now = self._clock() if working else 0.0
        return {role: max(0.0, now - self._beat[role]) if role in working else 0.0 for role in ROLES}


OURS = Heartbeats()
"""Those of this process."""
at_work, beat, ages = OURS.at_work, OURS.beat, OURS.ages
