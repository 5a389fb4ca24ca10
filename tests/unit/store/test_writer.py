"""File operations: a whole file, old or new at every moment."""

import pytest

from trimtab.store import writer


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "a.json"
    for data in (b"one", b"two"):
        writer.replace_bytes(path, data)
        assert path.read_bytes() == data
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_replacement_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    writer.replace_bytes(path, b"one")

    def fails(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writer.os, "fsync", fails)
    with pytest.raises(OSError, match="No space left"):
        writer.replace_bytes(path, b"two")
    assert path.read_bytes() == b"one"


def test_appending_keeps_what_is_there(tmp_path):
    for data in (b"one\n", b"two\n"):
        writer.append(tmp_path / "a", data)
    assert (tmp_path / "a").read_bytes() == b"one\ntwo\n"


def test_every_write_reaches_the_disk_before_it_returns(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(writer.os, "fsync", synced.append)
    writer.write_bytes(tmp_path / "a", b"")
    writer.append(tmp_path / "a", b"")
    assert len(synced) == 2
    writer.rename(tmp_path / "a", tmp_path / "b")
    assert len(synced) == 3, "the directory that holds the new name"
    writer.replace_bytes(tmp_path / "b", b"")
    assert len(synced) == 5


def test_a_replacement_is_another_file_so_that_a_reader_of_the_old_one_is_not_disturbed(tmp_path):
    path = tmp_path / "a.json"
    writer.replace_bytes(path, b"one")
    with path.open("rb") as reader:
        writer.replace_bytes(path, b"three")
        assert reader.read() == b"one"
    assert path.read_bytes() == b"three"
