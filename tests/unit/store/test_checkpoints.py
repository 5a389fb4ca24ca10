"""Checkpoints: whole or not there, checked before they are used, the good ones never lost."""

import errno
import json
import os
import stat

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from tests.run_states import Saving
from trimtab.errors import StorageError
from trimtab.store import disk, retention, writer
from trimtab.store.checkpoints import CheckpointStore
from trimtab.store.settings import Checkpoint


class FakeRun(Saving):
    """A `RunState` of two small tensors."""

    def __init__(self, value=0.0):
        self.weights = {"w": torch.full((3,), value)}
        self.moments = {"w.first": torch.full((3,), value / 2)}
        self.facts = {"step": value}

    def write_models(self, directory):
        (directory / "policy").mkdir()
        save_file(self.weights, directory / "policy" / "model.safetensors")
        (directory / "policy" / "config.json").write_text("{}")

    def read_models(self, directory):
        self.weights = load_file(directory / "policy" / "model.safetensors")

    def tensors(self):
        return self.moments

    def values(self):
        return self.facts

    def load(self, tensors, values):
        self.moments, self.facts = dict(tensors), dict(values)


@pytest.fixture
def warnings():
    return []


@pytest.fixture(params=[True, False], ids=["beside", "in place"])
def store(request, tmp_path, warnings):
    rule = Checkpoint(every=100, keep=2, rolling_every=1, async_=request.param, max_failed_saves=0)
    return CheckpointStore(
        tmp_path / "checkpoints", rule, max_steps=10, metric="eval/reward/mean", warn=warnings.append
    )


def save(store, *steps, **metrics):
    for step in steps:
        put(store, step, FakeRun(float(step)), metrics)


def put(store, *of, **more):
    """Save, and wait until it is there; the failure of a save that nobody waits for comes with the next step."""
    seconds = store.save_if_due(*of, **more)
    store.wait()
    if store.failed:
        store.save_if_due(1, None, {})
    return seconds


def files(root):
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def test_a_restored_state_is_the_saved_one(store):
    save(store, 0, 3)
    run = FakeRun()
    assert store.restore(run) == 3
    assert torch.equal(run.weights["w"], torch.full((3,), 3.0))
    assert torch.equal(run.moments["w.first"], torch.full((3,), 1.5))
    assert run.facts == {"step": 3.0}


def test_a_restored_state_shares_no_memory_with_the_stored_one(store):
    save(store, 3)
    before = files(store.directory)
    run, other = FakeRun(), FakeRun()
    store.restore(run)
    store.restore(other)
    run.weights["w"].add_(1)
    run.moments["w.first"].add_(1)
    assert files(store.directory) == before
    assert other.weights["w"].tolist() == [3.0] * 3
    assert store.fault(3) is None


def test_a_saved_state_does_not_change_with_the_run(store):
    run = FakeRun(2.0)
    put(store, 2, run, {})
    run.weights["w"].zero_()
    run.moments["w.first"].zero_()
    other = FakeRun()
    store.restore(other)
    assert other.weights["w"].tolist() == [2.0] * 3


def test_an_empty_store_restores_nothing(store, tmp_path):
    assert store.restore(FakeRun()) is None
    assert store.newest_good() is None
    (tmp_path / "checkpoints").mkdir()
    assert store.restore(FakeRun()) is None


@pytest.mark.parametrize(
    ("step", "last", "is_due"),
    [(0, False, True), (1, False, False), (5, False, True), (7, False, True), (8, False, False), (8, True, True)],
)
def test_a_step_is_saved_if_it_is_rolling_kept_or_last(tmp_path, step, last, is_due):
    store = CheckpointStore(tmp_path, Checkpoint(every=7, rolling_every=5), max_steps=100)
    assert (put(store, step, FakeRun(), {}, last=last) is not None) == is_due
    assert store.steps() == ([step] if is_due else [])


def test_by_itself_it_rolls_fifty_times_in_a_run(tmp_path):
    assert CheckpointStore(tmp_path, Checkpoint(), max_steps=1000).rolling_every == 20
    assert CheckpointStore(tmp_path, Checkpoint(), max_steps=10).rolling_every == 1


def test_the_manifest_lists_every_other_file(store):
    save(store, 4, **{"eval/reward/mean": 0.5})
    manifest = json.loads((store.directory / "4" / "manifest.json").read_text())
    assert manifest["files"].keys() == files(store.directory / "4").keys() - {"manifest.json"}
    assert (manifest["format"], manifest["step"], manifest["metrics"]) == (1, 4, {"eval/reward/mean": 0.5})


def test_a_step_saved_again_replaces_the_old_one(store):
    put(store, 2, FakeRun(1.0), {})
    put(store, 2, FakeRun(9.0), {})
    run = FakeRun()
    assert store.restore(run) == 2
    assert run.facts == {"step": 9.0}
    assert sorted(p.name for p in store.directory.iterdir()) == ["2"]


@pytest.mark.parametrize("name", [".3.new", ".3.old"])
def test_what_a_crash_left_behind_is_ignored_and_does_not_stop_the_next_save(store, name):
    save(store, 2)
    (store.directory / name / "policy").mkdir(parents=True)
    (store.directory / name / "policy" / "model.safetensors").write_bytes(b"torn")
    assert store.steps() == [2]
    assert store.newest_good() == 2
    save(store, 3)
    put(store, 3, FakeRun(8.0), {})
    run = FakeRun()
    assert store.restore(run) == 3
    assert run.facts == {"step": 8.0}
    assert sorted(p.name for p in store.directory.iterdir()) == ["2", "3"]


@pytest.mark.parametrize(
    ("moment", "call"),
    [("write", 1), ("write", 2), ("fill", 1), ("sync", 1), ("sync", 2), ("sync", 3), ("rename", 1)],
)
def test_a_failed_write_leaves_the_old_checkpoints_as_they_were(store, monkeypatch, moment, call):
    save(store, 1, 2)
    before = files(store.directory)
    calls, real = [], getattr(disk, moment)

    def fails(*arguments):
        calls.append(arguments)
        if len(calls) == call:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*arguments)

    monkeypatch.setattr(disk, moment, fails)
    with pytest.raises(StorageError) as error:
        save(store, 3)
    assert error.value.exit_code == 4
    assert str(error.value) == f"checkpoint of step 3: cannot write to {store.directory}: No space left on device"
    assert files(store.directory) == before, "what a failed save has written is taken away at once"
    monkeypatch.undo()
    assert store.newest_good() == 2
    store.save_if_due(3, FakeRun(3.0), {}, last=True)
    assert (store.newest_good(), store.failed) == (3, 0)


def test_a_disk_that_is_full_while_weights_are_written_is_a_storage_error_too(store):
    run = FakeRun()

    def write_models(_):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    run.write_models = write_models
    with pytest.raises(StorageError, match=r"checkpoint of step 1: .*No space left on device"):
        put(store, 1, run, {})


def test_a_checkpoint_with_a_damaged_file_is_named_and_the_one_before_is_used(store, warnings):
    save(store, 0, 1, 2)
    weights = store.directory / "2" / "policy" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    run = FakeRun()
    assert store.restore(run) == 1
    assert run.facts == {"step": 1.0}
    assert len(warnings) == 1
    assert warnings[0].startswith(f"checkpoint 2 is not used: {weights} has SHA-256 ")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda place: (place / "state.json").unlink(), "state.json is missing"),
        (lambda place: (place / "state.json").write_bytes(b"{}"), "state.json has 2 bytes, expected "),
        (lambda place: (place / "manifest.json").unlink(), "manifest.json is missing or cannot be read"),
        (lambda place: (place / "manifest.json").write_bytes(b"{"), "manifest.json is missing or cannot be read"),
        (lambda place: (place / "manifest.json").write_bytes(b"[]"), "manifest.json is missing or cannot be read"),
        (lambda place: (place / "manifest.json").write_bytes(b"{}"), "has format None, this version reads format 1"),
        (lambda place: edit(place, metrics={"eval/reward/mean": 9.9}), "manifest.json is not as it was written"),
        (lambda place: edit(place, format=2), "has format 2, this version reads format 1"),
        (lambda place: edit(place, step=1), "manifest.json is not as it was written"),
        (lambda place: copy_manifest(place, of=1), "manifest.json is of step 1"),
    ],
)
def test_the_fault_of_a_checkpoint_is_named(store, warnings, damage, message):
    save(store, 1, 2)
    damage(store.directory / "2")
    assert message in store.fault(2)
    assert store.newest_good() == 1
    assert message in warnings[0]


def edit(place, **changes):
    path = place / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def copy_manifest(place, of):
    (place / "manifest.json").write_bytes((place.parent / str(of) / "manifest.json").read_bytes())


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    store = CheckpointStore(tmp_path_factory.mktemp("saved"), Checkpoint(), max_steps=10)
    save(store, 0)
    return store, files(store.directory / "0")


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_flipped_bit_of_a_file_that_holds_state_is_found(saved, data):
    store, good = saved
    name = data.draw(st.sampled_from(sorted(good.keys() - {"manifest.json"})))
    place = data.draw(st.integers(0, len(good[name]) - 1))
    changed = bytearray(good[name])
    changed[place] ^= 1 << data.draw(st.integers(0, 7))
    file = store.directory / "0" / name
    file.write_bytes(changed)
    try:
        assert f"{file} has SHA-256" in store.fault(0)
    finally:
        file.write_bytes(good[name])


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_flipped_bit_of_the_manifest_is_a_fault_or_does_no_harm_but_never_a_crash(saved, data):
    store, good = saved
    changed = bytearray(good["manifest.json"])
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    file = store.directory / "0" / "manifest.json"
    file.write_bytes(changed)
    try:
        if store.fault(0) is not None:
            with pytest.raises(StorageError):
                store.newest_good()
        store.best()
    finally:
        file.write_bytes(good["manifest.json"])


def test_it_is_a_storage_error_if_no_checkpoint_is_good(store, warnings):
    save(store, 0, 1)
    for step in (0, 1):
        (store.directory / str(step) / "state.json").unlink()
    with pytest.raises(StorageError) as error:
        store.restore(FakeRun())
    assert error.value.exit_code == 4
    assert f"{store.directory}: none of 2 checkpoints is good" in str(error.value)
    assert "start over with --fresh, which keeps this run under another name" in str(error.value)
    assert len(warnings) == 2


def test_a_rank_that_does_not_write_waits_before_it_goes_on_and_writes_nothing(tmp_path):
    waited = []
    reader = CheckpointStore(tmp_path, Checkpoint(), max_steps=5, is_writer=False, barrier=lambda: waited.append(1))
    assert reader.restore(FakeRun()) is None
    assert waited == [1]
    assert put(reader, 0, FakeRun(), {}) is None
    assert waited == [1], "ranks must not wait in a save: they may differ in what they see on the disk"
    assert reader.steps() == []


def test_files_get_the_mode_of_the_umask_whatever_a_library_gave_them(store):
    class Private(FakeRun):
        def write_models(self, directory):
            super().write_models(directory)
            (directory / "policy" / "model.safetensors").chmod(0o600)

    before = os.umask(0o027)
    try:
        put(store, 1, Private(), {})
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(p.stat().st_mode) for p in (store.directory / "1").rglob("*") if p.is_file()}
    assert modes == {0o640}


def test_other_names_in_the_directory_are_no_checkpoints(store):
    save(store, 5)
    (store.directory / "notes").mkdir()
    (store.directory / "7").write_text("a file")
    assert store.steps() == [5]


# ---------------------------------------------------------------------------------------------------------- retention
def test_old_rolling_checkpoints_go_and_the_best_stays(store):
    put(store, 0, FakeRun(), {})
    put(store, 1, FakeRun(), {"eval/reward/mean": 0.9})
    for step in range(2, 9):
        put(store, step, FakeRun(float(step)), {"eval/reward/mean": 0.1})
    assert store.steps() == [0, 1, 6, 7, 8]
    assert store.best() == 1
    assert sorted(p.name for p in store.directory.iterdir()) == ["0", "1", "6", "7", "8"]


def test_without_an_evaluation_the_newest_is_the_best(store):
    assert store.best() is None
    save(store, 0, 1, 2)
    assert store.best() == 2


@pytest.mark.parametrize(
    ("metric", "values", "best"),
    [
        ("eval/reward/mean", {1: 0.2, 2: 0.5, 3: 0.4}, 2),
        ("eval/loss/nll", {1: 0.2, 2: 0.5, 3: 0.4}, 1),
        ("eval/reward/mean", {1: 0.5, 2: 0.5, 3: 0.4}, 2),
        ("eval/loss/nll", {1: 0.5, 2: 0.5}, 2),
        ("eval/other", {1: 0.5}, None),
    ],
)
def test_the_best_has_the_highest_reward_or_the_lowest_loss_and_of_equal_ones_the_latest_wins(metric, values, best):
    name = metric if metric != "eval/other" else "eval/reward/mean"
    manifests = {0: {"metrics": {}}, **{step: {"metrics": {name: value}} for step, value in values.items()}}
    assert retention.best(manifests, metric) == best


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(st.integers(0, 200), st.none() | st.floats(-1, 1), max_size=30),
    st.integers(1, 50), st.integers(1, 6), st.integers(1, 6),
    st.sampled_from(["eval/reward/mean", "eval/loss/nll", ""]),
)  # fmt: skip
def test_step_0_the_newest_two_and_the_best_always_stay(values, every, keep, rolling_keep, metric):
    manifests = {s: {"metrics": {} if v is None else {metric: v}} for s, v in values.items()}
    rule = Checkpoint(every=every, keep=keep, rolling_keep=rolling_keep)
    gone = set(retention.superfluous(manifests, rule, 1, metric))
    steps = sorted(manifests)
    assert gone <= set(steps)
    assert gone.isdisjoint({0, *steps[-2:], retention.best(manifests, metric)})
    assert gone.isdisjoint([s for s in steps if s and s % every == 0][-keep:])
    assert len(set(steps) - gone) <= keep + max(rolling_keep, 2) + 2


def test_the_best_evaluation_so_far_is_saved_though_no_save_is_due(tmp_path):
    store = CheckpointStore(tmp_path, Checkpoint(rolling_every=10), max_steps=100, metric="eval/reward/mean")
    for step, value in enumerate([0.1, 0.3, 0.3, 0.2, 0.4]):
        put(store, step, FakeRun(float(step)), {"eval/reward/mean": value})
    put(store, 5, FakeRun(), {})
    assert store.steps() == [0, 1, 4]
    assert store.best() == 4


def removal_cut_off(store, monkeypatch, at):
    """Six saves, the last of which is cut off before or in removing what is superfluous."""
    save(store, 0, 1, 2, 3, 4)
    store._save(5, FakeRun(5.0).snapshot(is_copied=False), {}, policy_only=False)
    if at == "in it":

        def dies(path):
            raise OSError(errno.EIO, "cut off")

        with monkeypatch.context() as patch:
            patch.setattr(writer, "remove_tree", dies)
            with pytest.raises(OSError, match="cut off"):
                store._prune()


@pytest.mark.parametrize("at", ["before it", "in it"])
def test_a_removal_that_was_cut_off_behind_the_last_save_is_finished_by_the_next_start(store, monkeypatch, at):
    removal_cut_off(store, monkeypatch, at)
    left = {p.name for p in store.directory.iterdir()}
    assert any(name.endswith(".gone") for name in left) == (at == "in it")
    assert store.restore(FakeRun()) == 5
    undisturbed = CheckpointStore(store.directory.parent / "other", store.settings, max_steps=10, metric=store.metric)
    save(undisturbed, 0, 1, 2, 3, 4, 5)
    assert {p.name for p in store.directory.iterdir()} == {p.name for p in undisturbed.directory.iterdir()}


def test_a_superfluous_checkpoint_that_cannot_be_removed_keeps_no_run_from_going_on(store, monkeypatch, warnings):
    removal_cut_off(store, monkeypatch, "in it")

    def fails(path):
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(writer, "remove_tree", fails)
    assert store.restore(FakeRun()) == 5
    assert warnings[-1].endswith("what is superfluous cannot be removed: Permission denied")
