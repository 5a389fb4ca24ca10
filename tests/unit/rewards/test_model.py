"""A reward model as a reward: what it is asked, what it answers, and when it is refused."""

import json

import pytest

from trimtab.errors import RewardError
from trimtab.rewards import agreement
from trimtab.rewards.model import AUC, ModelReward, auc_of, judged
from trimtab.rewards.scorer import Scorer
from trimtab.rewards.settings import RewardSpec
from trimtab.types import Prompt, Rollout


def rollouts(*texts):
    prompt = Prompt(id=0, text="p", tokens=(7, 8))
    return [
        Rollout(prompt=prompt, draw=0, index=i, tokens=tuple(map(ord, text)), log_probs=(0.0,) * len(text), text=text,
                is_truncated=False, policy_version=0)
        for i, text in enumerate(texts)
    ]  # fmt: skip


def encode(rollout):
    return (*rollout.prompt.tokens, *rollout.tokens)


class Noisy:
    """Scores that depend a little on the row's place, as rounding does."""

    def __init__(self):
        self.seen = []

    def __call__(self, rows):
        self.seen.append(list(rows))
        return [sum(row) + place * 1e-6 for place, row in enumerate(rows)]


def scorer(asked, **spec):
    made = Scorer([RewardSpec(model="RM", **spec)])
    made.models[0] = asked
    return made


def test_equal_completions_get_equal_scores_whatever_is_computed_beside_them():
    noisy = Noisy()
    found = ModelReward(encode, noisy)(rollouts("b", "a", "b", "c", "b"))
    assert found[0] == found[2] == found[4]
    assert [round(value) for value in found] == [15 + ord(text) for text in "babcb"]
    assert noisy.seen == [[(7, 8, ord("a")), (7, 8, ord("b")), (7, 8, ord("c"))]]


def test_scores_do_not_depend_on_the_order_of_the_completions():
    one = ModelReward(encode, Noisy())(rollouts("a", "b", "c"))
    other = ModelReward(encode, Noisy())(rollouts("c", "a", "b"))
    assert one == [other[1], other[2], other[0]]


def test_a_score_enters_the_reward_with_its_weight_beside_other_rewards():
    made = Scorer([RewardSpec(name="f", weight=2.0), RewardSpec(model="RM", weight=0.5)],
                  functions={"f": lambda prompts, completions, **_: [1.0] * len(completions)})  # fmt: skip
    made.models[1] = lambda rows: [10.0, 20.0]
    found = made.score(rollouts("a", "b"))
    assert [(s.reward, s.parts) for s in found] == [(7.0, (1.0, 10.0)), (12.0, (1.0, 20.0))]
    assert made.labels == ("f", "reward_model")


def test_a_reward_model_may_have_the_name_of_a_rule_in_metrics():
    made = scorer(lambda rows: [0.25], name="length")
    assert (made.labels, made.score(rollouts("abc"))[0].parts) == (("length",), (0.25,))


def test_two_reward_models_are_told_apart():
    assert Scorer([RewardSpec(model="A"), RewardSpec(model="B")]).labels == ("reward_model_1", "reward_model_2")


def test_a_score_that_is_not_finite_is_an_error_that_names_the_model():
    with pytest.raises(RewardError, match=r"rewards: RM: value 1 is nan, expected a finite number.*mend the model"):
        scorer(lambda rows: [1.0, float("nan")]).score(rollouts("a", "b"))


def too_long_at_bad(rows):
    if any(r.text == "bad" for r in rows):
        raise ValueError("600 tokens; the reward model has 512 positions")
    return [1.0] * len(rows)


def test_under_skip_a_completion_that_cannot_be_scored_spoils_only_itself():
    made = scorer(too_long_at_bad, on_error="skip")
    found = made.score(rollouts("a", "bad", "b"))
    assert [s.is_scored for s in found] == [True, False, True]
    assert made.errors == 2  # the batch, then the completion alone
    assert made.judge(rollouts("a", "bad"))[0].reason == "600 tokens; the reward model has 512 positions"


# --------------------------------------------------------------------------------------------------------- quality
@pytest.mark.parametrize(
    ("auc", "allow_weak", "line"),
    [
        (0.91, False, "RM: eval/reward_model/auc 0.910"),
        (0.85, False, "RM: eval/reward_model/auc 0.850"),
        (0.849, True, "RM: eval/reward_model/auc 0.849 is under 0.85, used since allow_weak is true"),
        (None, False, "RM: quality unknown"),
    ],
)
def test_what_is_said_of_a_reward_model_that_is_used(auc, allow_weak, line):
    assert line in judged("RM", auc, allow_weak=allow_weak)


def test_a_weak_reward_model_is_refused_with_the_way_out():
    with pytest.raises(
        RewardError, match=r"RM: eval/reward_model/auc is 0.849, expected 0.85 or more.*allow_weak: true"
    ):
        judged("RM", 0.849, allow_weak=False)


def test_the_figure_is_read_from_the_card_of_the_weights_or_from_the_checkpoint(tmp_path):
    final, policy = tmp_path / "final", tmp_path / "100" / "policy"
    final.mkdir()
    policy.mkdir(parents=True)
    assert auc_of(final) is None
    (final / "README.md").write_text(f"| evaluation | value |\n|---|---|\n| {AUC} | 0.8731 |\n")
    (policy.parent / "manifest.json").write_text(json.dumps({"metrics": {AUC: 0.5}}))
    assert (auc_of(final), auc_of(policy)) == (0.8731, 0.5)


# -------------------------------------------------------------------------------------------------- against labels
def test_the_auc_is_the_share_of_pairs_in_order_and_a_tie_counts_half():
    values, labels = [0.9, 0.4, 0.4, 0.1, 0.7], [True, True, False, False, False]
    pairs = [(g, b) for g, is_good in zip(values, labels, strict=True) if is_good
             for b, is_bad in zip(values, labels, strict=True) if not is_bad]  # fmt: skip
    expected = sum((g > b) + 0.5 * (g == b) for g, b in pairs) / len(pairs)
    assert agreement.auc(values, labels).value == pytest.approx(expected)


def test_the_interval_is_delongs():
    """Worked out from the definition: variances of each row's share of the other side that it is in order with."""
    good, bad = [3.0, 1.5, 2.5, 4.0], [1.0, 2.0, 2.5]
    above = [sum((g > b) + 0.5 * (g == b) for b in bad) / 3 for g in good]
    below = [sum((g > b) + 0.5 * (g == b) for g in good) / 4 for b in bad]

    def variance(values):
        mean = sum(values) / len(values)
        return sum((v - mean) ** 2 for v in values) / (len(values) - 1)

    reach = 1.959963985 * (variance(above) / 4 + variance(below) / 3) ** 0.5
    found = agreement.auc(good + bad, [True] * 4 + [False] * 3)
    assert found.value == pytest.approx(sum(above) / 4)
    assert found.low == pytest.approx(found.value - reach)
    assert found.high == min(1.0, found.value + reach)
    assert (found.good, found.bad) == (4, 3)


def test_without_both_labels_there_is_no_auc():
    assert agreement.auc([1.0, 2.0], [True, True]) is None


def test_rank_correlation_sees_order_alone():
    assert agreement.rank_correlation([1, 2, 3, 4], [1, 10, 100, 1000]) == 1.0
    assert agreement.rank_correlation([1, 2, 3, 4], [4, 3, 2, 1]) == -1.0
    assert agreement.rank_correlation([1, 2, 3], [1, 3, 2]) == 0.5


@pytest.mark.parametrize(("values", "area"), [([2.0, 3.0, 0.0, 1.0], 1.0), ([1.0] * 4, 0.5)])
def test_where_the_variance_is_0_there_is_no_interval_that_would_look_certain(values, area):
    found = agreement.auc(values, [True, True, False, False])
    assert (found.value, found.low, found.high) == (area, None, None)
