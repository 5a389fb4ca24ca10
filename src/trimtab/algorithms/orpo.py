"""Odds ratio preference optimisation: imitate the chosen completion while its odds rise over those of the rejected.

    L = NLL(y_c) - beta log sigmoid( o_c - o_r ),   o = m - log(1 - exp m),  m the mean log-prob a token

One stage instead of SFT and then DPO, and no reference. beta is lambda of the paper.

Source: Hong et al. 2024, arXiv:2403.07691, eq. 6 and 7.
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
    torch,
)
from trimtab.types import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """The `preference` section."""

    __pydantic_config__ = STRICT

    beta: Annotated[float, Gt(0)] = 0.1
    """lambda of the paper: weight of the odds ratio."""
    nll_coef: Annotated[float, Ge(0)] | Schedule = 1.0
    """Weight of the negative log-likelihood of the chosen completion, a mean over its tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ORPOConfig:
    preference: Preference = field(default_factory=Preference)


def needs(config: ORPOConfig) -> Need:
    return Need.PAIRS


def _means(batch: Batch, policy: Policy) -> torch.Tensor:
    """[B], the mean log-prob a token; -1 for an empty row, whose pair does not count."""
    live = batch.loss_mask.any(1)
    means = paired.row_sums(require(policy.log_probs, "log_probs"), batch.loss_mask, average=True)
    return torch.where(live, means, means.new_tensor(-1.0))


def terms(batch: Batch, frozen: Frozen, advantages: Advantages, policy: Policy, config: ORPOConfig) -> Terms:
    own, pairs, means = config.preference, paired.pairs_of(batch), _means(batch, policy)
    odds = means - paired.log1mexp(means)
    values = -paired.log_sigmoid(pairs.difference(odds))
    counted = pairs.counted(means)
    found = {
        "preference": Term(
            values=pairs.at_chosen(values, means), over=counted, aggregation="pair-mean", coefficient=own.beta
        )
    }
    return {**found, **chosen_nll(batch, policy, counted, number(own.nll_coef))}


def metrics(
    batch: Batch, frozen: Frozen, advantages: Advantages, policy: Policy, config: ORPOConfig
) -> dict[str, Sums]:
    rewards = config.preference.beta * _means(batch, policy)
    return paired.preference_metrics(paired.pairs_of(batch), rewards)


ALGORITHM = Algorithm(
    name="orpo",
    config=ORPOConfig,
    needs=needs,
    advantages=no_advantages,
    terms=terms,
    metrics=metrics,
    reports=("preference/accuracy", "preference/margin", "preference/probability"),
    summary="imitation and preference in one stage, without a reference",
    formula="NLL(y_c) - beta log sigmoid(o_c - o_r);  o = log odds of the mean log-prob a token",
    source="arXiv:2403.07691",
)
