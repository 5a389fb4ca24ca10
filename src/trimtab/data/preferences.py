"""Rows that judge completions: pairs of a better and a worse one, and single ones with a label.

{"prompt": "2+2=", "chosen": "4", "rejected": "5", "margin": 1.0}          margin is optional
{"prompt": [messages], "chosen": [messages], "rejected": [messages]}       what follows the prompt, as text or messages
{"chosen": [messages], "rejected": [messages]}                             whole dialogues with a common beginning
{"prompt": "2+2=", "completion": "4", "label": true}                       or `messages` and a label of the last answer
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from trimtab.data.columns import ColumnError, proposal
from trimtab.data.messages import ASKING, Message, MessageError, arranged, checked, has_half_a_pair, kind
from trimtab.errors import shown

PAIR = ("prompt", "chosen", "rejected")
LABELLED = ("prompt", "completion", "label")
SIDES = ("chosen", "rejected")
OTHER_NAMES = {"chosen": "preferred_response", "rejected": "dispreferred_response"}
"""Names that guides give to the columns."""
EXAMPLE = 'such as {"prompt": "2+2=", "chosen": "4", "rejected": "5"}'
LABELS: Mapping[Any, bool] = {True: True, False: False, "true": True, "false": False}
"""1 and 0 are equal to true and false."""


def arranged_pair(values: Mapping[str, Any]) -> dict[str, Any]:
    """A row of a pair in one of two forms: text in `prompt`, `chosen` and `rejected`; or messages in all three, the
    sides without the prompt.

    Raises:
        MessageError: something is missing, or not as it should be.
    """
    found = _with_our_names(values)
    is_dialogue = all(isinstance(found.get(side), list) for side in SIDES)
    wanted = SIDES if is_dialogue else PAIR
    if missing := [name for name in wanted if name not in found]:
        there = ", ".join(f"`{name}`" for name in values)
        what = f"a pair has `prompt`, `chosen` and `rejected`; no {' and no '.join(f'`{m}`' for m in missing)}, found {there}"
        raise ColumnError(what, f"{EXAMPLE}; for other names {proposal(missing, list(values))}")
    found["margin"] = _margin(found.get("margin"))
    if is_dialogue:
        return found | _of_dialogues(found)
    if isinstance(found["prompt"], list):
        turns = checked(found["prompt"], "prompt")
        _must_ask(turns)
        return found | {"prompt": turns} | {side: _answer(found[side], side) for side in SIDES}
    for name in PAIR:
        _must_be_text(found[name], name)
    return found


def arranged_label(values: Mapping[str, Any]) -> dict[str, Any]:
    """A row with prompt and completion (or `messages`) whose `label` is true or false.

    Raises:
        MessageError: the label is missing or is neither, or the conversation is not as it should be.
    """
    if "label" not in values:
        there = ", ".join(f"`{name}`" for name in values)
        example = 'such as {"prompt": "2+2=", "completion": "4", "label": true}; for another name '
        raise ColumnError(f"no column `label`, found {there}", example + proposal(["label"], list(values)))
    given = values["label"]
    label = LABELS.get(given.strip().lower() if isinstance(given, str) else given) if _is_shown(given) else None
    if label is None:
        raise MessageError(
            f"`label` is {shown(given)}, expected true or false (1, 0, 'true' and 'false' are read as well)"
        )
    return {**arranged(values, with_answers=True), "label": label}


def remarks(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """A line for each of our columns that the rows have under the name that guides give it."""
    first = next(iter(rows), {})
    return [
        f"{theirs} -> {ours}: the column is read under this name"
        for ours, theirs in OTHER_NAMES.items()
        if theirs in first
    ]


def _is_shown(value: Any) -> bool:
    return isinstance(value, bool | int | float | str)


def _with_our_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """The row with `chosen` and `rejected`; the guides' names stay beside them, so that it can be said."""
    found = dict(values)
    for ours, theirs in OTHER_NAMES.items():
        if theirs in found and ours in found:
            del found[theirs]
        elif theirs in found:
            found[ours] = found[theirs]
    return found


def _margin(given: Any) -> float | None:
    if given is None:
        return None
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    if not is_number or not math.isfinite(given) or given < 0:
        raise MessageError(f"`margin` is {shown(given)}, expected a number of at least 0")
    return float(given)


def _of_dialogues(found: Mapping[str, Any]) -> dict[str, Any]:
    """Prompt and sides of two lists of messages: with the prompt before them, or whole dialogues."""
    sides = [checked(found[side], side) for side in SIDES]
    prompt = found.get("prompt")
    if isinstance(prompt, list):
        turns = checked(prompt, "prompt")
        _must_ask(turns)
        sides = [side[len(turns) :] if side[: len(turns)] == turns else side for side in sides]
    else:
        turns = _common_beginning(*sides)
        if prompt is not None and not any(turn["content"] == prompt for turn in turns):
            raise MessageError(
                "`prompt` is text, and no turn with which `chosen` and `rejected` begin",
                "write the prompt as messages too, or leave it out",
            )
        sides = [side[len(turns) :] for side in sides]
    for name, side in zip(SIDES, sides, strict=True):
        if side and side[0]["role"] != "assistant":
            raise MessageError(f"`{name}` goes on with a turn of the {side[0]['role']}, expected one of the assistant")
        if side and side[-1]["role"] != "assistant":
            raise MessageError(f"`{name}` ends with a turn of the {side[-1]['role']}, expected one of the assistant")
    return {"prompt": turns, "chosen": sides[0], "rejected": sides[1]}


def _common_beginning(chosen: list[Message], rejected: list[Message]) -> list[Message]:
    """The turns that both begin with, up to the last one that the assistant answers in both.

    Of equal dialogues it is all but the last answer.
    """
    count = next((n for n, (a, b) in enumerate(zip(chosen, rejected, strict=False)) if a != b), None)
    if count is None:
        count = min(len(chosen), len(rejected))
    elif {chosen[count]["role"], rejected[count]["role"]} != {"assistant"}:
        raise MessageError(
            f"`chosen` and `rejected` part at messages[{count}], which is not the assistant's in both",
            "both sides answer the same prompt: begin them alike up to a turn of the user, or put it into `prompt`",
        )
    while count and (chosen[count - 1]["role"] not in ASKING):
        count -= 1
    if not count:
        raise MessageError(
            "`chosen` and `rejected` are messages without a prompt",
            "begin both with the turns of the prompt, or put these into `prompt`",
        )
    return chosen[:count]


def _must_ask(turns: list[Message]) -> None:
    if turns[-1]["role"] not in ASKING:
        raise MessageError(
            f"`prompt` ends with a turn of the {turns[-1]['role']}, expected one of the user",
            "put what follows it into `chosen` and `rejected`",
        )


def _answer(given: Any, name: str) -> list[Message]:
    """What follows a prompt of messages, as messages; text is one answer of the assistant."""
    if isinstance(given, list):
        return checked(given, name)
    _must_be_text(given, name)
    return [{"role": "assistant", "content": given}] if given else []


def _must_be_text(value: Any, name: str) -> None:
    if isinstance(value, list):
        raise MessageError(f"`{name}` is messages, the other columns are text", "write all as messages or all as text")
    if not isinstance(value, str):
        raise MessageError(f"`{name}` is {kind(value)}, expected text or messages")
    if name == "prompt" and not value:
        raise MessageError("`prompt` is empty, expected text")
    if has_half_a_pair(value):
        raise MessageError(f"`{name}` has half a surrogate pair, which is no character")
