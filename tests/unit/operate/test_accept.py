"""Each line of the acceptance list turns with its own figure and with no other."""

import pytest

from trimtab.operate import accept
from trimtab.operate.accept import Evidence

GOOD = {
    "loss/total": 0.01,
    "grad_norm/total": 1.0,
    "updates/non_finite": 0.0,
    "reward/errors": 0.0,
    "update/ratio_max": 2.0,
    "clip_fraction/low": 0.1,
    "clip_fraction/high": 0.1,
    "kl/update": 0.01,
    "length/p50": 10.0,
    "length/truncated": 0.1,
    "entropy": 1.0,
    "memory/total": 1e9,
    "time/step": 1.0,
    "role/restarts": 0.0,
    "preference/accuracy": 0.9,
}
GOOD_END = {"eval/preference/js": 0.01}


def evidence(change=None, *, late=8, count=40, **other):
    """A healthy run, with `change` in the metrics of its last `late` steps."""
    steps = [{**GOOD, "reward/mean": n / count} for n in range(count)]
    for step in steps[-late:]:
        step.update(change or {})
    facts = {
        "steps": steps,
        "evaluations": [GOOD_END],
        "events": [],
        "facts": {"ended": "now", "outcome": "all steps done"},
    }
    facts |= {"failure": None, "max_steps": count, "last_step": count, "damaged_lines": 0, "memory_bytes": 8e9}
    return Evidence(**{**facts, **other})


def states(found):
    return {check.name: check.state for check in accept.judge(found)}


def test_a_healthy_run_passes_every_line():
    assert set(states(evidence()).values()) == {"pass"}
    assert len(accept.LIST) == 15


@pytest.mark.parametrize(
    ("name", "state", "found"),
    [
        ("all steps done, or stopped early", "FAIL", evidence(facts={"ended": None})),
        ("every stage without an error", "FAIL", evidence({"reward/errors": 1.0})),
        ("every stage without an error", "FAIL", evidence(failure={"code": 4})),
        ("every stage without an error", "FAIL", evidence(damaged_lines=1)),
        ("loss and gradient finite", "FAIL", evidence({"updates/non_finite": 1.0})),
        ("token ratio in range", "FAIL", evidence({"update/ratio_max": 10.1})),
        ("clipped share", "FAIL", evidence({"clip_fraction/low": 0.41})),
        ("loss terms steady", "FAIL", evidence({"loss/total": 1.0}, late=3)),
        ("loss terms steady", "FAIL", evidence({"grad_norm/total": 11.0}, late=3)),
        ("KL of an update, nats per token", "FAIL", evidence({"kl/update": 0.03}, late=10)),
        ("completion lengths sane", "FAIL", evidence({"length/p50": 21.0}, late=10)),
        ("completion lengths sane", "FAIL", evidence({"length/p50": 4.0}, late=10)),
        ("completion lengths sane", "FAIL", evidence({"length/truncated": 0.51}, late=10)),
        ("reward rises", "FAIL", evidence({"reward/mean": 0.0}, late=20)),
        ("preference accuracy", "FAIL", evidence({"preference/accuracy": 0.84}, late=10)),
        ("preference accuracy", "FAIL", evidence(evaluations=[{"eval/preference/accuracy": 0.85, **GOOD_END}])),
        ("policy near the reference, JS in nats", "FAIL", evidence(evaluations=[{"eval/preference/js": 0.05}])),
        ("every role answers", "warn", evidence({"role/restarts": 1.0}, late=1)),
        (
            "reward rises",
            "FAIL",
            evidence(evaluations=[{"eval/reward/mean": 0.5}, {"eval/reward/mean": 0.4, **GOOD_END}]),
        ),
        ("entropy kept", "warn", evidence({"entropy": 0.49}, late=10)),
        ("memory in budget", "FAIL", evidence({"memory/total": 7.7e9})),
        ("saves do not block", "warn", evidence(events=[{"event": "saved", "seconds": 5.0}])),
    ],
)
def test_one_figure_out_of_its_limit_turns_its_own_line_alone(name, state, found):
    expected = dict.fromkeys(states(evidence()), "pass") | {name: state}
    assert states(found) == expected


@pytest.mark.parametrize(
    "change",
    [
        {"update/ratio_max": 10.0},
        {"clip_fraction/low": 0.4},
        {"kl/update": 0.0299},
        {"length/p50": 20.0},
        {"length/truncated": 0.5},
        {"entropy": 0.5},
        {"loss/total": 0.1},
    ],
)
def test_a_figure_at_its_limit_passes(change):
    assert set(states(evidence(change, late=10)).values()) == {"pass"}


def test_two_high_losses_are_no_divergence():
    assert states(evidence({"loss/total": 5.0}, late=2))["loss terms steady"] == "pass"
