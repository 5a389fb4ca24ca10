"""Whatever durable is written: at each of its operations the process dies, the disk fails, or the power goes.

A save is written beside training, by a thread, or in its place.

Each cell is one operation and one fault. Behind it there is the old state or the new one, whole, and the next save works.
"""

import json
import shutil
from contextlib import suppress
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.faults.shim import FAULTS, LOSSES, Killed, Shim
from tests.run_states import Saving
from tests.runs import small
from trimtab.errors import StorageError
from trimtab.operate import finish
from trimtab.store import disk, journal
from trimtab.store.checkpoints import CheckpointStore, resumable, sha256
from trimtab.store.recorder import read_samples, write_samples
from trimtab.store.run_directory import RunDirectory
from trimtab.store.settings import Checkpoint
from trimtab.types import Sample

RULE = Checkpoint(every=100, rolling_every=1, rolling_keep=2)
IN_PLACE = replace(RULE, async_=False)
METRIC = "eval/reward/mean"


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch):
    """What was flushed the shim knows; that the real disk also does it takes most of the time and shows nothing."""
    monkeypatch.setattr(disk, "sync", lambda path: path.stat())


class State(Saving):
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


class Copied(Saving):
    """The bytes of a real run's checkpoint (of an adapter, which is small), under another value."""

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


def store_in(root, rule=RULE):
    return CheckpointStore(root / "checkpoints", rule, max_steps=9, metric=METRIC)


def save(store, step, state, metrics):
    """Until it is there; what befell the thread is raised here."""
    store.save_if_due(step, state, metrics)
    store.wait()


def operations_of(root, action):
    with pytest.MonkeyPatch.context() as patch:
        shim = Shim(root).install(patch)
        action(root)
    return shim.done


def cells(tmp_path, prepare, action, faults=FAULTS):
    """(name of the cell, directory as the next process finds it) of every operation and fault."""
    before = tmp_path / "before"
    prepare(before)
    shutil.copytree(before, tmp_path / "counted")
    operations = operations_of(tmp_path / "counted", action)
    for fault in faults:
        for at in range(1, len(operations) + 1):
            root = tmp_path / f"{FAULTS.index(fault)}-{at}"
            shutil.copytree(before, root)
            with pytest.MonkeyPatch.context() as patch:
                shim = Shim(root, fault, at).install(patch)
                with suppress(StorageError, OSError, Killed):
                    action(root)
            assert len(shim.done) >= at, f"{fault} at {at}: the operation was not reached"
            if shim.applies():
                name, path = shim.done[at - 1]
                yield f"{fault} at operation {at}, {name} {path.name}", shim.after()


def examine_saves(tmp_path, make, step, faults=FAULTS, rule=RULE, stay=frozenset({0, 1})):
    """All cells of one save that also removes an older checkpoint: operations of such a save, and number of cells."""

    def prepare(root):
        store = store_in(root)
        for earlier, value in ((0, 0.1), (1, 0.9), (2, 0.2), (3, 0.3), (4, 0.4)):
            save(store, earlier, make(earlier), {METRIC: value})
        assert store.steps() == [0, 1, 3, 4]

    def action(root):
        save(store_in(root, rule), step, make(50), {METRIC: 0.5})

    count = 0
    for name, root in cells(tmp_path, prepare, action, faults):
        store, state = store_in(root, rule), make(-1)
        found = store.restore(state)
        assert (found, state.said()) in {(4, 4.0), (step, 50.0)}, name
        assert store.rejected == 0, f"{name}: a damaged checkpoint has a final name"
        assert stay <= set(store.steps()), f"{name}: step 0, the best or a policy is gone"
        assert not any(map(store.fault, store.steps())), f"{name}: a checkpoint is not whole"
        save(store, 6, make(61), {METRIC: 0.5})
        state = make(-1)
        assert (store_in(root).restore(state), state.said()) == (6, 61.0), name
        assert all(p.name.isdigit() for p in (root / "checkpoints").iterdir()), f"{name}: something is left"
        count += 1
    return len(operations_of(tmp_path / "before", action)), count


@pytest.mark.parametrize("rule", [RULE, IN_PLACE], ids=["beside", "in place"])
@pytest.mark.parametrize(
    ("step", "operations", "count"), [(5, 26, 159), (4, 26, 159)], ids=["a new step", "a step that is there"]
)
def test_a_save_that_is_cut_anywhere_leaves_the_old_state_or_the_new_one(tmp_path, step, operations, count, rule):
    assert examine_saves(tmp_path, State, step, rule=rule) == (operations, count)


def test_so_does_one_that_leaves_the_policy_of_the_older_checkpoint(tmp_path):
    """Step 3 has had its time, and becomes one of the policy's weights alone."""
    rule = replace(RULE, weights_every=3)
    faults = ("killed before", "killed within", "ENOSPC", *LOSSES)
    operations, count = examine_saves(tmp_path, State, 5, faults, rule, stay=frozenset({0, 1, 3}))
    assert operations > 30
    assert count > 4 * operations
    assert resumable(tmp_path / "counted" / "checkpoints") == {0: True, 1: True, 3: False, 4: True, 5: True}


def test_so_does_a_save_of_a_real_run(tmp_path):
    directory = small.train(small.write(tmp_path, "sft", steps=1), tmp_path / "run", "policy.lora={rank: 1}")
    place = directory.checkpoints / "1"
    faults = ("killed before", LOSSES[0])
    operations, count = examine_saves(tmp_path / "cells", lambda value: Copied(place, value), 5, faults)
    assert operations > 26
    assert count == 2 * operations


def files_of(root):
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


SAMPLE = Sample(prompt_id=1, prompt="1+1=", completion="2", reward=1.0, reward_parts={}, is_truncated=False)
"""Of the old file one, of the new file two."""


def run_in(root):
    run = RunDirectory(root)
    run.create()
    run.describe(id="a", algorithm="sft")
    run.add_config({"a": 1}, {"a": 1}, why="started")
    journal.Journal(run.journal).append("event", event="started", step=0)
    write_samples(run.samples / "step-0000001.jsonl", [SAMPLE])
    finish.write_failure(run, code=4, cause="old", place="step 1", advice="none")
    save(store_in(root), 1, State(1), {})
    finish.write_final(run, store_in(root))
    save(store_in(root), 2, State(2), {})


def final(root):
    folder = RunDirectory(root).final
    return {p.name: sha256(p) for p in sorted(folder.iterdir()) if p.name != "README.md"} if folder.is_dir() else None


ACTIONS = {
    "run.json": (lambda r: RunDirectory(r).describe(id="b"), lambda r: RunDirectory(r).facts()),
    "a configuration": (
        lambda r: RunDirectory(r).add_config({"a": 2}, {"a": 2}, why="changed"),
        lambda r: [RunDirectory(r).newest_config()[part] for part in ("version", "requested")],
    ),
    "the journal": (
        lambda r: journal.Journal(r / "journal.jsonl").append("event", event="saved", step=1),
        lambda r: [e["event"] for e in journal.read(r / "journal.jsonl").events()],
    ),
    "samples": (
        lambda r: write_samples(r / "samples" / "step-0000001.jsonl", [SAMPLE, SAMPLE]),
        lambda r: read_samples(r / "samples" / "step-0000001.jsonl"),
    ),
    "failure.json": (
        lambda r: finish.write_failure(RunDirectory(r), code=3, cause="new", place="step 2", advice="none"),
        lambda r: json.loads((r / "failure.json").read_bytes())["cause"],
    ),
    "final/": (lambda r: finish.write_final(RunDirectory(r), store_in(r)), final),
}
"""What writes and what reads it."""


@pytest.mark.parametrize("name", ACTIONS)
def test_so_does_whatever_else_is_durable(tmp_path, name):
    act, read = ACTIONS[name]
    for part in ("old", "new"):
        run_in(tmp_path / part / "run")
    act(tmp_path / "new" / "run")
    states = [read(tmp_path / part / "run") for part in ("old", "new")]
    assert states[0] != states[1]
    allowed = [*states, None] if name == "final/" else states  # between two renames; the same command writes it again
    count = 0
    for cell, root in cells(tmp_path / "cells", run_in, act):
        assert read(root) in allowed, cell
        act(root)
        if name == "the journal":
            assert read(root)[-1] == "saved", cell
        elif name != "a configuration":
            assert read(root) == states[1], cell
        assert not [p.name for p in root.rglob("*") if p.name.endswith((".new", ".old"))], cell
        count += 1
    assert count > 10


def test_a_run_directory_is_there_or_not(tmp_path):
    def create(root):
        RunDirectory(root / "runs" / "a").create()
        RunDirectory(root / "runs" / "a").describe(id="a")

    for cell, root in cells(tmp_path, lambda root: root.mkdir(parents=True), create):
        run = RunDirectory(root / "runs" / "a")
        assert run.facts() in ({}, {"id": "a"}), cell
        create(root)
        assert run.facts() == {"id": "a"}, cell
    assert len(operations_of(tmp_path / "before", create)) > 10
    what = Shim(tmp_path / "before", LOSSES[0])
    with pytest.MonkeyPatch.context() as patch:
        what.install(patch)
        create(tmp_path / "before")
    assert RunDirectory(what.after() / "runs" / "a").facts() == {"id": "a"}, (
        "what has returned outlives a loss of power"
    )


def test_what_has_returned_outlives_a_loss_of_power(tmp_path):
    run_in(tmp_path / "run")
    with pytest.MonkeyPatch.context() as patch:
        shim = Shim(tmp_path / "run", LOSSES[0]).install(patch)
        for act, _ in ACTIONS.values():
            act(tmp_path / "run")
        journal.Journal(tmp_path / "run" / "second.jsonl").append("event", event="started", step=0)
        save(store_in(tmp_path / "run"), 3, State(3), {})
    lost = shim.after()
    shutil.rmtree(lost / "checkpoints" / ".1.gone")  # that it is removed may be forgotten; the next save removes it
    assert files_of(lost) == files_of(tmp_path / "run")


def test_there_are_ten_operations_and_the_shim_stands_before_each():
    assert len(disk.OPERATIONS) == 10
    own = {n for n, f in vars(disk).items() if callable(f) and getattr(f, "__module__", "") == disk.__name__}
    assert own | {"sync"} == set(disk.OPERATIONS)
