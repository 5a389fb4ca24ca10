"""What a comparison shows, in sentences that say no more than the figures do."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.catalogue import find, is_better_lower
from trimtab.compare import statistics
from trimtab.compare.plan import Plan
from trimtab.compare.results import ArmResult, Check, ConfigDifference, paired
from trimtab.compare.statistics import LEVEL, Difference

FEW_SEEDS = 3
"""Fewer say little about an algorithm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two arms."""

    one: str
    other: str
    scores: tuple[float, float]
    difference: Difference
    p: float
    """After Holm's correction over all pairs."""
    better: str | None
    """The arm that is shown to be better; None: no difference was found."""
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    metric: str
    headline: str
    pairs: tuple[Pair, ...]
    ranking: tuple[tuple[str, float | None], ...]
    """Arms by their mean score, the best first."""
    remarks: tuple[str, ...]


def judge(plan: Plan, arms: Sequence[ArmResult], checks: Sequence[Check], *, size: float) -> Verdict:
    """
    Args:
        size: a difference that one would want to see; how many seeds it takes is said where none was found.
    """
    metric = str(plan.locked["evaluation"]["metric"])
    lower = is_better_lower(metric)
    found = []
    for one, other in itertools.combinations(arms, 2):
        tables = paired(one, other)
        if tables is not None:
            first, second, _ = tables
            scores = float(first.mean()), float(second.mean())
            found.append((one, other, scores, statistics.difference(first, second)))
    corrected = statistics.holm([difference.p for *_, difference in found])
    pairs = tuple(
        _pair(one, other, scores, difference, p, lower=lower, size=size, count=len(found))
        for (one, other, scores, difference), p in zip(found, corrected, strict=True)
    )
    scored = [(arm.arm.label, sum(arm.scores) / len(arm.scores) if arm.scores else None) for arm in arms]
    worst = math.inf if lower else -math.inf
    ranking = sorted(scored, key=lambda s: worst if s[1] is None else s[1], reverse=not lower)
    return Verdict(
        metric=metric,
        headline=_headline(ranking, pairs, arms),
        pairs=pairs,
        ranking=tuple(ranking),
        remarks=tuple(_remarks(plan, arms, checks)),
    )


def _pair(
    one: ArmResult,
    other: ArmResult,
    scores: tuple[float, float],
    difference: Difference,
    p: float,
    *,
    lower: bool,
    size: float,
    count: int,
) -> Pair:
    first, second = one.arm.label, other.arm.label
    better = None
    if p < LEVEL and difference.mean != 0:
        better = first if (difference.mean < 0) == lower else second
    after = f" after Holm's correction over {count} pairs" if count > 1 else ""
    basis = f"{_count(difference.seeds, 'seed')}"
    if difference.prompts > 1:
        basis += f" and {difference.prompts:,} prompts"
    between = f"{_number(difference.low)} to {_number(difference.high)}"
    if better is None:
        said = (
            f"No difference was found between {first} and {second}: {_number(scores[0])} and {_number(scores[1])}, "
            f"difference {difference.mean:+.3g} (95 % interval {between}; p = {_p(p)}{after}; {basis})."
        )
        said += _seeds_needed(difference, size)
    else:
        high, low = (scores[0], scores[1]) if better == first else (scores[1], scores[0])
        worse = second if better == first else first
        said = (
            f"{better} is better than {worse}: {_number(high)} against {_number(low)}, difference "
            f"{abs(difference.mean):.3g} (95 % interval of {first} less {second} {between}; p = {_p(p)}{after}; {basis})."
        )
    if difference.seeds == 1:
        said += " With one seed this speaks of these two models, not of what made them."
    return Pair(one=first, other=second, scores=scores, difference=difference, p=p, better=better, said=said)


def _seeds_needed(difference: Difference, size: float) -> str:
    if difference.seeds == 1 or difference.error == 0:
        return ""
    needed = difference.seeds_for(size)
    if needed is None:
        return f" More than {statistics.MOST_SEEDS} seeds would be needed to show a difference of {size:g}."
    if needed <= difference.seeds:
        return f" A difference of {size:g} would have been seen in four of five such comparisons."
    return f" {needed} seeds would show a difference of {size:g} in four of five such comparisons."


def _headline(ranking: Sequence[tuple[str, float | None]], pairs: Sequence[Pair], arms: Sequence[ArmResult]) -> str:
    """The best arm, if it is better than every other; else which ones cannot be told apart from it."""
    if not pairs:
        return "There is nothing to compare: no two arms have a seed in common that was evaluated."
    best = ranking[0][0]
    mine = [pair for pair in pairs if best in (pair.one, pair.other)]
    behind = [(pair.other if pair.one == best else pair.one) for pair in mine if pair.better == best]
    level = [(pair.other if pair.one == best else pair.one) for pair in mine if pair.better is None]
    diverged = [arm.arm.label for arm in arms if arm.diverged]
    more = f" {_joined(diverged)} diverged in at least one seed." if diverged else ""
    if not level:
        return f"{best} is better than {_joined(behind)}.{more}"
    if not behind:
        return f"No difference was found between {best} and {_joined(level)}.{more}"
    return (
        f"{best} is better than {_joined(behind)}; between {best} and {_joined(level)} no difference was found.{more}"
    )


def _remarks(plan: Plan, arms: Sequence[ArmResult], checks: Sequence[Check]) -> list[str]:
    found = [check.said[0].upper() + check.said[1:] + "." for check in checks if not check.is_same]
    if len(plan.seeds) < FEW_SEEDS:
        found.append(
            f"{_count(len(plan.seeds), 'seed')}: take {FEW_SEEDS} or more to say something about an algorithm."
        )
    for arm in arms:
        if arm.diverged:
            causes = "; ".join(f"seed {r.seed}: {r.cause}" for r in arm.runs if r.state == "diverged")
            count = f"{arm.diverged} of {len(arm.runs)} runs"
            found.append(f"{arm.arm.label} diverged in {count} and is judged by their last evaluation ({causes}).")
        missing = len(plan.seeds) - len(arm.runs)
        if missing:
            found.append(f"{arm.arm.label} lacks {_count(missing, 'run')}.")
    if plan.budget is not None and plan.budget.kind in ("tokens", "seconds"):
        found.append(
            f"Every run ended at {plan.budget.amount:,.0f} {plan.budget.kind}, wherever its learning rate's schedule was."
        )
    return found


def as_values(
    plan: Plan,
    arms: Sequence[ArmResult],
    verdict: Verdict,
    checks: Sequence[Check],
    differences: Sequence[ConfigDifference],
) -> dict[str, Any]:
    """Everything as JSON values, for programs."""
    return {
        "format": 1,
        "metric": verdict.metric,
        "unit": find(verdict.metric).unit,
        "headline": verdict.headline,
        "ranking": [{"arm": label, "mean": score} for label, score in verdict.ranking],
        "pairs": [
            {
                "one": p.one, "other": p.other, "scores": list(p.scores), "difference": p.difference.mean,
                "interval": [p.difference.low, p.difference.high], "standard_error": p.difference.error,
                "p": p.difference.p, "p_corrected": p.p, "better": p.better, "seeds": p.difference.seeds,
                "prompts": p.difference.prompts, "said": p.said,
            }
            for p in verdict.pairs
        ],
        "remarks": list(verdict.remarks),
        "checks": [{"name": c.name, "is_same": c.is_same, "said": c.said} for c in checks],
        "config_differences": [{"key": d.key, "values": list(d.values), "why": d.why} for d in differences],
        "arms": [
            {
                "arm": a.arm.label,
                "changes": dict(a.arm.changes),
                "diverged": a.diverged,
                "runs": [
                    {
                        "seed": r.seed, "state": r.state, "cause": r.cause, "step": r.step, "score": r.score,
                        "steps": r.steps, "samples": r.samples, "tokens": r.tokens, "train_seconds": r.seconds,
                        **{k: r.cost[k] for k in ("wall_seconds", "cpu_seconds", "peak_bytes", "processes")},
                        "gpu_seconds": r.seconds if r.on_gpu else 0.0, "rollbacks": r.rollbacks,
                        "alarms": r.alarms, "parameters": dict(r.parameters),
                    }
                    for r in a.runs
                ],
            }
            for a in arms
        ],
        "vary": list(plan.varied),
        "seeds": list(plan.seeds),
        "budget": None if plan.budget is None else {plan.budget.kind: plan.budget.amount},
        "locked": dict(plan.locked),
    }  # fmt: skip


def _number(value: float) -> str:
    return f"{value:.3g}" if value else "0"


def _p(value: float) -> str:
    return "under 0.001" if value < 0.001 else f"{value:.2g}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _joined(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
