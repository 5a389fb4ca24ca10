"""Ends a run when it has spent what it may: counted from the journal, so that a run that went on has spent it all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trimtab.compare.plan import Budget
from trimtab.store import journal
from trimtab.store.run_directory import RunDirectory
from trimtab.train.control import SignalControl
from trimtab.train.ranks import Ranks
from trimtab.types import StepReport


class Meter:
    """A `ports.Recorder` that counts what a run spends. Steps that were undone are spent too."""

    def __init__(self, directory: RunDirectory, *, group_size: int) -> None:
        self.group_size = group_size
        self.spent = {"steps": 0.0, "samples": 0.0, "tokens": 0.0, "seconds": 0.0}
        self.newest: dict[str, float] = {}
        """Of the newest step."""
        self.evaluated = 0
        """The newest step that was."""
        self._prompts = 0.0
        for record in journal.read(directory.journal).records:
            if record["kind"] == "step":
                self._add(record["metrics"], len(record.get("completions") or ()))
            elif record["kind"] == "eval":
                self.evaluated = int(record["step"])

    def record(self, report: StepReport) -> None:
        if report.phase == "eval":
            self.evaluated = report.step
        else:
            self._add(report.metrics, len(report.completion_hashes))

    def _add(self, metrics: Mapping[str, float], completions: int) -> None:
        drawn = metrics.get("data/prompts", self._prompts)
        self.newest = {
            "steps": 1.0,
            # what dynamic sampling draws and leaves out is spent as well; the counter goes back with a rollback
            "samples": max(completions, (drawn - self._prompts) * self.group_size),
            "tokens": metrics.get("length/mean", 0.0) * completions,
            "seconds": metrics.get("time/step", 0.0),
        }
        self._prompts = drawn
        for kind, amount in self.newest.items():
            self.spent[kind] += amount

    def event(self, kind: str, **facts: Any) -> None:
        """Events cost nothing."""

    def close(self) -> None:
        """Nothing is open."""


class BudgetControl(SignalControl):
    """Signals, and a last step, which is evaluated: the one that will spend the budget, judged by the one before it."""

    def __init__(self, ranks: Ranks, budget: Budget | None, meter: Meter) -> None:
        super().__init__(ranks)
        self.budget = budget
        self.meter = meter

    def apply(self, run: Any) -> Any:
        if self.budget is not None:
            kind, amount = self.budget.kind, self.budget.amount
            spent, step = self.meter.spent[kind], self.meter.newest.get(kind, 0.0)
            if spent >= amount and self.meter.evaluated == run.step:
                run.max_steps = run.step
            elif spent + step >= amount:
                run.max_steps = min(run.max_steps, run.step + 1)
        return run
