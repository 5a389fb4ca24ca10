"""A few numbers of each loss, worked out with pencil and paper."""

import math
from dataclasses import replace

import pytest
import torch

from trimtab import algorithms
from trimtab.algorithms.gspo import Segment
from trimtab.testing.algorithms import with_value
from trimtab.train import update
from trimtab.types import Advantages, Batch, Frozen, Policy

OLD = -2.0


def batch(lengths, rewards=None, groups=None, tokens=None):
    rows, width = len(lengths), max(lengths)
    one = torch.ones(rows, dtype=torch.int64)
    sampled = torch.tensor(tokens) if tokens else torch.full((rows, width), 9)
    return Batch(
        tokens=torch.cat([torch.full((rows, 1), 5), sampled], 1), prompt_lengths=one, completion_lengths=torch.tensor(lengths),
        loss_mask=torch.arange(width)[None, :] < torch.tensor(lengths)[:, None],
        group_ids=torch.tensor(groups or [0] * rows), row_ids=torch.arange(rows), prompt_ids=one,
        rewards=torch.tensor(rewards or [0.0] * rows, dtype=torch.float64), is_scored=one.bool(), is_truncated=one < 0,
    )  # fmt: skip


def advantages_of(name, given, *changes):
    algorithm = algorithms.load(name)
    config = algorithm.config()
    for change in changes:
        config = with_value(config, *change)
    frozen = Frozen(loss_mask=given.loss_mask, old_log_probs=torch.full(given.loss_mask.shape, OLD))
    return algorithm.advantages(given, frozen, config).values


def policy_term(name, given, log_ratios, advantages, *changes):
    """Unreduced values of the policy's term and their gradient with respect to the log-probs."""
    algorithm = algorithms.load(name)
    config = algorithm.config()
    for change in changes:
        config = with_value(config, *change)
    log_probs = (torch.tensor(log_ratios) + OLD).requires_grad_(True)
    mask = given.loss_mask
    frozen = Frozen(loss_mask=mask, old_log_probs=torch.full(mask.shape, OLD))
    made = Advantages(loss_mask=mask, values=torch.tensor(advantages))
    policy = Policy(loss_mask=mask, log_probs=log_probs)
    frozen = update.with_statistics(
        algorithm, config, given, frozen, made, Policy(loss_mask=mask, log_probs=log_probs.detach())
    )
    values = algorithm.terms(given, frozen, made, policy, config)["policy"].values
    values.sum().backward()
    return values.detach().flatten().tolist(), log_probs.grad.flatten().tolist()


# ------------------------------------------------------------------------------------------------------ advantages
def test_rloo_takes_the_mean_of_the_others():
    found = advantages_of("rloo", batch([1, 1, 1], [1.0, 2.0, 6.0]))
    assert found.flatten().tolist() == pytest.approx([1 - 4, 2 - 3.5, 6 - 1.5])


def test_grpo_divides_by_the_deviation_and_dr_grpo_does_not():
    rows = batch([1, 1, 1], [1.0, 2.0, 6.0])  # mean 3, squares 4 + 1 + 9 = 14, deviation sqrt(7)
    assert advantages_of("dr_grpo", rows).flatten().tolist() == pytest.approx([-2.0, -1.0, 3.0])
    root = math.sqrt(7)
    assert advantages_of("grpo", rows).flatten().tolist() == pytest.approx([-2 / root, -1 / root, 3 / root], abs=1e-5)


def test_reinforce_gives_every_token_the_discounted_rest():
    found = advantages_of("reinforce", batch([3, 1], [8.0, 3.0]), ("advantage", "gamma", 0.5))
    assert found.tolist() == [[2.0, 4.0, 8.0], [3.0, 0.0, 0.0]]


def test_reinforce_pp_whitens_over_the_tokens_of_all_rows():
    found = advantages_of("reinforce_pp", batch([2, 1], [1.0, 4.0]))  # 1, 1, 4: mean 2, squares 1 + 1 + 4, variance 3
    root = math.sqrt(3)
    assert found.tolist() == [pytest.approx([-1 / root, -1 / root]), pytest.approx([2 / root, 0.0])]


def test_reinforce_pp_baseline_takes_the_group_s_mean_and_then_whitens_over_tokens():
    rows = batch([1, 1, 2, 1], [0.0, 2.0, 5.0, 9.0], groups=[0, 0, 1, 1])  # -1, 1, -2, -2, 2: mean -0.4, squares 13.2
    root = math.sqrt(13.2 / 4)
    wanted = [[-0.6 / root, 0.0], [1.4 / root, 0.0], [-1.6 / root, -1.6 / root], [2.4 / root, 0.0]]
    assert advantages_of("reinforce_pp_baseline", rows).tolist() == [pytest.approx(row, abs=1e-6) for row in wanted]


# ---------------------------------------------------------------------------------------------------- ratios, clips
def test_gspo_s_ratio_is_the_geometric_mean_of_the_row_s_tokens():
    wide = [("policy", "clip_low", 9.0), ("policy", "clip_high", 9.0)]
    values, gradient = policy_term("gspo", batch([2]), [[math.log(4.0), 0.0]], [[3.0, 3.0]], *wide)
    assert values == pytest.approx([-6.0, -6.0])  # sqrt(4) = 2
    assert gradient == pytest.approx([-6.0, -6.0])  # two values, each with half of -6 at each token
    values, gradient = policy_term("gspo", batch([2]), [[math.log(4.0), 0.0]], [[3.0, 3.0]])
    assert values == pytest.approx([-3 * 1.0004] * 2)
    assert gradient == [0.0, 0.0]


def test_gspo_token_has_the_row_s_value_and_each_token_s_own_gradient():
    wide = [("policy", "clip_low", 9.0), ("policy", "clip_high", 9.0)]
    values, gradient = policy_term("gspo_token", batch([2]), [[math.log(4.0), 0.0]], [[3.0, 1.0]], *wide)
    assert values == pytest.approx([-6.0, -2.0])
    assert gradient == pytest.approx([-6.0, -2.0])


def test_gspo_segment_s_marks_close_a_segment_and_belong_to_it():
    marks = [("policy", "segment", Segment(end_marks=(7,))), ("policy", "clip_low", 9.0), ("policy", "clip_high", 9.0)]
    rows = batch([4], tokens=[[8, 7, 8, 8]])
    ratios = [[math.log(9.0), 0.0, math.log(4.0), math.log(1.0)]]
    values, _ = policy_term("gspo_segment", rows, ratios, [[1.0] * 4], *marks)
    assert values == pytest.approx([-3.0, -3.0, -2.0, -2.0])
    by_length = [("policy", "segment", Segment(length=3)), *marks[1:]]
    values, _ = policy_term("gspo_segment", rows, ratios, [[1.0] * 4], *by_length)
    assert values == pytest.approx([-(36 ** (1 / 3))] * 3 + [-1.0])


def test_cispo_caps_the_weight_and_keeps_the_gradient():
    values, gradient = policy_term("cispo", batch([2]), [[math.log(8.0), math.log(0.1)]], [[2.0, 2.0]])
    assert gradient == pytest.approx([-5.0 * 2, -0.1 * 2])
    assert values == pytest.approx([-10.0 * (OLD + math.log(8.0)), -0.2 * (OLD + math.log(0.1))], rel=1e-5)
    _, gradient = policy_term("cispo", batch([1]), [[math.log(0.1)]], [[2.0]], ("policy", "clip_low", 0.25))
    assert gradient == pytest.approx([-0.75 * 2])


@pytest.mark.parametrize(
    ("advantage", "mean", "moves"), [(1.0, (0.4 - 1.0) / 2, (0.0, 1.0)), (-1.0, (1.0 - 0.4) / 2, (1.0, 0.0))]
)
def test_gmpo_clips_each_token_s_log_ratio_on_the_side_of_the_advantage(advantage, mean, moves):
    values, gradient = policy_term("gmpo", batch([2]), [[1.0, -1.0]], [[advantage] * 2])
    assert values == pytest.approx([-math.exp(mean) * advantage] * 2)
    assert gradient == pytest.approx([-math.exp(mean) * advantage * move for move in moves])


def test_sapo_s_gate_is_ppo_at_ratio_one_and_closes_by_degrees():
    values, gradient = policy_term("sapo", batch([2]), [[0.0, 0.0]], [[3.0, -3.0]])
    assert values == pytest.approx([-2 * 3.0, 2 * 3.0 / 1.05])  # 4 / tau times one half
    assert gradient == pytest.approx([-3.0, 3.0])
    _, gradient = policy_term("sapo", batch([1]), [[math.log(3.0)]], [[1.0]])
    gate = 1 / (1 + math.exp(-2.0))
    assert gradient == pytest.approx([-4 * gate * (1 - gate) * 3.0], rel=1e-5)


# ----------------------------------------------------------------------------------------------------- covariances
LOG_RATIOS, ADVANTAGES = [[0.0, 0.3, -0.3, 0.0]], [[1.0, 3.0, -3.0, -1.0]]
"""Means 0: covariances 0, 0.9, 0.9, 0; a tie, which the position breaks."""


def test_kl_cov_makes_the_first_of_the_highest_covariances_pay_for_moving():
    values, gradient = policy_term("kl_cov", batch([4]), LOG_RATIOS, ADVANTAGES, ("policy", "cov_share", 0.25))
    paid, plain = -3 * math.exp(0.3) + 0.3, 3 * math.exp(-0.3)
    assert values == pytest.approx([-1.0, paid, plain, 1.0], rel=1e-5)
    assert gradient == pytest.approx([-1.0, -3 * math.exp(0.3) + 1.0, plain, 1.0], rel=1e-5)
    both, _ = policy_term("kl_cov", batch([4]), LOG_RATIOS, ADVANTAGES, ("policy", "cov_share", 0.5))
    assert both == pytest.approx([-1.0, paid, plain + 0.3, 1.0], rel=1e-5)


def test_clip_cov_leaves_out_those_between_the_bounds_and_no_others():
    bounds = [("policy", "cov_low", 0.5), ("policy", "cov_high", 1.0), ("policy", "cov_share", 1.0)]
    values, gradient = policy_term("clip_cov", batch([4]), LOG_RATIOS, ADVANTAGES, *bounds)
    assert values == pytest.approx([-1.0, 0.0, 0.0, 1.0])
    assert gradient == pytest.approx([-1.0, 0.0, 0.0, 1.0])
    one, _ = policy_term("clip_cov", batch([4]), LOG_RATIOS, ADVANTAGES, *bounds[:2])
    assert sorted(value == 0 for value in one) == [False, False, False, True], "at least one of those that qualify"
    none, _ = policy_term("clip_cov", batch([4]), LOG_RATIOS, ADVANTAGES, ("policy", "cov_low", 2.0))
    assert all(none)


def test_dapo_is_the_clip_of_ppo_with_more_room_above():
    values, gradient = policy_term(
        "dapo", batch([3]), [[math.log(1.27), math.log(1.3), math.log(0.7)]], [[1.0, 1.0, -1.0]]
    )
    assert values == pytest.approx([-1.27, -1.28, 0.8])
    assert gradient == pytest.approx([-1.27, 0.0, 0.0])


def test_a_row_s_place_in_the_update_changes_none_of_it():
    two = replace(batch([2, 2]), row_ids=torch.tensor([5, 3]))
    values, _ = policy_term("gspo", two, [[0.0001, 0.0], [0.0, 0.0]], [[1.0, 1.0], [-1.0, -1.0]])
    assert values == pytest.approx([-math.exp(5e-5)] * 2 + [1.0] * 2)
