"""Rows become the tensors of a `Batch`. This is the only place that pads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from trimtab.data.judged import Labelled, Pair
from trimtab.data.prompts import Demonstration
from trimtab.types import Batch, Scored


def of_rollouts(scored: Sequence[Scored], *, weights: Sequence[float] = (), masks_truncated: bool = False) -> Batch:
    """The batch of sampled and scored completions, in their order; the completions of one draw are a group.

    Args:
        scored: rows; none on a rank whose share is empty.
        weights: of the reward functions, if the batch is to have them.
        masks_truncated: no token of a completion that the length limit cut counts in the loss.
    """
    rollouts = [s.rollout for s in scored]
    completions = [r.tokens for r in rollouts]
    has_token_rewards = any(s.token_rewards is not None for s in scored)
    mask = _mask([len(c) for c in completions])
    is_truncated = torch.tensor([r.is_truncated for r in rollouts], dtype=torch.bool)
    counted = mask & ~is_truncated[:, None] if masks_truncated else mask
    count = len(scored[0].parts) if scored else len(weights)
    parts = [[float("nan") if p is None else p for p in s.parts] for s in scored]
    versions = torch.tensor([r.policy_version for r in rollouts], dtype=torch.int64)
    return Batch(
        tokens=_padded([r.prompt.tokens + r.tokens for r in rollouts]),
        prompt_lengths=torch.tensor([len(r.prompt.tokens) for r in rollouts], dtype=torch.int64),
        completion_lengths=torch.tensor([len(c) for c in completions], dtype=torch.int64),
        loss_mask=counted,
        group_ids=torch.tensor([r.draw for r in rollouts], dtype=torch.int64),
        row_ids=torch.tensor([(r.draw << 16) + r.index for r in rollouts], dtype=torch.int64),
        prompt_ids=torch.tensor([r.prompt.id for r in rollouts], dtype=torch.int64),
        rewards=torch.tensor([s.reward for s in scored], dtype=torch.float64),
        reward_parts=torch.tensor(parts, dtype=torch.float64).reshape(len(scored), count),
        reward_weights=torch.tensor(weights, dtype=torch.float64).repeat(len(scored), 1) if weights else None,
        token_rewards=_padded_floats([s.token_rewards or () for s in scored], mask) if has_token_rewards else None,
        is_scored=torch.tensor([s.is_scored for s in scored], dtype=torch.bool),
        is_truncated=is_truncated,
        rollout_log_probs=_padded_floats([r.log_probs for r in rollouts], mask),
        policy_versions=versions[:, None].expand(mask.shape).clone(),
    )


def of_demonstrations(rows: Sequence[Demonstration], draws: Sequence[int]) -> Batch:
    """The batch of completions to imitate; each row is a group of its own, named by its place in the run.

    Between the answers of a conversation the mask has holes: the turns of others are read, not imitated.
    """
    count = len(rows)
    return Batch(
        tokens=_padded([r.prompt.tokens + r.completion for r in rows]),
        prompt_lengths=torch.tensor([len(r.prompt.tokens) for r in rows], dtype=torch.int64),
        completion_lengths=torch.tensor([len(r.completion) for r in rows], dtype=torch.int64),
        loss_mask=_padded([r.mask or [True] * len(r.completion) for r in rows]).bool(),
        group_ids=torch.tensor(draws, dtype=torch.int64),
        row_ids=torch.tensor(draws, dtype=torch.int64),
        prompt_ids=torch.tensor([r.prompt.id for r in rows], dtype=torch.int64),
        rewards=torch.zeros(count),
        is_scored=torch.zeros(count, dtype=torch.bool),
        is_truncated=torch.zeros(count, dtype=torch.bool),
    )


def of_pairs(pairs: Sequence[Pair], draws: Sequence[int]) -> Batch:
    """The batch of pairs: each pair's chosen row, then its rejected one; a pair is a group, named by its place in the run.

    `margins` are there if any of the pairs has one; a pair without is then 0.
    """
    rows = [side for pair in pairs for side in (pair.chosen, pair.rejected)]
    twice = torch.tensor(draws, dtype=torch.int64).repeat_interleave(2)
    side = torch.arange(len(rows), dtype=torch.int64) % 2
    margins = [pair.margin or 0.0 for pair in pairs]
    has_margins = any(pair.margin is not None for pair in pairs)
    return replace(
        of_demonstrations(rows, twice.tolist()),
        row_ids=(twice << 16) + side,
        pair_ids=twice,
        is_chosen=side == 0,
        margins=torch.tensor(margins, dtype=torch.float64).repeat_interleave(2) if has_margins else None,
    )


def of_labelled(rows: Sequence[Labelled], draws: Sequence[int]) -> Batch:
    """The batch of completions that were judged one by one; `is_chosen` are the desirable ones."""
    return replace(
        of_demonstrations([row.row for row in rows], draws),
        row_ids=torch.tensor(draws, dtype=torch.int64) << 16,
        is_chosen=torch.tensor([row.is_desirable for row in rows], dtype=torch.bool),
    )


def _padded(rows: Sequence[Sequence[int]]) -> Tensor:
    width = max((len(r) for r in rows), default=0)
    return torch.tensor([[*r, *([0] * (width - len(r)))] for r in rows], dtype=torch.int64).reshape(len(rows), width)


def _mask(lengths: Sequence[int]) -> Tensor:
    width = max(lengths, default=0)
    return torch.arange(width)[None, :] < torch.tensor(lengths, dtype=torch.int64)[:, None]


def _padded_floats(rows: Sequence[Sequence[float]], mask: Tensor) -> Tensor:
    found = torch.zeros(mask.shape)
    for place, row in enumerate(rows):
        found[place, : len(row)] = torch.tensor(row, dtype=torch.float32)
    return found
