"""How the values of a reward are spread, how far that has moved from another set, and what to do about it.

Sources: the population stability index as in Siddiqi 2006, "Credit Risk Scorecards", ch. 9, with its scatter without any
drift from Yurdakul and Naranjo 2020, J. Risk Model Validation 14(4); the Kolmogorov-Smirnov test with the p-value of
Stephens 1970, JRSS B 32.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from trimtab.rewards import agreement
from trimtab.rewards.agreement import Auc
from trimtab.rules import Text

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
BINS = 10
NEAR = 0.01
"""Of the range: values so close to the largest one count as the largest."""
LARGE, SOME = 0.25, 0.1
"""Of the index: a move that asks for something, and one that is worth a look."""
CERTAIN = 0.01
"""Of the test: a move with a larger p-value may be chance."""
SATURATED, LONG, NARROW, OUTSIDE, WEAK = 0.5, 0.5, 0.5, 0.05, 0.85


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One reward over one set of completions."""

    values: Sequence[float | None]
    """None where it gave none."""
    lengths: Sequence[float]
    """Of each completion."""
    labels: Sequence[bool | None] = ()
    """Whether it is known to be good or bad; empty where nothing is known."""

    @property
    def given(self) -> list[float]:
        return [value for value in self.values if value is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Of one set, reward units."""

    count: int
    missing: int
    mean: float | None = None
    std: float | None = None
    min: float | None = None
    max: float | None = None
    quantiles: dict[str, float] = field(default_factory=dict)
    at_max: float | None = None
    """Share of values within 1 % of the range of the largest; 1 where all are equal."""
    at_min: float | None = None
    length_mean: float | None = None
    length_correlation: float | None = None
    """Spearman's, of value and length."""
    good: dict[str, float] = field(default_factory=dict)
    """Count, mean and std of the completions labelled good."""
    bad: dict[str, float] = field(default_factory=dict)
    auc: Auc | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """Shares of the values from `low` to below `high`; the last one has its end too."""

    low: float
    high: float
    before: float
    now: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """How far one set is from an earlier one."""

    psi: float
    """Population stability index over the tenths of the earlier set, nats."""
    psi_noise: float
    """What it stays under in 95 of 100 cases without any drift, at these numbers of values."""
    ks: float
    """Largest distance of the two distribution functions."""
    ks_p: float
    shift: float | None
    """Of the mean, in standard deviations of the earlier set; None if that has none."""
    spread: float | None
    """Standard deviation, as a share of the earlier set's."""
    outside: float
    """Share of the newer values that lie outside the earlier range."""
    length: float | None
    """Mean length, as a multiple of the earlier set's."""
    level: str
    """none, some or large."""
    bins: list[Bin]


# ---------------------------------------------------------------------------------------------------------- figures
def summary(observed: Observed) -> Summary:
    values = observed.given
    if not values:
        return Summary(count=0, missing=len(observed.values))
    lengths = [n for v, n in zip(observed.values, observed.lengths, strict=True) if v is not None]
    labelled = [
        (v, label)
        for v, label in zip(observed.values, observed.labels, strict=False)
        if v is not None and label is not None
    ]
    low, high = min(values), max(values)
    near = NEAR * (high - low)
    return Summary(
        count=len(values),
        missing=len(observed.values) - len(values),
        mean=statistics.fmean(values),
        std=statistics.stdev(values) if len(values) > 1 else None,
        min=low,
        max=high,
        quantiles={f"{share:g}": quantile(values, share) for share in QUANTILES},
        at_max=sum(v >= high - near for v in values) / len(values),
        at_min=sum(v <= low + near for v in values) / len(values),
        length_mean=statistics.fmean(lengths),
        length_correlation=agreement.rank_correlation(values, lengths),
        good=_moments([v for v, label in labelled if label]),
        bad=_moments([v for v, label in labelled if not label]),
        auc=agreement.auc([v for v, _ in labelled], [label for _, label in labelled]),
    )


def _moments(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    return {
        "count": len(values),
        "mean": statistics.fmean(values),
        "std": statistics.stdev(values) if len(values) > 1 else 0.0,
    }


def quantile(values: Sequence[float], share: float) -> float:
    """With straight lines between the values.

    >>> quantile([1.0, 2.0, 4.0], 0.5), quantile([1.0, 2.0, 4.0], 0.75)
    (2.0, 3.0)
    """
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def drift(before: Observed, now: Observed) -> Drift | None:
    """None where one of the sets has no value."""
    old, new = before.given, now.given
    if not old or not new:
        return None
    edges = edges_of(old, new)
    was, shares = _shares(old, edges), _shares(new, edges)
    bins = [
        Bin(low=low, high=high, before=a, now=b) for (low, high), a, b in zip(pairwise(edges), was, shares, strict=True)
    ]
    psi = sum((b - a) * math.log(b / a) for a, b in zip(_smooth(was, len(old)), _smooth(shares, len(new)), strict=True))
    noise = (1 / len(old) + 1 / len(new)) * chi_square_95(len(bins) - 1)
    ks = ks_statistic(old, new)
    p = ks_p_value(ks, len(old), len(new))
    first, second = summary(before), summary(now)
    spread = first.std or 0.0
    is_certain = psi > noise and p < CERTAIN
    return Drift(
        psi=psi,
        psi_noise=noise,
        ks=ks,
        ks_p=p,
        shift=(statistics.fmean(new) - statistics.fmean(old)) / spread if spread else None,
        spread=(second.std or 0.0) / spread if spread else None,
        outside=sum(v < min(old) or v > max(old) for v in new) / len(new),
        length=second.length_mean / first.length_mean if first.length_mean and second.length_mean else None,
        level="large" if is_certain and psi >= LARGE else "some" if is_certain and psi >= SOME else "none",
        bins=bins,
    )


def edges_of(old: Sequence[float], new: Sequence[float]) -> list[float]:
    """Where bins begin and end: one for each value if there are few, else the tenths of the old values.

    >>> edges_of([0.0, 1.0, 1.0], [0.0, 0.5])
    [0.0, 0.25, 0.75, 1.0]
    """
    every = sorted({*old, *new})
    if len(every) == 1:
        return [every[0], every[0]]
    if len(every) <= BINS:
        inner = [(a + b) / 2 for a, b in pairwise(every)]
    else:
        inner = sorted({quantile(old, n / BINS) for n in range(1, BINS)})
        inner = [edge for edge in inner if every[0] < edge < every[-1]] or [(every[0] + every[-1]) / 2]
    return [every[0], *inner, every[-1]]


def _shares(values: Sequence[float], edges: Sequence[float]) -> list[float]:
    counts = [0] * (len(edges) - 1)
    for value in values:
        counts[sum(value >= edge for edge in edges[1:-1])] += 1
    return [count / len(values) for count in counts]


def _smooth(shares: Sequence[float], count: int) -> list[float]:
    """Half a value more in each bin: the logarithm of an empty one is finite."""
    return [(share * count + 0.5) / (count + 0.5 * len(shares)) for share in shares]


def ks_statistic(a: Sequence[float], b: Sequence[float]) -> float:
    """
    >>> ks_statistic([1.0, 2.0], [3.0]), ks_statistic([1.0, 2.0, 3.0], [3.0, 2.0, 1.0])
    (1.0, 0.0)
    """
    x, y = sorted(a), sorted(b)
    i = j = 0
    largest = 0.0
    while i < len(x) and j < len(y):
        value = min(x[i], y[j])
        while i < len(x) and x[i] == value:
            i += 1
        while j < len(y) and y[j] == value:
            j += 1
        largest = max(largest, abs(i / len(x) - j / len(y)))
    return largest


def ks_p_value(statistic: float, n: int, m: int) -> float:
    """How often chance alone moves so far, at least; too large where values are tied, so it errs on the safe side."""
    root = math.sqrt(n * m / (n + m))
    reach = (root + 0.12 + 0.11 / root) * statistic
    if reach < 0.2:
        return 1.0
    total = 2 * sum(math.copysign(math.exp(-2 * (k * reach) ** 2), k % 2 - 0.5) for k in range(1, 101))
    return min(1.0, max(0.0, total))


def chi_square_95(degrees: int) -> float:
    """95 % quantile, Wilson and Hilferty's approximation: within 1 % from 2 degrees on.

    >>> round(chi_square_95(9), 1), chi_square_95(0)
    (16.9, 0.0)
    """
    if degrees < 1:
        return 0.0
    a = 2 / (9 * degrees)
    return degrees * math.pow(1 - a + 1.6449 * math.sqrt(a), 3)


# ----------------------------------------------------------------------------------------------------------- advice
@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something about the values that asks for a deed."""

    name: str
    text: Text


CONSTANT = Finding(
    name="constant",
    text=Text(
        "all {count:,.0f} values are {mean:.4g}: nothing is learnt from it here; look at its source and at the completions",
        "全部 {count:,.0f} 个值都是 {mean:.4g}：从中学不到任何东西；请检查奖励函数与回答",
    ),
)
AT_THE_TOP = Finding(
    name="saturated",
    text=Text(
        "{at_max:.0%} of the values are at the largest, {max:.4g}: the best completions are not told apart; take harder "
        "prompts, or a reward with more levels",
        "{at_max:.0%} 的值已达最大值 {max:.4g}：无法区分最好的回答；请换更难的提示，或分级更细的奖励",
    ),
)
LENGTH = Finding(
    name="length",
    text=Text(
        "it goes with length (rank correlation {length_correlation:+.2f}), so the policy will learn length; if that is not "
        "wanted, set sampling.overlong.buffer, or put a reward beside it that pulls the other way",
        "奖励与长度相关（秩相关 {length_correlation:+.2f}），策略会学到长度；若不希望如此，请设置 sampling.overlong.buffer，"
        "或加上一个方向相反的奖励",
    ),
)
LABELS = Finding(
    name="labels",
    text=Text(
        "its AUC against the labels is {auc:.3f}, under 0.85: a policy would learn its mistakes; train it longer, on more "
        "pairs, or look at the labels",
        "相对标签的 AUC 为 {auc:.3f}，低于 0.85：策略会学到它的错误；请训练更久、增加数据对，或检查标签",
    ),
)
RISEN = Finding(
    name="risen",
    text=Text(
        "the values have risen (mean {shift:+.2f} standard deviations, PSI {psi:.2f}): label some of the newest completions "
        "and measure the AUC on them with `trimtab reward check`; if they are no better, the policy has found what the "
        "reward overrates: raise kl.coef and train the reward model on these completions",
        "奖励值上升（均值 {shift:+.2f} 个标准差，PSI {psi:.2f}）：标注部分最新回答，用 `trimtab reward check` 计算其 AUC；"
        "若质量并未提高，则策略利用了奖励的漏洞：调高 kl.coef，并用这些回答训练奖励模型",
    ),
)
FALLEN = Finding(
    name="fallen",
    text=Text(
        "the values have fallen (mean {shift:+.2f} standard deviations, PSI {psi:.2f}): read the newest completions; if they "
        "are worse, go back with `trimtab rollback`; if not, the reward measures something else than before",
        "奖励值下降（均值 {shift:+.2f} 个标准差，PSI {psi:.2f}）：阅读最新回答；若质量变差，用 `trimtab rollback` 回退；"
        "否则是奖励的度量已改变",
    ),
)
MOVED = Finding(
    name="moved",
    text=Text(
        "the values are spread otherwise than before (PSI {psi:.2f}, KS {ks:.2f}) around the same mean: look at the bins "
        "that have grown, and at completions with such values",
        "均值未变，但分布已变（PSI {psi:.2f}，KS {ks:.2f}）：查看增大的区间以及相应的回答",
    ),
)
BEYOND = Finding(
    name="outside",
    text=Text(
        "{outside:.0%} of the newer values are outside the earlier range: a reward model is not to be trusted there; label "
        "such completions and train it on them",
        "{outside:.0%} 的新值超出先前范围：奖励模型在此不可信；请标注这些回答并用于训练",
    ),
)
NARROWED = Finding(
    name="narrowed",
    text=Text(
        "the spread is {spread:.0%} of what it was: completions differ little in reward, and groups teach little; raise "
        "sampling.temperature, take harder prompts, or stop here if the task is learned",
        "离散度只剩原来的 {spread:.0%}：回答的奖励几乎相同，组内难以学习；请调高 sampling.temperature、换更难的提示，"
        "若任务已学会则到此为止",
    ),
)
LONGER = Finding(
    name="longer",
    text=Text(
        "completions are {length:.2f} times as long as before: look whether length is what is paid",
        "回答长度是先前的 {length:.2f} 倍：请检查奖励是否在鼓励长度",
    ),
)


def findings(now: Summary, moved: Drift | None) -> list[Finding]:
    """What asks for a deed, the plainest first."""
    if not now.count:
        return []
    found = []
    if now.count > 1 and now.min == now.max:
        found.append(CONSTANT)
    elif now.at_max is not None and now.at_max >= SATURATED and now.count > 1:
        found.append(AT_THE_TOP)
    if now.length_correlation is not None and abs(now.length_correlation) >= LONG:
        found.append(LENGTH)
    if now.auc is not None and now.auc.value < WEAK:
        found.append(LABELS)
    if moved is None or moved.level == "none":
        return found
    if moved.shift is None or abs(moved.shift) < 0.1:
        found.append(MOVED)
    else:
        found.append(RISEN if moved.shift > 0 else FALLEN)
    if moved.outside >= OUTSIDE:
        found.append(BEYOND)
    if moved.spread is not None and moved.spread <= NARROW and CONSTANT not in found:
        found.append(NARROWED)
    if moved.length is not None and not 1 / 1.5 < moved.length < 1.5:
        found.append(LONGER)
    return found


def figures_of(now: Summary, moved: Drift | None) -> dict[str, Any]:
    """What the texts of findings are filled in from."""
    found = {name: getattr(now, name) for name in ("count", "mean", "max", "at_max", "length_correlation")} | {
        "auc": None if now.auc is None else now.auc.value
    }
    names = ("psi", "ks", "shift", "spread", "outside", "length")
    return found | {name: None if moved is None else getattr(moved, name) for name in names}
