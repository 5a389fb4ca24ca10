"""The figures of an evaluation: pass@k, maj@k, rewards with their error, lengths; over all prompts or by a column.

A completion is right if its reward reaches a threshold. One that no reward function judged is in no figure of rewards, of
pass@k or of maj@k, so a prompt may have fewer completions there than were sampled; one with fewer than k is left out of
pass@k and maj@k, and `eval/pass@k/prompts` says how many were left in.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

EXACT = 64
"""Completions of a prompt up to which maj@k is the exact mean over all subsets."""
SUBSETS = 2000
"""That are drawn where there are more."""
CLOSE = 1e-9
"""A reward that is less than this under the threshold reaches it: weighted sums are rounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One completion, judged."""

    prompt_id: int
    index: int
    text: str
    tokens: int
    """How many."""
    reward: float | None
    """None: no reward function gave a value."""
    parts: Mapping[str, float | None]
    """By reward function."""
    is_truncated: bool
    extracted: str | None
    """The answer that it states, for the vote of maj@k; None: it states none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What one prompt's completions come to. Numbers only, so that the texts need not stay in memory."""

    prompt_id: int
    rewards: tuple[float, ...]
    """Of the completions that were judged."""
    right: int
    """How many of these are right."""
    parts: tuple[tuple[float | None, ...], ...]
    """One tuple a reward function."""
    lengths: tuple[int, ...]
    """Tokens, of all completions."""
    truncated: int
    distinct: int
    """Different texts."""
    majority: Mapping[int, float]
    """k -> maj@k, for those that the prompt has enough completions for."""


def is_right(reward: float, threshold: float) -> bool:
    """Whether a reward reaches the threshold, but for rounding."""
    return reward >= threshold - CLOSE


def answered(
    completions: Sequence[Completion], labels: Sequence[str], ks: Sequence[int], threshold: float, *, seed: int = 0
) -> Answered:
    """One prompt's completions as numbers.

    Args:
        completions: all of the prompt's.
        labels: of the reward functions.
        ks: for which maj@k is wanted; 1 is not, it is pass@1 but for completions that state no answer.
        threshold: that the reward of a right completion reaches.
        seed: of the subsets, where they are drawn.
    """
    judged = [(c, c.reward) for c in completions if c.reward is not None]
    votes = [(c.extracted, is_right(reward, threshold)) for c, reward in judged]
    return Answered(
        prompt_id=completions[0].prompt_id,
        rewards=tuple(reward for _, reward in judged),
        right=sum(right for _, right in votes),
        parts=tuple(tuple(c.parts.get(label) for c in completions) for label in labels),
        lengths=tuple(c.tokens for c in completions),
        truncated=sum(c.is_truncated for c in completions),
        distinct=len({c.text for c in completions}),
        majority={k: majority(votes, k, seed=(seed, completions[0].prompt_id)) for k in ks if 1 < k <= len(votes)},
    )


def pass_at(n: int, right: int, k: int) -> float:
    """The chance that of k completions, drawn from n of which some are right, at least one is: 1 - C(n-c, k) / C(n, k).

    Unbiased for the chance of k fresh completions. Formed as a product of numbers in [0, 1].

    Raises:
        ValueError: k is not in 1..n.
    Source: Chen et al. 2021, arXiv:2107.03374, eq. 1.

    >>> pass_at(4, 1, 1), pass_at(4, 1, 2), pass_at(4, 3, 2), pass_at(4, 0, 4)
    (0.25, 0.5, 1.0, 0.0)
    """
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} of {n} completions; k must be in 1..{n}")
    if n - right < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(n - right + 1, n + 1))


def majority(votes: Sequence[tuple[str | None, bool]], k: int, *, seed: object = 0) -> float:
    """The chance that the answer which most of k completions state is right, k drawn from all of them.

    An answer that most state is as right as the share of right ones among all completions that state it. Of answers with
    equally many votes each wins with equal chance: the value is the mean, whatever the order. A completion that states no
    answer has no vote; where none of the k states one, nothing is right. For more than `EXACT` completions and k fewer, the
    mean is over `SUBSETS` subsets drawn with `seed`, else over all.

    Args:
        votes: (answer, whether it is right), of each completion.
        k: from 1 to their number.
    Raises:
        ValueError: k is not in that range.
    Source: Wang et al. 2022, arXiv:2203.11171 (self-consistency).

    >>> majority([("a", True), ("a", True), ("b", False)], 3), majority([("a", True), ("b", False), (None, False)], 3)
    (1.0, 0.5)
    """
    if not 1 <= k <= len(votes):
        raise ValueError(f"maj@{k} of {len(votes)} completions; k must be in 1..{len(votes)}")
    counts = Counter(answer for answer, _ in votes if answer is not None)
    right = Counter(answer for answer, is_so in votes if answer is not None and is_so)
    answers = sorted(
        counts, key=lambda a: (counts[a], a)
    )  # one order for one set of votes, or sums would round otherwise
    sizes = tuple(counts[a] for a in answers)
    silent = len(votes) - sum(sizes)
    if k < len(votes) > EXACT:
        chances: Sequence[float] = _sampled_chances(sizes, silent, k, seed)
    else:
        of_size = _chances(sizes, silent, k)
        chances = [of_size[size] for size in sizes]
    return sum(chance * right[a] / counts[a] for a, chance in zip(answers, chances, strict=True))


@lru_cache(maxsize=4096)
def _chances(sizes: tuple[int, ...], silent: int, k: int) -> Mapping[int, float]:
    """By how many completions state an answer the chance that it wins the vote of k, over all subsets."""
    everything = math.comb(sum(sizes) + silent, k)
    found = {}
    for own in dict.fromkeys(sizes):
        others = list(sizes)
        others.remove(own)
        ways = Fraction(0)
        for stated in range(1, min(own, k) + 1):
            ways += math.comb(own, stated) * _rest(others, silent, k - stated, stated)
        found[own] = float(ways / everything)
    return found


def _rest(others: Sequence[int], silent: int, places: int, most: int) -> Fraction:
    """Ways to fill the other places so that no other answer has more than `most` votes; one with n ties counts 1/(n+1)."""
    ways: dict[tuple[int, int], int] = {(0, 0): 1}
    """(places filled, ties) -> ways."""
    for size in others:
        after: dict[tuple[int, int], int] = {}
        for (filled, ties), count in ways.items():
            for stated in range(min(size, most, places - filled) + 1):
                key = (filled + stated, ties + (stated == most))
                after[key] = after.get(key, 0) + count * math.comb(size, stated)
        ways = after
    return sum(
        (Fraction(count * math.comb(silent, places - filled), ties + 1) for (filled, ties), count in ways.items()),
        Fraction(0),
    )


def _sampled_chances(sizes: Sequence[int], silent: int, k: int, seed: object) -> list[float]:
    """As `_chances`, over subsets that are drawn; one number an answer, in their order."""
    import numpy as np

    if not sizes:
        return []
    random = np.random.default_rng([ord(letter) for letter in repr(seed)])
    drawn = random.multivariate_hypergeometric([*sizes, silent], k, size=SUBSETS, method="marginals")[:, :-1]
    most = drawn.max(1, keepdims=True)
    wins = (drawn == most) & (most > 0)
    shares: list[float] = (wins / np.maximum(wins.sum(1, keepdims=True), 1)).mean(0).tolist()
    return shares


def standard_error(groups: Iterable[Sequence[float]]) -> float | None:
    """Of the mean over all values: those of one prompt count as one observation. None for a single prompt.

    With equally many values a prompt it is the standard deviation of the prompts' means over the root of their number.

    >>> standard_error([[0.0, 0.0], [1.0, 1.0]]), standard_error([[1.0]])
    (0.5, None)
    """
    known = [list(values) for values in groups if values]
    size = sum(map(len, known))
    if len(known) < 2:
        return None
    mean = math.fsum(value for values in known for value in values) / size
    off = math.fsum((math.fsum(values) - len(values) * mean) ** 2 for values in known)
    return math.sqrt(off * len(known) / (len(known) - 1)) / size


def quantile(values: Sequence[float], share: float) -> float:
    """Of sorted values, interpolated between neighbours.

    >>> quantile([1, 2, 3, 10], 0.5)
    2.5
    """
    place = share * (len(values) - 1)
    below = math.floor(place)
    above = min(below + 1, len(values) - 1)
    return values[below] + (values[above] - values[below]) * (place - below)


def basic_figures(
    *, rewards: Sequence[float], lengths: Sequence[int], truncated: int, parts: Mapping[str, Sequence[float]]
) -> dict[str, float]:
    """What every evaluation by sampling says, in training too.

    Args:
        rewards: of the completions that were judged.
        lengths: tokens, of all completions.
        truncated: how many were cut by the length limit.
        parts: the values of each reward function where it gave one.
    """
    found = {
        "eval/count": float(len(rewards)),
        "eval/length/mean": sum(lengths) / len(lengths),
        "eval/length/truncated": truncated / len(lengths),
    }
    if rewards:
        mean = sum(rewards) / len(rewards)
        found["eval/reward/mean"] = mean
        found["eval/reward/std"] = (sum((r - mean) ** 2 for r in rewards) / max(len(rewards) - 1, 1)) ** 0.5
    for label, values in parts.items():
        if values:
            found[f"eval/reward/{label}"] = sum(values) / len(values)
    return found


def figures(prompts: Sequence[Answered], labels: Sequence[str], ks: Sequence[int]) -> dict[str, float]:
    """Every figure over some prompts, at least one."""
    rewards = [reward for p in prompts for reward in p.rewards]
    lengths = [length for p in prompts for length in p.lengths]
    found = {"eval/prompts": float(len(prompts))} | basic_figures(
        rewards=rewards,
        lengths=lengths,
        truncated=sum(p.truncated for p in prompts),
        parts={
            label: [value for p in prompts for value in p.parts[place] if value is not None]
            for place, label in enumerate(labels)
        },
    )
    if (error := standard_error(p.rewards for p in prompts)) is not None:
        found["eval/reward/standard_error"] = error
    for k in ks:
        having = [p for p in prompts if len(p.rewards) >= k]
        if not having:
            continue
        found[f"eval/pass@{k}"] = math.fsum(pass_at(len(p.rewards), p.right, k) for p in having) / len(having)
        if k == 1 and (error := standard_error([p.right / len(p.rewards)] for p in having)) is not None:
            found["eval/pass@1/standard_error"] = error
        if k > 1:
            found[f"eval/maj@{k}"] = math.fsum(p.majority[k] for p in having) / len(having)
        if len(having) < len(prompts):
            found[f"eval/pass@{k}/prompts"] = float(len(having))
    ordered = sorted(lengths)
    found |= {
        "eval/length/p50": float(quantile(ordered, 0.5)),
        "eval/length/p95": float(quantile(ordered, 0.95)),
        "eval/length/max": float(ordered[-1]),
    }
    if len(lengths) > len(prompts):
        found["eval/distinct_share"] = sum(p.distinct / len(p.lengths) for p in prompts) / len(prompts)
    return {name: found[name] for name in sorted(found, key=_place)}


ORDER = ("prompts", "count", "pass", "maj", "reward", "length", "distinct_share")
COUNTS = ("prompts", "count")


def _place(name: str) -> int:
    """Of a figure among the others when they are listed; those of one kind stay in their order."""
    return ORDER.index(name.split("/")[1].split("@")[0])


def written(name: str, value: float) -> str:
    """A figure for people: counts as whole numbers.

    >>> written("eval/count", 1200.0), written("eval/pass@1", 0.25)
    ('1,200', '0.2500')
    """
    return f"{value:,.0f}" if name.rsplit("/", 1)[-1] in COUNTS else f"{value:.4f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The prompts that have one value in a column."""

    value: Any
    """None: those that have none there."""
    figures: Mapping[str, float]


def breakdown(
    prompts: Sequence[Answered], values: Sequence[Any], labels: Sequence[str], ks: Sequence[int]
) -> list[Group]:
    """The figures of each group of prompts; the largest group first, of equal ones in the order in which they are met.

    Args:
        values: of the column, one a prompt; compared as JSON, so 1 and "1" are two.
    """
    import json

    found: dict[str, tuple[Any, list[Answered]]] = {}
    for prompt, value in zip(prompts, values, strict=True):
        key = json.dumps(value, sort_keys=True, ensure_ascii=False)
        found.setdefault(key, (value, []))[1].append(prompt)
    ordered = sorted(found.values(), key=lambda one: -len(one[1]))
    return [Group(value=value, figures=figures(own, labels, ks)) for value, own in ordered]
