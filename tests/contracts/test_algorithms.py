"""Every built-in algorithm through the shipped contract suite, on batches of several seeds."""

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from trimtab import algorithms
from trimtab.testing import algorithms as suite

SEEDS = (0, 1, 6, 7919)
"""Of the batches of the normal run; `test_contract_at_length` draws many more."""
WITHOUT_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)
"""A smaller seed is no simpler batch."""


@pytest.mark.parametrize("name", list(algorithms.MODULES))
@pytest.mark.parametrize("check", suite.CHECKS, ids=lambda check: check.__name__)
def test_contract(name, check):
    for seed in SEEDS:
        check(algorithms.load(name), seed)


def broken(name, **changes):
    from dataclasses import replace

    return replace(algorithms.load(name), **changes)


def test_the_suite_catches_a_loss_that_averages_by_itself():
    from dataclasses import replace

    grpo = algorithms.load("grpo")

    def averaged(batch, frozen, advantages, policy, config):
        terms = grpo.terms(batch, frozen, advantages, policy, config)
        own = terms["policy"]
        return {**terms, "policy": replace(own, values=own.values / own.values.shape[0])}

    with pytest.raises(AssertionError, match="cut into"):
        suite.gradient_does_not_depend_on_the_micro_batches(broken("grpo", terms=averaged))


def test_the_suite_catches_advantages_from_a_partial_group():
    def by_neighbour(batch, frozen, config):
        from trimtab.types import Advantages

        values = batch.rewards - batch.rewards.roll(1)
        return Advantages(loss_mask=batch.loss_mask, values=values[:, None] * batch.loss_mask)

    with pytest.raises(AssertionError, match="order"):
        suite.gradient_does_not_depend_on_the_order_of_rows(broken("grpo", advantages=by_neighbour))


def test_the_suite_catches_an_undeclared_need():
    from trimtab.errors import UnmetNeedError
    from trimtab.types import Need

    with pytest.raises(UnmetNeedError, match="critic"):
        suite.it_runs_with_exactly_the_parts_it_needs(
            broken("ppo", needs=lambda config: Need.ROLLOUTS | config.shared.needs())
        )


@pytest.mark.soak
@pytest.mark.parametrize("name", list(algorithms.MODULES))
@pytest.mark.parametrize("check", suite.CHECKS, ids=lambda check: check.__name__)
@settings(max_examples=500, deadline=None, phases=WITHOUT_SHRINKING)
@given(seed=st.integers(0, 10_000_000))
def test_contract_at_length(name, check, seed):
    check(algorithms.load(name), seed)
