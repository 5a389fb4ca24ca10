"""What an algorithm is: a few pure functions and a config in one record.

    needs(config) -> Need                                       which parts the run must have
    advantages(batch, frozen, config) -> Advantages             once a step, no gradient
    statistics(...) -> Frozen                                   optional: once an update, over all its rows
    terms(batch, frozen, advantages, policy, config) -> Terms   per micro-batch, unreduced
    ratio(...), metrics(...)                                    optional: what is to be seen

A loss is not averaged here. `Term.aggregation` says how, and the learner does it over the whole update, so a result
depends on no micro-batch, rank or padding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from annotated_types import Ge, Gt, Interval

from trimtab.algorithms import credit, math
from trimtab.errors import UnmetNeedError
from trimtab.types import (
    STRICT,
    Advantages,
    Batch,
    Coefficient,
    Frozen,
    Need,
    Policy,
    Schedule,
    Sums,
    Term,
    Terms,
    torch,
)

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "PLUGIN_API",
    "STRICT",
    "Advantages",
    "Aggregation",
    "Algorithm",
    "Batch",
    "Coefficient",
    "EntropyAndLoss",
    "Frozen",
    "Group",
    "Kl",
    "KlLimit",
    "Mismatch",
    "Need",
    "Policy",
    "Share",
    "Shared",
    "Sums",
    "Term",
    "Terms",
    "TokenClip",
    "chosen_nll",
    "clip_shares",
    "discount_remark",
    "group_advantages",
    "group_relative",
    "kl_target",
    "no_advantages",
    "number",
    "policy_term",
    "require",
    "reward_kl",
    "shared_terms",
    "term",
    "token_ratio",
    "token_rewards",
    "torch",
]

PLUGIN_API = 1
"""Raised when a plug-in that was right may no longer be."""

Value = TypeVar("Value")


def require(value: Value | None, name: str = "") -> Value:
    """The value, or `UnmetNeedError` if the run did not provide it."""
    if value is None:
        raise UnmetNeedError(
            f"the algorithm needs {name or 'a part'} that this run does not have; declare it in `needs`"
        )
    return value


def number(coefficient: Coefficient) -> float:
    """A coefficient at this step. The learner has put the step's number in a schedule's place."""
    if isinstance(coefficient, Schedule):
        raise TypeError("a schedule reached an algorithm; resolve the config with `train.schedule.at` first")
    return coefficient


# -------------------------------------------------------------------------------------------------- shared sections
Aggregation = Literal[
    "token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm", "prompt-mean", "token-sum"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyAndLoss:
    """The `policy` section's part that every online algorithm reads."""

    __pydantic_config__ = STRICT

    entropy_coef: Annotated[float, Ge(0)] | Schedule = 0.0
    """c_e: how strongly a high entropy of the next token is rewarded."""
    aggregation: Aggregation = "token-mean"
    """How token losses become one number, over the whole update."""
    count_dead_rows: bool = False
    """Count completions without a counted token among the rows that a mean is over, as TRL does; the gradient is then
    smaller by live / all rows."""
    norm_length: Annotated[int, Gt(0)] | None = None
    """Tokens, the constant of `seq-mean-token-sum-norm`; null: sampling.max_length."""
    log_ratio_clamp: Annotated[float, Gt(0)] | None = 20.0
    """Log-ratios are cut to plus and minus this before `exp`; null switches it off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenClip:
    """The `policy` section's part of the algorithms that clip a ratio of tokens."""

    __pydantic_config__ = STRICT

    clip_low: Annotated[float, Ge(0)] = 0.2
    """How far the ratio may fall below 1 (`clip_ratio` sets both sides)."""
    clip_high: Annotated[float, Ge(0)] = 0.2
    """How far the ratio may rise above 1."""
    dual_clip: Annotated[float, Gt(1)] | None = None
    """Bounds the loss of a token with a negative advantage to this times it; null for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KlLimit:
    __pydantic_config__ = STRICT

    warn: Annotated[float, Gt(0)] = 0.03
    """Nats per token from the policy before a step to the one after it, k3: the guard warns, `kl.stop_epochs` and
    `accept` look at it."""
    act: Annotated[float, Gt(0)] = 0.05
    """Likewise; beyond it the guard goes back to an earlier checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kl:
    """The `kl` section: one KL term a run, against the policy that `target` names."""

    __pydantic_config__ = STRICT

    coef: Annotated[float, Ge(0)] | Schedule = 0.0
    """beta: how strongly leaving the target is punished; 0 removes the term and, with it, the reference model."""
    target: Literal["reference_model", "old_policy"] = "reference_model"
    """The second policy of KL(policy || target)."""
    estimator: Literal["auto", "k1", "k2", "k3"] = "auto"
    """One-sample estimate of the value; auto is k3 in the loss and k1 in the reward."""
    gradient: Literal["direct", "k2", "weighted"] = "k2"
    """What is differentiated, in the loss: the estimator itself, k2 (unbiased on-policy), or the ratio-weighted one."""
    where: Literal["loss", "reward"] = "loss"
    """A term of the loss, or subtracted from the reward of each token."""
    controller: Literal["fixed", "adaptive", "penalty"] = "fixed"
    """How beta goes on from step to step: as it is; towards `controller_target` (Ziegler); halved or doubled (PPO)."""
    controller_target: Annotated[float, Gt(0)] | None = None
    """Nats, per `unit`: the KL that a controller aims at."""
    controller_horizon: Annotated[int, Ge(1)] = 10000
    """Completions over which the adaptive controller may change beta by a fifth."""
    unit: Literal["token", "sequence"] = "token"
    """What the controller's KL is a mean over: tokens, or completions (of their sums)."""
    limit: KlLimit = field(default_factory=KlLimit)
    """How far one step may move the policy."""
    stop_epochs: bool = False
    """Leave out the rest of a step's updates once the policy is over `limit.warn` from where it sampled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """The `mismatch` section: what is done about an engine whose log-probs are not the trainer's."""

    __pydantic_config__ = STRICT

    mode: Literal["auto", "off", "truncate", "mask", "geometric_mask"] = "auto"
    """Weights old / engine on the policy's token losses: cut to the bounds (TIS), set to 0 outside (IcePop), or rows
    left out whose geometric mean is outside; auto: `truncate`, and `off` where trainer and engine are one model."""
    level: Literal["token", "sequence"] = "token"
    """A weight for each token, or the product over the completion."""
    low: Annotated[float, Ge(0)] | None = None
    """Lower bound of a weight; null for none."""
    high: Annotated[float, Gt(0)] | None = 2.0
    """Upper bound of a weight; null for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The `advantage` section of the algorithms that compare the completions of one prompt."""

    __pydantic_config__ = STRICT

    baseline: Literal["mean", "loo", "none"] = "mean"
    """Subtracted from the reward: the group's mean, the mean of the others, nothing."""
    scale_by: Literal["group", "batch", "none"] = "group"
    """Divided by: the group's standard deviation, the batch's, nothing."""
    ddof: Annotated[int, Interval(ge=0, le=1)] = 1
    """1 divides the variance by n - 1."""
    singleton: Literal["zero", "raw"] = "zero"
    """What a completion gets whose group has no other scored one."""
    leave_out_masked: bool = False
    """Leave completions without a counted token (cut ones, under `sampling.overlong.filter`) out of the baseline too."""
    combine: Literal["sum_then_normalize", "normalize_then_sum"] = "sum_then_normalize"
    """Several rewards: their weighted sum is compared, or each is compared by itself and the results are summed (GDPO)."""

    def needs(self) -> Need:
        """Whether completions of one prompt are compared at all."""
        compares = self.baseline != "none" or self.scale_by == "group"
        return Need.GROUPS if compares else Need.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """The sections that every online algorithm reads; their terms come from `shared_terms`."""

    policy: EntropyAndLoss = field(default_factory=EntropyAndLoss)
    kl: Kl = field(default_factory=Kl)
    mismatch: Mismatch = field(default_factory=Mismatch)

    def needs(self) -> Need:
        need = Need.OLD_LOG_PROBS
        if self.policy.entropy_coef:
            need |= Need.ENTROPY
        if self.kl.coef and self.kl.target == "reference_model":
            need |= Need.REFERENCE
        return need

    def complaint(self, *, token_ratio: bool = True) -> str | None:
        """Settings that do not go together, or None.

        Args:
            token_ratio: False if the algorithm's ratio is that of a sequence or segment.
        """
        kl = self.kl
        if kl.coef and kl.where == "reward" and kl.target == "old_policy":
            return (
                "kl.where: reward with kl.target: old_policy is always 0, since rewards are made before the first "
                "update; use kl.target: reference_model, or kl.where: loss"
            )
        if kl.coef and kl.where == "loss" and kl.gradient == "weighted" and not token_ratio:
            return (
                "kl.gradient: weighted needs the ratio of each token, and this algorithm's ratio is that of a sequence "
                "or segment; use kl.gradient: k2"
            )
        if complaint := _controller_complaint(kl):
            return complaint
        if self.mismatch.low is not None and self.mismatch.high is not None and self.mismatch.low > self.mismatch.high:
            return f"mismatch.low: {self.mismatch.low} is above mismatch.high: {self.mismatch.high}"
        return None


def _controller_complaint(kl: Kl) -> str | None:
    if kl.controller == "fixed":
        return None
    if isinstance(kl.coef, Schedule):
        return f"kl.controller: {kl.controller} beside a schedule in kl.coef; both would set it, keep one"
    if not kl.coef:
        return f"kl.controller: {kl.controller} with kl.coef: 0 has nothing to scale; set the coefficient to start from"
    if kl.controller_target is None:
        return f"kl.controller: {kl.controller} without kl.controller_target; name the KL to aim at, nats per {kl.unit}"
    return None


# ------------------------------------------------------------------------------------------------ parts of the loss
def term(values: Tensor, config: Shared, *, coefficient: float = 1.0, over: Tensor | None = None) -> Term:
    """A term that is averaged as `policy.aggregation` says."""
    loss = config.policy
    return Term(
        values=values,
        aggregation=loss.aggregation,
        coefficient=coefficient,
        over=over,
        norm_length=loss.norm_length,
        count_dead_rows=loss.count_dead_rows,
    )


def policy_term(values: Tensor, batch: Batch, frozen: Frozen, shared: Shared) -> Term:
    """The policy's token losses, [B, T], weighted as `mismatch` says."""
    weights = mismatch_weights(batch, frozen, shared)
    return term(values if weights is None else values * weights.to(values.dtype), shared)


def mismatch_weights(batch: Batch, frozen: Frozen, shared: Shared) -> Tensor | None:
    """[B, T], what `mismatch` weights the policy's token losses with; None if it is off."""
    settings = shared.mismatch
    if settings.mode in ("auto", "off"):  # auto has been decided when the run was assembled
        return None
    return math.mismatch_weights(
        require(frozen.old_log_probs, "old_log_probs"),
        require(batch.rollout_log_probs, "rollout_log_probs"),
        batch.loss_mask,
        mode=settings.mode,
        level=settings.level,
        low=settings.low,
        high=settings.high,
    )


def token_ratio(frozen: Frozen, policy: Policy, shared: Shared) -> Tensor:
    """[B, T] exp(log_probs - old_log_probs), with gradient."""
    return torch.exp(
        math.log_ratio(
            require(policy.log_probs, "log_probs"),
            require(frozen.old_log_probs, "old_log_probs"),
            shared.policy.log_ratio_clamp,
        )
    )


def kl_target(frozen: Frozen, kl: Kl) -> Tensor:
    """[B, T] log-probs of the policy that `kl.target` names."""
    if kl.target == "old_policy":
        return require(frozen.old_log_probs, "old_log_probs")
    return require(frozen.ref_log_probs, "ref_log_probs (a reference model)")


def shared_terms(frozen: Frozen, policy: Policy, config: Shared) -> Terms:
    """The entropy and KL terms, the same in every online algorithm; a coefficient of 0 leaves its term out.

    `L = L_policy + c_v L_value - c_e H + beta KL`: the entropy enters with a negative coefficient.
    """
    terms: Terms = {}
    if entropy_coef := number(config.policy.entropy_coef):
        entropy = require(policy.entropy, "entropy")
        terms["entropy"] = term(entropy, config, coefficient=-entropy_coef)
    if config.kl.where == "loss" and (beta := number(config.kl.coef)):
        kl = math.kl_loss(
            require(policy.log_probs, "log_probs"),
            kl_target(frozen, config.kl),
            estimator="k3" if config.kl.estimator == "auto" else config.kl.estimator,
            gradient=config.kl.gradient,
            old_log_probs=frozen.old_log_probs,
        )
        terms["kl"] = term(kl, config, coefficient=beta)
    return terms


def discount_remark(gamma: float) -> str | None:
    """What a discount below 1 does to a reward that comes at the end."""
    if gamma >= 1:
        return None
    half = round(0.6931 / (1 - gamma))
    return f"advantage.gamma: {gamma} halves a final reward every {half} tokens; use 1.0 unless rewards are dense"


def clip_shares(
    ratio: Tensor, advantages: Tensor, batch: Batch, clip_low: float, clip_high: float, dual_clip: float | None = None
) -> dict[str, Sums]:
    """`clip_fraction/...` of a ratio, [B, T], of whatever level."""
    return math.clip_metrics(ratio, advantages, batch.loss_mask, clip_low, clip_high, dual_clip)


# -------------------------------------------------------------------------------------------- parts of the advantages
def reward_kl(batch: Batch, frozen: Frozen, shared: Shared) -> Tensor | None:
    """[B, T] reward units, what `kl.where: reward` takes from each token's reward; None if it takes nothing."""
    kl = shared.kl
    beta = number(kl.coef)
    if kl.where != "reward" or not beta:
        return None
    estimate = math.kl_estimate(
        require(frozen.old_log_probs, "old_log_probs"),
        kl_target(frozen, kl),
        "k1" if kl.estimator == "auto" else kl.estimator,
    )
    return beta * torch.where(batch.loss_mask, estimate, estimate.new_zeros(()))


def token_rewards(batch: Batch, frozen: Frozen, shared: Shared) -> Tensor:
    """[B, T] reward units: the completion's reward at its last token, rewards of tokens, less the KL in the reward."""
    rewards = credit.terminal_rewards(batch.rewards, batch.loss_mask, batch.token_rewards)
    penalty = reward_kl(batch, frozen, shared)
    return rewards if penalty is None else rewards - penalty


def group_relative(batch: Batch, frozen: Frozen, group: Group, shared: Shared) -> Tensor:
    """[B]: how much better each completion did than the others of its prompt, as `advantage` says."""
    rewards = batch.rewards
    if batch.token_rewards is not None:
        rewards = rewards + batch.token_rewards.sum(1)
    penalty = reward_kl(batch, frozen, shared)
    if penalty is not None:
        rewards = rewards - penalty.sum(1)
    counted = batch.is_scored & batch.loss_mask.any(1) if group.leave_out_masked else batch.is_scored
    settings: dict[str, Any] = {
        "baseline": group.baseline,
        "scale_by": group.scale_by,
        "ddof": group.ddof,
        "singleton": group.singleton,
        "is_scored": counted,
    }
    if group.combine == "normalize_then_sum" and batch.reward_parts is not None and batch.reward_weights is not None:
        return credit.combined_group_advantages(
            rewards, batch.reward_parts, batch.reward_weights, batch.group_ids, **settings
        )
    return credit.group_advantages(rewards, batch.group_ids, **settings)


def group_advantages(batch: Batch, frozen: Frozen, config: Any) -> Advantages:
    """One number a completion, from its group as `config.advantage` says, at every token of it."""
    rows = group_relative(batch, frozen, config.advantage, config.shared)
    return Advantages(loss_mask=batch.loss_mask, values=math.per_token(rows, batch.loss_mask))


# ------------------------------------------------------------------------------------- parts of runs that only read
def no_advantages(batch: Batch, frozen: Frozen, config: Any) -> Advantages:
    """For an algorithm that has none: zeros, which keep the shape."""
    return Advantages(loss_mask=batch.loss_mask, values=torch.zeros(batch.loss_mask.shape))


def chosen_nll(batch: Batch, policy: Policy, counted: Tensor, coefficient: float) -> Terms:
    """The negative log-likelihood of the chosen completions, a mean over their tokens; nothing at a coefficient of 0.

    Args:
        counted: [B] bool, the chosen rows whose pair counts.
    """
    if not coefficient:
        return {}
    values, over = -require(policy.log_probs, "log_probs"), batch.loss_mask & counted[:, None]
    return {"nll": Term(values=values, over=over, aggregation="token-mean", coefficient=coefficient)}


# ------------------------------------------------------------------------------------------------------- the record
@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A preset that is a fraction of another key."""

    of: str
    divisor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """One algorithm, built-in or from a plug-in."""

    name: str
    config: type[Any] | Callable[[], Any]
    """A frozen dataclass whose fields are sections (`policy`, `kl`, ...), or `shared` for `Shared`; or a function that
    makes one with the defaults of this algorithm."""
    needs: Callable[[Any], Need]
    advantages: Callable[[Batch, Frozen, Any], Advantages]
    terms: Callable[[Batch, Frozen, Advantages, Policy, Any], Terms]
    statistics: Callable[[Batch, Frozen, Advantages, Policy, Any, Tensor], Frozen] | None = None
    """What `terms` needs to know of the whole update, once an update and without gradient: `Frozen` with it put in.
    Its last argument is [B, T] float64 in [0, 1), a number for each token that depends on no split."""
    ratio: Callable[[Batch, Frozen, Policy, Any], Tensor] | None = None
    """[B, T], the ratio that the loss bounds, for `ratio/...`; None: the token's."""
    metrics: Callable[[Batch, Frozen, Advantages, Policy, Any], Mapping[str, Sums]] | None = None
    reports: tuple[str, ...] = ()
    """The names that `metrics` may give."""
    validate: Callable[[Any], str | None] | None = None
    """A complaint about settings that do not go together, or None."""
    advise: Callable[[Any], str | None] | None = None
    """A remark about settings that are allowed and seldom meant, or None."""
    refuses: Mapping[str, str] = field(default_factory=dict)
    """Keys of other algorithms that contradict this one instead of not mattering to it, each with the reason."""
    presets: Mapping[str, Any] = field(default_factory=dict)
    """Values of `auto` in sections of other rooms, by dotted key."""
    corrects_ratio: bool = True
    """Whether later updates of a step account for the weights having moved since the rows were sampled."""
    unread: tuple[str, ...] = ()
    """Keys of the shared sections that it does not look at, dotted."""
    summary: str = ""
    """One line for `trimtab algorithms`."""
    formula: str = ""
    """The loss, in plain text, for `trimtab algorithms NAME`."""
    source: str = ""
    """The paper."""
