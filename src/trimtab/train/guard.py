"""Judges every step: alarms by the table of rules, the early stop, and what follows.

Of several verdicts the gravest counts: STOP before ROLL_BACK before FINISH before CONTINUE. An early stop waits while a
fall of the reward is being counted, since a run that got worse has not finished.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trimtab.catalogue import is_better_lower
from trimtab.rules import HEARTBEAT, NO_IMPROVEMENT, NO_SPREAD, REWARD_FALL, RULES, Rule, diagnosis
from trimtab.train.alarms import Breach, Limits, Watch
from trimtab.types import Alarm, StepReport, Verdict

ORDER = ("stop", "roll_back", "finish", "continue")
"""From the gravest."""
ALL = 1 - 1e-9
"""Of the way to the best reward, in spite of rounding."""


class StepGuard:
    """Judges each step's report; its memory is part of a checkpoint."""

    def __init__(
        self,
        *,
        metric: str,
        patience: int | None,
        limits: Mapping[str, Limits] | None = None,
        window: int | None = None,
        max_steps: int | None = None,
        facts: Mapping[str, Any] | None = None,
        language: str = "en",
    ) -> None:
        """
        Args:
            metric: the evaluation that says whether the run gets better.
            patience: evaluations without a better value before the run is finished; None: never.
            limits: of rules by name, where they are not those of the table.
            window: steps over which training rewards are averaged for the rule about their fall, in a run without an
                evaluation; None where evaluations say it.
            max_steps: the last step, at which what must be true at the end is judged.
            facts: the configuration's values by dotted key, for remedies.
            language: of alarms, `en` or `zh`.
        """
        self.metric = metric
        self.patience = patience
        self.facts = dict(facts or {})
        self.language = language
        self._is_loss = is_better_lower(metric)
        self._best: float | None = None
        self._without_improvement = 0
        self._learned_steps = 0
        """Steps in a row in which dynamic sampling found only completions with the best reward."""
        self._rewards: tuple[float, float] | None = None
        """The lowest and the highest mean reward of a step so far."""
        self._active: dict[str, str] = {}
        """Alarms that are raised now, and their level."""
        given = limits or {}
        self.watches = {
            rule.name: Watch(rule, given.get(rule.name) or Limits.of(rule), window=window, max_steps=max_steps)
            for rule in RULES
            if rule not in (NO_IMPROVEMENT, HEARTBEAT)  # the one is judged below, the other where roles are started
        }

    def judge(self, report: StepReport) -> Verdict:
        metrics = self._with_derived(report)
        facts = {**self.facts, **metrics}
        raised, verdicts, still = [], [], {}
        for watch in self.watches.values():
            breach = watch.look(report.step, metrics)
            if breach is None:
                continue
            still[watch.rule.name] = breach.level
            is_known = self._active.get(watch.rule.name) == breach.level
            if not breach.is_new or (is_known and breach.level == "warn"):
                continue
            alarm = self._alarm(watch.rule, breach, report.step, facts)
            raised.append(alarm)
            if breach.level == "act" and watch.limits.then not in ("warn", "off"):
                verdicts.append(Verdict(action=watch.limits.then, reason=alarm.text, cause=alarm))
        cleared = tuple(name for name in self._active if name not in still)
        self._active = still
        learned, evaluated = self._judge_learned(metrics), self._judge_evaluation(report)
        finished = learned or evaluated
        if finished is not None and not self.watches[REWARD_FALL.name].is_counting:
            verdicts.append(finished)
        gravest = min(verdicts, key=lambda v: ORDER.index(v.action), default=Verdict(action="continue"))
        return Verdict(
            action=gravest.action,
            reason=gravest.reason,
            cause=gravest.cause,
            raised=tuple(raised),
            cleared=cleared,
            standings=tuple(
                standing
                for watch in self.watches.values()
                for standing in watch.standings(self._active.get(watch.rule.name, ""))
            ),
        )

    @property
    def active(self) -> tuple[str, ...]:
        """Names of the rules whose alarm is raised."""
        return tuple(self._active)

    @property
    def is_calm(self) -> bool:
        """Whether no alarm is raised but such as depend on a clock."""
        return all(self.watches[name].is_timed for name in self._active)

    def _alarm(self, rule: Rule, breach: Breach, step: int, facts: Mapping[str, Any]) -> Alarm:
        limit: Any = breach.limit if breach.shown is None else breach.shown
        seen = {**facts, "figure": breach.figure, "value": breach.value, "limit": limit}
        return Alarm(
            rule=rule.name,
            level=breach.level,
            step=step,
            since=breach.since,
            figure=breach.figure,
            value=breach.value,
            limit=breach.limit,
            text=diagnosis(rule, seen, self.language),
        )

    def _with_derived(self, report: StepReport) -> dict[str, Any]:
        """The report's metrics, and what follows from them and from the steps before."""
        found: dict[str, Any] = dict(report.metrics)
        reward, best = found.get("reward/mean"), found.get("reward/max")
        if reward is not None and best is not None:
            low, high = self._rewards or (best, best)
            self._rewards = min(low, found.get("reward/min", reward)), max(high, best)
            low, high = self._rewards
            # of the way from the lowest reward seen to the highest; a reward that never differs has got nowhere
            found["reward_share_of_best"] = (reward - low) / (high - low) if high > low else 0.0
        if "sampling/kept" in found:
            found["sampling_without_spread"] = float(found["sampling/kept"] == 0.0)
        spreads = {
            name.removeprefix("reward_spread/"): v for name, v in found.items() if name.startswith("reward_spread/")
        }
        if spreads:
            found["least_reward"] = min(spreads, key=lambda name: spreads[name])
            found["least_spread"] = spreads[found["least_reward"]]
        return found

    def _judge_learned(self, metrics: Mapping[str, Any]) -> Verdict | None:
        """Dynamic sampling that finds no spread since every completion has the best reward has nothing more to do."""
        is_best = metrics.get("reward_share_of_best", 0.0) >= ALL
        self._learned_steps = self._learned_steps + 1 if metrics.get("sampling_without_spread") and is_best else 0
        if self._learned_steps < NO_SPREAD.steps:
            return None
        return Verdict(
            action="finish", reason=f"every completion has the best reward seen, {metrics['reward/mean']:.4g}"
        )

    def _judge_evaluation(self, report: StepReport) -> Verdict | None:
        value = report.metrics.get(self.metric)
        if value is None:
            return None
        better = self._best is None or (value < self._best if self._is_loss else value > self._best)
        if better:
            self._best, self._without_improvement = value, 0
            return None
        self._without_improvement += 1
        if not self.has_finished():
            return None
        reason = f"{self.metric} has not improved on {self._best:.4g} for {self.patience} evaluations"
        return Verdict(action=NO_IMPROVEMENT.then, reason=reason)

    def has_finished(self) -> bool:
        return self.patience is not None and self._without_improvement >= self.patience

    def state(self) -> Mapping[str, Any]:
        return {
            "metric": self.metric,
            "best": self._best,
            "without_improvement": self._without_improvement,
            "learned_steps": self._learned_steps,
            "rewards": self._rewards,
            "active": {name: level for name, level in self._active.items() if not self.watches[name].is_timed},
            "watches": {name: watch.state() for name, watch in self.watches.items() if not watch.is_timed},
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        if state["metric"] == self.metric:  # the best of another metric says nothing
            self._best = state["best"]
            self._without_improvement = int(state["without_improvement"])
        self._learned_steps = int(state["learned_steps"])
        self._rewards = None if state["rewards"] is None else (state["rewards"][0], state["rewards"][1])
        self._active = dict(state["active"])
        for name, watch in self.watches.items():
            if name in state["watches"]:
                watch.load_state(state["watches"][name])
