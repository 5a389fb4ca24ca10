"""When a run ends before its last step: numbers that are no numbers, or an evaluation that no longer improves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trimtab.catalogue import is_better_lower
from trimtab.rules import NO_IMPROVEMENT, NON_FINITE
from trimtab.types import StepReport, Verdict


class StepGuard:
    """Judges each step's report.

    A non-finite update is never applied, so the weights are as good as before; if the third step in a row has only
    such updates, something is wrong that more steps will not mend.
    """

    def __init__(self, *, metric: str, patience: int | None) -> None:
        self.metric = metric
        self.patience = patience
        self._is_loss = is_better_lower(metric)
        self._best: float | None = None
        self._without_improvement = 0
        self._non_finite = 0

    def judge(self, report: StepReport) -> Verdict:
        bad = report.metrics.get("updates/non_finite", 0.0) > 0 and report.metrics.get("updates/count", 0.0) == 0
        self._non_finite = self._non_finite + 1 if bad else 0
        if self._non_finite >= NON_FINITE.limit:
            unchanged = report.step - NON_FINITE.limit
            reason = (
                f"{NON_FINITE.limit} times in a row {NON_FINITE.condition}; the weights are those of step {unchanged}"
            )
            return Verdict(action=NON_FINITE.action, reason=f"{reason}. {NON_FINITE.remedy.capitalize()}")
        return self._judge_evaluation(report)

    def _judge_evaluation(self, report: StepReport) -> Verdict:
        value = report.metrics.get(self.metric)
        if value is None:
            return Verdict(action="continue")
        better = self._best is None or (value < self._best if self._is_loss else value > self._best)
        if better:
            self._best, self._without_improvement = value, 0
            return Verdict(action="continue")
        self._without_improvement += 1
        if self.has_finished():
            reason = f"{self.metric} has not improved on {self._best:.4g} for {self.patience} evaluations"
            return Verdict(action=NO_IMPROVEMENT.action, reason=reason)
        return Verdict(action="continue")

    def has_finished(self) -> bool:
        return self.patience is not None and self._without_improvement >= self.patience

    def state(self) -> Mapping[str, Any]:
        return {
            "metric": self.metric,
            "best": self._best,
            "without_improvement": self._without_improvement,
            "non_finite": self._non_finite,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        if state["metric"] == self.metric:  # the best of another metric says nothing
            self._best = state["best"]
            self._without_improvement = int(state["without_improvement"])
        self._non_finite = int(state["non_finite"])
