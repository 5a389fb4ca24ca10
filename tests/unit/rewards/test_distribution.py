"""How rewards are spread and how far they have moved: figures by hand, and verdicts that chance does not set off."""

import math
import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.rewards import distribution
from trimtab.rewards.distribution import Observed, drift, findings, summary

NUMBERS = st.lists(st.floats(-50, 50).map(lambda x: round(x, 2)), min_size=1, max_size=60)


def observed(values, lengths=None, labels=()):
    return Observed(values=values, lengths=lengths or [1.0] * len(values), labels=labels)


def names(now, before=None):
    moved = None if before is None else drift(before, now)
    return [f.name for f in findings(summary(now), moved)]


def normal(mean, std, count, seed):
    made = random.Random(seed)
    return [made.gauss(mean, std) for _ in range(count)]


def test_a_set_is_summed_up():
    found = summary(observed([0.0, 1.0, None, 1.0, 0.5], [2, 4, 9, 6, 3], [False, True, True, True, None]))
    assert (found.count, found.missing, found.mean, found.min, found.max) == (4, 1, 0.625, 0.0, 1.0)
    assert found.std == pytest.approx(statistics.stdev([0, 1, 1, 0.5]))
    assert found.quantiles == pytest.approx({"0.05": 0.075, "0.25": 0.375, "0.5": 0.75, "0.75": 1.0, "0.95": 1.0})
    assert (found.at_max, found.at_min, found.length_mean) == (0.5, 0.25, 3.75)
    assert found.length_correlation == pytest.approx(0.94868, abs=1e-4)
    assert (found.good, found.bad) == ({"count": 2, "mean": 1.0, "std": 0.0}, {"count": 1, "mean": 0.0, "std": 0.0})
    assert found.auc.value == 1.0


def test_of_no_values_there_is_nothing_to_say():
    assert summary(observed([None, None])) == distribution.Summary(count=0, missing=2)
    assert drift(observed([None]), observed([1.0])) is None
    assert findings(summary(observed([])), None) == []


def test_values_close_to_the_largest_count_as_the_largest():
    assert summary(observed([0.0, 0.9899, 0.9901, 1.0])).at_max == 0.5


def test_the_stability_index_by_hand():
    before, now = observed([0.0] * 6 + [1.0] * 4), observed([0.0] * 2 + [1.0] * 8)
    a, b, c, d = 6.5 / 11, 4.5 / 11, 2.5 / 11, 8.5 / 11
    found = drift(before, now)
    assert found.psi == pytest.approx((c - a) * math.log(c / a) + (d - b) * math.log(d / b))
    assert [(x.before, x.now) for x in found.bins] == [(0.6, 0.2), (0.4, 0.8)]
    assert found.ks == pytest.approx(0.4)
    assert found.psi_noise == pytest.approx(0.2 * 3.84, rel=0.03)


@pytest.mark.parametrize(
    ("statistic", "n", "m", "p"), [(0.5, 20, 20, 0.0082), (0.3, 50, 50, 0.0171), (0.1, 100, 80, 0.754)]
)
def test_p_values_are_those_of_tables(statistic, n, m, p):
    """Stephens' correction against the asymptotic distribution with the corrected argument."""
    assert distribution.ks_p_value(statistic, n, m) == pytest.approx(p, rel=0.06)


@pytest.mark.parametrize(("degrees", "value"), [(1, 3.841), (2, 5.991), (5, 11.070), (9, 16.919)])
def test_quantiles_of_chi_square(degrees, value):
    assert distribution.chi_square_95(degrees) == pytest.approx(value, rel=0.03)


@given(values=NUMBERS)
@settings(max_examples=60, deadline=None)
def test_a_set_has_not_moved_from_itself(values):
    found = drift(observed(values), observed(list(reversed(values))))
    assert (found.psi, found.ks, found.ks_p, found.outside, found.level) == (0.0, 0.0, 1.0, 0.0, "none")


@given(before=NUMBERS, now=NUMBERS)
@settings(max_examples=80, deadline=None)
def test_every_value_is_in_one_bin_and_both_distances_are_positive(before, now):
    found = drift(observed(before), observed(now))
    for which in ("before", "now"):
        assert sum(getattr(x, which) for x in found.bins) == pytest.approx(1.0)
    assert found.psi >= 0
    assert 0 <= found.ks <= 1
    assert 0 <= found.ks_p <= 1
    assert (found.bins[0].low, found.bins[-1].high) == (min(before + now), max(before + now))
    assert len(found.bins) <= distribution.BINS
    assert drift(observed(now), observed(before)).ks == pytest.approx(found.ks)


def test_chance_alone_is_seldom_called_drift():
    levels = [drift(observed(normal(0, 1, 60, 2 * n)), observed(normal(0, 1, 60, 2 * n + 1))).level for n in range(200)]
    assert levels.count("none") >= 196


@pytest.mark.parametrize(("count", "least"), [(40, 12), (400, 20)])
def test_a_mean_that_moves_by_a_standard_deviation_is_called_drift(count, least):
    levels = [drift(observed(normal(0, 1, count, n)), observed(normal(1, 1, count, 1000 + n))).level for n in range(20)]
    assert levels.count("large") >= least


@pytest.mark.parametrize(
    ("now", "before", "expected"),
    [
        (observed([1.0] * 50), None, ["constant"]),
        (observed([1.0] * 30 + [0.0] * 20), None, ["saturated"]),
        (observed(list(range(50)), list(range(50))), None, ["length"]),
        (observed(list(range(50)), list(range(50, 0, -1))), None, ["length"]),
        (observed([0.0, 1.0] * 25, labels=[True, False] * 25), None, ["saturated", "labels"]),
        (observed(normal(0, 1, 200, 1)), observed(normal(0, 1, 200, 2)), []),
        (observed(normal(1.2, 1, 200, 1)), observed(normal(0, 1, 200, 2)), ["risen"]),
        (observed(normal(-1.2, 1, 200, 1)), observed(normal(0, 1, 200, 2)), ["fallen"]),
        (observed(normal(4, 1, 200, 1)), observed(normal(0, 1, 200, 2)), ["risen", "outside"]),
        (observed(normal(0, 0.2, 200, 1)), observed(normal(0, 1, 200, 2)), ["moved", "narrowed"]),
        (observed(normal(1.2, 1, 200, 1), [3.0] * 200), observed(normal(0, 1, 200, 2)), ["risen", "longer"]),
        (observed([1.0] * 50), observed(normal(0, 1, 200, 2)), ["constant", "risen"]),
    ],
)  # fmt: skip
def test_what_is_found_names_what_to_do(now, before, expected):
    assert names(now, before) == expected


def test_every_finding_has_its_figures_in_both_languages():
    now, before = observed([5.0] * 40, [2.0] * 40, [True, False] * 20), observed(normal(0, 1, 40, 3))
    facts = distribution.figures_of(summary(now), drift(before, now)) | {"length_correlation": 0.5}
    texts = [f for f in vars(distribution).values() if isinstance(f, distribution.Finding)]
    assert len(texts) == 10
    for finding in texts:
        english, chinese = finding.text.said(facts), finding.text.said(facts, "zh")
        assert english
        assert "{" not in english
        assert chinese
        assert "{" not in chinese
        assert chinese != english
