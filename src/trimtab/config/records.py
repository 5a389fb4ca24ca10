"""Config records and YAML values, each made from the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from pydantic import TypeAdapter

from trimtab.secrets import Secret
from trimtab.types import Schedule

SCHEDULE_KEYS = {"schedule": "kind", "from": "start", "to": "end", "steps": "steps"}
"""Keys of a schedule in a file, and the fields of the record."""
_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}


def key_of(name: str) -> str:
    """The key of a record's field: one that Python keeps for itself has an underscore behind it in the record.

    >>> key_of("async_"), key_of("every")
    ('async', 'every')
    """
    return name.removesuffix("_")


def adapter(record: type[Any]) -> TypeAdapter[Any]:
    if record not in _ADAPTERS:
        _ADAPTERS[record] = TypeAdapter(record)
    return _ADAPTERS[record]


def fields_of(record: Any) -> dict[str, Any]:
    return {f.name: getattr(record, f.name) for f in fields(record)}


def prepared(values: dict[str, Any], record: type[Any]) -> dict[str, Any]:
    """Keys as fields; `{schedule: linear, from: a, to: b, steps: n}` as those of a `Schedule`, where one is taken."""
    specs = {key_of(f.name): f for f in fields(record)}
    found = {}
    for key, value in values.items():
        spec = specs.get(key)
        if spec is not None and isinstance(value, dict):
            inner = spec.default_factory
            if "Schedule" in str(spec.type) or "Coefficient" in str(spec.type):
                value = {SCHEDULE_KEYS.get(k, k): v for k, v in value.items()}
            elif isinstance(inner, type) and is_dataclass(inner):
                value = prepared(value, inner)
        found[key if spec is None else spec.name] = value
    return found


def record_from(record: type[Any], values: Mapping[str, Any]) -> Any:
    """A record from YAML values; pydantic's ValidationError if they do not fit."""
    return adapter(record).validate_python(prepared(dict(values), record))


def plain_record(record: Any) -> dict[str, Any]:
    """A record as YAML values."""
    return {key_of(f.name): _plain(getattr(record, f.name)) for f in fields(record)}


def _plain(value: Any) -> Any:
    if isinstance(value, Schedule):
        return {"schedule": value.kind, "from": value.start, "to": value.end, "steps": value.steps}
    if isinstance(value, Secret):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return plain_record(value)
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, tuple | list) else value


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
