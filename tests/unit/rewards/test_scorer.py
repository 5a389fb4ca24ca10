"""Rollouts become scored ones: weights, abstentions, and what a failing function costs."""

import pytest

from trimtab.errors import RewardError
from trimtab.rewards.scorer import Scorer
from trimtab.rewards.settings import RewardSpec
from trimtab.types import Prompt, Rollout


def rollouts(*texts, **columns):
    return [
        Rollout(
            prompt=Prompt(id=place, text=f"p{place}", tokens=(1,), columns={k: v[place] for k, v in columns.items()}),
            draw=place,
            index=0,
            tokens=tuple(range(len(text))),
            log_probs=(0.0,) * len(text),
            text=text,
            is_truncated=False,
            policy_version=0,
        )
        for place, text in enumerate(texts)
    ]


def scorer(*specs, **functions):
    return Scorer([RewardSpec(**spec) for spec in specs], functions=functions)


def lengths(prompts, completions, **columns):
    return [float(len(text)) for text in completions]


def raises_at_bad(prompts, completions, **columns):
    if "bad" in completions:
        raise RuntimeError("a bad completion")
    return [1.0] * len(completions)


def nan_at_bad(prompts, completions, **columns):
    return [float("nan") if text == "bad" else 1.0 for text in completions]


def text_at_bad(prompts, completions, **columns):
    return ["high" if text == "bad" else 1.0 for text in completions]


def short_at_bad(prompts, completions, **columns):
    return [1.0 for text in completions if text != "bad"]


def nothing_at_bad(prompts, completions, **columns):
    return None if "bad" in completions else [1.0] * len(completions)


FAILING = [raises_at_bad, nan_at_bad, text_at_bad, short_at_bad, nothing_at_bad]


def test_the_reward_is_the_weighted_sum_of_the_parts_in_order():
    found = scorer({"name": "f", "weight": 0.5}, {"name": "exact_match", "weight": 2.0}, f=lengths).score(
        rollouts("aaa", "b", answer=["aaa", "x"])
    )
    assert [(s.reward, s.parts, s.is_scored) for s in found] == [(3.5, (3.0, 1.0), True), (0.5, (1.0, 0.0), True)]
    assert [s.rollout.text for s in found] == ["aaa", "b"]


def test_a_function_is_called_once_with_all_completions_and_the_columns_by_name():
    seen = []

    def spy(prompts, completions, **columns):
        seen.append((prompts, completions, columns))
        return [0.0] * len(completions)

    scorer({"name": "f"}, f=spy).score(rollouts("ab", "c", answer=["1", "2"], level=[3, None]))
    ids = [[0, 1], [0]]
    assert seen == [(["p0", "p1"], ["ab", "c"], {"answer": ["1", "2"], "level": [3, None], "completion_ids": ids})]


def test_a_row_without_a_column_that_others_have_gives_none():
    mixed = [rollouts("a", answer=["a"])[0], rollouts("a")[0]]
    assert [s.reward for s in scorer({"name": "exact_match"}).score(mixed)] == [1.0, 0.0]
    assert [s.is_scored for s in scorer({"name": "exact_match"}).score(mixed)] == [True, False]


def test_no_rollouts_have_no_rewards():
    assert scorer({"name": "exact_match"}).score([]) == []


def test_where_a_function_abstains_the_others_decide_and_where_all_abstain_there_is_no_reward():
    def sometimes(prompts, completions, **columns):
        return [None if text == "a" else 4.0 for text in completions]

    found = scorer({"name": "f"}, {"name": "exact_match"}, f=sometimes).score(
        rollouts("a", "a", "b", answer=["a", None, "b"])
    )
    assert [(s.reward, s.is_scored, s.parts) for s in found] == [
        (1.0, True, (None, 1.0)),
        (0.0, False, (None, None)),
        (5.0, True, (4.0, 1.0)),
    ]


@pytest.mark.parametrize("function", FAILING)
def test_under_stop_a_failure_ends_the_run_and_says_what_to_do(function):
    with pytest.raises(RewardError) as error:
        scorer({"name": "f"}, f=function).score(rollouts("ok", "bad"))
    assert error.value.exit_code == 2
    assert str(error.value).startswith("rewards: f: ")
    assert str(error.value).endswith("(batch of 2 completions); mend the function, or set on_error to skip or penalty")


@pytest.mark.parametrize("function", FAILING)
def test_under_skip_one_bad_completion_spoils_only_itself(function):
    judge = scorer({"name": "f", "on_error": "skip"}, {"name": "g", "weight": 10.0}, f=function, g=lengths)
    found = judge.score(rollouts("ok", "bad", "ok"))
    assert [(s.reward, s.is_scored) for s in found] == [(21.0, True), (0.0, False), (21.0, True)]
    assert found[1].parts == (None, 3.0)
    assert judge.errors == 2, "the batch and the one completion"


@pytest.mark.parametrize("function", FAILING)
def test_under_penalty_the_bad_completion_gets_the_penalty(function):
    judge = scorer({"name": "f", "on_error": "penalty", "penalty": -3.0}, f=function)
    found = judge.score(rollouts("ok", "bad", "ok"))
    assert [(s.reward, s.is_scored) for s in found] == [(1.0, True), (-3.0, True), (1.0, True)]


@pytest.mark.parametrize("on_error", ["skip", "penalty"])
def test_a_function_that_always_fails_leaves_the_other_functions_values_as_parts(on_error):
    def never(prompts, completions, **columns):
        raise OSError("down")

    judge = scorer({"name": "f", "on_error": on_error}, {"name": "g"}, f=never, g=lengths)
    found = judge.score(rollouts("a", "bb"))
    assert [s.is_scored for s in found] == [on_error == "penalty"] * 2
    assert [s.reward for s in found] == ([0.0, 1.0] if on_error == "penalty" else [0.0, 0.0])
    assert judge.errors == 3


def test_an_abstention_while_completions_are_judged_alone_is_no_failure():
    def fussy(prompts, completions, **columns):
        if len(completions) > 1:
            raise ValueError("one at a time")
        return [None if completions[0] == "a" else 1.0]

    found = scorer({"name": "f", "on_error": "penalty"}, f=fussy).score(rollouts("a", "b"))
    assert [(s.parts, s.is_scored) for s in found] == [((None,), False), ((1.0,), True)]


def test_errors_are_those_of_the_newest_batch():
    judge = scorer({"name": "f", "on_error": "skip"}, f=raises_at_bad)
    counts = []
    for text in ("bad", "ok"):
        judge.score(rollouts(text))
        counts.append(judge.errors)
    assert counts == [2, 0]


def test_a_function_of_a_user_needs_a_pool():
    with pytest.raises(RewardError, match="needs a pool of worker processes"):
        scorer({"name": "my_module:f"}).score(rollouts("a"))


def test_the_labels_are_the_names_without_their_module():
    assert scorer({"name": "exact_match"}, {"name": "my.module:judge"}).labels == ("exact_match", "judge")
