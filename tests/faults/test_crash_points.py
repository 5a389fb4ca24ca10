"""Whatever durable is written: at each of its operations the process dies, the disk fails, or the power goes.

Each cell is one operation and one fault. Behind it there is the old state or the new one, whole, and the next save works.
"""

import json
import shutil
from contextlib import suppress

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.faults.shim import ERRORS, FAULTS, LOSSES, Killed, Shim
from tests.runs import small
from trimtab.errors import StorageError
from trimtab.operate import finish
from trimtab.store import disk, journal
from trimtab.store.checkpoints import CheckpointStore
from trimtab.store.recorder import read_samples, write_samples
from trimtab.store.run_directory import RunDirectory
from trimtab.store.settings import Checkpoint
from trimtab.types import Sample

RULE = Checkpoint(every=100, rolling_every=1, rolling_keep=2)
METRIC = "eval/reward/mean"


class State:
    """Two files of a model, moments and counters that all say the same number."""

    def __init__(self, value=-1):
        self.weights = {"w": torch.full((3,), float(value))}
        self.moments = {"first_moment.w": torch.full((3,), float(value))}
        self.facts = {"value": value}

    def write_models(self, directory):
        (directory / "policy").mkdir()
        (directory / "policy" / "config.json").write_text("{}")
        save_file(self.weights, directory / "policy" / "model.safetensors")

    def read_models(self, directory):
        self.weights = load_file(directory / "policy" / "model.safetensors")

    def tensors(self):
        return self.moments

    def values(self):
        return self.facts

    def load(self, tensors, values):
        self.moments, self.facts = tensors, values

    def said(self):
        found = {*self.weights["w"].tolist(), *self.moments["first_moment.w"].tolist(), float(self.facts["value"])}
        assert len(found) == 1, f"a mix: {found}"
        return found.pop()


class Copied:
    """The bytes of a real run's checkpoint, under another value."""

    def __init__(self, place, value=-1):
        self.place, self.facts = place, {"value": value}

    def write_models(self, directory):
        shutil.copytree(self.place / "policy", directory / "policy")

    def read_models(self, directory):
        files = {p.name: p.read_bytes() for p in (self.place / "policy").iterdir()}
        assert {p.name: p.read_bytes() for p in (directory / "policy").iterdir()} == files

    def tensors(self):
        return load_file(self.place / "optimizer.safetensors")

    def values(self):
        return self.facts

    def load(self, tensors, values):
        wanted = self.tensors()
        assert all(torch.equal(wanted[name], tensor) for name, tensor in tensors.items())
        assert tensors.keys() == wanted.keys()
        self.facts = values

    def said(self):
        return float(self.facts["value"])


def store_in(root):
    return CheckpointStore(root / "checkpoints", RULE, max_steps=9, metric=METRIC)


def operations_of(root, action):
    with pytest.MonkeyPatch.context() as patch:
        shim = Shim(root).install(patch)
        action(root)
    return shim.done


def cells(tmp_path, prepare, action, faults=FAULTS):
    """(name of the cell, directory as the next process finds it) of every operation and fault."""
    prepare(tmp_path / "counted")
    operations = operations_of(tmp_path / "counted", action)
    for fault in faults:
        for at in range(1, len(operations) + 1):
            root = tmp_path / f"{FAULTS.index(fault)}-{at}"
            prepare(root)
            with pytest.MonkeyPatch.context() as patch:
                shim = Shim(root, fault, at).install(patch)
                with suppress(StorageError, OSError, Killed):
                    action(root)
            assert len(shim.done) >= at, f"{fault} at {at}: the operation was not reached"
            if shim.applies():
                name, path = shim.done[at - 1]
                yield f"{fault} at operation {at}, {name} {path.name}", shim.after()


def examine_saves(tmp_path, make, step):
    """All cells of one save that also removes an older checkpoint; how many, and the operations of each."""

    def prepare(root):
        store = store_in(root)
        for earlier, value in ((0, 0.1), (1, 0.9), (2, 0.2), (3, 0.3), (4, 0.4)):
            store.save_if_due(earlier, make(earlier), {METRIC: value})
        assert store.steps() == [0, 1, 3, 4]

    count = 0
    for name, root in cells(tmp_path, prepare, lambda root: store_in(root).save_if_due(step, make(50), {METRIC: 0.5})):
        store, state = store_in(root), make(-1)
        found = store.restore(state)
        assert (found, state.said()) in {(4, 4.0), (step, 50.0)}, name
        assert store.rejected == 0, f"{name}: a damaged checkpoint has a final name"
        assert {0, 1} <= set(store.steps()), f"{name}: step 0 or the best is gone"
        store.save_if_due(step, make(60), {METRIC: 0.5})
        store.save_if_due(6, make(61), {METRIC: 0.5})
        state = make(-1)
        assert (store_in(root).restore(state), state.said()) == (6, 61.0), name
        assert sorted(p.name for p in (root / "checkpoints").iterdir()) == sorted(map(str, [0, 1, step, 6])), name
        shutil.rmtree(root)
        count += 1
    return count


@pytest.mark.parametrize(("step", "most"), [(5, 30), (4, 33)], ids=["a new step", "a step that is there"])
def test_a_save_that_is_cut_anywhere_leaves_the_old_state_or_the_new_one(tmp_path, capsys, step, most):
    count = examine_saves(tmp_path, State, step)
    operations = len(operations_of(tmp_path / "counted", lambda r: store_in(r).save_if_due(step + 1, State(9), {})))
    with capsys.disabled():
        print(f"\n{operations} operations of a save and a removal, {count} cells", end=" ")
    assert operations <= most + 10
    assert count > 150


def test_so_does_a_save_of_a_real_run(tmp_path):
    directory = small.train(small.write(tmp_path, "sft", steps=1), tmp_path / "run")
    place = directory.checkpoints / "1"
    assert examine_saves(tmp_path / "cells", lambda value: Copied(place, value), 5) > 200


def test_every_kind_of_operation_is_met():
    assert len(disk.OPERATIONS) == 10
