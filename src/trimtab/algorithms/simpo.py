"""Simple preference optimisation: the mean log-prob a token is the reward, so no reference is needed.

    L = -log sigmoid( beta (mean log p(y_c) - mean log p(y_r)) - margin )

The margin, gamma of the paper, is in units of the reward: what the chosen completion should be ahead by.

Source: Meng et al. 2024, arXiv:2405.14734, eq. 6.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Ge, Gt, Interval

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
    chosen_nll,
    no_advantages,
    number,
    require,
    torch,
)
from trimtab.types import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """The `preference` section."""

    __pydantic_config__ = STRICT

    beta: Annotated[float, Gt(0)] = 2.0
    """Scale of the reward."""
    margin: Annotated[float, Ge(0)] = 1.0
    """gamma: reward units that the chosen completion should be ahead by."""
    label_smoothing: Annotated[float, Interval(ge=0, lt=0.5)] = 0.0
    """Share of the pairs that are taken to be labelled the wrong way round."""
    nll_coef: Annotated[float, Ge(0)] | Schedule = 0.0
    """Weight of the negative log-likelihood of the chosen completion, a mean over its tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimPOConfig:
    preference: Preference = field(default_factory=Preference)


def needs(config: SimPOConfig) -> Need:
    return Need.PAIRS


def _rewards(batch: Batch, policy: Policy, config: SimPOConfig) -> torch.Tensor:
    log_probs = require(policy.log_probs, "log_probs")
    return config.preference.beta * paired.row_sums(log_probs, batch.loss_mask, average=True)


def terms(batch: Batch, frozen: Frozen, advantages: Advantages, policy: Policy, config: SimPOConfig) -> Terms:
    own, pairs, rows = config.preference, paired.pairs_of(batch), _rewards(batch, policy, config)
    z, share = pairs.difference(rows) - own.margin, own.label_smoothing
    values = -(1 - share) * paired.log_sigmoid(z) - share * paired.log_sigmoid(-z)
    found = {
        "preference": Term(values=pairs.at_chosen(values, rows), over=pairs.counted(rows), aggregation="pair-mean")
    }
    return {**found, **chosen_nll(batch, policy, pairs.counted(rows), number(own.nll_coef))}


def metrics(
    batch: Batch, frozen: Frozen, advantages: Advantages, policy: Policy, config: SimPOConfig
) -> dict[str, Sums]:
    return paired.preference_metrics(paired.pairs_of(batch), _rewards(batch, policy, config))


ALGORITHM = Algorithm(
    name="simpo",
    config=SimPOConfig,
    needs=needs,
    advantages=no_advantages,
    terms=terms,
    metrics=metrics,
    reports=("preference/accuracy", "preference/margin", "preference/probability"),
    summary="learn from pairs without a reference: mean log-probs a token, a margin between them",
    formula="-log sigmoid(beta (mean log p(y_c) - mean log p(y_r)) - margin)",
    source="arXiv:2405.14734",
)
