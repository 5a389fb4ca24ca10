"""Rules that need no model: exact match, number, regular expression, length."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.errors import ConfigError, Finding

Column = Sequence[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactMatch:
    """1 where the completion, stripped of space around it, is the answer; else 0. A part of it is not enough."""

    column: str = "answer"
    ignore_case: bool = False
    name: str = "exact_match"

    def __call__(self, prompts: Column, completions: Column, **columns: Column) -> list[float | None]:
        return [
            None if answer is None else float(self._form(text) == self._form(str(answer)))
            for text, answer in zip(completions, columns[self.column], strict=True)
        ]

    def _form(self, text: str) -> str:
        return text.strip().lower() if self.ignore_case else text.strip()


_NUMBER = re.compile(r"(?:(?<!\d)[-+])?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?|(?:(?<!\d)[-+])?(?<!\d)\.\d+")
"""A sign behind a digit is an operator: "1-5" ends in 5."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Numeric:
    """1 where the completion's last number, or the first one after `after`, equals the answer; else 0."""

    column: str = "answer"
    after: str | None = None
    tolerance: float = 0.0
    name: str = "numeric"

    def __call__(self, prompts: Column, completions: Column, **columns: Column) -> list[float | None]:
        return [self._judge(text, answer) for text, answer in zip(completions, columns[self.column], strict=True)]

    def _judge(self, text: str, answer: Any) -> float | None:
        wanted = self.read(str(answer)) if answer is not None else None
        if wanted is None:
            return None
        found = self.read(text)
        return float(found is not None and abs(found - wanted) <= self.tolerance * max(1.0, abs(wanted)))

    def read(self, text: str) -> float | None:
        """The number that a text states.

        >>> Numeric(after="####").read("12 apples #### 1,234"), Numeric().read("no number")
        (1234.0, None)
        """
        if self.after is not None and self.after in text:
            numbers = _NUMBER.findall(text.rsplit(self.after, 1)[1])[:1]
        else:
            numbers = _NUMBER.findall(text)[-1:]
        return float(numbers[0].replace(",", "")) if numbers else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Regex:
    """1 where the pattern is found; with `column`, where its first group is also that column's text; else 0."""

    pattern: str
    column: str | None = None
    name: str = "regex"

    def __post_init__(self) -> None:
        compiled = re.compile(self.pattern)
        if self.column is not None and compiled.groups < 1:
            raise ValueError("pattern: needs a group to compare with the column")

    def __call__(self, prompts: Column, completions: Column, **columns: Column) -> list[float | None]:
        answers = columns[self.column] if self.column is not None else [None] * len(completions)
        return [self._judge(text, answer) for text, answer in zip(completions, answers, strict=True)]

    def _judge(self, text: str, answer: Any) -> float:
        found = re.search(self.pattern, text)
        if found is None or self.column is None:
            return float(found is not None)
        return float((found.group(1) or "").strip() == str(answer).strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """1 up to `max_tokens` completion tokens, falling to 0 at twice as many."""

    max_tokens: int
    name: str = "length"

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens: {self.max_tokens}, expected at least 1")

    def __call__(self, prompts: Column, completions: Column, **columns: Column) -> list[float | None]:
        sizes = [len(ids) for ids in columns["completion_ids"]]
        return [min(1.0, max(0.0, 2.0 - size / self.max_tokens)) for size in sizes]


RULES: Mapping[str, Callable[..., Any]] = {
    "exact_match": ExactMatch,
    "numeric": Numeric,
    "regex": Regex,
    "length": Length,
}
RUNS_ELSEWHERE = frozenset({"regex"})
"""Rules that can run without end (a pattern can), so they too are called in a worker with a time limit."""


def make(name: str, options: Mapping[str, Any], *, place: str = "rewards") -> Any:
    """The rule of that name with its options.

    Raises:
        ConfigError: an option is unknown, missing or wrong.
    """
    rule = RULES[name]
    known = [p for p in inspect.signature(rule).parameters if p != "name"]
    for option in options:
        if option not in known:
            what = f"reward {name} has no option `{option}`"
            raise ConfigError([Finding(place=place, what=what, hint=f"it has {', '.join(known)}")])
    try:
        return rule(**options)
    except (TypeError, ValueError, re.error) as error:
        raise ConfigError([Finding(place=place, what=f"reward {name}: {error}")]) from error


def columns_of(rule: Any) -> tuple[str, ...]:
    """Columns of the data that a rule reads."""
    column = getattr(rule, "column", None)
    return (column,) if column else ()
