"""Entropy kept alive: the few tokens whose probability and advantage rise together are held back.

    cov_t = (A_t - mean A)(log p_t - mean log p)   over all tokens of the update, no gradient

They are what drives the entropy down.

clip_cov  a random few of the tokens with a high covariance get no loss. Which, is a hash of the token, so that it depends
          on no split. The ratio clip is wide, as in the paper.
kl_cov    the tokens with the highest covariance pay for moving: X = -r A + lambda |log p - log p_old|; no clip.

Source: Cui et al. 2025, arXiv:2505.22617, eq. 10 to 13.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from annotated_types import Ge, Interval

from trimtab.algorithms import math
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
class CovarianceClip:
    """The `policy` section's part that is Clip-Cov's."""

    __pydantic_config__ = STRICT

    clip_low: Annotated[float, Ge(0)] = 1.0
    """How far the ratio may fall below 1."""
    clip_high: Annotated[float, Ge(0)] = 1.0
    """How far the ratio may rise above 1."""
    cov_share: Annotated[float, Interval(ge=0, le=1)] = 2e-4
    """Share of the update's tokens that get no loss, at least one of those that qualify."""
    cov_low: float = 1.0
    """A token qualifies with a covariance above this,"""
    cov_high: float = 5.0
    """and below this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CovariancePenalty:
    """The `policy` section's part that is KL-Cov's."""

    __pydantic_config__ = STRICT

    cov_share: Annotated[float, Interval(gt=0, le=1)] = 2e-3
    """Share of the update's tokens, those of the highest covariance, that pay; at least one."""
    cov_coef: Annotated[float, Ge(0)] = 1.0
    """lambda, what a nat of movement costs them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipCovConfig:
    policy: CovarianceClip = field(default_factory=CovarianceClip)
    advantage: Group = field(default_factory=Group)
    shared: Shared = field(default_factory=Shared)


@dataclass(frozen=True, slots=True, kw_only=True)
class KlCovConfig:
    policy: CovariancePenalty = field(default_factory=CovariancePenalty)
    advantage: Group = field(default_factory=Group)
    shared: Shared = field(default_factory=Shared)


Config = Any
"""ClipCovConfig or KlCovConfig."""


def needs(config: Config) -> Need:
    need: Need = Need.ROLLOUTS | config.advantage.needs() | config.shared.needs()
    return need


def statistics(
    batch: Batch, frozen: Frozen, advantages: Advantages, policy: Policy, config: ClipCovConfig, noise: torch.Tensor
) -> Frozen:
    """Picks the tokens that get no loss: of those that qualify and are not clipped, the ones with the smallest noise."""
    clip, mask = config.policy, batch.loss_mask
    found = math.covariance(advantages.values, require(policy.log_probs, "log_probs"), mask)
    ratio = token_ratio(frozen, policy, config.shared)
    is_clipped = ((ratio < 1 - clip.clip_low) & (advantages.values < 0)) | (
        (ratio > 1 + clip.clip_high) & (advantages.values > 0)
    )
    qualified = mask & ~is_clipped & (found > clip.cov_low) & (found < clip.cov_high)
    count = max(1, int(clip.cov_share * int(mask.sum()))) if clip.cov_share else 0
    return replace(frozen, picked=math.first_tokens(noise, qualified, count, batch.row_ids))


def kl_statistics(
    batch: Batch, frozen: Frozen, advantages: Advantages, policy: Policy, config: KlCovConfig, noise: torch.Tensor
) -> Frozen:
    """Picks the tokens of the highest covariance."""
    mask = batch.loss_mask
    found = math.covariance(advantages.values, require(policy.log_probs, "log_probs"), mask)
    count = max(1, int(config.policy.cov_share * int(mask.sum())))
    return replace(frozen, picked=math.first_tokens(-found, mask, count, batch.row_ids))


def terms(batch: Batch, frozen: Frozen, advantages: Advantages, policy: Policy, config: ClipCovConfig) -> Terms:
    clip, ratio = config.policy, token_ratio(frozen, policy, config.shared)
    surrogate = math.clipped_surrogate(ratio, advantages.values, clip.clip_low, clip.clip_high)
    values = torch.where(require(frozen.picked, "picked tokens"), surrogate.new_zeros(()), surrogate)
    return {
        "policy": policy_term(values, batch, frozen, config.shared),
        **shared_terms(frozen, policy, config.shared),
    }


def kl_terms(batch: Batch, frozen: Frozen, advantages: Advantages, policy: Policy, config: KlCovConfig) -> Terms:
    ratio = token_ratio(frozen, policy, config.shared)
    moved = (require(policy.log_probs, "log_probs") - require(frozen.old_log_probs, "old_log_probs")).abs()
    price = torch.where(require(frozen.picked, "picked tokens"), config.policy.cov_coef * moved, moved.new_zeros(()))
    return {
        "policy": policy_term(price - ratio * advantages.values, batch, frozen, config.shared),
        **shared_terms(frozen, policy, config.shared),
    }


def kl_metrics(batch: Batch, frozen: Frozen, advantages: Advantages, policy: Policy, config: Config) -> dict[str, Sums]:
    picked = require(frozen.picked, "picked tokens")
    return {"covariance/picked": Sums(total=picked.sum(), count=batch.loss_mask.sum())}


def metrics(
    batch: Batch, frozen: Frozen, advantages: Advantages, policy: Policy, config: ClipCovConfig
) -> dict[str, Sums]:
    clip, ratio = config.policy, token_ratio(frozen, policy, config.shared)
    shares = clip_shares(ratio, advantages.values, batch, clip.clip_low, clip.clip_high)
    return {**shares, **kl_metrics(batch, frozen, advantages, policy, config)}


def validate(config: Config) -> str | None:
    if isinstance(config, ClipCovConfig) and config.policy.cov_low >= config.policy.cov_high:
        low, high = config.policy.cov_low, config.policy.cov_high
        return f"policy.cov_low: {low} is not below policy.cov_high: {high}, so no token qualifies"
    complaint: str | None = config.shared.complaint()
    return complaint


ALGORITHM = Algorithm(
    name="clip_cov",
    config=ClipCovConfig,
    needs=needs,
    advantages=group_advantages,
    statistics=statistics,
    terms=terms,
    metrics=metrics,
    reports=("clip_fraction/low", "clip_fraction/high", "covariance/picked"),
    validate=validate,
    summary="GRPO that leaves out a few of the tokens that drive the entropy down",
    formula="-min(r a, clip(r, 1-clip_low, 1+clip_high) a), 0 for picked tokens, - c_e H + beta KL",
    source="arXiv:2505.22617",
)
KL_COV = replace(
    ALGORITHM,
    name="kl_cov",
    config=KlCovConfig,
    statistics=kl_statistics,
    terms=kl_terms,
    metrics=kl_metrics,
    reports=("covariance/picked",),
    summary="policy gradient that makes the tokens that drive the entropy down pay for moving",
    formula="-r a + cov_coef |log p - log p_old| for picked tokens, - c_e H + beta KL",
)
