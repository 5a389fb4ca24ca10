"""The acceptance list of a run: each line with the figure that was seen and the limit it is held against."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trimtab import rules
from trimtab.store import journal
from trimtab.store.run_directory import RunDirectory

Metrics = Mapping[str, float]

KL_LIMIT = rules.KL_UPDATE.warn or 0.0
"""Nats per token, old policy to new over a step."""
RATIO_LIMIT = rules.RATIO_MAX.warn or 0.0
CLIP_LIMIT = rules.CLIP_FRACTION.warn or 0.0
TRUNCATED_LIMIT = rules.TRUNCATED.warn or 0.0
LENGTH_RANGE = (1 / (rules.LENGTH.warn or 1.0), rules.LENGTH.warn or 1.0)
"""Median length, as a share of what it was at the start."""
ENTROPY_SHARE = rules.ENTROPY.warn or 0.0
"""Of the entropy at the start, which must be left; a floor in nats would depend on the model."""
SPIKE = rules.LOSS_DIVERGENCE.act or 0.0
"""Times its running median, three steps running: a loss that diverges."""
ACCURACY_LIMIT = rules.PREFERENCE_ACCURACY.warn or 0.0
JS_LIMIT = rules.PREFERENCE_JS.warn or 0.0
SAVE_SHARE = 0.10
"""Of the run's time, spent in saving."""
MEMORY_SHARE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    name: str
    state: str
    """`pass`, `warn`, `FAIL`, or `-` where the run has nothing to judge."""
    seen: str
    limit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a run's files say."""

    steps: Sequence[Metrics]
    evaluations: Sequence[Metrics]
    events: Sequence[Mapping[str, Any]]
    facts: Mapping[str, Any]
    failure: Mapping[str, Any] | None
    max_steps: int
    last_step: int
    damaged_lines: int
    memory_bytes: float

    def of(self, name: str) -> list[float]:
        """A metric over the steps that have it."""
        return [m[name] for m in self.steps if name in m]


def accept(directory: RunDirectory) -> list[Check]:
    """Every line of the list, judged on a run's own records."""
    import json

    import psutil

    reading = journal.read(directory.journal)
    steps = reading.steps()
    evidence = Evidence(
        steps=[s["metrics"] for s in steps],
        evaluations=[e["metrics"] for e in reading.evaluations()],
        events=reading.events(),
        facts=directory.facts(),
        failure=json.loads(directory.failure.read_text()) if directory.failure.is_file() else None,
        max_steps=int(directory.newest_config()["resolved"]["train"]["max_steps"]),
        last_step=steps[-1]["step"] if steps else 0,
        damaged_lines=len(reading.damaged_lines),
        memory_bytes=float(psutil.virtual_memory().total),
    )
    return judge(evidence)


def judge(evidence: Evidence) -> list[Check]:
    """The list, in the order of the guides."""
    return [line(evidence) for line in LIST]


def _check(name: str, good: bool | None, seen: str, limit: str, *, otherwise: str = "FAIL") -> Check:
    state = "-" if good is None else "pass" if good else otherwise
    return Check(name=name, state=state, seen=seen, limit=limit)


def _done(e: Evidence) -> Check:
    outcome = e.facts.get("outcome") if e.facts.get("ended") else "not ended"
    return _check(
        "all steps done, or stopped early",
        bool(e.facts.get("ended")),
        f"{e.last_step}/{e.max_steps}, {outcome}",
        "ended",
    )


def _without_error(e: Evidence) -> Check:
    errors = sum(e.of("reward/errors"))
    failed = f", exit code {e.failure['code']}" if e.failure else ""
    good = not e.failure and not errors and not e.damaged_lines
    seen = f"{errors:g} reward errors, {e.damaged_lines} damaged journal lines{failed}"
    return _check("every stage without an error", good, seen, "none")


def _finite(e: Evidence) -> Check:
    count = sum(e.of("updates/non_finite"))
    return _check("loss and gradient finite", count == 0, f"{count:g} updates not applied", "0")


def _ratio(e: Evidence) -> Check:
    values = e.of("update/ratio_max")
    return _check(
        "token ratio in range", max(values) <= RATIO_LIMIT if values else None, _most(values), f"<= {RATIO_LIMIT:g}"
    )


def _clipped(e: Evidence) -> Check:
    shares = [
        m.get("clip_fraction/low", 0.0) + m.get("clip_fraction/high", 0.0) for m in e.steps if "clip_fraction/low" in m
    ]
    return _check("clipped share", max(shares) <= CLIP_LIMIT if shares else None, _most(shares), f"<= {CLIP_LIMIT:g}")


def _steady(e: Evidence) -> Check:
    names = sorted({n for m in e.steps for n in m if n in ("loss/total", "loss/value", "grad_norm/total")})
    diverged = [name for name in names if _spikes(e.of(name))]
    seen = f"diverging: {', '.join(diverged)}" if diverged else "steady"
    return _check(
        "loss terms steady", not diverged if names else None, seen, f"not > {SPIKE:g} x median, 3 steps running"
    )


def _spikes(values: Sequence[float]) -> bool:
    """Three values running far over the median of those before."""
    running = 0
    for place in range(5, len(values)):
        usual = statistics.median(abs(v) for v in values[:place])
        floor = max(usual, 1e-2)
        running = running + 1 if abs(values[place]) > SPIKE * floor else 0
        if running == 3:
            return True
    return False


def _kl(e: Evidence) -> Check:
    values = _late(e.of("kl/update"))
    middle = statistics.median(values) if values else None
    seen = "no data" if middle is None else f"{middle:.4f} (last quarter, median)"
    return _check(
        "KL of an update, nats per token", None if middle is None else middle < KL_LIMIT, seen, f"< {KL_LIMIT:g}"
    )


def _lengths(e: Evidence) -> Check:
    medians, truncated = e.of("length/p50"), _late(e.of("length/truncated"))
    if not medians or not truncated or "reward/mean" not in e.steps[-1]:
        return _check("completion lengths sane", None, "no data", "")
    share, cut = statistics.median(_late(medians)) / max(medians[0], 1e-9), statistics.mean(truncated)
    good = LENGTH_RANGE[0] <= share <= LENGTH_RANGE[1] and cut <= TRUNCATED_LIMIT
    limit = f"{LENGTH_RANGE[0]:g}-{LENGTH_RANGE[1]:g} x start, cut <= {TRUNCATED_LIMIT:.0%}"
    return _check("completion lengths sane", good, f"{share:.2f} x start, {cut:.0%} cut", limit)


def _reward(e: Evidence) -> Check:
    judged = [m["eval/reward/mean"] for m in e.evaluations if "eval/reward/mean" in m]
    if len(judged) > 1:
        return _check(
            "reward rises", judged[-1] > judged[0], f"evaluation {judged[0]:.3f} -> {judged[-1]:.3f}", "rises"
        )
    trained = e.of("reward/mean")
    if len(trained) < 6:
        return _check("reward rises", None, "too few steps", "rises")
    third = len(trained) // 3
    early, late = statistics.mean(trained[:third]), statistics.mean(trained[-third:])
    return _check("reward rises", late > early, f"training {early:.3f} -> {late:.3f}", "rises")


def _entropy(e: Evidence) -> Check:
    values = e.of("entropy") if any("reward/mean" in m for m in e.steps) else []
    if not values:
        return _check("entropy kept", None, "no data", "")
    left = statistics.median(_late(values)) / max(values[0], 1e-9)
    seen = f"{values[0]:.3f} -> {values[-1]:.3f} nats per token"
    return _check("entropy kept", left >= ENTROPY_SHARE, seen, f">= {ENTROPY_SHARE:.0%} of the start", otherwise="warn")


def _preference(e: Evidence) -> Check:
    """Of validation pairs at the end; without any, of the pairs trained on late."""
    judged = [m["eval/preference/accuracy"] for m in e.evaluations if "eval/preference/accuracy" in m][-1:]
    values = judged or _late(e.of("preference/accuracy"))
    seen = f"{statistics.mean(values):.3f} {'of validation' if judged else 'in training'}" if values else "no data"
    good = statistics.mean(values) > ACCURACY_LIMIT if values else None
    return _check("preference accuracy", good, seen, f"> {ACCURACY_LIMIT:g}")


def _js(e: Evidence) -> Check:
    values = [m["eval/preference/js"] for m in e.evaluations if "eval/preference/js" in m][-1:]
    seen = f"{values[0]:.4f} at the end" if values else "no data"
    return _check(
        "policy near the reference, JS in nats", values[0] < JS_LIMIT if values else None, seen, f"< {JS_LIMIT:g}"
    )


def _roles(e: Evidence) -> Check:
    restarts = max(e.of("role/restarts"), default=None)
    seen = "no data" if restarts is None else f"{restarts:.0f} restarts"
    return _check(
        "every role answers", None if restarts is None else not restarts, seen, "no restart", otherwise="warn"
    )


def _memory(e: Evidence) -> Check:
    peak = max(e.of("memory/total"), default=0.0)
    good = peak <= MEMORY_SHARE * e.memory_bytes if peak else None
    seen = f"{peak / 2**30:.2f} GiB of {e.memory_bytes / 2**30:.1f}"
    return _check("memory in budget", good, seen, f"<= {MEMORY_SHARE:.0%}")


def _saving(e: Evidence) -> Check:
    saves = [event for event in e.events if event["event"] == "saved"]
    saving = sum(float(save.get("stall_seconds", save["seconds"])) for save in saves)
    training = sum(e.of("time/step"))
    share = saving / max(training + saving, 1e-9)
    good = share <= SAVE_SHARE if training else None
    return _check("saves do not block", good, f"{share:.1%} of the time", f"<= {SAVE_SHARE:.0%}", otherwise="warn")


def _late(values: Sequence[float]) -> Sequence[float]:
    """The last quarter, at least one."""
    return values[-max(1, len(values) // 4) :] if values else []


def _most(values: Sequence[float]) -> str:
    return f"{max(values):.3g} at most" if values else "no data"


LIST: tuple[Callable[[Evidence], Check], ...] = (
    _done,
    _without_error,
    _finite,
    _ratio,
    _clipped,
    _steady,
    _kl,
    _lengths,
    _reward,
    _entropy,
    _preference,
    _js,
    _roles,
    _memory,
    _saving,
)
