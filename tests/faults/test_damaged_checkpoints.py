"""Whatever happens to the bytes of a checkpoint is found before one of them is used."""

import json
import random
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.run_states import Saving
from trimtab.errors import StorageError
from trimtab.store import checkpoints, manifests
from trimtab.store.checkpoints import CheckpointStore
from trimtab.store.journal import Journal
from trimtab.store.settings import Checkpoint

METRIC = "eval/reward/mean"


class State(Saving):
    """Two models' files, moments and counters."""

    def __init__(self, value=0):
        self.value = value
        self.is_touched = False

    def write_models(self, directory):
        for role in ("policy", "value"):
            (directory / role).mkdir()
            weights = {"w": torch.full((40,), float(self.value)), "b": torch.arange(9.0) + self.value}
            save_file(weights, directory / role / "model.safetensors")
            (directory / role / "config.json").write_text(json.dumps({"role": role, "value": self.value}))

    def read_models(self, directory):
        self.is_touched = True
        self.value = int(load_file(directory / "policy" / "model.safetensors")["w"][0])

    def tensors(self):
        return {"first_moment.w": torch.full((40,), self.value / 2)}

    def values(self):
        return {"step": self.value, "rate": 1e-05}

    def load(self, tensors, values):
        self.is_touched = True


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("damage") / "checkpoints"
    store = CheckpointStore(root, Checkpoint(rolling_every=1), max_steps=9, metric=METRIC)
    for step in (1, 2):
        store.save_if_due(step, State(step), {METRIC: 1e-05 * step})
    store.wait()
    return root


@pytest.fixture
def root(made, tmp_path):
    return shutil.copytree(made, tmp_path / "checkpoints")


def store_in(root, warn=lambda _: None, **more):
    rule = Checkpoint(rolling_every=1, async_=False, max_failed_saves=0)
    return CheckpointStore(root, rule, max_steps=9, metric=METRIC, warn=warn, **more)


def names(place):
    return sorted(str(p.relative_to(place)) for p in place.rglob("*") if p.is_file())


def found(root):
    """The step that is gone back to, if the damage is found and named once and no byte of the damaged one is used."""
    said = []
    store, state = store_in(root, said.append), State()
    step = store.restore(state)
    assert store.rejected == len(said) == 1
    assert said[0].startswith("checkpoint 2 is not used: ")
    assert state.value == step
    assert store.best() == 1, "a damaged checkpoint is not exported as the best"
    return step


def test_each_of_200_flipped_bits_over_all_files_is_found(root):
    chance = random.Random(0)
    files = names(root / "2")
    assert len(files) == 7
    for number in range(200):
        file = root / "2" / files[number % len(files)]
        data = file.read_bytes()
        place, bit = chance.randrange(len(data)), chance.randrange(8)
        file.write_bytes(data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :])
        assert store_in(root).fault(2) is not None, f"{file.name}, bit {bit} of byte {place}"
        if number % 10 == 0:
            assert found(root) == 1
        file.write_bytes(data)
    assert store_in(root).fault(2) is None


def test_another_spelling_of_the_same_manifest_is_found(root):
    file = root / "2" / "manifest.json"
    data = file.read_bytes()
    assert b"2e-05" in data
    file.write_bytes(data.replace(b"2e-05", b"2E-05"))
    assert found(root) == 1


@pytest.mark.parametrize("share", [0, 1, 2, 3, 4, 5, 6, 7])
def test_a_file_cut_at_any_eighth_is_found(root, share):
    for name in names(root / "2"):
        file = root / "2" / name
        data = file.read_bytes()
        file.write_bytes(data[: len(data) * share // 8])
        assert found(root) == 1, name
        file.write_bytes(data)


def test_a_file_that_is_gone_is_found(root):
    for name in names(root / "2"):
        file = root / "2" / name
        data = file.read_bytes()
        file.unlink()
        assert found(root) == 1, name
        file.write_bytes(data)


def test_files_that_have_changed_places_are_found(root):
    pairs = [(f"2/{role}/model.safetensors", f"1/{role}/model.safetensors") for role in ("policy", "value")]
    pairs += [("2/policy/config.json", "2/value/config.json"), ("2/state.json", "1/state.json")]
    for one, other in pairs:
        first, second = (root / one).read_bytes(), (root / other).read_bytes()
        (root / one).write_bytes(second)
        assert first != second
        assert found(root) == 1, f"{one} is that of {other}"
        (root / one).write_bytes(first)


def test_the_manifest_of_another_step_or_of_an_earlier_save_is_found(root):
    stale = (root / "2" / "manifest.json").read_bytes()
    (root / "2" / "manifest.json").write_bytes((root / "1" / "manifest.json").read_bytes())
    assert found(root) == 1
    store_in(root).save_if_due(2, State(3), {})
    assert store_in(root).fault(2) is None
    (root / "2" / "manifest.json").write_bytes(stale)
    assert store_in(root).fault(2) is not None


@pytest.mark.parametrize("number", [0, 2])
def test_a_checkpoint_of_another_format_is_refused_with_both_versions_named_and_not_passed_over(root, number):
    file = root / "2" / "manifest.json"
    manifest = {**json.loads(file.read_bytes()), "format": number, "trimtab": "7.8.9"}
    file.write_bytes(checkpoints._json({**manifest, "checksum": manifests.checksum(manifest)}))
    state = State()
    with pytest.raises(StorageError) as error:
        store_in(root).restore(state)
    assert f"2 has format {number}, this version reads format 1, written by trimtab 7.8.9; this is trimtab " in str(
        error.value
    )
    assert not state.is_touched
    assert store_in(root).steps() == [1, 2]


def test_a_state_that_lacks_something_is_refused_with_both_versions_named(root, monkeypatch):
    class Newer(State):
        def load(self, tensors, values):
            values["mixed"]

    with pytest.raises(StorageError, match=r"has no 'mixed'; .*: it is not one of this run, or not as it was written"):
        store_in(root).restore(Newer())
    monkeypatch.setattr(checkpoints, "__version__", "7.8.9")
    with pytest.raises(StorageError, match=r"has no 'mixed'; it was written by trimtab 0.1.0, this is trimtab 7\.8\.9"):
        store_in(root).restore(Newer())


def test_checkpoints_that_are_all_gone_are_missed_if_the_journal_tells_of_one(root):
    journal = Journal(root.parent / "journal.jsonl")
    journal.append("event", event="started", step=0)
    shutil.rmtree(root)
    assert store_in(root, journal=journal.path).restore(State()) is None
    journal.append("event", event="saved", step=7)
    with pytest.raises(StorageError, match="there is no checkpoint, but the journal tells of one of step 7") as error:
        store_in(root, journal=journal.path).restore(State())
    assert error.value.exit_code == 4
    assert "--fresh" in str(error.value)


# ---------------------------------------------------------------------------------------------------------- retention
def flip(file):
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def test_damaged_checkpoints_do_not_count_so_that_the_good_ones_stay(tmp_path):
    said = []
    store = CheckpointStore(
        tmp_path, Checkpoint(every=100, rolling_every=1, rolling_keep=2), max_steps=9, metric=METRIC, warn=said.append
    )
    for step, value in ((0, 0.0), (1, 0.9), (2, 0.1), (3, 0.2), (4, 0.3)):
        store.save_if_due(step, State(step), {METRIC: value})
    assert store.steps() == [0, 1, 3, 4]
    flip(tmp_path / "4" / "policy" / "model.safetensors")
    flip(tmp_path / "1" / "policy" / "model.safetensors")
    store.save_if_due(5, State(5), {METRIC: 0.1})
    assert store.steps() == [0, 1, 3, 4, 5], "3 is the newest good one beside 5; of the damaged none is removed"
    assert store.best() == 3
    assert (store.rejected, len(said)) == (2, 2)


def test_there_are_two_good_ones_while_a_third_is_saved(tmp_path):
    store = CheckpointStore(tmp_path, Checkpoint(every=1, keep=1, rolling_every=1, rolling_keep=1), max_steps=9)
    counts = []

    class Watching(State):
        def write_models(self, directory):
            other = store_in(tmp_path)
            counts.append(sum(other.fault(step) is None for step in other.steps()))
            super().write_models(directory)

    for step in range(1, 6):
        store.save_if_due(step, Watching(step), {})
    store.wait()
    assert counts == [0, 1, 2, 2, 2]


def test_bytes_are_read_once_unless_somebody_has_written(root, monkeypatch):
    read = []
    monkeypatch.setattr(checkpoints, "sha256", lambda p, real=checkpoints.sha256: read.append(p) or real(p))
    store = store_in(root)
    for _ in range(3):
        assert store.newest_good() == 2
    assert len(read) == 6
    flip(root / "2" / "state.json")
    assert store.newest_good() == 1


def test_a_value_that_is_not_a_number_is_never_the_best(root):
    from trimtab.store import retention

    values = {1: 0.5, 2: float("nan"), 3: float("inf")}
    assert retention.best({step: {"metrics": {METRIC: v}} for step, v in values.items()}, METRIC) == 1


# --------------------------------------------------------------------------------------------------------- free space
def leave_free(monkeypatch, count):
    usage = shutil.disk_usage("/")._replace(free=count)
    monkeypatch.setattr(checkpoints.shutil, "disk_usage", lambda _: usage)


def test_a_save_that_does_not_fit_is_refused_before_a_byte_is_written(root, monkeypatch):
    before = sorted(str(p) for p in root.rglob("*"))
    leave_free(monkeypatch, 500)
    with pytest.raises(
        StorageError, match=r"checkpoint of step 3: 0\.0 MiB are needed in .*, but 0\.0 MiB are free"
    ) as error:
        store_in(root).save_if_due(3, State(3), {})
    assert error.value.exit_code == 4
    assert sorted(str(p) for p in root.rglob("*")) == before
    with pytest.raises(StorageError, match="the next checkpoint: "):
        store_in(root).restore(State())
    leave_free(monkeypatch, 10**6)
    assert store_in(root).restore(State()) == 2
    assert store_in(root).save_if_due(3, State(3), {}) is not None


def test_the_first_save_is_held_against_what_weights_and_optimiser_will_take(tmp_path, monkeypatch):
    store = store_in(tmp_path / "a" / "checkpoints")
    store.expected_bytes = 3 * 2**30
    leave_free(monkeypatch, 2**30)
    with pytest.raises(
        StorageError, match=r"checkpoint of step 0: 3\.0 GiB are needed in .*, but 1\.0 GiB are free; free sp"
    ):
        store.save_if_due(0, State(), {})
    assert not (tmp_path / "a").exists()
