"""REINFORCE leave-one-out: the mean of the prompt's other completions is the baseline, which keeps the gradient unbiased.

    a_i = s_i - mean(s_j, j != i)
    L = mean_i sum_t[ -a_i log p(y_t) ] - c_e H + beta KL

The completion is one action: its log-prob is the sum over its tokens, and KL, when it is in the reward, is summed
likewise and taken from s_i before the baseline.

Source: Ahmadian et al. 2024, arXiv:2402.14740, eq. 6; Kool et al. 2019.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from trimtab.algorithms.base import (
    Advantages,
    Algorithm,
    Batch,
    EntropyAndLoss,
    Frozen,
    Group,
    Kl,
    Need,
    Policy,
    Shared,
    Terms,
    group_advantages,
    policy_term,
    require,
    shared_terms,
)


def _leave_one_out() -> Group:
    return Group(baseline="loo", scale_by="none")


def _shared() -> Shared:
    return Shared(policy=EntropyAndLoss(aggregation="seq-mean-token-sum"), kl=Kl(where="reward"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RLOOConfig:
    advantage: Group = field(default_factory=_leave_one_out)
    shared: Shared = field(default_factory=_shared)


def needs(config: RLOOConfig) -> Need:
    return Need.ROLLOUTS | config.advantage.needs() | config.shared.needs()


def terms(batch: Batch, frozen: Frozen, advantages: Advantages, policy: Policy, config: RLOOConfig) -> Terms:
    values = -advantages.values * require(policy.log_probs, "log_probs")
    return {
        "policy": policy_term(values, batch, frozen, config.shared),
        **shared_terms(frozen, policy, config.shared),
    }


def validate(config: RLOOConfig) -> str | None:
    return config.shared.complaint()


ALGORITHM = Algorithm(
    name="rloo",
    config=RLOOConfig,
    needs=needs,
    advantages=group_advantages,
    terms=terms,
    validate=validate,
    corrects_ratio=False,
    unread=("policy.log_ratio_clamp",),
    summary="plain policy gradient of whole completions, the mean of the prompt's others as baseline",
    formula="-a sum_t log p(y_t) - c_e H + beta KL;  a = s - mean of the others",
    source="arXiv:2402.14740",
)
