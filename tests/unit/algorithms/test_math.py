"""Arithmetic that the contract suite's small cases do not reach."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trimtab.algorithms import credit


@given(
    st.floats(-1000, 1000, width=32),
    st.sampled_from([2, 3, 8, 16, 64]),
    st.sampled_from(["group", "batch", "none"]),
    st.sampled_from(["mean", "loo"]),
)
def test_equal_rewards_give_exactly_zero_at_any_size(reward, size, scale_by, baseline):
    rewards = torch.full((2 * size,), reward, dtype=torch.float32)
    rewards[size:] = torch.arange(size)
    groups = torch.arange(2 * size) // size
    found = credit.group_advantages(rewards, groups, scale_by=scale_by, baseline=baseline)
    assert not bool(found[:size].any())
    assert bool(found[size:].any())


@given(st.floats(-1000, 1000, width=32), st.integers(1, 100))
def test_whitening_a_constant_gives_exactly_zero(value, size):
    on = torch.ones(1, size, dtype=torch.bool)
    assert not bool(credit.whiten(torch.full((1, size), value), on).any())


def test_a_leave_one_out_advantage_stays_bounded():
    found = credit.group_advantages(
        torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.zeros(4, dtype=torch.int64), baseline="loo", scale_by="group"
    )
    assert float(found.abs().max()) < 10


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.bool, torch.float16])
def test_rewards_of_any_type_are_computed_in_full(dtype):
    rewards = torch.tensor([1, 1, 1, 0], dtype=dtype)
    found = credit.group_advantages(rewards, torch.zeros(4, dtype=torch.int64))
    assert found.dtype == torch.float32
    assert found.tolist() == pytest.approx([0.5, 0.5, 0.5, -1.5], abs=1e-5)


def test_scaling_by_the_group_needs_groups_even_without_a_baseline():
    from trimtab.algorithms.grpo import ALGORITHM, Group, GRPOConfig
    from trimtab.types import Need

    assert Need.GROUPS in ALGORITHM.needs(GRPOConfig(advantage=Group(baseline="none")))
    assert Need.GROUPS not in ALGORITHM.needs(GRPOConfig(advantage=Group(baseline="none", scale_by="none")))
