"""The answers that rules read out of completions, for a vote."""

import pytest

from trimtab.rewards import rules

CASES = [
    ("exact_match", {}, [" 12 ", "12"], "13"),
    ("exact_match", {"ignore_case": True}, ["Yes", "yes "], "no"),
    ("numeric", {}, ["it is 1,200", "1200.0", "so 3 and 1.2e3"], "1201"),
    ("final_number", {}, ["#### 0.5", r"\boxed{\frac{1}{2}}", "thus 1/2"], "2"),
    ("regex", {"pattern": r"<a>(.*?)</a>", "column": "answer"}, ["<a> x</a>", "well <a>x</a>."], "<a>y</a>"),
]


@pytest.mark.parametrize(("name", "options", "alike", "other"), CASES)
def test_texts_of_one_answer_are_one_vote_and_are_judged_alike(name, options, alike, other):
    rule = rules.make(name, options)
    assert rules.states_answers(rule)
    found = {rule.answer(text) for text in alike}
    assert len(found) == 1
    assert None not in found
    assert rule.answer(other) not in found
    wanted = "x" if name == "regex" else alike[0]
    judged = rule(prompts=[""] * len(alike), completions=alike, answer=[wanted] * len(alike))
    assert judged == [1.0] * len(alike)


@pytest.mark.parametrize(
    ("name", "options"), [("numeric", {}), ("final_number", {}), ("regex", {"pattern": "<(.)>", "column": "answer"})]
)
def test_a_text_without_an_answer_has_no_vote(name, options):
    assert rules.make(name, options).answer("nothing here") is None


def test_rules_that_judge_the_whole_text_state_none():
    assert not rules.states_answers(rules.make("length", {"max_tokens": 3}))
    assert not rules.states_answers(rules.make("regex", {"pattern": "x"}))


def test_zero_has_one_sign():
    assert rules.make("numeric", {}).answer("-0") == rules.make("numeric", {}).answer("0")
