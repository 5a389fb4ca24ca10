"""Alert rules for somebody's own Prometheus: the guard's table and that of `rules/outside.py`, with their conditions.

An alert of the guard holds the raw figure against the limit that the run itself publishes, so it follows `guard.rules`,
and asks besides whether the rule has been broken for long enough, by the guard's own count. A rule that is measured in
seconds waits in Prometheus instead. Both levels of every rule are there: one that the table does not have is silent until
a configuration gives it a limit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from trimtab.catalogue import find, members
from trimtab.errors import TrimtabError
from trimtab.observe.conditions import (
    Age,
    And,
    AtLeast,
    Compare,
    Match,
    Newest,
    Number,
    Or,
    Past,
    Rise,
    Series,
    Size,
    Term,
    Times,
    Unless,
)
from trimtab.rules import HEARTBEAT, NO_IMPROVEMENT, RULES, Cause, Rule, Text
from trimtab.rules.outside import (
    CHECKPOINT_OLD,
    CHECKPOINT_REJECTED,
    DRILL_OLD,
    MONITOR_OFF,
    NOTIFICATIONS_LOST,
    NOTIFICATIONS_WAIT,
    OUTSIDE,
    ROLE_DOWN,
    ROLLED_BACK,
    RUN_DOWN,
    RUN_ENDED,
    SAVES_FAIL,
    STALLED,
    UNREACHABLE,
    Outside,
)

JOB = "trimtab"
"""The job of the scrape configuration that we ship."""
LEVELS: tuple[Literal["warn", "act"], ...] = ("warn", "act")
SEVERITIES: Mapping[str, str] = {"warn": "warning", "act": "critical"}
KEPT_SECONDS = 300
"""A guard's alert stays so long after its condition: the guard may mend a run faster than anybody is told of it."""
DAY, HOUR = 86400, 3600
FIRST_STEP_SECONDS = 3600
"""What a run may take for its first step, when nobody knows yet how long one takes."""
USUAL_STEPS = 10
LOST_SHARE = 0.06
"""Of a run's steps. Rolling checkpoints are about 2 % apart; three of them missing is too many."""
RAW = {"sampling_without_spread": "sampling/kept"}
"""Figures that the guard derives, and what they are derived from: 1 where that is 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alert rule."""

    rule: str
    level: Literal["warn", "act"]
    action: str
    """What Trimtab does by itself: `warn` is nothing but to say it."""
    condition: Term
    for_seconds: int = 0
    kept_seconds: int = 0
    figures: tuple[str, ...]
    title: Text
    seen: Text
    causes: tuple[Cause, ...]
    page: str
    """In docs, where its causes and remedies stand."""

    @property
    def name(self) -> str:
        """The same at both levels, which the severity tells apart."""
        return "Trimtab" + "".join(word.capitalize() for word in self.rule.split("_"))

    @property
    def severity(self) -> str:
        return SEVERITIES[self.level]


def alerts() -> tuple[Alert, ...]:
    """All of them: the guard's in the order of its table, warning first, then those from outside."""
    judged = [of_guard(rule, level) for rule in RULES if rule not in (NO_IMPROVEMENT, HEARTBEAT) for level in LEVELS]
    return (*judged, _of_heartbeat(), *(_of_outside(record) for record in OUTSIDE))


# --------------------------------------------------------------------------------------------------------- the guard
def of_guard(rule: Rule, level: Literal["warn", "act"]) -> Alert:
    """The alert for one level of a rule that the guard judges."""
    is_timed = rule.seconds is not None and level == "warn"
    acts = (
        rule.then if rule.act is not None else "roll_back"
    )  # what a limit in the configuration means without a `then`
    return Alert(
        rule=rule.name,
        level=level,
        action=acts if level == "act" else "warn",
        condition=_timed(rule, level) if is_timed else _counted(rule, level),
        for_seconds=int(rule.seconds or 0) if is_timed else 0,
        kept_seconds=KEPT_SECONDS,
        figures=published(rule),
        title=rule.title,
        seen=rule.seen,
        causes=rule.causes,
        page=f"troubleshooting.md#{rule.name}",
    )


def _counted(rule: Rule, level: str) -> Term:
    broken = Compare(series("guard/breach/*", rule=rule.name, level=level), ">=", Number(1))
    return And(_timed(rule, level), broken, Match("ignoring", ("rule", "level")))


def _timed(rule: Rule, level: str) -> Term:
    over = [_over(rule, level, name) for name in published(rule)]
    return over[0] if len(over) == 1 else Or(tuple(over))


def _over(rule: Rule, level: str, name: str) -> Term:
    """A figure that is beyond its limit, as far as one scrape tells.

    A counter is beyond a step's limit whenever the step was. What the guard judges by a window's mean, or by a range, it
    alone can tell: there the figure's presence is enough, and the guard's count decides.
    """
    figure = series(name)
    if name in RAW.values():
        return Compare(figure, "==", Number(0))
    limit = series("guard/limit/*", rule=rule.name, level=level, figure=name)
    match = Match("ignoring", (*find(name).labels, "rule", "level", "figure"))
    if rule.judged == "range_of_start":
        return figure
    if rule.judged == "fall" and not name.startswith("eval/"):
        return And(figure, limit, match)
    is_below = rule.judged in ("below", "under_median", "share_of_start", "fall")
    held = Size(figure) if rule.judged == "times_median" else figure
    return Compare(held, "<" if is_below else ">", limit, match)


def published(rule: Rule) -> tuple[str, ...]:
    """What a run publishes of a rule's figures: `final/x` is `eval/x` at the last step.

    One that is not in the catalogue is a plug-in's, and not published.

    >>> from trimtab.rules import KL_UPDATE, NO_SPREAD, PREFERENCE_ACCURACY
    >>> [published(rule) for rule in (KL_UPDATE, NO_SPREAD, PREFERENCE_ACCURACY)]
    [('kl/update',), ('sampling/kept',), ('eval/preference/accuracy',)]
    """
    return tuple(RAW.get(name, name.replace("final/", "eval/")) for name in rule.figures if is_published(name))


def is_published(figure: str) -> bool:
    """Whether an exporter shows a rule's figure, or what it is derived from.

    >>> is_published("kl/update"), is_published("final/preference/accuracy"), is_published("reward_model/auc")
    (True, True, False)
    """
    try:
        return bool(find(RAW.get(figure, figure.replace("final/", "eval/"))))
    except TrimtabError:
        return False


def series(name: str, **labels: str) -> Series:
    """A metric of the catalogue as Prometheus has it; a family with the labels of the members that are meant."""
    metric = find(name)
    named = {} if name.endswith("/*") else members(name)
    return Series(metric.prometheus_name, tuple({**named, **labels}.items()))


# ------------------------------------------------------------------------------------------------------ from outside
def _of_heartbeat() -> Alert:
    limit = Number(HEARTBEAT.act or 0.0)
    return Alert(
        rule=HEARTBEAT.name,
        level="act",
        action=HEARTBEAT.then,
        condition=Compare(series("role/heartbeat_age/*"), ">", limit),
        figures=("role/heartbeat_age/*",),
        title=HEARTBEAT.title,
        seen=HEARTBEAT.seen,
        causes=HEARTBEAT.causes,
        page=f"troubleshooting.md#{HEARTBEAT.name}",
    )


def _of_outside(record: Outside) -> Alert:
    return Alert(
        rule=record.name,
        level=record.level,
        action="warn",
        condition=CONDITIONS[record.name](int(record.limit)),
        for_seconds=record.for_seconds,
        figures=record.figures,
        title=record.title,
        seen=record.seen,
        causes=record.causes,
        page=f"monitoring.md#{record.name}",
    )


SAME_RUN = Match("ignoring", ("state",))
SAME_TARGET = Match("on", ("job", "instance"))


def _state(states: str) -> Series:
    return series("run/state/*", state=states)


def _is(states: str) -> Term:
    return Compare(_state(states), "==", Number(1))


def _exceeds(name: str, limit: int) -> Term:
    return Compare(series(name), ">", Number(limit))


def _rises(name: str, seconds: int) -> Term:
    return Compare(Rise(series(name), seconds), ">", Number(0))


def _run_down(limit: int) -> Term:
    """Where the newest run of a target was at work, short of its last step, and the target does not answer."""
    was_at_work = Compare(Past(_state("starting|training"), "last", DAY), "==", Number(1))
    is_newest = Newest(Past(series("run/last_step"), "last", DAY), ("job", "instance"))
    had_its_steps = Compare(Past(series("run/step"), "last", DAY), ">=", Past(series("run/max_steps"), "last", DAY))
    short = Unless(And(was_at_work, is_newest, SAME_RUN), had_its_steps, SAME_RUN)
    return And(short, Compare(Series("up"), "==", Number(limit)), SAME_TARGET)


def _unreachable(limit: int) -> Term:
    silent = Compare(Series("up", (("job", JOB),)), "==", Number(0))
    return Unless(silent, Past(series("run/state/*"), "last", limit), SAME_TARGET)


def _stalled(limit: int) -> Term:
    usual = Past(series("time/step"), "avg", HOUR)
    late = Compare(Age(series("run/last_step")), ">", AtLeast(Times(Number(USUAL_STEPS), usual), limit))
    unborn = Unless(Compare(Age(series("run/last_step")), ">", Number(FIRST_STEP_SECONDS)), series("time/step"))
    return And(Or((late, unborn)), _is("starting|training"), SAME_RUN)


def _role_down(limit: int) -> Term:
    silent = Compare(series("role/heartbeat_age/*"), ">", Number(HEARTBEAT.act or 0.0))
    return Unless(Compare(series("role/up/*"), "==", Number(limit)), silent)  # which has an alert of its own


def _checkpoint_old(limit: int) -> Term:
    usual = Past(series("time/step"), "avg", HOUR)
    allowed = AtLeast(Times(Times(Number(LOST_SHARE), series("run/max_steps")), usual), limit)
    return Compare(series("checkpoint/age"), ">", allowed)


def _drill_old(limit: int) -> Term:
    """Of a run that has never been drilled, its own age counts."""
    last = Compare(Age(series("drill/last_success")), ">", Number(limit))
    never = Unless(Compare(Age(series("run/started")), ">", Number(limit)), series("drill/last_success"))
    return And(Or((last, never)), _is("training"), SAME_RUN)


CONDITIONS: Mapping[str, Callable[[int], Term]] = {
    RUN_DOWN.name: _run_down,
    UNREACHABLE.name: _unreachable,
    RUN_ENDED.name: lambda limit: Compare(_state("failed|stopped"), ">", Number(limit)),
    STALLED.name: _stalled,
    ROLE_DOWN.name: _role_down,
    ROLLED_BACK.name: lambda limit: _rises("guard/rollbacks", limit),
    SAVES_FAIL.name: lambda limit: _exceeds("checkpoint/failed", limit),
    CHECKPOINT_OLD.name: _checkpoint_old,
    CHECKPOINT_REJECTED.name: lambda limit: _rises("checkpoint/rejected", limit),
    DRILL_OLD.name: _drill_old,
    NOTIFICATIONS_LOST.name: lambda limit: _rises("notify/failed", limit),
    NOTIFICATIONS_WAIT.name: lambda limit: _exceeds("notify/waiting", limit),
    MONITOR_OFF.name: lambda limit: _exceeds("observe/failed_monitors", limit),
}
