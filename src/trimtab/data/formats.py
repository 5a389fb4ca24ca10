"""The forms of rows that other programs write, told apart row by row, and put into the form that the rest reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trimtab.data.messages import MessageError, kind
from trimtab.data.preferences import LABELLED, LABELS, OTHER_NAMES, PAIR, SIDES

HUMAN, ASSISTANT = "\n\nHuman:", "\n\nAssistant:"
"""What begins a turn in dialogues that are one text, as in Anthropic's HH files."""
KINDS = ("prompts", "demonstrations", "pairs", "labels")
REQUIRED: Mapping[str, tuple[str, ...]] = {
    "prompts": ("prompt",),
    "demonstrations": ("prompt", "completion"),
    "pairs": PAIR,
    "labels": LABELLED,
}
"""What `rows.read` is told for each kind of rows."""
FOREIGN = ("verl", "ShareGPT", "ShareGPT/label", "dialogues as text")
"""Forms of which a run says that it reads them, even if all rows have the same."""


def name_of(values: Mapping[str, Any]) -> str:
    """What the form of a row is called; it does not say that the row is without a fault.

    >>> name_of({"prompt": "2+2=", "chosen": "4", "rejected": "5"})
    'prompt/chosen/rejected'
    """
    if is_verl(values):
        return "verl"
    if any(theirs in values for theirs in OTHER_NAMES.values()):
        return "/".join(("prompt", *OTHER_NAMES.values()))
    if any(side in values for side in SIDES):
        if "prompt" in values:
            return "prompt/chosen/rejected" + _of_messages(values["prompt"])
        return "dialogues as messages" if isinstance(values.get("chosen"), list) else "dialogues as text"
    turns = values.get("messages")
    label = "/label" if "label" in values else ""
    if turns is not None and "prompt" not in values:
        is_foreign = isinstance(turns, list) and turns and isinstance(turns[0], dict) and "from" in turns[0]
        return ("ShareGPT" if is_foreign else "messages") + label
    answer = "/completion" if "completion" in values else ""
    return f"prompt{answer}{label}{_of_messages(values.get('prompt'))}"


def _of_messages(prompt: Any) -> str:
    return " as messages" if isinstance(prompt, list) else ""


def is_verl(values: Mapping[str, Any]) -> bool:
    return "data_source" in values and isinstance(values.get("reward_model"), dict)


def kind_of(values: Mapping[str, Any]) -> str:
    """Which of `KINDS` a row most likely is."""
    if any(name in values for name in (*SIDES, *OTHER_NAMES.values())):
        return "pairs"
    if _is_label(values.get("label")) and ("completion" in values or "messages" in values):
        return "labels"
    turns = values.get("messages")
    has_answer = isinstance(turns, list) and any(
        isinstance(turn, dict) and (turn.get("role") == "assistant" or turn.get("from") == "gpt") for turn in turns
    )
    return "demonstrations" if "completion" in values or has_answer else "prompts"


def _is_label(value: Any) -> bool:
    if isinstance(value, str):
        value = value.strip().lower()
    return isinstance(value, str | int | float) and value in LABELS


def adapted(values: dict[str, Any], *, as_pair: bool) -> dict[str, Any]:
    """The row with our columns beside those of its form.

    verl: `reward_model.ground_truth` becomes `answer`. A pair of two dialogues as text: what both begin with, up to its
    last `Assistant:`, becomes `prompt`.

    Raises:
        MessageError: the form is known, and the row is not as it wants it.
    """
    if is_verl(values) and "answer" not in values:
        return {**values, "answer": _ground_truth(values["reward_model"])}
    sides = [values.get(side) for side in SIDES]
    if as_pair and "prompt" not in values and all(isinstance(side, str) for side in sides):
        return {**values, **_of_texts(*map(str, sides))}
    return values


def _ground_truth(judge: Mapping[str, Any]) -> Any:
    if "ground_truth" not in judge:
        there = ", ".join(f"`{name}`" for name in judge) or "nothing"
        raise MessageError(f"`reward_model` has no `ground_truth`, found {there}")
    if not isinstance(judge["ground_truth"], str | int | float | list):
        raise MessageError(f"`reward_model.ground_truth` is {kind(judge['ground_truth'])}, expected text or a number")
    return judge["ground_truth"]


def _of_texts(chosen: str, rejected: str) -> dict[str, str]:
    """Both dialogues cut behind the last `Assistant:` of what they begin with."""
    for side, text in zip(SIDES, (chosen, rejected), strict=True):
        if ASSISTANT not in text:
            what = f"no `prompt`, and `{side}` is no dialogue: it has no line that begins with `Assistant:`"
            raise MessageError(what, "add the column `prompt`, or name it: data.columns: {prompt: ...}")
    common = _common_length(chosen, rejected)
    found = chosen.rfind(ASSISTANT, 0, common)
    if found < 0:
        what = f"`chosen` and `rejected` part at character {common + 1}, before the first `Assistant:`"
        raise MessageError(what, "both answer the same prompt: begin them alike up to the last `Assistant:`")
    end = found + len(ASSISTANT)
    for side, text in zip(SIDES, (chosen, rejected), strict=True):
        if HUMAN in text[end:]:
            what = f"`{side}` goes on with a turn of the human behind the last `Assistant:` that both share"
            raise MessageError(
                what, f"the sides part at character {common + 1}; they may differ in the last answer only"
            )
    return {"prompt": chosen[:end], "chosen": chosen[end:], "rejected": rejected[end:]}


def _common_length(one: str, other: str) -> int:
    """
    >>> _common_length("abcd", "abxd"), _common_length("ab", "abc"), _common_length("", "a")
    (2, 2, 0)
    """
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low


def remarks(counts: Mapping[str, int]) -> list[str]:
    """A line if a file has rows of several forms, or of one that is not our own.

    >>> remarks({"prompt": 7}), remarks({"verl": 7})
    ([], ['the rows are of the format 7 verl'])
    """
    is_said = len(counts) > 1 or any(name in FOREIGN for name in counts)
    return [f"the rows are of the format {counted(counts)}"] if is_said else []


def counted(counts: Mapping[str, int]) -> str:
    """How many rows have each form, for people.

    >>> counted({"verl": 1200, "prompt": 3})
    '1,200 verl, 3 prompt'
    """
    return ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items(), key=lambda c: (-c[1], c[0])))
