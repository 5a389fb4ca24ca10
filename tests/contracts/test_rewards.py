"""Every built-in rule through the reward suite."""

import pytest

from trimtab.rewards import rules
from trimtab.testing import rewards as suite

UNDER_TEST = {
    "exact_match": suite.RewardUnderTest(reward=rules.make("exact_match", {}), columns={"answer": "0"}),
    "numeric": suite.RewardUnderTest(reward=rules.make("numeric", {"after": "####"}), columns={"answer": "-1"}),
    "numeric without an answer": suite.RewardUnderTest(reward=rules.make("numeric", {}), columns={"answer": None}),
    "regex": suite.RewardUnderTest(
        reward=rules.make("regex", {"pattern": r"(\d)", "column": "answer"}), columns={"answer": "0"}
    ),
    "length": suite.RewardUnderTest(reward=rules.make("length", {"max_tokens": 4}), columns={}),
}


@pytest.mark.parametrize("under_test", UNDER_TEST.values(), ids=UNDER_TEST)
@pytest.mark.parametrize("check", suite.CHECKS, ids=lambda check: check.__name__)
def test_contract(under_test, check):
    check(under_test)


def test_the_suite_catches_a_reward_that_looks_at_its_neighbours():
    def ranked(prompts, completions, **columns):
        return [float(place) for place in range(len(completions))]

    with pytest.raises(AssertionError, match="place in the batch"):
        suite.it_does_not_depend_on_the_order_of_completions(suite.RewardUnderTest(reward=ranked, columns={}))


def test_the_suite_catches_one_value_for_all():
    with pytest.raises(ValueError, match="returned 1 values for 2 completions"):
        suite.it_gives_one_finite_number_or_none_for_each_completion(
            suite.RewardUnderTest(reward=lambda **_: [1.0], columns={})
        )
