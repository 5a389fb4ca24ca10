"""Alert rules for Prometheus: they hold exactly when the guard's rule is broken, and the files in ops/ are made of them."""

import re
from collections import Counter
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts import ops
from scripts.alert_scenarios import LABELS, STEP_SECONDS, cases, judged, samples, scenarios
from trimtab.observe.alerts import alerts, of_guard
from trimtab.observe.conditions import And, Compare, Match, Number, Or, Past, Rise, Scrape, Series, Unless
from trimtab.observe.prometheus import RunCollector
from trimtab.rules import HEARTBEAT, NO_IMPROVEMENT, REWARD_FALL, RULES
from trimtab.rules.outside import OUTSIDE
from trimtab.rules.texts import PLACES
from trimtab.train.alarms import Limits
from trimtab.train.guard import StepGuard
from trimtab.train.settings import RuleLimits
from trimtab.types import StepReport

ROOT = Path(__file__).parents[2]
REMEDY = "run `python scripts/ops.py`, which writes what the tables say"
JUDGED = [rule for rule in RULES if rule not in (NO_IMPROVEMENT, HEARTBEAT)]
BY_NAME = {rule.name: rule for rule in JUDGED}
CASES = [case for rule in JUDGED for case in cases(rule)]
TIMED = [case for case in CASES if case.rule.seconds is not None and case.level == "warn"]
COUNTED = [case for case in CASES if case not in TIMED]
LEVELS = ("warn", "act")


def ids(case):
    return f"{case.rule.name}-{case.level}-{case.figure}"


def level_of(guard, rule):
    """The level at which the guard has just found a rule broken; empty if it has not."""
    breach = guard.watches[rule.name]._breach
    return breach.level if breach is not None and breach.is_new else ""


def holds(rule, collector, clock=0.0):
    """The levels whose condition holds for what is exported."""
    seen = [Scrape.of(clock, samples(collector))]
    return [level for level in LEVELS if of_guard(rule, level).condition.value(seen)]


def expected(guard, rule):
    """A rule that is broken at `act` is broken at `warn` as well, if it has that."""
    level, limits = level_of(guard, rule), guard.watches[rule.name].limits
    return [name for name in LEVELS[: LEVELS.index(level) + 1] if getattr(limits, name) is not None] if level else []


# ----------------------------------------------------------------------------------------------- the guard's own rules
@pytest.mark.parametrize("case", COUNTED, ids=ids)
def test_an_alert_holds_at_exactly_the_steps_at_which_the_guard_finds_its_rule_broken(case):
    inside, outside = case.steps(case.inside, case.times + 1), case.steps(case.outside, case.times + 1)
    for steps in (inside, outside, [*outside, *[case.inside] * 3]):
        for guard, collector in judged(case, steps):
            found, wanted = holds(case.rule, collector), expected(guard, case.rule)
            if case.rule.seconds is not None:  # whose warning waits in Prometheus
                found, wanted = ["act"] * ("act" in found), ["act"] * ("act" in wanted)
            assert found == wanted


@pytest.mark.parametrize("case", COUNTED, ids=ids)
def test_a_little_inside_its_limit_an_alert_is_silent_and_a_little_beyond_it_is_not(case):
    def at_the_end(figures, times):
        *_, (_, collector) = judged(case, case.steps(figures, times))
        return holds(case.rule, collector)

    assert case.level not in at_the_end(case.inside, case.times + 1)
    assert case.level in at_the_end(case.outside, case.times)
    if case.times > 1:
        assert case.level not in at_the_end(case.outside, case.times - 1)


@pytest.mark.parametrize("case", TIMED, ids=ids)
def test_an_alert_that_waits_for_minutes_fires_with_the_guard_or_a_step_later(case):
    condition = of_guard(case.rule, "warn")
    for figures in (case.inside, case.outside):
        rings, fires, since = [], [], None
        for step, (guard, collector) in enumerate(judged(case, case.steps(figures, case.times + 2)), 1):
            now = step * STEP_SECONDS
            held = condition.condition.value([Scrape.of(now, samples(collector))])
            since = None if not held else now if since is None else since
            if held and now - since >= condition.for_seconds:
                fires.append(step)
            if level_of(guard, case.rule) == "warn":
                rings.append(step)
        assert (not rings) == (not fires) == (figures is case.inside)
        if rings:
            assert fires[0] - rings[0] in (0, 1)


FIGURES = {
    "updates/non_finite": st.sampled_from([0.0, 0.0, 1.0]),
    "updates/count": st.sampled_from([0.0, 2.0]),
    "non_finite/weights": st.sampled_from([0.0] * 9 + [3.0]),
    "kl/update": st.floats(0, 0.08),
    "kl/reference": st.floats(0.01, 3),
    "loss/total": st.floats(-8, 8),
    "grad_norm/total": st.floats(0, 40),
    "reward/mean": st.floats(-1, 1),
    "reward/max": st.just(1.0),
    "reward/zero_spread_groups": st.sampled_from([0.1, 0.9, 1.0]),
    "sampling/kept": st.sampled_from([0.0, 3.0]),
    "update/ratio_max": st.floats(1, 15),
    "clip_fraction/low": st.floats(0, 0.7),
    "clip_fraction/high": st.floats(0, 0.7),
    "entropy": st.floats(0.1, 3),
    "rollout/distinct_share": st.floats(0, 1),
    "length/truncated": st.floats(0, 1),
    "length/p50": st.floats(10, 300),
    "staleness": st.sampled_from([0.0, 1.0, 2.0]),
    "throughput/train_tokens_per_second": st.floats(100, 2000),
    "eval/reward/mean": st.floats(0, 1),
    "eval/preference/js": st.floats(0, 0.1),
}


@settings(max_examples=40, deadline=None)
@given(st.lists(st.fixed_dictionaries({}, optional=FIGURES), min_size=1, max_size=25), st.booleans())
def test_whatever_steps_bring_an_alert_holds_when_its_rule_is_broken_and_not_otherwise(steps, is_evaluated):
    """At each step that a rule judges, and as long as it has nothing against the run."""
    guard = StepGuard(metric="none", patience=None, window=None if is_evaluated else 2)
    collector = RunCollector(labels=LABELS, info={}, max_steps=99, clock=lambda: 0.0)
    for number, metrics in enumerate(steps, 1):
        before = {name: watch._seen for name, watch in guard.watches.items()}
        verdict = guard.judge(StepReport(step=number, metrics=metrics))
        collector.take(StepReport(step=number, metrics=metrics, standings=verdict.standings))
        for rule in JUDGED:
            watch = guard.watches[rule.name]
            if rule.seconds is None and (watch._seen is not before[rule.name] or watch._breach is None):
                assert holds(rule, collector) == expected(guard, rule), rule.name


def test_good_completions_excuse_groups_without_a_spread():
    def at_the_end(reward):
        rule = BY_NAME["group_spread"]
        case = next(c for c in CASES if c.rule is rule and c.level == "warn")
        figures = {**case.outside, "reward/mean": reward, "reward/min": 0.0, "reward/max": 1.0}
        *_, (_, collector) = judged(case, [figures] * case.times)
        return holds(rule, collector)

    assert at_the_end(0.89) == ["warn"]
    assert at_the_end(0.91) == []


def test_between_evaluations_an_alert_stays_as_the_guard_s_alarm_does():
    case = next(c for c in CASES if c.rule is REWARD_FALL and c.level == "act")
    steps = [*case.steps(case.outside, case.times), {"kl/update": 0.001}, {"kl/update": 0.001}]
    *_, (guard, collector) = judged(case, steps)
    assert REWARD_FALL.name in guard.active
    assert holds(REWARD_FALL, collector) == ["warn", "act"]


@pytest.mark.parametrize(
    ("asked", "value", "wanted"),
    [
        ({}, 0.06, ["warn", "act"]),
        ({"warn": 0.1, "act": 0.2}, 0.15, ["warn"]),
        ({"warn": 0.1, "act": 0.2}, 0.06, []),
        ({"then": "warn"}, 0.06, ["warn"]),
        ({"then": "off"}, 0.06, []),
        ({"for_": 3}, 0.06, ["warn"]),
    ],
)
def test_an_alert_follows_the_limits_of_the_configuration(asked, value, wanted):
    rule = BY_NAME["kl_update"]
    guard = StepGuard(metric="none", patience=None, limits={rule.name: Limits.of(rule, RuleLimits(**asked))})
    collector = RunCollector(labels=LABELS, info={}, max_steps=9)
    report = StepReport(step=1, metrics={"kl/update": value})
    collector.take(StepReport(step=1, metrics=report.metrics, standings=guard.judge(report).standings))
    assert holds(rule, collector) == wanted


# -------------------------------------------------------------------------------------------------------- from outside
FIRES = {
    "role_heartbeat": [7],
    "run_down dies": [7],
    "run_down has its steps": [],
    "run_down has finished early": [],
    "run_down finishes where another died": [],
    "unreachable": [],
    "unreachable never seen": [3],
    "run_ended failed": [7],
    "run_ended stopped": [7],
    "run_ended finished": [],
    "stalled short steps": [12],
    "stalled long steps": [22],
    "stalled first step": [62],
    "stalled has ended": [],
    "role_down": [7],
    "role_down has an alert already": [],
    "rolled_back": [7, 15],
    "saves_fail": [7],
    "checkpoint_old short run": [7],
    "checkpoint_old long run": [7],
    "checkpoint_rejected": [7, 65],
    "checkpoint_rejected at the start": [4],
    "drill_old drilled": [7],
    "drill_old never drilled": [7],
    "notifications_lost": [7, 65],
    "notifications_wait": [23],
    "monitor_off": [7],
}
"""Minutes of those that a scenario is looked at."""


def test_what_only_an_outsider_sees_fires_at_these_minutes():
    by_rule = {alert.rule: alert for alert in alerts() if not alert.kept_seconds}
    found = {
        scenario.name.strip(): [
            minute for minute in scenario.minutes if ops.firing(by_rule[scenario.rule], scenario, minute)
        ]
        for scenario in scenarios(by_rule.values())
    }
    assert found == FIRES


def test_every_rule_has_its_alerts():
    found = Counter(alert.rule for alert in alerts())
    assert found == {
        **{rule.name: 2 for rule in JUDGED},
        HEARTBEAT.name: 1,
        **{record.name: 1 for record in OUTSIDE},
    }


# ------------------------------------------------------------------------------------------------------------- terms
def scrape(time, *samples):
    return Scrape.of(time, [(name, labels, value) for name, labels, value in samples])


def vector(*entries):
    return {frozenset(labels.items()): value for labels, value in entries}


A, B = {"run": "a"}, {"run": "b"}


def test_vectors_are_matched_by_their_labels():
    seen = [
        scrape(0, ("x", A, 3.0), ("x", B, 1.0), ("limit", {**A, "rule": "r"}, 2.0), ("limit", {**B, "rule": "r"}, 2.0))
    ]
    over = Compare(Series("x"), ">", Series("limit"), Match("ignoring", ("rule",)))
    assert over.value(seen) == vector((A, 3.0))
    assert Compare(Series("x"), ">", Series("limit")).value(seen) == {}
    assert over.promql() == "x > ignoring (rule) limit"


def test_conditions_join_as_promql_does():
    seen = [scrape(0, ("x", A, 3.0), ("x", B, 1.0), ("y", A, 0.0))]
    x, y = Series("x"), Series("y")
    assert And(x, y).value(seen) == vector((A, 3.0))
    assert Unless(x, y).value(seen) == vector((B, 1.0))
    assert Or((y, x)).value(seen) == vector((A, 0.0), (B, 1.0))
    assert And(Or((x, y)), Unless(x, y)).promql() == "(x\nor\ny)\nand (x\nunless y)"


def test_the_past_is_what_was_seen_within_it():
    seen = [scrape(at * 60, ("x", A, float(at))) for at in range(5)]
    assert Past(Series("x"), "avg", 120).value(seen) == vector((A, 3.5))
    assert Past(Series("x"), "last", 120).value([*seen, scrape(300)]) == vector((A, 4.0))
    assert Rise(Series("x"), 120).value(seen) == vector((A, 2.0))
    assert Rise(Series("x"), 900).value(seen) == vector((A, 4.0))


def test_a_label_may_be_one_of_several():
    seen = [scrape(0, ("state", {"state": "failed"}, 1.0), ("state", {"state": "training"}, 0.0))]
    either = Series("state", (("state", "failed|stopped"),))
    assert either.promql() == 'state{state=~"failed|stopped"}'
    assert Compare(either, ">", Number(0)).value(seen) == vector(({"state": "failed"}, 1.0))


# -------------------------------------------------------------------------------------------------------------- files
def test_the_files_are_what_the_tables_say():
    assert not ops.outdated(), REMEDY


def test_a_file_that_differs_is_named_and_fails_the_check(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "ops" / "prometheus"
    monkeypatch.setattr(ops, "FOLDER", folder)
    monkeypatch.setattr(ops, "expectations", lambda: {})
    assert ops.main(["--check"]) == 1
    assert "ops/prometheus/rules.yml" in capsys.readouterr().out
    assert not folder.exists()
    assert ops.main([]) == 0
    assert ops.main(["--check"]) == 0


def shipped():
    return [
        rule for group in yaml.safe_load((ops.FOLDER / "rules.yml").read_text())["groups"] for rule in group["rules"]
    ]


def test_no_name_has_a_severity_twice():
    times = Counter((rule["alert"], rule["labels"]["severity"]) for rule in shipped())
    assert set(times.values()) == {1}
    assert all(re.fullmatch(r"Trimtab([A-Z][a-z]*)+", name) for name, _ in times)


@pytest.mark.parametrize("rule", shipped(), ids=lambda rule: f"{rule['alert']}-{rule['labels']['severity']}")
def test_an_alert_says_in_both_languages_what_is_seen_why_and_what_to_do(rule):
    told = rule["annotations"]
    assert rule["labels"]["action"] in ("warn", "roll_back", "stop", "restart")
    assert set(told) == {"summary", "description", "summary_zh", "description_zh", "runbook_url"}
    for text in told.values():
        without = re.sub(r"\{\{.*?\}\}", "", text)
        assert text
        assert not re.search(r"[{}]|None", without)
    assert "Likely, in this order: (1)" in told["description"]
    assert re.search("可能的原因（按顺序）：\\(1\\)", told["description_zh"])


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: f"{alert.name}-{alert.severity}")
def test_both_languages_tell_the_same_figures(alert):
    assert set(PLACES.findall(alert.seen.en)) >= set(PLACES.findall(alert.seen.zh))
    assert {"value"} <= {name for name, _ in PLACES.findall(alert.seen.zh)} or "{value" not in alert.seen.en


@pytest.mark.parametrize("page", sorted({rule["annotations"]["runbook_url"] for rule in shipped()}))
def test_the_page_that_an_alert_points_to_has_that_place(page):
    path, _, anchor = page.partition("#")
    assert re.search(rf"^### {anchor}$", (ROOT / path).read_text(), re.MULTILINE)
    assert re.search(rf"^### {anchor}$", (ROOT / path.replace(".md", ".zh.md")).read_text(), re.MULTILINE)


def test_the_scrape_configuration_and_the_routes_are_consistent_with_the_rules():
    scraped = yaml.safe_load((ops.FOLDER / "prometheus.yml").read_text())
    assert scraped["rule_files"] == ["rules.yml"]
    assert [job["job_name"] for job in scraped["scrape_configs"]] == ["trimtab"]
    routes = yaml.safe_load((ROOT / "ops" / "alertmanager" / "alertmanager.yml").read_text())
    names = {receiver["name"] for receiver in routes["receivers"]}
    assert routes["route"]["receiver"] in names
    assert {route["receiver"] for route in routes["route"]["routes"]} <= names
    assert any(set(rule["equal"]) == {"run", "rule"} for rule in routes["inhibit_rules"])
