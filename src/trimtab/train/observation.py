"""What a step's passes show of the policy, as figures: sums over tokens that become means over the step."""

from __future__ import annotations

import torch
from torch import Tensor

from trimtab.algorithms.base import Kl
from trimtab.algorithms.math import kl_estimate
from trimtab.train.step import Step
from trimtab.train.tally import Tally
from trimtab.types import Advantages, Batch, Frozen, Policy


@torch.no_grad()
def observe(batch: Batch, frozen: Frozen, advantages: Advantages, policy: Policy, step: Step, tally: Tally) -> None:
    """Add to a tally what one forward pass with gradient shows.

    Args:
        batch, frozen, advantages, policy: the rows of the pass.
        step: that they are of.
    """
    mask, config = batch.loss_mask, step.config
    count = float(mask.sum())
    if policy.entropy is not None and not step.objective.prefix:
        tally.add("entropy", float(policy.entropy.sum()), count)
    if policy.log_probs is not None and frozen.old_log_probs is not None and count:
        if step.algorithm.ratio is not None:
            ratio = step.algorithm.ratio(batch, frozen, policy, config)[mask]
        else:
            ratio = torch.exp((policy.log_probs - frozen.old_log_probs).clamp(-20, 20))[mask]
        tally.add("ratio/mean", float(ratio.sum()), count)
        tally.most("ratio/max", float(ratio.max()))
        tally.least("ratio/min", float(ratio.min()))
    is_sampled = batch.rollout_log_probs is not None  # of rows that are read, k3 says nothing of the policy
    if is_sampled and policy.log_probs is not None and frozen.ref_log_probs is not None:
        k3 = kl_estimate(policy.log_probs, frozen.ref_log_probs, "k3")
        tally.add("kl/reference", float(k3[mask].sum()), count)
        _observe_controlled_kl(step.kl, policy.log_probs, frozen, mask, tally)
    if step.algorithm.metrics is not None:
        for name, sums in step.algorithm.metrics(batch, frozen, advantages, policy, config).items():
            tally.add(name, float(sums.total), float(sums.count))


def _observe_controlled_kl(kl: Kl | None, log_probs: Tensor, frozen: Frozen, mask: Tensor, tally: Tally) -> None:
    """What a controller steers by: the KL to the reference, of the policy in the loss or of the old one in the reward."""
    if kl is None or kl.controller == "fixed" or kl.target == "old_policy" or frozen.ref_log_probs is None:
        return
    policy, estimator = log_probs, "k3"
    if kl.where == "reward" and frozen.old_log_probs is not None:
        policy, estimator = frozen.old_log_probs, "k1"
    estimator = estimator if kl.estimator == "auto" else kl.estimator
    total = kl_estimate(policy, frozen.ref_log_probs, estimator)[mask].double().sum()
    count = mask.sum() if kl.unit == "token" else mask.any(1).sum()
    tally.add("kl/controlled", float(total), float(count))
