"""How far several people who judged the same agree, beyond what chance would give."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Kappa:
    name: str
    """`Cohen` for two people, `Fleiss` for more."""
    value: float | None
    """1: they always agree; 0: as by chance; None: all gave one and the same judgement everywhere."""
    items: int
    """Things that at least two people judged."""
    annotators: int
    agreed: float
    """Share of agreeing judgements, chance included."""


def kappa(votes: Sequence[Mapping[str, str]]) -> Kappa | None:
    """
    Args:
        votes: of each thing, who judged how.
    Returns:
        None if nothing was judged twice.
    Source: Cohen 1960; Fleiss 1971, with the number of judgements of each thing in place of a common one.

    >>> kappa([{"a": "yes", "b": "yes"}, {"a": "no", "b": "no"}]).value
    1.0
    """
    items = [item for item in votes if len(item) > 1]
    people = sorted({person for item in items for person in item})
    if not items:
        return None
    if len(people) == 2:
        agreed = sum(item[people[0]] == item[people[1]] for item in items) / len(items)
        marginals = [Counter(item[person] for item in items) for person in people]
        chance = sum(marginals[0][c] * marginals[1][c] for c in marginals[0]) / len(items) ** 2
    else:
        counts = [Counter(item.values()) for item in items]
        agreed = sum(_agreement(count) for count in counts) / len(items)
        pooled = sum(counts, Counter[str]())
        chance = sum((count / pooled.total()) ** 2 for count in pooled.values())
    value = None if chance == 1 else (agreed - chance) / (1 - chance)
    name = "Cohen" if len(people) == 2 else "Fleiss"
    return Kappa(name=name, value=value, items=len(items), annotators=len(people), agreed=agreed)


def _agreement(count: Counter[str]) -> float:
    total = count.total()
    return (sum(n * n for n in count.values()) - total) / (total * (total - 1))
