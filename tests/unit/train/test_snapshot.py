"""What a checkpoint is written from, copied or not."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from trimtab.train.run import Run


@pytest.fixture
def live():
    return {"moment": torch.ones(2), "surplus": [[1, 2]]}


@pytest.fixture
def run(live):
    asked = []

    def writer(**how):
        asked.append(how)
        return lambda directory: directory

    return Run(
        learner=SimpleNamespace(
            refuse_wrong_weights=lambda: None,
            tensors=lambda: {"first_moment.w": live["moment"]},
            values=lambda: {"step": 3},
        ),
        models=SimpleNamespace(writer=writer, asked=asked),
        source=SimpleNamespace(state=lambda: {"surplus": live["surplus"]}),
        evaluator=None,
        recorder=None,
        guard=SimpleNamespace(state=dict),
        checkpoints=None,
        control=None,
        max_steps=9,
        step=3,
    )


def change(live):
    live["moment"].zero_()
    live["surplus"][0].append(3)


def test_a_copy_does_not_change_with_the_run(run, live):
    found = run.snapshot(is_copied=True)
    change(live)
    assert found.tensors["first_moment.w"].tolist() == [1.0, 1.0]
    assert found.values["source"] == {"surplus": [[1, 2]]}
    assert found.write_models(Path("a")) == Path("a")
    assert run.models.asked == [{"is_copied": True, "policy_only": False}]


def test_without_a_copy_it_is_the_run_itself(run, live):
    found = run.snapshot(is_copied=False)
    assert found.tensors["first_moment.w"] is live["moment"]
    assert found.values["step"] == 3


def test_of_the_policy_alone_there_are_no_tensors_and_no_values(run):
    found = run.snapshot(is_copied=True, policy_only=True)
    assert (dict(found.tensors), dict(found.values)) == ({}, {})
    assert run.models.asked == [{"is_copied": True, "policy_only": True}]
