"""Conversations as rows hold them: OpenAI chat messages, checked, and cut into what is given and what is answered.

prompt: [system, user]                  completion: [assistant]        one answer
messages: [system, user, assistant, user, assistant]                   a whole conversation
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trimtab.errors import shown

Message = dict[str, Any]

ROLES = ("system", "developer", "user", "assistant", "tool")
ASKING = ("user", "tool")
"""Turns that the assistant answers."""
FOREIGN_ROLES = {"human": "user", "gpt": "assistant"}
"""Of rows with `from` and `value`."""
_MEANT = {role: role for role in ROLES} | {
    **FOREIGN_ROLES,
    **dict.fromkeys(("bot", "ai", "model", "chatgpt", "agent"), "assistant"),
    "function": "tool",
}


class MessageError(ValueError):
    """What is wrong with a row's messages, without its place."""

    def __init__(self, what: str, hint: str = "") -> None:
        self.what, self.hint = what, hint
        super().__init__(what)


def arranged(values: Mapping[str, Any], *, with_answers: bool) -> dict[str, Any]:
    """A row whose conversation, if it has one, is in the form that the rest of the program reads.

    Text stays as it is. Else `prompt` becomes the messages up to the answer, and

    * with answers (to imitate them): of a whole conversation, `messages` keeps all turns up to its last answer, and the
      prompt ends before its first;
    * without (to sample them): the prompt ends with the last turn of the user.

    An answer that stands alone behind the prompt is the text in `completion`.

    Raises:
        MessageError: a message is not as it should be, or the turns are in an order that cannot be answered.
    """
    found = dict(values)
    has_conversation = "messages" in values and (
        "prompt" not in values or (with_answers and "completion" not in values)
    )
    if has_conversation:
        turns = checked(found.pop("messages"), "messages")
        found.pop("completion", None)
        found |= _with_answers(turns) if with_answers else _without_answers(turns)
    elif isinstance(values.get("prompt"), list):
        turns = checked(found.pop("prompt"), "prompt")
        if turns[-1]["role"] not in ASKING:
            raise MessageError(
                f"`prompt` ends with a turn of the {turns[-1]['role']}, expected one of the user",
                "put a whole conversation into `messages`",
            )
        if "completion" in values:
            found["completion"] = _answer(values["completion"])
        found.pop("messages", None)
        found["prompt"] = turns
    elif isinstance(values.get("completion"), list):
        raise MessageError("`completion` is messages, but `prompt` is text", "write both as messages or both as text")
    return found


def checked(given: Any, name: str) -> list[Message]:
    """Messages with a known role and text as content; text parts are joined.

    Raises:
        MessageError: with the first fault.
    """
    if not isinstance(given, list):
        raise MessageError(f"`{name}` is {kind(given)}, expected a list of messages")
    if not given:
        raise MessageError(f"`{name}` is empty, expected messages")
    return [_message(entry, f"{name}[{number}]") for number, entry in enumerate(given)]


def _message(entry: Any, name: str) -> Message:
    if not isinstance(entry, dict):
        raise MessageError(f"`{name}` is {kind(entry)}, expected an object with role and content")
    if "role" not in entry and "from" in entry and "value" in entry:
        role = FOREIGN_ROLES.get(str(entry["from"]), entry["from"])
        entry = {"role": role, "content": entry["value"]}
    if "role" not in entry:
        there = ", ".join(map(repr, entry)) or "nothing"
        raise MessageError(f"`{name}` has no role, found {there}", f"expected one of {', '.join(ROLES)}")
    role = entry["role"]
    if not isinstance(role, str) or role not in ROLES:
        what = f"`{name}.role` is {shown(role)}, expected one of {', '.join(ROLES)}"
        meant = _MEANT.get(str(role).lower())
        raise MessageError(what, f"did you mean `{meant}`?" if meant else "")
    if entry.get("content") is None and entry.get("tool_calls"):
        return {**entry, "content": ""}
    if "content" not in entry:
        raise MessageError(f"`{name}` has no content, expected text or a list of text parts")
    content = _text(entry["content"], f"{name}.content")
    if not content and role == "user":
        raise MessageError(f"`{name}.content` is empty, expected text")
    return {**entry, "content": content}


def _text(content: Any, name: str) -> str:
    if isinstance(content, list):
        texts = []
        for number, part in enumerate(content):
            text = part.get("text") if isinstance(part, dict) and part.get("type", "text") == "text" else None
            if not isinstance(text, str):
                other = part.get("type") if isinstance(part, dict) else None
                what = f"of type {other!r}" if other not in (None, "text") else "not a text part"
                raise MessageError(f"`{name}[{number}]` is {what}, expected {{type: text, text: ...}}")
            texts.append(text)
        content = "".join(texts)
    if not isinstance(content, str):
        raise MessageError(f"`{name}` is {kind(content)}, expected text or a list of text parts")
    if has_half_a_pair(content):
        raise MessageError(f"`{name}` has half a surrogate pair, which is no character")
    return content


def _answer(given: Any) -> Any:
    """The text of a completion that is one message of the assistant; what is text stays so."""
    if not isinstance(given, list):
        return given
    turns = checked(given, "completion")
    if len(turns) != 1 or turns[0]["role"] != "assistant":
        roles = ", ".join(turn["role"] for turn in turns)
        raise MessageError(
            f"`completion` has the turns {roles}, expected one of the assistant",
            "put a whole conversation into `messages`",
        )
    return turns[0]["content"]


def _with_answers(turns: list[Message]) -> dict[str, Any]:
    roles = [turn["role"] for turn in turns]
    if "assistant" not in roles:
        raise MessageError("`messages` has no turn of the assistant to imitate")
    first = roles.index("assistant")
    if not any(role in ASKING for role in roles[:first]):
        raise MessageError(
            "`messages` has a turn of the assistant before any of the user", "begin with the turn that it answers"
        )
    last = len(roles) - 1 - roles[::-1].index("assistant")
    return {"prompt": turns[:first], "messages": turns[: last + 1]}


def _without_answers(turns: list[Message]) -> dict[str, Any]:
    asking = [number for number, turn in enumerate(turns) if turn["role"] in ASKING]
    if not asking:
        raise MessageError("`messages` has no turn of the user")
    end = asking[-1] + 1
    answer = next((turn["content"] for turn in turns[end:] if turn["role"] == "assistant"), None)
    found: dict[str, Any] = {"prompt": turns[:end]}
    return found if answer is None else {**found, "completion": answer}


def has_half_a_pair(text: str) -> bool:
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def kind(value: Any) -> str:
    """What a JSON value is, for people.

    >>> kind(None), kind(3), kind([])
    ('null', 'a number', 'a list')
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    names = {dict: "an object", list: "a list", str: "text", type(None): "null"}
    return names.get(type(value), "a number")
