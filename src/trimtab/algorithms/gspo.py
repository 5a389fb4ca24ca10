"""Group sequence policy optimisation: the reward is one of the whole completion, so its ratio is too.

    s_i = exp( mean_t (log p - log p_old) ),   X = -min(s_i a_i, clip(s_i, 1-eps_low, 1+eps_high) a_i)
    L = mean_i[ X ] - c_e H + beta KL

A mean of many log-ratios stays near 0, hence a clip hundreds of times narrower than PPO's.

gspo          as above; Zheng et al. 2025, arXiv:2507.18071, eq. 5 and 7.
gspo_token    the same value with a gradient of its own for each token, so advantages may differ in a row; eq. 13.
gspo_segment  the ratio of each run of `segment.length` tokens, or of each stretch up to an end mark (a sentence, a step):
              between a token's ratio, which is noisy, and a sequence's, which one bad passage moves. One segment a row
              is gspo, segments of one token are the clip of PPO. The default clip is our choice and unpublished.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from annotated_types import Ge, Gt

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
    clip_shares,
    group_advantages,
    policy_term,
    require,
    shared_terms,
    torch,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceClip:
    """The `policy` section's part that is GSPO's: how far the sequence ratio may leave 1."""

    __pydantic_config__ = STRICT

    clip_low: Annotated[float, Ge(0)] = 3e-4
    """Below 1. Two to three orders under PPO's, because the ratio is a mean over tokens."""
    clip_high: Annotated[float, Ge(0)] = 4e-4
    """Above 1."""
    dual_clip: Annotated[float, Gt(1)] | None = None
    """Bounds the loss of a completion with a negative advantage to this times it; null for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    __pydantic_config__ = STRICT

    length: Annotated[int, Ge(1)] | None = None
    """Tokens of a segment; 64 if no end marks are given."""
    end_marks: tuple[int | str, ...] | None = None
    """Token ids, or texts that are one token, that end a segment; instead of a length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentClip:
    """The `policy` section's part that is GSPO-segment's."""

    __pydantic_config__ = STRICT

    clip_low: Annotated[float, Ge(0)] = 3e-3
    """How far a segment's ratio may fall below 1."""
    clip_high: Annotated[float, Ge(0)] = 4e-3
    """How far it may rise above 1."""
    dual_clip: Annotated[float, Gt(1)] | None = None
    """Bounds the loss of a segment with a negative advantage to this times it; null for none."""
    segment: Segment = field(default_factory=Segment)
    """Where segments end."""


def _shared() -> Shared:
    return Shared(policy=EntropyAndLoss(aggregation="seq-mean-token-mean"))


@dataclass(frozen=True, slots=True, kw_only=True)
class GSPOConfig:
    policy: SequenceClip = field(default_factory=SequenceClip)
    advantage: Group = field(default_factory=Group)
    shared: Shared = field(default_factory=_shared)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentConfig:
    policy: SegmentClip = field(default_factory=SegmentClip)
    advantage: Group = field(default_factory=Group)
    shared: Shared = field(default_factory=_shared)


Config = Any
"""GSPOConfig or SegmentConfig; both have the fields that are read where this stands."""


def needs(config: Config) -> Need:
    need: Need = Need.ROLLOUTS | config.advantage.needs() | config.shared.needs()
    return need


def sequence_ratio(batch: Batch, frozen: Frozen, policy: Policy, config: Config) -> torch.Tensor:
    """[B, T], at each token that of its row."""
    mean = math.sequence_mean(_log_ratio(frozen, policy), batch.loss_mask)
    return torch.exp(_bounded(mean, config))


def token_of_sequence_ratio(batch: Batch, frozen: Frozen, policy: Policy, config: Config) -> torch.Tensor:
    """[B, T], the row's ratio in value, the token's in gradient."""
    log_probs = require(policy.log_probs, "log_probs")
    mean = math.sequence_mean(_log_ratio(frozen, policy), batch.loss_mask).detach()
    return torch.exp(_bounded(mean, config) + log_probs - log_probs.detach())


def segment_ratio(batch: Batch, frozen: Frozen, policy: Policy, config: SegmentConfig) -> torch.Tensor:
    """[B, T], at each token that of its segment."""
    mean = math.segment_mean(_log_ratio(frozen, policy), segments_of(batch, config.policy.segment))
    return torch.exp(_bounded(mean, config))


def segments_of(batch: Batch, segment: Segment) -> torch.Tensor:
    """[B, T] int64, the number of each token's segment, -1 where masked."""
    if not segment.end_marks:
        return math.segment_ids(batch.loss_mask, length=segment.length or 64)
    width = batch.loss_mask.shape[1]
    place = batch.prompt_lengths[:, None] + torch.arange(width, device=batch.tokens.device)
    tokens = batch.tokens.gather(1, place.clamp(max=max(batch.tokens.shape[1] - 1, 0)))
    marks = torch.tensor([int(mark) for mark in segment.end_marks], device=batch.tokens.device)
    return math.segment_ids(batch.loss_mask, end_marks=torch.isin(tokens, marks))


def _log_ratio(frozen: Frozen, policy: Policy) -> torch.Tensor:
    return require(policy.log_probs, "log_probs") - require(frozen.old_log_probs, "old_log_probs")


def _bounded(log_ratio: torch.Tensor, config: Config) -> torch.Tensor:
    clamp = config.shared.policy.log_ratio_clamp
    return log_ratio if clamp is None else log_ratio.clamp(-clamp, clamp)


def _surrogate(
    ratio: torch.Tensor, values: torch.Tensor, batch: Batch, frozen: Frozen, policy: Policy, config: Config
) -> Terms:
    clip = config.policy
    surrogate = math.clipped_surrogate(ratio, values, clip.clip_low, clip.clip_high, clip.dual_clip)
    return {
        "policy": policy_term(surrogate, batch, frozen, config.shared),
        **shared_terms(frozen, policy, config.shared),
    }


def terms(batch: Batch, frozen: Frozen, advantages: Advantages, policy: Policy, config: Config) -> Terms:
    mean = math.sequence_mean(advantages.values, batch.loss_mask)
    return _surrogate(sequence_ratio(batch, frozen, policy, config), mean, batch, frozen, policy, config)


def token_terms(batch: Batch, frozen: Frozen, advantages: Advantages, policy: Policy, config: Config) -> Terms:
    ratio = token_of_sequence_ratio(batch, frozen, policy, config)
    return _surrogate(ratio, advantages.values, batch, frozen, policy, config)


def segment_terms(batch: Batch, frozen: Frozen, advantages: Advantages, policy: Policy, config: SegmentConfig) -> Terms:
    mean = math.segment_mean(advantages.values, segments_of(batch, config.policy.segment))
    return _surrogate(segment_ratio(batch, frozen, policy, config), mean, batch, frozen, policy, config)


def metrics(batch: Batch, frozen: Frozen, advantages: Advantages, policy: Policy, config: Config) -> dict[str, Sums]:
    clip, ratio = config.policy, sequence_ratio(batch, frozen, policy, config)
    return clip_shares(ratio, advantages.values, batch, clip.clip_low, clip.clip_high, clip.dual_clip)


def segment_metrics(
    batch: Batch, frozen: Frozen, advantages: Advantages, policy: Policy, config: SegmentConfig
) -> dict[str, Sums]:
    clip, segments = config.policy, segments_of(batch, config.policy.segment)
    mean = math.segment_mean(advantages.values, segments)
    found = clip_shares(
        segment_ratio(batch, frozen, policy, config), mean, batch, clip.clip_low, clip.clip_high, clip.dual_clip
    )
    counts = (segments.amax(1) + 1) if segments.shape[1] else segments.new_zeros(len(segments))
    return {**found, "segment/length": Sums(total=batch.loss_mask.sum(), count=counts.sum())}


def validate(config: Config) -> str | None:
    segment = getattr(config.policy, "segment", None)
    if segment is not None and segment.length is not None and segment.end_marks:
        return (
            f"policy.segment.length: {segment.length} beside policy.segment.end_marks: {list(segment.end_marks)}; "
            "a segment ends by one of them"
        )
    complaint: str | None = config.shared.complaint(token_ratio=False)
    return complaint


def advise(config: Config) -> str | None:
    widest = max(config.policy.clip_low, config.policy.clip_high)
    segment = getattr(config.policy, "segment", None)
    meant = "3e-4 and 4e-4" if segment is None else "3e-3 and 4e-3"
    if widest > 0.01:
        return (
            f"policy.clip_low/clip_high up to {widest}: this ratio is a mean over many tokens and never gets so far, so "
            f"nothing is clipped; {meant} are meant"
        )
    length = None if segment is None else segment.length
    if length is not None and not 8 <= length <= 512:
        like = "every token has nearly a ratio of its own" if length < 8 else "a segment is nearly a whole completion"
        return f"policy.segment.length: {length}: {like}, and the default clip fits neither; 8 to 512 are meant"
    return None


REPORTS = ("clip_fraction/low", "clip_fraction/high", "clip_fraction/dual")
ALGORITHM = Algorithm(
    name="gspo",
    config=GSPOConfig,
    needs=needs,
    advantages=group_advantages,
    terms=terms,
    ratio=sequence_ratio,
    metrics=metrics,
    reports=REPORTS,
    validate=validate,
    advise=advise,
    summary="GRPO with one ratio for each completion",
    formula="-min(s a, clip(s, 1-clip_low, 1+clip_high) a) - c_e H + beta KL;  s = exp(mean_t log(p / p_old))",
    source="arXiv:2507.18071",
)
GSPO_TOKEN = replace(
    ALGORITHM,
    name="gspo_token",
    terms=token_terms,
    ratio=token_of_sequence_ratio,
    summary="GSPO with a gradient of its own for each token",
    formula="-min(s_t A, clip(s_t, 1-clip_low, 1+clip_high) A) - c_e H + beta KL;  s_t = sg[s] p_t / sg[p_t]",
)
GSPO_SEGMENT = replace(
    ALGORITHM,
    name="gspo_segment",
    config=SegmentConfig,
    terms=segment_terms,
    ratio=segment_ratio,
    metrics=segment_metrics,
    reports=(*REPORTS, "segment/length"),
    summary="GRPO with one ratio for each segment of a completion, by length or by end marks",
    formula="-min(s_k A_k, clip(s_k, 1-clip_low, 1+clip_high) A_k) - c_e H + beta KL;  s_k = exp(mean over the segment)",
    source="between arXiv:2507.18071 and arXiv:1707.06347; unpublished",
)
