"""Log-probs, ratios, KL and entropy where they are hard: far apart, padded, at another temperature."""

import itertools
import math

import pytest
import torch

from tests import online, table_model
from tests.runs import small
from tests.unit.train import learning
from trimtab.algorithms.math import kl_estimate, kl_loss
from trimtab.models import policy as policies
from trimtab.models.roles import InProcessModels
from trimtab.testing import cases
from trimtab.train.settings import Optim
from trimtab.types import Need

FAR = (-1000.0, -100.0, -20.0, 0.0)


@pytest.mark.parametrize("gradient", ["direct", "k2", "weighted"])
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_of_policies_that_are_far_apart_has_a_finite_value_and_gradient(estimator, gradient):
    for own, other in itertools.product(FAR, FAR):
        log_probs = torch.tensor([[own]], requires_grad=True)
        others = torch.tensor([[other]])
        value = kl_loss(log_probs, others, estimator=estimator, gradient=gradient, old_log_probs=others)
        value.sum().backward()
        assert bool(value.isfinite().all()), (own, other)
        assert bool(log_probs.grad.isfinite().all()), (own, other)
        assert estimator == "k1" or float(kl_estimate(log_probs.detach(), others, estimator)) >= 0.0


@pytest.mark.parametrize("name", online.NAMES)
def test_a_kl_to_the_reference_falls_with_every_algorithm_when_nothing_else_pulls(name):
    coefficients = [
        ("kl", "coef", 1000.0),
        ("kl", "where", "loss"),
        ("policy", "entropy_coef", 0.0),
        ("value", "coef", 0.0),
    ]
    config = table_model.config_of(name, *coefficients, ("mismatch", "mode", "off"))
    learner = table_model.learner(name, config, optim=Optim(learning_rate=0.01))
    batch = cases.equal_rewards(cases.make()).batch
    kl = [learner.update(batch).metrics["kl/reference"] for _ in range(20)]
    assert kl[-1] < 0.5 * kl[0]


def test_entropy_of_a_padded_row_is_that_of_the_row_alone():
    loaded = policies.load("builtin:tiny", seed=0)
    models = InProcessModels(model=loaded.model, tokenizer=loaded.tokenizer, temperature=0.7)
    batch = learning.batch(width=40)
    with torch.no_grad():
        whole = models.forward(batch, Need.ENTROPY)
        alone = [models.forward(batch.rows(torch.tensor([row])), Need.ENTROPY) for row in range(len(batch))]
    assert int(batch.completion_lengths.min()) < 10
    for row, one in enumerate(alone):
        length = int(batch.completion_lengths[row])
        assert torch.allclose(whole.entropy[row, :length], one.entropy[0, :length], atol=1e-5)
        assert torch.allclose(whole.log_probs[row, :length], one.log_probs[0, :length], atol=1e-5)
    counted = whole.entropy[batch.loss_mask]
    assert float(counted.min()) >= 0.0
    assert float(counted.max()) <= math.log(loaded.model.config.vocab_size)
    report = learning.learner().update(batch)
    assert 0.0 <= report.metrics["entropy"] <= math.log(loaded.model.config.vocab_size)


def test_at_another_temperature_the_ratio_is_one_and_the_engine_agrees_with_the_trainer(tmp_path):
    words = ["sampling.temperature=0.6", "train.minibatches=1", "data.validation=null"]
    directory = small.train(small.write(tmp_path, steps=1), tmp_path / "run", *words)
    metrics = small.steps(directory)[0]["metrics"]
    assert metrics["ratio/min"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["ratio/max"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["rollout/trainer_mismatch"] < 1e-5
