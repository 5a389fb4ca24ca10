"""Reward model: one number for a prompt with its completion, such that the chosen one of a pair has the higher.

    L = -log sigmoid(s_c - s_r - margin) + center (s_c + s_r)^2

Bradley and Terry's model of a choice. A margin in the data (column `margin`) asks for more distance where people were
surer. The scores are free up to a constant of each prompt; `center` pulls it to 0.

Source: Bradley and Terry 1952; margins: Llama 2, arXiv:2307.09288, eq. 2; centring: arXiv:2312.09244.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Ge

from trimtab.algorithms import pairs as paired
from trimtab.algorithms.base import (
    STRICT,
    Advantages,
    Algorithm,
    Batch,
    Frozen,
    Need,
    Policy,
    Sums,
    Term,
    Terms,
    no_advantages,
    require,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """The `preference` section."""

    __pydantic_config__ = STRICT

    margin: Annotated[float, Ge(0)] | None = None
    """Reward units that the chosen completion should be ahead by; null: the column `margin` of the data, else 0."""
    center: Annotated[float, Ge(0)] = 0.0
    """Weight of the squared sum of a pair's scores; 0.01 keeps them around 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardModelConfig:
    preference: Preference = field(default_factory=Preference)


def needs(config: RewardModelConfig) -> Need:
    return Need.PAIRS | Need.SCORES


def terms(batch: Batch, frozen: Frozen, advantages: Advantages, policy: Policy, config: RewardModelConfig) -> Terms:
    own, pairs, scores = config.preference, paired.pairs_of(batch), require(policy.scores, "scores (a scalar head)")
    ahead = pairs.difference(scores)
    if own.margin is not None:
        ahead = ahead - own.margin
    elif batch.margins is not None:
        ahead = ahead - batch.margins[pairs.chosen].to(ahead.dtype)
    counted = pairs.counted(scores)
    found = {
        "preference": Term(
            values=pairs.at_chosen(-paired.log_sigmoid(ahead), scores), over=counted, aggregation="pair-mean"
        )
    }
    if own.center:
        sums = (scores[pairs.chosen] + scores[pairs.rejected]) ** 2
        found["center"] = Term(
            values=pairs.at_chosen(sums, scores), over=counted, aggregation="pair-mean", coefficient=own.center
        )
    return found


def metrics(
    batch: Batch, frozen: Frozen, advantages: Advantages, policy: Policy, config: RewardModelConfig
) -> dict[str, Sums]:
    """A tie counts half, as it does in the AUC."""
    pairs = paired.pairs_of(batch)
    ahead = pairs.difference(require(policy.scores, "scores"))[pairs.is_valid]
    count = pairs.is_valid.sum()
    return {
        "reward_model/accuracy": Sums(total=(ahead > 0).sum() + 0.5 * (ahead == 0).sum(), count=count),
        "preference/margin": Sums(total=ahead.sum(), count=count),
    }


ALGORITHM = Algorithm(
    name="reward_model",
    config=RewardModelConfig,
    needs=needs,
    advantages=no_advantages,
    terms=terms,
    metrics=metrics,
    reports=("reward_model/accuracy", "preference/margin"),
    summary="learn a score from pairs, for use as a reward",
    formula="-log sigmoid(s_c - s_r - margin) + center (s_c + s_r)^2",
    source="Bradley and Terry 1952; arXiv:2307.09288",
)
