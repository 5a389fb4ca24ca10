"""What a loss is divided by: the tokens that count, of all micro-batches and processes together."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import get_args

import pytest
import torch

from tests.runs import small
from tests.unit.train import learning
from trimtab import algorithms, assemble
from trimtab import config as configs
from trimtab.algorithms.base import Aggregation
from trimtab.data import collate
from trimtab.data.order import Order
from trimtab.data.prompts import Demonstration
from trimtab.errors import UserError
from trimtab.rollout.scheduler import SamplingSource
from trimtab.store.run_directory import RunDirectory
from trimtab.testing import cases
from trimtab.testing.algorithms import with_value
from trimtab.train.control import NoControl
from trimtab.train.ranks import Ranks
from trimtab.train.settings import Optim
from trimtab.types import Need, Prompt, Rollout, Scored


# ------------------------------------------------------------------------------------------------------ the divisor
@pytest.mark.parametrize("aggregation", get_args(Aggregation))
def test_rows_that_are_masked_out_are_neither_in_the_sum_nor_in_its_divisor(aggregation):
    grpo = algorithms.load("grpo")
    config = with_value(grpo.config(), "policy", "aggregation", aggregation)
    config = with_value(config, "policy", "norm_length", 7)
    case = cases.make()
    kept = torch.tensor([0, 3])
    mask = case.batch.loss_mask.clone()
    mask[[row for row in range(8) if row not in kept]] = False
    masked = replace(
        case, batch=replace(case.batch, loss_mask=mask), frozen=replace(case.frozen, loss_mask=mask),
        policy=replace(case.policy, loss_mask=mask),
    )  # fmt: skip
    advantages = grpo.advantages(case.batch, case.frozen, config)
    alone = replace(
        case,
        batch=case.batch.rows(kept),
        frozen=case.frozen.rows(kept, 7),
        policy=replace(
            case.policy,
            **{n: getattr(case.policy, n)[kept] for n in ("loss_mask", "log_probs", "entropy", "values", "scores")},
        ),
    )
    whole = replace(grpo, advantages=lambda batch, frozen, config: replace(advantages, loss_mask=mask))
    part = replace(grpo, advantages=lambda batch, frozen, config: advantages.rows(kept, 7))
    wanted, found = cases.evaluate(part, config, alone), cases.evaluate(whole, config, masked)
    assert abs(wanted.loss) > 1e-3
    assert found.loss == pytest.approx(wanted.loss, abs=1e-6)
    assert torch.allclose(found.gradients["log_probs"][kept], wanted.gradients["log_probs"], atol=1e-7)


# ---------------------------------------------------------------------------------------------------------- processes
class Rank:
    """One of several ranks that are threads of this process."""

    def __init__(self, rank, size, barrier, shelf):
        self.rank, self.size, self.barrier, self.shelf = rank, size, barrier, shelf

    def gather(self, value):
        self.shelf[self.rank] = value
        self.barrier.wait()
        found = list(self.shelf)
        self.barrier.wait()
        return found

    def sum(self, values):
        return torch.stack(self.gather(values)).sum(0)

    def max(self, values):
        return torch.stack(self.gather(values)).amax(0)

    def sum_gradients(self, parameters):
        for parameter in parameters:
            own = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parameter.grad = self.sum(own)


def together(learners, batches):
    """The reports of learners that train as ranks of one run, each on its own rows."""
    barrier, shelf = threading.Barrier(len(learners), timeout=20), [None] * len(learners)
    for rank, learner in enumerate(learners):
        learner.ranks = Rank(rank, len(learners), barrier, shelf)

    def updated(learner, batch):
        try:
            return learner.update(batch)
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(len(learners)) as pool:
        return list(pool.map(updated, learners, batches))


def demonstrations(*lengths):
    random = torch.Generator().manual_seed(0)
    rows = []
    for number, length in enumerate(lengths):
        tokens = torch.randint(4, 95, (length,), generator=random).tolist()
        rows.append(Demonstration(prompt=Prompt(id=number, text="", tokens=(5, 6)), completion=tuple(tokens), text=""))
    return rows


def with_gradients(learner):
    """A learner that keeps its gradients and takes no step."""
    learner.gradients = []
    learner.optimizer.adam.step = lambda: learner.gradients.append(
        {n: p.grad.clone() for n, p in learner.models.named_parameters().items()}
    )
    return learner


def test_a_rank_with_few_tokens_weighs_no_more_than_they_do():
    rows = demonstrations(10, 200)
    alone, first, second = (with_gradients(learning.learner("sft", optim=Optim(learning_rate=0.0))) for _ in range(3))
    wanted = alone.update(collate.of_demonstrations(rows, [0, 1]))
    parts = [collate.of_demonstrations([row], [number]) for number, row in enumerate(rows)]
    found = together([first, second], parts)
    for report in found:
        assert report.metrics["loss/nll"] == pytest.approx(wanted.metrics["loss/nll"], abs=1e-6)
    for learner in (first, second):
        worst = max(float((learner.gradients[0][n] - g).abs().max()) for n, g in alone.gradients[0].items())
        assert worst < 1e-6


def test_what_is_not_finite_on_one_rank_is_applied_on_none():
    rows = demonstrations(5, 6)
    first, second = learning.learner("sft"), learning.learner("sft")
    before = first.models.weights_sum()
    forward = second.models.forward

    def spoilt(batch, need):
        found = forward(batch, need)
        return replace(found, log_probs=found.log_probs * float("inf"))

    second.models.forward = spoilt
    reports = together([first, second], [collate.of_demonstrations([row], [n]) for n, row in enumerate(rows)])
    assert [r.weights_sum for r in reports] == [before, before]
    assert [r.metrics["updates/non_finite"] for r in reports] == [1, 1]


def test_more_processes_than_prompts_are_refused_before_the_first_step(tmp_path, monkeypatch):
    def four(self):
        self.rank, self.size = 0, 4

    monkeypatch.setattr(Ranks, "__init__", four)
    config = configs.load(small.write(tmp_path), ["train.prompts_per_step=3"])
    with pytest.raises(UserError) as error:
        assemble.build(config, RunDirectory(tmp_path / "run"), NoControl())
    assert error.value.exit_code == 2
    assert str(error.value).startswith("train.prompts_per_step: 3, but there are 4 processes")
    assert "use 4 or more" in str(error.value)


# --------------------------------------------------------------------------------------------------------- how often
class Engine:
    def generate(self, draws, *, group_size, greedy=False):
        return [
            Rollout(
                prompt=d.prompt, draw=d.draw, index=i, tokens=(7, 8 + i), log_probs=(-1.0, -1.0), text="",
                is_truncated=False, policy_version=0,
            )
            for d in draws
            for i in range(group_size)
        ]  # fmt: skip


def test_a_prompt_is_sampled_once_an_epoch_and_its_completions_are_trained_on_once_a_pass():
    source = SamplingSource(
        prompts=[Prompt(id=n, text="", tokens=(5, 6)) for n in range(20)],
        order=Order(20, seed=0, shuffle=True),
        engine=Engine(),
        score=lambda rollouts: [
            Scored(rollout=r, reward=float(r.index), parts=(float(r.index),), is_scored=True) for r in rollouts
        ],
        collate=collate.of_rollouts, prompts_per_step=5, group_size=4, reward_labels=("x",),
    )  # fmt: skip
    learner = learning.learner(epochs_per_batch=3, minibatches=2)
    used = Counter()
    forward = learner.models.forward

    def counted(batch, need):
        if need != Need.NONE:  # the pass that only measures how far the policy has moved
            used.update(zip(batch.prompt_ids.tolist(), batch.row_ids.tolist(), strict=True))
        return forward(batch, need)

    learner.models.forward = counted
    for _ in range(4):
        learner.update(source.next_batch())
    assert Counter(prompt for prompt, _ in used) == dict.fromkeys(range(20), 4)
    assert set(used.values()) == {3}
