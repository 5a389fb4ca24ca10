"""While the critic alone is trained the policy stays as it is, bit for bit."""

import pytest
import torch

from tests.unit.train import learning
from trimtab import algorithms
from trimtab.testing.algorithms import with_value

WARMUP = 2


def bits(learner, role):
    return [p.detach().clone() for p in learner.models.parameters()[role]]


def same(before, after):
    return all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("critic", ["own", "shared"])
def test_the_policy_waits_for_the_critic_and_then_both_learn(critic):
    learner = learning.learner("ppo", critic=critic, minibatches=2, settings={"value_warmup_steps": WARMUP})
    for step in range(1, WARMUP + 2):
        policy, value = bits(learner, "policy"), bits(learner, "value")
        report = learner.update(learning.batch(step))
        assert report.metrics["updates/count"] == 2
        assert not same(value, bits(learner, "value"))
        assert same(policy, bits(learner, "policy")) is (step <= WARMUP)
        moments = {name.split(".")[1] for name in learner.tensors()}
        assert moments == ({"value"} if step <= WARMUP else {"policy", "value"}), "the policy's moments wait too"
        terms = {name for name in report.metrics if name.startswith("loss/")}
        assert terms == (
            {"loss/value", "loss/total"} if step <= WARMUP else {"loss/policy", "loss/value", "loss/total"}
        )
        if step <= WARMUP:
            assert report.metrics["loss/total"] == report.metrics["loss/value"]
            assert report.metrics["kl/update"] == 0.0


def test_weight_decay_waits_too():
    from trimtab.train.settings import Optim

    optim = Optim(learning_rate=1e-2, weight_decay=0.5)
    learner = learning.learner("ppo", optim=optim, settings={"value_warmup_steps": 1})
    policy = bits(learner, "policy")
    learner.update(learning.batch())
    assert same(policy, bits(learner, "policy"))


def test_in_the_warm_up_the_critic_learns_what_it_would_have_learnt_beside_the_policy():
    """Its first update looks at the policy's samples alone, so it is the same with and without the policy's terms."""
    found = []
    for steps in (0, 1):
        learner = learning.learner("ppo", settings={"value_warmup_steps": steps})
        learner.update(learning.batch())
        found.append(bits(learner, "value"))
    assert same(*found)


def test_a_coefficient_of_zero_leaves_nothing_to_warm_up_and_counts_the_update_as_made():
    config = with_value(algorithms.load("ppo").config(), "value", "coef", 0.0)
    learner = learning.learner("ppo", config=config, settings={"value_warmup_steps": 1})
    before = learner.models.weights_sum()
    assert learner.update(learning.batch()).weights_sum == before
    assert learner.update(learning.batch()).weights_sum != before
