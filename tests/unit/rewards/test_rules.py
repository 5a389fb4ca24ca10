"""The rules that need no model."""

import json
from pathlib import Path

import pytest

from trimtab.errors import ConfigError
from trimtab.rewards import rules


def judge(rule, completions, answers=None, **columns):
    if answers is not None:
        columns["answer"] = answers
    return rule(prompts=[""] * len(completions), completions=completions, **columns)


@pytest.mark.parametrize(
    ("completion", "answer", "value"),
    [
        ("21", "21", 1.0),
        ("21", "1", 0.0),
        ("1", "21", 0.0),
        ("the answer is 21", "21", 0.0),
        (" 21\n", "21", 1.0),
        ("2 1", "21", 0.0),
        ("21", 21, 1.0),
        ("Yes", "yes", 0.0),
        ("", "21", 0.0),
        ("21", None, None),
        ("None", None, None),
    ],
)
def test_an_exact_match_is_the_whole_completion_and_nothing_less(completion, answer, value):
    assert judge(rules.ExactMatch(), [completion], [answer]) == [value]


def test_an_exact_match_can_ignore_case_and_read_another_column():
    rule = rules.ExactMatch(column="gold", ignore_case=True)
    assert judge(rule, ["YES", "no"], gold=["yes", "yes"]) == [1.0, 0.0]
    assert rules.columns_of(rule) == ("gold",)


@pytest.mark.parametrize(
    ("options", "completion", "answer", "value"),
    [
        ({}, "first 3, then 4", "4", 1.0),
        ({}, "first 3, then 4", 3, 0.0),
        ({}, "it is 21", "1", 0.0),
        ({}, "1,234.50 apples", "1234.5", 1.0),
        ({}, "-7", -7, 1.0),
        ({}, "1e3", 1000, 1.0),
        ({}, ".5", 0.5, 1.0),
        ({}, "no number", "4", 0.0),
        ({}, "4", "no number", None),
        ({}, "4", None, None),
        ({}, "1e999", "1e999", 0.0),
        ({"after": "####"}, "3 apples #### 4 of 5", "4", 1.0),
        ({"after": "####"}, "#### 3 #### 4", "4", 1.0),
        ({"after": "####"}, "#### none", "4", 0.0),
        ({"after": "####"}, "at the end 4", "#### 4", 1.0),
        ({"tolerance": 0.01}, "101", "100", 1.0),
        ({"tolerance": 0.01}, "101.5", "100", 0.0),
        ({"tolerance": 0.01}, "0.005", "0", 1.0),
    ],
)
def test_a_number_is_compared_by_value(options, completion, answer, value):
    assert judge(rules.Numeric(**options), [completion], [answer]) == [value]


GOLD = [
    ("#### 72", "72"), ("#### $1,200", "1200"), ("####72 clips", "72"), ("#### -7.", "-7"), ("#### 3/4", "0.75"),
    ("#### **72**", "72"), ("1 #### 2 #### 3", "3"), ("#### 72\n99", "72"), ("#### \\frac{3}{4}", "3/4"),
    (r"\boxed{72}", "72"), (r"\boxed{1} or \boxed{\dfrac{1}{2}}, of 3", "1/2"), (r"\boxed{72 \text{ clips}}", "72"),
    (r"\boxed{\$1{,}200}", "1,200"), (r"\boxed{1 1/2}", "1.5"), (r"\boxed{50\%}", "50"), (r"\boxed{72 clips}", "72"),
    ("A: 10.50", "10.5"), ("24 + 48 = <<24+48=72>>72.", "72"), ("it is -$1,234.50.", "-1234.5"), ("1-5", "5"),
    ("\u22125", "-5"), ("the area is 5 m^2", "5"), ("in all 1 1/2 miles", "3/2"), ("2e3", "2000"), ("72", 72), ("0.5", 0.5),
]  # fmt: skip
BAD = [
    ("21", "1"), ("1", "21"), ("#### 21", "1"), ("#### 72.5", "72"), ("72 #### none", "72"), ("no number", "72"), ("", "72"),
    ("-72", "72"), (r"\boxed{} 72", "72"), (r"\boxed{72", "72"), (r"\boxed{5x}", "5"), ("1/0", "1"), ("0.33", "1/3"),
    ("#### 3 + 4", "3"), ("#### 5^5", "5"), ("5^5^5", "5"), ("2^{10}", "10"), ("5 x 10^3", "10"), (r"\boxed{5^{5}}", "5"),
    ("#### 5**5", "5"), ("9" * 3000, "9"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("completion", "answer", "value"),
    [*((c, a, 1.0) for c, a in GOLD), *((c, a, 0.0) for c, a in BAD), ("72", None, None), ("72", "none", None)],
)
def test_a_final_number_is_read_where_it_is_marked_and_compared_exactly(completion, answer, value):
    assert judge(rules.FinalNumber(), [completion], [answer]) == [value]
    if isinstance(answer, str):
        assert judge(rules.FinalNumber(), [completion], [f"since 3 + 4 = 7\n#### {answer}"]) == [value]


@pytest.mark.parametrize(
    "completion",
    [
        r"\boxed{5^{5^{5^{5^5}}}}",
        "#### 9^9^9^9^9",
        "1" + ",234" * 50_000 + ",2",
        "1 " * 100_000,
        r"\boxed{" * 30_000,
        r"\boxed{" + r"\text{" * 20_000 + "}",
        "#### " + "1," * 100_000,
    ],
)
def test_nothing_that_a_model_writes_is_computed_or_takes_long(completion):
    assert judge(rules.FinalNumber(), [completion], ["5"]) == [0.0]


GSM8K = Path(__file__).parent.parent / "data" / "gsm8k"


def test_a_final_number_agrees_with_the_marks_of_gsm8k():
    marks, found = [], []
    for line in (GSM8K / "example_model_solutions.jsonl").read_text().splitlines():
        row = json.loads(line)
        for solution in (value for value in row.values() if isinstance(value, dict)):
            marks.append(float(solution["is_correct"]))
            found += judge(rules.FinalNumber(), [solution["solution"]], [row["ground_truth"]])
    assert len(marks) == 44
    assert 0 < sum(marks) < len(marks)
    assert found == marks


def test_every_answer_of_gsm8k_has_a_final_number_that_its_own_solution_states():
    rows = [json.loads(line)["answer"] for line in (GSM8K / "train.jsonl").read_text().splitlines()]
    assert judge(rules.FinalNumber(), rows, rows) == [1.0] * 30
    without_mark = [answer.rsplit("####", 1)[1] for answer in rows]
    assert judge(rules.FinalNumber(), without_mark, rows) == [1.0] * 30


@pytest.mark.parametrize(
    ("options", "completion", "answer", "value"),
    [
        ({"pattern": r"^\d+$"}, "21", None, 1.0),
        ({"pattern": r"^\d+$"}, "21 ", None, 0.0),
        ({"pattern": r"answer: (\w+)", "column": "answer"}, "the answer: cat", "cat", 1.0),
        ({"pattern": r"answer: (\w+)", "column": "answer"}, "the answer: cats", "cat", 0.0),
        ({"pattern": r"answer: (\w+)", "column": "answer"}, "cat", "cat", 0.0),
        ({"pattern": r"x(y)?", "column": "answer"}, "x", "y", 0.0),
    ],
)
def test_a_pattern_is_found_or_its_first_group_is_compared(options, completion, answer, value):
    assert judge(rules.Regex(**options), [completion], [answer]) == [value]


@pytest.mark.parametrize(("size", "value"), [(0, 1.0), (10, 1.0), (15, 0.5), (20, 0.0), (100, 0.0)])
def test_the_length_rule_falls_from_one_to_zero_between_the_limit_and_its_double(size, value):
    assert judge(rules.Length(max_tokens=10), [""], completion_ids=[[1] * size]) == [value]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("numeric", {"tolerence": 1}, "rewards: reward numeric has no option `tolerence`; it has column, after, tolerance"),
        ("exact_match", {"name": "x"}, "reward exact_match has no option `name`; it has column, ignore_case"),
        ("regex", {}, "rewards: reward regex: Regex.__init__() missing 1 required keyword-only argument: 'pattern'"),
        ("regex", {"pattern": "("}, "rewards: reward regex: missing ), unterminated subpattern at position 0"),
        ("regex", {"pattern": "x", "column": "answer"}, "reward regex: pattern: needs a group to compare with the column"),
        ("length", {"max_tokens": 0}, "rewards: reward length: max_tokens: 0, expected at least 1"),
    ],
)  # fmt: skip
def test_an_option_that_is_unknown_missing_or_wrong_is_refused(name, options, message):
    with pytest.raises(ConfigError) as error:
        rules.make(name, options)
    assert message in str(error.value)


def test_every_rule_carries_the_name_that_the_configuration_uses():
    options = {"regex": {"pattern": "x"}, "length": {"max_tokens": 1}}
    assert all(rules.make(name, options.get(name, {})).name == name for name in rules.RULES)
