"""The audit log: a chain in which no line can be changed unseen, whatever interrupts whoever writes it."""

import json
import multiprocessing

import pytest

from tests.faults.shim import FAULTS
from tests.faults.test_crash_points import cells
from trimtab.errors import StorageError
from trimtab.store import audit
from trimtab.store.audit import FIRST, AuditLog


def filled(path, count=5):
    for number in range(count):
        AuditLog(path).write("data", config={"a": number}, key="data.train", place=f"/rows/{number}")
    return path


def lines(path):
    return path.read_bytes().splitlines()


def test_a_log_says_who_did_what_when_and_with_which_configuration(tmp_path):
    reading = audit.read(filled(tmp_path / "audit.jsonl"))
    assert (reading.faults, reading.cut) == ([], [])
    assert [entry["number"] for entry in reading.lines] == [1, 2, 3, 4, 5]
    assert [entry["previous"] for entry in reading.lines] == [FIRST, *(entry["hash"] for entry in reading.lines[:-1])]
    assert {entry["config"] for entry in reading.lines} == {audit.fingerprint({"a": number}) for number in range(5)}
    first = reading.lines[0]
    assert "@" in first["who"]
    assert first["details"] == {"key": "data.train", "place": "/rows/0"}
    assert "T" in first["time"]


CHANGES = {
    "a word is changed": lambda found: [*found[:1], found[1].replace(b"/rows/1", b"/rows/9"), *found[2:]],
    "who is changed": lambda found: [found[0].replace(b'"who": "', b'"who": "x'), *found[1:]],
    "a line is taken out": lambda found: [*found[:2], *found[3:]],
    "the first is taken out": lambda found: found[1:],
    "two are exchanged": lambda found: [found[0], found[2], found[1], *found[3:]],
    "one is put in again": lambda found: [*found[:3], found[2], *found[3:]],
    "one is no line any more": lambda found: [*found[:2], b"{", *found[3:]],
    "one is cut in the middle": lambda found: [*found[:2], found[2][:-9], *found[3:]],
    "one is emptied": lambda found: [*found[:2], b"", *found[3:]],
    "a new one with a right hash of its own": lambda found: [
        *found[:2],
        rehashed(found[2], action="train"),
        *found[3:],
    ],
    "the last is made anew with another number": lambda found: [*found[:-1], rehashed(found[-1], number=9)],
}


def rehashed(line, **changes):
    entry = {**json.loads(line), **changes}
    return json.dumps({**entry, "hash": audit._hash(entry)}).encode()


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_any_kind_breaks_the_chain_and_nothing_is_added_behind_it(tmp_path, change):
    path = filled(tmp_path / "audit.jsonl")
    changed = b"".join(line + b"\n" for line in CHANGES[change](lines(path)))
    path.write_bytes(changed)
    assert audit.read(path).faults
    with pytest.raises(StorageError, match=r"audit\.jsonl:\d: .*; see `trimtab verify"):
        AuditLog(path).write("train")
    assert path.read_bytes() == changed


def test_every_byte_of_a_line_but_the_last_counts(tmp_path):
    path = filled(tmp_path / "audit.jsonl", 3)
    whole = path.read_bytes()
    first, second = (len(line) + 1 for line in lines(path)[:2])
    for place in range(0, first + second, 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert audit.read(path).faults, place


def test_a_line_that_a_crash_has_cut_is_ended_and_the_next_one_says_what_stood_there(tmp_path):
    path = filled(tmp_path / "audit.jsonl", 2)
    whole = path.read_bytes()
    for end in (b"{", b'{"number": 3, "ti', b"\0\0\0"):
        path.write_bytes(whole + end)
        assert audit.read(path).cut == [end]
        AuditLog(path).write("train")
        reading = audit.read(path)
        assert (reading.faults, reading.cut) == ([], [])
        assert [entry["action"] for entry in reading.lines] == ["data", "data", "mended", "train"]
        changed = path.read_bytes().replace(end + b"\n", end + b"?\n", 1)
        path.write_bytes(changed)
        assert audit.read(path).faults


def test_whatever_cuts_a_line_leaves_the_ones_before_it_and_a_chain_that_goes_on(tmp_path):
    def prepare(root):
        root.mkdir(parents=True)
        filled(root / "audit.jsonl", 2)

    def action(root):
        AuditLog(root / "audit.jsonl").write("train")

    count = 0
    for name, root in cells(tmp_path, prepare, action, FAULTS):
        reading = audit.read(root / "audit.jsonl")
        assert not reading.faults, name
        assert [entry["action"] for entry in reading.lines[:2]] == ["data", "data"], name
        action(root)
        action(root)
        reading = audit.read(root / "audit.jsonl")
        assert (reading.faults, reading.cut) == ([], []), name
        assert [entry["action"] for entry in reading.lines][-2:] == ["train", "train"], name
        count += 1
    assert count >= 12


def test_a_mending_that_is_cut_itself_is_mended(tmp_path):
    def prepare(root):
        root.mkdir(parents=True)
        path = filled(root / "audit.jsonl", 1)
        path.write_bytes(path.read_bytes() + b'{"number": 2')

    def action(root):
        AuditLog(root / "audit.jsonl").write("train")

    for name, root in cells(tmp_path, prepare, action, FAULTS):
        action(root)
        reading = audit.read(root / "audit.jsonl")
        assert (reading.faults, reading.cut) == ([], []), name
        assert reading.lines[-1]["action"] == "train", name


def test_two_processes_write_one_chain(tmp_path):
    path = tmp_path / "audit.jsonl"
    started = multiprocessing.get_context("fork")
    processes = [started.Process(target=filled, args=(path, 10)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    reading = audit.read(path)
    assert (len(reading.lines), reading.faults, reading.cut) == (30, [], [])
