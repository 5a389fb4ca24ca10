"""Clipped importance sampling: the weight is bounded, the token is not; every token keeps a gradient.

    X = -sg[ clip(r, lo, hi) ] a log p(y_t)

A clip of PPO's kind switches a token off once its ratio is too far; rare tokens that start a new line of thought are the
first to go. Here their weight is merely cut. `clip_high` is counted from 1, as in PPO: 4.0 caps the weight at 5.
The value of the loss contains log p and is not comparable with PPO's; look at `cispo/weight` instead.

Source: MiniMax 2025, arXiv:2506.13585, eq. 4; absolute caps of 4 to 8 compared in arXiv:2510.13786.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Interval

from trimtab.algorithms.base import (
    STRICT,
    Advantages,
    Algorithm,
    Batch,
    Frozen,
    Group,
    Need,
    Policy,
    Shared,
    Sums,
    Terms,
    clip_shares,
    group_advantages,
    policy_term,
    require,
    shared_terms,
    token_ratio,
    torch,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightClip:
    """The `policy` section's part that is CISPO's: the bounds of a token's weight."""

    __pydantic_config__ = STRICT

    clip_low: Annotated[float, Interval(ge=0, le=1)] | None = None
    """The weight is at least 1 less this; null for no lower bound, as in the paper."""
    clip_high: Annotated[float, Interval(gt=0)] = 4.0
    """The weight is at most 1 plus this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CISPOConfig:
    policy: WeightClip = field(default_factory=WeightClip)
    advantage: Group = field(default_factory=Group)
    shared: Shared = field(default_factory=Shared)


def needs(config: CISPOConfig) -> Need:
    return Need.ROLLOUTS | config.advantage.needs() | config.shared.needs()


def weights(frozen: Frozen, policy: Policy, config: CISPOConfig) -> torch.Tensor:
    """[B, T], no gradient."""
    clip = config.policy
    low = None if clip.clip_low is None else 1.0 - clip.clip_low
    return token_ratio(frozen, policy, config.shared).detach().clamp(low, 1.0 + clip.clip_high)


def terms(batch: Batch, frozen: Frozen, advantages: Advantages, policy: Policy, config: CISPOConfig) -> Terms:
    values = -weights(frozen, policy, config) * advantages.values * require(policy.log_probs, "log_probs")
    return {
        "policy": policy_term(values, batch, frozen, config.shared),
        **shared_terms(frozen, policy, config.shared),
    }


def metrics(
    batch: Batch, frozen: Frozen, advantages: Advantages, policy: Policy, config: CISPOConfig
) -> dict[str, Sums]:
    clip, ratio = config.policy, token_ratio(frozen, policy, config.shared)
    found = clip_shares(
        ratio, advantages.values, batch, 1.0 if clip.clip_low is None else clip.clip_low, clip.clip_high
    )
    weight = torch.where(batch.loss_mask, weights(frozen, policy, config), ratio.new_zeros(()))
    return {**found, "cispo/weight": Sums(total=weight.sum(), count=batch.loss_mask.sum())}


def validate(config: CISPOConfig) -> str | None:
    return config.shared.complaint()


def advise(config: CISPOConfig) -> str | None:
    if config.policy.clip_high < 1:
        cap = 1 + config.policy.clip_high
        return f"policy.clip_high: {config.policy.clip_high} caps the weights at {cap:g}; the papers cap them at 4 to 8"
    return None


ALGORITHM = Algorithm(
    name="cispo",
    config=CISPOConfig,
    needs=needs,
    advantages=group_advantages,
    terms=terms,
    metrics=metrics,
    reports=("clip_fraction/low", "clip_fraction/high", "cispo/weight"),
    validate=validate,
    refuses={"policy.dual_clip": "its weight is bounded by policy.clip_high already"},
    advise=advise,
    summary="policy gradient with bounded importance weights: no token loses its gradient",
    formula="-sg[clip(r, 1-clip_low, 1+clip_high)] a log p(y_t) - c_e H + beta KL",
    source="arXiv:2506.13585",
)
