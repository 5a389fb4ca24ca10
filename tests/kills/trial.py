"""One run that meets a number of strikes, is started again until it ends by itself, and is compared."""

from __future__ import annotations

import json
import os
import random
import select
import shutil
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.kills import evidence, subjects, warm, watched
from tests.kills.strike import Course, Strike, draw
from trimtab import config as configs

PREEMPTED = 75
AT_MOST_LOST = {True: subjects.ROLLING_EVERY, False: 2 * subjects.ROLLING_EVERY}
"""Recorded steps, by whether training waits for a save. Beside training a save may take until the next one is due."""
WITHIN = ("within a save", "removing a checkpoint")
LIMIT_SECONDS = 120.0
"""A process that takes longer hangs."""


@dataclass(kw_only=True)
class Outcome:
    """What became of one run."""

    algorithm: str
    seed: int
    signal: str
    struck: int = 0
    """Processes that the signal has ended."""
    places: dict[str, int] = field(default_factory=dict)
    """Where it met them."""
    in_later_epochs: int = 0
    at_epoch_ends: int = 0
    missed: int = 0
    """Processes that had ended before their time came."""
    lost: int = 0
    """Recorded steps that had to be done again, at most."""
    lost_outside: int = 0
    """The same of processes that were not within a save."""
    has_more: bool = False
    """More checkpoints may be there than of the undisturbed run: no later save has taken them away."""
    seconds: float = 0.0
    strikes: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def line(self) -> str:
        return json.dumps(asdict(self))


class Undisturbed:
    """The run that is left alone, of each algorithm: made when it is first asked for."""

    def __init__(self, folder: Path, *, is_hurried: bool) -> None:
        self.folder = folder
        self.is_hurried = is_hurried
        self._courses: dict[str, Course] = {}

    def root(self, algorithm: str) -> Path:
        return self.folder / algorithm / "undisturbed" / "run"

    def course(self, algorithm: str) -> Course:
        if algorithm not in self._courses:
            self._make_model()
            config = subjects.write(self.folder / algorithm, algorithm)
            configs.load(config)  # so that its children find the schemas that it takes already made
            self.root(algorithm).parent.mkdir()
            process = Process(config, self.root(algorithm), None, is_hurried=self.is_hurried)
            code = process.end()
            assert code == 0, f"{algorithm}, undisturbed, ended with {code}: {process.said()}"
            self._courses[algorithm] = Course.read(process.log)
        return self._courses[algorithm]

    def _make_model(self) -> None:
        model = self.folder / "model"
        if not model.exists():
            child = warm.fork(lambda: subjects.write_model(model) or 0, self.folder / "model.txt")
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, (self.folder / "model.txt").read_text()


class Process:
    """One start of the command, and what it said of itself."""

    def __init__(self, config: Path, root: Path, strike: Strike | None, *, is_hurried: bool) -> None:
        self.strike = strike
        self.log = root.parent / "course.log"
        self.output = root.parent / "output.txt"
        self.log.unlink(missing_ok=True)
        self.first_blow: int | None = None
        """Nanoseconds of the clock that the log goes by."""
        self._bell, ring = os.pipe()

        def work() -> int:
            return watched.train(config, root, self.log, ring, strike, is_hurried=is_hurried)

        self.id = warm.fork(work, self.output)
        os.close(ring)

    def end(self) -> int:
        """Strike it, and wait for it; its exit code, -9 after a SIGKILL."""
        gone = os.pidfd_open(self.id)
        try:
            if self.strike is not None:
                self._strike(self.strike, gone)
            if not _within([gone], LIMIT_SECONDS):
                self._send(signal.SIGKILL, is_on_group=True)
                raise TimeoutError(f"it hangs: {self.said()}")
        finally:
            os.close(gone)
            os.close(self._bell)
        return os.waitstatus_to_exitcode(os.waitpid(self.id, 0)[1])

    def _strike(self, strike: Strike, gone: int) -> None:
        for blow in strike.blows:
            if blow.place and not self._is_heard(gone):
                return
            self.first_blow = self.first_blow or time.monotonic_ns()
            if blow.delay is not None:
                if _within([gone], blow.delay):
                    return
                self._send(blow.signal, is_on_group=strike.is_on_group)

    def _is_heard(self, gone: int) -> bool:
        """Whether it has said that it is where it is to be struck, before it ended."""
        return _within([self._bell, gone], LIMIT_SECONDS) and os.read(self._bell, 1) == b"!"

    def _send(self, number: int, *, is_on_group: bool) -> None:
        with suppress(ProcessLookupError):  # it has ended by itself in this moment
            (os.killpg if is_on_group else os.kill)(self.id, number)

    def marks(self) -> list[tuple[int, str]]:
        """(nanoseconds, what) that it wrote, in order."""
        if not self.log.exists():
            return []
        lines = (line.split(" ", 2) for line in self.log.read_text().splitlines())
        return [(int(time), what) for time, _, what in lines]

    def said(self) -> str:
        return self.output.read_text()[-2000:]


def _within(descriptors: Sequence[int], seconds: float) -> bool:
    """Whether one of them has something to say within the time."""
    return bool(select.select(descriptors, [], [], seconds)[0])


def attempt(undisturbed: Undisturbed, algorithm: str, seed: int, strikes: int, number: int) -> Outcome:
    """Strike one run so many times, then let it end; its files stay if something is wrong with them."""
    started = time.monotonic()
    name = signal.Signals(number).name
    outcome = Outcome(algorithm=algorithm, seed=seed, signal=name)
    course = undisturbed.course(algorithm)
    root = undisturbed.folder / algorithm / f"{name}-{seed}" / "run"
    shutil.rmtree(root.parent, ignore_errors=True)
    root.parent.mkdir()
    chance = random.Random(f"{algorithm} {name} {seed}")
    try:
        # A run that SIGTERM finds at its end is over; one that a SIGKILL has missed is started again, and finishes again.
        patience = strikes if number == signal.SIGKILL else 1
        while outcome.struck < strikes and outcome.missed < patience and not outcome.faults:
            strike = draw(chance, course, _saved(root), number=number, left=strikes - outcome.struck)
            _strike_once(undisturbed, algorithm, root, strike, outcome)
        if not outcome.faults:
            _finish(undisturbed, algorithm, root, outcome)
    except (AssertionError, TimeoutError) as error:
        outcome.faults.append(str(error))
    if not outcome.faults:
        shutil.rmtree(root.parent)
    outcome.seconds = round(time.monotonic() - started, 2)
    return outcome


def _saved(root: Path) -> int | None:
    """The checkpoint that the next process will go on from."""
    folder = root / "checkpoints"
    return max((int(p.name) for p in folder.glob("[0-9]*")), default=None) if folder.is_dir() else None


def _strike_once(undisturbed: Undisturbed, algorithm: str, root: Path, strike: Strike, outcome: Outcome) -> None:
    before = _left_over(root)
    process = Process(root.parent.parent / "run.yaml", root, strike, is_hurried=undisturbed.is_hurried)
    code = process.end()
    outcome.strikes.append(f"{strike}: {code}")
    marks = process.marks()
    if code == 0:
        outcome.missed += 1
        return
    if code not in _allowed(strike, process.first_blow, marks):
        outcome.faults.append(f"{strike}: it ended with {code}: {process.said()}")
        return
    outcome.struck += 1
    outcome.has_more |= code == PREEMPTED
    place = _place(marks, _left_over(root) - before)
    outcome.places[place] = outcome.places.get(place, 0) + 1
    lost = evidence.recorded_step(root) - (_saved(root) or 0)
    outcome.lost = max(outcome.lost, lost)
    if place not in WITHIN:
        outcome.lost_outside = max(outcome.lost_outside, lost)
    step = max((int(what.split()[2]) for _, what in marks if what.startswith("= step")), default=_saved(root) or 0)
    epoch = subjects.ROWS // subjects.ROWS_A_STEP
    outcome.in_later_epochs += step >= epoch
    outcome.at_epoch_ends += step > 0 and step % epoch == 0
    if code == PREEMPTED and _saved(root) != step:
        outcome.faults.append(f"{strike}: it ended with 75 at step {step}, but the newest checkpoint is {_saved(root)}")


def _allowed(strike: Strike, first: int | None, marks: Sequence[tuple[int, str]]) -> set[int]:
    """Exit codes that the blows may lead to. A SIGTERM ends a process that does not listen yet, as every other."""
    killed = {-signal.SIGKILL} if any(blow.signal == signal.SIGKILL for blow in strike.blows) else set()
    if strike.blows[0].signal == signal.SIGKILL:
        return killed
    listens = next((at for at, what in marks if what == "= listening"), None)
    is_early = listens is None or (first is not None and first < listens)
    return {PREEMPTED, *killed, -signal.SIGTERM} if is_early else {PREEMPTED, *killed}


def _left_over(root: Path) -> set[tuple[str, int]]:
    """With the number of each, since one that is made anew has the same name."""
    return {(name, (root / name).stat().st_ino) for name in evidence.left_over(root)} if root.is_dir() else set()


def _place(marks: Sequence[tuple[int, str]], left: set[tuple[str, int]]) -> str:
    """In which part of a run a process was ended: by what it has left, else by what it last said."""
    names = [Path(name).name for name, _ in left if name.startswith("checkpoints")]
    if any(name.endswith(".gone") for name in names):
        return WITHIN[1]
    if names:
        return WITHIN[0]
    said = [what for _, what in marks if what.startswith("=")]
    if any(what.startswith("= end") for what in said):
        return "final/ and the report"
    return "training" if "= ready" in said else "starting"


def _finish(undisturbed: Undisturbed, algorithm: str, root: Path, outcome: Outcome) -> None:
    """Let the run end by itself, and compare."""
    process = Process(root.parent.parent / "run.yaml", root, None, is_hurried=undisturbed.is_hurried)
    code = process.end()
    if code != 0:
        outcome.faults.append(f"it ended with {code}: {process.said()}")
        return
    if " is not used: " in process.output.read_text():
        outcome.faults.append("a checkpoint was damaged")
    child = warm.fork(lambda: _verify(root), process.output)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0:
        outcome.faults.append(f"verify: {process.said()}")
    outcome.faults += evidence.differences(undisturbed.root(algorithm), root, may_have_more=outcome.has_more)
    if outcome.lost > AT_MOST_LOST[algorithm in subjects.WAITING]:
        outcome.faults.append(f"{outcome.lost} recorded steps were lost, saved is every {subjects.ROLLING_EVERY}")


def _verify(root: Path) -> int:
    from trimtab.cli import main

    return watched.command(main, "verify", str(root))
