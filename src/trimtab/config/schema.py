"""A JSON Schema of configuration files, for editors."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from trimtab import __version__, algorithms
from trimtab.config import aliases, sections
from trimtab.config.records import key_of
from trimtab.rewards.settings import RewardSpec

AUTO = {"const": "auto", "description": "the vetted value for this algorithm and model"}


def json_schema() -> dict[str, Any]:
    """Every key of every section, with help, limits and default; `auto` is allowed everywhere."""
    definitions: dict[str, Any] = {}
    declared: dict[str, dict[str, list[dict[str, Any]]]] = {}
    owners = [*sections.ROOMS]
    for algorithm in algorithms.loadable().values():
        owners += sections.of_algorithm(algorithm)
    for owner in owners:
        schema = TypeAdapter(owner.record).json_schema(ref_template="#/$defs/{model}")
        definitions |= schema.pop("$defs", {})
        for key, value in schema.get("properties", {}).items():
            declared.setdefault(owner.section, {}).setdefault(key_of(key), []).append(value)
    known = {section: {key: _any_or_auto(found) for key, found in keys.items()} for section, keys in declared.items()}
    known["policy"][sections.CLIP_RATIO] = _any_or_auto(
        [{"type": "number", "minimum": 0, "description": "Sets clip_low and clip_high."}]
    )
    reward = TypeAdapter(RewardSpec).json_schema(ref_template="#/$defs/{model}")
    definitions |= reward.pop("$defs", {})
    reward["anyOf"] = [{"required": ["name"]}, {"required": ["model"]}]
    definitions["Schedule"] = _schedule()
    properties: dict[str, Any] = {
        "algorithm": {
            "enum": [*algorithms.names(), *algorithms.ALIASES],
            "description": "The policy-optimisation algorithm.",
        },
        "extends": {"type": "string", "description": "A file whose values stand under this one's."},
        "overrides": {
            "type": "object",
            "description": "Sections that count only when the algorithm of that name is chosen.",
        },
        "rewards": {"type": "array", "items": {"anyOf": [{"type": "string"}, reward]}},
        "mix": {
            "type": "array",
            "items": {"type": "object", "required": ["algorithm", "data"]},
            "description": "Parts that are added to the loss.",
        },
    }
    for name, alias in aliases.ALIASES.items():
        properties[name] = {"description": f"The same as {'.'.join(map(str, alias.key))}."}
    properties[aliases.BATCH_SIZE] = {"type": "integer", "description": "Completions a step: prompts x group size."}
    properties[aliases.TEMPERATURE] = {"type": "number", "description": "preference.beta of a preference algorithm."}
    properties[aliases.DPO_WEIGHT] = {"type": "number", "description": "Weight of the preference term beside others."}
    for definition in definitions.values():  # a field that Python keeps the key's name from has another one
        inside = definition.get("properties", {})
        definition["properties"] = {key_of(name): value for name, value in inside.items()}
    for section, keys in known.items():
        properties[section] = {"type": "object", "properties": keys, "additionalProperties": False}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Trimtab {__version__} configuration",
        "type": "object",
        "properties": properties,
        "required": ["algorithm"],
        "additionalProperties": False,
        "$defs": definitions,
    }


def _any_or_auto(schemas: list[dict[str, Any]]) -> dict[str, Any]:
    """What any of the algorithms that declare a key allows; help and default are those of the first."""
    outside: dict[str, Any] = {k: schemas[0][k] for k in ("description", "default", "title") if k in schemas[0]}
    inside: list[dict[str, Any]] = []
    for schema in schemas:
        limits = {k: v for k, v in schema.items() if k not in ("description", "default", "title")}
        if limits not in inside:
            inside.append(limits)
    return {"anyOf": [*inside, AUTO], **outside}


def _schedule() -> dict[str, Any]:
    number = {"type": "number"}
    return {
        "type": "object",
        "properties": {
            "schedule": {"enum": ["linear", "cosine", "constant"]},
            "from": number,
            "to": number,
            "steps": {"type": "integer", "minimum": 1},
        },
        "required": ["schedule", "from", "to", "steps"],
        "additionalProperties": False,
    }


def help_of(record: type[Any], key: str) -> str:
    """The docstring of a key, on one line."""
    properties = TypeAdapter(record).json_schema()["properties"]
    found = {key_of(name): value for name, value in properties.items()}[key].get("description", "")
    return " ".join(str(found).split())
