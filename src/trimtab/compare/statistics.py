"""How sure a difference between two arms is: paired bootstrap over prompts, spread over seeds, Holm's correction.

An arm's scores are a table [S, P]: seed by evaluation prompt. Two arms are paired in both: a seed stands for the same
prompts in the same order, and every evaluation prompt is answered by both. Their difference D [S, P] has two errors:

    prompts   bootstrap of the prompts, each with its mean over seeds
    seeds     variance of the means over prompts, by S

Noise of single answers is in both, so the sum errs on the side of wider intervals. The degrees of freedom of Student's t
are those of Welch and Satterthwaite, at most 2 (S - 1); with two seeds there is one. In simulations equal arms are told
apart in 0.3 to 4.7 of 100 comparisons, the more the larger the spread over seeds against that over prompts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEVEL = 0.05
"""Chance of seeing a difference where there is none, over all pairs of a comparison."""
POWER = 0.8
"""Chance of seeing a difference that is there, where seeds are counted."""
RESAMPLES = 4000
MOST_SEEDS = 1000
_BLOCK = 500
"""Resamples at a time, for memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The score of one arm less that of another."""

    mean: float
    low: float
    """Of the 95 % interval, for this pair alone."""
    high: float
    error: float
    """Standard error, the correction for few seeds included."""
    p: float
    """Two-sided, for this pair alone."""
    seeds: int
    prompts: int

    def seeds_for(self, size: float) -> int | None:
        """Seeds that would show a true difference of this size in four of five comparisons; None: over a thousand.

        Taken from this pair's own error, as if all of it came from the seeds.
        """
        spread = self.error * math.sqrt(self.seeds)
        if spread == 0:
            return 2
        normal = NormalDist()
        for seeds in range(2, MOST_SEEDS + 1):
            reach = t_quantile(1 - LEVEL / 2, seeds - 1) + normal.inv_cdf(POWER)
            if reach * spread / math.sqrt(seeds) <= size:
                return seeds
        return None


def difference(one: NDArray[Any], other: NDArray[Any], *, seed: int = 0) -> Difference:
    """How much better one arm is than another.

    Args:
        one, other: scores [S, P], float64: seeds that both have run by prompts that both have answered, in one order.
        seed: of the resampling.

    Raises:
        ValueError: the tables have not the same shape, or nothing in them.
    """
    import numpy as np

    one, other = np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)
    if one.shape != other.shape or one.ndim != 2 or one.size == 0:
        raise ValueError(f"paired tables of one shape [seeds, prompts] are needed, not {one.shape} and {other.shape}")
    table = one - other
    seeds, prompts = table.shape
    mean = float(table.mean())
    means = _resampled(table.mean(0), seed)
    of_prompts = float(means.var(ddof=1))
    of_seeds = float(table.mean(1).var(ddof=1)) / seeds if seeds > 1 else 0.0
    error = math.sqrt(of_prompts + of_seeds)
    if error < 1e-12:  # the same in every seed and prompt, or of one number
        certain = 1.0 if abs(mean) < 1e-12 or seeds * prompts == 1 else 0.0
        return Difference(mean=mean, low=mean, high=mean, error=0.0, p=certain, seeds=seeds, prompts=prompts)
    degrees = _degrees(of_prompts, prompts, of_seeds, seeds)
    reach = error * t_quantile(1 - LEVEL / 2, degrees)
    low, high = mean - reach, mean + reach
    if of_prompts > 1e-24:  # the shape is the bootstrap's, the size of all errors together
        below, above = (float(q) - mean for q in np.quantile(means, [LEVEL / 2, 1 - LEVEL / 2]))
        low, high = mean + 2 * reach * below / (above - below), mean + 2 * reach * above / (above - below)
    p = 2 * (1 - t_cdf(abs(mean) / error, degrees))
    return Difference(mean=mean, low=low, high=high, error=error, p=p, seeds=seeds, prompts=prompts)


def _resampled(values: NDArray[Any], seed: int) -> NDArray[Any]:
    """Means of resamples of one value a prompt."""
    import numpy as np

    random, size = np.random.default_rng(seed), len(values)
    found = [
        random.multinomial(size, [1 / size] * size, size=min(_BLOCK, RESAMPLES - start)) @ values / size
        for start in range(0, RESAMPLES, _BLOCK)
    ]
    return np.concatenate(found)


def _degrees(of_prompts: float, prompts: int, of_seeds: float, seeds: int) -> int:
    """Whole degrees of freedom of the sum of two variances, each known from a few values."""
    if seeds == 1 or prompts == 1:
        return max(prompts, seeds) - 1 or 1
    if seeds == 2:  # the spread of two says nothing, and may look like none by chance
        return 1
    each = of_prompts**2 / (prompts - 1) + of_seeds**2 / (seeds - 1)
    found = int((of_prompts + of_seeds) ** 2 / each)
    return max(1, min(found, 2 * (seeds - 1)))  # and that of three may, too


def holm(p: Sequence[float]) -> list[float]:
    """The same p-values, corrected for their number (Holm 1979); in the given order.

    >>> [round(q, 3) for q in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p)), key=lambda i: p[i])
    found, highest = [0.0] * len(p), 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, (len(p) - rank) * p[i]))
        found[i] = highest
    return found


def t_cdf(t: float, degrees: int) -> float:
    """Of Student's t with whole degrees of freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4).

    >>> round(t_cdf(4.302653, 2), 6), round(t_cdf(-2.015048, 5), 6), t_cdf(0.0, 7)
    (0.975, 0.05, 0.5)
    """
    angle = math.atan(t / math.sqrt(degrees))
    sine, cosine = math.sin(angle), math.cos(angle)
    term = cosine if degrees % 2 else 1.0
    total = term if degrees > 1 or not degrees % 2 else 0.0
    for k in range(3 if degrees % 2 else 2, degrees - 1, 2):
        term *= (k - 1) / k * cosine * cosine
        total += term
    inside = 2 / math.pi * (angle + sine * total) if degrees % 2 else sine * total
    return 0.5 + 0.5 * inside


def t_quantile(share: float, degrees: int) -> float:
    """The t below which this share of the distribution lies.

    >>> [round(t_quantile(0.975, n), 4) for n in (1, 2, 5, 30)]
    [12.7062, 4.3027, 2.5706, 2.0423]
    """
    low, high = -1e3, 1e3
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, degrees) < share else (low, middle)
    return (low + high) / 2
