"""Looking for runs by their resolved configuration: `optim.learning_rate<1e-4`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trimtab.errors import UserError, shown

CONDITION = re.compile(r"\s*([A-Za-z0-9_.\[\]-]+?)\s*(!=|<=|>=|=|<|>|~)(.*)", re.DOTALL)
ORDERS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
}
WORDS = {"true": True, "false": False, "null": None, "none": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What the value of a key must be."""

    key: str
    operator: str
    wanted: str

    def holds(self, value: Any) -> bool:
        """Of a value that a configuration has there; one without the key meets no condition.

        >>> parsed("optim.learning_rate<1e-4").holds(5e-5), parsed("algorithm!=grpo").holds("ppo")
        (True, True)
        >>> parsed("policy.model~sft").holds("runs/demo-sft"), parsed("a=true").holds(True), parsed("a=1").holds(True)
        (True, True, False)
        """
        if self.operator == "~":
            return self.wanted.lower() in _text(value).lower()
        if self.operator in ORDERS:
            limit = _number(self.wanted)
            assert limit is not None
            return _is_number(value) and ORDERS[self.operator](float(value), limit)
        return self._is_equal(value) == (self.operator == "=")

    def _is_equal(self, value: Any) -> bool:
        if value is None or isinstance(value, bool):
            word = self.wanted.lower()
            return word in WORDS and WORDS[word] is value
        if _is_number(value):
            number = _number(self.wanted)
            return number is not None and number == float(value)
        return _text(value) == self.wanted


def parsed(text: str) -> Condition:
    """
    Raises:
        UserError: it is no condition.
    """
    found = CONDITION.fullmatch(text)
    if found is None:
        hint = "expected KEY=VALUE, or !=, <, >, <=, >=, ~ (has in it) in the place of ="
        raise UserError(f"--where: {shown(text)} is no condition; {hint}")
    condition = Condition(key=found[1], operator=found[2], wanted=found[3].strip())
    if condition.operator in ORDERS and _number(condition.wanted) is None:
        raise UserError(
            f"--where: {shown(text)}: {shown(condition.wanted)} is no number, which {condition.operator} needs"
        )
    return condition


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    return str(value)
