"""A part that is mixed in adds its weighted gradient, from its own rows and its own denominators."""

from dataclasses import replace

import pytest
import torch

from tests.unit.train import learning
from trimtab import algorithms
from trimtab.data import collate
from trimtab.data.prompts import Demonstration
from trimtab.train.step import Objective
from trimtab.types import Prompt, Schedule


def demonstrations(count=3):
    return collate.of_demonstrations(
        [
            Demonstration(prompt=Prompt(id=n, text="p", tokens=(5, 6)), completion=tuple(range(7, 9 + n)), text="c")
            for n in range(count)
        ],
        range(count),
    )


def sft(weight=1.0, aggregation="token-mean"):
    algorithm = algorithms.load("sft")
    config = algorithm.config()

    return Objective(
        algorithm=algorithm,
        config=replace(config, policy=replace(config.policy, aggregation=aggregation)),
        weight=weight,
    )


def gradients(monkeypatch, learner, batch, beside=()):
    """The gradient of every weight in the step's only update, before clipping."""
    found = {}

    def kept(norms, factor):
        found.update({n: p.grad.clone() for n, p in learner.models.named_parameters().items()})

    monkeypatch.setattr(learner.optimizer, "step", kept)
    report = learner.update(batch, beside)
    return found, report


@pytest.mark.parametrize("name", ["grpo", "ppo"])
def test_the_gradient_is_the_main_one_plus_weight_times_the_parts_own(monkeypatch, name):
    rows = demonstrations()
    alone, main = gradients(monkeypatch, learning.learner(name), learning.batch())
    other, part = gradients(monkeypatch, learning.learner("sft"), rows)
    both, report = gradients(
        monkeypatch, learning.learner(name, settings={"mixed": [sft(0.3)]}), learning.batch(), [rows]
    )
    for key, value in both.items():
        wanted = alone[key] + 0.3 * other.get(key, torch.zeros(()))
        torch.testing.assert_close(value, wanted, rtol=1e-5, atol=2e-6)
    assert report.metrics["loss/mix/sft/nll"] == pytest.approx(part.metrics["loss/nll"], rel=1e-6)
    assert report.metrics["loss/total"] == pytest.approx(
        main.metrics["loss/total"] + 0.3 * part.metrics["loss/total"], rel=1e-5
    )
    assert report.metrics["coefficient/mix/sft/nll"] == pytest.approx(0.3)


def test_a_weight_of_zero_changes_no_bit():
    alone, mixed = learning.learner("grpo"), learning.learner("grpo", settings={"mixed": [sft(0.0)]})
    assert mixed.update(learning.batch(), [demonstrations()]).weights_sum == alone.update(learning.batch()).weights_sum


def test_a_weight_may_be_a_schedule():
    learner = learning.learner("grpo", settings={"mixed": [sft(Schedule(kind="linear", start=0.4, end=0.2, steps=2))]})
    seen = [learner.update(learning.batch(), [demonstrations()]).metrics["coefficient/mix/sft/nll"] for _ in range(3)]
    assert seen == pytest.approx([0.4, 0.2, 0.2])


def test_a_part_keeps_its_own_denominator_whatever_the_main_one_has():
    few, many = (
        learning.learner("grpo", settings={"mixed": [sft()]}),
        learning.learner("grpo", settings={"mixed": [sft()]}),
    )
    whole = learning.batch()
    half = whole.rows(torch.arange(len(whole) // 2))
    rows = demonstrations()
    a = few.update(whole, [rows]).metrics["loss/mix/sft/nll"]
    assert many.update(half, [rows]).metrics["loss/mix/sft/nll"] == pytest.approx(a, rel=1e-6)


def test_with_more_updates_than_rows_every_row_of_the_part_is_used_once_an_epoch(monkeypatch):
    learner = learning.learner("grpo", settings={"mixed": [sft()]}, minibatches=2, epochs_per_batch=2)
    seen = []
    accumulate = learner._accumulate

    def noted(step, rows, *others):
        if step.objective.prefix:
            seen.extend(step.batch.row_ids[rows].tolist())
        return accumulate(step, rows, *others)

    monkeypatch.setattr(learner, "_accumulate", noted)
    learner.update(learning.batch(), [demonstrations(1)])
    assert seen == [0, 0]
