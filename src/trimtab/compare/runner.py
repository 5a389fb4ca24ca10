"""Carries a comparison out: one process a run, some at a time, from where it was interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trimtab import config as configs
from trimtab.compare.layout import Layout
from trimtab.compare.plan import Arm, Plan, read
from trimtab.errors import (
    GuardError,
    Preempted,
    RewardUnavailableError,
    StorageError,
    TrimtabError,
    UserError,
    WorkerError,
)
from trimtab.operate.supervise import tied_to
from trimtab.store import writer
from trimtab.store.run_directory import RunDirectory

RETRIED = (WorkerError.exit_code, RewardUnavailableError.exit_code, Preempted.exit_code)
RETRIES = 3
DIVERGED = GuardError.exit_code
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    arm: Arm
    seed: int


@dataclass(slots=True)
class _Running:
    task: Task
    process: subprocess.Popen[bytes]
    started: float


def state_of(directory: RunDirectory) -> str:
    """`waiting`, `begun`, `done`, or `diverged`: ended by the guard or a numerical fault."""
    if not directory.exists:
        return "waiting"
    if directory.facts().get("ended"):
        return "done"
    if failure_of(directory).get("code") == DIVERGED:
        return "diverged"
    return "begun"


def failure_of(directory: RunDirectory) -> dict[str, Any]:
    """failure.json, nothing if there is none."""
    try:
        found = json.loads(directory.failure.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def settle(layout: Layout, plan: Plan, say: Say) -> Plan:
    """The plan as it lies in the directory; written there if nothing does.

    Raises:
        UserError: another comparison lies there, or what is locked has changed since.
    """
    if not layout.plan.exists():
        writer.make_directory(layout.root)
        plan.write(layout.plan)
        return plan
    before = read(layout.plan)
    known, asked = (json.loads(json.dumps(_facts(p))) for p in (before, plan))
    if changed := configs.differences(known, asked):
        said = "\n".join(f"  {key}: {old!r} then, {new!r} now" for key, old, new in changed[:20])
        raise UserError(
            f"{layout.root}: holds a comparison that was begun with something else:\n{said}\n"
            "go on with it as it was, or compare into another directory with --to"
        )
    done = sum(state_of(RunDirectory(layout.run(t.arm.folder, t.seed))) in ("done", "diverged") for t in tasks(before))
    say(
        f"going on with the comparison in {layout.root}: {done} of {len(before.arms) * len(before.seeds)} runs are done"
    )
    return before


def _facts(plan: Plan) -> dict[str, Any]:
    return {
        "config": plan.values,
        "vary": {arm.label: dict(arm.changes) for arm in plan.arms},
        "seeds": list(plan.seeds),
        "budget": None if plan.budget is None else [plan.budget.kind, plan.budget.amount],
        "locked": plan.locked,
    }


def tasks(plan: Plan) -> Iterator[Task]:
    """Seed after seed, so that whatever is there when it ends early is balanced."""
    for seed in plan.seeds:
        for arm in plan.arms:
            yield Task(arm=arm, seed=seed)


@dataclass(slots=True)
class Runner:
    layout: Layout
    plan: Plan
    jobs: int
    say: Say
    _running: list[_Running] = field(default_factory=list)
    _tries: dict[str, int] = field(default_factory=dict)
    _told: int = 0

    def run(self) -> None:
        """Until every run is done or has diverged.

        Raises:
            TrimtabError: a run failed for another reason; the others that were at work have been stopped and saved.
            Preempted: SIGTERM or SIGINT.
        """
        open_tasks = [t for t in tasks(self.plan) if self._state(t) not in ("done", "diverged")]
        total = len(self.plan.arms) * len(self.plan.seeds)
        finished = total - len(open_tasks)
        with self._listening():
            try:
                while (open_tasks or self._running) and not self._told:
                    while open_tasks and len(self._running) < self.jobs:
                        self._running.append(self._start(open_tasks.pop(0)))
                    ended = self._wait()
                    if ended is None or self._told:
                        continue
                    again = self._ended(*ended)
                    if again is not None:
                        open_tasks.insert(0, again)
                    else:
                        finished += 1
                        self.say(f"[{finished}/{total}] {self._line(ended[0].task)}")
            finally:
                self._stop_all()
        if self._told:
            raise Preempted(f"{signal.Signals(self._told).name}: the runs are saved; the same command goes on")

    def _state(self, task: Task) -> str:
        return state_of(self._directory(task))

    def _directory(self, task: Task) -> RunDirectory:
        return RunDirectory(self.layout.run(task.arm.folder, task.seed))

    def _start(self, task: Task) -> _Running:
        directory = self._directory(task)
        writer.make_directory(directory.root.parent)
        threads = str(max(1, (os.cpu_count() or 1) // self.jobs))
        around = {**({"OMP_NUM_THREADS": threads} if self.jobs > 1 else {}), **os.environ}
        command = [
            *(sys.executable, "-m", "trimtab.compare.arm"),
            *(str(self.layout.root), task.arm.folder, str(task.seed)),
        ]
        with self.layout.log(task.arm.folder, task.seed).open("ab") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, env=around, process_group=0, preexec_fn=tied_to(os.getpid())
            )
        return _Running(task, process, time.monotonic())

    def _wait(self) -> tuple[_Running, int] | None:
        """The next run that ends, and its exit code; None if a signal came first."""
        try:
            pid, status, used = os.wait4(-1, 0)
        except (InterruptedError, ChildProcessError):
            return None
        running = next((r for r in self._running if r.process.pid == pid), None)
        if running is None:
            return None
        self._running.remove(running)
        code = os.waitstatus_to_exitcode(status)
        running.process.returncode = code
        self._note_cost(running, used)
        return running, code

    def _note_cost(self, running: _Running, used: Any) -> None:
        """Add what one process has taken to what the run's processes before it have."""
        path = self.layout.cost(running.task.arm.folder, running.task.seed)
        known = cost_of(path)
        wall = time.monotonic() - running.started
        unit = 1 if sys.platform == "darwin" else 1024
        writer.replace_text(
            path,
            json.dumps(
                {
                    "processes": known["processes"] + 1,
                    "wall_seconds": known["wall_seconds"] + wall,
                    "cpu_seconds": known["cpu_seconds"] + used.ru_utime + used.ru_stime,
                    "peak_bytes": max(known["peak_bytes"], used.ru_maxrss * unit),
                }
            )
            + "\n",
        )

    def _ended(self, running: _Running, code: int) -> Task | None:
        """The task once more if it can be gone on with; None if it has ended.

        Raises:
            TrimtabError: it cannot.
        """
        task, directory = running.task, self._directory(running.task)
        if self._state(task) in ("done", "diverged"):
            return None
        name = f"{task.arm.label}, seed {task.seed}"
        cause = failure_of(directory).get("cause") or f"ended with {code}"
        tries = self._tries[name] = self._tries.get(name, 0) + 1
        if (code in RETRIED or code < 0) and tries <= RETRIES:
            self.say(f"{name}: {cause}; going on with it ({tries} of {RETRIES})")
            return task
        log = self.layout.log(task.arm.folder, task.seed)
        raise _of_code(code, f"{name}: {cause}; see {log}")

    def _line(self, task: Task) -> str:
        directory = self._directory(task)
        wall = cost_of(self.layout.cost(task.arm.folder, task.seed))["wall_seconds"]
        state = self._state(task)
        how = "" if state == "done" else f": {state}, {failure_of(directory).get('cause', '')}"
        return f"{task.arm.label}, seed {task.seed}{how}  ({wall:.0f} s)"

    @contextmanager
    def _listening(self) -> Iterator[None]:
        def notice(number: int, _: object) -> None:
            self._told = number
            for running in self._running:
                with suppress(ProcessLookupError):
                    running.process.send_signal(number)

        previous = {number: signal.signal(number, notice) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _stop_all(self) -> None:
        """Let those that are at work save and end."""
        for running in self._running:
            with suppress(ProcessLookupError):
                running.process.terminate()
        while self._running:
            self._wait()


def _of_code(code: int, message: str) -> TrimtabError:
    kinds: Mapping[int, type[TrimtabError]] = {2: UserError, 4: StorageError, 5: WorkerError, 6: RewardUnavailableError}
    if code in kinds:
        return kinds[code](message)
    return WorkerError(message) if code < 0 else TrimtabError(message)


def cost_of(path: Path) -> dict[str, float]:
    """What the processes of a run have taken that have ended in sight of a comparison."""
    nothing = {"processes": 0, "wall_seconds": 0.0, "cpu_seconds": 0.0, "peak_bytes": 0}
    try:
        return {**nothing, **json.loads(path.read_bytes())}
    except (OSError, ValueError):
        return dict(nothing)
