"""Objects that stand where a configuration has names: a model, rows, reward functions that Python hands over.

The configuration of such a run says `python:...` in the object's place, and run.json keeps a fingerprint of it, so that
a run goes on only with what it was started with.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from trimtab.assemble.fingerprints import name_of
from trimtab.config import RunConfig
from trimtab.errors import ConfigError, DataError, Finding, ModelError
from trimtab.rewards.settings import RewardSpec

MARK = "python:"
"""In a configuration: an object stands here."""
MAX_FINDINGS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What Python hands over; nothing by default."""

    model: Any = None
    """A transformers model for causal language modelling. It is trained in place."""
    tokenizer: Any = None
    rows: Mapping[str, bytes] = field(default_factory=dict)
    """`train`, `validation`: JSON lines, so that they are checked as the rows of a file are."""
    rewards: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    """By the name that stands for them in the configuration. They run in this process."""
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    """Of model, tokenizer and reward functions; those of rows are made where rows are read."""


NOTHING = Given()


def missing(config: RunConfig, given: Given) -> list[Finding]:
    """Every place of the configuration where an object is to stand that was not handed over."""
    places = {
        "policy.model": (config.policy.model, given.model is None, "name a directory, a hub id or a finished run"),
        "data.train": (config.data.train, "train" not in given.rows, "name a file"),
        "data.validation": (config.data.validation or "", "validation" not in given.rows, "name a file"),
    }
    found = [
        Finding(place=key, what=f"{name} was an object in Python", hint=f"give it to trimtab.prepare again, or {hint}")
        for key, (name, is_missing, hint) in places.items()
        if name.startswith(MARK) and is_missing
    ]
    for spec in config.rewards:
        if spec.name.startswith("__main__:") and spec.name not in given.rewards:
            what = f"{spec.name} was a function of a notebook or script"
            hint = "give it to trimtab.prepare again, or put it into a module and name it module:function"
            found.append(Finding(place="rewards", what=what, hint=hint))
    return found


# --------------------------------------------------------------------------------------------------------------- rows
def json_lines(rows: Any, name: str) -> bytes:
    """Prompts from Python as JSON lines: texts, mappings, or lists of chat messages.

    Raises:
        DataError: with up to twenty rows that are none of these or do not fit into JSON, rows counted from 1.
    """
    lines: list[bytes] = []
    findings: list[Finding] = []
    for number, row in enumerate(_iterated(rows, name), 1):
        try:
            lines.append(_line(row))
        except TypeError as error:
            findings.append(Finding(place=f"{name}:{number}", what=str(error)))
            if len(findings) >= MAX_FINDINGS:
                break
    if not lines and not findings:
        findings.append(Finding(place=name, what="there are no rows"))
    if findings:
        raise DataError(findings)
    return b"\n".join(lines)


def _iterated(rows: Any, name: str) -> Iterator[Any]:
    if hasattr(rows, "iterrows") and hasattr(rows, "to_dict"):  # a table of pandas gives its column names otherwise
        rows = rows.to_dict("records")
    if isinstance(rows, Mapping):
        what = f"a {type(rows).__name__} with {', '.join(map(repr, list(rows)[:5]))}, expected a list of rows"
        hint = "of a dictionary of splits choose one, such as prompts=data['train']"
        raise DataError([Finding(place=name, what=what, hint=hint)])
    if not isinstance(rows, Iterable):
        raise DataError([Finding(place=name, what=f"{type(rows).__name__}, expected a list of texts or of rows")])
    return iter(rows)


def _line(row: Any) -> bytes:
    """One row as JSON.

    >>> _line("2+2="), _line({"prompt": "2+2=", "answer": 4})
    (b'{"prompt": "2+2="}', b'{"prompt": "2+2=", "answer": 4}')
    """
    if isinstance(row, str):
        row = {"prompt": row}
    elif isinstance(row, list | tuple):
        row = {"messages": row}
    if not isinstance(row, Mapping):
        raise TypeError(f"{type(row).__name__}, expected a text, a mapping or a list of chat messages")
    parts = []
    for column, value in row.items():
        try:
            parts.append(f"{json.dumps(str(column))}: {json.dumps(value, default=_plain)}")
        except (TypeError, ValueError) as error:
            raise TypeError(f"column `{column}` does not fit into JSON ({error}); leave it out") from None
    return ("{" + ", ".join(parts) + "}").encode()


def _plain(value: Any) -> Any:
    """Numbers and arrays of numpy and torch as Python's."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is neither text, number, list nor mapping")


# ------------------------------------------------------------------------------------------------------------ rewards
def reward_entries(rewards: Any) -> tuple[list[Any], dict[str, Callable[..., Any]]]:
    """The `rewards` list of a configuration, and the functions that its names stand for.

    Args:
        rewards: one or several of: a function, a name, a `RewardSpec`, a mapping whose `name` is a function or a name.
    Raises:
        ConfigError: something is none of these, or asks for a time limit that cannot be kept.
    """
    entries: list[Any] = []
    functions: dict[str, Callable[..., Any]] = {}
    several = list(rewards) if isinstance(rewards, list | tuple) else [rewards]
    for number, reward in enumerate(several):
        place = f"rewards[{number}]"
        entry = asdict(reward) if isinstance(reward, RewardSpec) else reward
        if isinstance(entry, str):
            entries.append(entry)
            continue
        asked = dict(entry) if isinstance(entry, Mapping) else {"name": entry}
        function = asked.get("name")
        if callable(function):
            if "timeout_seconds" in asked:
                what = "timeout_seconds: a function that is given as an object runs in this process and cannot be ended"
                hint = "leave it out, or put the function into a module and name it module:function"
                raise ConfigError([Finding(place=place, what=what, hint=hint)])
            asked["name"] = _unlike(name_of(function), functions)
            functions[asked["name"]] = function
        elif not isinstance(entry, Mapping):
            what = f"{type(entry).__name__}, expected a function, a name or {{name: ..., weight: ...}}"
            raise ConfigError([Finding(place=place, what=what)])
        entries.append(asked)
    return entries, functions


def _unlike(name: str, taken: Mapping[str, Any]) -> str:
    number = 2
    found = name
    while found in taken:
        found = f"{name}_{number}"
        number += 1
    return found


# ------------------------------------------------------------------------------------------------ model and tokenizer
def checked_model(model: Any) -> Any:
    """The model, if it can be trained here.

    Raises:
        ModelError: it is no transformers model, has no output layer, or is quantised.
    """
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        hint = "; merge an adapter into it first" if hasattr(model, "merge_and_unload") else ""
        raise ModelError(f"model: {type(model).__name__}, expected a transformers model for causal language{hint}")
    if model.get_output_embeddings() is None:
        hint = "load it with AutoModelForCausalLM"
        raise ModelError(f"model: {type(model).__name__} has no output layer over the vocabulary; {hint}")
    if getattr(model, "hf_quantizer", None) is not None:
        raise ModelError(f"model: {type(model).__name__} is quantised and cannot be trained; load it in float32")
    return model


def checked_tokenizer(tokenizer: Any, model: Any) -> Any:
    """The tokenizer, if the model knows its tokens.

    Raises:
        ModelError: it has more tokens than the model's embedding has rows.
    """
    known = int(model.get_input_embeddings().weight.shape[0])
    if len(tokenizer) > known:
        raise ModelError(
            f"tokenizer: {len(tokenizer)} tokens, but {type(model).__name__} knows {known}; "
            "give the tokenizer that belongs to the model, or call model.resize_token_embeddings first"
        )
    return tokenizer


def tokenizer_of(model: Any) -> Any:
    """The tokenizer of the place that a model was loaded from.

    Raises:
        ModelError: it was not loaded, or there is no tokenizer there.
    """
    from trimtab.models import policy as policies

    name = getattr(model, "name_or_path", "")
    if not name:
        raise ModelError(f"tokenizer: the {type(model).__name__} was not loaded from anywhere; give its tokenizer too")
    return policies.load_tokenizer(name, key="tokenizer")
