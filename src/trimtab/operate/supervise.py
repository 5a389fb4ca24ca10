"""`trimtab train --supervise`: a light process that starts the training process again when that can help.

It loads neither torch nor the configuration. What it does is a function of the exit code (`trimtab.errors`):

    0 1 2 3 4 130 and others    end with it
    5 6, death by a signal      start again after a pause, at most `max_restarts` times in a row without progress
    75                          start again at once, uncounted, unless the supervisor was told to stop

Progress is a checkpoint beyond those that were there. SIGTERM and SIGINT are passed on as they come, so they mean what
they mean to `trimtab train`; the process is in a group of its own, so that Ctrl-C reaches it once.

The training process must not outlive the supervisor: nobody would see its exit code, and it would hold the lock. On
Linux the kernel ends it with SIGKILL when the supervisor dies, however that dies; a checkpoint survives this as it does
any crash, and the next start finds the lock free. Elsewhere there is no such call, and the start says so.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trimtab.errors import Preempted, RewardUnavailableError, WorkerError
from trimtab.operate import finish
from trimtab.secrets import redact
from trimtab.store import journal, writer
from trimtab.store.run_directory import RunDirectory

RETRIED = (WorkerError.exit_code, RewardUnavailableError.exit_code)
LOST = WorkerError.exit_code
"""What a death by a signal counts as, and is reported as."""
FREE = Preempted.exit_code
PASSED_ON = (signal.SIGTERM, signal.SIGINT)
EARLY: Mapping[int, int] = {-signal.SIGTERM: FREE, -signal.SIGINT: 130}
"""A process that died of the signal itself had not begun to listen, and has nothing to save."""
DIES_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of prctl(2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How often the process is started again, and how long a pause is."""

    max_restarts: int = 5
    """In a row, without a new checkpoint in between."""
    first_seconds: float = 2.0
    factor: float = 3.0
    longest_seconds: float = 300.0

    def pause(self, restarts: int, chance: random.Random) -> float:
        """Seconds before a restart, drawn from the upper half of a growing span, so that many runs do not come at once.

        >>> [round(Patience().pause(n, random.Random(0)), 1) for n in (0, 1, 2, 9)]
        [1.8, 5.5, 16.6, 276.7]
        """
        whole = min(self.first_seconds * self.factor**restarts, self.longest_seconds)
        return whole * chance.uniform(0.5, 1.0)


@dataclass(slots=True, kw_only=True)
class Ending:
    """How one training process ended."""

    returncode: int
    """As `subprocess` tells it: negative for a signal."""
    cause: str

    @property
    def code(self) -> int:
        """In the exit codes' contract."""
        return LOST if self.returncode < 0 else self.returncode


def supervise(
    command: Sequence[str],
    directory: RunDirectory,
    *,
    once: Sequence[str] = (),
    patience: Patience | None = None,
    say: Callable[[str], None] | None = None,
) -> int:
    """Run a command until it ends for good; its last exit code.

    Args:
        command: trains in the directory.
        directory: of the run.
        once: words for the first start alone, such as `--fresh`; again, if that was lost before it had done anything.
        patience: with restarts.
        say: what happens, in lines.
    """
    return Supervisor(command, directory, patience or Patience(), say or _aloud).run(once)


@dataclass(slots=True)
class Supervisor:
    command: Sequence[str]
    directory: RunDirectory
    patience: Patience
    say: Callable[[str], None]
    _told: list[int] = field(default_factory=list)
    _pending: deque[int] = field(default_factory=deque)
    _child: subprocess.Popen[bytes] | None = None

    def run(self, once: Sequence[str] = ()) -> int:
        """Until it ends for good; the exit code."""
        chance = random.Random()
        in_a_row = total = 0
        words, old = [*self.command, *once], self._identity()
        with listening(self._notice) as (heard, _):
            while True:
                before = self._newest_checkpoint()
                ending = self._one(words)
                if old is None or self._identity() != old:
                    words = list(self.command)
                if self._told:
                    return self._stopped(ending)
                if ending.code == FREE:
                    self._restarting(ending, 0.0, total := total + 1, "uncounted")
                    continue
                if ending.code not in RETRIED:
                    return ending.code
                if self._newest_checkpoint() > before:
                    in_a_row = 0
                if in_a_row >= self.patience.max_restarts:
                    return self._given_up(ending, total)
                wait = self.patience.pause(in_a_row, chance)
                in_a_row, total = in_a_row + 1, total + 1
                self._restarting(ending, wait, total, f"{in_a_row} of {self.patience.max_restarts}")
                select.select([heard], [], [], wait)
                if self._told:
                    self.say("told to stop while nothing was running; the same command goes on")
                    return FREE

    def _notice(self, number: int) -> None:
        self._told.append(number)
        self._pending.append(number)
        if self._child is not None:
            self._pass_on(self._child)

    def _pass_on(self, child: subprocess.Popen[bytes]) -> None:
        with suppress(IndexError):  # a signal that comes meanwhile passes the rest on
            while True:
                child.send_signal(self._pending.popleft())

    def _one(self, words: Sequence[str]) -> Ending:
        """Start the process and wait for its end."""
        failure = written(self.directory.failure)
        # Not the terminal: a question there would stop a process that is not in the foreground.
        nothing = subprocess.DEVNULL
        child = subprocess.Popen(words, stdin=nothing, process_group=0, preexec_fn=tied_to(os.getpid()))
        self._child = child
        self._pass_on(child)
        returncode = child.wait()
        self._child = None
        if returncode < 0:
            cause = of_signal(-returncode)
            if not self._told:
                write_lost(self.directory, cause)
        elif written(self.directory.failure) not in (None, failure):
            cause = str(read(self.directory.failure).get("cause", ""))
        else:
            cause = ""
        return Ending(returncode=returncode, cause=cause)

    def _stopped(self, ending: Ending) -> int:
        return EARLY.get(ending.returncode, ending.code)

    def _restarting(self, ending: Ending, wait: float, total: int, count: str) -> None:
        why = f"exit code {ending.code}" if ending.returncode >= 0 else "lost"
        after = f" in {wait:.1f} s" if wait else ""
        self.say(f"{why}{': ' if ending.cause else ''}{ending.cause}; starting again{after} (restart {count})")
        self._note("restarted", ending, wait_seconds=round(wait, 3), restarts=total)

    def _given_up(self, ending: Ending, total: int) -> int:
        limit = self.patience.max_restarts
        self.say(f"started again {limit} times without a new checkpoint; ending with exit code {ending.code}")
        self._note("gave up", ending, restarts=total)
        if found := read(self.directory.failure):
            told = f"{found.get('what_to_do', '')}; the supervisor has started it again {total} times".lstrip("; ")
            self._replace_failure({**found, "what_to_do": told, "restarts": total})
        return ending.code

    def _note(self, event: str, ending: Ending, **more: Any) -> None:
        """A line in RUN/supervisor.jsonl; a disk that takes none must not end the supervision."""
        if not self.directory.root.is_dir():
            return
        number = -ending.returncode
        facts = {
            "time": round(time.time(), 3),
            "event": event,
            "code": ending.code,
            "signal": _name(number) if number > 0 else None,
            "cause": ending.cause,
            "checkpoint": self._newest_checkpoint(),
            **more,
        }
        try:
            line = redact(json.dumps(facts, ensure_ascii=False))
            writer.append(self.directory.supervisor, line.encode() + b"\n")
        except OSError as error:
            self.say(f"cannot write to {self.directory.supervisor}: {error.strerror or error}; going on")

    def _replace_failure(self, document: Mapping[str, Any]) -> None:
        with suppress(OSError):
            writer.replace_text(self.directory.failure, json.dumps(document, indent=1, ensure_ascii=False))

    def _identity(self) -> str | None:
        """Which run is in the directory."""
        return read(self.directory.root / "run.json").get("id")

    def _newest_checkpoint(self) -> int:
        """The highest step saved that a run can go on from, -1 if there is none; a rollback lowers it."""
        highest = -1
        for event in journal.read(self.directory.journal).events("saved", "rolled back"):
            if event["event"] == "rolled back":
                highest = min(highest, event["step"])
            elif not event.get("policy_only"):
                highest = max(highest, event["step"])
        return highest


def restarts(directory: RunDirectory) -> list[dict[str, Any]]:
    """What the supervisor has noted, in order; a line that a crash has cut is left out."""
    try:
        lines = directory.supervisor.read_bytes().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        with suppress(ValueError):
            found.append(json.loads(line))
    return [item for item in found if isinstance(item, dict)]


def can_tie() -> bool:
    """Whether a process can be made to die with its parent."""
    return sys.platform == "linux"


def tied_to(parent: int) -> Callable[[], None] | None:
    """What the new process calls before it becomes the command."""
    if not can_tie():
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def tie() -> None:
        if prctl(DIES_WITH_PARENT, signal.SIGKILL, 0, 0, 0) != 0 or os.getppid() != parent:
            os._exit(LOST)  # the parent has died before the kernel was told

    return tie


@contextmanager
def listening(notice: Callable[[int], None]) -> Iterator[tuple[int, int]]:
    """Inside, a signal that is passed on is noticed; gives the ends of a pipe, to wait for one and to be woken by."""
    heard, bell = os.pipe()

    def hear(number: int, _: object) -> None:
        notice(number)
        os.write(bell, b"!")

    previous = {number: signal.signal(number, hear) for number in PASSED_ON}
    try:
        yield heard, bell
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        os.close(heard)
        os.close(bell)


def write_lost(directory: RunDirectory, cause: str) -> None:
    """failure.json of a process that could not write one; not if another one trains there."""
    told = "start the same command again; if memory ran out, `trimtab check` says what fits"
    write_for_it(directory, code=LOST, cause=f"WorkerError: {cause}", advice=told)


def write_for_it(directory: RunDirectory, *, code: int, cause: str, advice: str) -> None:
    """failure.json in the place of the process that trained there; not if another one trains there now."""
    if directory.root.is_dir() and not directory.is_locked():
        step = max((s["step"] for s in journal.read(directory.journal).steps()), default=0)
        with suppress(OSError):
            finish.write_failure(directory, code=code, cause=cause, place=f"step {step}", advice=advice)


def of_signal(number: int, who: str = "the training process") -> str:
    memory = ", as the system does when memory runs out" if number == signal.SIGKILL else ""
    return f"{who} was ended by {_name(number)}{memory}"


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def written(path: Path) -> int | None:
    """When a file was written, None if there is none."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def read(path: Path) -> dict[str, Any]:
    """A file of JSON; nothing if there is none, or none that can be read."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _aloud(text: str) -> None:
    print(redact(f"supervisor: {text}"), flush=True)
