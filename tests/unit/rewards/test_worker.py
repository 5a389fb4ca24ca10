"""What a reward function may return, and the conversation with the worker."""

import io
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.rewards import worker
from trimtab.rewards.worker import plain_values


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 0.5, None], [1.0, 0.5, None]),
        ((1, 2, 3), [1.0, 2.0, 3.0]),
        ([True, False, None], [1.0, 0.0, None]),
        (np.array([1.0, 2.0, 3.0], dtype=np.float32), [1.0, 2.0, 3.0]),
        (np.array([1, 2, 3]), [1.0, 2.0, 3.0]),
        ([np.float64(1.5), np.int64(2), np.bool_(True)], [1.5, 2.0, 1.0]),
        ([np.array([1.5]), np.array(2.0), 3], [1.5, 2.0, 3.0]),
        (torch.tensor([1.0, 2.0, 3.0]), [1.0, 2.0, 3.0]),
        ([torch.tensor(1.5), torch.tensor([2]), 3], [1.5, 2.0, 3.0]),
    ],
)
def test_numbers_of_any_library_and_none_are_taken(values, expected):
    found = plain_values(values, 3)
    assert found == expected
    assert all(type(value) in (float, type(None)) for value in found)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "returned 0 values for 3 completions"),
        ([1.0], "returned 1 values for 3 completions"),
        ([1.0, 2.0], "returned 2 values for 3 completions"),
        ([1.0] * 4, "returned 4 values for 3 completions"),
        ([1.0, float("nan"), 2.0], "value 1 is nan, expected a finite number or None"),
        ([1.0, 2.0, float("-inf")], "value 2 is -inf, expected a finite number or None"),
        ([np.float32("nan"), 1, 2], "value 0 is nan, expected a finite number or None"),
        ([1.0, "2", 3.0], "value 1 is str '2', expected a number or None"),
        ([1.0, {"score": 2}, 3.0], "value 1 is dict \"{'score': 2}\", expected a number or None"),
        ([[1.0], [2.0], [3.0]], "value 0 is list '[1.0]', expected a number or None"),
        ([1.0, 2j, 3.0], "value 1 is complex '2j', expected a number or None"),
        (np.ones((3, 2)), "value 0 is ndarray '[1. 1.]', expected a number or None"),
        (None, "returned NoneType, expected a list of 3 numbers"),
        (1.0, "returned float, expected a list of 3 numbers"),
        (True, "returned bool, expected a list of 3 numbers"),
        ("123", "returned str, expected a list of 3 numbers"),
        (b"123", "returned bytes, expected a list of 3 numbers"),
        ({"a": 1, "b": 2, "c": 3}, "returned dict, expected a list of 3 numbers"),
        ((x for x in (1, 2, 3)), "returned generator, expected a list of 3 numbers"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_anything_else_is_refused_with_what_it_was(values, message):
    with pytest.raises(ValueError) as error:
        plain_values(values, 3)
    assert str(error.value) == message


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.none() | st.booleans() | st.floats() | st.integers(-(10**12), 10**12) | st.text(max_size=3), max_size=5
    ),
    st.integers(0, 5),
)
def test_values_are_finite_numbers_of_the_right_count_or_an_error(values, count):
    try:
        found = plain_values(values, count)
    except ValueError:
        return
    assert len(found) == count
    assert all(value is None or abs(value) < float("inf") for value in found)


def conversation(*requests):
    answers = io.StringIO()
    worker.serve([json.dumps(request) for request in requests], answers)
    return [json.loads(line) for line in answers.getvalue().splitlines()]


def request(name, completions, options=None, **columns):
    return {
        "name": name,
        "options": options or {},
        "prompts": [""] * len(completions),
        "completions": completions,
        "columns": columns,
    }


def test_a_request_is_answered_with_values_and_a_fault_with_words():
    found = conversation(
        request("exact_match", ["1", "2"], answer=["1", "1"]),
        request("exact_match", ["1"]),
        {"name": "exact_match", "options": {}, "load_only": True},
        request("nowhere:f", ["1"]),
        request("math:nothing", ["1"]),
        request("math:pi", ["1"]),
    )
    assert found == [
        {"values": [1.0, 0.0]},
        {"error": "KeyError: 'answer'"},
        {"values": []},
        {"error": "ModuleNotFoundError: No module named 'nowhere'"},
        {"error": "AttributeError: module 'math' has no attribute 'nothing'"},
        {"error": "TypeError: math:pi is not callable"},
    ]


def test_one_rule_with_two_sets_of_options_is_two_functions():
    found = conversation(*(request("regex", ["a", "b"], {"pattern": pattern}) for pattern in "aba"))
    assert found == [{"values": [1.0, 0.0]}, {"values": [0.0, 1.0]}, {"values": [1.0, 0.0]}]
