"""Supervised fine-tuning: make the demonstrated completion likely. The stage before an online one.

L = mean_t[ -log p(y_t | x, y_<t) ] over completion tokens
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from trimtab.algorithms.base import (
    STRICT,
    Advantages,
    Algorithm,
    Batch,
    Frozen,
    Need,
    Policy,
    Term,
    Terms,
    require,
    torch,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """The `policy` section's part that SFT reads."""

    __pydantic_config__ = STRICT

    aggregation: Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "token-sum"] = "token-mean"
    """How token losses become one number, over the whole update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SFTConfig:
    policy: Loss = field(default_factory=Loss)


def needs(config: SFTConfig) -> Need:
    return Need.DEMONSTRATIONS


def advantages(batch: Batch, frozen: Frozen, config: SFTConfig) -> Advantages:
    """None are needed; zeros keep the shape."""
    return Advantages(loss_mask=batch.loss_mask, values=torch.zeros(batch.loss_mask.shape))


def terms(batch: Batch, frozen: Frozen, advantages: Advantages, policy: Policy, config: SFTConfig) -> Terms:
    return {"nll": Term(values=-require(policy.log_probs, "log_probs"), aggregation=config.policy.aggregation)}


ALGORITHM = Algorithm(
    name="sft",
    config=SFTConfig,
    needs=needs,
    advantages=advantages,
    terms=terms,
    summary="imitate demonstrated completions",
    formula="-log p(y_t | x, y_<t)",
)
