"""The loss of one update, cut into pieces that add up to it.

`weigh` looks at the whole update once and says what a counted token of each row weighs; `loss_of` is then the share of
any rows. The shares of any cut into micro-batches and ranks sum to the same loss and gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trimtab.algorithms.base import Algorithm
from trimtab.algorithms.math import row_weights
from trimtab.errors import TrimtabError
from trimtab.kernels import sampling
from trimtab.types import Advantages, Batch, Frozen, Policy, Term


def with_statistics(
    algorithm: Algorithm,
    config: Any,
    batch: Batch,
    frozen: Frozen,
    advantages: Advantages,
    policy: Policy,
    *,
    seed: int = 0,
    step: int = 0,
) -> Frozen:
    """`frozen` with what the algorithm computes over the whole update; as it is if there is nothing of the kind.

    Args:
        batch, frozen, advantages, policy: every row of the update, of all ranks.
        seed, step: of the numbers in [0, 1) that random choices are made by, one for each (row id, position).
    """
    if algorithm.statistics is None:
        return frozen
    width = batch.loss_mask.shape[1]
    key = torch.full_like(batch.row_ids, sampling.key(seed, step, "statistics"))
    noise = sampling.uniform(
        sampling.mix(key, batch.row_ids)[:, None].expand(-1, width), torch.arange(width, device=key.device)
    )
    with torch.no_grad():
        return algorithm.statistics(batch, frozen, advantages, policy, config, noise)


def weigh(algorithm: Algorithm, config: Any, batch: Batch, frozen: Frozen, advantages: Advantages) -> dict[str, Tensor]:
    """What one counted token of each row of the update weighs, by term.

    The masks that count come from the terms themselves, called on the whole update with a policy of zeros: a mask may
    depend on the batch, not on the policy.

    Args:
        batch, frozen, advantages: every row of the update, of all ranks.
    Returns:
        [B] float64 a term; all 0 where no token counts.
    """
    empty = torch.zeros(batch.loss_mask.shape)
    nothing = Policy(
        loss_mask=batch.loss_mask, log_probs=empty, entropy=empty, values=empty, scores=torch.zeros(len(batch))
    )
    found: dict[str, Tensor] = {}
    with torch.no_grad():
        for name, term in algorithm.terms(batch, frozen, advantages, nothing, config).items():
            mask = _counted(term, batch)
            found[name] = row_weights(
                mask if mask.ndim == 2 else mask[:, None],
                term.aggregation,
                group_ids=batch.group_ids,
                norm_length=term.norm_length,
                count_dead_rows=term.count_dead_rows,
            )
    return found


def loss_of(
    algorithm: Algorithm,
    config: Any,
    batch: Batch,
    frozen: Frozen,
    advantages: Advantages,
    policy: Policy,
    weights: Mapping[str, Tensor],
) -> tuple[Tensor, dict[str, Tensor], dict[str, float]]:
    """These rows' share of the loss.

    Args:
        batch, frozen, advantages, policy: some rows of the update.
        weights: of `weigh`, the same rows; a term without weights is left out.
    Returns:
        The weighted total [], each term before its coefficient [], and the coefficients.
    """
    total = torch.zeros((), device=batch.loss_mask.device)
    parts: dict[str, Tensor] = {}
    coefficients: dict[str, float] = {}
    for name, term in algorithm.terms(batch, frozen, advantages, policy, config).items():
        if name not in weights:
            continue
        parts[name] = _weighted_sum(name, term, batch, weights[name])
        coefficients[name] = term.coefficient
        total = total + term.coefficient * parts[name]
    return total, parts, coefficients


def _counted(term: Term, batch: Batch) -> Tensor:
    """[B, T] or [B] bool: which values of a term count."""
    if term.over is not None:
        return term.over
    if term.values.ndim == 2:
        return batch.loss_mask
    return torch.ones(len(batch), dtype=torch.bool, device=term.values.device)


def _weighted_sum(name: str, term: Term, batch: Batch, weights: Tensor) -> Tensor:
    """[]: these rows' share of the term."""
    mask = _counted(term, batch)
    if term.values.shape != mask.shape:
        shapes = f"{tuple(term.values.shape)}, its mask {tuple(mask.shape)}"
        raise TrimtabError(f"term `{name}`: its values have shape {shapes}")
    scale = weights.to(device=term.values.device, dtype=term.values.dtype)
    scale = scale[:, None] if mask.ndim == 2 else scale
    return (torch.where(mask, term.values, term.values.new_zeros(())) * scale).sum()
