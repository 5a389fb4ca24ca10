"""Kahneman-Tversky optimisation: single completions, each judged desirable or not; no pairs are needed.

    h   = log p(y) / ref(y)                              sum over the completion
    z0  = max(0, mean over the update of h with another row's completion)      no gradient
    L   = w_d (1 - sigmoid(beta (h - z0)))  if desirable,   w_u (1 - sigmoid(beta (z0 - h)))  if not

z0 estimates how far the policy has moved from the reference as a whole: gains and losses are felt relative to it. The
other row's completion comes from a shift over all rows of the update, made before any split. Keep
desirable_weight x (desirable rows) / (undesirable_weight x (the others)) between 1 and 4/3.

Source: Ethayarajh et al. 2024, arXiv:2402.01306, eq. 8.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
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
    no_advantages,
    require,
    torch,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """The `preference` section."""

    __pydantic_config__ = STRICT

    beta: Annotated[float, Gt(0)] = 0.1
    """How strongly the policy is held to the reference."""
    desirable_weight: Annotated[float, Ge(0)] = 1.0
    """Of a desirable completion."""
    undesirable_weight: Annotated[float, Ge(0)] = 1.0
    """Of an undesirable one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KTOConfig:
    preference: Preference = field(default_factory=Preference)


def needs(config: KTOConfig) -> Need:
    return Need.LABELS | Need.REFERENCE | Need.MISMATCHED


def statistics(
    batch: Batch, frozen: Frozen, advantages: Advantages, policy: Policy, config: KTOConfig, noise: torch.Tensor
) -> Frozen:
    """z0 of the update, the same number for every row: the mean first, then the cut at 0."""
    found = require(frozen.mismatched_log_ratios, "mismatched completions")
    known = found[~found.isnan()]
    z0 = known.double().mean().clamp_min(0.0) if len(known) else found.new_zeros(())
    return replace(frozen, shift=z0.to(found.dtype).expand(len(found)).clone())


def _log_ratios(batch: Batch, frozen: Frozen, policy: Policy) -> torch.Tensor:
    difference = require(policy.log_probs, "log_probs") - require(frozen.ref_log_probs, "ref_log_probs (a reference)")
    return paired.row_sums(difference, batch.loss_mask)


def terms(batch: Batch, frozen: Frozen, advantages: Advantages, policy: Policy, config: KTOConfig) -> Terms:
    own, rows = config.preference, _log_ratios(batch, frozen, policy)
    ahead = own.beta * (rows - require(frozen.shift, "z0"))
    desirable = own.desirable_weight * torch.sigmoid(-ahead)
    undesirable = own.undesirable_weight * torch.sigmoid(ahead)
    values = torch.where(require(batch.is_chosen, "labels"), desirable, undesirable)
    return {"preference": Term(values=values, over=batch.loss_mask.any(1), aggregation="pair-mean")}


def metrics(batch: Batch, frozen: Frozen, advantages: Advantages, policy: Policy, config: KTOConfig) -> dict[str, Sums]:
    """The implicit rewards of either kind, z0, and the share of rows on the right side of it."""
    rewards = config.preference.beta * _log_ratios(batch, frozen, policy)
    live, wanted, shift = batch.loss_mask.any(1), require(batch.is_chosen, "labels"), require(frozen.shift, "z0")
    good, bad = live & wanted, live & ~wanted
    right = (rewards > config.preference.beta * shift) == wanted
    return {
        "preference/accuracy": Sums(total=(right & live).sum(), count=live.sum()),
        "kto/desirable_reward": Sums(total=rewards[good].sum(), count=good.sum()),
        "kto/undesirable_reward": Sums(total=rewards[bad].sum(), count=bad.sum()),
        "kto/desirable_share": Sums(total=good.sum(), count=live.sum()),
        "kto/z0": Sums(total=shift.sum(), count=torch.tensor(len(shift))),
    }


ALGORITHM = Algorithm(
    name="kto",
    config=KTOConfig,
    needs=needs,
    advantages=no_advantages,
    statistics=statistics,
    terms=terms,
    metrics=metrics,
    reports=(
        "preference/accuracy",
        "kto/desirable_reward",
        "kto/undesirable_reward",
        "kto/desirable_share",
        "kto/z0",
    ),
    summary="learn from single completions that were judged desirable or not",
    formula="w (1 - sigmoid(+-beta (h - z0)));  h = log-ratio to the reference, z0 = that of mismatched completions",
    source="arXiv:2402.01306",
)
