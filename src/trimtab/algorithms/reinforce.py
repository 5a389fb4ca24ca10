"""REINFORCE: make what was rewarded likelier, in proportion; and the two forms known as REINFORCE++.

    G_t = sum over later tokens of gamma^k (reward - beta k1)

reinforce              L = mean_t[ -A log p(y_t) ],  A = G; Williams 1992. The first update of a step is exact; later ones
                       account for nothing, and a run that makes them says so.
reinforce_pp           A = whiten(G) over all tokens of the step, and the clip of PPO; Hu 2025, arXiv:2501.03262.
reinforce_pp_baseline  A = whiten(s - mean of the group), the clip, and KL as a k2 loss; same paper.

Whitening replaces the critic: a reward above the average of the step is good news, whatever the prompt.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Interval

from trimtab.algorithms import credit, math
from trimtab.algorithms.base import (
    STRICT,
    Advantages,
    Algorithm,
    Batch,
    Frozen,
    Group,
    Kl,
    Need,
    Policy,
    Shared,
    Sums,
    Terms,
    TokenClip,
    clip_shares,
    discount_remark,
    group_relative,
    policy_term,
    require,
    shared_terms,
    token_ratio,
    token_rewards,
    torch,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Returns:
    """The `advantage` section."""

    __pydantic_config__ = STRICT

    gamma: Annotated[float, Interval(gt=0, le=1)] = 1.0
    """Discount per token. Below 1 it discounts a final reward by length."""
    whiten: bool = False
    """Shift and scale the advantages of the step to mean 0 and variance 1."""
    ddof: Annotated[int, Interval(ge=0, le=1)] = 1
    """1 divides the variance by n - 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Whitening:
    """The `advantage` section: the group's mean is the baseline."""

    __pydantic_config__ = STRICT

    whiten: bool = True
    """Shift and scale the advantages of the step to mean 0 and variance 1."""
    ddof: Annotated[int, Interval(ge=0, le=1)] = 1
    """1 divides the variance by n - 1."""


def _kl_in_reward() -> Shared:
    return Shared(kl=Kl(where="reward"))


def _kl_as_k2() -> Shared:
    return Shared(kl=Kl(estimator="k2"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReinforceConfig:
    advantage: Returns = field(default_factory=Returns)
    shared: Shared = field(default_factory=_kl_in_reward)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClippedConfig:
    policy: TokenClip = field(default_factory=TokenClip)
    advantage: Returns = field(default_factory=lambda: Returns(whiten=True))
    shared: Shared = field(default_factory=_kl_in_reward)


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineConfig:
    policy: TokenClip = field(default_factory=TokenClip)
    advantage: Whitening = field(default_factory=Whitening)
    shared: Shared = field(default_factory=_kl_as_k2)


def needs(config: ReinforceConfig | ClippedConfig) -> Need:
    return Need.ROLLOUTS | config.shared.needs()


def baseline_needs(config: BaselineConfig) -> Need:
    return Need.ROLLOUTS | Need.GROUPS | config.shared.needs()


def advantages(batch: Batch, frozen: Frozen, config: ReinforceConfig | ClippedConfig) -> Advantages:
    """Reward from each token to the end."""
    values = credit.discounted_returns(
        token_rewards(batch, frozen, config.shared), batch.loss_mask, config.advantage.gamma
    )
    return _whitened(batch, values, config.advantage)


def baseline_advantages(batch: Batch, frozen: Frozen, config: BaselineConfig) -> Advantages:
    """Reward less the group's mean, at every token."""
    rows = group_relative(batch, frozen, Group(scale_by="none"), config.shared)
    return _whitened(batch, math.per_token(rows, batch.loss_mask), config.advantage)


def _whitened(batch: Batch, values: torch.Tensor, settings: Returns | Whitening) -> Advantages:
    scored = batch.loss_mask & batch.is_scored[:, None]
    values = torch.where(scored, values, values.new_zeros(()))
    if settings.whiten:
        values = credit.whiten(values, scored, ddof=settings.ddof)
    return Advantages(loss_mask=batch.loss_mask, values=values)


def terms(batch: Batch, frozen: Frozen, advantages: Advantages, policy: Policy, config: ReinforceConfig) -> Terms:
    values = -advantages.values * require(policy.log_probs, "log_probs")
    return {
        "policy": policy_term(values, batch, frozen, config.shared),
        **shared_terms(frozen, policy, config.shared),
    }


def clipped_terms(
    batch: Batch, frozen: Frozen, advantages: Advantages, policy: Policy, config: ClippedConfig | BaselineConfig
) -> Terms:
    clip = config.policy
    ratio = token_ratio(frozen, policy, config.shared)
    surrogate = math.clipped_surrogate(ratio, advantages.values, clip.clip_low, clip.clip_high, clip.dual_clip)
    return {
        "policy": policy_term(surrogate, batch, frozen, config.shared),
        **shared_terms(frozen, policy, config.shared),
    }


def clipped_metrics(
    batch: Batch, frozen: Frozen, advantages: Advantages, policy: Policy, config: ClippedConfig | BaselineConfig
) -> dict[str, Sums]:
    clip = config.policy
    ratio = token_ratio(frozen, policy, config.shared)
    return clip_shares(ratio, advantages.values, batch, clip.clip_low, clip.clip_high, clip.dual_clip)


def validate(config: ReinforceConfig | ClippedConfig | BaselineConfig) -> str | None:
    return config.shared.complaint()


def advise(config: ReinforceConfig | ClippedConfig) -> str | None:
    return discount_remark(config.advantage.gamma)


ALGORITHM = Algorithm(
    name="reinforce",
    config=ReinforceConfig,
    needs=needs,
    advantages=advantages,
    terms=terms,
    validate=validate,
    advise=advise,
    corrects_ratio=False,
    unread=("policy.log_ratio_clamp",),
    summary="plain policy gradient on the reward to go",
    formula="-G log p(y_t) - c_e H + beta KL;  G = reward to go, less beta k1 with kl.where: reward",
    source="doi:10.1007/BF00992696",
)
REINFORCE_PP = Algorithm(
    name="reinforce_pp",
    config=ClippedConfig,
    needs=needs,
    advantages=advantages,
    terms=clipped_terms,
    metrics=clipped_metrics,
    reports=("clip_fraction/low", "clip_fraction/high", "clip_fraction/dual"),
    validate=validate,
    advise=advise,
    summary="clipped policy gradient on the whitened reward to go, no critic and no group",
    formula="-min(r A, clip(r, 1-clip_low, 1+clip_high) A) - c_e H + beta KL;  A = whiten(G)",
    source="arXiv:2501.03262",
)
REINFORCE_PP_BASELINE = Algorithm(
    name="reinforce_pp_baseline",
    config=BaselineConfig,
    needs=baseline_needs,
    advantages=baseline_advantages,
    terms=clipped_terms,
    metrics=clipped_metrics,
    reports=("clip_fraction/low", "clip_fraction/high", "clip_fraction/dual"),
    validate=validate,
    summary="clipped policy gradient, the group's mean as baseline, whitened over the step",
    formula="-min(r A, clip(r, 1-clip_low, 1+clip_high) A) - c_e H + beta k2;  A = whiten(s - mean(s))",
    source="arXiv:2501.03262",
)
