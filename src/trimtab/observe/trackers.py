"""Experiment trackers: each step's figures, the configuration, alarms and samples, in somebody else's system.

A tracker is an adapter behind `Backend`, in a module of its own that imports its library only when it is chosen.
`TrackerRecorder` gives it a thread and a bounded queue, so that a tracker which hangs costs points on a curve and never a
step of training.
"""

from __future__ import annotations

import importlib
import queue
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol

from trimtab.errors import MissingExtraError, UserError
from trimtab.secrets import redact
from trimtab.types import Sample, StepReport

START_SECONDS = 120.0
"""That a tracker may take to start; one that takes longer ends the run, since nobody would see it."""
CLOSE_SECONDS = 30.0
"""That the end of a run waits for a tracker to send what it holds."""
QUEUED = 1000
"""Calls that wait for a slow tracker; of more the newest are dropped and counted."""
LIBRARIES: Mapping[str, str] = {
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "mlflow": "mlflow",
    "trackio": "trackio",
    "swanlab": "swanlab",
}
"""Every tracker, and the library that it needs; the extra has the tracker's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracked:
    """The run as a tracker is told of it."""

    name: str
    run_id: str
    directory: str
    """The run's own, for trackers that keep files."""
    parameters: Mapping[str, Any]
    """The resolved configuration by dotted key: numbers, texts, true, false, null. Secrets are their references."""
    algorithm: str
    max_steps: int
    samples_every: int
    """Steps between the completions that are shown; those of evaluations all are."""
    remembered: Mapping[str, str]
    """What the tracker wanted remembered when the run was started first."""
    remember: Callable[[Mapping[str, str]], None]


class Backend(Protocol):
    """What an adapter does; called from one thread, in this order: `start`, any of the others, `finish`."""

    def start(self, run: Tracked) -> None:
        """Open the tracker's run, or the one that it opened for this run before."""
        ...

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def tell(self, step: int, kind: str, title: str, text: str) -> None:
        """An alarm or another event: `kind` is `alarm`, `warning` or `event`."""
        ...

    def show(self, step: int, samples: tuple[Sample, ...]) -> None:
        """Completions, where that is cheap; else nothing."""
        ...

    def went_back(self, step: int) -> None:
        """The run goes on from a step, after a start or a rollback: those after it may come again."""
        ...

    def finish(self, outcome: str) -> None:
        """`finished`, `preempted` or `failed`."""
        ...


def require(name: str) -> None:
    """
    Raises:
        MissingExtraError: the library of a tracker is not installed.
    """
    library = LIBRARIES[name]
    if library not in sys.modules and find_spec(library) is None:
        raise MissingExtraError(f"observe.trackers: {name} needs the package {library}: pip install 'trimtab[{name}]'")


def backend_of(name: str) -> Backend:
    """The adapter of a tracker.

    Raises:
        MissingExtraError: its library is not installed.
    """
    require(name)
    module = importlib.import_module(f"trimtab.observe.trackers_{name}")
    found: Backend = module.Adapter()
    return found


def warn(text: str) -> None:
    print(redact(f"warning: {text}"), file=sys.stderr, flush=True)


class TrackerRecorder:
    """Tells a tracker of a run, from a thread of its own; a `ports.Recorder`.

    What the tracker raises is raised at the next call, so that whoever tells the monitors switches this one off.
    """

    def __init__(
        self,
        name: str,
        backend: Backend,
        run: Tracked,
        *,
        say: Callable[[str], None] = warn,
        start_seconds: float = START_SECONDS,
        close_seconds: float = CLOSE_SECONDS,
        queued: int = QUEUED,
    ) -> None:
        """
        Raises:
            UserError: the tracker cannot start.
        """
        self.name = name
        self.dropped = 0
        """Calls that were left out because the tracker is slow."""
        self.say = say
        self.close_seconds = close_seconds
        self._backend = backend
        self._max_steps = run.max_steps
        self._samples_every = run.samples_every
        self._step = 0
        self._outcome = ""
        self._evaluated: set[tuple[int, str]] = set()
        """Figures of the newest evaluation, which the record of its step has once more."""
        self._fault: BaseException | None = None
        self._is_closed = False
        self._calls: queue.Queue[Callable[[], None] | None] = queue.Queue(maxsize=queued)
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._work, args=(run,), name=f"trimtab-{name}", daemon=True)
        self._thread.start()
        if not self._started.wait(start_seconds):
            raise UserError(
                f"observe.trackers: {name} has not started within {start_seconds:g} s; is its server reachable? "
                "Most trackers have an offline mode, see docs/notifications.md"
            )
        if self._fault is not None:
            fault = self._fault
            raise UserError(
                redact(f"observe.trackers: {name} cannot start: {type(fault).__name__}: {fault}")
            ) from fault

    def record(self, report: StepReport) -> None:
        metrics = dict(report.metrics)
        if report.phase == "eval":
            self._evaluated = {(report.step, name) for name in metrics}
        else:
            metrics = {name: value for name, value in metrics.items() if (report.step, name) not in self._evaluated}
            self._step = report.step
        step, samples = report.step, report.samples
        if metrics:
            self._put(lambda: self._backend.log(step, metrics))
        if samples and (report.phase == "eval" or step % self._samples_every == 0):
            self._put(lambda: self._backend.show(step, samples))

    def event(self, kind: str, **facts: Any) -> None:
        step = int(facts.get("step", self._step))
        if kind in ("started", "resumed", "finished early", "preempted"):
            self._step = step
            self._outcome = {"finished early": "finished", "preempted": "preempted"}.get(kind, "")
        if kind in ("resumed", "rolled back"):
            self._step = step
            self._evaluated.clear()
            self._put(lambda: self._backend.went_back(step))
        if kind == "alarm":
            level = "alarm" if facts["level"] == "act" else "warning"
            title, text = str(facts["rule"]), redact(str(facts["text"]))
            self._put(lambda: self._backend.tell(step, level, title, text))
        elif kind in ("alarm over", "rolled back", "swapped", "save failed", "resumed"):
            text = redact(", ".join(f"{name} {value}" for name, value in facts.items() if name != "step"))
            self._put(lambda: self._backend.tell(step, "event", kind, text))

    def figures(self) -> dict[str, float]:
        """Metrics of telling, for the record of a step."""
        return {"observe/dropped_calls": float(self.dropped)}

    def close(self) -> None:
        """Wait a while until the tracker has what it was told; one that hangs is left behind."""
        if self._is_closed:
            return
        self._is_closed = True
        outcome = self._outcome or ("finished" if self._step >= self._max_steps else "failed")
        with suppress(queue.Full):
            self._calls.put(lambda: self._backend.finish(outcome), timeout=self.close_seconds / 2)
            self._calls.put(None, timeout=self.close_seconds / 2)
        self._thread.join(self.close_seconds)
        if self._thread.is_alive():
            self.say(
                f"{self.name} has not taken everything within {self.close_seconds:g} s; its last points may be missing"
            )
        self._raise_fault()

    def _put(self, call: Callable[[], None]) -> None:
        self._raise_fault()
        try:
            self._calls.put_nowait(call)
        except queue.Full:
            self.dropped += 1
            if self.dropped == 1:
                self.say(f"{self.name} is too slow: points are left out, observe/dropped_calls counts them")

    def _raise_fault(self) -> None:
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise RuntimeError(f"{self.name}: {type(fault).__name__}: {fault}") from fault

    def _work(self, run: Tracked) -> None:
        try:
            self._backend.start(run)
        except BaseException as error:
            self._fault = error
            return
        finally:
            self._started.set()
        while (call := self._calls.get()) is not None:
            try:
                call()
            except Exception as error:
                self._fault = error
                return
