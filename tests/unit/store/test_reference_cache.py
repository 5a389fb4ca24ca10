"""Figures of the reference on the disk: whatever happens to a file, a figure is right or it is not there."""

import errno
import hashlib
import os
import threading

import pytest
import torch

from trimtab.store import disk, writer
from trimtab.store.reference_cache import FACTS, ReferenceCache, default_place

FACTS_HERE = {"weights": "a", "tokenizer": "b", "chat template": "c", "sampling.max_length": "64", "kernel": "cpu"}


def key(number):
    return hashlib.blake2b(str(number).encode(), digest_size=16).digest()


def figures(number):
    return torch.randn(number % 7, generator=torch.Generator().manual_seed(number))


def opened(place, *, facts=FACTS_HERE, **more):
    said = []
    cache = ReferenceCache(facts, place, tell=said.append, **more)
    cache.open()
    cache.said = said
    return cache


def filled(place, numbers=range(20), **more):
    cache = opened(place, **more)
    for number in numbers:
        cache.put(key(number), figures(number))
    cache.flush()
    return cache


def files(cache):
    return sorted(cache.directory.glob("*.safetensors"))


def test_what_one_process_has_computed_another_reads_to_the_last_bit(tmp_path):
    first = filled(tmp_path)
    second = opened(tmp_path)
    for number in range(20):
        assert torch.equal(second.get(key(number)), figures(number))
        assert torch.equal(first.get(key(number)), figures(number))
    assert second.get(key(20)) is None
    assert second.bytes == first.bytes == sum(4 * len(figures(n)) for n in range(20))
    assert second.said == [f"reference.cache: log-probs of 20 rows are known, in {second.directory}"]


def test_rows_that_are_not_written_yet_are_known_to_the_process_that_has_them(tmp_path):
    cache = opened(tmp_path)
    cache.put(key(3), figures(3))
    assert torch.equal(cache.get(key(3)), figures(3))
    assert files(cache) == []


def test_a_row_is_kept_as_it_was_first(tmp_path):
    cache = opened(tmp_path)
    cache.put(key(1), torch.ones(2))
    cache.put(key(1), torch.zeros(2))
    cache.flush()
    cache.put(key(1), torch.zeros(2))
    assert torch.equal(cache.get(key(1)), torch.ones(2))
    assert cache.bytes == 8


def test_what_is_put_must_not_change_what_is_kept(tmp_path):
    cache, row = opened(tmp_path), torch.ones(3)
    cache.put(key(1), row)
    row.zero_()
    assert torch.equal(cache.get(key(1)), torch.ones(3))


def test_many_small_writes_leave_few_files(tmp_path):
    cache = opened(tmp_path, flush_bytes=1)
    for number in range(1, 100):
        cache.put(key(number), figures(number))
        assert all(cache.get(key(n)) is not None for n in range(1, number + 1))
    assert 1 <= len(files(cache)) <= 7
    again = opened(tmp_path)
    assert all(torch.equal(again.get(key(n)), figures(n)) for n in range(1, 100))


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
@pytest.mark.parametrize("harm", ["cut", "changed", "emptied"])
def test_a_damaged_file_is_told_of_and_its_rows_are_computed_again(tmp_path, harm, share):
    filled(tmp_path, range(10))
    (only,) = files(opened(tmp_path))
    filled(tmp_path, range(10, 15))
    data = only.read_bytes()
    place = int(share * len(data))
    changed = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
    only.write_bytes({"cut": data[:place], "changed": changed, "emptied": b""}[harm])
    cache = opened(tmp_path)
    assert [cache.get(key(n)) is not None for n in range(15)] == [False] * 10 + [True] * 5
    assert cache.damaged == 1
    assert cache.said[0] == f"reference.cache: {only} is not as it was written; its rows are computed again"
    assert not only.exists()
    for number in range(10):
        cache.put(key(number), figures(number))
    cache.flush()
    assert len(opened(tmp_path)) == 15


def test_a_file_of_another_fingerprint_is_not_read(tmp_path):
    other = filled(tmp_path, facts={**FACTS_HERE, "weights": "z"})
    cache = opened(tmp_path)
    (path,) = files(other)
    (cache.directory / path.name).write_bytes(path.read_bytes())
    cache.refresh()
    assert len(cache) == 0
    assert cache.damaged == 1


def test_a_file_with_a_right_name_and_other_contents_is_not_read(tmp_path):
    cache = opened(tmp_path)
    data = b"not what is written here"
    (cache.directory / f"{hashlib.sha256(data).hexdigest()}.safetensors").write_bytes(data)
    cache.refresh()
    assert cache.damaged == 1


def test_a_file_that_its_writer_has_merged_meanwhile_is_passed_over(tmp_path):
    cache = opened(tmp_path)
    cache._read(cache.directory / "gone.safetensors")
    assert (cache.damaged, cache.said) == (0, [])


@pytest.mark.parametrize("name", FACTS_HERE)
def test_with_another_fact_nothing_is_known_and_the_line_names_it(tmp_path, name):
    old = filled(tmp_path)
    cache = opened(tmp_path, facts={**FACTS_HERE, name: "other"})
    assert len(cache) == 0
    assert cache.said == [
        f"reference.cache: log-probs are computed anew: those in {old.directory} are of another {name}"
    ]


def test_the_nearest_figures_are_named_and_those_of_another_model_are_not(tmp_path):
    filled(tmp_path, facts=dict.fromkeys(FACTS_HERE, "other"))
    assert opened(tmp_path).said == []
    filled(tmp_path, facts={**FACTS_HERE, "weights": "x", "kernel": "y"})
    for age, name in enumerate(opened(tmp_path)._others()):
        os.utime(tmp_path / name / FACTS, (1e9 - age, 1e9 - age))
    os.utime(opened(tmp_path).directory / FACTS, (1e9, 1e9))
    nearest = filled(tmp_path, facts={**FACTS_HERE, "kernel": "z"})
    filled(tmp_path, facts={**FACTS_HERE, "weights": "x", "tokenizer": "y"})
    (line,) = opened(tmp_path, facts={**FACTS_HERE, "kernel": "w"}).said
    assert line.endswith(f"those in {nearest.directory} are of another kernel")


def test_what_is_kept_is_bounded(tmp_path):
    cache = opened(tmp_path, max_bytes=40)
    for number in range(6, 100, 7):  # 6 figures each
        cache.put(key(number), figures(number))
    cache.flush()
    assert cache.bytes == 24
    assert len(opened(tmp_path)) == 1
    for number in range(106, 130, 7):
        filled(tmp_path, [number])
    assert opened(tmp_path, max_bytes=40).bytes <= 40


def test_of_a_place_that_is_full_what_was_unused_for_the_longest_goes_first(tmp_path):
    caches = {name: filled(tmp_path, facts={**FACTS_HERE, "weights": name}) for name in "abc"}
    for age, name in enumerate("bca"):  # b was used last
        os.utime(caches[name].directory / FACTS, (1e9 - age, 1e9 - age))
    mine = tmp_path / "notes.txt"
    mine.write_text("somebody's")
    size = sum(p.stat().st_size for p in caches["a"].directory.iterdir())
    fresh = {**FACTS_HERE, "weights": "d"}
    cache = opened(tmp_path, facts=fresh, max_bytes=size, place_bytes=3 * size + 10)
    assert [caches[name].directory.exists() for name in "abc"] == [False, True, True]
    assert f"reference.cache: {caches['a'].directory} is removed, unused for the longest time" in cache.said
    assert mine.exists()


def test_a_reader_makes_its_figures_the_last_used(tmp_path):
    cache = filled(tmp_path)
    os.utime(cache.directory / FACTS, (1e9, 1e9))
    opened(tmp_path)
    assert (cache.directory / FACTS).stat().st_mtime > 2e9 - 1e9


@pytest.mark.parametrize("operation", ["write", "sync", "rename"])
def test_where_nothing_can_be_written_the_run_goes_on_and_says_so_once(tmp_path, monkeypatch, operation):
    cache = opened(tmp_path)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(disk, operation, full)
    for number in range(1, 4):
        cache.put(key(number), figures(number))
        cache.flush()
    monkeypatch.undo()
    assert all(torch.equal(cache.get(key(n)), figures(n)) for n in range(1, 4))
    assert files(cache) == []
    assert cache.said == [
        f"reference.cache: cannot write to {tmp_path}: No space left on device; nothing is kept for other runs"
    ]


def test_a_directory_that_another_process_has_removed_is_made_again(tmp_path):
    cache = opened(tmp_path)
    writer.remove_tree(cache.directory)
    cache.put(key(1), figures(1))
    cache.flush()
    assert len(opened(tmp_path)) == 1


def test_a_directory_that_is_removed_while_a_file_is_written_is_made_again(tmp_path, monkeypatch):
    cache, rename = opened(tmp_path), writer.rename

    def removed(*names):
        monkeypatch.setattr(writer, "rename", rename)
        writer.remove_tree(cache.directory)
        raise FileNotFoundError

    monkeypatch.setattr(writer, "rename", removed)
    cache.put(key(1), figures(1))
    cache.flush()
    assert cache.said == []
    assert len(opened(tmp_path)) == 1


def test_what_a_killed_process_has_left_is_taken_away_when_it_is_old(tmp_path):
    cache = opened(tmp_path)
    old, young = cache.directory / ".a.new", cache.directory / ".b.new"
    old.write_text("half"), young.write_text("half")
    os.utime(old, (1e9, 1e9))
    opened(tmp_path)
    assert (old.exists(), young.exists()) == (False, True)


def test_several_writers_at_once_lose_nothing_and_damage_nothing(tmp_path):
    caches = [opened(tmp_path, flush_bytes=1) for _ in range(4)]

    def work(cache, start):
        for number in range(start, start + 40):  # half of them are another's as well
            cache.put(key(number), figures(number))
            if number % 5 == 0:
                cache.refresh()
        cache.flush()

    threads = [threading.Thread(target=work, args=(cache, 20 * n)) for n, cache in enumerate(caches)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    whole = opened(tmp_path)
    assert all(torch.equal(whole.get(key(n)), figures(n)) for n in range(100))
    for cache in caches:
        assert cache.damaged == 0
        assert not any("not as it was written" in line for line in cache.said)
        cache.refresh()
        assert all(torch.equal(cache.get(key(n)), figures(n)) for n in range(100))


def test_the_place_is_the_users_cache_unless_a_variable_names_another(tmp_path, monkeypatch):
    monkeypatch.setenv("TRIMTAB_CACHE", str(tmp_path))
    assert default_place() == tmp_path / "reference"
    monkeypatch.delenv("TRIMTAB_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_place() == tmp_path / "trimtab" / "reference"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_place() == tmp_path / ".cache" / "trimtab" / "reference"
