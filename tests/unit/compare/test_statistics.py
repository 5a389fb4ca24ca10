"""How often a comparison of arms is wrong, counted over many of them; and the tables of textbooks."""

import itertools
import math
import random
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.compare.statistics import LEVEL, Difference, difference, holm, t_cdf, t_quantile

TABLE = {1: 12.7062, 2: 4.3027, 3: 3.1824, 4: 2.7764, 7: 2.3646, 10: 2.2281, 29: 2.0452, 120: 1.9799}
"""Student's t at 97.5 %, by degrees of freedom."""


@pytest.mark.parametrize(("degrees", "expected"), TABLE.items())
def test_t_is_that_of_the_tables(degrees, expected):
    assert t_quantile(0.975, degrees) == pytest.approx(expected, abs=1e-4)
    assert t_cdf(expected, degrees) == pytest.approx(0.975, abs=1e-5)


@given(st.floats(-50, 50), st.integers(1, 300))
def test_t_is_symmetric_and_near_the_normal_for_many_degrees(t, degrees):
    assert t_cdf(t, degrees) + t_cdf(-t, degrees) == pytest.approx(1, abs=1e-9)
    assert t_cdf(t, 2000) == pytest.approx(NormalDist().cdf(t), abs=1e-3)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_only_raises_and_keeps_the_order(p):
    found = holm(p)
    assert all(a >= b for a, b in zip(found, p, strict=True))
    assert all(q <= 1 for q in found)
    for (p1, q1), (p2, q2) in itertools.combinations(zip(p, found, strict=True), 2):
        assert (p1 - p2) * (q1 - q2) >= 0
    assert min(found) <= min(1.0, len(p) * min(p) * (1 + 1e-12))


def answers(rng, seeds, prompts, effect, spread, difficulty):
    """Right or wrong, of an arm whose seeds differ by `spread` and which is better by `effect`."""
    level = difficulty + rng.normal(0, spread, (seeds, 1)) + effect
    return (rng.uniform(size=(seeds, prompts)) < np.clip(level, 0, 1)).astype(float)


def share_found(seeds, effect, spread, *, prompts=120, trials=100):
    """How often a difference is seen, and how often the true one is inside the interval."""
    rng = np.random.default_rng(5)
    seen = inside = 0
    for trial in range(trials):
        difficulty = rng.uniform(0.15, 0.75, prompts)
        one, other = (answers(rng, seeds, prompts, e, spread, difficulty) for e in (effect, 0.0))
        found = difference(one, other, seed=trial)
        seen += found.p < LEVEL
        inside += found.low <= effect <= found.high
    return seen / trials, inside / trials


@pytest.mark.parametrize(("seeds", "spread"), [(2, 0.03), (3, 0.0), (3, 0.05), (5, 0.1)])
def test_equal_arms_come_out_equal(seeds, spread):
    seen, inside = share_found(seeds, 0.0, spread)
    assert seen <= 0.07
    assert inside >= 0.93


@pytest.mark.parametrize(("seeds", "spread"), [(3, 0.02), (5, 0.05)])
def test_a_clearly_better_arm_is_found_better(seeds, spread):
    seen, inside = share_found(seeds, 0.25, spread, trials=60)
    assert seen >= 0.9
    assert inside >= 0.9


def test_the_sign_says_which_is_better_and_the_pairing_counts():
    rng = np.random.default_rng(1)
    level = rng.uniform(0.0, 1.0, 200)  # prompts differ far more than arms do
    worse = np.repeat(level[None], 3, 0) + rng.normal(0, 0.01, (3, 200))
    found = difference(worse + 0.02, worse)
    assert found.low > 0
    assert found.mean == pytest.approx(0.02)
    back = difference(worse, worse + 0.02)
    assert (back.mean, back.p) == pytest.approx((-found.mean, found.p))
    shuffled = difference(worse + 0.02, worse[:, rng.permutation(200)])
    assert shuffled.p > LEVEL


def test_the_same_answers_are_no_difference_and_a_constant_one_is_certain():
    table = np.random.default_rng(0).uniform(size=(3, 50))
    same = difference(table, table)
    assert (same.mean, same.low, same.high, same.p) == (0, 0, 0, 1)
    found = difference(table + 0.5, table)
    assert found.p == 0
    assert found.mean == pytest.approx(0.5)


def test_one_number_says_nothing():
    assert difference(np.ones((1, 1)), np.zeros((1, 1))).p == 1


@pytest.mark.parametrize("shapes", [((2, 3), (3, 2)), ((0, 3), (0, 3)), ((3,), (3,))])
def test_tables_that_are_not_paired_are_refused(shapes):
    with pytest.raises(ValueError, match="paired tables of one shape"):
        difference(*(np.zeros(shape) for shape in shapes))


def test_so_many_seeds_as_are_said_do_show_the_difference():
    """The number that is announced, tried: four of five comparisons, or a little more, find it."""
    spread, prompts, size = 0.08, 200, 0.1
    rng = np.random.default_rng(3)
    said = []
    for trial in range(30):
        difficulty = rng.uniform(0.2, 0.7, prompts)
        one, other = (answers(rng, 6, prompts, 0.0, spread, difficulty) for _ in range(2))
        said.append(difference(one, other, seed=trial).seeds_for(size))
    needed = sorted(said)[len(said) // 2]
    assert 6 < needed < 30
    seen, _ = share_found(needed, size, spread, prompts=prompts, trials=40)
    assert 0.6 <= seen <= 1.0
    few, _ = share_found(3, size, spread, prompts=prompts, trials=40)
    assert few < seen - 0.2


def test_seeds_are_not_promised_beyond_reason():
    wide = Difference(mean=0, low=-9, high=9, error=3.0, p=1, seeds=3, prompts=5)
    assert wide.seeds_for(0.01) is None
    assert wide.seeds_for(30.0) == 3 or wide.seeds_for(30.0) == 2
    counts = [
        Difference(mean=0, low=0, high=0, error=0.05, p=1, seeds=4, prompts=9).seeds_for(s) for s in (0.2, 0.1, 0.05)
    ]
    assert counts == sorted(counts)


def test_the_resampling_is_repeatable():
    rng = random.Random(0)
    tables = [np.array([[rng.random() for _ in range(40)] for _ in range(3)]) for _ in range(2)]
    assert difference(*tables, seed=4) == difference(*tables, seed=4)
    one, other = (difference(*tables, seed=s) for s in (1, 2))
    assert math.isclose(one.error, other.error, rel_tol=0.1)
