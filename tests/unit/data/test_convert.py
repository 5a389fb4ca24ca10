"""Between forms and containers and back: the same rows, or a refusal with the line."""

import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.data import containers, convert, formats, rows
from trimtab.errors import DataError, UserError

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)
COLUMNS = st.fixed_dictionaries({}, optional={"scene": TEXT, "number": st.integers(-(2**53), 2**53)})
TURNS = st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=2).map(
    lambda talk: [
        turn
        for asked, answered in talk
        for turn in ({"role": "user", "content": asked}, {"role": "assistant", "content": answered})
    ]
)
PAIR = st.builds(
    lambda p, c, r, m, others: {"prompt": p, "chosen": c, "rejected": r, **m, **others},
    TEXT,
    TEXT,
    TEXT,
    st.sampled_from([{}, {"margin": 0.5}]),
    COLUMNS,
)
DIALOGUES = st.builds(
    lambda turns, last, others: {"chosen": turns, "rejected": [*turns[:-1], {**turns[-1], "content": last}], **others},
    TURNS,
    TEXT,
    COLUMNS,
)
LABELLED = st.builds(
    lambda p, c, label, others: {"prompt": p, "completion": c, "label": label, **others},
    TEXT,
    TEXT,
    st.booleans(),
    COLUMNS,
)
TALK = st.builds(lambda turns, others: {"messages": turns, **others}, TURNS, COLUMNS)
VERL = st.builds(lambda turns, answer, others: {"prompt": turns[:1], "answer": answer, **others}, TURNS, TEXT, COLUMNS)
CASES = [
    (PAIR, "pairs", "trl"),
    (PAIR, "pairs", "seed"),
    (DIALOGUES, "pairs", "trl"),
    (DIALOGUES, "pairs", "messages"),
    (LABELLED, "labels", "kto"),
    (TALK, "demonstrations", "messages"),
    (TALK, "demonstrations", "trl"),
    (VERL, "prompts", "verl"),
]


def parsed(records, kind):
    lines = "\n".join(json.dumps(record) for record in records).encode()
    return rows.parse(lines, "a.jsonl", {}, formats.REQUIRED[kind])


def written(found, kind, schema, name, folder):
    """The rows as they are read from a file of that name."""
    file = folder / name
    with file.open("wb") as out:
        containers.write(out, name, convert.converted(found, kind, schema))
    return rows.read(str(file), {}, formats.REQUIRED[kind])


BROUGHT = ("data_source", "reward_model", "preferred_response", "dispreferred_response")


def meaning(row):
    """A row without the names that a form brings with it; a whole conversation however it is cut."""
    values = {
        n: v
        for n, v in row.values.items()
        if n not in ("data_source", "reward_model", "preferred_response", "dispreferred_response")
    }
    if isinstance(values.get("completion"), str) and isinstance(values["prompt"], list):
        values["messages"] = [*values["prompt"], {"role": "assistant", "content": values.pop("completion")}]
    return values


@pytest.mark.parametrize("name", ["b.jsonl", "b.jsonl.gz", "b.parquet"])
@pytest.mark.parametrize(("made", "kind", "schema"), CASES)
def test_rows_that_are_converted_are_read_as_they_were(tmp_path_factory, made, kind, schema, name):
    folder = tmp_path_factory.mktemp("convert")

    @settings(max_examples=15, deadline=None)
    @given(st.lists(made, min_size=1, max_size=4))
    def test(records):
        found = parsed(records, kind)
        several = [len(record.get("messages", ())) > 2 for record in records]
        if schema == "trl" and kind == "demonstrations" and any(several):
            return  # answers of several turns: see below
        assert [meaning(row) for row in written(found, kind, schema, name, folder)] == [meaning(row) for row in found]

    test()


def refused(records, kind, schema):
    with pytest.raises(DataError) as error:
        list(convert.converted(parsed(records, kind), kind, schema))
    return str(error.value).splitlines()


USER, ANSWER = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}


@pytest.mark.parametrize(
    ("record", "kind", "schema", "expected"),
    [
        ({"prompt": "a"}, "prompts", "seed", "the row is one of prompts, the form `seed` has pairs"),
        (
            {"chosen": [USER, ANSWER], "rejected": [USER, ANSWER]},
            "pairs",
            "seed",
            "the row is messages, the form `seed` has",
        ),
        (
            {"prompt": "a", "chosen": "b", "rejected": "c"},
            "pairs",
            "messages",
            "the row is text, the form `messages` has",
        ),
        (
            {"prompt": "a", "chosen": "b", "rejected": "c", "margin": 1},
            "pairs",
            "kto",
            "the pair has a `margin`, which",
        ),
        ({"prompt": "a", "answer": "b"}, "prompts", "verl", "the prompt is text, the form `verl` has messages"),
        ({"prompt": [USER]}, "prompts", "verl", "no column `answer`, which `verl` wants"),
        (
            {"prompt": "a", "chosen": "b", "rejected": "c"},
            "pairs",
            "verl",
            "the row is one of pairs, the form `verl` has",
        ),
        (
            {"prompt": [USER], "chosen": [ANSWER], "rejected": ""},
            "pairs",
            "messages",
            "`rejected` is empty, and has no turn",
        ),
        (
            {"messages": [USER, ANSWER, USER, ANSWER]},
            "demonstrations",
            "trl",
            "the conversation has several answers, of which the form `trl` has",
        ),
    ],
)
def test_what_a_form_cannot_say_is_refused_with_its_line(record, kind, schema, expected):
    assert refused([record], kind, schema)[0].startswith(f"a.jsonl:1: {expected}")


def test_all_rows_that_cannot_be_said_are_named_up_to_twenty():
    made = [{"prompt": "a", "chosen": "b", "rejected": "c", "margin": 1}] * 30
    assert len(refused(made, "pairs", "kto")) == 20


def test_a_pair_becomes_two_labelled_rows():
    found = list(
        convert.converted(parsed([{"prompt": "a", "chosen": "b", "rejected": "c", "x": 1}], "pairs"), "pairs", "kto")
    )
    assert found == [
        {"prompt": "a", "completion": "b", "label": True, "x": 1},
        {"prompt": "a", "completion": "c", "label": False, "x": 1},
    ]


def test_a_verl_row_has_the_names_that_verl_reads():
    found = list(
        convert.converted(parsed([{"prompt": [USER], "answer": "7", "level": 3}], "prompts"), "prompts", "verl")
    )
    judge = {"style": "rule", "ground_truth": "7"}
    assert found == [{"data_source": "unknown", "prompt": [USER], "reward_model": judge, "level": 3}]


def test_the_guides_names_take_the_place_of_ours():
    found = list(convert.converted(parsed([{"prompt": "a", "chosen": "b", "rejected": "c"}], "pairs"), "pairs", "seed"))
    assert found == [{"prompt": "a", "preferred_response": "b", "dispreferred_response": "c"}]


def test_the_same_rows_give_the_same_gzip():
    first, second = io.BytesIO(), io.BytesIO()
    for out in (first, second):
        containers.write(out, "a.jsonl.gz", [{"prompt": "a"}])
    assert first.getvalue() == second.getvalue()


def test_a_column_that_parquet_cannot_hold_is_refused():
    with pytest.raises(DataError, match=r"b\.parquet: column `x` cannot be one column of Parquet: .*; write \.jsonl"):
        containers.write(io.BytesIO(), "b.parquet", [{"x": 1}, {"x": "a"}])
    with pytest.raises(DataError, match=r"column `x` .* would not come back as it is"):  # 1 would become 1.0
        containers.write(io.BytesIO(), "b.parquet", [{"x": 1}, {"x": 2.5}])
    with pytest.raises(DataError, match=r"b\.parquet: cannot be Parquet: "):
        containers.write(io.BytesIO(), "b.parquet", [{"x": {}}])


def test_half_a_character_in_another_column_is_kept_or_refused(tmp_path):
    record = {"prompt": "a", "note": "\ud83d"}
    with (tmp_path / "b.jsonl").open("wb") as out:
        containers.write(out, "b.jsonl", [record])
    assert rows.read(str(tmp_path / "b.jsonl"), {}, ("prompt",))[0].values == record
    with pytest.raises(DataError, match="column `note` cannot be one column of Parquet"):
        containers.write(io.BytesIO(), "b.parquet", [record])


def test_a_name_that_says_no_container_is_refused():
    with pytest.raises(UserError, match=r"--to: b\.csv does not say what to write"):
        containers.must_be_known("b.csv")
