"""Proximal policy optimisation: a critic says what each token was worth, a clip keeps the policy near where it sampled.

The policy term is the clipped surrogate over generalised advantage estimates, the value term the clipped squared error
of the critic; entropy and KL are the shared terms. With `kl.where: reward` the KL to the reference is subtracted from
each token's reward instead, so a token also pays for the states it leads to.

    L = mean_t[ -min(r A, clip(r, 1-eps, 1+eps) A) ] + c_v mean_t[ 1/2 max((V-R)^2, (clip(V)-R)^2) ] - c_e H + beta KL

Source: Schulman et al. 2017, arXiv:1707.06347, eq. 7 and 9; advantages: arXiv:1506.02438.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Ge, Gt, Interval

from trimtab.algorithms import credit, math
from trimtab.algorithms.base import (
    STRICT,
    Advantages,
    Algorithm,
    Batch,
    Frozen,
    Need,
    Policy,
    Shared,
    Sums,
    Terms,
    TokenClip,
    clip_shares,
    discount_remark,
    number,
    policy_term,
    require,
    shared_terms,
    term,
    token_ratio,
    token_rewards,
    torch,
)
from trimtab.types import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """The `value` section's part that is the loss of the critic."""

    __pydantic_config__ = STRICT

    coef: Annotated[float, Ge(0)] | Schedule = 1.0
    """c_v; auto is 1.0 with an own critic, 0.5 with a head on the policy's trunk."""
    clip_ratio: Annotated[float, Gt(0)] | None = 0.2
    """How far a prediction may move from the old one, reward units; null for no clip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gae:
    """The `advantage` section."""

    __pydantic_config__ = STRICT

    gamma: Annotated[float, Interval(gt=0, le=1)] = 1.0
    """Discount per token. Below 1 it discounts a final reward by length."""
    lam: Annotated[float, Interval(ge=0, le=1)] = 0.95
    """0 trusts the critic, 1 the rewards."""
    whiten: bool = True
    """Shift and scale the advantages of the step to mean 0 and variance 1."""
    ddof: Annotated[int, Interval(ge=0, le=1)] = 1
    """1 divides the variance by n - 1."""
    bootstrap_truncated: bool = True
    """A completion cut by the length limit goes on at the critic's estimate instead of 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PPOConfig:
    policy: TokenClip = field(default_factory=TokenClip)
    value: Value = field(default_factory=Value)
    advantage: Gae = field(default_factory=Gae)
    shared: Shared = field(default_factory=Shared)


def needs(config: PPOConfig) -> Need:
    return Need.ROLLOUTS | Need.VALUES | config.shared.needs()


def advantages(batch: Batch, frozen: Frozen, config: PPOConfig) -> Advantages:
    """Estimates over each completion's tokens, then whitened over the step."""
    mask = batch.loss_mask
    values, returns = credit.gae(
        token_rewards(batch, frozen, config.shared),
        require(frozen.old_values, "old_values (a critic)"),
        mask,
        gamma=config.advantage.gamma,
        lam=config.advantage.lam,
        bootstrap_values=frozen.bootstrap_values if config.advantage.bootstrap_truncated else None,
    )
    values = torch.where(batch.is_scored[:, None], values, values.new_zeros(()))
    if config.advantage.whiten:
        values = credit.whiten(values, mask & batch.is_scored[:, None], ddof=config.advantage.ddof)
    return Advantages(loss_mask=mask, values=values, returns=returns)


def terms(batch: Batch, frozen: Frozen, advantages: Advantages, policy: Policy, config: PPOConfig) -> Terms:
    clip = config.policy
    ratio = token_ratio(frozen, policy, config.shared)
    surrogate = math.clipped_surrogate(ratio, advantages.values, clip.clip_low, clip.clip_high, clip.dual_clip)
    error = math.clipped_value_loss(
        require(policy.values, "values (a critic)"),
        require(frozen.old_values, "old_values (a critic)"),
        require(advantages.returns, "returns"),
        config.value.clip_ratio,
    )
    scored = batch.loss_mask & batch.is_scored[:, None]
    return {
        "policy": policy_term(surrogate, batch, frozen, config.shared),
        "value": term(error, config.shared, over=scored, coefficient=number(config.value.coef)),
        **shared_terms(frozen, policy, config.shared),
    }


def metrics(batch: Batch, frozen: Frozen, advantages: Advantages, policy: Policy, config: PPOConfig) -> dict[str, Sums]:
    clip = config.policy
    ratio = token_ratio(frozen, policy, config.shared)
    return clip_shares(ratio, advantages.values, batch, clip.clip_low, clip.clip_high, clip.dual_clip)


def validate(config: PPOConfig) -> str | None:
    return config.shared.complaint()


def advise(config: PPOConfig) -> str | None:
    return discount_remark(config.advantage.gamma)


ALGORITHM = Algorithm(
    name="ppo",
    config=PPOConfig,
    needs=needs,
    advantages=advantages,
    terms=terms,
    metrics=metrics,
    reports=("clip_fraction/low", "clip_fraction/high", "clip_fraction/dual"),
    validate=validate,
    advise=advise,
    summary="clipped policy gradient with a critic (GAE)",
    formula="-min(r A, clip(r, 1-clip_low, 1+clip_high) A) + c_v 1/2 max((V-R)^2, (clip(V)-R)^2) - c_e H + beta KL",
    source="arXiv:1707.06347",
)
