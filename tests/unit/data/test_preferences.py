"""Pairs and labels as rows hold them: every accepted form, and what is refused with its place."""

import json

import pytest

from trimtab.data import preferences, rows
from trimtab.errors import DataError, shown

ASK, OTHER = {"role": "user", "content": "2+2"}, {"role": "user", "content": "3+3"}
RIGHT, WRONG = {"role": "assistant", "content": "4"}, {"role": "assistant", "content": "5"}


def parsed(required, *made, columns=None):
    lines = "\n".join(map(json.dumps, made)).encode()
    return [row.values for row in rows.parse(lines, "a.jsonl", columns or {}, required)]


def pair(**values):
    return parsed(preferences.PAIR, values)[0]


def refused(required, *made):
    with pytest.raises(DataError) as fault:
        parsed(required, *made)
    return [f"{f.place}: {f.what}; {f.hint}" for f in fault.value.findings]


def three(values):
    return values["prompt"], values["chosen"], values["rejected"]


def test_text_stays_text_and_the_margin_is_a_number():
    found = pair(prompt="2+2=", chosen="4", rejected="5", margin=2)
    assert three(found) == ("2+2=", "4", "5")
    assert found["margin"] == 2.0


def test_a_row_without_a_margin_says_none():
    assert pair(prompt="2+2=", chosen="4", rejected="5")["margin"] is None


def test_the_names_of_the_guides_are_read_and_said_once():
    found = parsed(
        preferences.PAIR,
        *[{"prompt": "2+2=", "preferred_response": "4", "dispreferred_response": "5"} for _ in range(3)],
    )
    assert [three(values) for values in found] == [("2+2=", "4", "5")] * 3
    assert preferences.remarks(found) == [
        "preferred_response -> chosen: the column is read under this name",
        "dispreferred_response -> rejected: the column is read under this name",
    ]


def test_our_names_stand_before_those_of_the_guides():
    found = pair(prompt="2+2=", chosen="4", rejected="5", preferred_response="x")
    assert three(found) == ("2+2=", "4", "5")
    assert preferences.remarks([found]) == []


def test_other_names_by_columns():
    found = parsed(
        preferences.PAIR, {"prompt": "2+2=", "good": "4", "bad": "5"}, columns={"chosen": "good", "rejected": "bad"}
    )
    assert three(found[0]) == ("2+2=", "4", "5")


@pytest.mark.parametrize(
    "values",
    [
        {"prompt": [ASK], "chosen": [RIGHT], "rejected": [WRONG]},
        {"prompt": [ASK], "chosen": "4", "rejected": "5"},
        {"prompt": [ASK], "chosen": [ASK, RIGHT], "rejected": [ASK, WRONG]},
        {"chosen": [ASK, RIGHT], "rejected": [ASK, WRONG]},
        {"prompt": "2+2", "chosen": [ASK, RIGHT], "rejected": [ASK, WRONG]},
    ],
    ids=["messages", "text behind messages", "prompt repeated", "implicit prompt", "prompt as text as well"],
)
def test_every_form_of_a_conversation_is_the_same_pair(values):
    assert three(pair(**values)) == ([ASK], [RIGHT], [WRONG])


def test_the_prompt_of_two_dialogues_is_all_that_they_begin_with():
    found = pair(chosen=[ASK, RIGHT, OTHER, RIGHT], rejected=[ASK, RIGHT, OTHER, WRONG, ASK, RIGHT])
    assert three(found) == ([ASK, RIGHT, OTHER], [RIGHT], [WRONG, ASK, RIGHT])


def test_equal_dialogues_part_before_their_last_answer():
    assert three(pair(chosen=[ASK, RIGHT], rejected=[ASK, RIGHT])) == ([ASK], [RIGHT], [RIGHT])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"prompt": "2+2=", "chosen": "4"}, "no `rejected`, found `prompt`, `chosen`; such as {\"prompt\": \"2+2=\""),
        ({"prompt": "2+2=", "answers": ["4"]}, "no `chosen` and no `rejected`, found `prompt`, `answers`"),
        ({"prompt": "2+2=", "chosen": "4", "rejected": 5}, "`rejected` is a number, expected text or messages"),
        ({"prompt": "", "chosen": "4", "rejected": "5"}, "`prompt` is empty"),
        ({"prompt": "2+2=", "chosen": "4", "rejected": [WRONG]}, "`rejected` is messages, the other columns are text"),
        ({"prompt": "2+2=", "chosen": "4", "rejected": "5", "margin": "1"}, "`margin` is '1', expected a number"),
        ({"prompt": "2+2=", "chosen": "4", "rejected": "5", "margin": -1}, "`margin` is -1, expected a number"),
        ({"prompt": "2+2=", "chosen": "4", "rejected": "5", "margin": True}, "`margin` is true, expected a number"),
        ({"chosen": [ASK, RIGHT], "rejected": [OTHER, WRONG]}, "`chosen` and `rejected` part at messages[0], which is not"),
        ({"chosen": [RIGHT], "rejected": [WRONG]}, "are messages without a prompt"),
        ({"prompt": "9+9", "chosen": [ASK, RIGHT], "rejected": [ASK, WRONG]}, "`prompt` is text, and no turn with which"),
        ({"prompt": [ASK], "chosen": [OTHER, RIGHT], "rejected": [WRONG]}, "`chosen` goes on with a turn of the user"),
        ({"prompt": [ASK], "chosen": [RIGHT, OTHER], "rejected": [WRONG]}, "`chosen` ends with a turn of the user"),
        ({"prompt": [ASK, RIGHT], "chosen": "4", "rejected": "5"}, "`prompt` ends with a turn of the assistant"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_pair_is_said_with_its_place(values, message):
    found = refused(preferences.PAIR, {"prompt": "1=", "chosen": "1", "rejected": "2"}, values)
    assert len(found) == 1
    assert found[0].startswith("a.jsonl:2: ")
    assert message in found[0]


@pytest.mark.parametrize(
    ("given", "label"),
    [(True, True), (False, False), (1, True), (0, False), ("true", True), ("False", False), (" TRUE ", True)],
)
def test_a_label_is_parsed_and_never_true_by_being_there(given, label):
    assert parsed(preferences.LABELLED, {"prompt": "2+2=", "completion": "4", "label": given})[0]["label"] is label


@pytest.mark.parametrize("given", ["yes", "", 2, -1, 0.5, None, [], {}])
def test_any_other_label_is_refused(given):
    found = refused(preferences.LABELLED, {"prompt": "2+2=", "completion": "4", "label": given})
    assert found[0].startswith(f"a.jsonl:1: `label` is {shown(given)}, expected true or false")


def test_a_row_without_a_label_is_refused_with_an_example():
    assert (
        "no column `label`, found `prompt`, `completion`"
        in refused(preferences.LABELLED, {"prompt": "2+2=", "completion": "4"})[0]
    )


def test_a_conversation_can_be_labelled():
    found = parsed(preferences.LABELLED, {"messages": [ASK, RIGHT], "label": False})[0]
    assert (found["messages"], found["label"]) == ([ASK, RIGHT], False)


def test_the_builtin_task_has_pairs_and_labels_that_are_right():
    for row in rows.read("builtin:addition", {}, preferences.PAIR, first=400):
        a, b = row.values["prompt"].rstrip("=").split("+")
        assert int(row.values["chosen"][::-1]) == int(a) + int(b)
        assert row.values["rejected"] != row.values["chosen"]
    labelled = rows.read("builtin:addition", {}, preferences.LABELLED, first=400)
    assert all(row.values["label"] == (row.values["completion"] == row.values["answer"]) for row in labelled)
    assert {row.values["label"] for row in labelled} == {True, False}
