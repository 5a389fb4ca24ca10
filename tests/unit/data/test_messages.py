"""Rows that are conversations: what is accepted, what is refused at its place, and where the prompt ends."""

import json

import pytest

from trimtab.data import rows
from trimtab.errors import DataError

SYSTEM = {"role": "system", "content": "be kind"}
ASK, AGAIN = {"role": "user", "content": "hi"}, {"role": "user", "content": "more"}
ANSWER, END = {"role": "assistant", "content": "yo"}, {"role": "assistant", "content": "bye"}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("messages") / "a.jsonl"


def read(file, row, *, with_answers=False, columns=None):
    file.write_text(json.dumps(row))
    required = ("prompt", "completion") if with_answers else ("prompt",)
    return dict(rows.read(str(file), columns or {}, required)[0].values)


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ({"prompt": [SYSTEM, ASK]}, {"prompt": [SYSTEM, ASK]}),
        ({"prompt": [ASK], "completion": [ANSWER]}, {"prompt": [ASK], "completion": "yo"}),
        ({"prompt": [ASK], "completion": "yo"}, {"prompt": [ASK], "completion": "yo"}),
        ({"messages": [SYSTEM, ASK]}, {"prompt": [SYSTEM, ASK]}),
        ({"messages": [ASK, ANSWER], "n": 1}, {"prompt": [ASK], "completion": "yo", "n": 1}),
        ({"messages": [ASK, ANSWER, AGAIN, END]}, {"prompt": [ASK, ANSWER, AGAIN], "completion": "bye"}),
        ({"messages": [ASK, ANSWER, AGAIN]}, {"prompt": [ASK, ANSWER, AGAIN]}),
        ({"prompt": "text", "messages": [ASK, ANSWER]}, {"prompt": "text", "messages": [ASK, ANSWER]}),
        ({"prompt": [ASK], "messages": [ASK, ANSWER]}, {"prompt": [ASK]}),
    ],
)
def test_to_sample_the_prompt_ends_with_the_last_turn_of_the_user(file, row, found):
    assert read(file, row) == found


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ({"prompt": [ASK], "completion": [ANSWER]}, {"prompt": [ASK], "completion": "yo"}),
        ({"messages": [ASK, ANSWER]}, {"prompt": [ASK], "messages": [ASK, ANSWER]}),
        (
            {"messages": [SYSTEM, ASK, ANSWER, AGAIN, END, ASK]},
            {"prompt": [SYSTEM, ASK], "messages": [SYSTEM, ASK, ANSWER, AGAIN, END]},
        ),
        ({"prompt": "hi", "messages": [ASK, ANSWER]}, {"prompt": [ASK], "messages": [ASK, ANSWER]}),
        ({"prompt": "a", "completion": "b"}, {"prompt": "a", "completion": "b"}),
    ],
)
def test_to_imitate_the_prompt_ends_before_the_first_answer(file, row, found):
    assert read(file, row, with_answers=True) == found


def test_the_column_of_messages_can_have_another_name_and_other_roles(file):
    row = {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yo"}]}
    assert read(file, row, columns={"messages": "conversations"}) == {"prompt": [ASK], "completion": "yo"}


def test_text_parts_are_joined_and_other_keys_of_a_message_stay(file):
    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
    assert read(file, {"prompt": [{"role": "user", "content": parts}]})["prompt"] == [ASK]
    called = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    told = {"role": "tool", "content": "3", "tool_call_id": "1"}
    found = read(file, {"messages": [ASK, called, told, END]})
    assert found == {"prompt": [ASK, {**called, "content": ""}, told], "completion": "bye"}


ROLES = "system, developer, user, assistant, tool"


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({"prompt": []}, "`prompt` is empty, expected messages"),
        ({"messages": []}, "`messages` is empty, expected messages"),
        ({"messages": "hi"}, "`messages` is text, expected a list of messages"),
        ({"messages": [ASK, "hi"]}, "`messages[1]` is text, expected an object with role and content"),
        ({"messages": [{"content": "hi"}]}, f"`messages[0]` has no role, found 'content'; expected one of {ROLES}"),
        ({"messages": [{"role": "bot", "content": "hi"}]}, f"`messages[0].role` is 'bot', expected one of {ROLES}; did you mean `assistant`?"),
        ({"messages": [{"role": 3, "content": "hi"}]}, f"`messages[0].role` is 3, expected one of {ROLES}"),
        ({"messages": [{"role": "user"}]}, "`messages[0]` has no content, expected text or a list of text parts"),
        (
            {"messages": [{"role": "user", "content": 3}]},
            "`messages[0].content` is a number, expected text or a list of text parts",
        ),
        (
            {"messages": [{"role": "user", "content": None}]},
            "`messages[0].content` is null, expected text or a list of text parts",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
            "`messages[0].content[0]` is of type 'image_url', expected {type: text, text: ...}",
        ),
        (
            {"messages": [{"role": "user", "content": ["hi"]}]},
            "`messages[0].content[0]` is not a text part, expected {type: text, text: ...}",
        ),
        (
            {"messages": [{"role": "user", "content": "\ud83d"}]},
            "`messages[0].content` has half a surrogate pair, which is no character",
        ),
        ({"messages": [SYSTEM]}, "`messages` has no turn of the user"),
        (
            {"prompt": [ASK, ANSWER]},
            "`prompt` ends with a turn of the assistant, expected one of the user; "
            "put a whole conversation into `messages`",
        ),
        (
            {"prompt": [ASK], "completion": [ANSWER, AGAIN]},
            "`completion` has the turns assistant, user, expected one of the assistant; "
            "put a whole conversation into `messages`",
        ),
        (
            {"prompt": "hi", "completion": [ANSWER]},
            "`completion` is messages, but `prompt` is text; write both as messages or both as text",
        ),
    ],
)  # fmt: skip
def test_a_fault_in_messages_is_named_at_its_line(file, row, what):
    with pytest.raises(DataError) as error:
        read(file, row)
    assert str(error.value) == f"{file}:1: {what}"


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({"messages": [ASK]}, "`messages` has no turn of the assistant to imitate"),
        (
            {"messages": [SYSTEM, ANSWER, ASK, END]},
            "`messages` has a turn of the assistant before any of the user; begin with the turn that it answers",
        ),
        ({"prompt": [ASK], "completion": ""}, "`completion` is empty, expected text"),
        ({"prompt": [ASK], "completion": 3}, "`completion` is a number, expected text or messages"),
        (
            {"prompt": [ASK]},
            "no column `completion`, found 'prompt'; name the column that holds it: data.columns: {completion: ...}",
        ),
    ],
)
def test_what_cannot_be_imitated_is_named_at_its_line(file, row, what):
    with pytest.raises(DataError) as error:
        read(file, row, with_answers=True)
    assert str(error.value) == f"{file}:1: {what}"


def test_a_file_of_conversations_shows_all_faults_at_once(file):
    file.write_text("\n".join(json.dumps({"messages": m}) for m in ([], [ASK], [SYSTEM])))
    with pytest.raises(DataError) as error:
        rows.read(str(file), {}, ("prompt",))
    assert [str(f.place).rsplit(":")[-1] for f in error.value.findings] == ["1", "3"]
