"""Prompts with other rows' completions, from which KTO tells how far the policy as a whole has left the reference."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from trimtab.ports import Models
from trimtab.train import batches
from trimtab.types import Batch, Need


def partners(batch: Batch) -> Tensor:
    """[n] int64: the row whose completion each row takes, -1 where every choice is a completion of its own prompt.

    A shift by one over the rows in the order of their ids, or the smallest shift by which no row meets its own prompt;
    so the choice depends on no order, micro-batch or rank. If no shift serves every row, the one by one is taken and
    the rows that it does not serve are left out.

    Args:
        batch: every row of the update.
    """
    count = len(batch)
    order = torch.argsort(batch.row_ids)
    prompts = batch.prompt_ids[order]
    shift = next((s for s in range(1, count) if not bool((prompts == prompts.roll(-s)).any())), 1)
    taken = order.roll(-shift)
    taken = torch.where(prompts == batch.prompt_ids[taken], -torch.ones_like(taken), taken)
    found = torch.empty_like(taken)
    found[order] = taken
    return found


def with_completions_of(batch: Batch, rows: Tensor, others: Tensor) -> Batch:
    """The prompts of `rows` [n] with the completions of `others` [n]."""
    width = int(batch.completion_lengths[others].max()) if len(others) else 0
    prompts, lengths = batch.prompt_lengths[rows], batch.completion_lengths[others]
    tokens = torch.zeros(len(rows), int((prompts + lengths).max()) if len(rows) else 0, dtype=torch.int64)
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    for place, (row, other) in enumerate(zip(rows.tolist(), others.tolist(), strict=True)):
        prompt, size = int(batch.prompt_lengths[row]), int(batch.completion_lengths[other])
        start = int(batch.prompt_lengths[other])
        tokens[place, :prompt] = batch.tokens[row, :prompt]
        tokens[place, prompt : prompt + size] = batch.tokens[other, start : start + size]
        mask[place, :size] = batch.loss_mask[other, :size]
    return replace(
        batch.rows(rows),
        tokens=tokens,
        completion_lengths=lengths,
        loss_mask=mask,
        token_rewards=None,
        rollout_log_probs=None,
        policy_versions=None,
    )


@torch.no_grad()
def log_ratios(models: Models, batch: Batch, mine: Tensor, budget: int) -> Tensor:
    """Log of policy over reference of this rank's rows with their partners' completions.

    Args:
        models: with a reference.
        batch: every row of the update, of all ranks.
        mine: [m] int64, this rank's rows of it.
        budget: tokens of a forward pass.
    Returns:
        [m] nats, summed over the completion; NaN for a row without a partner or whose partner has no counted token.
    """
    taken = partners(batch)[mine]
    has_one = taken >= 0
    found = torch.full((len(mine),), torch.nan)
    whole = with_completions_of(batch, mine[has_one], taken[has_one])
    values = torch.full((len(whole),), torch.nan)
    for index in batches.micro_batches(whole.lengths, budget):
        rows = batches.on(whole.rows(index), models.device)
        policy = models.forward(rows, Need.LABELS).log_probs
        reference = models.freeze(rows, Need.REFERENCE | Need.LABELS).ref_log_probs
        if policy is None or reference is None:
            continue
        sums = torch.where(rows.loss_mask.any(1), (policy - reference).sum(1), torch.nan)
        values[index] = sums.float().cpu()
    found[has_one] = values
    return found
