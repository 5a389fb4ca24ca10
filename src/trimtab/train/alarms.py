"""When a rule is broken: a figure against its limit, its running median, its start, or the evaluations before."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from trimtab.rules import Rule
from trimtab.train.settings import RuleLimits
from trimtab.types import Standing

HISTORY = 50
"""Steps of a running median."""
START = 10
"""Steps that say how a run began; before there are so many, nothing is held against a median."""
FLOORS: Mapping[str, float] = {"loss/total": 0.1, "loss/value": 0.1, "grad_norm/total": 1.0}
"""The least that counts as usual: a policy loss is near 0 by construction, a gradient is while no group has a spread, and
ten times nothing is nothing."""
CALM = 5
"""Steps without a breach after which an alarm is over, so that a figure at its limit does not ring at every step."""
HEALTHY = 3
"""Evaluations whose median a fall is measured from; those that fell are not among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one rule of a run is held against."""

    warn: float | None
    act: float | None
    steps: int
    then: str
    is_absolute: bool = False
    """Of a rule that is measured from the start: the limit is the figure's own."""

    @classmethod
    def of(cls, rule: Rule, asked: RuleLimits | None = None) -> Limits:
        """The table's limits with what a configuration says over them.

        A rule that only warns and is given something to follow acts where it warned.
        """
        found = cls(warn=rule.warn, act=rule.act, steps=rule.steps, then=rule.then)
        if asked is None:
            return found
        warn = found.warn if asked.warn is None else asked.warn
        act = found.act if asked.act is None else asked.act
        then = asked.then or ("roll_back" if asked.act is not None and found.act is None else found.then)
        if then in ("roll_back", "stop") and act is None:
            act = warn
        is_absolute = rule.judged == "share_of_start" and (asked.warn is not None or asked.act is not None)
        return replace(
            found,
            warn=asked.warn if is_absolute else warn,  # the table's is a share
            act=None if then in ("off", "warn") else act,
            steps=asked.for_ or found.steps,
            then=then,
            is_absolute=is_absolute,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """A rule that is broken."""

    level: str
    """`warn` or `act`."""
    figure: str
    value: float
    limit: float
    since: int
    """The step of the first record that says so."""
    is_new: bool = True
    """Whether this step's figures say so; an evaluation's alarm stays until the next evaluation."""
    shown: str | None = None
    """The limit in words, where it is no number."""


class Watch:
    """One rule, and what it remembers of a run."""

    def __init__(self, rule: Rule, limits: Limits, *, window: int | None = None, max_steps: int | None = None) -> None:
        """
        Args:
            window: steps over which training rewards are averaged, in a run without an evaluation.
            max_steps: the last step.
        """
        self.rule = rule
        self.limits = limits
        self.max_steps = max_steps
        self._history: dict[str, deque[float]] = {}
        self._start: dict[str, list[float]] = {}
        self._warned = 0
        self._acted = 0
        self._warned_since = self._acted_since = 0
        self._seconds = 0.0
        self._calm = 0
        self._breach: Breach | None = None
        self._seen: list[_Seen] = []
        self._fall = Fall(window)

    @property
    def is_timed(self) -> bool:
        """Whether it looks at a clock. What it remembers is no part of a checkpoint: no two runs agree on it."""
        return self.rule.seconds is not None or self.rule.judged == "under_median"

    @property
    def is_counting(self) -> bool:
        """Whether the rule is broken, would act, and has not been for long enough."""
        return self.limits.act is not None and 0 < self._acted < self.limits.steps

    def look(self, step: int, metrics: Mapping[str, Any]) -> Breach | None:
        """Judge a step's figures.

        Args:
            step: its number; figures of steps that were undone are forgotten by `load_state`.
            metrics: by their names; a rule none of whose figures is there keeps its mind.
        """
        if self.limits.then == "off":
            return None
        found = self._judged(step, metrics)
        if found is None:  # nothing new
            self._breach = None if self._breach is None else replace(self._breach, is_new=False)
            return self._breach
        self._seen = found
        worst = max(found, key=lambda f: (f.is_over(self.limits.act), f.is_over(self.limits.warn), f.excess))
        if self._is_excused(metrics):
            worst = replace(worst, over=math.inf if worst.is_below else 0.0)
        self._count(step, worst, metrics)
        breach = self._decided(worst)
        self._calm = 0 if breach is not None else self._calm + 1
        if breach is None and self._breach is not None and self._calm < self._calm_needed:
            breach = replace(self._breach, level="warn", is_new=False)
        self._breach = breach
        return breach

    def standings(self, raised: str) -> list[Standing]:
        """How its figures stand against its limits.

        Args:
            raised: the level of its alarm, empty if there is none.
        """
        limits, found = self.limits, []
        waits = 1 if limits.act is not None else limits.steps
        warned = self._warned / waits if self.rule.seconds is None else self._seconds / self.rule.seconds
        counted = {"warn": (limits.warn, warned), "act": (limits.act, self._acted / limits.steps)}
        for level, (limit, breach) in counted.items():
            if limit is not None and limits.then != "off":
                found += [
                    Standing(
                        rule=self.rule.name,
                        level=level,
                        figure=seen.name,
                        limit=seen.in_own_unit(limit),
                        breach=breach,
                        raised=raised,
                    )
                    for seen in self._seen
                ]
        return found

    @property
    def _calm_needed(self) -> int:
        """An evaluation is calm enough by itself."""
        return 1 if self.rule.judged == "fall" or self.rule.figures[0].startswith(("eval/", "final/")) else CALM

    # -------------------------------------------------------------------------------------------------- one figure
    def _judged(self, step: int, metrics: Mapping[str, Any]) -> list[_Seen] | None:
        if self.rule.judged == "fall":
            fall = self._fall.look(step, metrics, self.limits.act or self.limits.warn or 0.0)
            return None if fall is None else [fall]
        names = [self._at_end(name, step) for name in self.rule.figures]
        seen = [(n, float(metrics[n])) for n in names if isinstance(metrics.get(n), int | float)]
        if not seen:
            return None
        return [self._held(name, value) for name, value in seen]

    def _at_end(self, name: str, step: int) -> str:
        """`final/x` is `eval/x` at the last step."""
        return name.replace("final/", "eval/") if step == self.max_steps else name

    def _held(self, name: str, value: float) -> _Seen:
        """A figure, and how far it is over as a number that warn and act are compared with."""
        judged = "below" if self.limits.is_absolute else self.rule.judged
        if judged == "above":
            over = value
            if self.rule.acts_over_median is not None:
                usual = self._median(name)
                self._remember(name, value)
                if usual is None or value <= self.rule.acts_over_median * usual:
                    over = min(over, self.limits.act or math.inf)
            return _Seen(name, value, over)
        if judged == "below":
            return _Seen(name, value, value, is_below=True)
        if judged in ("share_of_start", "range_of_start"):
            return self._held_against_start(name, value)
        usual = self._median(name)
        size = abs(value)
        self._remember(name, size)
        if judged == "times_median":
            usual = None if usual is None else max(usual, median(self._start[name]), FLOORS.get(name, 0.0))
            over = size / usual if usual else 0.0
        else:
            over = size / usual if usual else math.inf
        is_below = judged == "under_median"
        return _Seen(name, value, over, scale=usual or 0.0, is_below=is_below, is_known=bool(usual))

    def _held_against_start(self, name: str, value: float) -> _Seen:
        start = self._start.setdefault(name, [])
        if len(start) < START:
            start.append(value)
        began = median(start)
        if began <= 0 or len(start) < START:
            return _Seen(name, value, 1.0, is_below=self.rule.judged == "share_of_start", is_known=False)
        if self.rule.judged == "share_of_start":
            return _Seen(name, value, value / began, scale=began, is_below=True)
        limit = self.limits.warn or self.limits.act or math.inf
        shown = f"{began / limit:.0f}-{began * limit:.0f}"
        return _Seen(name, value, max(value / began, began / max(value, 1e-9)), scale=began, shown=shown)

    def _median(self, name: str) -> float | None:
        """Of the steps before; None until there are enough."""
        history = self._history.get(name, ())
        return median(history) if len(history) >= START else None

    def _remember(self, name: str, value: float) -> None:
        self._history.setdefault(name, deque(maxlen=HISTORY)).append(value)
        start = self._start.setdefault(name, [])
        if len(start) < START:
            start.append(value)

    def _is_excused(self, metrics: Mapping[str, Any]) -> bool:
        if self.rule.unless is None:
            return False
        name, side, limit = self.rule.unless
        value = metrics.get(name)
        return isinstance(value, int | float) and (value > limit if side == "above" else value < limit)

    # ------------------------------------------------------------------------------------------------ how often
    def _count(self, step: int, seen: _Seen, metrics: Mapping[str, Any]) -> None:
        warn = self.limits.warn if self.limits.warn is not None else self.limits.act
        begins = step if seen.since is None else seen.since
        if seen.is_over(warn):
            self._warned_since = self._warned_since if self._warned else begins
            self._warned += 1
            self._seconds += float(metrics.get("time/step", 0.0))
        else:
            self._warned, self._seconds = 0, 0.0
        if seen.is_over(self.limits.act):
            self._acted_since = self._acted_since if self._acted else begins
            self._acted += 1
        else:
            self._acted = 0

    def _decided(self, seen: _Seen) -> Breach | None:
        limits = self.limits
        if limits.act is not None and self._acted >= limits.steps:
            return self._of("act", seen, limits.act, self._acted_since)
        if limits.warn is None or not self._warned:
            return None
        waits = 1 if limits.act is not None else limits.steps
        is_long = self._warned >= waits if self.rule.seconds is None else self._seconds >= self.rule.seconds
        return self._of("warn", seen, limits.warn, self._warned_since) if is_long else None

    def _of(self, level: str, seen: _Seen, limit: float, since: int) -> Breach:
        # a fall's limit is the value it fell under; of a figure that is measured by something, so much of that
        held = seen.limit if seen.limit is not None else limit * (seen.scale or 1.0)
        return Breach(level=level, figure=seen.name, value=seen.value, limit=held, since=since, shown=seen.shown)

    # ---------------------------------------------------------------------------------------------------- state
    def state(self) -> dict[str, Any]:
        breach = self._breach
        return {
            "history": {name: list(values) for name, values in self._history.items()},
            "start": {name: list(values) for name, values in self._start.items()},
            "counts": [self._warned, self._warned_since, self._acted, self._acted_since, self._calm],
            "fall": self._fall.state(),
            "breach": None
            if breach is None
            else [breach.level, breach.figure, breach.value, breach.limit, breach.since, breach.shown],
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._history = {name: deque(values, maxlen=HISTORY) for name, values in state["history"].items()}
        self._start = {name: list(values) for name, values in state["start"].items()}
        self._warned, self._warned_since, self._acted, self._acted_since, self._calm = state["counts"]
        self._fall.load_state(state["fall"])
        self._breach = None
        if state["breach"] is not None:
            level, figure, value, limit, since, shown = state["breach"]
            self._breach = Breach(
                level=level, figure=figure, value=value, limit=limit, since=since, shown=shown, is_new=False
            )


@dataclass(frozen=True, slots=True)
class _Seen:
    """A figure, and the number that its limits are compared with."""

    name: str
    value: float
    over: float
    scale: float = 0.0
    """What a limit is multiplied by to be in the figure's own unit; 0: it is already."""
    is_below: bool = False
    limit: float | None = None
    since: int | None = None
    shown: str | None = None
    is_known: bool = True
    """Whether enough has been seen to hold it against anything."""

    def in_own_unit(self, limit: float) -> float | None:
        """A limit as the figure's own unit has it; None where it is a range, or nothing yet."""
        if self.limit is not None:
            return self.limit
        return limit * (self.scale or 1.0) if self.is_known and self.shown is None else None

    def is_over(self, limit: float | None) -> bool:
        if limit is None:
            return False
        return self.over < limit if self.is_below else self.over > limit

    @property
    def excess(self) -> float:
        return -self.over if self.is_below else self.over


class Fall:
    """A reward under the evaluations before it, by more than a share of its size or spread and than its error.

    Without an evaluation, windows of training steps stand for evaluations. What it fell from is the median of the last
    healthy ones: not the best, since the best of many is a lucky one, and not the one before, since a reward that falls
    once and stays down is down. A value within its limit is healthy.
    """

    def __init__(self, window: int | None) -> None:
        self.window = window
        self._healthy: list[float] = []
        self._healthy_step = 0
        self._steps: list[tuple[float, float]] = []
        """(mean, spread) of the steps of a window that is not over."""

    def look(self, step: int, metrics: Mapping[str, Any], share: float) -> _Seen | None:
        """The newest evaluation or window; None if there is none at this step.

        Args:
            share: of the reward's size, or of its spread over prompts if that is more.
        """
        found = self._evaluated(metrics) if self.window is None else self._windowed(step, metrics)
        if found is None:
            return None
        name, value, spread, error = found
        if not self._healthy:
            self._keep(step, value)
            return _Seen(name, value, 0.0, is_known=False)
        reference = median(self._healthy)
        allowed = max(share * max(abs(reference), spread), error)
        if reference - value <= allowed:
            self._keep(step, value)
            return _Seen(name, value, 0.0, limit=reference - allowed)
        return _Seen(name, value, math.inf, limit=reference - allowed, since=self._healthy_step + 1)

    def _evaluated(self, metrics: Mapping[str, Any]) -> tuple[str, float, float, float] | None:
        value = metrics.get("eval/reward/mean")
        if value is None:
            return None
        spread, count = metrics.get("eval/reward/std", 0.0), metrics.get("eval/count", 1.0)
        return "eval/reward/mean", value, spread, spread / max(count, 1.0) ** 0.5

    def _windowed(self, step: int, metrics: Mapping[str, Any]) -> tuple[str, float, float, float] | None:
        if "reward/mean" in metrics:
            self._steps.append((metrics["reward/mean"], metrics.get("reward/std", 0.0)))
        if not self._steps or step % (self.window or 1):
            return None
        means, spreads = zip(*self._steps, strict=True)
        self._steps = []
        mean = sum(means) / len(means)
        error = (sum((m - mean) ** 2 for m in means) / max(len(means) - 1, 1) / len(means)) ** 0.5
        return "reward/mean", mean, sum(spreads) / len(spreads), error

    def _keep(self, step: int, value: float) -> None:
        self._healthy = [*self._healthy, value][-HEALTHY:]
        self._healthy_step = step

    def state(self) -> dict[str, Any]:
        return {"healthy": self._healthy, "step": self._healthy_step, "window": [list(s) for s in self._steps]}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._healthy, self._healthy_step = list(state["healthy"]), int(state["step"])
        self._steps = [(mean, spread) for mean, spread in state["window"]]


def limits_of(
    rules: Sequence[Rule], asked: Any, *, kl_limit: Any = None, max_staleness: int | None = None
) -> dict[str, Limits]:
    """Every rule's limits in a run.

    Args:
        asked: the `guard.rules` section.
        kl_limit: the algorithm's `kl.limit`, which is `kl_update`'s unless `guard.rules.kl_update` says otherwise.
        max_staleness: of `sampling`, which is `staleness`'s limit in the same way.
    """
    found = {}
    for rule in rules:
        settings: RuleLimits | None = getattr(asked, rule.name, None)
        if rule.name == "kl_update" and kl_limit is not None and settings is not None:
            settings = replace(
                settings,
                warn=kl_limit.warn if settings.warn is None else settings.warn,
                act=kl_limit.act if settings.act is None else settings.act,
            )
        if rule.name == "staleness" and max_staleness is not None and settings is not None and settings.warn is None:
            settings = replace(settings, warn=float(max_staleness))
        found[rule.name] = Limits.of(rule, settings)
    return found
