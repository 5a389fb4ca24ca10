"""What pydantic found wrong, in a reader's words."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_type_hints

from trimtab.config.records import SCHEDULE_KEYS, key_of

EPOCH = "literal['epoch']"
BRANCHES = ("Schedule", "constrained-float", "constrained-int", "float", "int", "bool", EPOCH)
"""What pydantic puts into a fault's place to say which of several types it tried."""


def known_path(inside: list[Any]) -> list[Any]:
    back = {field: key for key, field in SCHEDULE_KEYS.items()}
    keys = [key_of(part) if isinstance(part, str) else part for part in inside]
    return [back.get(part, part) if number else part for number, part in enumerate(keys)]


def names_at(record: type[Any], inside: list[Any]) -> list[str]:
    """The keys that a nested record has."""
    for part in inside:
        hint = get_type_hints(record).get(str(part))
        kinds = [hint, *get_args(hint), *(inner for kind in get_args(hint) for inner in get_args(kind))]
        record = next((kind for kind in kinds if is_dataclass(kind)), record)  # type: ignore[assignment]
    return [key_of(f.name) for f in fields(record)]


_EXPECTED = {
    "finite_number": "expected a finite number",
    "float_parsing": "expected a number",
    "float_type": "expected a number",
    "int_parsing": "expected a whole number",
    "int_type": "expected a whole number",
    "int_from_float": "expected a whole number",
    "bool_parsing": "expected true or false",
    "bool_type": "expected true or false",
    "string_type": "expected text",
    "dataclass_type": "expected keys and values",
    "mapping_type": "expected keys and values",
    "dict_type": "expected keys and values",
    "tuple_type": "expected a list",
}


def expected(fault: Any) -> str:
    if fault["type"] in _EXPECTED:
        return _EXPECTED[fault["type"]]
    context = fault.get("ctx", {})
    if fault["type"] == "literal_error":
        return f"expected {context['expected']}"
    limits = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    for name, words in limits.items():
        if name in context:
            return f"expected {words} {context[name]:g}"
    message: str = fault["msg"]
    return message[0].lower() + message[1:]
