"""Tapered off-policy REINFORCE, by token: good completions are imitated, bad ones count less the rarer they are by now.

    w = 1 if a > 0, else min(r, cap), without gradient;   a = s - mean(s) over the prompt's completions
    L = mean_t[ -w a log p ] - c_e H + beta KL

Source: Le Roux et al. 2025, arXiv:2503.14286, where r is the completion's.
"""

from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Gt

from trimtab.algorithms import base, math


@dataclass(frozen=True, slots=True, kw_only=True)
class Taper:
    """The `policy` section's part that is its own."""

    __pydantic_config__ = base.STRICT

    cap: Annotated[float, Gt(0)] = 1.0
    """The largest weight of a token with a negative advantage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    policy: Taper = field(default_factory=Taper)
    advantage: base.Group = field(default_factory=lambda: base.Group(scale_by="none"))
    shared: base.Shared = field(default_factory=base.Shared)


def needs(config):
    return base.Need.ROLLOUTS | config.advantage.needs() | config.shared.needs()


def advantages(batch, frozen, config):
    rows = base.group_relative(batch, frozen, config.advantage, config.shared)
    return base.Advantages(loss_mask=batch.loss_mask, values=math.per_token(rows, batch.loss_mask))


def terms(batch, frozen, advantages, policy, config):
    ratio, values = base.token_ratio(frozen, policy, config.shared).detach(), advantages.values
    weights = base.torch.where(values > 0, base.torch.ones_like(ratio), ratio.clamp(max=config.policy.cap))
    own = base.policy_term(-weights * values * base.require(policy.log_probs), batch, frozen, config.shared)
    return {"policy": own, **base.shared_terms(frozen, policy, config.shared)}


ALGORITHM = base.Algorithm(
    name="topr",
    config=Config,
    needs=needs,
    advantages=advantages,
    terms=terms,
    validate=lambda config: config.shared.complaint(),
    summary="imitate what was good, push away what was bad only as far as it is still likely",
    formula="-w a log p(y_t) - c_e H + beta KL;  w = 1 if a > 0, else min(r, cap);  a = s - mean(s)",
    source="arXiv:2503.14286",
)
