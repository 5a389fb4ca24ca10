"""What a step's batch looked like: figures over all rows of all ranks, for people and for the guard."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trimtab.algorithms.base import Shared, mismatch_weights
from trimtab.algorithms.credit import explained_variance
from trimtab.algorithms.math import effective_sample_size
from trimtab.types import Advantages, Batch, Frozen


def of_batch(batch: Batch, step: int) -> dict[str, float]:
    """Rewards, lengths, diversity and staleness of the whole batch."""
    if not len(batch):
        return {}
    found = _lengths(batch)
    if batch.policy_versions is not None:
        found["staleness"] = float(step - 1 - int(batch.policy_versions[batch.loss_mask].min())) if _any(batch) else 0.0
    if batch.rollout_log_probs is not None or bool(batch.is_scored.any()):
        found["reward/unscored"] = 1.0 - float(batch.is_scored.double().mean())
    if bool(batch.is_scored.any()):
        found |= _rewards(batch)
    if batch.rollout_log_probs is not None:
        found["rollout/distinct_share"] = _distinct_share(batch)
    return found


def _any(batch: Batch) -> bool:
    return bool(batch.loss_mask.any())


def _lengths(batch: Batch) -> dict[str, float]:
    lengths = batch.completion_lengths.double()
    return {
        "length/mean": float(lengths.mean()),
        "length/p50": float(lengths.quantile(0.5)),
        "length/p95": float(lengths.quantile(0.95)),
        "length/max": float(lengths.max()),
        "length/truncated": float(batch.is_truncated.double().mean()),
    }


def _rewards(batch: Batch) -> dict[str, float]:
    scored = batch.rewards[batch.is_scored].double()
    follows = _correlation(scored, batch.completion_lengths[batch.is_scored].double())
    return {
        **({} if follows is None else {"reward/length_correlation": follows}),
        "reward/mean": float(scored.mean()),
        "reward/std": float(scored.std(correction=1)) if len(scored) > 1 else 0.0,
        "reward/min": float(scored.min()),
        "reward/max": float(scored.max()),
        "reward/zero_spread_groups": _zero_spread_share(batch),
    }


def _correlation(a: Tensor, b: Tensor) -> float | None:
    """Pearson's, of [n] each; None where one of them does not vary."""
    a, b = a - a.mean(), b - b.mean()
    size = float((a.square().sum() * b.square().sum()).sqrt())
    return float((a * b).sum()) / size if size > 1e-12 else None


def _zero_spread_share(batch: Batch) -> float:
    rewards, groups = batch.rewards[batch.is_scored], batch.group_ids[batch.is_scored]
    _, place = torch.unique(groups, return_inverse=True)
    count = int(place.max()) + 1
    far = torch.full((count,), torch.inf, dtype=torch.float64)
    highest = (-far).scatter_reduce(0, place, rewards.double(), "amax")
    lowest = far.scatter_reduce(0, place, rewards.double(), "amin")
    return float((highest - lowest <= 1e-8 * highest.abs().clamp_min(1)).double().mean())


def _distinct_share(batch: Batch) -> float:
    seen: dict[int, set[tuple[int, ...]]] = {}
    sizes: dict[int, int] = {}
    rows = zip(
        batch.group_ids.tolist(),
        batch.tokens.tolist(),
        batch.prompt_lengths.tolist(),
        batch.lengths.tolist(),
        strict=True,
    )
    for group, tokens, start, end in rows:
        seen.setdefault(group, set()).add(tuple(tokens[start:end]))
        sizes[group] = sizes.get(group, 0) + 1
    return sum(len(seen[g]) / sizes[g] for g in seen) / len(seen)


def of_reward_parts(batch: Batch, labels: tuple[str, ...]) -> dict[str, float]:
    """Of each reward function the mean over the completions that it judged, and its mean spread inside groups."""
    found: dict[str, float] = {}
    if batch.reward_parts is None:
        return found
    for label, part in zip(labels, batch.reward_parts.T, strict=False):
        judged = part[~part.isnan()]
        if len(judged):
            found[f"reward/{label}"] = float(judged.double().mean())
            found[f"reward_spread/{label}"] = _spread_in_groups(judged.double(), batch.group_ids[~part.isnan()])
    return found


def _spread_in_groups(values: Tensor, groups: Tensor) -> float:
    """Mean over groups of the standard deviation inside each, divided by n."""
    _, place = torch.unique(groups, return_inverse=True)
    count = int(place.max()) + 1
    size = torch.zeros(count, dtype=torch.float64).index_add(0, place, torch.ones_like(values))
    mean = torch.zeros(count, dtype=torch.float64).index_add(0, place, values) / size
    variance = torch.zeros(count, dtype=torch.float64).index_add(0, place, (values - mean[place]) ** 2) / size
    return float(variance.sqrt().mean())


def of_frozen(batch: Batch, frozen: Frozen, advantages: Advantages) -> dict[str, float]:
    """The engine against the trainer, the critic against the returns, the spread of the advantages."""
    mask = batch.loss_mask
    found: dict[str, float] = {}
    scored = mask & batch.is_scored[:, None]
    if not bool(mask.any()):
        return found
    if frozen.old_log_probs is not None and batch.rollout_log_probs is not None:
        found["rollout/trainer_mismatch"] = float((frozen.old_log_probs - batch.rollout_log_probs)[mask].abs().mean())
    values = advantages.values[scored].double()
    if len(values):
        found["advantage/mean"] = float(values.mean())
        found["advantage/std"] = float(values.std(correction=0))
    if frozen.old_values is not None and advantages.returns is not None:
        explained = explained_variance(frozen.old_values, advantages.returns, scored)
        if explained is not None:
            found["explained_variance"] = explained
    return found


def of_mismatch(batch: Batch, frozen: Frozen, config: Any) -> dict[str, float]:
    """The weights that correct for the engine, if `mismatch` is on: how many rows' worth are left, how many are 0."""
    shared = getattr(config, "shared", None)
    if not isinstance(shared, Shared) or not bool(batch.loss_mask.any()):
        return {}
    weights = mismatch_weights(batch, frozen, shared)
    if weights is None:
        return {}
    found = {"mismatch/masked": float((weights[batch.loss_mask] == 0).double().mean())}
    size = effective_sample_size(weights, batch.loss_mask)
    return found if size is None else {**found, "ess": size}
