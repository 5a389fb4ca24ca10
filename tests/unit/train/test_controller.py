"""The KL coefficient from step to step, and the stop of a step that has gone far enough."""

from dataclasses import replace

import pytest
import torch

from tests import table_model
from tests.unit.train import learning
from trimtab import algorithms
from trimtab.algorithms.base import Kl
from trimtab.testing import cases
from trimtab.testing.algorithms import with_value
from trimtab.train.controller import KlController
from trimtab.train.settings import Optim
from trimtab.types import Need


def steered(name="grpo", **kl):
    return table_model.config_of(name, *[("kl", key, value) for key, value in {"coef": 0.1, **kl}.items()])


def batch(seed):
    return cases.make(seed).batch


def kl_by_hand(policy, other, mask, unit, estimator="k3"):
    d = (policy - other)[mask].double()
    total = float(((-d).exp() - 1 + d).sum() if estimator == "k3" else d.sum())
    return total / float(mask.sum() if unit == "token" else mask.any(1).sum())


def next_by_hand(controller, coef, observed, target, samples, horizon):
    if controller == "adaptive":
        return coef * (1 + min(max(observed / target - 1, -0.2), 0.2) * samples / horizon)
    return coef / 2 if observed < target / 1.5 else coef * 2 if observed > target * 1.5 else coef


@pytest.mark.parametrize("target", [1e-3, 0.02, 5.0])
@pytest.mark.parametrize("unit", ["token", "sequence"])
@pytest.mark.parametrize("controller", ["adaptive", "penalty"])
def test_the_coefficient_follows_its_formula_from_the_kl_to_the_reference(controller, unit, target):
    config = steered(controller=controller, controller_target=target, controller_horizon=20, unit=unit)
    learner, coef = table_model.learner("grpo", config), 0.1
    for step in range(1, 5):
        rows = batch(step)
        policy, frozen = learner.models.forward(rows, Need.NONE), learner.models.freeze(rows, Need.REFERENCE)
        observed = kl_by_hand(policy.log_probs.detach(), frozen.ref_log_probs, rows.loss_mask, unit)
        report = learner.update(rows)
        assert report.metrics["coefficient/kl"] == coef
        assert report.metrics["kl/controlled"] == pytest.approx(observed, rel=1e-4)
        coef = next_by_hand(controller, coef, report.metrics["kl/controlled"], target, 8, 20)
        assert learner.controller.coef == pytest.approx(coef, rel=1e-12)
        coef = learner.controller.coef


def test_a_sequence_s_kl_is_that_of_its_tokens_together():
    found = {}
    for unit in ("token", "sequence"):
        config = steered(controller="adaptive", controller_target=1.0, unit=unit)
        found[unit] = table_model.learner("grpo", config).update(batch(1)).metrics["kl/controlled"]
    mask = batch(1).loss_mask
    assert found["sequence"] == pytest.approx(found["token"] * float(mask.sum()) / float(mask.any(1).sum()))
    assert found["sequence"] > 2 * found["token"]


def test_a_kl_in_the_reward_steers_by_k1_of_the_policy_that_sampled():
    learner = table_model.learner("reinforce_pp", steered("reinforce_pp", controller="penalty", controller_target=0.01))
    rows = batch(2)
    frozen = learner.models.freeze(rows, Need.REFERENCE)
    report = learner.update(rows)
    observed = kl_by_hand(frozen.old_log_probs, frozen.ref_log_probs, rows.loss_mask, "token", "k1")
    assert report.metrics["kl/controlled"] == pytest.approx(observed, rel=1e-4)
    assert learner.controller.coef in (0.05, 0.2)


@pytest.mark.parametrize("unit", ["token", "sequence"])
def test_against_the_old_policy_it_steers_by_how_far_the_whole_step_went(unit):
    config = steered(controller="penalty", controller_target=1e-6, target="old_policy", unit=unit)
    learner = table_model.learner("grpo", config, epochs_per_batch=3)
    rows = batch(3)
    before = learner.models.forward(rows, Need.NONE).log_probs.detach()
    report = learner.update(rows)
    after = learner.models.forward(rows, Need.NONE).log_probs.detach()
    d = (after - before)[rows.loss_mask].double()
    total = float((d.exp() - 1 - d).sum())
    count = rows.loss_mask.sum() if unit == "token" else rows.loss_mask.any(1).sum()
    assert report.metrics["kl/controlled"] == pytest.approx(total / float(count), rel=1e-3)
    assert learner.controller.coef == 0.2


def test_a_step_whose_updates_were_all_skipped_moves_no_coefficient():
    learner = table_model.learner("grpo", steered(controller="penalty", controller_target=1e-9))
    rows = batch(1)
    nothing = replace(rows, loss_mask=torch.zeros_like(rows.loss_mask))
    assert learner.update(nothing).metrics["updates/skipped"] == 1
    assert learner.controller.coef == 0.1
    learner.update(rows)
    assert learner.controller.coef == 0.2


@pytest.mark.parametrize("observed", [None, float("nan"), float("inf")])
@pytest.mark.parametrize("controller", ["adaptive", "penalty"])
def test_what_is_no_number_moves_no_coefficient(controller, observed):
    found = KlController(steered(controller=controller, controller_target=1.0))
    found.advance(observed, samples=8)
    assert found.coef == 0.1
    found.advance(9.0, samples=8)
    assert found.coef > 0.1


def test_while_the_critic_alone_is_trained_the_coefficient_stays():
    config = steered("ppo", controller="penalty", controller_target=100.0)
    learner = table_model.learner("ppo", config, settings={"value_warmup_steps": 2})
    found = []
    for step in range(1, 5):
        learner.update(batch(step))
        found.append(learner.controller.coef)
    assert found == [0.1, 0.1, 0.05, 0.025]


def test_a_fixed_coefficient_may_follow_a_schedule_and_keeps_no_state():
    found = KlController(steered())
    assert found.state() == {}
    found.advance(9.0, samples=8)
    assert found.applied_to(steered()).shared.kl == Kl(coef=0.1, gradient=steered().shared.kl.gradient)


def test_a_continued_controller_goes_on_from_the_same_bits(tmp_path):
    config = algorithms.load("grpo").config()
    for key, value in {
        "coef": 0.1,
        "controller": "adaptive",
        "controller_target": 1e-4,
        "controller_horizon": 7,
    }.items():
        config = with_value(config, "kl", key, value)
    first = learning.learner(config=config)
    for seed in (1, 2, 3):
        first.update(learning.batch(seed))
    first.models.save(tmp_path)
    second = learning.learner(config=config, seed=5)
    second.models.load(tmp_path)
    second.models.reference = first.models.reference
    second.load({n: t.clone() for n, t in first.tensors().items()}, first.values())
    assert second.controller.coef == first.controller.coef != 0.1
    a, b = first.update(learning.batch(4)), second.update(learning.batch(4))
    assert (a.weights_sum, a.metrics["kl/controlled"]) == (b.weights_sum, b.metrics["kl/controlled"])
    assert a.metrics["coefficient/kl"] == b.metrics["coefficient/kl"]
    assert second.controller.coef == first.controller.coef


# ---------------------------------------------------------------------------------------------------- stop_epochs
def far(epochs, **kl):
    config = table_model.config_of("grpo", *[("kl", key, value) for key, value in kl.items()])
    return table_model.learner("grpo", config, optim=Optim(learning_rate=0.2), epochs_per_batch=epochs, minibatches=2)


def test_updates_behind_the_limit_are_left_out_and_counted_and_the_others_are_made_as_ever():
    stopping, again, going_on = far(4, stop_epochs=True), far(4, stop_epochs=True), far(4)
    report = stopping.update(batch(1))
    count, stopped = report.metrics["updates/count"], report.metrics["updates/stopped"]
    assert 1 <= count < 8
    assert count + stopped == 8
    assert report.metrics["updates/skipped"] == 0
    assert again.update(batch(1)).weights_sum == report.weights_sum
    left = []
    take_step = going_on.optimizer.step
    going_on.optimizer.step = lambda *given: (take_step(*given), left.append(going_on.models.weights_sum()))
    whole = going_on.update(batch(1))
    assert (whole.metrics["updates/count"], whole.metrics["updates/stopped"]) == (8, 0)
    assert left[int(count) - 1] == report.weights_sum != whole.weights_sum


def test_a_limit_that_is_not_reached_stops_nothing():
    limit = table_model.config_of("grpo").shared.kl.limit
    wide = type(limit)(warn=1e6)
    report = far(4, stop_epochs=True, limit=wide).update(batch(1))
    assert (report.metrics["updates/count"], report.metrics["updates/stopped"]) == (8, 0)
