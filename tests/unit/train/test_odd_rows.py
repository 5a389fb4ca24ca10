"""Completions of no token and of one, holes, several updates a batch: every algorithm, however the rows are cut."""

import pytest
import torch

from tests import online, table_model
from trimtab.testing import cases
from trimtab.train.settings import Optim


@pytest.mark.parametrize("name", [*online.NAMES, "sft"])
def test_several_updates_over_odd_rows_are_the_same_however_they_are_cut(name):
    batch = cases.make(9).batch
    assert {0, 1} <= set(batch.completion_lengths.tolist())
    found = []
    for budget in (1000, 25, 1):
        learner = table_model.learner(
            name, epochs_per_batch=2, minibatches=3, micro_batch_tokens=budget, optim=Optim(learning_rate=1e-3)
        )
        found.append((learner.update(batch).metrics, learner.models.logits.detach().clone()))
    (whole, weights), *others = found
    assert whole["updates/count"] == 6
    for metrics, cut in others:
        assert float((weights - cut).abs().max()) < 1e-5
        for term in [n for n in whole if n.startswith(("loss/", "kl/", "entropy", "ratio/", "clip_fraction/"))]:
            assert metrics[term] == pytest.approx(whole[term], rel=1e-4, abs=1e-5), term


@pytest.mark.parametrize("name", online.NAMES)
def test_a_row_without_tokens_gets_no_gradient_and_counts_where_completions_are_compared(name):
    batch, learner = cases.make(9).batch, table_model.learner(name)
    report = learner.update(batch)
    empty = int((batch.completion_lengths == 0).nonzero())
    others = torch.tensor([row for row in range(8) if row != empty])
    alone = table_model.learner(name).update(batch.rows(others))
    assert report.metrics["updates/count"] == alone.metrics["updates/count"] == 1
    assert report.metrics["entropy"] == alone.metrics["entropy"]
    assert report.metrics["loss/entropy"] == pytest.approx(alone.metrics["loss/entropy"], rel=1e-6)
    compares = name in online.GROUPED
    assert (abs(report.metrics["loss/policy"] - alone.metrics["loss/policy"]) > 1e-4) is compares


@pytest.mark.parametrize("name", online.NAMES)
def test_a_step_of_nothing_but_empty_completions_is_skipped_and_moves_nothing(name):
    batch = cases.make(9).batch
    empty = int((batch.completion_lengths == 0).nonzero())
    learner = table_model.learner(name)
    before = learner.models.weights_sum()
    report = learner.update(batch.rows(torch.tensor([empty])))
    assert report.metrics["updates/skipped"] == 1
    assert report.weights_sum == before
