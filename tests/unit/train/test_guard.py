"""When a run ends before its last step."""

import json

import pytest

from trimtab.train.guard import StepGuard
from trimtab.types import StepReport

BAD = {"updates/non_finite": 2.0, "updates/count": 0.0}
PARTLY = {"updates/non_finite": 1.0, "updates/count": 1.0}
GOOD = {"updates/non_finite": 0.0, "updates/count": 2.0}
EMPTY = {"updates/non_finite": 0.0, "updates/count": 0.0}


def guard(metric="eval/reward/mean", patience=2):
    return StepGuard(metric=metric, patience=patience)


def actions(judge, *metrics):
    return [judge.judge(StepReport(step=step, metrics=m)).action for step, m in enumerate(metrics, 1)]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([BAD, BAD, BAD], ["continue", "continue", "roll_back"]),
        ([BAD, BAD, GOOD, BAD, BAD], ["continue"] * 5),
        ([BAD, BAD, PARTLY, BAD, BAD, BAD], ["continue"] * 5 + ["roll_back"]),
        ([PARTLY] * 5, ["continue"] * 5),
        ([EMPTY] * 5, ["continue"] * 5),
        ([{}] * 5, ["continue"] * 5),
    ],
)
def test_three_steps_in_a_row_without_one_finite_update_take_the_run_back(steps, expected):
    assert actions(guard(), *steps) == expected


def test_going_back_says_since_when_and_what_to_do():
    judge = StepGuard(metric="eval/reward/mean", patience=None, facts={"optim.learning_rate": 0.5})
    for step in (8, 9):
        judge.judge(StepReport(step=step, metrics=BAD))
    verdict = judge.judge(StepReport(step=10, metrics=BAD))
    assert (verdict.rolls_back, verdict.stops, verdict.ends) == (True, False, False)
    assert (verdict.cause.rule, verdict.cause.since) == ("non_finite", 8)
    assert "lower optim.learning_rate from 0.5" in verdict.reason


@pytest.mark.parametrize(
    ("metric", "values", "expected"),
    [
        ("eval/reward/mean", [0.1, 0.2, 0.2, 0.195], ["continue", "continue", "continue", "finish"]),
        ("eval/reward/mean", [0.1, 0.0, 0.2, 0.1, 0.3], ["continue"] * 5),
        ("eval/loss/nll", [2.0, 1.0, 1.5, 1.0], ["continue", "continue", "continue", "finish"]),
        ("eval/loss/nll", [2.0, 1.0, 0.5, 0.4], ["continue"] * 4),
    ],
)
def test_a_run_finishes_after_so_many_evaluations_without_a_better_value(metric, values, expected):
    assert actions(guard(metric), *({metric: value} for value in values)) == expected


def test_steps_without_an_evaluation_do_not_count():
    assert actions(guard(), {"eval/reward/mean": 0.5}, *[GOOD] * 5, {"eval/reward/mean": 0.4}) == ["continue"] * 7


def test_a_finish_names_the_best_value():
    judge = guard(patience=1)
    actions(judge, {"eval/reward/mean": 0.51234})
    verdict = judge.judge(StepReport(step=2, metrics={"eval/reward/mean": 0.5}))
    assert (verdict.finishes, verdict.stops, verdict.ends) == (True, False, True)
    assert verdict.reason == "eval/reward/mean has not improved on 0.5123 for 1 evaluations"


def test_without_patience_a_run_never_finishes_early():
    assert actions(guard(patience=None), *[{"eval/reward/mean": 0.1}] * 20) == ["continue"] * 20


@pytest.mark.parametrize("cut", range(6))
def test_a_restored_guard_judges_like_the_saved_one(cut):
    steps = [
        {"eval/reward/mean": 0.3} | BAD,
        BAD,
        {"eval/reward/mean": 0.2} | GOOD,
        BAD,
        BAD,
        {"eval/reward/mean": 0.1} | BAD,
    ]
    whole = guard()
    expected = actions(whole, *steps)
    first, second = guard(), guard()
    found = actions(first, *steps[:cut])
    second.load_state(json.loads(json.dumps(first.state())))
    later = [second.judge(StepReport(step=n, metrics=m)).action for n, m in enumerate(steps[cut:], cut + 1)]
    assert found + later == expected
    assert json.dumps(second.state()) == json.dumps(whole.state())


def sampled(step, kept, reward):
    rewards = {"reward/mean": reward, "reward/min": reward if reward == 1.0 else 0.0, "reward/max": float(reward > 0)}
    return StepReport(step=step, metrics={"sampling/kept": float(kept), "updates/count": 1.0, **rewards})


def test_three_steps_in_a_row_in_which_no_group_teaches_stop_the_run():
    guard = StepGuard(metric="eval/reward/mean", patience=None)
    actions = [guard.judge(sampled(n, kept, 0.0)).action for n, kept in enumerate([0, 0, 5, 0, 0, 0], 1)]
    assert actions == ["continue"] * 5 + ["stop"]
    assert "no group whose rewards differ" in guard.judge(sampled(7, 0, 0.0)).reason


def test_a_task_that_is_learned_ends_as_a_completed_run():
    guard = StepGuard(metric="eval/reward/mean", patience=None)
    actions = [
        guard.judge(sampled(n, k, r)).action for n, (k, r) in enumerate([(4, 0.5), (0, 1.0), (0, 1.0), (0, 1.0)])
    ]
    assert actions == ["continue"] * 3 + ["finish"]


def test_what_was_counted_survives_a_restart():
    guard, other = (StepGuard(metric="eval/reward/mean", patience=None) for _ in range(2))
    guard.judge(sampled(1, 0, 0.2))
    guard.judge(sampled(2, 0, 0.2))
    other.load_state(json.loads(json.dumps(guard.state())))
    assert other.judge(sampled(3, 0, 0.2)).stops


def test_a_run_without_dynamic_sampling_is_not_judged_by_it():
    guard = StepGuard(metric="eval/reward/mean", patience=None)
    found = [guard.judge(StepReport(step=n, metrics={"reward/mean": 0.0})).action for n in range(5)]
    assert found == ["continue"] * 5
