"""How far a reward agrees with labels: the area under the ROC curve with its confidence interval, and rank correlation.

Source: DeLong, DeLong and Clarke-Pearson 1988, Biometrics 44, in the form of Sun and Xu 2014, IEEE SPL 21(11).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

LEVEL = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Auc:
    """The probability that a good completion has the higher value than a bad one; a tie counts half."""

    value: float
    low: float | None
    high: float | None
    """Bounds of the 95 % interval, DeLong, cut at 0 and 1; None where his variance is 0, as if all values were known
    for certain: of an AUC of 0 or 1, and where all values are equal."""
    good: int
    bad: int


def auc(values: Sequence[float], labels: Sequence[bool]) -> Auc | None:
    """None without at least one good and one bad row.

    >>> found = auc([3.0, 2.0, 1.0, 2.0], [True, True, False, False])
    >>> found.value, round(found.low, 3), found.high
    (0.875, 0.529, 1.0)
    """
    every = torch.tensor(values, dtype=torch.float64)
    is_good = torch.tensor(labels, dtype=torch.bool)
    good, bad = every[is_good], every[~is_good]
    m, n = len(good), len(bad)
    if not m or not n:
        return None
    ranks = mid_ranks(torch.cat([good, bad]))
    wins = (ranks[:m] - mid_ranks(good)) / n  # of each good row, the share of bad rows that it is above
    losses = 1.0 - (ranks[m:] - mid_ranks(bad)) / m
    value = float(wins.mean())
    spread = math.sqrt(_variance(wins) / m + _variance(losses) / n)
    if not spread:
        return Auc(value=value, low=None, high=None, good=m, bad=n)
    reach = NormalDist().inv_cdf(0.5 + LEVEL / 2) * spread
    return Auc(value=value, low=max(0.0, value - reach), high=min(1.0, value + reach), good=m, bad=n)


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Spearman's; None where one of them does not vary.

    >>> rank_correlation([1.0, 2.0, 9.0], [5.0, 6.0, 7.0]), rank_correlation([1.0, 1.0], [1.0, 2.0])
    (1.0, None)
    """
    if len(a) < 2 or len(set(a)) < 2 or len(set(b)) < 2:
        return None
    x, y = (mid_ranks(torch.tensor(values, dtype=torch.float64)) for values in (a, b))
    x, y = x - x.mean(), y - y.mean()
    return round(float((x * y).sum() / ((x * x).sum() * (y * y).sum()).sqrt()), 12)


def mid_ranks(values: Tensor) -> Tensor:
    """[n] ranks from 1; equal values share the mean of theirs.

    >>> mid_ranks(torch.tensor([3.0, 1.0, 3.0])).tolist()
    [2.5, 1.0, 2.5]
    """
    _, place, counts = torch.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    found: Tensor = (last - (counts.double() - 1) / 2)[place]
    return found


def _variance(values: Tensor) -> float:
    return float(values.var(correction=1)) if len(values) > 1 else 0.0
