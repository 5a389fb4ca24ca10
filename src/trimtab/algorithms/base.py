"""What an algorithm is: a few pure functions and a config in one record.

    needs(config) -> Need                                       which parts the run must have
    advantages(batch, frozen, config) -> Advantages             once a step, no gradient
    terms(batch, frozen, advantages, policy, config) -> Terms   per micro-batch, unreduced
    metrics(...as terms...) -> {name: Sums}                     optional: what it wants to be seen

A loss is not averaged here. `Term.aggregation` says how, and the learner does it over the whole update, so a result
depends on no micro-batch, rank or padding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from annotated_types import Ge, Gt

from trimtab.algorithms import math
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
    "STRICT",
    "Advantages",
    "Aggregation",
    "Algorithm",
    "Batch",
    "Coefficient",
    "EntropyAndLoss",
    "Frozen",
    "Kl",
    "Need",
    "Policy",
    "Shared",
    "Sums",
    "Term",
    "Terms",
    "TokenClip",
    "number",
    "require",
    "reward_kl",
    "shared_terms",
    "term",
    "token_ratio",
    "torch",
]

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """The sections that every online algorithm reads; their terms come from `shared_terms`."""

    policy: EntropyAndLoss = field(default_factory=EntropyAndLoss)
    kl: Kl = field(default_factory=Kl)

    def needs(self) -> Need:
        need = Need.OLD_LOG_PROBS
        if self.policy.entropy_coef:
            need |= Need.ENTROPY
        if self.kl.coef and self.kl.target == "reference_model":
            need |= Need.REFERENCE
        return need

    def complaint(self) -> str | None:
        """Settings that do not go together, or None."""
        if self.kl.coef and self.kl.where == "reward" and self.kl.target == "old_policy":
            return (
                "kl.where: reward with kl.target: old_policy is always 0, since rewards are made before the first "
                "update; use kl.target: reference_model, or kl.where: loss"
            )
        return None


def term(values: Tensor, config: Shared, *, coefficient: float = 1.0, over: Tensor | None = None) -> Term:
    """A term that is averaged as `policy.aggregation` says."""
    loss = config.policy
    return Term(
        values=values, aggregation=loss.aggregation, coefficient=coefficient, over=over, norm_length=loss.norm_length
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """One algorithm, built-in or from a plug-in."""

    name: str
    config: type[Any]
    """A frozen dataclass whose fields are sections (`policy`, `kl`, ...), or `shared` for `Shared`."""
    needs: Callable[[Any], Need]
    advantages: Callable[[Batch, Frozen, Any], Advantages]
    terms: Callable[[Batch, Frozen, Advantages, Policy, Any], Terms]
    metrics: Callable[[Batch, Frozen, Advantages, Policy, Any], Mapping[str, Sums]] | None = None
    validate: Callable[[Any], str | None] | None = None
    """A complaint about settings that do not go together, or None."""
    summary: str = ""
    """One line for `trimtab algorithms`."""
    formula: str = ""
    """The loss, in plain text, for `trimtab algorithms NAME`."""
    source: str = ""
    """The paper."""
