"""A reward model as one of the rewards of a run: a score for every completion, and whether it may be trusted.

A policy that is trained against a reward model finds its mistakes. One that tells chosen from rejected completions badly
is refused, if its own figures say so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from trimtab.errors import RewardError
from trimtab.types import Rollout

MIN_AUC = 0.85
"""Of a reward model on its own validation; under it a run refuses it unless asked. Training aims at 0.90."""
AUC = "eval/reward_model/auc"

Ids = tuple[int, ...]


class ModelReward:
    """The score of every completion. Equal completions of a prompt get equal scores, to the last bit.

    Rounding depends on which rows are computed together. Two completions that are the same must not differ by it: in a
    group without other spread that difference would be all there is to learn.
    """

    def __init__(
        self,
        encode: Callable[[Rollout], Ids],
        score: Callable[[Sequence[Ids]], list[float]],
        *,
        weights: str = "",
    ) -> None:
        """
        Args:
            encode: prompt and completion as the reward model's own ids.
            score: one number for each row of ids.
            weights: a fingerprint of its weights.
        """
        self.encode = encode
        self.score = score
        self.weights = weights

    def __call__(self, rollouts: Sequence[Rollout]) -> list[float]:
        rows = [self.encode(rollout) for rollout in rollouts]
        unlike = sorted(set(rows))
        found = dict(zip(unlike, self.score(unlike), strict=True))
        return [found[row] for row in rows]


def auc_of(directory: Path) -> float | None:
    """The AUC of a reward model on its own validation, as its directory tells it; None if it does not.

    A run's `final/` and what `trimtab export` makes of it say it in README.md, a checkpoint in its manifest.
    """
    card, manifest = directory / "README.md", directory.parent / "manifest.json"
    if card.is_file():
        line = re.search(rf"^\| {re.escape(AUC)} \| ([\d.e+-]+) \|$", card.read_text(errors="replace"), re.MULTILINE)
        return float(line.group(1)) if line else None
    if directory.name == "policy" and manifest.is_file():
        found = json.loads(manifest.read_text()).get("metrics", {}).get(AUC)
        return None if found is None else float(found)
    return None


def judged(name: str, auc: float | None, *, allow_weak: bool, place: str = "rewards") -> str:
    """A line about a reward model's quality, for people.

    Args:
        name: as the configuration has it.
        auc: of `auc_of`.
        allow_weak: use it all the same.
        place: the configuration key that errors name.

    Raises:
        RewardError: it is too weak.
    """
    if auc is None:
        return (
            f"{place}: {name}: quality unknown, it has no {AUC} of its own; `trimtab reward check` measures it on "
            "completions with labels"
        )
    if auc >= MIN_AUC:
        return f"{place}: {name}: {AUC} {auc:.3f}"
    if allow_weak:
        return f"{place}: {name}: {AUC} {auc:.3f} is under {MIN_AUC}, used since allow_weak is true"
    raise RewardError(
        f"{place}: {name}: {AUC} is {auc:.3f}, expected {MIN_AUC} or more: a policy would learn its mistakes; train it "
        "longer or on more pairs, or set allow_weak: true"
    )
