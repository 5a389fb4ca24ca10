"""Where a blow falls: drawn from a seed, with what an undisturbed run has shown of its own course."""

from __future__ import annotations

import random
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

FAILURE_OPERATIONS = 4
"""That write failure.json."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blow:
    signal: int
    place: str = ""
    """Where it is due; of a second one nothing for: behind the first."""
    delay: float | None = None
    """Seconds behind the place or the blow before; None: exactly at the place, by the run's own hand."""

    def __str__(self) -> str:
        after = "" if self.delay is None else f" after {1000 * self.delay:.1f} ms"
        return signal.Signals(self.signal).name + after + (f" at {self.place}" if self.place else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """What happens to one process of a run."""

    blows: tuple[Blow, ...]
    is_on_group: bool
    """Everything that the run has started, too; else the run's own process alone."""

    def __str__(self) -> str:
        return ", ".join(map(str, self.blows)) + (" on its group" if self.is_on_group else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """How an undisturbed run went: seconds since its start at which it passed each place."""

    times: dict[str, float]
    operations: dict[str, str]
    """By place before it, the operation on the disk."""
    total: float

    @classmethod
    def read(cls, log: Path) -> Course:
        lines = [line.split(" ", 2) for line in log.read_text().splitlines()]
        start = int(lines[0][0])
        passed = {what[2:]: (int(time) - start) / 1e9 for time, _, what in lines if what.startswith("=")}
        said = [what for _, _, what in lines]
        begun = {a[2:]: b.split()[1] for a, b in pairwise(said) if a.startswith("=") and b.startswith("<")}
        return cls(times=passed, operations=begun, total=(int(lines[-1][0]) - start) / 1e9)

    def stretches(self, saved: int | None) -> list[tuple[str, float]]:
        """(place, seconds to the next one) of a process that goes on from a checkpoint: all that it does, once."""
        steps = {int(p.split()[1]): t for p, t in self.times.items() if p.startswith("step ")}
        begun = self.times["ready"] if saved is None else steps.get(saved, self.times["ready"])
        ahead = [(f"step {n}", t) for n, t in sorted(steps.items()) if n > (saved or 0)]
        places = [("ready", begun), *ahead]
        ends = [t for _, t in places[1:]] + [self.total]
        return [("start", self.times["ready"])] + [(p, e - t) for (p, t), e in zip(places, ends, strict=True)]

    def windows(self, saved: int | None) -> list[list[tuple[str, float]]]:
        """Of each save that is still ahead, and of the end: (place, seconds to the next place) of its operations."""
        found: dict[str, list[tuple[str, float]]] = {}
        ordered = sorted(self.times.items(), key=lambda item: item[1])
        for (place, time), (_, after) in zip(ordered, [*ordered[1:], ("", self.total)], strict=True):
            kind, *numbers = place.split()
            if kind == "save" and (saved is None or int(numbers[0]) > saved):
                found.setdefault(numbers[0].zfill(9), []).append((place, after - time))
            elif kind == "end":
                found.setdefault("end", []).append((place, after - time))
        return [found[name] for name in sorted(found)]


def draw(chance: random.Random, course: Course, saved: int | None, *, number: int, left: int) -> Strike:
    """One strike: half of them anywhere, uniformly in time, half of them between the operations of a save or the end.

    Of the latter each kind of operation gets the same share: there are ten times as many flushes as renames.

    Args:
        saved: the step whose checkpoint the process will go on from.
        number: the signal.
        left: strikes that this run is still to meet, this one among them. If there are more, an earlier save is likelier,
            so that the later ones find something to interrupt.
    """
    if chance.random() < 0.5:
        place, delay = _anywhere(chance, _ahead(course.stretches(saved), number))
    else:
        windows = _ahead(course.windows(saved), number)
        window = windows[min(chance.randrange(len(windows)) for _ in range(min(left, 2)))]
        kind = chance.choice(sorted({course.operations.get(place, "") for place, _ in window}))
        place, seconds = chance.choice([item for item in window if course.operations.get(item[0], "") == kind])
        delay = chance.choice([None, chance.uniform(0, seconds)])
    blows = [Blow(signal=number, place=place, delay=delay)]
    if number == signal.SIGTERM:
        blows += chance.choice([(), (), *([b] for b in _second(chance))])
    return Strike(blows=tuple(blows), is_on_group=chance.random() < 0.5)


def _second(chance: random.Random) -> list[Blow]:
    """What may follow on a SIGTERM: another one, while the run saves or says why it ends; or a SIGKILL in the middle."""
    soon, failing = chance.uniform(0, 0.15), f"failure {chance.randint(1, FAILURE_OPERATIONS)}"
    return [
        Blow(signal=signal.SIGTERM, delay=soon),
        Blow(signal=signal.SIGTERM, place=failing),
        Blow(signal=signal.SIGKILL, delay=soon),
        Blow(signal=signal.SIGKILL, place=failing),
    ]


def _ahead(parts: list[Any], number: int) -> list[Any]:
    """A SIGTERM is lost on a run that has only to end, so it falls into the first two thirds of what is ahead."""
    return parts if number == signal.SIGKILL else parts[: -(-2 * len(parts) // 3)]


def _anywhere(chance: random.Random, stretches: Sequence[tuple[str, float]]) -> tuple[str, float]:
    moment = chance.uniform(0, sum(seconds for _, seconds in stretches))
    for place, seconds in stretches[:-1]:
        if moment < seconds:
            return place, moment
        moment -= seconds
    return stretches[-1][0], moment
