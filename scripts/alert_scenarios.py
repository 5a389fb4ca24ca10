"""What a run looks like a little inside a rule's limit and a little beyond it, minute by minute, for every alert.

The states of the guard's rules come from the guard itself: it judges steps, and the exporter's collector says what
Prometheus would see. What only an outsider judges is written down here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.catalogue import find, members
from trimtab.observe.alerts import Alert, is_published
from trimtab.observe.conditions import Scrape, Series, Term
from trimtab.observe.prometheus import RunCollector
from trimtab.rules import HEARTBEAT, RULES, Rule
from trimtab.rules import outside as table
from trimtab.train.alarms import FLOORS, START, Limits
from trimtab.train.guard import StepGuard
from trimtab.train.settings import RuleLimits
from trimtab.types import StepReport

BY_NAME = {rule.name: rule for rule in RULES}
LABELS = {"run": "demo", "algorithm": "grpo", "environment": ""}
TARGET = {"job": "trimtab", "instance": "127.0.0.1:9464"}
USUAL_STEPS = START + 2
STEP_SECONDS = 60.0
QUIET_MINUTES, LOUD_MINUTES = 6, 10
Sample = tuple[str, Mapping[str, str], float]


# --------------------------------------------------------------------------------------------------------- the guard
@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Steps for one rule, level and figure."""

    rule: Rule
    level: str
    figure: str
    before: Sequence[Mapping[str, float]]
    inside: Mapping[str, float]
    outside: Mapping[str, float]
    times: int
    """Steps beyond the limit until the level is reached."""
    asked: RuleLimits | None
    window: int | None = None

    def guard(self, steps: int) -> StepGuard:
        """One with only this rule, whose last step is the last of so many."""
        limits = {rule.name: Limits.of(rule, RuleLimits(then="off")) for rule in RULES}
        limits[self.rule.name] = Limits.of(self.rule, self.asked)
        last = steps if self.rule.figures[0].startswith("final/") else None
        return StepGuard(metric="none", patience=None, limits=limits, window=self.window, max_steps=last)

    def steps(self, figures: Mapping[str, float], times: int) -> list[Mapping[str, float]]:
        return [*self.before, *[figures] * times]


def cases(rule: Rule) -> list[Case]:
    """Every level and figure of a rule that the guard judges."""
    return [_case(rule, level, figure) for level in ("warn", "act") for figure in rule.figures if is_published(figure)]


def _case(rule: Rule, level: str, figure: str) -> Case:
    limit = getattr(rule, level)
    asked = None
    if limit is None:
        limit = _given(rule, level)
        asked = RuleLimits(**{level: limit})
    has_act = rule.act is not None or level == "act"
    times = rule.steps if level == "act" or not has_act else 1
    if rule.seconds is not None and level == "warn":
        times = int(rule.seconds / STEP_SECONDS)
    name = figure.replace("final/", "eval/")
    common: dict[str, Any] = {"rule": rule, "level": level, "figure": figure, "asked": asked, "times": times}
    if figure == "sampling_without_spread":
        return Case(before=[], inside={"sampling/kept": 1.0}, outside={"sampling/kept": 0.0}, **common)
    if rule.judged == "fall":
        window = None if name.startswith("eval/") else 1
        edge = 0.8 * (1 - limit)
        return Case(
            before=[{name: 0.8}] * 4, inside={name: edge + 0.001}, outside={name: edge - 0.001}, window=window, **common
        )
    usual, edge = _usual_and_edge(rule, level, name, limit)
    before: list[Mapping[str, float]] = [] if usual is None else [{name: usual}] * USUAL_STEPS
    is_below = rule.judged in ("below", "under_median", "share_of_start")
    less, more = (0.0, 1.0) if edge == 0 else (edge * 0.99, edge * 1.01)
    inside, outside = (more, less) if is_below else (less, more)
    if name == "loss/total":  # near 0 by construction, on either side
        inside, outside = -inside, -outside
    also = {"updates/count": 0.0} if rule.name == "non_finite" else {}
    clock = {"time/step": STEP_SECONDS} if rule.seconds is not None else {}
    return Case(before=before, inside={name: inside, **clock}, outside={name: outside, **also, **clock}, **common)


def _given(rule: Rule, level: str) -> float:
    """What a configuration may say for a level that the table does not have: milder for a warning, harder to act."""
    other = rule.warn if rule.act is None else rule.act
    is_milder = (level == "warn") != (rule.judged in ("below", "under_median", "share_of_start"))
    return (other or 0.0) * (0.9 if is_milder else 1.1)


def _usual_and_edge(rule: Rule, level: str, name: str, limit: float) -> tuple[float | None, float]:
    """What the figure was for some steps, if that matters, and where its limit is then."""
    if rule.acts_over_median is not None:
        usual = limit / rule.acts_over_median * 2
        return usual, (limit if level == "warn" else usual * rule.acts_over_median)
    is_absolute = rule.judged == "share_of_start" and getattr(rule, level) is None  # as a configuration means it
    if rule.judged in ("above", "below") or is_absolute:
        return None, limit
    usual = {"throughput": 1000.0, "length": 100.0}.get(name.partition("/")[0], 2.0)
    return usual, limit * max(usual, FLOORS.get(name, 0.0))


def judged(case: Case, steps: Sequence[Mapping[str, float]]) -> Iterator[tuple[StepGuard, RunCollector]]:
    """The guard and what the exporter shows, after each step."""
    guard = case.guard(len(steps))
    collector = RunCollector(labels=LABELS, info={}, max_steps=len(steps), clock=lambda: 0.0)
    for step, metrics in enumerate(steps, 1):
        verdict = guard.judge(StepReport(step=step, metrics=metrics))
        collector.take(StepReport(step=step, metrics=metrics, standings=verdict.standings))
        yield guard, collector


def at_the_end(case: Case, figures: Mapping[str, float], times: int) -> list[Sample]:
    """What a scrape finds after the last of so many steps with these figures."""
    *_, (_, collector) = judged(case, case.steps(figures, times))
    return samples(collector)


def samples(collector: RunCollector) -> list[Sample]:
    """What a scrape finds, with the labels that Prometheus adds."""
    return [(s.name, {**s.labels, **TARGET}, s.value) for family in collector.collect() for s in family.samples]


# ------------------------------------------------------------------------------------------------------ from outside
@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What is seen at each minute, and the minutes at which the alert is looked at."""

    name: str
    rule: str
    seen: Sequence[Sequence[Sample]]
    minutes: tuple[int, ...]

    def history(self, minute: int) -> list[Scrape]:
        return [Scrape.of(60.0 * at, found) for at, found in enumerate(self.seen[: minute + 1])]


def metric(name: str, value: float, **labels: str) -> Sample:
    """A metric of the catalogue as a scrape finds it."""
    named = {} if name.endswith("/*") else members(name)
    return (find(name).prometheus_name, {**LABELS, **TARGET, **named, **labels}, value)


def up(value: float) -> Sample:
    return ("up", TARGET, value)


def state(now: str) -> list[Sample]:
    states = ("starting", "training", "finished", "stopped", "preempted", "failed")
    return [metric("run/state/*", float(name == now), state=name) for name in states]


def _lasting(quiet: Sequence[Sample], loud: Sequence[Sample], minutes: int = LOUD_MINUTES) -> list[Sequence[Sample]]:
    return [*[quiet] * QUIET_MINUTES, *[loud] * minutes]


def scenarios(alerts: Iterable[Alert]) -> list[Scenario]:
    """For every alert at least one in which it is silent first and fires then."""
    held = list(alerts)
    found = []
    for rule in dict.fromkeys(alert.rule for alert in held):
        conditions = [alert.condition for alert in held if alert.rule == rule]
        found += (
            _outside(rule) if rule not in BY_NAME or rule == HEARTBEAT.name else _of_guard(BY_NAME[rule], conditions)
        )
    return found


def _of_guard(rule: Rule, conditions: Sequence[Term]) -> list[Scenario]:
    wanted = [series for condition in conditions for series in series_of(condition)]
    found = []
    for case in cases(rule):
        quiet = _only(at_the_end(case, case.inside, case.times + 1), wanted)
        loud = _only(at_the_end(case, case.outside, case.times), wanted)
        # an alert without `for` fires within two evaluations of the step, here one minute apart
        minutes = (QUIET_MINUTES - 1, QUIET_MINUTES + 1)
        if rule.seconds is not None and case.level == "warn":
            minutes = (QUIET_MINUTES - 1, QUIET_MINUTES + 4, QUIET_MINUTES + 6)
        name = f"{rule.name} {case.level} {case.figure}"
        found.append(Scenario(name=name, rule=rule.name, seen=_lasting(quiet, loud), minutes=minutes))
    return found


def _only(found: Iterable[Sample], wanted: Sequence[Series]) -> list[Sample]:
    return [
        (name, labels, value)
        for name, labels, value in found
        if any(series.seen(Scrape.of(0.0, [(name, labels, value)])) for series in wanted)
    ]


def series_of(term: Any) -> list[Series]:
    """Every metric that a condition looks at."""
    if isinstance(term, Series):
        return [term]
    parts = term if isinstance(term, tuple) else [getattr(term, name) for name in getattr(term, "__slots__", ())]
    return [series for part in parts for series in series_of(part)]


def _outside(rule: str) -> list[Scenario]:
    seen = OUTSIDE[rule]
    return [Scenario(name=f"{rule} {name}", rule=rule, seen=found, minutes=at) for name, found, at in seen]


def _step(value: float) -> list[Sample]:
    return [metric("time/step", 1.0), metric("run/last_step", value), *state("training")]


AT_WORK = [up(1), *state("training"), metric("run/step", 5), metric("run/max_steps", 10), metric("run/last_step", 0)]
AT_ITS_END = [
    up(1),
    *state("training"),
    metric("run/step", 10),
    metric("run/max_steps", 10),
    metric("run/last_step", 0),
]
OLDER = [
    (name, {**labels, "run": "before"} if "run" in labels else labels, -60.0 if "last_step" in name else value)
    for name, labels, value in AT_WORK
]
"""A run that died at the same place."""
FINISHED = [up(1), *state("finished"), metric("run/step", 7), metric("run/max_steps", 10), metric("run/last_step", 0)]
WEEK = 7.0 * table.DAY
EARLY, LATE = (QUIET_MINUTES - 1,), (QUIET_MINUTES - 1, QUIET_MINUTES + 1)
OUTSIDE: Mapping[str, list[tuple[str, list[Sequence[Sample]], tuple[int, ...]]]] = {
    "role_heartbeat": [
        ("", _lasting([metric("role/heartbeat_age/*", 29.0, role="reward")],
                      [metric("role/heartbeat_age/*", 31.0, role="reward")]), LATE),
    ],
    "run_down": [
        ("dies", _lasting(AT_WORK, [up(0)]), LATE),
        ("has its steps", _lasting(AT_ITS_END, [up(0)]), LATE),
        ("has finished early", _lasting(FINISHED, [up(0)]), LATE),
        ("finishes where another died", [*[OLDER] * 3, *_lasting(FINISHED, [up(0)])], (8, 11)),
    ],
    "unreachable": [("", _lasting([up(1), *state("training")], [up(0)]), LATE), ("never seen", [[up(0)]] * 9, (0, 3))],
    "run_ended": [
        ("failed", _lasting(state("training"), state("failed")), LATE),
        ("stopped", _lasting(state("training"), state("stopped")), LATE),
        ("finished", _lasting(state("training"), state("finished")), LATE),
    ],
    "stalled": [
        ("short steps", [_step(0.0)] * 14, (9, 12)),
        ("long steps", [[metric("time/step", 120.0), *_step(0.0)[1:]]] * 24, (12, 19, 22)),
        ("first step", [_step(0.0)[1:]] * 64, (30, 59, 62)),
        ("has ended", [[*_step(0.0)[:2], *state("finished")]] * 14, (12,)),
    ],
    "role_down": [
        ("", _lasting([metric("role/up/*", 1, role="reward")], [metric("role/up/*", 0, role="reward")]), LATE),
        ("has an alert already", _lasting([metric("role/up/*", 1, role="reward")],
            [metric("role/up/*", 0, role="reward"), metric("role/heartbeat_age/*", 31, role="reward")]), LATE),
    ],
    "rolled_back": [("", _lasting([metric("guard/rollbacks", 0)], [metric("guard/rollbacks", 1)], 20), (5, 7, 15, 18))],
    "saves_fail": [("", _lasting([metric("checkpoint/failed", 0)], [metric("checkpoint/failed", 1)]), LATE)],
    "checkpoint_old": [
        ("short run", _lasting(*[[metric("checkpoint/age", age), metric("run/max_steps", 1000), metric("time/step", 1.0)]
                                 for age in (3599.0, 3601.0)]), LATE),
        ("long run", _lasting(*[[metric("checkpoint/age", age), metric("run/max_steps", 1000), metric("time/step", 100.0)]
                                for age in (5999.0, 6001.0)]), LATE),
    ],
    "checkpoint_rejected": [
        ("", _lasting([metric("checkpoint/rejected", 0)], [metric("checkpoint/rejected", 1)], 64), (5, 7, 65, 68)),
        ("at the start", [*[[]] * 2, *[[metric("checkpoint/rejected", 1)]] * 4], (1, 4)),
    ],
    "notifications_lost": [("", _lasting([metric("notify/failed", 0)], [metric("notify/failed", 2)], 64), (5, 7, 65, 68))],
    "notifications_wait": [("", _lasting([metric("notify/waiting", 0)], [metric("notify/waiting", 1)], 20), (5, 19, 23))],
    "monitor_off": [("", _lasting([metric("observe/failed_monitors", 0)], [metric("observe/failed_monitors", 1)]), LATE)],
    "drill_old": [
        ("drilled", [[metric("drill/last_success", 300.0 - WEEK), metric("run/started", -2 * WEEK), *state("training")]] * 9,
         (4, 7)),
        ("never drilled", [[metric("run/started", 300.0 - WEEK), *state("training")]] * 9, (4, 7)),
    ],
}  # fmt: skip
