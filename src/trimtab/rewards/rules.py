"""Rules that need no model: exact match, number, final answer, regular expression, length."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
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

    def answer(self, text: str) -> str | None:
        """What is compared with the answer."""
        return self._form(text)

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

    def answer(self, text: str) -> str | None:
        """The number as text; two texts of one number are one answer."""
        found = self.read(text)
        return None if found is None else repr(found + 0.0)  # -0.0 is 0.0

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


_PLAIN = r"(?:\d{1,3}(?:(?:,|\{,\})\d{3})+(?!,?\d)|\d+)(?:\.\d+)?|\.\d+"
_FINAL = re.compile(
    r"(?P<sign>(?<![\w.)}\]])[-\u2212+])?(?:\\?\$\s?)?(?:"
    r"\\[dt]?frac\{(?P<latex_over>\d+)\}\{(?P<latex_under>\d+)\}"
    r"|(?:(?P<whole>\d+) )?(?P<over>\d+)/(?P<under>\d+)(?![\d/])"
    rf"|(?P<plain>{_PLAIN})(?P<exponent>[eE][-+]?\d{{1,3}}(?!\d))?)"
)
"""One number: 1,234.5, -$3, 3/4, 1 1/2, \\frac{3}{4}, 2e3."""
_GOES_ON = re.compile(r"\s*(?:\^|\*(?!\*)|\*\*\s?\d|×|\\times|\\cdot|\+|/|÷|=|-\s?\d|!)")
"""Behind a number: it is part of something to be computed."""
_UNIT = re.compile(r"(?<=\d)\s+[A-Za-z]{2,}[A-Za-z .]*$")
_NOISE = re.compile(r"\\(?:text|mathrm|mbox)\{[^{}]*\}|\\[,;!: ]|\\?[%$]|\s|\\left|\\right")
_MAX_DIGITS = 100
_MAX_ANSWER, _MAX_END = 200, 2000
"""Characters that are looked at: of an answer that is marked, and at the end of a text where none is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalNumber:
    r"""1 where the completion's final answer is the number that the answer states; else 0.

    The final answer stands behind the last `####` (as in GSM8K), else in the last `\boxed{}`, else it is the last number
    of the text. It is compared exactly, as a fraction: 72, 72.0, $72, 72. and 144/2 are one number, 1 and 21 are not, and
    nothing is computed: `5^5`, `3 + 4` and the like are no number.
    """

    column: str = "answer"
    name: str = "final_number"

    def __call__(self, prompts: Column, completions: Column, **columns: Column) -> list[float | None]:
        return [self._judge(text, answer) for text, answer in zip(completions, columns[self.column], strict=True)]

    def _judge(self, text: str, answer: Any) -> float | None:
        wanted = self.read(str(answer)) if answer is not None else None
        return None if wanted is None else float(self.read(text) == wanted)

    def answer(self, text: str) -> str | None:
        """The number as text; two texts of one number are one answer."""
        found = self.read(text)
        return None if found is None else str(found)

    def read(self, text: str) -> Fraction | None:
        r"""The number that a text ends in.

        >>> read = FinalNumber().read
        >>> print(read("48 + 24 = 72 clips\n#### 72"), read(r"so \boxed{\frac{1}{2}}"), read("it is -$1,234.50."))
        72 1/2 -2469/2
        >>> print(read(r"\boxed{5^{5^{5}}}"), read("no number"))
        None None
        """
        if "####" in text:
            line = text.rsplit("####", 1)[1].strip().split("\n", 1)[0][:_MAX_ANSWER]
            found = _FINAL.search(line)
            return _value(found) if found and not _GOES_ON.match(line, found.end()) else None
        if (boxed := _last_boxed(text)) is not None:
            mixed = re.sub(r"(?<=\d) (?=\d+/)", "_", _UNIT.sub("", boxed.strip()))
            found = _FINAL.fullmatch(_NOISE.sub("", mixed).replace("_", " ").rstrip("."))
            return _value(found) if found and len(boxed) <= _MAX_ANSWER else None
        return _last_number(text[-_MAX_END:])


def _last_number(text: str) -> Fraction | None:
    """The last number that is no unit's exponent (m^2); None if it belongs to a power."""
    for found in reversed(list(_FINAL.finditer(text))):
        before = text[max(0, found.start() - 8) : found.start()]
        if re.search(r"[A-Za-z]\^\{?$", before):
            continue
        is_power = re.search(r"\^\s?[{(]*$", before) or text[found.end() :].lstrip("}) ").startswith("^")
        return None if is_power else _value(found)
    return None


def _value(found: re.Match[str]) -> Fraction | None:
    if len(found.group()) > _MAX_DIGITS:
        return None
    part = found.groupdict()
    if part["plain"] is not None:
        value = Fraction(re.sub(r"[,{}]", "", part["plain"]) + (part["exponent"] or ""))
    else:
        over, under = part["latex_over"] or part["over"], part["latex_under"] or part["under"]
        if int(under) == 0:
            return None
        value = int(part["whole"] or 0) + Fraction(int(over), int(under))
    return -value if part["sign"] in ("-", "\u2212") else value


def _last_boxed(text: str) -> str | None:
    """What the last `\\boxed{...}` holds; an empty text if its brace is never closed."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth = 0
    for place in range(start + len("\\boxed"), len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[start + len("\\boxed{") : place]
    return ""


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
        if self.column is None:
            return float(re.search(self.pattern, text) is not None)
        found = self.answer(text)
        return float(found is not None and found == str(answer).strip())

    def answer(self, text: str) -> str | None:
        """The first group, without space around it."""
        found = re.search(self.pattern, text)
        return None if found is None else (found.group(1) or "").strip()


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
    "final_number": FinalNumber,
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


def states_answers(rule: Any) -> bool:
    """Whether a rule reads an answer out of a completion (`rule.answer(text)`), and does not judge it as a whole."""
    return hasattr(rule, "answer") and (not isinstance(rule, Regex) or rule.column is not None)


def columns_of(rule: Any) -> tuple[str, ...]:
    """Columns of the data that a rule reads."""
    column = getattr(rule, "column", None)
    return (column,) if column else ()
