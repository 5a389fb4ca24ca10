"""What is computed over a whole update depends on no split, and on the policy as it is then."""

from dataclasses import replace

import pytest
import torch

from tests import table_model
from trimtab.testing import cases
from trimtab.types import Need

NAMES = ["clip_cov", "kl_cov"]
SHARE = 0.3


def step(name, batch, **settings):
    """What `statistics` was given and gave in each update of a step; the picks as sets of (row id, position)."""
    seen = []
    learner = table_model.record_statistics(table_model.learner(name, **settings), seen)
    report = learner.update(batch)
    picks = [
        {(int(given.row_ids[row]), int(place)) for row, place in found.picked.nonzero()} for given, _, _, found in seen
    ]
    return seen, picks, report, learner


@pytest.mark.parametrize("name", NAMES)
def test_the_picks_depend_on_no_micro_batch_and_no_order_of_rows(name):
    batch = cases.make(5).batch
    _, wanted, report, _ = step(name, batch, minibatches=2, epochs_per_batch=2)
    assert len(wanted) == 4
    assert all(wanted)
    for budget in (30, 1):
        _, found, cut, _ = step(name, batch, minibatches=2, epochs_per_batch=2, micro_batch_tokens=budget)
        assert found == wanted
        assert cut.metrics["covariance/picked"] == report.metrics["covariance/picked"]
    order = torch.randperm(8, generator=torch.Generator().manual_seed(1))
    assert step(name, batch.rows(order), minibatches=2, epochs_per_batch=2)[1] == wanted


@pytest.mark.parametrize("name", NAMES)
def test_the_picks_are_made_of_the_rows_of_their_update_and_of_no_other(name):
    batch = cases.make(5).batch
    seen, picks, _, _ = step(name, batch, minibatches=3)
    rows = [set(given.row_ids.tolist()) for given, _, _, _ in seen]
    assert sum(len(part) for part in rows) == 8
    assert set.union(*rows) == set(batch.row_ids.tolist())
    for (given, _, _, _), part, found in zip(seen, rows, picks, strict=True):
        tokens = int(given.loss_mask.sum())
        assert {row for row, _ in found} <= part
        assert len(found) == max(1, int(SHARE * tokens))
        assert len(found) < tokens


@pytest.mark.parametrize("name", NAMES)
def test_the_first_update_goes_by_the_old_log_probs_and_later_ones_by_those_of_the_policy_as_it_is(name):
    batch, now = cases.make(5).batch, []
    seen, learner = [], table_model.learner(name, epochs_per_batch=3)
    table_model.record_statistics(learner, seen)
    one_update = learner._one_update

    def spied(*given):
        now.append(learner.models.forward(batch, Need.NONE).log_probs.detach())
        return one_update(*given)

    learner._one_update = spied
    learner.update(batch)
    assert len(seen) == len(now) == 3
    for place, (_, frozen, policy, _) in enumerate(seen):
        assert torch.allclose(policy.log_probs, now[place], atol=1e-6)
        assert torch.equal(policy.log_probs, frozen.old_log_probs) is (place == 0)
    assert not torch.allclose(now[1], now[2], atol=1e-5)


def test_while_no_update_was_applied_no_pass_is_made_for_the_statistics():
    learner = table_model.learner("clip_cov", epochs_per_batch=2)
    calls = []
    learner._current_log_probs = lambda *_: calls.append(1)
    batch = cases.make(5).batch
    report = learner.update(replace(batch, loss_mask=torch.zeros_like(batch.loss_mask)))
    assert report.metrics["updates/skipped"] == 2
    assert calls == []


@pytest.mark.parametrize("name", NAMES)
def test_another_step_picks_other_tokens_only_where_they_are_drawn(name):
    batch = cases.make(5).batch
    learner, seen = table_model.learner(name, optim=table_model.Optim(learning_rate=0.0)), []
    table_model.record_statistics(learner, seen)
    learner.update(batch)
    learner.update(batch)
    same = torch.equal(seen[0][3].picked, seen[1][3].picked)
    assert same is (name == "kl_cov")
