"""The figures of an evaluation against brute force over subsets, and against themselves in another order."""

import itertools
import math
import statistics
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.rollout import evaluation
from trimtab.rollout.evaluation import Completion, answered, breakdown, figures, majority, pass_at, standard_error

VOTES = st.lists(st.tuples(st.sampled_from(["a", "b", "c", "d", None]), st.booleans()), min_size=1, max_size=7)


def completion(prompt=0, index=0, reward=0.0, text="t", tokens=3, extracted=None, parts=None, truncated=False):
    return Completion(
        prompt_id=prompt, index=index, text=text, tokens=tokens, reward=reward, parts=parts or {"rule": reward},
        is_truncated=truncated, extracted=extracted,
    )  # fmt: skip


def of_prompt(prompt, rewards, ks=(1, 2), **more):
    made = [completion(prompt, i, reward, text=f"{prompt} {i}", **more) for i, reward in enumerate(rewards)]
    return answered(made, ("rule",), ks, 1.0)


@given(st.lists(st.booleans(), min_size=1, max_size=9), st.data())
def test_pass_at_k_is_the_share_of_subsets_with_a_right_one(rights, data):
    k = data.draw(st.integers(1, len(rights)))
    subsets = list(itertools.combinations(rights, k))
    expected = sum(any(subset) for subset in subsets) / len(subsets)
    assert pass_at(len(rights), sum(rights), k) == pytest.approx(expected, abs=1e-12)


@given(st.integers(1, 4000), st.data())
def test_pass_at_k_stays_in_range_grows_with_k_and_at_one_is_the_share(n, data):
    right, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    value = pass_at(n, right, k)
    assert 0.0 <= value <= 1.0
    assert pass_at(n, right, 1) == pytest.approx(right / n, abs=1e-12)
    assert k == n or pass_at(n, right, k + 1) >= value - 1e-12
    assert value == pytest.approx(1 - float(Fraction(math.comb(n - right, k), math.comb(n, k))), abs=1e-9)


@pytest.mark.parametrize("k", [0, 5])
def test_k_outside_of_the_completions_is_refused(k):
    with pytest.raises(ValueError, match=r"k must be in 1\.\.4"):
        pass_at(4, 1, k)
    with pytest.raises(ValueError, match=r"k must be in 1\.\.4"):
        majority([("a", True)] * 4, k)


def by_brute_force(votes, k):
    """Every subset's vote, taken one by one."""
    shares = {a: Fraction(sum(r for b, r in votes if a == b), sum(a == b for b, _ in votes)) for a, _ in votes}
    values = []
    for subset in itertools.combinations(votes, k):
        counts = Counter(answer for answer, _ in subset if answer is not None)
        most = max(counts.values(), default=0)
        winners = [answer for answer, count in counts.items() if count == most]
        values.append(sum((shares[a] for a in winners), Fraction(0)) / len(winners) if winners else Fraction(0))
    return float(sum(values, Fraction(0)) / len(values))


@given(VOTES, st.data())
@settings(max_examples=300)
def test_maj_at_k_is_the_mean_over_all_subsets(votes, data):
    k = data.draw(st.integers(1, len(votes)))
    assert majority(votes, k) == pytest.approx(by_brute_force(votes, k), abs=1e-12)


@given(VOTES, st.randoms())
def test_maj_at_k_does_not_depend_on_the_order_of_the_completions(votes, random):
    mixed = votes.copy()
    random.shuffle(mixed)
    assert [majority(mixed, k) for k in range(1, len(votes) + 1)] == [
        majority(votes, k) for k in range(1, len(votes) + 1)
    ]


def test_drawn_subsets_come_near_the_exact_mean_repeat_by_seed_and_are_not_needed_for_all(monkeypatch):
    votes = [("a", True)] * 5 + [("b", False)] * 4 + [("c", False)] * 2 + [(None, False)]
    exact = majority(votes, 5)
    monkeypatch.setattr(evaluation, "EXACT", 10)
    drawn = [majority(votes, 5, seed=seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    error = 0.5 / evaluation.SUBSETS**0.5
    assert all(abs(value - exact) < 5 * error for value in drawn)
    assert majority(votes, 12) == 1.0


def test_completions_without_a_reward_are_in_no_figure_of_rewards():
    prompts = [of_prompt(0, [1.0, None]), of_prompt(1, [0.0, 1.0]), of_prompt(2, [None, None])]
    found = figures(prompts, ("rule",), (1, 2))
    assert (found["eval/prompts"], found["eval/count"]) == (3.0, 3.0)
    assert found["eval/pass@1"] == 0.75
    assert found["eval/pass@1/prompts"] == 2.0
    assert (found["eval/pass@2"], found["eval/pass@2/prompts"]) == (1.0, 1.0)
    assert found["eval/reward/mean"] == pytest.approx(2 / 3)


def test_the_error_counts_a_prompt_once_however_often_it_is_sampled():
    means = [0.25, 0.5, 1.0, 0.0]
    groups = [[1.0] * int(4 * m) + [0.0] * (4 - int(4 * m)) for m in means]
    assert standard_error(groups) == pytest.approx(statistics.stdev(means) / 2)
    assert standard_error([g * 10 for g in groups]) == pytest.approx(statistics.stdev(means) / 2)
    assert standard_error([[1.0, 0.0]]) is None


def test_a_reward_reaches_the_threshold_but_for_rounding():
    assert answered([completion(reward=0.7 + 0.2 + 0.1)], ("rule",), (1,), 1.0).right == 1
    assert answered([completion(reward=0.999)], ("rule",), (1,), 1.0).right == 0


REWARDS = st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0, None]), min_size=3, max_size=3), min_size=1, max_size=12)


@given(REWARDS, st.data())
def test_the_groups_of_a_breakdown_add_up_to_the_whole(rewards, data):
    prompts = [of_prompt(i, own) for i, own in enumerate(rewards)]
    column = st.sampled_from(["x", "y", 1, "1", None])
    values = data.draw(st.lists(column, min_size=len(prompts), max_size=len(prompts)))
    groups, whole = breakdown(prompts, values, ("rule",), (1, 2)), figures(prompts, ("rule",), (1, 2))
    assert len(groups) == len({repr(v) for v in values})
    for name in ("eval/prompts", "eval/count"):
        assert sum(g.figures[name] for g in groups) == whole[name]
    if "eval/reward/mean" in whole:
        total = sum(g.figures.get("eval/reward/mean", 0.0) * g.figures["eval/count"] for g in groups)
        assert total == pytest.approx(whole["eval/reward/mean"] * whole["eval/count"])
    sizes = [g.figures["eval/prompts"] for g in groups]
    assert sizes == sorted(sizes, reverse=True)


def test_lengths_and_distinct_texts():
    made = [
        completion(0, i, 1.0, text=t, tokens=n, truncated=n == 9)
        for i, (t, n) in enumerate([("a", 1), ("a", 2), ("b", 9)])
    ]
    found = figures([answered(made, ("rule",), (1,), 1.0)], ("rule",), (1,))
    assert found["eval/distinct_share"] == pytest.approx(2 / 3)
    assert (found["eval/length/p50"], found["eval/length/max"]) == (2.0, 9.0)
    assert found["eval/length/p95"] == pytest.approx(2 + 0.9 * 7)
    assert found["eval/length/truncated"] == pytest.approx(1 / 3)
