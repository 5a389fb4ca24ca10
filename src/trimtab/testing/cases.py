"""Batches that are hard on purpose: ragged, with holes, empty and one-token completions, groups of unequal size."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from trimtab.algorithms.base import Algorithm
from trimtab.train import update
from trimtab.types import Advantages, Batch, Frozen, Need, Policy


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


def make(
    seed: int = 0,
    *,
    dtype: torch.dtype = torch.float32,
    width: int = 7,
    ratio_one: bool = False,
    need: Need = Need.ROLLOUTS,
) -> Case:
    """Eight rows of four prompts: groups of 3, 2, 2 and 1, one empty completion, one of one token, two with holes.

    Args:
        seed: of every number.
        dtype: of rewards, log-probs, values.
        width: the longest completion, at least 4.
        ratio_one: the policy is as it was when it sampled.
        need: with `PAIRS` the rows are four pairs instead, one of them with an empty side; with `LABELS` eight prompts.
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
    batch = _with_two_rewards(batch, normal(rows))
    if need & Need.PAIRS:
        batch = _in_pairs(batch, normal(rows // 2))
    elif need & Need.LABELS:
        labels = torch.tensor([True, False, True, True, False, False, True, False])
        batch = replace(_read(batch, torch.arange(rows) + 3), is_chosen=labels)
    if need & Need.MISMATCHED:
        ratios = normal(rows)
        ratios[3] = torch.nan
        frozen = replace(frozen, mismatched_log_ratios=ratios)
    return Case(batch=batch, frozen=frozen, policy=policy)


def _read(batch: Batch, groups: Tensor) -> Batch:
    """The rows as a source that reads would give them."""
    nothing = torch.zeros(len(batch), dtype=torch.bool)
    return replace(
        batch,
        group_ids=groups,
        prompt_ids=groups + 40,
        rewards=torch.zeros_like(batch.rewards),
        is_scored=nothing,
        is_truncated=nothing,
        reward_parts=None,
        reward_weights=None,
        rollout_log_probs=None,
        policy_versions=None,
    )


def _in_pairs(batch: Batch, margins: Tensor) -> Batch:
    """Neighbours are pairs, in two of them the rejected row comes first; their ids do not rise."""
    ids = torch.tensor([8, 8, 3, 3, 9, 9, 5, 5])
    is_chosen = torch.tensor([True, False, False, True, True, False, False, True])
    wider = margins.abs().double().repeat_interleave(2)
    return replace(_read(batch, ids), pair_ids=ids, is_chosen=is_chosen, margins=wider)


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
    need = algorithm.needs(config)
    frozen, policy = case.frozen, case.policy
    frozen = replace(
        frozen,
        old_log_probs=frozen.old_log_probs if Need.OLD_LOG_PROBS in need else None,
        ref_log_probs=frozen.ref_log_probs if Need.REFERENCE in need else None,
        old_values=frozen.old_values if Need.VALUES in need else None,
        bootstrap_values=frozen.bootstrap_values if Need.VALUES in need else None,
        mismatched_log_ratios=frozen.mismatched_log_ratios if Need.MISMATCHED in need else None,
    )
    scores = Need.SCORES in need
    policy = replace(
        policy,
        log_probs=None if scores else policy.log_probs,
        entropy=None if scores else policy.entropy,
        values=policy.values if Need.VALUES in need else None,
        scores=policy.scores if scores else None,
    )
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
