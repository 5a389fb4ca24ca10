"""The gradient norm of each term by itself: what autograd gives by hand, seen and left behind without a trace."""

import pytest
import torch

from tests import online, table_model
from trimtab.algorithms.math import row_weights
from trimtab.testing import cases
from trimtab.train.update import with_statistics


def by_hand(learner, batch, rows):
    """The norm of the coefficient times each term over some rows, as if they were an update."""
    algorithm, config, need = learner.main.algorithm, learner.main.config, learner.main.need
    whole = learner.models.freeze(batch, need)
    advantages = algorithm.advantages(batch, whole, config)
    policy = learner.models.forward(batch, need)
    whole = with_statistics(algorithm, config, batch, whole, advantages, policy, seed=0, step=1)
    part, width = batch.rows(rows), batch.rows(rows).loss_mask.shape[1]
    policy = learner.models.forward(part, need)
    found = {}
    for name, term in algorithm.terms(
        part, whole.rows(rows, width), advantages.rows(rows, width), policy, config
    ).items():
        mask = part.loss_mask if term.over is None else term.over
        weights = row_weights(mask, term.aggregation, group_ids=part.group_ids, norm_length=term.norm_length)
        loss = term.coefficient * (torch.where(mask, term.values, 0.0) * weights[:, None]).sum()
        gradients = torch.autograd.grad(loss, learner.optimizer.parameters(), retain_graph=True, allow_unused=True)
        found[name] = sum(float((g.double() ** 2).sum()) for g in gradients if g is not None) ** 0.5
    return found


@pytest.mark.parametrize("name", [*online.NAMES, "sft"])
def test_they_are_what_autograd_gives_by_hand_on_all_rows(name):
    batch = cases.make(4).batch
    learner = table_model.learner(name, settings={"term_norms_every": 1}, micro_batch_tokens=30)
    wanted = by_hand(learner, batch, torch.arange(8))
    metrics = learner.update(batch).metrics
    assert {n: metrics[f"grad_norm/{n}"] for n in wanted} == pytest.approx(wanted, rel=1e-4, abs=1e-8)
    assert any(value > 1e-4 for value in wanted.values())


def test_the_sample_is_the_first_rows_that_together_have_the_tokens_asked_for():
    batch = cases.make(4).batch
    learner = table_model.learner("ppo", settings={"term_norms_every": 1, "probe_tokens": 9})
    ends = batch.completion_lengths.cumsum(0).tolist()
    rows = torch.arange(next(n for n, end in enumerate(ends) if end >= 9) + 1)
    assert 1 < len(rows) < 6
    wanted = by_hand(learner, batch, rows)
    assert set(wanted) == {"policy", "value", "entropy", "kl"}
    metrics = learner.update(batch).metrics
    assert {n: metrics[f"grad_norm/{n}"] for n in wanted} == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize(("every", "steps"), [(1, [1, 2, 3, 4, 5]), (2, [1, 3, 5]), (3, [1, 4]), (None, [])])
def test_they_are_measured_every_so_many_steps(every, steps):
    learner = table_model.learner("grpo", settings={"term_norms_every": every})
    found = [n for n in range(1, 6) if "grad_norm/policy" in learner.update(cases.make(n).batch).metrics]
    assert found == steps


@pytest.mark.parametrize("name", ["ppo", "clip_cov", "sft"])
def test_to_measure_them_changes_neither_weights_nor_the_optimiser(name):
    found = []
    for every in (None, 1):
        learner = table_model.learner(name, settings={"term_norms_every": every}, minibatches=2, epochs_per_batch=2)
        reports = [learner.update(cases.make(seed).batch) for seed in (1, 2)]
        losses = [{n: v for n, v in r.metrics.items() if n.startswith("loss/")} for r in reports]
        found.append(([r.weights_sum for r in reports], losses, learner.tensors(), learner.values()))
    (sums, losses, tensors, values), (sums_, losses_, tensors_, values_) = found
    assert (sums, losses, values) == (sums_, losses_, values_)
    assert all(torch.equal(tensors[n], tensors_[n]) for n in tensors)
    assert len(set(sums)) == 2


def test_every_term_of_every_algorithm_has_a_name_for_its_norm_in_the_catalogue():
    from trimtab import catalogue

    for name in [*online.NAMES, "sft"]:
        learner = table_model.learner(name, settings={"term_norms_every": 1})
        for metric in learner.update(cases.make(1).batch).metrics:
            assert catalogue.find(metric).help
