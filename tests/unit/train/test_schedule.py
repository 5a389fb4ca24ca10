"""Numbers that change over the steps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.algorithms import grpo
from trimtab.algorithms.base import Kl, Shared
from trimtab.train.schedule import at, learning_rate_factor, value_at
from trimtab.train.settings import Optim
from trimtab.types import Schedule


@pytest.mark.parametrize(
    ("kind", "steps", "values"),
    [
        ("linear", 5, {1: 1.0, 2: 0.75, 3: 0.5, 5: 0.0, 6: 0.0, 1000: 0.0}),
        ("cosine", 5, {1: 1.0, 2: 0.8535533905932737, 3: 0.5, 4: 0.1464466094067263, 5: 0.0, 9: 0.0}),
        ("constant", 5, {1: 1.0, 3: 1.0, 5: 1.0, 50: 1.0}),
        ("linear", 1, {1: 1.0, 2: 0.0}),
    ],
)
def test_a_schedule_goes_from_its_start_at_step_1_to_its_end(kind, steps, values):
    schedule = Schedule(kind=kind, start=1.0, end=0.0, steps=steps)
    assert {step: value_at(schedule, step) for step in values} == pytest.approx(values)


@given(
    st.sampled_from(["linear", "cosine", "constant"]), st.floats(0, 10), st.floats(0, 10), st.integers(1, 50),
    st.integers(1, 100),
)  # fmt: skip
def test_a_schedule_never_leaves_its_ends_and_moves_one_way(kind, start, end, steps, step):
    schedule = Schedule(kind=kind, start=start, end=end, steps=steps)
    now, then = value_at(schedule, step), value_at(schedule, step + 1)
    slack = 1e-12
    assert min(start, end) - slack <= now <= max(start, end) + slack
    assert (then - now) * (end - start) >= -slack


def test_every_schedule_of_a_config_becomes_a_number_and_nothing_else_changes():
    kl = Kl(coef=Schedule(kind="linear", start=0.2, end=0.0, steps=3))
    config = grpo.GRPOConfig(shared=Shared(kl=kl))
    found = at(config, 2)
    assert found.shared.kl.coef == pytest.approx(0.1)
    assert found.policy is config.policy
    assert found.shared.policy is config.shared.policy
    assert config.shared.kl is kl


def test_a_config_without_schedules_is_itself():
    config = grpo.GRPOConfig()
    assert at(config, 3) is config


@pytest.mark.parametrize(
    ("optim", "factors"),
    [
        (Optim(), {1: 1.0, 50: 1.0, 100: 1.0}),
        (Optim(warmup_steps=4), {1: 0.25, 2: 0.5, 4: 1.0, 5: 1.0, 100: 1.0}),
        (Optim(schedule="linear"), {1: 1.0, 51: 0.5, 100: 0.01, 101: 0.0}),
        (Optim(schedule="linear", warmup_steps=20), {10: 0.5, 20: 1.0, 61: 0.5, 100: 1 / 80, 101: 0.0}),
        (Optim(schedule="cosine", warmup_steps=20), {20: 1.0, 61: 0.5, 81: 0.1464466094067262, 101: 0.0}),
        (Optim(schedule="linear", warmup_steps=200), {100: 0.5, 200: 1.0}),
    ],
)
def test_the_learning_rate_rises_over_the_warm_up_and_then_falls_as_scheduled(optim, factors):
    found = {step: learning_rate_factor(optim, step, 100) for step in factors}
    assert found == pytest.approx(factors)


@given(st.sampled_from(["linear", "cosine", "constant"]), st.integers(0, 20), st.integers(1, 60), st.integers(1, 80))
def test_the_learning_rate_is_never_negative_or_above_the_set_one(schedule, warmup, max_steps, step):
    assert 0.0 <= learning_rate_factor(Optim(schedule=schedule, warmup_steps=warmup), step, max_steps) <= 1.0
