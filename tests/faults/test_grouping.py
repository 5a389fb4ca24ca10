"""Which completions are compared with each other, and what is made of rewards that do not differ."""

from dataclasses import replace

import pytest
import torch

from tests import online
from tests.unit.train import learning
from trimtab import algorithms
from trimtab import config as configs
from trimtab.algorithms.credit import group_advantages
from trimtab.data import collate
from trimtab.data.order import Order
from trimtab.data.prompts import Limits, prompts
from trimtab.data.rows import Row
from trimtab.errors import ConfigError
from trimtab.models import builtin
from trimtab.rewards.scorer import Scorer
from trimtab.rewards.settings import RewardSpec
from trimtab.rollout.scheduler import SamplingSource
from trimtab.testing import cases
from trimtab.testing.algorithms import with_value
from trimtab.types import Frozen, Rollout


class Engine:
    """Completes every prompt with `1`."""

    def generate(self, draws, *, group_size, greedy=False):
        return [
            Rollout(
                prompt=d.prompt, draw=d.draw, index=i, tokens=(5,), log_probs=(-1.0,), text="1", is_truncated=False,
                policy_version=0,
            )
            for d in draws
            for i in range(group_size)
        ]  # fmt: skip


def test_two_rows_with_the_same_text_and_other_answers_are_two_groups():
    rows = [Row(id=n, place=f"a:{n}", values={"prompt": "x=", "answer": answer}) for n, answer in enumerate("12")]
    found, _ = prompts(rows, builtin.tokenizer(), Limits(max_prompt_length=9, max_length=9, long_prompts="drop"))
    source = SamplingSource(
        prompts=found, order=Order(2, seed=0, shuffle=False), engine=Engine(),
        score=Scorer([RewardSpec(name="exact_match")]).score, collate=collate.of_rollouts,
        prompts_per_step=2, group_size=4, reward_labels=("exact_match",),
    )  # fmt: skip
    batch = source.next_batch()
    assert batch.rewards.tolist() == [1.0] * 4 + [0.0] * 4
    grpo = algorithms.load("grpo")
    advantages = grpo.advantages(batch, Frozen(loss_mask=batch.loss_mask), grpo.config())
    assert not bool(advantages.values.any())


@pytest.mark.parametrize("seed", range(5))
def test_a_group_without_spread_among_groups_of_other_sizes_gets_exactly_zero(seed):
    groups = torch.tensor([7] * 4 + [3] * 3 + [5] * 4)
    rewards = torch.tensor([0.0, 1.0, 2.0, 3.0, 5.0, 5.0, 5.0, 9.0, 8.0, 7.0, 6.0])
    order = torch.randperm(11, generator=torch.Generator().manual_seed(seed))
    found = group_advantages(rewards[order], groups[order])
    expected = group_advantages(rewards[:4], groups[:4])
    assert not bool(found[groups[order] == 3].any())
    assert torch.equal(found[torch.argsort(order)][:4], expected)
    assert float(expected.abs().min()) > 0.3


@pytest.mark.parametrize("baseline", ["mean", "loo"])
@pytest.mark.parametrize("scale_by", ["group", "none"])
def test_equal_rewards_of_any_value_and_number_give_exactly_zero(baseline, scale_by):
    random = torch.Generator().manual_seed(0)
    for size in range(2, 33):
        values = torch.cat([torch.randn(20, generator=random) * scale for scale in (1.0, 100.0, 1e6)])
        groups = torch.arange(60).repeat_interleave(size)
        found = group_advantages(values.repeat_interleave(size), groups, baseline=baseline, scale_by=scale_by)
        assert not bool(found.any()), f"groups of {size}: up to {float(found.abs().max()):g}"


@pytest.mark.parametrize("value", [0.1, 1.0, 3.3, 100.0, -1e5])
@pytest.mark.parametrize("baseline", ["mean", "loo"])
def test_a_spread_of_one_rounding_makes_no_large_advantage(value, baseline):
    rewards = torch.full((4,), value)
    rewards[0] = torch.nextafter(rewards[0], torch.tensor(1e9))
    found = group_advantages(rewards, torch.zeros(4, dtype=torch.int64), baseline=baseline)
    assert float(found.abs().max()) <= 2.0


def test_an_advantage_over_the_others_stays_small_when_it_is_scaled():
    one, zeros = torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.zeros(4, dtype=torch.int64)
    found = group_advantages(one, zeros, baseline="loo", scale_by="group")
    assert found.tolist() == pytest.approx([2.0, -2 / 3, -2 / 3, -2 / 3], abs=1e-4)


@pytest.mark.parametrize("name", online.GROUPED)
def test_an_advantage_over_the_others_stays_small_with_every_algorithm_that_can_scale_it(name):
    algorithm, case = algorithms.load(name), cases.make()
    for rewards in ([1, 0, 0, 0, 0, 0, 0, 0], [0.1] * 7 + [0.1 + 1e-9], [1e6, 1e6 + 1e-3] * 4):
        batch = replace(
            case.batch, rewards=torch.tensor(rewards, dtype=torch.float64), group_ids=torch.tensor([0] * 4 + [1] * 4)
        )
        config = algorithm.config()
        for key, value in (("baseline", "loo"), ("scale_by", "group")):
            config = with_value(config, "advantage", key, value) or config
        found = algorithm.advantages(batch, case.frozen, config).values
        assert float(found.abs().max()) <= 10.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_rewards_of_few_bits_are_compared_in_many(dtype):
    rewards = torch.tensor([1.0, 1.0, 1.0, 1.0078125], dtype=dtype)
    found = group_advantages(rewards, torch.zeros(4, dtype=torch.int64))
    assert found.tolist() == pytest.approx([-0.5, -0.5, -0.5, 1.5], abs=1e-3)
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


@pytest.mark.parametrize("name", ["grpo", "ppo"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.bfloat16])
def test_whole_numbers_and_truth_values_are_rewards_too(name, dtype):
    algorithm = algorithms.load(name)
    case = cases.make()
    rewards = (torch.arange(8) % 3 == 0).to(dtype)
    plain = replace(case, batch=replace(case.batch, rewards=rewards.double()))
    given = replace(case, batch=replace(case.batch, rewards=rewards))
    wanted, found = (cases.evaluate(algorithm, algorithm.config(), c) for c in (plain, given))
    assert found.loss == wanted.loss
    assert torch.equal(found.gradients["log_probs"], wanted.gradients["log_probs"])


@pytest.mark.parametrize("baseline", ["mean", "loo"])
def test_a_group_of_one_is_refused_where_it_would_be_compared(baseline):
    values = {"algorithm": "grpo", "rewards": ["exact_match"], "advantage": {"baseline": baseline}}
    with pytest.raises(ConfigError, match=r"sampling\.group_size: 1, but grpo compares completions of one prompt"):
        configs.from_mapping({**values, "sampling": {"group_size": 1}})
    alone = {"advantage": {"baseline": "none", "scale_by": "none"}, "sampling": {"group_size": 1}}
    assert configs.from_mapping({**values, **alone}).sampling.group_size == 1


def test_a_completion_without_tokens_counts_in_its_group_and_is_written_to_no_place():
    batch = learning.batch(rows=2, groups=1, width=3)
    lengths = torch.tensor([3, 0])
    mask = torch.arange(3)[None, :] < lengths[:, None]
    batch = replace(batch, completion_lengths=lengths, loss_mask=mask, rewards=torch.tensor([0.0, 10.0]))
    zeros = torch.zeros(2, 3)
    frozen = Frozen(loss_mask=mask, old_log_probs=zeros, old_values=zeros, bootstrap_values=torch.zeros(2))
    for name in ("grpo", "ppo"):
        algorithm = algorithms.load(name)
        config = algorithm.config()
        if name == "ppo":
            config = replace(config, advantage=replace(config.advantage, whiten=False))
        values = algorithm.advantages(batch, frozen, config).values
        expected = -(0.5**0.5) if name == "grpo" else 0.0
        assert values[0].tolist() == pytest.approx([expected] * 3, abs=1e-5)
        assert not bool(values[1].any())


def test_a_step_in_which_no_group_differs_moves_nothing_and_says_so():
    learner = learning.learner(minibatches=2)
    before = learner.models.weights_sum()
    report = learner.update(learning.with_rewards(learning.batch(), torch.full((12,), 0.3)))
    assert report.weights_sum == before
    assert report.metrics["reward/zero_spread_groups"] == 1.0
    assert report.metrics["grad_norm/total"] == 0.0
