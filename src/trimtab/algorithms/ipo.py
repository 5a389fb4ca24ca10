"""Identity preference optimisation: the margin has a target, so pairs that are always right do not push without end.

    L = (h - 1 / (2 beta))^2,   h the difference of log-ratios to the reference

The paper writes sums over the completion; its authors confirmed means over tokens, which is the default here
(`preference.average`). The two need very different betas.

Source: Azar et al. 2023, arXiv:2310.12036, eq. 17.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Ge, Gt

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
)
from trimtab.types import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """The `preference` section."""

    __pydantic_config__ = STRICT

    beta: Annotated[float, Gt(0)] = 0.1
    """tau of the paper: the margin aims at 1 / (2 beta)."""
    average: bool = True
    """Compare mean log-ratios a token; false: sums over the completion."""
    nll_coef: Annotated[float, Ge(0)] | Schedule = 0.0
    """Weight of the negative log-likelihood of the chosen completion, a mean over its tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IPOConfig:
    preference: Preference = field(default_factory=Preference)


def needs(config: IPOConfig) -> Need:
    return Need.PAIRS | Need.REFERENCE


def terms(batch: Batch, frozen: Frozen, advantages: Advantages, policy: Policy, config: IPOConfig) -> Terms:
    own, pairs = config.preference, paired.pairs_of(batch)
    difference = require(policy.log_probs, "log_probs") - require(frozen.ref_log_probs, "ref_log_probs (a reference)")
    rows = paired.row_sums(difference, batch.loss_mask, average=own.average)
    values = (pairs.difference(rows) - 1.0 / (2.0 * own.beta)) ** 2
    found = {
        "preference": Term(values=pairs.at_chosen(values, rows), over=pairs.counted(rows), aggregation="pair-mean")
    }
    return {**found, **chosen_nll(batch, policy, pairs.counted(rows), number(own.nll_coef))}


def metrics(batch: Batch, frozen: Frozen, advantages: Advantages, policy: Policy, config: IPOConfig) -> dict[str, Sums]:
    rewards = config.preference.beta * paired.log_ratio_of_sums(
        require(policy.log_probs, "log_probs"), require(frozen.ref_log_probs, "ref_log_probs (a reference)")
    )
    return paired.preference_metrics(paired.pairs_of(batch), rewards)


ALGORITHM = Algorithm(
    name="ipo",
    config=IPOConfig,
    needs=needs,
    advantages=no_advantages,
    terms=terms,
    metrics=metrics,
    reports=("preference/accuracy", "preference/margin", "preference/probability"),
    summary="learn from pairs with a target for the margin, which cannot run away",
    formula="(h - 1 / (2 beta))^2;  h = difference of the mean log-ratios a token to the reference",
    source="arXiv:2310.12036",
)
