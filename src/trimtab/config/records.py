"""Config records and YAML values, each made from the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any

from pydantic import TypeAdapter

SCHEDULE_KEYS = {"schedule": "kind", "from": "start", "to": "end", "steps": "steps"}
"""Keys of a schedule in a file, and the fields of the record."""
_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}


def adapter(record: type[Any]) -> TypeAdapter[Any]:
    if record not in _ADAPTERS:
        _ADAPTERS[record] = TypeAdapter(record)
    return _ADAPTERS[record]


def fields_of(record: Any) -> dict[str, Any]:
    return {f.name: getattr(record, f.name) for f in fields(record)}


def prepared(values: dict[str, Any], record: type[Any]) -> dict[str, Any]:
    """`{schedule: linear, from: a, to: b, steps: n}` as the fields of a `Schedule`, where the record takes one."""
    takes_schedule = {f.name for f in fields(record) if "Schedule" in str(f.type) or "Coefficient" in str(f.type)}
    found = {}
    for name, value in values.items():
        if isinstance(value, dict) and name in takes_schedule:
            value = {SCHEDULE_KEYS.get(k, k): v for k, v in value.items()}
        found[name] = value
    return found


def record_from(record: type[Any], values: Mapping[str, Any]) -> Any:
    """A record from YAML values; pydantic's ValidationError if they do not fit."""
    return adapter(record).validate_python(prepared(dict(values), record))


def plain_record(record: Any) -> dict[str, Any]:
    """A record as YAML values."""

    def simple(value: Any) -> Any:
        if isinstance(value, dict):
            if set(value) == {"kind", "start", "end", "steps"}:
                return {"schedule": value["kind"], "from": value["start"], "to": value["end"], "steps": value["steps"]}
            return {k: simple(v) for k, v in value.items()}
        if isinstance(value, tuple | list):
            return [simple(v) for v in value]
        return value

    found: dict[str, Any] = simple(asdict(record))
    return found


def assembled(config: Any, records: Mapping[str, Any], name: str) -> Any:
    """The algorithm's config with the checked records in the places of their defaults."""
    changed = {}
    for spec in fields(config):
        inner = f"{name}.{spec.name}"
        value = getattr(config, spec.name)
        changed[spec.name] = records[inner] if inner in records else assembled(value, records, inner)
    return replace(config, **changed)


def record_at(config: Any, name: str) -> Any:
    for part in name.split(".")[1:]:
        config = getattr(config, part)
    return config
