"""Weights for an engine whose log-probs are not the trainer's: in the loss and in what is seen of them."""

from dataclasses import replace

import pytest
import torch

from tests import online, table_model
from trimtab import algorithms
from trimtab.algorithms.math import row_weights
from trimtab.testing import cases
from trimtab.testing.algorithms import plain_config, with_value
from trimtab.types import Need

FACTORS = torch.tensor([1.0, 1.0, 4.0, 0.25, 1.0, 1.5, 0.5])
"""How much likelier the trainer has the token at each place than the engine had."""


def shifted(learner, batch):
    """The batch as an engine would report it that differs from the trainer by `FACTORS`."""
    old = learner.models.forward(batch, Need.NONE).log_probs.detach()
    return replace(batch, rollout_log_probs=old - FACTORS.log())


def learner_of(name, **mismatch):
    config = plain_config(algorithms.load(name))
    for key, value in mismatch.items():
        config = with_value(config, "mismatch", key, value)
    return table_model.learner(name, config)


def weights_by_hand(mask, mode, level, low, high):
    factors = torch.where(mask, FACTORS.expand(mask.shape), torch.ones(()))
    row = factors.log().sum(1).exp()[:, None].expand(mask.shape)
    mean = (factors.log().sum(1) / mask.sum(1).clamp_min(1)).exp()[:, None].expand(mask.shape)
    plain = row if level == "sequence" and mode != "geometric_mask" else factors
    low, high = -1.0 if low is None else low, 1e9 if high is None else high
    if mode == "truncate":
        return plain.clamp(low, high)
    tested = mean if mode == "geometric_mask" else plain
    return torch.where((tested >= low) & (tested <= high), plain, torch.zeros(()))


CASES = [
    ("truncate", "token", None, 2.0), ("truncate", "token", 0.5, 2.0), ("truncate", "sequence", None, 2.0),
    ("mask", "token", 0.5, 2.0), ("mask", "sequence", 0.8, 1.2), ("geometric_mask", "token", 0.9, 1.1),
]  # fmt: skip


@pytest.mark.parametrize(("mode", "level", "low", "high"), CASES)
def test_the_policy_term_is_weighted_and_its_divisor_is_not(mode, level, low, high):
    learner = learner_of("grpo", mode=mode, level=level, low=low, high=high)
    batch = shifted(learner, cases.make(6).batch)
    mask = batch.loss_mask
    weights = weights_by_hand(mask, mode, level, low, high)
    assert 0 < int((weights != 1)[mask].sum()) <= int(mask.sum())
    advantages = algorithms.load("grpo").advantages(batch, learner.models.freeze(batch, Need.NONE), learner.main.config)
    losses = torch.where(mask, -advantages.values * weights, torch.zeros(()))
    wanted = float((losses * row_weights(mask, "seq-mean-token-mean")[:, None]).sum())
    metrics = learner.update(batch).metrics
    assert metrics["loss/policy"] == pytest.approx(wanted, abs=1e-5)
    kept = weights[mask].double()
    assert metrics["mismatch/masked"] == pytest.approx(float((kept == 0).double().mean()))
    assert metrics["ess"] == pytest.approx(float(kept.sum() ** 2 / (len(kept) * (kept**2).sum())))
    assert (metrics["mismatch/masked"] > 0) is (mode != "truncate")
    assert metrics["rollout/trainer_mismatch"] > 0.1


@pytest.mark.parametrize("name", online.NAMES)
def test_without_it_the_engine_s_log_probs_change_nothing_and_with_it_they_do(name):
    found = {}
    for mode in ("off", "truncate"):
        for is_shifted in (False, True):
            learner = learner_of(name, mode=mode, high=1.2)
            batch = cases.make(6).batch
            given = shifted(learner, batch) if is_shifted else replace(batch, rollout_log_probs=_own(learner, batch))
            found[mode, is_shifted] = learner.update(given).weights_sum
    assert found["off", False] == found["off", True] == found["truncate", False]
    assert found["truncate", True] != found["off", True]


def _own(learner, batch):
    return learner.models.forward(batch, Need.NONE).log_probs.detach()


def test_only_the_policy_s_term_is_weighted():
    found = []
    for mode in ("off", "truncate"):
        config = table_model.config_of("ppo", ("mismatch", "mode", mode))
        learner = table_model.learner("ppo", config)
        found.append(learner.update(shifted(learner, cases.make(6).batch)).metrics)
    assert found[0]["loss/policy"] != found[1]["loss/policy"]
    for term in ("value", "entropy", "kl"):
        assert found[0][f"loss/{term}"] == found[1][f"loss/{term}"] != 0.0
    assert "ess" not in found[0]
