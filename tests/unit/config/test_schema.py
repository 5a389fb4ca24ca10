"""The JSON Schema for editors allows what the loader allows."""

from pathlib import Path

import pytest

from trimtab import algorithms, config
from trimtab.config import document, sections
from trimtab.config.schema import help_of, json_schema
from trimtab.data.settings import Data

EXAMPLES = sorted(Path(__file__).parents[3].glob("examples/**/*.yaml"))


@pytest.fixture(scope="module")
def schema():
    return json_schema()


TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}


def allows(schema, root, value):
    """Whether a value fits: the part of JSON Schema that the configuration's schema is made of."""
    if "$ref" in schema:
        return allows(root["$defs"][schema["$ref"].rsplit("/", 1)[1]], root, value)
    if "anyOf" in schema and not any(allows(one, root, value) for one in schema["anyOf"]):
        return False
    if "const" in schema and value != schema["const"]:
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    kind = schema.get("type")
    if kind in ("number", "integer"):
        if isinstance(value, bool) or not isinstance(value, int if kind == "integer" else int | float):
            return False
        limits = {"minimum": value.__ge__, "maximum": value.__le__, "exclusiveMinimum": value.__gt__}
        return all(check(schema[name]) is not False for name, check in limits.items() if name in schema)
    if kind is not None and not isinstance(value, TYPES[kind]):
        return False
    if isinstance(value, dict):
        known = schema.get("properties", {})
        missing = [name for name in schema.get("required", []) if name not in value]
        extra = schema.get("additionalProperties", True)
        if missing or (extra is False and not value.keys() <= known.keys()):
            return False
        return all(allows(known[name], root, inner) for name, inner in value.items() if name in known)
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        return all(allows(schema["items"], root, inner) for inner in value)
    return True


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_allows_the_shipped_configurations(schema, path):
    values = {"algorithm": "grpo", **document.read(path).values}
    assert allows(schema, schema, values)


@pytest.mark.parametrize("algorithm", list(algorithms.MODULES))
def test_it_allows_every_resolved_configuration(schema, algorithm):
    values = {"algorithm": algorithm, "rewards": ["exact_match"], "kl": {"coef": 0.1}}
    resolved = config.from_mapping(values).resolved
    for section, found in resolved.items():
        assert allows({"properties": {section: schema["properties"][section]}}, schema, {section: found}), section


@pytest.mark.parametrize(
    "values",
    [
        {"policy": {"clip_ratio": 0.2}},
        {"algorithm": "grop"},
        {"algorithm": "grpo", "polcy": {}},
        {"algorithm": "grpo", "policy": {"clip_ratoi": 0.2}},
        {"algorithm": "grpo", "policy": {"clip_ratio": "wide"}},
        {"algorithm": "grpo", "policy": {"clip_ratio": -1}},
        {"algorithm": "grpo", "train": {"max_steps": 0}},
        {"algorithm": "grpo", "kl": {"coef": {"schedule": "linear", "from": 1, "to": 0}}},
        {"algorithm": "grpo", "eval": {"early_stop": {"patince": 3}}},
        {"algorithm": "grpo", "rewards": [{"weight": 2}]},
        {"algorithm": "grpo", "rewards": [{"name": "numeric", "wieght": 2}]},
    ],
)
def test_it_refuses_what_the_loader_refuses(schema, values):
    assert not allows(schema, schema, values)


def test_every_key_can_be_auto(schema):
    for section in {owner.section for owner in sections.ROOMS}:
        for key in schema["properties"][section]["properties"]:
            assert allows(schema, schema, {"algorithm": "ppo", section: {key: "auto"}}), f"{section}.{key}"


def test_it_knows_the_keys_that_the_loader_knows_and_explains_each(schema):
    for section, keys in sections.known_keys().items():
        described = schema["properties"][section]["properties"]
        assert described.keys() == keys, section
        for key, found in described.items():
            is_record = any("$ref" in one for one in found["anyOf"])
            assert is_record or found.get("description"), f"{section}.{key} has no help"


def test_every_reference_inside_it_leads_somewhere(schema):
    def references(value):
        if isinstance(value, dict):
            for name, inner in value.items():
                yield from [inner] if name == "$ref" else references(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from references(inner)

    found = set(references(schema))
    assert found
    assert {ref.rsplit("/", 1)[1] for ref in found} <= schema["$defs"].keys()


def test_the_help_of_a_key_is_its_docstring_on_one_line():
    assert help_of(Data, "columns") == "Our name: the file's name, such as `{prompt: question}`."
