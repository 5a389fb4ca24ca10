"""Every rule at its threshold, a little under and a little over it; what a rule remembers; what an alarm says."""

import json
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.rules import HEARTBEAT, NO_IMPROVEMENT, RULES, language
from trimtab.train.alarms import Limits, Watch, limits_of
from trimtab.train.guard import StepGuard
from trimtab.train.settings import Guard, GuardRules, RuleLimits
from trimtab.types import StepReport

BY_NAME = {rule.name: rule for rule in RULES}
USUAL = [{"loss/total": 0.2, "grad_norm/total": 1.0, "kl/reference": 0.2, "entropy": 2.0, "length/p50": 100.0,
          "throughput/train_tokens_per_second": 1000.0}] * 12  # fmt: skip
"""Steps of a healthy run, so that there is something to hold a figure against."""
CASES = [
    # rule, figures before, figures just inside, figures just outside, steps until it rings, level
    ("non_finite", [], {"updates/non_finite": 0}, {"updates/non_finite": 1, "updates/count": 0}, 1, "warn"),
    ("non_finite", [], {"updates/non_finite": 1, "updates/count": 1}, {"updates/non_finite": 2}, 3, "act"),
    ("broken_weights", [], {"non_finite/weights": 0}, {"non_finite/weights": 1}, 1, "act"),
    ("kl_update", [], {"kl/update": 0.0299}, {"kl/update": 0.0301}, 1, "warn"),
    ("kl_update", [], {"kl/update": 0.0499}, {"kl/update": 0.0501}, 1, "act"),
    ("kl_reference", [], {"kl/reference": 0.0499}, {"kl/reference": 0.0501}, 1, "warn"),
    ("kl_reference", USUAL, {"kl/reference": 1.99}, {"kl/reference": 2.01}, 1, "act"),
    ("loss_divergence", USUAL, {"loss/total": -1.99}, {"loss/total": -2.01}, 1, "warn"),
    ("loss_divergence", [{"grad_norm/total": 0.001}] * 12, {"grad_norm/total": 9.9}, {"grad_norm/total": 10.1}, 3, "act"),
    ("loss_divergence", USUAL, {"grad_norm/total": 9.9}, {"grad_norm/total": 10.1}, 3, "act"),
    ("reward_fall", [{"eval/reward/mean": 0.8}], {"eval/reward/mean": 0.761}, {"eval/reward/mean": 0.759}, 3, "act"),
    ("ratio_max", [], {"update/ratio_max": 9.9}, {"update/ratio_max": 10.1}, 1, "warn"),
    ("clip_fraction", [], {"clip_fraction/low": 0.49}, {"clip_fraction/high": 0.51}, 1, "warn"),
    ("entropy", USUAL, {"entropy": 1.01}, {"entropy": 0.99}, 3, "warn"),
    ("group_spread", [], {"reward/zero_spread_groups": 0.79}, {"reward/zero_spread_groups": 0.81}, 3, "warn"),
    ("distinct_share", [], {"rollout/distinct_share": 0.21}, {"rollout/distinct_share": 0.19}, 3, "warn"),
    ("no_signal", [], {"reward/zero_spread_groups": 0.99}, {"reward/zero_spread_groups": 1.0}, 20, "act"),
    ("no_spread", [], {"reward/mean": 0.0}, {"sampling_without_spread": 1.0}, 3, "act"),
    ("truncated", [], {"length/truncated": 0.49}, {"length/truncated": 0.51}, 3, "warn"),
    ("length", USUAL, {"length/p50": 199}, {"length/p50": 201}, 3, "warn"),
    ("length", USUAL, {"length/p50": 51}, {"length/p50": 49}, 3, "warn"),
    ("staleness", [], {"staleness": 1}, {"staleness": 2}, 1, "warn"),
    ("reward_model_auc", [], {"eval/reward_model/auc": 0.851}, {"eval/reward_model/auc": 0.849}, 1, "warn"),
    ("preference_js", [], {"eval/preference/js": 0.049}, {"eval/preference/js": 0.051}, 1, "warn"),
    ("throughput", USUAL, {"throughput/train_tokens_per_second": 501},
     {"throughput/train_tokens_per_second": 499}, 3, "warn"),
]  # fmt: skip
TIMED = [
    ("accelerator_idle", {"utilisation/accelerator": 0.31}, {"utilisation/accelerator": 0.29}),
    ("accelerator_memory", {"utilisation/accelerator_memory": 0.949}, {"utilisation/accelerator_memory": 0.951}),
    ("disk", {"utilisation/disk": 0.949}, {"utilisation/disk": 0.951}),
]


def watch(name, **asked):
    return Watch(BY_NAME[name], Limits.of(BY_NAME[name], RuleLimits(**asked)))


def fed(watched, steps, start=1):
    """The breach of the last step."""
    found = None
    for step, metrics in enumerate(steps, start):
        found = watched.look(step, metrics)
    return found


@pytest.mark.parametrize(("name", "before", "inside", "outside", "times", "level"), CASES)
def test_a_rule_rings_just_outside_its_limit_and_not_just_inside(name, before, inside, outside, times, level):
    def rings(breach):
        return breach is not None and (level == "warn" or breach.level == "act")

    assert not rings(fed(watch(name), [*before, *[inside] * (times + 2)]))
    assert not rings(fed(watch(name), [*before, *[outside] * (times - 1)]))
    found = fed(watch(name), [*before, *[outside] * times])
    assert rings(found)
    assert found.since == len(before) + 1


@pytest.mark.parametrize(("name", "inside", "outside"), TIMED)
def test_a_rule_about_the_machine_rings_after_five_minutes_without_a_break(name, inside, outside):
    minute = {"time/step": 60.0}
    assert fed(watch(name), [inside | minute] * 10) is None
    assert fed(watch(name), [outside | minute] * 4) is None
    assert fed(watch(name), [*[outside | minute] * 4, inside | minute, outside | minute]) is None
    assert fed(watch(name), [outside | minute] * 5).level == "warn"


def test_the_accuracy_of_preferences_is_judged_at_the_end_only():
    watched = Watch(BY_NAME["preference_accuracy"], Limits.of(BY_NAME["preference_accuracy"]), max_steps=3)
    low = {"eval/preference/accuracy": 0.849}
    assert [watched.look(step, low) is None for step in (1, 2)] == [True, True]
    assert watched.look(3, low).level == "warn"
    assert Watch(watched.rule, watched.limits, max_steps=3).look(3, {"eval/preference/accuracy": 0.851}) is None


def test_every_rule_has_a_threshold_test_and_a_key():
    tested = {case[0] for case in (*CASES, *TIMED)} | {"preference_accuracy"}
    assert tested | {HEARTBEAT.name, NO_IMPROVEMENT.name} == set(BY_NAME)
    keys = {spec.name for spec in fields(GuardRules)}
    assert keys == set(BY_NAME) - {NO_IMPROVEMENT.name}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_says_what_it_is_in_both_languages_and_has_causes_with_remedies(rule):
    assert rule.causes
    for text in (rule.title, rule.seen, *(t for cause in rule.causes for t in (cause.text, cause.remedy))):
        assert text.general("en").isascii()
        assert not text.general("zh").isascii()


# ------------------------------------------------------------------------------------------------------ falls of the reward
def evaluations(*values, spread=0.0, count=100):
    return [{"eval/reward/mean": v, "eval/reward/std": spread, "eval/count": count} for v in values]


@pytest.mark.parametrize(
    ("values", "acts"),
    [
        ((0.8, 0.7, 0.7, 0.7), True),  # falls once and stays down
        ((0.8, 0.74, 0.68, 0.62), True),  # falls and falls
        ((0.8, 0.7, 0.7, 0.79), False),  # comes back
        ((0.8, 0.7, 0.7), False),  # not long enough
        ((0.8, 0.77, 0.765, 0.77), False),  # within 5 %
        ((0.8, 0.77, 0.74, 0.71, 0.68, 0.66), True),  # slowly, so that no two neighbours are far apart
        ((0.5, 0.52, 0.9, 0.51, 0.52, 0.51), False),  # a lucky one is not what is fallen from
    ],
)
def test_a_reward_that_falls_and_stays_down_for_three_evaluations_has_fallen(values, acts):
    found = fed(watch("reward_fall"), evaluations(*values))
    assert (found is not None and found.level == "act") == acts


def test_a_fall_within_the_error_of_an_evaluation_is_none():
    values = (0.5, 0.42, 0.42, 0.42)
    assert fed(watch("reward_fall"), evaluations(*values, spread=0.5, count=25)) is None
    assert fed(watch("reward_fall"), evaluations(*values, spread=0.5, count=2500)).level == "act"


def test_a_small_reward_is_measured_by_its_spread():
    assert fed(watch("reward_fall"), evaluations(0.0, -0.04, -0.04, -0.04, spread=1.0, count=10**6)) is None
    assert fed(watch("reward_fall"), evaluations(0.0, -0.06, -0.06, -0.06, spread=1.0, count=10**6)).level == "act"


def test_a_fall_begins_behind_the_last_healthy_evaluation():
    steps = [{} for _ in range(40)]
    for step, value in ((10, 0.8), (20, 0.5), (30, 0.5), (40, 0.5)):
        steps[step - 1] = {"eval/reward/mean": value}
    assert fed(watch("reward_fall"), steps).since == 11


def test_without_an_evaluation_windows_of_training_rewards_are_compared():
    def run(*levels):
        watched = Watch(BY_NAME["reward_fall"], Limits.of(BY_NAME["reward_fall"]), window=5)
        return fed(watched, [{"reward/mean": level, "reward/std": 0.1} for level in levels for _ in range(5)])

    assert run(0.8, 0.5, 0.5, 0.5).level == "act"
    assert run(0.8, 0.5, 0.5, 0.5).since == 6
    assert run(0.8, 0.5, 0.5, 0.8) is None


# -------------------------------------------------------------------------------------------------------------- settings
def test_settings_go_over_the_table():
    assert fed(watch("kl_update", act=0.2), [{"kl/update": 0.19}]).level == "warn"
    assert fed(watch("kl_update", act=0.2), [{"kl/update": 0.21}]).level == "act"
    assert fed(watch("kl_update", for_=2), [{"kl/update": 0.09}]).level == "warn"
    assert fed(watch("kl_update", for_=2), [{"kl/update": 0.09}] * 2).level == "act"
    assert fed(watch("kl_update", then="warn"), [{"kl/update": 9.0}] * 5).level == "warn"
    assert fed(watch("kl_update", then="off"), [{"kl/update": 9.0}] * 5) is None
    assert fed(watch("entropy", warn=1.5), [{"entropy": 1.51}] * 3) is None
    assert fed(watch("entropy", warn=1.5), [{"entropy": 1.49}] * 3).level == "warn"
    assert Limits.of(BY_NAME["ratio_max"], RuleLimits(then="stop")).act == 10.0
    assert Limits.of(BY_NAME["ratio_max"], RuleLimits(act=50.0)).then == "roll_back"


def test_the_limit_of_staleness_is_that_of_sampling_unless_the_guards_is_set():
    assert limits_of(RULES, GuardRules(), max_staleness=0)["staleness"].warn == 0
    assert limits_of(RULES, GuardRules(), max_staleness=3)["staleness"].warn == 3
    own = GuardRules(staleness=RuleLimits(warn=2))
    assert limits_of(RULES, own, max_staleness=3)["staleness"].warn == 2
    stopping = limits_of(RULES, GuardRules(staleness=RuleLimits(then="stop")), max_staleness=0)["staleness"]
    assert (stopping.act, stopping.then) == (0, "stop")


def test_the_algorithms_own_limit_of_kl_counts_unless_the_guards_is_set():
    kl_limit = type("KlLimit", (), {"warn": 0.3, "act": 0.5})()
    assert limits_of(RULES, GuardRules(), kl_limit=kl_limit)["kl_update"].act == 0.5
    own = GuardRules(kl_update=RuleLimits(act=0.7))
    assert limits_of(RULES, own, kl_limit=kl_limit)["kl_update"] == Limits(warn=0.3, act=0.7, steps=1, then="roll_back")
    assert Guard().rules == GuardRules()


# ----------------------------------------------------------------------------------------------------------------- memory
FIGURES = sorted({name for case in CASES for part in (*case[1], case[2], case[3]) for name in part})
STEPS = st.lists(
    st.dictionaries(st.sampled_from(FIGURES), st.floats(-5, 2000, width=32), max_size=6), min_size=1, max_size=40
)


@given(STEPS, st.data())
def test_a_guard_that_was_saved_and_put_back_judges_as_one_that_went_on(steps, data):
    cut = data.draw(st.integers(0, len(steps)))
    whole, first, second = (StepGuard(metric="eval/reward/mean", patience=3) for _ in range(3))

    def judged(guard, numbered):
        timed = {name for name, watched in guard.watches.items() if watched.is_timed}
        verdicts = [guard.judge(StepReport(step=n, metrics=m)) for n, m in numbered]
        return [
            (v.action, [a for a in v.raised if a.rule not in timed], [c for c in v.cleared if c not in timed])
            for v in verdicts
        ]

    numbered = list(enumerate(steps, 1))
    found = judged(first, numbered[:cut])
    second.load_state(json.loads(json.dumps(first.state())))
    assert found + judged(second, numbered[cut:]) == judged(whole, numbered)
    assert json.dumps(second.state()) == json.dumps(whole.state())


# --------------------------------------------------------------------------------------------------------------- verdicts
def guard(**more):
    return StepGuard(metric="eval/reward/mean", patience=3, **more)


def judged(judge, *steps):
    return [judge.judge(StepReport(step=n, metrics=m)) for n, m in enumerate(steps, 1)]


def test_an_alarm_rings_once_and_says_when_it_is_over():
    verdicts = judged(guard(), *[{"kl/update": 0.04}] * 3, *[{"kl/update": 0.01}] * 6, {"kl/update": 0.04})
    rung = [[alarm.rule for alarm in v.raised] for v in verdicts]
    assert rung == [["kl_update"], [], [], [], [], [], [], [], [], ["kl_update"]]
    assert [v.cleared for v in verdicts].index(("kl_update",)) == 7


def test_the_gravest_verdict_counts():
    stop = {"reward/zero_spread_groups": 1.0, "reward/mean": 0.0, "reward/max": 0.0}
    judge = guard()
    judged(judge, *[stop] * 19)
    verdict = judge.judge(StepReport(step=20, metrics=stop | {"kl/update": 0.3}))
    assert (verdict.action, verdict.cause.rule) == ("stop", "no_signal")
    assert [alarm.rule for alarm in verdict.raised if alarm.level == "act"] == ["kl_update", "no_signal"]


def test_a_run_that_gets_worse_is_rolled_back_and_not_finished():
    values = [0.8, 0.5, 0.5, 0.5]
    verdicts = judged(guard(), *({"eval/reward/mean": v} for v in values))
    assert [v.action for v in verdicts] == ["continue", "continue", "continue", "roll_back"]
    waiting = judged(guard(), *({"eval/reward/mean": v} for v in (0.8, 0.78, 0.77, 0.5, 0.77)))
    assert [v.action for v in waiting] == ["continue", "continue", "continue", "continue", "finish"]


def test_overflows_of_float16_are_no_divergence():
    overflow = {"updates/overflow": 4.0, "updates/skipped": 4.0, "updates/count": 0.0, "updates/non_finite": 0.0}
    assert {v.action for v in judged(guard(), *[overflow] * 30)} == {"continue"}
    assert not any(v.raised for v in judged(guard(), *[overflow] * 30))


def test_groups_that_are_all_right_are_no_alarm():
    low = {"reward/mean": 0.2, "reward/max": 1.0, "reward/min": 0.0, "reward/zero_spread_groups": 0.3}
    learned = {"reward/mean": 0.99, "reward/max": 1.0, "reward/min": 0.0, "reward/zero_spread_groups": 0.95}
    stuck = {"reward/mean": 0.2, "reward/max": 1.0, "reward/min": 0.0, "reward/zero_spread_groups": 0.95}
    assert not any(v.raised for v in judged(guard(), low, *[learned] * 5))
    assert any(v.raised for v in judged(guard(), low, *[stuck] * 5))


FACTS = {"sampling.temperature": 0.3, "sampling.group_size": 4, "optim.learning_rate": 1e-5, "kl.coef": 0.02}


def test_an_alarm_names_causes_and_remedies_with_the_figures_it_saw():
    step = {
        "reward/zero_spread_groups": 0.87, "rollout/distinct_share": 0.31, "reward/mean": 0.1, "reward/max": 1.0,
        "reward/min": 0.0, "reward_spread/exact_match": 0.0, "reward_spread/length": 0.4,
    }  # fmt: skip
    alarm = judged(guard(facts=FACTS), *[step] * 3)[-1].raised[0]
    assert alarm.text.startswith("87% of groups have equal rewards")
    parts = [
        "31% are distinct", "sampling.temperature from 0.3", "sampling.group_size from 4",
        "reward `exact_match`: its spread inside groups is 0",
    ]  # fmt: skip
    places = [alarm.text.index(part) for part in parts]
    assert places == sorted(places)  # the causes that a figure speaks for stand first


def test_a_cause_that_a_figure_speaks_against_is_left_out():
    alarm = judged(guard(facts=FACTS), {"kl/update": 0.2})[-1].raised[0]
    assert "optim.learning_rate from 1e-05" in alarm.text
    assert "kl.coef" not in alarm.text  # 0.02 holds the policy
    held = judged(guard(facts=FACTS | {"kl.coef": 0.0}), {"kl/update": 0.2})[-1].raised[0]
    assert "raise kl.coef from 0" in held.text


def test_an_alarm_speaks_chinese_if_asked(monkeypatch):
    alarm = judged(guard(facts=FACTS, language="zh"), {"kl/update": 0.2})[-1].raised[0]
    assert "将 optim.learning_rate 从 1e-05 调低" in alarm.text
    for name in ("TRIMTAB_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    assert language() == "en"
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    assert (language(), language("en")) == ("zh", "en")
    monkeypatch.setenv("TRIMTAB_LANG", "en")
    assert language() == "en"


@given(st.lists(st.sampled_from([0.8, 0.81, 0.79, 0.805]), min_size=4, max_size=30))
def test_no_noise_within_the_limits_ever_acts(values):
    watched = watch("reward_fall")
    assert all(watched.look(n, {"eval/reward/mean": v}) is None for n, v in enumerate(values, 1))
