"""Letters that wait: nothing is lost by a crash, nothing is taken twice, and their number is bounded."""

import json

import pytest

from trimtab import secrets
from trimtab.store import disk, outbox
from trimtab.store.outbox import Outbox


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "outbox" / "slack"


def waiting(box):
    """Keys, by taking them one after the other."""
    found = []
    while (letter := box.first()) is not None:
        found.append(letter[0])
        box.settle(letter[0])
    return found


def test_letters_come_in_their_order_and_survive_the_process(folder):
    box = Outbox(folder)
    assert [box.put(key, {"text": key}) for key in ("b", "a", "c")] == [True] * 3
    again = Outbox(folder)
    assert again.first() == ("b", {"text": "b"})
    assert waiting(again) == ["b", "a", "c"]
    assert len(again) == 0
    assert sorted(p.name for p in folder.iterdir()) == ["settled"]


def test_a_key_that_waits_or_is_settled_is_not_taken_again_by_any_process(folder):
    box = Outbox(folder)
    box.put("a", {})
    assert not box.put("a", {})
    box.settle("a")
    assert not box.put("a", {})
    assert not Outbox(folder).put("a", {})
    assert Outbox(folder).put("b", {})


def test_a_number_is_not_given_twice_so_the_order_holds_over_a_restart(folder):
    first = Outbox(folder)
    first.put("a", {})
    first.put("b", {})
    first.settle("a")
    second = Outbox(folder)
    second.put("c", {})
    assert waiting(Outbox(folder)) == ["b", "c"]


def test_of_too_many_the_oldest_are_dropped_and_counted(folder):
    box = Outbox(folder, most=2)
    for key in "abcd":
        box.put(key, {})
    assert box.dropped == 2
    assert waiting(box) == ["c", "d"]


def test_one_that_was_dropped_while_it_was_sent_leaves_the_others_alone(folder):
    box = Outbox(folder, most=1)
    box.put("a", {})
    key, _ = box.first()
    box.put("b", {})
    box.settle(key)
    assert waiting(box) == ["b"]


def test_a_damaged_letter_is_dropped_and_counted(folder):
    box = Outbox(folder)
    box.put("a", {})
    box.put("b", {})
    next(iter(sorted(folder.iterdir()))).write_text("{")
    assert waiting(Outbox(folder)) == ["b"]


def test_a_crash_between_remembering_and_removing_does_not_send_again(folder, monkeypatch):
    box = Outbox(folder)
    box.put("a", {})

    def dies(_):
        raise OSError("the process has died here")

    monkeypatch.setattr(disk, "remove_file", dies)
    with pytest.raises(OSError, match="died"):
        box.settle("a")
    monkeypatch.undo()
    assert Outbox(folder).first() is None
    assert sorted(p.name for p in folder.iterdir()) == ["settled"]


def test_a_letter_that_cannot_be_written_is_not_known(folder, monkeypatch):
    box = Outbox(folder)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk, "write", full)
    with pytest.raises(OSError, match="No space"):
        box.put("a", {})
    monkeypatch.undo()
    assert box.put("a", {"n": 1})
    assert box.first() == ("a", {"n": 1})


def test_what_a_dying_process_has_half_written_is_removed(folder):
    box = Outbox(folder)
    box.put("a", {})
    (folder / "000000000001-b.json.new").write_text("{")
    assert len(Outbox(folder)) == 1
    assert not list(folder.glob("*.new"))


def test_what_is_remembered_is_bounded(folder, monkeypatch):
    monkeypatch.setattr(outbox, "REMEMBERED", 10)
    folder.mkdir(parents=True)
    (folder / "settled").write_text("".join(f"k{n}\n" for n in range(11)))
    box = Outbox(folder)
    assert (folder / "settled").read_text().split() == [f"k{n}" for n in range(6, 11)]
    assert box.put("k0", {})
    assert not box.put("k10", {})


def test_no_secret_is_written_down(folder, monkeypatch):
    secrets.forget()  # what other tests have named
    monkeypatch.setenv("SOME_API_KEY", "never-to-be-seen-outbox-89")
    box = Outbox(folder)
    box.put("a", {"text": "it said never-to-be-seen-outbox-89"})
    [letter] = folder.glob("*.json")
    assert json.loads(letter.read_text()) == {"text": "it said ${env:SOME_API_KEY}"}
