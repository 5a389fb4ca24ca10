"""Soft adaptive policy optimisation: a gate that closes by degrees in the place of a clip.

    X = -(4 / tau) sigmoid(tau (r - 1)) a,   tau = tau_positive if a > 0 else tau_negative

At r = 1 the gradient is that of PPO; away from it the weight falls smoothly to 0 instead of at an edge. Tokens that are
to become rarer raise the odds of all others at once, hence a slightly harder gate for them.

Source: Gao et al. 2025, arXiv:2511.20347, eq. 5 to 7.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Gt

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
    shared_terms,
    token_ratio,
    torch,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """The `policy` section's part that is SAPO's."""

    __pydantic_config__ = STRICT

    tau_positive: Annotated[float, Gt(0)] = 1.0
    """How hard the gate is for tokens with a positive advantage."""
    tau_negative: Annotated[float, Gt(0)] = 1.05
    """And for the others."""


def _shared() -> Shared:
    return Shared(policy=EntropyAndLoss(aggregation="seq-mean-token-mean"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SAPOConfig:
    policy: Gate = field(default_factory=Gate)
    advantage: Group = field(default_factory=Group)
    shared: Shared = field(default_factory=_shared)


def needs(config: SAPOConfig) -> Need:
    return Need.ROLLOUTS | config.advantage.needs() | config.shared.needs()


def terms(batch: Batch, frozen: Frozen, advantages: Advantages, policy: Policy, config: SAPOConfig) -> Terms:
    gate, ratio = config.policy, token_ratio(frozen, policy, config.shared)
    tau = torch.where(advantages.values > 0, ratio.new_tensor(gate.tau_positive), ratio.new_tensor(gate.tau_negative))
    values = -torch.sigmoid(tau * (ratio - 1.0)) * 4.0 / tau * advantages.values
    return {
        "policy": policy_term(values, batch, frozen, config.shared),
        **shared_terms(frozen, policy, config.shared),
    }


def metrics(
    batch: Batch, frozen: Frozen, advantages: Advantages, policy: Policy, config: SAPOConfig
) -> dict[str, Sums]:
    """`sapo/gate`: 4 sigma (1 - sigma), the share of PPO's gradient that is left; 1 at ratio 1."""
    gate, ratio = config.policy, token_ratio(frozen, policy, config.shared)
    tau = torch.where(advantages.values > 0, ratio.new_tensor(gate.tau_positive), ratio.new_tensor(gate.tau_negative))
    open_ = torch.sigmoid(tau * (ratio - 1.0))
    left = torch.where(batch.loss_mask, 4.0 * open_ * (1.0 - open_), ratio.new_zeros(()))
    return {"sapo/gate": Sums(total=left.sum(), count=batch.loss_mask.sum())}


def validate(config: SAPOConfig) -> str | None:
    return config.shared.complaint()


ALGORITHM = Algorithm(
    name="sapo",
    config=SAPOConfig,
    needs=needs,
    advantages=group_advantages,
    terms=terms,
    metrics=metrics,
    reports=("sapo/gate",),
    validate=validate,
    refuses={"policy.dual_clip": "its gate bounds the weight of every token already"},
    summary="GRPO with a soft gate in the place of the clip",
    formula="-(4 / tau) sigmoid(tau (r - 1)) a - c_e H + beta KL;  tau by the sign of a",
    source="arXiv:2511.20347",
)
