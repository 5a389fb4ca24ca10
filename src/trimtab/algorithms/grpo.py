"""Group relative policy optimisation: the other completions of the prompt are the baseline, so no critic is needed.

    a_i = (s_i - mean(s)) / (std(s) + 1e-6)   over the group
    L = mean_i mean_t[ -min(r a, clip(r, 1-eps_low, 1+eps_high) a) ] - c_e H + beta KL

A group whose rewards are equal teaches nothing and gets exactly 0, float noise included. Three names differ by defaults:

grpo     as above; Shao et al. 2024, arXiv:2402.03300, eq. 3 and section 4.1.2. `advantage.scale_by: none` leaves the
         deviation out: `rewards - mean(rewards)`, as deployment guides print it.
dr_grpo  no deviation, and a constant length as normaliser, so that neither easy prompts nor long wrong completions
         weigh more; Liu et al. 2025, arXiv:2503.20783.
dapo     a clip that is wider above, the mean over all tokens, prompts whose completions are all alike sampled again,
         completions near the length limit punished; Yu et al. 2025, arXiv:2503.14476. A recipe, not another loss.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from trimtab.algorithms import math
from trimtab.algorithms.base import (
    Advantages,
    Algorithm,
    Batch,
    EntropyAndLoss,
    Frozen,
    Group,
    Need,
    Policy,
    Share,
    Shared,
    Sums,
    Terms,
    TokenClip,
    clip_shares,
    group_advantages,
    policy_term,
    shared_terms,
    token_ratio,
)


def _shared() -> Shared:
    return Shared(policy=EntropyAndLoss(aggregation="seq-mean-token-mean"))


@dataclass(frozen=True, slots=True, kw_only=True)
class GRPOConfig:
    policy: TokenClip = field(default_factory=TokenClip)
    advantage: Group = field(default_factory=Group)
    shared: Shared = field(default_factory=_shared)


def needs(config: GRPOConfig) -> Need:
    return Need.ROLLOUTS | config.advantage.needs() | config.shared.needs()


def terms(batch: Batch, frozen: Frozen, advantages: Advantages, policy: Policy, config: GRPOConfig) -> Terms:
    clip = config.policy
    ratio = token_ratio(frozen, policy, config.shared)
    surrogate = math.clipped_surrogate(ratio, advantages.values, clip.clip_low, clip.clip_high, clip.dual_clip)
    return {
        "policy": policy_term(surrogate, batch, frozen, config.shared),
        **shared_terms(frozen, policy, config.shared),
    }


def metrics(
    batch: Batch, frozen: Frozen, advantages: Advantages, policy: Policy, config: GRPOConfig
) -> dict[str, Sums]:
    clip = config.policy
    ratio = token_ratio(frozen, policy, config.shared)
    return clip_shares(ratio, advantages.values, batch, clip.clip_low, clip.clip_high, clip.dual_clip)


def validate(config: GRPOConfig) -> str | None:
    return config.shared.complaint()


def dr_grpo_config() -> GRPOConfig:
    return GRPOConfig(
        advantage=Group(scale_by="none"), shared=Shared(policy=EntropyAndLoss(aggregation="seq-mean-token-sum-norm"))
    )


def dapo_config() -> GRPOConfig:
    return GRPOConfig(policy=TokenClip(clip_high=0.28), shared=Shared(policy=EntropyAndLoss(aggregation="token-mean")))


ALGORITHM = Algorithm(
    name="grpo",
    config=GRPOConfig,
    needs=needs,
    advantages=group_advantages,
    terms=terms,
    metrics=metrics,
    reports=("clip_fraction/low", "clip_fraction/high", "clip_fraction/dual"),
    validate=validate,
    summary="clipped policy gradient, advantages relative to the prompt's other completions",
    formula="-min(r a, clip(r, 1-clip_low, 1+clip_high) a) - c_e H + beta KL;  a = (s - mean(s)) / (std(s) + 1e-6)",
    source="arXiv:2402.03300",
)
DR_GRPO = replace(
    ALGORITHM,
    name="dr_grpo",
    config=dr_grpo_config,
    summary="GRPO without the deviation and without the length of the completion as divisors",
    formula="-min(r a, clip(r, 1-clip_low, 1+clip_high) a) / norm_length - c_e H + beta KL;  a = s - mean(s)",
    source="arXiv:2503.20783",
)
DAPO = replace(
    ALGORITHM,
    name="dapo",
    config=dapo_config,
    presets={
        "sampling.dynamic.enabled": True,
        "sampling.overlong.buffer": Share(of="sampling.max_length", divisor=5),
        "sampling.overlong.filter": False,
    },
    summary="GRPO with a wider clip above, a mean over all tokens, dynamic sampling and a punishment for length",
    source="arXiv:2503.14476",
)
