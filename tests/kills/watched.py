"""A run that tells where it is, and may be told where to die: what happens in the child.

It writes a line for each operation on the disk and each place that it passes, `nanoseconds process what`, with one call
of the system each, so that a kill loses none:

    < rename checkpoints/.4.new      an operation begins
    >                                it has ended
    = save 4 7                       a place: before the seventh operation of the save of step 4

Places, in the order in which an undisturbed run passes them: `start`, `listening` (to signals), `ready` (state restored),
`step 1`, `save 2 1` and so on, `end 1` (final/ and the report). One that is stopped passes `failure 1` (failure.json).
A save may happen in another thread than the steps.
"""

from __future__ import annotations

import functools
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.kills.strike import Strike

SCRATCH = re.compile(r"\.(\d+)\.new")
RECORD = re.compile(rb'"record": \{"kind": "(\w+)".*?(?:"event": "([\w ]+)".*?)?"step": (\d+)')
READY = ("started", "resumed")


class Watch:
    """Stands before the operations of `trimtab.store.disk`."""

    def __init__(self, root: Path, log: Path, bell: int, strike: Strike | None, *, is_hurried: bool) -> None:
        self._root = root
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._bell = bell
        self._due = list(strike.blows) if strike else []
        self._is_on_group = strike is not None and strike.is_on_group
        self._is_hurried = is_hurried
        self._run = os.getpid()
        self._saving = ""
        self._count = 0
        self._is_ending = False
        self._failing = 0

    def install(self) -> None:
        from trimtab.store import disk
        from trimtab.train.control import SignalControl

        for name in disk.OPERATIONS:
            setattr(disk, name, self._watched(name, getattr(disk, name)))
        if self._is_hurried:
            # A kill does not lose what was not flushed, so that it was takes time and shows nothing.
            disk.sync = self._watched("sync", lambda path: os.close(os.open(path, os.O_RDONLY)))
        enter = SignalControl.__enter__

        def entered(control: SignalControl) -> SignalControl:
            enter(control)
            self.passes("listening")
            return control

        SignalControl.__enter__ = entered  # type: ignore[method-assign]

    def passes(self, place: str) -> None:
        """Say that the run is here; if it is to die here, it does."""
        self._say(f"= {place}")
        for blow in self._due:
            if blow.place == place:
                self._due.remove(blow)
                if blow.delay is None:
                    self._hit(blow.signal)
                os.write(self._bell, b"!")
                return

    def _hit(self, number: int) -> None:
        """What the parent does where there is a delay, the run does itself where there is none: so the place is exact."""
        (os.killpg if self._is_on_group else os.kill)(self._run, number)
        if number == signal.SIGKILL:
            signal.pause()

    def _say(self, what: str) -> None:
        os.write(self._log, f"{time.monotonic_ns()} {os.getpid()} {what}\n".encode())

    def _watched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def operation(path: Path, *rest: Any) -> Any:
            place = Path(path)
            inner = str(place.relative_to(self._root)) if place.is_relative_to(self._root) else str(place)
            if counted := self._counted(inner, rest):
                self.passes(counted)
            self._say(f"< {name} {inner}")
            result = real(path, *rest)
            self._say(">")
            if name == "append" and (found := RECORD.search(rest[0])):
                kind, event, step = (part.decode() if part else "" for part in found.groups())
                self.passes("ready" if event in READY else f"{event or kind} {step}")
            return result

        return operation

    def _counted(self, inner: str, rest: tuple[Any, ...]) -> str:
        """The name of the place before this operation, if it belongs to a save, the end or a failure."""
        if "failure.json" in inner:
            self._failing += 1
            return f"failure {self._failing}"
        if found := SCRATCH.search(inner):
            if self._saving != found[1]:
                self._saving, self._count = found[1], 0
        elif ".final.new" in inner and not self._is_ending:
            self._is_ending, self._count = True, 0
        if self._is_ending:
            self._count += 1
            return f"end {self._count}"
        if self._saving and inner.startswith("checkpoints"):
            self._count += 1
            return f"save {self._saving} {self._count}"
        return ""


def train(config: Path, root: Path, log: Path, bell: int, strike: Strike | None, *, is_hurried: bool) -> int:
    """`trimtab train`, watched; its exit code."""
    from trimtab.cli import main

    watch = Watch(root, log, bell, strike, is_hurried=is_hurried)
    watch.install()
    watch.passes("start")
    return command(main, "train", str(config), "--run-dir", str(root))


def command(main: Callable[[], None], *words: str) -> int:
    """The command in this process; the exit code that it would have had."""
    sys.argv = ["trimtab", *words]
    code = 0
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    for thread in threading.enumerate():  # as the interpreter does at its end
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join()
    return code
