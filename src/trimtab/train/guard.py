"""When a run ends before its last step: numbers that are no numbers, nothing to learn from, or nothing more gained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trimtab.catalogue import is_better_lower
from trimtab.rules import NO_IMPROVEMENT, NO_SIGNAL, NON_FINITE
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
        self._without_signal = 0
        self._rewards: tuple[float, float] | None = None
        """The lowest and the highest mean reward of a step so far."""

    def judge(self, report: StepReport) -> Verdict:
        bad = report.metrics.get("updates/non_finite", 0.0) > 0 and report.metrics.get("updates/count", 0.0) == 0
        self._non_finite = self._non_finite + 1 if bad else 0
        if self._non_finite >= NON_FINITE.limit:
            unchanged = report.step - NON_FINITE.limit
            reason = (
                f"{NON_FINITE.limit} times in a row {NON_FINITE.condition}; the weights are those of step {unchanged}"
            )
            return Verdict(action=NON_FINITE.action, reason=f"{reason}. {NON_FINITE.remedy.capitalize()}")
        return self._judge_signal(report) or self._judge_evaluation(report)

    def _judge_signal(self, report: StepReport) -> Verdict | None:
        """Dynamic sampling that finds nothing to learn from ends the run: learned if all have the best reward seen."""
        reward, kept = report.metrics.get("reward/mean"), report.metrics.get("sampling/kept")
        if reward is not None:
            low, high = self._rewards or (reward, reward)
            self._rewards = min(low, reward), max(high, reward)
        if kept is None:
            return None
        self._without_signal = self._without_signal + 1 if kept == 0 else 0
        if self._without_signal < NO_SIGNAL.limit:
            return None
        times = f"{NO_SIGNAL.limit} times in a row {NO_SIGNAL.condition}"
        if reward is not None and self._rewards is not None and self._rewards[0] < reward >= self._rewards[1]:
            return Verdict(action="finish", reason=f"every completion has the best reward seen, {reward:.4g}")
        return Verdict(action=NO_SIGNAL.action, reason=f"{times}. {NO_SIGNAL.remedy.capitalize()}")

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
            "without_signal": self._without_signal,
            "rewards": self._rewards,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        if state["metric"] == self.metric:  # the best of another metric says nothing
            self._best = state["best"]
            self._without_improvement = int(state["without_improvement"])
        self._non_finite = int(state["non_finite"])
        self._without_signal = int(state["without_signal"])
        self._rewards = None if state["rewards"] is None else (state["rewards"][0], state["rewards"][1])
