"""The last good checkpoint is there until the next one is, whatever fails in between."""

import errno
import itertools

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.run_states import Saving
from trimtab.store import disk
from trimtab.store.checkpoints import CheckpointStore
from trimtab.store.settings import Checkpoint


class State(Saving):
    def __init__(self, value):
        self.weights = {"w": torch.full((3,), float(value))}

    def write_models(self, directory):
        (directory / "policy").mkdir()
        save_file(self.weights, directory / "policy" / "model.safetensors")

    def read_models(self, directory):
        self.weights = load_file(directory / "policy" / "model.safetensors")

    def tensors(self):
        return self.weights

    def values(self):
        return {}

    def load(self, tensors, values):
        pass


def fail_at(patch, number):
    """Let the disk be full from the operation of that number on; the list of what was asked for."""
    asked = []

    def limited(name, real):
        def operation(*arguments):
            asked.append(name)
            if len(asked) >= number:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(*arguments)

        return operation

    for name in disk.OPERATIONS:
        patch.setattr(disk, name, limited(name, getattr(disk, name)))
    return asked


@pytest.mark.parametrize("is_beside", [True, False], ids=["beside", "in place"])
@pytest.mark.parametrize("step", [2, 3], ids=["a step that is there already", "a new step"])
def test_of_one_kept_checkpoint_no_failed_save_takes_the_last_good_one(tmp_path, monkeypatch, step, is_beside):
    monkeypatch.setattr(disk, "sync", lambda path: path.stat())
    for number in itertools.count(1):
        rule = Checkpoint(every=1, keep=1, rolling_every=1, rolling_keep=1, async_=is_beside)
        store = CheckpointStore(tmp_path / f"{number}", rule, max_steps=9)
        for earlier in (1, 2):
            store.save_if_due(earlier, State(earlier), {})
            store.wait()
        with monkeypatch.context() as patch:
            asked = fail_at(patch, number)
            store.save_if_due(step, State(9), {})
            store.wait()
        state = State(0)
        found = store.restore(state)
        assert (found, float(state.weights["w"][0])) in {(1, 1.0), (2, 2.0), (step, 9.0)}, asked[-1]
        assert found >= step - 1, "a checkpoint is gone that was good before"
        assert store.failed == (len(asked) >= number)
        store.save_if_due(step, State(9), {})
        assert store.restore(state) == step
        assert float(state.weights["w"][0]) == 9.0
        if len(asked) < number:
            break
    assert number > 10
