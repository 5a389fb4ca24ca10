"""The forms of rows that other programs write: told apart, counted, and read as our own."""

import json

import pytest

from trimtab.data import formats, rows
from trimtab.errors import DataError

TURN = {"role": "user", "content": "hi"}
VERL = {
    "data_source": "gsm",
    "prompt": [TURN],
    "reward_model": {"style": "rule", "ground_truth": "72"},
    "extra_info": {},
}


def read(tmp_path, *records, kind):
    file = tmp_path / "a.jsonl"
    file.write_text("\n".join(map(json.dumps, records)))
    return rows.read(str(file), {}, formats.REQUIRED[kind])


def faults(tmp_path, *records, kind):
    with pytest.raises(DataError) as error:
        read(tmp_path, *records, kind=kind)
    return str(error.value).replace(f"{tmp_path}/", "").splitlines()


@pytest.mark.parametrize(
    ("values", "name", "kind"),
    [
        ({"prompt": "a"}, "prompt", "prompts"),
        ({"prompt": [TURN]}, "prompt as messages", "prompts"),
        ({"prompt": "a", "completion": "b"}, "prompt/completion", "demonstrations"),
        ({"prompt": "a", "completion": "b", "label": True}, "prompt/completion/label", "labels"),
        ({"prompt": "a", "completion": "b", "label": "False"}, "prompt/completion/label", "labels"),
        ({"prompt": "a", "completion": "b", "label": "sport"}, "prompt/completion/label", "demonstrations"),
        ({"messages": [TURN]}, "messages", "prompts"),
        ({"messages": [TURN, {"role": "assistant", "content": "b"}]}, "messages", "demonstrations"),
        ({"messages": [TURN, {"role": "assistant", "content": "b"}], "label": 0}, "messages/label", "labels"),
        ({"messages": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}, "ShareGPT", "demonstrations"),
        (VERL, "verl", "prompts"),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, "prompt/chosen/rejected", "pairs"),
        ({"prompt": [TURN], "chosen": [], "rejected": []}, "prompt/chosen/rejected as messages", "pairs"),
        (
            {"prompt": "a", "preferred_response": "b", "dispreferred_response": "c"},
            "prompt/preferred_response/dispreferred_response",
            "pairs",
        ),
        ({"chosen": "\n\nHuman: a", "rejected": "\n\nHuman: a"}, "dialogues as text", "pairs"),
        ({"chosen": [TURN], "rejected": [TURN]}, "dialogues as messages", "pairs"),
    ],
)
def test_a_form_is_known_by_its_columns(values, name, kind):
    assert (formats.name_of(values), formats.kind_of(values)) == (name, kind)


def test_the_forms_of_a_file_are_counted_row_by_row(tmp_path):
    pair = {"prompt": "a", "chosen": "b", "rejected": "c"}
    named = {"prompt": "a", "preferred_response": "b", "dispreferred_response": "c"}
    found = read(tmp_path, pair, named, pair, kind="pairs")
    assert (
        formats.counted(found.formats) == "2 prompt/chosen/rejected, 1 prompt/preferred_response/dispreferred_response"
    )
    assert [row.values["rejected"] for row in found] == ["c", "c", "c"]


# ---------------------------------------------------------------------------------------------------------------- verl
def test_a_verl_row_has_its_ground_truth_as_answer(tmp_path):
    found = read(tmp_path, VERL, kind="prompts")[0].values
    assert (found["prompt"], found["answer"], found["data_source"]) == ([TURN], "72", "gsm")
    given = read(tmp_path, {**VERL, "answer": "own"}, kind="prompts")[0].values
    assert given["answer"] == "own"


@pytest.mark.parametrize(
    ("judge", "expected"),
    [
        ({"style": "model"}, "a.jsonl:1: `reward_model` has no `ground_truth`, found `style`"),
        ({"ground_truth": None}, "a.jsonl:1: `reward_model.ground_truth` is null, expected text or a number"),
    ],
)
def test_a_verl_row_without_a_ground_truth_is_a_fault(tmp_path, judge, expected):
    assert faults(tmp_path, {**VERL, "reward_model": judge}, kind="prompts") == [expected]


# ----------------------------------------------------------------------------------------------- dialogues as text (HH)
def dialogue(chosen, rejected):
    return {"chosen": chosen, "rejected": rejected}


def test_what_both_dialogues_begin_with_up_to_the_last_assistant_is_the_prompt(tmp_path):
    start = "\n\nHuman: Hi\n\nAssistant: Hello.\n\nHuman: What do sloths eat?\n\nAssistant:"
    found = read(tmp_path, dialogue(start + " Leaves.", start + " Leeks."), kind="pairs")[0].values
    assert (found["prompt"], found["chosen"], found["rejected"]) == (start, " Leaves.", " Leeks.")


def test_an_answer_that_goes_on_with_assistant_keeps_that(tmp_path):
    start = "\n\nHuman: Hi\n\nAssistant:"
    found = read(tmp_path, dialogue(start + " A\n\nAssistant: B", start + " C"), kind="pairs")[0].values
    assert (found["prompt"], found["chosen"]) == (start, " A\n\nAssistant: B")


def test_dialogues_that_are_the_same_and_empty_answers_are_read(tmp_path):
    start = "\n\nHuman: Hi\n\nAssistant:"
    found = read(tmp_path, dialogue(start + " x", start + " x"), dialogue(start, start + " y"), kind="pairs")
    assert [(row.values["chosen"], row.values["rejected"]) for row in found] == [(" x", " x"), ("", " y")]


@pytest.mark.parametrize(
    ("chosen", "rejected", "expected"),
    [
        (
            "\n\nHuman: a\n\nAssistant: x",
            "\n\nHuman: b\n\nAssistant: x",
            "a.jsonl:1: `chosen` and `rejected` part at character 10, before the first `Assistant:`; "
            "both answer the same prompt: begin them alike up to the last `Assistant:`",
        ),
        (
            "\n\nHuman: a\n\nAssistant: x\n\nHuman: b\n\nAssistant: y",
            "\n\nHuman: a\n\nAssistant: z",
            "a.jsonl:1: `chosen` goes on with a turn of the human behind the last `Assistant:` that both share; "
            "the sides part at character 24; they may differ in the last answer only",
        ),
        (
            "\n\nHuman: a\n\nAssistant: x",
            "just a text",
            "a.jsonl:1: no `prompt`, and `rejected` is no dialogue: it has no line that begins with `Assistant:`; "
            "add the column `prompt`, or name it: data.columns: {prompt: ...}",
        ),
    ],
)
def test_dialogues_that_do_not_answer_the_same_are_a_fault_at_their_line(tmp_path, chosen, rejected, expected):
    assert faults(tmp_path, dialogue(chosen, rejected), kind="pairs") == [expected]
