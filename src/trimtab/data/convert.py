"""Rows written in the form that another program reads. What a form cannot say is refused, never left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from trimtab.data.messages import MessageError, kind
from trimtab.data.preferences import OTHER_NAMES, SIDES
from trimtab.data.rows import MAX_FINDINGS, Row
from trimtab.errors import DataError, Finding

Record = dict[str, Any]
OURS = {
    "prompts": ("prompt", "messages"),
    "demonstrations": ("prompt", "completion", "messages"),
    "pairs": ("prompt", "margin", *SIDES, *OTHER_NAMES.values()),
    "labels": ("prompt", "completion", "messages", "label"),
}
"""Columns that a form writes in its own way; all others are handed on as they are."""
VERL_SOURCE = "unknown"
"""`data_source` of rows that do not have it."""


def converted(rows: Sequence[Row], kind_of_rows: str, schema: str) -> Iterator[Record]:
    """The rows in another form, in their order.

    Args:
        rows: as they are read.
        kind_of_rows: what they were read as.
        schema: one of `SCHEMAS`.
    Raises:
        DataError: with up to twenty rows that the form cannot express.
    """
    make, findings = SCHEMAS[schema], []
    for row in rows:
        try:
            made = make(row.values, kind_of_rows)
        except MessageError as fault:
            findings.append(Finding(place=row.place, what=fault.what, hint=fault.hint))
            if len(findings) == MAX_FINDINGS:
                break
            continue
        if not findings:
            yield from made
    if findings:
        raise DataError(findings)


def _others(values: Mapping[str, Any], kind_of_rows: str) -> Record:
    return {name: value for name, value in values.items() if name not in OURS[kind_of_rows]}


def _trl(values: Mapping[str, Any], kind_of_rows: str) -> list[Record]:
    others = _others(values, kind_of_rows)
    if kind_of_rows == "pairs":
        return [{"prompt": values["prompt"], **{side: values[side] for side in SIDES}, **_margin(values), **others}]
    label = {"label": values["label"]} if kind_of_rows == "labels" else {}
    if kind_of_rows != "prompts" and "messages" in values and "completion" not in values:
        turns, start = values["messages"], len(values["prompt"])
        if kind_of_rows == "labels":
            start = len(turns) - 1  # the last answer is what the label is about
        elif len(turns) - start > 1:
            raise MessageError(
                "the conversation has several answers, of which the form `trl` has one", "use --schema messages"
            )
        return [{"prompt": turns[:start], "completion": turns[start:], **label, **others}]
    answer = {}
    if "completion" in values:
        answer = {"completion": _like_prompt(values)}
        others.pop("completion", None)
    return [{"prompt": values["prompt"], **answer, **label, **others}]


def _like_prompt(values: Mapping[str, Any]) -> Any:
    """The completion as messages behind messages, as text behind text."""
    answer = values["completion"]
    is_bare = isinstance(values["prompt"], list) and isinstance(answer, str)
    return [{"role": "assistant", "content": answer}] if is_bare else answer


def _margin(values: Mapping[str, Any]) -> Record:
    return {} if values.get("margin") is None else {"margin": values["margin"]}


def _seed(values: Mapping[str, Any], kind_of_rows: str) -> list[Record]:
    _only(kind_of_rows, "seed", ("pairs",))
    if not isinstance(values["prompt"], str):
        raise MessageError("the row is messages, the form `seed` has text only", "use --schema trl or messages")
    sides = {theirs: values[ours] for ours, theirs in OTHER_NAMES.items()}
    return [{"prompt": values["prompt"], **sides, **_margin(values), **_others(values, kind_of_rows)}]


def _messages(values: Mapping[str, Any], kind_of_rows: str) -> list[Record]:
    if not isinstance(values["prompt"], list):
        raise MessageError("the row is text, the form `messages` has turns with roles", "use --schema trl")
    others = _others(values, kind_of_rows)
    if kind_of_rows == "pairs":
        dialogues = {side: [*values["prompt"], *values[side]] for side in SIDES}
        if empty := [side for side in SIDES if not values[side]]:
            raise MessageError(f"`{empty[0]}` is empty, and has no turn", "use --schema trl")
        return [{**dialogues, **_margin(values), **others}]
    label = {"label": values["label"]} if kind_of_rows == "labels" else {}
    if kind_of_rows != "prompts" and "messages" in values and "completion" not in values:
        return [{"messages": values["messages"], **label, **others}]
    others.pop("completion", None)
    answer = [{"role": "assistant", "content": values["completion"]}] if "completion" in values else []
    return [{"messages": [*values["prompt"], *answer], **label, **others}]


def _kto(values: Mapping[str, Any], kind_of_rows: str) -> list[Record]:
    """A pair becomes two rows, the chosen one desirable."""
    _only(kind_of_rows, "kto", ("labels", "pairs"))
    if kind_of_rows == "labels":
        return _trl(values, kind_of_rows)
    if values.get("margin") is not None:
        raise MessageError("the pair has a `margin`, which single rows cannot say", "leave the column out first")
    others = _others(values, kind_of_rows)
    if "label" in others:
        raise MessageError("the pair has a column `label` already")
    return [
        {"prompt": values["prompt"], "completion": values[side], "label": side == "chosen", **others} for side in SIDES
    ]


def _verl(values: Mapping[str, Any], kind_of_rows: str) -> list[Record]:
    _only(kind_of_rows, "verl", ("prompts", "demonstrations"))
    if not isinstance(values["prompt"], list):
        raise MessageError(
            "the prompt is text, the form `verl` has messages", "it has its chat template applied always"
        )
    if kind_of_rows == "demonstrations":
        raise MessageError("the row has an answer to imitate, for which `verl` has no column", "use --kind prompts")
    others = _others(values, kind_of_rows)
    answer = others.pop("answer", None)
    judge = dict(others.pop("reward_model", None) or {"style": "rule"})
    if "ground_truth" not in judge:
        if answer is None:
            raise MessageError("no column `answer`, which `verl` wants as `reward_model.ground_truth`")
        if not isinstance(answer, str | int | float | list):
            raise MessageError(f"`answer` is {kind(answer)}, expected text or a number")
        judge["ground_truth"] = answer
    elif answer is not None and answer != judge["ground_truth"]:
        raise MessageError("`answer` and `reward_model.ground_truth` differ, the form `verl` has the second only")
    source = others.pop("data_source", VERL_SOURCE)
    return [{"data_source": source, "prompt": values["prompt"], "reward_model": judge, **others}]


def _only(kind_of_rows: str, schema: str, kinds: tuple[str, ...]) -> None:
    if kind_of_rows not in kinds:
        raise MessageError(f"the row is one of {kind_of_rows}, the form `{schema}` has {' or '.join(kinds)}")


SCHEMAS: Mapping[str, Callable[[Mapping[str, Any], str], list[Record]]] = {
    "trl": _trl,
    "seed": _seed,
    "verl": _verl,
    "messages": _messages,
    "kto": _kto,
}
