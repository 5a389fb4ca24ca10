"""Direct preference optimisation: the policy is its own reward model, so pairs can be learned from without sampling.

    h = log p(y_c) / ref(y_c) - log p(y_r) / ref(y_r)         sums over the completion's tokens, or their means
    beta h is the margin of the implicit rewards; beta enters once.

dpo         L = -log sigmoid(beta h);  Rafailov et al. 2023, arXiv:2305.18290, eq. 7
cdpo        a share e of the labels is taken to be wrong: -(1 - e) log sigmoid(beta h) - e log sigmoid(-beta h);
            Mitchell 2023, "A note on DPO with noisy preferences"
robust_dpo  the same, made unbiased under flips: [-(1 - e) log sigmoid(beta h) + e log sigmoid(-beta h)] / (1 - 2e);
            Chowdhury et al. 2024, arXiv:2403.00409
hinge       L = max(0, 1 - beta h);  SLiC, Zhao et al. 2023, arXiv:2305.10425
dpo_norm    dpo on means over tokens, so that length does not count;  Tulu 3, arXiv:2411.15124

With `preference.nll_coef` the likelihood of the chosen completion is raised as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Annotated

from annotated_types import Ge, Gt, Interval

from trimtab.algorithms import pairs as paired
from trimtab.algorithms.base import (
    STRICT,
    Advantages,
    Algorithm,
    Batch,
    Frozen,
    Need,
    Policy,
    Sums,
    Term,
    Terms,
    chosen_nll,
    no_advantages,
    number,
    require,
    torch,
)
from trimtab.types import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """The `preference` section."""

    __pydantic_config__ = STRICT

    beta: Annotated[float, Gt(0)] = 0.1
    """How strongly the policy is held to the reference: the smaller, the further it may go."""
    label_smoothing: Annotated[float, Interval(ge=0, lt=0.5)] = 0.0
    """Share of the pairs that are taken to be labelled the wrong way round."""
    average: bool = False
    """Compare mean log-ratios a token instead of sums over the completion."""
    nll_coef: Annotated[float, Ge(0)] | Schedule = 0.0
    """Weight of the negative log-likelihood of the chosen completion, a mean over its tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DPOConfig:
    preference: Preference = field(default_factory=Preference)


Loss = Callable[["torch.Tensor", float], "torch.Tensor"]
"""Of (beta h [N], label smoothing)."""


def smoothed(z: torch.Tensor, share: float) -> torch.Tensor:
    return -(1 - share) * paired.log_sigmoid(z) - share * paired.log_sigmoid(-z)


def robust(z: torch.Tensor, share: float) -> torch.Tensor:
    return (-(1 - share) * paired.log_sigmoid(z) + share * paired.log_sigmoid(-z)) / (1 - 2 * share)


def hinge(z: torch.Tensor, share: float) -> torch.Tensor:
    return (1.0 - z).clamp_min(0.0)


def needs(config: DPOConfig) -> Need:
    return Need.PAIRS | Need.REFERENCE


def log_ratios(batch: Batch, frozen: Frozen, policy: Policy, *, average: bool = False) -> torch.Tensor:
    """[B], of policy over reference, the sum over the completion or the mean a token."""
    difference = require(policy.log_probs, "log_probs") - require(frozen.ref_log_probs, "ref_log_probs (a reference)")
    return paired.row_sums(difference, batch.loss_mask, average=average)


def terms_with(
    loss: Loss,
) -> Callable[[Batch, Frozen, Advantages, Policy, DPOConfig], Terms]:
    def terms(batch: Batch, frozen: Frozen, advantages: Advantages, policy: Policy, config: DPOConfig) -> Terms:
        own, pairs = config.preference, paired.pairs_of(batch)
        rows = log_ratios(batch, frozen, policy, average=own.average)
        values = loss(own.beta * pairs.difference(rows), own.label_smoothing)
        found = {
            "preference": Term(values=pairs.at_chosen(values, rows), over=pairs.counted(rows), aggregation="pair-mean")
        }
        return {**found, **chosen_nll(batch, policy, pairs.counted(rows), number(own.nll_coef))}

    return terms


def metrics(batch: Batch, frozen: Frozen, advantages: Advantages, policy: Policy, config: DPOConfig) -> dict[str, Sums]:
    """Of the implicit rewards beta log(p / ref), sums over the completion in every variant."""
    rewards = config.preference.beta * paired.log_ratio_of_sums(
        require(policy.log_probs, "log_probs"), require(frozen.ref_log_probs, "ref_log_probs (a reference)")
    )
    return paired.preference_metrics(paired.pairs_of(batch), rewards)


def cdpo_config() -> DPOConfig:
    return DPOConfig(preference=Preference(label_smoothing=0.1))


def dpo_norm_config() -> DPOConfig:
    return DPOConfig(preference=Preference(beta=5.0, average=True))


ALGORITHM = Algorithm(
    name="dpo",
    config=DPOConfig,
    needs=needs,
    advantages=no_advantages,
    terms=terms_with(smoothed),
    metrics=metrics,
    reports=("preference/accuracy", "preference/margin", "preference/probability"),
    summary="learn from pairs without sampling: the policy's log-ratio to the reference is its reward",
    formula="-log sigmoid(beta h);  h = log-ratio to the reference of the chosen less that of the rejected completion",
    source="arXiv:2305.18290",
)
CDPO = replace(
    ALGORITHM,
    name="cdpo",
    config=cdpo_config,
    summary="DPO that takes a share of the labels to be wrong",
    formula="-(1-e) log sigmoid(beta h) - e log sigmoid(-beta h)",
    source="Mitchell 2023",
)
ROBUST_DPO = replace(
    ALGORITHM,
    name="robust_dpo",
    config=cdpo_config,
    terms=terms_with(robust),
    summary="DPO that is unbiased when a share of the labels is wrong",
    formula="[-(1-e) log sigmoid(beta h) + e log sigmoid(-beta h)] / (1-2e)",
    source="arXiv:2403.00409",
)
HINGE = replace(
    ALGORITHM,
    name="hinge",
    terms=terms_with(hinge),
    summary="DPO with a hinge: a pair that is far enough apart teaches nothing more",
    formula="max(0, 1 - beta h)",
    source="arXiv:2305.10425",
)
DPO_NORM = replace(
    ALGORITHM,
    name="dpo_norm",
    config=dpo_norm_config,
    summary="DPO on mean log-ratios a token, so that length does not count",
    formula="-log sigmoid(beta (h_c / n_c - h_r / n_r))",
    source="arXiv:2411.15124",
)
