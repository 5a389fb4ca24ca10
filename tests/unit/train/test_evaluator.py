"""The evaluation of runs that read: the algorithm's own figures over all validation rows, whatever the cut."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from tests.unit.models import roles_under_test as under_test
from trimtab import algorithms
from trimtab.algorithms import pairs as paired
from trimtab.data import collate, judged, preferences, rows
from trimtab.data.prompts import Limits, demonstrations
from trimtab.models.builtin import tokenizer
from trimtab.models.roles import frozen_copy
from trimtab.train.evaluator import ReadingEvaluator
from trimtab.train.ranks import Ranks
from trimtab.types import Need, Policy

LIMITS = Limits(max_prompt_length=10, max_length=20, long_prompts="drop")


class Rank(Ranks):
    """One of two threads that stand for processes."""

    def __init__(self, rank, meeting, told):
        self.rank, self.size, self.meeting, self.told = rank, 2, meeting, told

    def gather(self, value):
        self.told[self.rank] = value
        self.meeting.wait(timeout=60)
        found = list(self.told)
        self.meeting.wait(timeout=60)
        return found


def by_two(evaluate):
    """What both of two ranks find; they must agree."""
    meeting, told = threading.Barrier(2), [None, None]
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda rank: evaluate(Rank(rank, meeting, told)), range(2))
    assert first == second
    return first


@pytest.fixture(scope="module")
def models():
    found = under_test.roles(seed=3)
    found.reference = under_test.roles(seed=3, reference=frozen_copy(found.model)).reference
    under_test.disturb(found)
    return found


def batch_for(name, count=7):
    need = algorithms.load(name).needs(algorithms.load(name).config())
    required = preferences.PAIR if need & Need.PAIRS else preferences.LABELLED
    made = rows.read("builtin:addition", {}, required, first=count)
    encoder = judged.Encoder(tokenizer=tokenizer(), limits=LIMITS)
    if need & Need.PAIRS:
        return collate.of_pairs(judged.pairs(made, encoder)[0], range(count))
    return collate.of_labelled(judged.labelled(made, encoder)[0], range(count))


def evaluated(models, name, batch, *, ranks=None, micro_batch_tokens=10_000, config=None, step=4, **more):
    algorithm = algorithms.load(name)
    evaluator = ReadingEvaluator(
        models=models,
        batch=batch,
        algorithm=algorithm,
        config=config or algorithm.config(),
        every=2,
        micro_batch_tokens=micro_batch_tokens,
        ranks=ranks or Ranks(),
        **more,
    )
    found = evaluator.evaluate_if_due(step)
    return None if found is None else dict(found.metrics)


def test_a_step_that_is_not_due_is_not_evaluated(models):
    assert evaluated(models, "dpo", batch_for("dpo"), step=3) is None


def test_dpo_gives_what_its_formula_says(models):
    batch = batch_for("dpo")
    with torch.no_grad():
        log_probs = models.forward(batch, Need.NONE).log_probs
        reference = models.freeze(batch, Need.REFERENCE).ref_log_probs
    rewards = 0.1 * (log_probs - reference).sum(1)
    ahead = rewards[0::2] - rewards[1::2]
    found = evaluated(models, "dpo", batch)
    assert found["eval/loss/preference"] == pytest.approx(
        float(-torch.nn.functional.logsigmoid(ahead).mean()), abs=1e-6
    )
    assert found["eval/preference/accuracy"] == float((ahead > 0).double().mean())
    assert found["eval/preference/margin"] == pytest.approx(float(ahead.mean()), abs=1e-6)
    assert found["eval/count"] == 7


@pytest.mark.parametrize("name", ["dpo", "ipo", "simpo", "orpo", "kto"])
def test_neither_micro_batches_nor_ranks_change_the_figures(models, name):
    batch = batch_for(name)
    whole = evaluated(models, name, batch)
    cut = evaluated(models, name, batch, micro_batch_tokens=8)  # less than a row: a pair is still not parted
    shared = by_two(lambda rank: evaluated(models, name, batch, ranks=rank))
    for found in (cut, shared):
        assert found.keys() == whole.keys()
        assert found == pytest.approx(whole, abs=1e-5)
    assert whole["eval/count"] == 7


def test_scores_are_pooled_over_all_pairs_for_the_auc(models):
    batch = batch_for("reward_model")
    scores = torch.tensor([3.0, 1.0, 2.0, 2.0, 0.0, 5.0, 4.0, 1.0, 1.0, 0.0, 2.0, 2.5, 3.0, 3.0])
    asked = []

    class Scoring:
        device = torch.device("cpu")

        def forward(self, rows, need):
            asked.append(len(rows))
            place = {int(r): n for n, r in enumerate(batch.row_ids)}
            return Policy(loss_mask=rows.loss_mask, scores=torch.stack([scores[place[int(r)]] for r in rows.row_ids]))

        def freeze(self, rows, need):
            return models.freeze(rows, Need.NONE)

    found = evaluated(Scoring(), "reward_model", batch, micro_batch_tokens=20)
    assert len(asked) > 1
    assert found["eval/reward_model/auc"] == pytest.approx(paired.auc(scores[0::2], scores[1::2]))
    ahead = scores[0::2] - scores[1::2]
    assert found["eval/reward_model/accuracy"] == pytest.approx(float((ahead > 0).sum() + 0.5 * (ahead == 0).sum()) / 7)


def test_demonstrations_give_the_mean_over_tokens_however_training_averages(models):
    made = rows.read("builtin:addition", {}, ("prompt", "completion"), first=9)
    ids = tokenizer()
    batch = collate.of_demonstrations(list(demonstrations(made, ids, LIMITS, ids.eos_token_id)[0]), range(9))
    sft = algorithms.load("sft").config()
    summed = replace(sft, policy=replace(sft.policy, aggregation="seq-mean-token-sum"))
    with torch.no_grad():
        log_probs = models.forward(batch, Need.NONE).log_probs
    wanted = {"eval/loss/nll": float(-log_probs.double().sum() / batch.loss_mask.sum()), "eval/count": 9.0}
    assert evaluated(models, "sft", batch) == evaluated(models, "sft", batch, config=summed) == wanted


def test_the_margin_before_training_is_told_once(models):
    told = []
    batch = batch_for("dpo")
    evaluated(models, "dpo", batch, tell=told.append, step=0)
    evaluated(models, "dpo", batch, tell=told.append, step=2)
    assert len(told) == 1
    assert told[0].startswith("mean margin of the implicit rewards before training: ")


def test_the_divergence_from_the_reference_is_exact_over_the_vocabulary(models, monkeypatch):
    from trimtab.algorithms.math import divergences
    from trimtab.kernels import log_probs

    batch = batch_for("dpo")
    with torch.no_grad():
        logits = [model(input_ids=batch.tokens).logits for model in (models.model, models.reference.model)]
    every = divergences(*logits)["js"]
    total = 0.0
    for row in range(len(batch)):
        first, size = int(batch.prompt_lengths[row]), int(batch.completion_lengths[row])
        total += float(every[row, first - 1 : first - 1 + size].sum())
    wanted = total / float(batch.loss_mask.sum())
    whole = evaluated(models, "dpo", batch, js=models.js)["eval/preference/js"]
    monkeypatch.setattr(log_probs, "CHUNK_ELEMENTS", 300)  # three tokens a chunk
    cut = evaluated(models, "dpo", batch, js=models.js)["eval/preference/js"]
    assert 0 < wanted < 0.6931
    assert (whole, cut) == pytest.approx((wanted, wanted), rel=1e-4)
    assert "eval/preference/js" not in evaluated(models, "dpo", batch)
