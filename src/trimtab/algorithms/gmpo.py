"""Geometric-mean policy optimisation: each token's log-ratio is clipped, then their mean is the completion's ratio.

    z_t = min(d_t, clip(d_t, -eps_low, eps_high)) if a > 0, else max(...);   d = log p - log p_old
    X = -exp(mean_t z_t) a

A geometric mean is less moved by one outlying token than the arithmetic mean that token clips add up to. GSPO clips
after the mean, this before it. The clip is in log space: 0.4 allows token ratios from 0.67 to 1.49.

Source: Zhao et al. 2025, arXiv:2507.20673, eq. 4.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Ge

from trimtab.algorithms import math
from trimtab.algorithms.base import (
    STRICT,
    Advantages,
    Algorithm,
    Batch,
    EntropyAndLoss,
    Frozen,
    Group,
    Need,
    Policy,
    Shared,
    Sums,
    Terms,
    group_advantages,
    policy_term,
    require,
    shared_terms,
    torch,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogClip:
    """The `policy` section's part that is GMPO's."""

    __pydantic_config__ = STRICT

    clip_low: Annotated[float, Ge(0)] = 0.4
    """How far a token's log-ratio may fall under 0."""
    clip_high: Annotated[float, Ge(0)] = 0.4
    """How far it may rise over 0."""


def _shared() -> Shared:
    return Shared(policy=EntropyAndLoss(aggregation="seq-mean-token-mean"))


@dataclass(frozen=True, slots=True, kw_only=True)
class GMPOConfig:
    policy: LogClip = field(default_factory=LogClip)
    advantage: Group = field(default_factory=Group)
    shared: Shared = field(default_factory=_shared)


def needs(config: GMPOConfig) -> Need:
    return Need.ROLLOUTS | config.advantage.needs() | config.shared.needs()


def _log_ratio(frozen: Frozen, policy: Policy) -> torch.Tensor:
    return require(policy.log_probs, "log_probs") - require(frozen.old_log_probs, "old_log_probs")


def terms(batch: Batch, frozen: Frozen, advantages: Advantages, policy: Policy, config: GMPOConfig) -> Terms:
    clip, mask = config.policy, batch.loss_mask
    difference = _log_ratio(frozen, policy)
    clipped = difference.clamp(-clip.clip_low, clip.clip_high)
    advantage = math.sequence_mean(advantages.values, mask)
    lower = torch.where(difference <= clipped, difference, clipped)
    higher = torch.where(difference >= clipped, difference, clipped)
    mean = math.sequence_mean(torch.where(advantage > 0, lower, higher), mask)
    clamp = config.shared.policy.log_ratio_clamp
    values = -torch.exp(mean if clamp is None else mean.clamp(-clamp, clamp)) * advantage
    return {
        "policy": policy_term(values, batch, frozen, config.shared),
        **shared_terms(frozen, policy, config.shared),
    }


def ratio(batch: Batch, frozen: Frozen, policy: Policy, config: GMPOConfig) -> torch.Tensor:
    """[B, T], at each token the geometric mean of its row's ratios, before the clip."""
    return torch.exp(math.sequence_mean(_log_ratio(frozen, policy), batch.loss_mask).clamp(-20, 20))


def metrics(
    batch: Batch, frozen: Frozen, advantages: Advantages, policy: Policy, config: GMPOConfig
) -> dict[str, Sums]:
    clip, mask = config.policy, batch.loss_mask
    difference, advantage = _log_ratio(frozen, policy), math.sequence_mean(advantages.values, mask)
    low, high = (difference < -clip.clip_low) & (advantage <= 0), (difference > clip.clip_high) & (advantage > 0)
    return {
        "clip_fraction/low": Sums(total=(low & mask).sum(), count=mask.sum()),
        "clip_fraction/high": Sums(total=(high & mask).sum(), count=mask.sum()),
    }


def validate(config: GMPOConfig) -> str | None:
    return config.shared.complaint(token_ratio=False)


ALGORITHM = Algorithm(
    name="gmpo",
    config=GMPOConfig,
    needs=needs,
    advantages=group_advantages,
    terms=terms,
    ratio=ratio,
    metrics=metrics,
    reports=("clip_fraction/low", "clip_fraction/high"),
    validate=validate,
    refuses={"policy.dual_clip": "its tokens are bounded before their mean by policy.clip_low and clip_high"},
    summary="GRPO with the geometric mean of clipped token ratios",
    formula="-exp(mean_t z) a - c_e H + beta KL;  z = log-ratio, clipped to -clip_low .. clip_high on the side of a",
    source="arXiv:2507.20673",
)
