"""What an alert waits for, said once: as PromQL for Prometheus, and as arithmetic on scrapes for whoever has no Prometheus.

A term gives a vector, a number for each set of labels, as PromQL has it; a condition is a vector too, and holds where it
has an entry. Only what the alerts of `alerts.py` need is here.

>>> far = Compare(Series("trimtab_kl_update_nats"), ">", Number(0.05))
>>> far.promql()
'trimtab_kl_update_nats > 0.05'
>>> far.value([Scrape.of(0.0, [("trimtab_kl_update_nats", {"run": "a"}, 0.07), ("trimtab_kl_update_nats", {"run": "b"}, 0.01)])])
{frozenset({('run', 'a')}): 0.07}
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
SIGNS: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt, "<": operator.lt, ">=": operator.ge, "==": operator.eq,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scrape:
    """What was seen of all runs at one time."""

    time: float
    series: Mapping[str, Vector]

    @classmethod
    def of(cls, time: float, samples: Iterable[tuple[str, Mapping[str, str], float]]) -> Scrape:
        """From (name, labels, value) of each series."""
        series: dict[str, Vector] = {}
        for name, labels, value in samples:
            series.setdefault(name, {})[frozenset(labels.items())] = value
        return cls(time, series)


History = Sequence[Scrape]
"""Scrapes, the newest last."""


class Term(Protocol):
    """A vector."""

    def promql(self) -> str: ...

    def value(self, history: History) -> Vector: ...


@dataclass(frozen=True, slots=True)
class Match:
    """Which entries of two vectors belong together: equal in these labels, or in all but these."""

    how: Literal["on", "ignoring"]
    labels: tuple[str, ...]

    def promql(self) -> str:
        return f"{self.how} ({', '.join(self.labels)}) "

    def key(self, labels: Labels) -> Labels:
        return frozenset(pair for pair in labels if (pair[0] in self.labels) == (self.how == "on"))


SAME = Match("ignoring", ())


@dataclass(frozen=True, slots=True)
class Number:
    """The same for every run."""

    number: float

    def promql(self) -> str:
        return f"{self.number:g}"

    def value(self, history: History) -> Vector:
        return {frozenset(): self.number}


@dataclass(frozen=True, slots=True)
class Series:
    """A metric, by its name in Prometheus."""

    name: str
    labels: tuple[tuple[str, str], ...] = ()
    """That it must have; `a|b` is either."""

    def promql(self) -> str:
        said = ",".join(f'{name}{"=~" if "|" in value else "="}"{value}"' for name, value in self.labels)
        return f"{self.name}{{{said}}}" if said else self.name

    def value(self, history: History) -> Vector:
        return self.seen(history[-1])

    def seen(self, scrape: Scrape) -> Vector:
        found = scrape.series.get(self.name, {})
        return {
            labels: value
            for labels, value in found.items()
            if all(re.fullmatch(wanted, dict(labels).get(name, "")) for name, wanted in self.labels)
        }


@dataclass(frozen=True, slots=True)
class Past:
    """A metric over the last seconds: its average, or what it was when it was last seen."""

    series: Series
    how: Literal["avg", "last"]
    seconds: int

    def promql(self) -> str:
        return f"{self.how}_over_time({self.series.promql()}[{span(self.seconds)}])"

    def value(self, history: History) -> Vector:
        seen: dict[Labels, list[float]] = {}
        for scrape in _within(history, self.seconds):
            for labels, value in self.series.seen(scrape).items():
                seen.setdefault(labels, []).append(value)
        return {labels: sum(v) / len(v) if self.how == "avg" else v[-1] for labels, v in seen.items()}


@dataclass(frozen=True, slots=True)
class Rise:
    """How much more a metric is than it was so many seconds ago, when it counts as 0 if it was not there."""

    series: Series
    seconds: int

    def promql(self) -> str:
        said = self.series.promql()
        return f"({said} - ({said} offset {span(self.seconds)} or 0 * {said}))"

    def value(self, history: History) -> Vector:
        before = self.series.seen(_at(history, history[-1].time - self.seconds))
        return {labels: value - before.get(labels, 0.0) for labels, value in self.series.value(history).items()}


@dataclass(frozen=True, slots=True)
class Age:
    """Seconds since a time."""

    since: Series

    def promql(self) -> str:
        return f"time() - {self.since.promql()}"

    def value(self, history: History) -> Vector:
        return {labels: history[-1].time - value for labels, value in self.since.value(history).items()}


@dataclass(frozen=True, slots=True)
class Times:
    """A term so many times."""

    factor: Number | Times
    term: Term

    def promql(self) -> str:
        return f"{self.factor.promql()} * {self.term.promql()}"

    def value(self, history: History) -> Vector:
        factor = self.factor.value(history)
        return {
            labels: value * number
            for labels, value in self.term.value(history).items()
            if (number := factor.get(labels, factor.get(frozenset()))) is not None
        }


@dataclass(frozen=True, slots=True)
class AtLeast:
    """A term, or a number if that is more."""

    term: Term
    least: float

    def promql(self) -> str:
        return f"clamp_min({self.term.promql()}, {self.least:g})"

    def value(self, history: History) -> Vector:
        return {labels: max(value, self.least) for labels, value in self.term.value(history).items()}


@dataclass(frozen=True, slots=True)
class Size:
    """A term without its sign."""

    term: Term

    def promql(self) -> str:
        return f"abs({self.term.promql()})"

    def value(self, history: History) -> Vector:
        return {labels: abs(value) for labels, value in self.term.value(history).items()}


@dataclass(frozen=True, slots=True)
class Newest:
    """The largest entry of each group."""

    term: Term
    by: tuple[str, ...]

    def promql(self) -> str:
        return f"topk by ({', '.join(self.by)}) (1, {self.term.promql()})"

    def value(self, history: History) -> Vector:
        best: dict[Labels, tuple[Labels, float]] = {}
        for labels, value in self.term.value(history).items():
            group = Match("on", self.by).key(labels)
            if group not in best or value > best[group][1]:
                best[group] = (labels, value)
        return dict(best.values())


# -------------------------------------------------------------------------------------------------------- conditions
@dataclass(frozen=True, slots=True)
class Compare:
    """Where one is more (less) than the other; its value is the left one's."""

    left: Term
    sign: Literal[">", "<", ">=", "=="]
    right: Term
    match: Match = SAME

    def promql(self) -> str:
        how = "" if self.match == SAME else self.match.promql()
        return f"{self.left.promql()} {self.sign} {how}{self.right.promql()}"

    def value(self, history: History) -> Vector:
        is_number = isinstance(self.right, Number)
        right = {self.match.key(labels): value for labels, value in self.right.value(history).items()}
        found: Vector = {}
        for labels, value in self.left.value(history).items():
            limit = right.get(frozenset() if is_number else self.match.key(labels))
            if limit is not None and SIGNS[self.sign](value, limit):
                found[labels if is_number else self.match.key(labels)] = value
        return found


@dataclass(frozen=True, slots=True)
class And:
    """Where both hold; its value is the left one's."""

    left: Term
    right: Term
    match: Match = SAME

    def promql(self) -> str:
        return _joined(self, "and")

    def value(self, history: History) -> Vector:
        also = {self.match.key(labels) for labels in self.right.value(history)}
        return {labels: v for labels, v in self.left.value(history).items() if self.match.key(labels) in also}


@dataclass(frozen=True, slots=True)
class Unless:
    """Where the left one holds and the right one does not."""

    left: Term
    right: Term
    match: Match = SAME

    def promql(self) -> str:
        return _joined(self, "unless")

    def value(self, history: History) -> Vector:
        not_these = {self.match.key(labels) for labels in self.right.value(history)}
        return {labels: v for labels, v in self.left.value(history).items() if self.match.key(labels) not in not_these}


@dataclass(frozen=True, slots=True)
class Or:
    """Where one of several holds; its value is that of the first which does."""

    parts: tuple[Term, ...]

    def promql(self) -> str:
        return "\nor\n".join(_part(part) for part in self.parts)

    def value(self, history: History) -> Vector:
        found: Vector = {}
        for part in self.parts:
            found = {**part.value(history), **found}
        return found


def _joined(pair: And | Unless, word: str) -> str:
    how = "" if pair.match == SAME else pair.match.promql()
    return f"{_part(pair.left, chained=True)}\n{word} {how}{_part(pair.right)}"


def _part(term: Term, *, chained: bool = False) -> str:
    """In brackets where PromQL would read it otherwise; `and` and `unless` bind from the left, tighter than `or`."""
    said = term.promql()
    is_plain = isinstance(term, Compare | Series | Past | Newest) or (chained and isinstance(term, And | Unless))
    return said if is_plain else f"({said})"


def span(seconds: int) -> str:
    """As PromQL writes it.

    >>> span(604800), span(3600), span(300), span(90)
    ('7d', '1h', '5m', '90s')
    """
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds % size == 0:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def _within(history: History, seconds: int) -> History:
    return [scrape for scrape in history if scrape.time > history[-1].time - seconds]


def _at(history: History, time: float) -> Scrape:
    return next((scrape for scrape in reversed(history) if scrape.time <= time), Scrape(time, {}))
