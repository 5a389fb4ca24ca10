"""A checkpoint that is written while the next step is made is, in every file, the one that training waited for."""

import threading
from collections import defaultdict

import pytest

from tests.runs import small
from trimtab.operate import finish
from trimtab.store.checkpoints import CheckpointStore
from trimtab.train.learner import Learner

STEPS = 3
KINDS = {
    "a critic and a reference": ("ppo", ["kl.coef=0.1"]),
    "an adapter, groups that wait": ("grpo", ["policy.lora={rank: 2}", "sampling.dynamic.enabled=true"]),
    "a loss scale": ("sft", ["policy.autocast=float16", "train.minibatches=1"]),
    "weights of two bytes": ("sft", ["policy.dtype=bfloat16", "train.minibatches=1"]),
    "a part that is mixed in": ("cispo", ["mix=[{algorithm: sft, data: 'builtin:addition', rows_per_step: 2}]"]),
    "a reward model": ("reward_model", ["train.minibatches=1"]),
    "a policy that learns from pairs": ("dpo", ["train.minibatches=1"]),
}
WORDS = ["data.validation=null"]


@pytest.fixture(autouse=True)
def _without_a_report(monkeypatch):
    monkeypatch.setattr(finish, "write_report", lambda *_, **__: [])


def held_back(monkeypatch):
    """Let the thread write nothing of a step before the weights are those of the next one; the steps it did so for."""
    moved, held = defaultdict(threading.Event), []

    def write(self, step, *rest, real=CheckpointStore._write, **more):
        if threading.current_thread() is not threading.main_thread():
            assert moved[step + 1].wait(60)
            held.append(step)
        return real(self, step, *rest, **more)

    def update(self, *rest, real=Learner.update, **more):
        report = real(self, *rest, **more)
        moved[report.step].set()
        return report

    monkeypatch.setattr(CheckpointStore, "_write", write)
    monkeypatch.setattr(Learner, "update", update)
    return held


def files(directory):
    found = {str(p.relative_to(directory)): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}
    return {name: data for name, data in found.items() if not name.endswith("manifest.json")}  # it has the time


@pytest.mark.parametrize("kind", KINDS)
def test_every_file_of_every_checkpoint_is_the_same(tmp_path, monkeypatch, kind):
    name, words = KINDS[kind]
    path = small.write(tmp_path, name, steps=STEPS)
    waited = small.train(path, tmp_path / "waited", *WORDS, *words, "checkpoint.async=false")
    held = held_back(monkeypatch)
    beside = small.train(path, tmp_path / "beside", *WORDS, *words)
    assert held == [1, 2]
    assert small.evidence(beside) == small.evidence(waited)
    wanted, found = files(waited.checkpoints), files(beside.checkpoints)
    assert found.keys() == wanted.keys()
    assert [n for n in wanted if found[n] != wanted[n]] == []
    assert {"1/state.json", "1/optimizer.safetensors"} <= wanted.keys()
    assert wanted["1/optimizer.safetensors"] != wanted["2/optimizer.safetensors"]
