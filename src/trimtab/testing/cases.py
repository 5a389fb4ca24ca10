"""Batches that are hard on purpose: ragged, with holes, empty and one-token completions, groups of unequal size."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from trimtab.algorithms.base import Algorithm
from trimtab.train import update
from trimtab.types import Advantages, Batch, Frozen, Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One update's rows and what a model would say of them; the leaves of `policy` collect gradients."""

    batch: Batch
    frozen: Frozen
    policy: Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    loss: float
    terms: dict[str, float]
    gradients: dict[str, Tensor]
    """[B, T] by the policy's field, for the rows in their order."""


def make(seed: int = 0, *, dtype: torch.dtype = torch.float32, width: int = 7, ratio_one: bool = False) -> Case:
    """Eight rows of four prompts: groups of 3, 2, 2 and 1, one empty completion, one of one token, two with holes.

    Args:
        seed: of every number.
        dtype: of rewards, log-probs, values.
        width: the longest completion, at least 4.
        ratio_one: the policy is as it was when it sampled.
    """
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64).to(dtype) * scale

    groups = torch.tensor([3, 3, 3, 5, 5, 8, 8, 9])
    rows = len(groups)
    lengths = torch.randint(2, width + 1, (rows,), generator=random)
    lengths[1], lengths[4], lengths[0] = 0, 1, width
    mask = torch.arange(width)[None, :] < lengths[:, None]
    mask[0, 2] = mask[2, 0] = False
    prompts = torch.randint(1, 5, (rows,), generator=random)
    old = -normal(rows, width).abs() - 0.05
    batch = Batch(
        tokens=torch.randint(3, 90, (rows, 5 + width), generator=random),
        prompt_lengths=prompts,
        completion_lengths=lengths,
        loss_mask=mask,
        group_ids=groups,
        row_ids=torch.arange(rows) + 100,
        prompt_ids=groups + 40,
        rewards=normal(rows),
        is_scored=torch.ones(rows, dtype=torch.bool),
        is_truncated=torch.tensor([False, False, True, False, False, True, False, False]),
        rollout_log_probs=old + normal(rows, width, scale=0.01),
        policy_versions=torch.zeros(rows, width, dtype=torch.int64),
    )
    frozen = Frozen(
        loss_mask=mask,
        old_log_probs=old,
        ref_log_probs=old + normal(rows, width, scale=0.3),
        old_values=normal(rows, width),
        bootstrap_values=torch.where(batch.is_truncated, normal(rows), torch.zeros((), dtype=dtype)),
    )
    moved = old if ratio_one else (old + normal(rows, width, scale=0.3)).clamp(max=-1e-3)
    policy = Policy(
        loss_mask=mask,
        log_probs=moved.clone(),
        entropy=normal(rows, width).abs(),
        values=normal(rows, width),
        scores=normal(rows),
    )
    return Case(batch=_with_two_rewards(batch, normal(rows)), frozen=frozen, policy=policy)


def _with_two_rewards(batch: Batch, second: Tensor) -> Batch:
    """The rewards as a sum of two weighted parts."""
    second = second.double()
    first = batch.rewards.double() - 0.5 * second
    weights = torch.tensor([1.0, 0.5], dtype=torch.float64)
    return replace(
        batch, reward_parts=torch.stack([first, second], dim=1), reward_weights=weights.expand(len(batch), 2).clone()
    )


def evaluate(
    algorithm: Algorithm, config: Any, case: Case, cuts: list[list[int]] | None = None, *, needs_only: bool = False
) -> Result:
    """The loss and its gradient over the case's rows, cut into micro-batches.

    Args:
        algorithm, config: what is examined.
        case: the update.
        cuts: row numbers of each micro-batch; None is one with all rows.
        needs_only: withhold every part that the algorithm has not declared in `needs`.
    """
    batch, frozen, policy = case.batch, case.frozen, case.policy
    if needs_only:
        frozen, policy = only_needed(algorithm, config, case)
    leaves = {
        name: value.detach().clone().requires_grad_(True)
        for name in ("log_probs", "entropy", "values", "scores")
        if (value := getattr(policy, name)) is not None
    }
    advantages = algorithm.advantages(batch, frozen, config)
    whole = Policy(loss_mask=batch.loss_mask, **{n: leaf.detach() for n, leaf in leaves.items()})
    frozen = update.with_statistics(algorithm, config, batch, frozen, advantages, whole)
    weights = update.weigh(algorithm, config, batch, frozen, advantages)
    loss, terms = 0.0, dict.fromkeys(weights, 0.0)
    for cut in cuts if cuts is not None else [list(range(len(batch)))]:
        index = torch.tensor(cut, dtype=torch.int64)
        rows = batch.rows(index)
        width = rows.loss_mask.shape[1]
        given = {n: leaf[index, :width] if leaf.ndim == 2 else leaf[index] for n, leaf in leaves.items()}
        total, parts, _ = update.loss_of(
            algorithm,
            config,
            rows,
            frozen.rows(index, width),
            advantages.rows(index, width),
            Policy(loss_mask=rows.loss_mask, **given),
            {name: w[index] for name, w in weights.items()},
        )
        if total.requires_grad:
            total.backward()
        loss += float(total.detach())
        for name, part in parts.items():
            terms[name] += float(part.detach())
    gradients = {n: leaf.grad if leaf.grad is not None else torch.zeros_like(leaf) for n, leaf in leaves.items()}
    return Result(loss=loss, terms=terms, gradients=gradients)


def only_needed(algorithm: Algorithm, config: Any, case: Case) -> tuple[Frozen, Policy]:
    """The case with nothing that the algorithm has not asked for."""
    from trimtab.types import Need

    need = algorithm.needs(config)
    frozen, policy = case.frozen, case.policy
    frozen = replace(
        frozen,
        old_log_probs=frozen.old_log_probs if Need.OLD_LOG_PROBS in need else None,
        ref_log_probs=frozen.ref_log_probs if Need.REFERENCE in need else None,
        old_values=frozen.old_values if Need.VALUES in need else None,
        bootstrap_values=frozen.bootstrap_values if Need.VALUES in need else None,
    )
    policy = replace(policy, values=policy.values if Need.VALUES in need else None, scores=None)
    return frozen, policy


def reordered(case: Case, order: list[int]) -> Case:
    """The same rows in another order."""
    index, width = torch.tensor(order), case.batch.loss_mask.shape[1]
    policy = case.policy
    picked = {n: getattr(policy, n)[index] for n in ("log_probs", "entropy", "values", "scores")}
    mask = case.batch.loss_mask[index]
    return Case(
        batch=replace(case.batch, **{n: v[index] for n, v in _tensors(case.batch)}),
        frozen=case.frozen.rows(index, width),
        policy=Policy(loss_mask=mask, **picked),
    )


def padded(case: Case, by: int, junk: float = float("nan")) -> Case:
    """The same rows with more padding behind them, and junk in every masked place."""
    mask = torch.nn.functional.pad(case.batch.loss_mask, (0, by))

    def wide(value: Tensor) -> Tensor:
        more = torch.nn.functional.pad(value, (0, by), value=0)
        return torch.where(mask, more, torch.full((), junk).to(more.dtype)) if more.is_floating_point() else more

    fields = {n: wide(v) for n, v in _tensors(case.batch) if v.shape == case.batch.loss_mask.shape and n != "loss_mask"}
    frozen = {
        n: wide(v)
        for n in ("old_log_probs", "ref_log_probs", "old_values")
        if (v := getattr(case.frozen, n)) is not None
    }
    policy = {n: wide(getattr(case.policy, n)) for n in ("log_probs", "entropy", "values")}
    return Case(
        batch=replace(case.batch, loss_mask=mask, **fields),
        frozen=replace(case.frozen, loss_mask=mask, **frozen),
        policy=replace(case.policy, loss_mask=mask, **policy),
    )


def equal_rewards(case: Case, reward: float = 0.1) -> Case:
    """The same rows, every reward the same."""
    rewards = torch.full_like(case.batch.rewards, reward)
    return replace(case, batch=_with_two_rewards(replace(case.batch, rewards=rewards), torch.zeros_like(rewards)))


def advantages_of(algorithm: Algorithm, config: Any, case: Case) -> Advantages:
    return algorithm.advantages(case.batch, case.frozen, config)


def _tensors(record: Any) -> list[tuple[str, Tensor]]:
    from dataclasses import fields

    return [(f.name, v) for f in fields(record) if (v := getattr(record, f.name)) is not None]
