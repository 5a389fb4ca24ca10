"""The journal: what is damaged is named, what is whole is read, of two records of a step the later one counts."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.store import journal
from trimtab.store.journal import Journal


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal.jsonl"


def write(path, *steps, **facts):
    book = Journal(path)
    for step in steps:
        book.append("step", step=step, metrics={"reward/mean": step / 10}, **facts)
    return book


def test_what_is_written_is_read_back_with_its_time(path):
    book = write(path, 1, prompt_ids=(4, 5), text="a\u2028b\r\n你")
    book.append("event", event="saved", step=1)
    step, event = journal.read(path).records
    assert (step["kind"], step["step"], step["prompt_ids"], step["text"]) == ("step", 1, [4, 5], "a\u2028b\r\n你")
    assert step["time"] <= event["time"]
    assert path.read_bytes().count(b"\n") == 2


def test_a_line_states_the_length_and_the_sum_of_its_record(path):
    write(path, 1)
    line = json.loads(path.read_bytes())
    assert set(line) == {"length", "crc", "record"}
    assert len(line["crc"]) == 8
    assert path.read_bytes()[-line["length"] - 2 : -2] == json.dumps(line["record"], ensure_ascii=False).encode()


def test_a_journal_that_is_not_there_is_empty(path):
    assert journal.read(path) == journal.Reading(records=(), damaged_lines=())


def test_a_number_that_is_no_number_is_not_written(path):
    with pytest.raises(ValueError):
        write(path, 1, value=float("nan"))
    assert not path.exists()


def flipped(data, place, bit):
    changed = bytearray(data)
    changed[place] ^= 1 << bit
    return bytes(changed)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("journal") / "journal.jsonl"
    write(path, 1, 2, 3, prompt_ids=[7, 8], text="M\u00e9")
    return path, path.read_bytes(), journal.read(path).records


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_any_flipped_bit_is_noticed_and_costs_no_other_line(whole, data):
    path, good, records = whole
    place = data.draw(st.integers(0, len(good) - 1))
    changed = flipped(good, place, data.draw(st.integers(0, 7)))
    path.with_name("flipped").write_bytes(changed)
    reading = journal.read(path.with_name("flipped"))
    line = good[:place].count(b"\n") + 1
    if reading.records == records:
        assert reading.damaged_lines == ()
        column = place - good.rfind(b"\n", 0, place) - 1
        assert column < good.index(b'"record"'), "a change of the record itself is always found"
    elif good[place : place + 1] == b"\n":
        assert reading.damaged_lines == (line,), "two lines have become one"
        assert all(record in records for record in reading.records)
    else:
        assert line in reading.damaged_lines
        assert reading.records == tuple(r for number, r in enumerate(records, 1) if number != line)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60).filter(lambda junk: b"\n" not in junk and junk.strip()))
def test_a_line_of_anything_else_is_damaged(whole, junk):
    path, good, records = whole
    path.with_name("junk").write_bytes(junk + b"\n" + good)
    assert journal.read(path.with_name("junk")) == journal.Reading(records=records, damaged_lines=(1,))


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_torn_end_is_mended_so_that_the_next_record_stands_alone(path, cut):
    write(path, 1, 2)
    path.write_bytes(path.read_bytes()[:-cut])
    write(path, 3)
    reading = journal.read(path)
    kept = [1, 2, 3] if cut == 1 else [1, 3]
    assert [r["step"] for r in reading.records] == kept
    assert reading.damaged_lines == (() if cut == 1 else (2,))


def test_a_whole_journal_is_opened_without_a_change(path):
    write(path, 1)
    before = path.read_bytes()
    Journal(path)
    assert path.read_bytes() == before


def test_of_two_records_of_a_step_the_later_one_counts_and_a_resume_takes_back_what_was_behind_it(path):
    book = write(path, 1, 2, 3, run="first")
    book.append("eval", step=3, metrics={})
    book.append("event", event="resumed", step=1)
    for step in (2,):
        book.append("step", step=step, metrics={}, run="second")
    reading = journal.read(path)
    assert [(r["step"], r["run"]) for r in reading.steps()] == [(1, "first"), (2, "second")]
    assert reading.evaluations() == []
    assert len(reading.records) == 6, "nothing is deleted"


def test_other_events_take_nothing_back(path):
    book = write(path, 1, 2)
    book.append("event", event="saved", step=1)
    assert [r["step"] for r in journal.read(path).steps()] == [1, 2]


def test_steps_are_in_order_and_events_can_be_asked_for_by_name(path):
    book = write(path, 2, 1)
    for name in ("started", "saved", "saved", "finished"):
        book.append("event", event=name)
    reading = journal.read(path)
    assert [r["step"] for r in reading.steps()] == [1, 2]
    assert [e["event"] for e in reading.events("saved", "finished")] == ["saved", "saved", "finished"]
    assert len(reading.events()) == 4
