"""Contrastive preference optimisation: DPO with a uniform reference, beside imitation of the chosen completion.

    L = -log sigmoid( beta (log p(y_c) - log p(y_r)) ) + nll_coef NLL(y_c)

No reference model; the likelihood term keeps the policy from making both completions unlikely.

Source: Xu et al. 2024, arXiv:2401.08417, eq. 5.
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

    beta: Annotated[float, Gt(0)] = 0.1
    """Scale of the reward, the completion's log-prob."""
    label_smoothing: Annotated[float, Interval(ge=0, lt=0.5)] = 0.0
    """Share of the pairs that are taken to be labelled the wrong way round."""
    nll_coef: Annotated[float, Ge(0)] | Schedule = 1.0
    """Weight of the negative log-likelihood of the chosen completion, a mean over its tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CPOConfig:
    preference: Preference = field(default_factory=Preference)


def needs(config: CPOConfig) -> Need:
    return Need.PAIRS


def _rewards(batch: Batch, policy: Policy, config: CPOConfig) -> torch.Tensor:
    return config.preference.beta * paired.row_sums(require(policy.log_probs, "log_probs"), batch.loss_mask)


def terms(batch: Batch, frozen: Frozen, advantages: Advantages, policy: Policy, config: CPOConfig) -> Terms:
    own, pairs, rows = config.preference, paired.pairs_of(batch), _rewards(batch, policy, config)
    z, share = pairs.difference(rows), own.label_smoothing
    values = -(1 - share) * paired.log_sigmoid(z) - share * paired.log_sigmoid(-z)
    found = {
        "preference": Term(values=pairs.at_chosen(values, rows), over=pairs.counted(rows), aggregation="pair-mean")
    }
    return {**found, **chosen_nll(batch, policy, pairs.counted(rows), number(own.nll_coef))}


def metrics(batch: Batch, frozen: Frozen, advantages: Advantages, policy: Policy, config: CPOConfig) -> dict[str, Sums]:
    return paired.preference_metrics(paired.pairs_of(batch), _rewards(batch, policy, config))


ALGORITHM = Algorithm(
    name="cpo",
    config=CPOConfig,
    needs=needs,
    advantages=no_advantages,
    terms=terms,
    metrics=metrics,
    reports=("preference/accuracy", "preference/margin", "preference/probability"),
    summary="learn from pairs without a reference, beside imitation of the chosen completion",
    formula="-log sigmoid(beta (log p(y_c) - log p(y_r))) + nll_coef NLL(y_c)",
    source="arXiv:2401.08417",
)
