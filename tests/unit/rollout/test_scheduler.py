"""The sampling source: every prompt once, groups by draw, a cursor that can be put back."""

import torch

from trimtab.data import collate
from trimtab.data.order import Order
from trimtab.rollout.evaluator import RolloutEvaluator
from trimtab.rollout.scheduler import SamplingSource
from trimtab.types import Prompt, Rollout, Scored

PROMPTS = [Prompt(id=i, text="same text", tokens=(5, 6), columns={"answer": str(i)}) for i in range(10)]


class Engine:
    """Answers with the prompt's own number; counts what it was asked for."""

    def __init__(self):
        self.version = 0
        self.asked = []

    def refresh(self, *, version):
        self.version = version

    def generate(self, draws, *, group_size, greedy=False):
        self.asked.append((len(draws), group_size, greedy))
        return [
            Rollout(
                prompt=d.prompt, draw=d.draw, index=i, tokens=(7,) * (1 + i), log_probs=(-1.0,) * (1 + i),
                text=str(d.prompt.id), is_truncated=False, policy_version=self.version,
            )
            for d in draws
            for i in range(group_size)
        ]  # fmt: skip


def score(rollouts):
    return [Scored(rollout=r, reward=float(r.prompt.id), parts=(float(r.prompt.id),), is_scored=True) for r in rollouts]


def source(rank=0, ranks=1, per_step=4):
    return SamplingSource(
        prompts=PROMPTS,
        order=Order(len(PROMPTS), seed=0, shuffle=True),
        engine=Engine(),
        score=score,
        collate=collate.of_rollouts,
        prompts_per_step=per_step,
        group_size=3,
        reward_labels=("id",),
        rank=rank,
        ranks=ranks,
    )


def test_every_prompt_is_used_once_an_epoch():
    whole = source(per_step=5)
    seen = [i for _ in range(2) for i in whole.next_batch().prompt_ids.tolist()]
    assert sorted(seen) == sorted(list(range(10)) * 3)


def test_ranks_share_the_prompts_of_a_step_without_overlap():
    alone = source().next_batch()
    parts = [source(rank=r, ranks=3).next_batch() for r in range(3)]
    assert sorted(torch.cat([p.row_ids for p in parts]).tolist()) == sorted(alone.row_ids.tolist())
    assert sorted(torch.cat([p.prompt_ids for p in parts]).tolist()) == sorted(alone.prompt_ids.tolist())


def test_two_rows_with_the_same_text_are_two_groups():
    batch = source().next_batch()
    assert len(set(batch.group_ids.tolist())) == 4
    for group in set(batch.group_ids.tolist()):
        assert len(set(batch.rewards[batch.group_ids == group].tolist())) == 1


def test_the_cursor_is_put_back():
    first = source()
    first.next_batch()
    second = source()
    second.load_state(first.state())
    assert torch.equal(first.next_batch().row_ids, second.next_batch().row_ids)


def test_the_version_of_the_weights_travels_with_the_tokens():
    it = source()
    it.refresh(version=4)
    batch = it.next_batch()
    assert set(batch.policy_versions[batch.loss_mask].tolist()) == {4}


def test_an_evaluation_judges_each_prompt_once_on_any_number_of_ranks():
    def evaluator(rank, ranks, gather):
        return RolloutEvaluator(
            engine=Engine(), prompts=PROMPTS, score=score, reward_labels=("id",), every=5,
            rank=rank, ranks=ranks, gather=gather,
        )  # fmt: skip

    alone = evaluator(0, 1, lambda value: [value]).evaluate_if_due(5)
    shares = []
    for rank in range(3):
        evaluator(rank, 3, lambda value: shares.append(value) or [value]).evaluate_if_due(5)
    together = evaluator(0, 3, lambda value: shares).evaluate_if_due(5)
    assert alone.metrics == together.metrics
    assert alone.samples == together.samples
    assert alone.metrics["eval/count"] == 10
    assert alone.metrics["eval/reward/mean"] == 4.5
    assert evaluator(0, 1, lambda v: [v]).evaluate_if_due(4) is None
    assert evaluator(0, 1, lambda v: [v]).evaluate_if_due(4, last=True) is not None
