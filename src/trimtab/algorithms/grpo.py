"""Group relative policy optimisation: the other completions of the prompt are the baseline, so no critic is needed.

    a_i = (s_i - mean(s)) / (std(s) + 1e-6)   over the group
    L = mean_i mean_t[ -min(r a, clip(r, 1-eps, 1+eps) a) ] - c_e H + beta KL

A group whose rewards are equal teaches nothing and gets exactly 0, float noise included.
`advantage.scale_by: none` leaves the deviation out: `rewards - mean(rewards)`, as deployment guides print it.

Source: Shao et al. 2024, arXiv:2402.03300, eq. 3 and section 4.1.2.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Interval

from trimtab.algorithms import math
from trimtab.algorithms.base import (
    STRICT,
    Advantages,
    Algorithm,
    Batch,
    EntropyAndLoss,
    Frozen,
    Need,
    Policy,
    Shared,
    Sums,
    Terms,
    TokenClip,
    reward_kl,
    shared_terms,
    term,
    token_ratio,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The `advantage` section."""

    __pydantic_config__ = STRICT

    baseline: Literal["mean", "loo", "none"] = "mean"
    """Subtracted from the reward: the group's mean, the mean of the others, nothing."""
    scale_by: Literal["group", "batch", "none"] = "group"
    """Divided by: the group's standard deviation, the batch's, nothing."""
    ddof: Annotated[int, Interval(ge=0, le=1)] = 1
    """1 divides the variance by n - 1."""
    singleton: Literal["zero", "raw"] = "zero"
    """What a completion gets whose group has no other scored one."""


def _shared() -> Shared:
    return Shared(policy=EntropyAndLoss(aggregation="seq-mean-token-mean"))


@dataclass(frozen=True, slots=True, kw_only=True)
class GRPOConfig:
    policy: TokenClip = field(default_factory=TokenClip)
    advantage: Group = field(default_factory=Group)
    shared: Shared = field(default_factory=_shared)


def needs(config: GRPOConfig) -> Need:
    compares = config.advantage.baseline != "none" or config.advantage.scale_by == "group"
    groups = Need.GROUPS if compares else Need.NONE
    return Need.ROLLOUTS | groups | config.shared.needs()


def advantages(batch: Batch, frozen: Frozen, config: GRPOConfig) -> Advantages:
    """One number a completion, from its group, at every token of it."""
    mask, group = batch.loss_mask, config.advantage
    rewards = batch.rewards
    if batch.token_rewards is not None:
        rewards = rewards + batch.token_rewards.sum(1)
    penalty = reward_kl(batch, frozen, config.shared)
    if penalty is not None:
        rewards = rewards - penalty.sum(1)
    rows = math.group_advantages(
        rewards,
        batch.group_ids,
        baseline=group.baseline,
        scale_by=group.scale_by,
        ddof=group.ddof,
        singleton=group.singleton,
        is_scored=batch.is_scored,
    )
    return Advantages(loss_mask=mask, values=math.per_token(rows, mask))


def terms(batch: Batch, frozen: Frozen, advantages: Advantages, policy: Policy, config: GRPOConfig) -> Terms:
    clip = config.policy
    ratio = token_ratio(frozen, policy, config.shared)
    surrogate = math.clipped_surrogate(ratio, advantages.values, clip.clip_low, clip.clip_high, clip.dual_clip)
    return {"policy": term(surrogate, config.shared), **shared_terms(frozen, policy, config.shared)}


def metrics(
    batch: Batch, frozen: Frozen, advantages: Advantages, policy: Policy, config: GRPOConfig
) -> dict[str, Sums]:
    clip = config.policy
    ratio = token_ratio(frozen, policy, config.shared)
    return math.clip_metrics(ratio, advantages.values, batch.loss_mask, clip.clip_low, clip.clip_high, clip.dual_clip)


def validate(config: GRPOConfig) -> str | None:
    return config.shared.complaint()


ALGORITHM = Algorithm(
    name="grpo",
    config=GRPOConfig,
    needs=needs,
    advantages=advantages,
    terms=terms,
    metrics=metrics,
    validate=validate,
    summary="clipped policy gradient, advantages relative to the prompt's other completions",
    formula="-min(r a, clip(r, 1-clip_low, 1+clip_high) a) - c_e H + beta KL;  a = (s - mean(s)) / (std(s) + 1e-6)",
    source="arXiv:2402.03300",
)
