"""A finished run as plain data, and the curves in it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from trimtab.catalogue import Metric, find
from trimtab.errors import TrimtabError
from trimtab.types import Sample

Points = list[tuple[int, float]]
"""(step, value), in the order of the steps."""

MOST_POINTS = 600
"""Of a drawn curve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """Everything that the report and the picture of a run are made from."""

    name: str
    algorithm: str
    outcome: str
    """How the run ended, in a sentence."""
    steps: Sequence[Mapping[str, Any]]
    """`{"step": int, "time": unix seconds, "metrics": {name: float}}` each."""
    evaluations: Sequence[Mapping[str, Any]] = ()
    """Of the same shape; the metrics are named `eval/...`."""
    events: Sequence[Mapping[str, Any]] = ()
    """`{"event": str, "time": unix seconds, ...}` each."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Model, data, seed, versions, `duration`, ...: what to show in a small table."""
    config: str = ""
    """The resolved configuration, YAML."""
    before: Sequence[Sample] = ()
    """Completions of the validation prompts before the first step."""
    after: Sequence[Sample] = ()
    """Completions of the same prompts at the end."""
    samples: Sequence[Sample] = ()
    """Completions of late training."""
    formula: str = ""
    """The loss, as `L = L_policy + beta L_kl`."""
    next_steps: Sequence[str] = ()
    """What to try next, a sentence each; `code` in backquotes."""


def curve(records: Iterable[Mapping[str, Any]], name: str) -> Points:
    """The finite values of a metric, by step; of two records of a step the later one counts."""
    found = {}
    for record in records:
        value = record["metrics"].get(name)
        if isinstance(value, int | float) and math.isfinite(value):
            found[int(record["step"])] = float(value)
    return sorted(found.items())


def names(record: RunRecord) -> list[str]:
    """Every metric of a run, in the order of the first appearance."""
    return list(dict.fromkeys(name for r in (*record.steps, *record.evaluations) for name in r["metrics"]))


def every_curve(record: RunRecord) -> dict[str, Points]:
    """The curves of all metrics of a run that have at least one finite value."""
    records = (*record.steps, *record.evaluations)
    curves = {name: curve(records, name) for name in names(record)}
    return {name: points for name, points in curves.items() if points}


def describe(name: str) -> Metric:
    """The catalogue's entry of a metric; an empty one for a metric that it does not know."""
    try:
        return find(name)
    except TrimtabError:
        return Metric(name=name, unit="", help="")


def downsample(points: Points, most: int = MOST_POINTS) -> Points:
    """At most `most` (at least 4) of the points: the first, the last, and the extremes of equal stretches between.

    >>> downsample([(0, 0.0), (1, 9.0), (2, 1.0), (3, 2.0), (4, 0.0), (5, 1.0), (6, 3.0)], most=4)
    [(0, 0.0), (1, 9.0), (4, 0.0), (6, 3.0)]
    """
    if len(points) <= most:
        return list(points)
    inner = range(1, len(points) - 1)
    buckets = (most - 2) // 2
    kept = {0, len(points) - 1}
    for i in range(buckets):
        stretch = inner[i * len(inner) // buckets : (i + 1) * len(inner) // buckets]
        kept.add(min(stretch, key=lambda j: points[j][1]))
        kept.add(max(stretch, key=lambda j: points[j][1]))
    return [points[i] for i in sorted(kept)]


def running_mean(points: Points, window: int) -> Points:
    """The mean over the `window` points around each, fewer at the ends.

    >>> running_mean([(1, 0.0), (2, 3.0), (3, 6.0)], window=3)
    [(1, 1.5), (2, 3.0), (3, 4.5)]
    """
    sums = list(accumulate((value for _, value in points), initial=0.0))
    half = window // 2
    means = []
    for i, (step, _) in enumerate(points):
        start, end = max(0, i - half), min(len(points), i + half + 1)
        means.append((step, (sums[end] - sums[start]) / (end - start)))
    return means


def bucket_means(points: Points, most: int) -> Points:
    """At most `most` points, each the mean of a stretch of equally many, at the stretch's last step."""
    size = math.ceil(len(points) / most) if points else 1
    stretches = (points[i : i + size] for i in range(0, len(points), size))
    return [(stretch[-1][0], sum(value for _, value in stretch) / len(stretch)) for stretch in stretches]


def seconds(record: RunRecord) -> float | None:
    """How long the steps took by the clock; None if there are none."""
    times = [float(r["time"]) for r in (*record.steps, *record.evaluations) if "time" in r]
    if not record.steps or not times:
        return None
    return max(times) - min(times) + float(record.steps[0]["metrics"].get("time/step", 0.0))


def headline_metric(curves: Mapping[str, Points]) -> str | None:
    """The metric that says most about a run: evaluation before training, reward before loss."""
    judged = ("eval/reward_model/auc", "eval/preference/accuracy")
    order = ("eval/reward/mean", *judged, "eval/loss/nll", "reward/mean", "loss/total", "loss/nll", "loss/policy")
    return next((name for name in order if name in curves), None)
