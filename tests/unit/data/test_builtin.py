"""`builtin:addition`: right answers, rows kept apart, a teacher who is careless as stated."""

import pytest

from trimtab.data import builtin


@pytest.fixture(scope="module")
def parts():
    return {held_out: list(builtin.addition(held_out=held_out)) for held_out in (False, True)}


def summands(row):
    first, second = row["prompt"].rstrip("=").split("+")
    return int(first), int(second)


def test_every_answer_is_the_sum_lowest_digit_first(parts):
    for row in parts[False] + parts[True]:
        assert int(row["answer"][::-1]) == sum(summands(row))


def test_every_sum_of_two_digit_numbers_is_in_exactly_one_part(parts):
    train, held_out = ([summands(row) for row in parts[part]] for part in (False, True))
    assert len(train) + len(held_out) == 8100
    assert set(train).isdisjoint(held_out)
    assert {*train, *held_out} == {(a, b) for a in range(10, 100) for b in range(10, 100)}


def test_about_every_tenth_sum_is_held_out(parts):
    assert 0.08 < len(parts[True]) / 8100 < 0.12


def test_the_rows_are_the_same_each_time(parts):
    assert list(builtin.addition(held_out=True)) == parts[True]


def test_the_teacher_is_always_right_without_a_carry_and_forgets_six_carries_in_ten(parts):
    forgotten, carries = 0, 0
    for row in parts[False]:
        a, b = summands(row)
        if a % 10 + b % 10 < 10 and a // 10 + b // 10 < 10:
            assert row["completion"] == row["answer"]
        elif a % 10 + b % 10 >= 10 and a // 10 + b // 10 < 9:
            carries += 1
            forgotten += row["completion"] != row["answer"]
    assert forgotten / carries == pytest.approx(builtin.FORGOTTEN, abs=0.05)


def test_the_teacher_is_right_on_almost_half_of_the_sums(parts):
    right = sum(row["completion"] == row["answer"] for row in parts[False])
    assert right / len(parts[False]) == pytest.approx(0.47, abs=0.02)
