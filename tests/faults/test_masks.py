"""Places that do not count change no bit, and a NaN where it counts is never taken for a number."""

from dataclasses import replace

import pytest
import torch

from tests.unit.train import learning
from trimtab import algorithms
from trimtab.algorithms import credit
from trimtab.testing.algorithms import rich_config, with_value
from trimtab.train import figures

FROZEN = ("old_log_probs", "ref_log_probs", "old_values")
POLICY = ("log_probs", "entropy", "values")


def holed():
    """A batch whose first row has a place in its middle that does not count."""
    batch = learning.batch(width=6)
    mask = batch.loss_mask.clone()
    row = int(batch.completion_lengths.argmax())
    mask[row, 1] = False
    return replace(batch, loss_mask=mask), row


def spoilt(learner, row, place, name):
    """The learner with a NaN in one place of what its models say."""
    passes = {"freeze": learner.models.freeze, "forward": learner.models.forward}
    kind = "freeze" if name in FROZEN else "forward"

    def changed(batch, need):
        found = passes[kind](batch, need)
        value = getattr(found, name)
        if value is None:
            return found
        junk = torch.zeros_like(value)
        junk[batch.row_ids == row, place] = float("nan")
        return replace(found, **{name: value + junk})  # added, so that a gradient would reach the weights

    setattr(learner.models, kind, changed)
    return learner


def ppo():
    return learning.learner(
        "ppo", config=with_value(rich_config(algorithms.load("ppo")), "policy", "log_ratio_clamp", None)
    )


@pytest.mark.parametrize("name", FROZEN + POLICY)
def test_a_nan_at_a_masked_place_changes_no_bit_and_one_that_counts_is_not_applied(name):
    batch, row = holed()
    clean, masked, counted = ppo(), ppo(), ppo()
    before = clean.models.weights_sum()
    wanted = clean.update(batch)
    found = spoilt(masked, row, 1, name).update(batch)
    assert found.weights_sum == wanted.weights_sum != before
    assert found.metrics["loss/total"] == wanted.metrics["loss/total"]
    bad = spoilt(counted, row, 0, name).update(batch)
    assert bad.weights_sum == before
    assert bad.metrics["updates/non_finite"] == 1
    assert bad.metrics["updates/count"] == 0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", ["grpo", "ppo"])
def test_a_reward_that_is_no_number_is_not_applied(name, value):
    learner = learning.learner(name)
    before = learner.models.weights_sum()
    rewards = learning.batch().rewards.clone()
    rewards[3] = value
    report = learner.update(learning.with_rewards(learning.batch(), rewards))
    assert report.weights_sum == before
    assert report.metrics["updates/non_finite"] == 1


def test_the_reward_of_a_row_that_ends_in_masked_tokens_reaches_its_last_counted_one_undecayed():
    mask = torch.tensor([[True, False, False], [True, False, True]])
    rewards = credit.terminal_rewards(torch.tensor([1.0, 1.0]), mask)
    assert rewards.tolist() == [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    advantages, returns = credit.gae(rewards, torch.zeros(2, 3), mask, gamma=0.5, lam=1.0)
    assert advantages.tolist() == [[1.0, 0.0, 0.0], [0.5, 0.0, 1.0]]
    assert returns.tolist() == advantages.tolist()


def test_lengths_are_those_of_what_was_generated_whatever_counts_in_the_loss():
    batch = learning.batch()
    masked = replace(batch, loss_mask=batch.loss_mask & ~batch.is_truncated[:, None])
    assert bool(batch.is_truncated.any())
    wanted, found = figures.of_batch(batch, 1), figures.of_batch(masked, 1)
    names = [name for name in wanted if name.startswith("length/")]
    assert len(names) == 5
    assert {n: found[n] for n in names} == {n: wanted[n] for n in names}
    assert found["length/max"] == float(batch.completion_lengths.max())
