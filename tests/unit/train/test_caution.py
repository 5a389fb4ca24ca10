"""A careful start."""

import json

import pytest

from trimtab.algorithms.base import Kl, Shared
from trimtab.algorithms.grpo import GRPOConfig
from trimtab.train.caution import Caution
from trimtab.train.settings import Cautious


def config(coef):
    return GRPOConfig(shared=Shared(kl=Kl(coef=coef)))


def test_it_ramps_to_what_is_set_over_calm_steps():
    caution = Caution(Cautious(steps=4))
    found = []
    for _ in range(6):
        found.append((round(caution.learning_rate_factor, 3), round(caution.applied_to(config(0.1)).shared.kl.coef, 3)))
        caution.advance(is_calm=True)
    assert found == [(0.1, 0.2), (0.325, 0.175), (0.55, 0.15), (0.775, 0.125), (1.0, 0.1), (1.0, 0.1)]


def test_a_step_with_an_alarm_does_not_count():
    caution = Caution(Cautious(steps=2))
    for is_calm in (True, False, False):
        caution.advance(is_calm=is_calm)
    assert caution.learning_rate_factor == pytest.approx(0.55)


def test_without_it_nothing_is_changed():
    caution = Caution(None)
    assert (caution.learning_rate_factor, caution.kl_factor) == (1.0, 1.0)
    same = config(0.1)
    assert caution.applied_to(same) is same


def test_it_goes_on_where_it_was():
    first, second = Caution(Cautious(steps=5)), Caution(Cautious(steps=5))
    first.advance(is_calm=True)
    second.load_state(json.loads(json.dumps(first.state())))
    assert second.learning_rate_factor == first.learning_rate_factor == pytest.approx(0.28)
