"""A batch becomes the same updates however it is cut, and a bad update is never applied."""

from dataclasses import replace

import pytest
import torch

from tests.unit.train import learning
from trimtab import algorithms
from trimtab.testing.algorithms import rich_config, with_value
from trimtab.train.settings import Optim


def worst_difference(a, b):
    return max(float((a[name] - b[name]).abs().max()) for name in a)


@pytest.mark.parametrize("name", ["grpo", "ppo", "gspo", "clip_cov", "sft"])
def test_the_weights_after_a_step_do_not_depend_on_the_micro_batch_size(name):
    config = rich_config(algorithms.load(name))
    found = []
    for budget in (100_000, 30, 1):
        # plain gradient descent: Adam's first step would hide differences of scale
        learner = learning.learner(name, config=config, micro_batch_tokens=budget, optim=Optim(learning_rate=0.0))
        gradients = []
        learner.optimizer.adam.step = lambda learner=learner, gradients=gradients: gradients.append(
            {n: p.grad.clone() for n, p in learner.models.named_parameters().items() if p.grad is not None}
        )
        report = learner.update(learning.batch())
        found.append((gradients[0], report.metrics))
    for gradient, metrics in found[1:]:
        assert worst_difference(found[0][0], gradient) < 1e-6
        for term in [m for m in metrics if m.startswith("loss/")]:
            assert metrics[term] == pytest.approx(found[0][1][term], abs=1e-6)


def test_a_step_makes_epochs_times_minibatches_updates_and_freezes_once():
    learner = learning.learner(epochs_per_batch=2, minibatches=3)
    calls = []
    freeze = learner.models.freeze
    learner.models.freeze = lambda batch, need: calls.append(len(batch)) or freeze(batch, need)
    report = learner.update(learning.batch())
    assert report.metrics["updates/count"] == 6
    assert sum(calls) == 12
    assert report.metrics["updates/skipped"] == 0


def test_the_ratio_is_one_before_the_first_update_and_not_after_it():
    report = learning.learner().update(learning.batch())
    assert report.metrics["ratio/min"] == report.metrics["ratio/max"] == 1.0
    assert report.metrics["update/ratio_max"] > 1.0
    assert report.metrics["kl/update"] > 0.0


def test_two_epochs_see_a_ratio_that_has_moved():
    report = learning.learner(epochs_per_batch=2).update(learning.batch())
    assert report.metrics["ratio/max"] > 1.0 > report.metrics["ratio/min"]


def test_an_update_with_a_reward_that_is_no_number_is_not_applied_and_the_next_is():
    learner = learning.learner()
    before = learner.models.weights_sum()
    batch = learning.batch()
    bad = batch.rewards.clone()
    bad[3] = float("nan")
    report = learner.update(learning.with_rewards(batch, bad))
    assert learner.models.weights_sum() == before == report.weights_sum
    assert report.metrics["updates/non_finite"] == report.metrics["updates/skipped"] == 1
    assert report.metrics["updates/count"] == 0
    assert learner.applied_steps == 0
    assert learner.optimizer.state()[0] == {}
    after = learner.update(batch)
    assert after.metrics["updates/count"] == 1
    assert after.weights_sum != before


def test_no_metric_is_ever_nan():
    batch = learning.batch()
    report = learning.learner("ppo").update(learning.with_rewards(batch, torch.full((12,), float("nan"))))
    assert all(value == value for value in report.metrics.values())


def test_an_update_without_a_counted_token_is_skipped_and_counted():
    learner = learning.learner()
    before = learner.models.weights_sum()
    batch = learning.batch()
    report = learner.update(replace(batch, loss_mask=torch.zeros_like(batch.loss_mask)))
    assert report.metrics["updates/skipped"] == 1
    assert report.metrics["updates/non_finite"] == 0
    assert learner.models.weights_sum() == before


def test_rows_without_a_reward_move_nothing():
    batch = learning.batch()
    some = replace(batch, is_scored=torch.arange(12) % 3 != 0)
    learner = learning.learner(optim=Optim(learning_rate=0.0))
    report = learner.update(some)
    scored = batch.rewards[some.is_scored]
    assert report.metrics["reward/unscored"] == pytest.approx(4 / 12)
    assert report.metrics["reward/mean"] == pytest.approx(float(scored.mean()))


def test_policy_and_critic_are_clipped_apart():
    learner = learning.learner("ppo", optim=Optim(learning_rate=1e-3, max_grad_norm=1e-4))
    norms = {}
    step = learner.optimizer.adam.step

    def look():
        for role, parameters in learner.optimizer.roles.items():
            norms[role] = float(torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]))
        step()

    learner.optimizer.adam.step = look
    report = learner.update(learning.batch())
    assert norms["policy"] == pytest.approx(1e-4, rel=1e-2)
    assert norms["value"] == pytest.approx(1e-4, rel=1e-2)
    assert report.metrics["grad_norm/total"] > 1e-3


@pytest.mark.parametrize("critic", ["own", "shared"])
def test_a_critic_learns_to_predict_a_constant_reward(critic):
    learner = learning.learner("ppo", critic=critic, optim=Optim(learning_rate=3e-3), epochs_per_batch=2)
    batch = learning.with_rewards(learning.batch(), torch.ones(12))
    losses = [learner.update(batch).metrics["loss/value"] for _ in range(8)]
    assert losses[-1] < 0.6 * losses[0]


def test_the_first_estimates_of_a_critic_are_zero():
    learner = learning.learner("ppo")
    frozen = learner.models.freeze(learning.batch(), learner.main.need)
    assert not bool(frozen.old_values.any())
    assert not bool(frozen.bootstrap_values.any())


def test_a_strong_kl_to_the_reference_pulls_back_a_policy_that_has_left_it():
    config = with_value(algorithms.load("grpo").config(), "kl", "coef", 10.0)
    learner = learning.learner(config=config, optim=Optim(learning_rate=3e-4))
    with torch.no_grad():
        for parameter in learner.models.model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.01)
    batch = learning.with_rewards(learning.batch(), torch.ones(12))
    kl = [learner.update(batch).metrics["kl/reference"] for _ in range(20)]
    assert kl[-1] < 0.5 * kl[0]


def test_a_coefficient_changes_the_loss():
    for section, key in (("kl", "coef"), ("policy", "entropy_coef")):
        with_it = with_value(algorithms.load("grpo").config(), section, key, 0.5)
        plain, changed = learning.learner(seed=1), learning.learner(seed=1, config=with_it)
        for learner in (plain, changed):
            for _ in range(2):
                learner.update(learning.batch())
        assert worst_difference(learning.weights(plain), learning.weights(changed)) > 1e-6, f"{section}.{key}"


def test_kl_in_the_reward_moves_the_advantages_and_adds_no_term():
    config = rich_config(algorithms.load("grpo"))
    config = with_value(config, "kl", "where", "reward")
    learner = learning.learner(config=config)
    with torch.no_grad():
        next(learner.models.model.parameters()).add_(0.05)
    report = learner.update(learning.batch())
    assert "loss/kl" not in report.metrics
    assert report.metrics["kl/reference"] > 0


def test_a_continued_learner_makes_the_same_next_step_to_the_last_bit(tmp_path):
    first = learning.learner("ppo", minibatches=2)
    for seed in (1, 2):
        first.update(learning.batch(seed))
    first.models.save(tmp_path)
    second = learning.learner("ppo", seed=5, minibatches=2)
    second.models.load(tmp_path)
    second.load({n: t.clone() for n, t in first.tensors().items()}, first.values())
    a, b = first.update(learning.batch(3)), second.update(learning.batch(3))
    assert a.weights_sum == b.weights_sum
    assert {n: v for n, v in a.metrics.items() if n.startswith("loss/")} == {
        n: v for n, v in b.metrics.items() if n.startswith("loss/")
    }


def test_a_report_names_the_prompts_and_hashes_every_completion():
    batch = learning.batch()
    report = learning.learner().update(batch)
    assert report.prompt_ids == tuple(batch.prompt_ids.tolist())
    assert len(report.completion_hashes) == 12
    assert all(len(h) == 16 for h in report.completion_hashes)
    changed = batch.tokens.clone()
    changed[0, int(batch.prompt_lengths[0])] += 1
    other = learning.learner().update(replace(batch, tokens=changed))
    assert [a != b for a, b in zip(report.completion_hashes, other.completion_hashes, strict=True)] == [True] + [
        False
    ] * 11


def test_every_metric_of_a_report_is_in_the_catalogue():
    from trimtab import catalogue

    for name in ("ppo", "grpo", "sft"):
        report = learning.learner(name, config=rich_config(algorithms.load(name))).update(learning.batch())
        for metric in report.metrics:
            assert catalogue.find(metric).help
