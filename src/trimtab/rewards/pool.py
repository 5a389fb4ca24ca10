"""Worker processes for reward functions, with a time limit that kills.

A thread that waits no longer still computes; only ending the process ends the call. A killed worker is replaced at
once, so the pool keeps its size.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil

from trimtab import heartbeat, secrets
from trimtab.rules import HEARTBEAT

LOAD_SECONDS = 60.0
"""A worker's start and the import of a user's module may take this long; it does not count as the call's time."""
LOOK_SECONDS = 5.0
"""Between looks at whether a worker that has not answered was stopped from outside."""
MAX_RESTARTS = 3
"""So often a call is given to another worker because somebody has stopped its process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    name: str
    options: Mapping[str, Any]
    timeout_seconds: float
    prompts: Sequence[str]
    completions: Sequence[str]
    columns: Mapping[str, Sequence[Any]]
    load_only: bool = False
    """Import the function and call nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    values: Sequence[float | None] | None = None
    error: str | None = None
    cause: Exception | None = None
    """What a function in this process has raised."""
    has_ended: bool = False
    """The process is gone, by itself or by the time limit."""


@dataclass(slots=True)
class _Worker:
    process: subprocess.Popen[bytes]
    loaded: set[str] = field(default_factory=set)
    buffer: bytes = b""


class Pool:
    """`size` processes that answer calls; `paths` are put in front of their `sys.path`."""

    def __init__(self, size: int, *, paths: Sequence[str] = ()) -> None:
        self.size = size
        self.paths = list(paths)
        self.kills = 0
        self.restarts = 0
        """Workers that were replaced because somebody had stopped their process."""
        self._silent_since: dict[int, float] = {}
        """By process: since when it has been seen stopped."""
        self._idle: list[_Worker] = []

    def run(self, calls: Sequence[Call]) -> list[Outcome]:
        """The outcome of each call; up to `size` run at a time."""
        waiting = list(enumerate(calls))[::-1]
        given: dict[int, int] = {}
        found: dict[int, Outcome] = {}
        busy: dict[int, tuple[int, Call, _Worker, float]] = {}
        with selectors.DefaultSelector() as selector, heartbeat.at_work("reward"):
            while waiting or busy:
                while waiting and len(busy) < self.size:
                    number, call = waiting.pop()
                    worker = self._take()
                    error = self._prepare(worker, call)
                    if error is not None or call.load_only:
                        found[number] = Outcome(error=error) if error else Outcome(values=[])
                        self._retire(worker) if error else self._idle.append(worker)
                        continue
                    self._send(worker, call)
                    output = _output(worker)
                    selector.register(output, selectors.EVENT_READ)
                    busy[output] = (number, call, worker, time.monotonic() + call.timeout_seconds)
                for number in self._collect(selector, busy, found):
                    given[number] = given.get(number, 0) + 1
                    if given[number] > MAX_RESTARTS:
                        found[number] = Outcome(error=f"its process was stopped from outside {given[number]} times")
                    else:
                        waiting.append((number, calls[number]))
        return [found[number] for number in range(len(calls))]

    def _collect(
        self,
        selector: selectors.BaseSelector,
        busy: dict[int, tuple[int, Call, _Worker, float]],
        found: dict[int, Outcome],
    ) -> list[int]:
        """Wait for the next answer or the next time limit; the calls whose worker was stopped from outside.

        A process that somebody has stopped does not answer, and it is no fault of the function's: another one is started
        and given the call when the time limit is over, or when it has been silent for as long as the rule about
        heartbeats says.
        """
        again: list[int] = []
        if not busy:
            return again
        wait = max(0.0, min(deadline for *_, deadline in busy.values()) - time.monotonic())
        wait = min(wait, LOOK_SECONDS)
        ready = {key.fd for key, _ in selector.select(wait)}
        if ready:
            heartbeat.beat("reward")
        for output, (number, call, worker, deadline) in list(busy.items()):
            if output in ready:
                outcome = self._receive(worker)
                if outcome is None:
                    continue
            elif self._is_stopped(worker, at_limit=time.monotonic() >= deadline):
                selector.unregister(output)
                del busy[output]
                self._retire(worker)
                self.restarts += 1
                again.append(number)
                continue
            elif time.monotonic() >= deadline:
                outcome = Outcome(error=f"took longer than {call.timeout_seconds:g} s and was killed", has_ended=True)
                self.kills += 1
            else:
                continue
            selector.unregister(output)
            del busy[output]
            found[number] = outcome
            if outcome.has_ended:
                self._retire(worker)
            else:
                self._idle.append(worker)
        return again

    def _is_stopped(self, worker: _Worker, *, at_limit: bool) -> bool:
        """Whether somebody has stopped the process, and it is time to do something about it."""
        pid = worker.process.pid
        try:
            is_stopped = psutil.Process(pid).status() == psutil.STATUS_STOPPED
        except psutil.Error:
            is_stopped = False
        if not is_stopped:
            heartbeat.beat("reward")  # a call that takes its time is at work
            self._silent_since.pop(pid, None)
            return False
        since = self._silent_since.setdefault(pid, time.monotonic())
        is_over = at_limit or time.monotonic() - since >= (HEARTBEAT.act or 0.0)
        if is_over:
            del self._silent_since[pid]
        return is_over

    def _take(self) -> _Worker:
        """An idle worker that still lives, else a new one."""
        while self._idle:
            worker = self._idle.pop()
            if worker.process.poll() is None:
                return worker
            self._retire(worker)
        return self._start()

    def _start(self) -> _Worker:
        """The secrets that the configuration names are not in a worker's environment, since no function needs them."""
        named = secrets.watched()
        hidden = {secret.environment_name for secret in named}
        around = {name: value for name, value in os.environ.items() if name not in hidden}
        words = [json.dumps(self.paths), json.dumps(named)]
        command = [sys.executable, "-m", "trimtab.rewards.worker", *words]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        return _Worker(process=subprocess.Popen(command, **pipes, env=around, start_new_session=True))

    def _prepare(self, worker: _Worker, call: Call) -> str | None:
        """Let the worker import the function; the error, if there is one."""
        key = _key(call)
        if key in worker.loaded:
            return None
        self._send(worker, call, load_only=True)
        deadline = time.monotonic() + LOAD_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(_output(worker), selectors.EVENT_READ)
            while time.monotonic() < deadline:
                if selector.select(max(0.0, deadline - time.monotonic())):
                    outcome = self._receive(worker)
                    if outcome is not None:
                        worker.loaded.add(key)
                        return outcome.error
        return f"took longer than {LOAD_SECONDS:g} s to import"

    def _send(self, worker: _Worker, call: Call, *, load_only: bool = False) -> None:
        request: dict[str, Any] = {"name": call.name, "options": dict(call.options), "load_only": load_only}
        if not load_only:
            request |= {
                "prompts": list(call.prompts),
                "completions": list(call.completions),
                "columns": {name: list(values) for name, values in call.columns.items()},
            }
        pipe = worker.process.stdin
        assert pipe is not None
        try:
            pipe.write(json.dumps(request).encode() + b"\n")
            pipe.flush()
        except BrokenPipeError:
            pass  # the worker is gone; reading its answer says so

    def _receive(self, worker: _Worker) -> Outcome | None:
        """The answer if it is whole by now."""
        data = os.read(_output(worker), 1 << 20)
        if not data:
            code = worker.process.wait()
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            return Outcome(error=f"ended with {how} and took its process", has_ended=True)
        worker.buffer += data
        if not worker.buffer.endswith(b"\n"):
            return None
        answer, worker.buffer = json.loads(worker.buffer), b""
        error = answer.get("error")
        return Outcome(values=answer.get("values"), error=error and secrets.redact(error))

    def _retire(self, worker: _Worker) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker.process.pid, signal.SIGKILL)  # and what the function has started
        worker.process.wait()
        for pipe in (worker.process.stdin, worker.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # a request that nobody will read
                    pipe.close()

    def close(self) -> None:
        """End all workers."""
        while self._idle:
            self._retire(self._idle.pop())


def _key(call: Call) -> str:
    """One function: the same rule with other options is another."""
    return json.dumps([call.name, dict(call.options)], sort_keys=True)


def _output(worker: _Worker) -> int:
    assert worker.process.stdout is not None
    return worker.process.stdout.fileno()
