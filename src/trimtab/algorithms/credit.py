"""From rewards to advantages: where a reward stands, returns, GAE, group baselines, whitening.

Computed once a step over the whole batch, without gradient. Fields are those that `Batch` and `Frozen` have
neutralised (0 where masked).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trimtab.algorithms.math import masked_mean
from trimtab.types import torch

if TYPE_CHECKING:
    from torch import Tensor


def last_token(mask: Tensor) -> Tensor:
    """[B, T] bool, True at the last counted token of each row and nowhere in an empty one."""
    after = mask.flip(1).cumsum(1).flip(1)
    return mask & (after == 1)


def terminal_rewards(rewards: Tensor, mask: Tensor, token_rewards: Tensor | None = None) -> Tensor:
    """[B, T]: each row's reward at its last counted token, beside the rewards that arose at tokens."""
    placed = torch.where(last_token(mask), rewards[:, None], rewards.new_zeros(()))
    return placed if token_rewards is None else placed + token_rewards


def discounted_returns(token_rewards: Tensor, loss_mask: Tensor, gamma: float = 1.0) -> Tensor:
    """Reward from each token to the end, [B, T] reward units; masked tokens are transparent.

    Args:
        token_rewards: [B, T], reward units.
        loss_mask: [B, T] bool.
        gamma: discount per counted token.

    >>> discounted_returns(torch.tensor([[1.0, 9.0, 4.0]]), torch.tensor([[True, False, True]]), 0.5)
    tensor([[3., 0., 4.]])
    """
    nothing = torch.zeros_like(token_rewards)
    return gae(token_rewards, nothing, loss_mask, gamma=gamma, lam=1.0)[0]


def overlong_penalty(
    lengths: Tensor, max_length: Tensor | float, buffer: Tensor | float, factor: float = 1.0
) -> Tensor:
    """What a completion loses for its length: nothing up to `max_length - buffer`, then linearly to `-factor`.

    Args:
        lengths: [B] tokens.
        max_length: tokens, the room for a completion.
        buffer: tokens, above 0.
        factor: reward units, the largest loss.
    Returns:
        [B] reward units, from -factor to 0.
    Source: DAPO arXiv:2503.14476, eq. 13; capped at `-factor`.

    >>> overlong_penalty(torch.tensor([2.0, 7.0, 12.0]), 10.0, 6.0)
    tensor([ 0.0000, -0.5000, -1.0000])
    """
    return 0.0 - factor * ((lengths - (max_length - buffer)) / buffer).clamp(0.0, 1.0)


def groups_with_spread(rewards: Tensor, group_ids: Tensor, *, tolerance: float = 1e-8) -> Tensor:
    """[B] bool, True in groups whose rewards are not all equal.

    Args:
        rewards: [B].
        group_ids: [B] int64.
        tolerance: relative to max(1, largest |reward| of the group); float noise is no spread.

    >>> groups_with_spread(torch.tensor([0.1, 0.1, 0.0, 1.0]), torch.tensor([0, 0, 1, 1]))
    tensor([False, False,  True,  True])
    """
    work = rewards.double()
    if not len(work):
        return torch.zeros(0, dtype=torch.bool)
    _, place = torch.unique(group_ids, return_inverse=True)
    far = work.new_full((int(place.max()) + 1,), torch.inf)
    highest, lowest = (-far).scatter_reduce(0, place, work, "amax"), far.scatter_reduce(0, place, work, "amin")
    size = torch.maximum(highest.abs(), lowest.abs()).clamp_min(1)
    return (highest - lowest > tolerance * size)[place]


def gae(
    token_rewards: Tensor,
    values: Tensor,
    loss_mask: Tensor,
    *,
    gamma: float,
    lam: float,
    bootstrap_values: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimates along each sequence, and the critic's targets.

    Args:
        token_rewards: [B, T], reward units; usually 0 but at the last token.
        values: [B, T], reward units, the estimate before the token.
        loss_mask: [B, T] bool, True on completion tokens. Masked tokens are transparent: no reward, no decay.
        gamma: discount per token, in (0, 1].
        lam: 0 trusts the values, 1 the rewards.
        bootstrap_values: [B], the estimate after the last token; None is 0.
    Returns:
        Advantages and returns, [B, T], reward units, no gradient, 0 where `loss_mask` is False.
    Source: Schulman et al. 2016, arXiv:1506.02438, eq. 16.

    >>> on = torch.tensor([[True, True]])
    >>> gae(torch.tensor([[0.0, 1.0]]), torch.tensor([[0.5, 0.5]]), on, gamma=1.0, lam=1.0)[0]
    tensor([[0.5000, 0.5000]])
    """
    advantages = torch.zeros_like(values)
    next_value = values.new_zeros(values.shape[0]) if bootstrap_values is None else bootstrap_values.to(values.dtype)
    running = values.new_zeros(values.shape[0])
    for t in range(values.shape[1] - 1, -1, -1):
        on = loss_mask[:, t]
        delta = token_rewards[:, t] + gamma * next_value - values[:, t]
        running = torch.where(on, delta + gamma * lam * running, running)
        next_value = torch.where(on, values[:, t], next_value)
        advantages[:, t] = torch.where(on, running, values.new_zeros(()))
    returns = torch.where(loss_mask, advantages + values, values.new_zeros(()))
    return advantages.detach(), returns.detach()


def group_advantages(
    rewards: Tensor,
    group_ids: Tensor,
    *,
    baseline: str = "mean",
    scale_by: str = "group",
    ddof: int = 1,
    singleton: str = "zero",
    epsilon: float = 1e-6,
    tolerance: float = 1e-8,
    is_scored: Tensor | None = None,
) -> Tensor:
    """How much better each completion did than the others of its prompt.

    Args:
        rewards: [B], any numeric dtype; computed in float64, where equal float32 numbers have exactly their mean.
        group_ids: [B] int64; groups may have any sizes and any order.
        baseline: `mean` of the group, `loo` the mean of the others, or `none`.
        scale_by: `group` divides by the group's standard deviation, `batch` by that of all rewards, `none` by nothing.
        ddof: 1 divides the variance by n - 1, 0 by n.
        singleton: a group with one scored completion gets 0 (`zero`) or its reward (`raw`).
        epsilon: added to the standard deviation.
        tolerance: a group whose deviation is at most this times max(1, |mean|) has no spread and gets exactly 0.
        is_scored: [B] bool; rows without a reward are left out of every statistic and get 0.
    Returns:
        [B] float32, or float64 if the rewards are; no gradient.
    Raises:
        ValueError: a mode is unknown.
    Source: GRPO arXiv:2402.03300 section 4.1.2; RLOO arXiv:2402.14740 eq. 6; Dr. GRPO arXiv:2503.20783.

    >>> group_advantages(torch.tensor([1.0, 0.0, 3.0]), torch.tensor([0, 0, 1]), scale_by="none")
    tensor([ 0.5000, -0.5000,  0.0000])
    """
    if baseline not in ("mean", "loo", "none") or scale_by not in ("group", "batch", "none"):
        raise ValueError(f"baseline {baseline!r}, scale_by {scale_by!r}")
    dtype = torch.float64 if rewards.dtype == torch.float64 else torch.float32
    on = torch.ones_like(rewards, dtype=torch.bool) if is_scored is None else is_scored
    work = torch.where(on, rewards.double(), 0.0)
    if not len(work):
        return work.to(dtype)
    _, place = torch.unique(group_ids, return_inverse=True)
    sums = work.new_zeros(int(place.max()) + 1)
    count = sums.index_add(0, place, on.to(work.dtype))[place]
    mean = sums.index_add(0, place, work)[place] / count.clamp_min(1)
    centred = torch.where(on, work - mean, work.new_zeros(()))
    variance = sums.index_add(0, place, centred * centred)[place] / (count - ddof).clamp_min(1)
    deviation = torch.where(count > ddof, variance, work.new_zeros(())).sqrt()
    is_flat = deviation <= tolerance * mean.abs().clamp_min(1)  # False for NaN, which must not pass as "no spread"
    centred = torch.where(is_flat & (count > ddof), work.new_zeros(()), centred)

    if baseline == "mean":
        advantages = centred
    elif baseline == "loo":
        advantages = centred * count / (count - 1).clamp_min(1)
    else:
        advantages = work
    if scale_by == "group":
        advantages = torch.where(is_flat, work.new_zeros(()), advantages / (deviation + epsilon))
    elif scale_by == "batch":
        scored = work[on]
        spread = scored.std(correction=ddof) if len(scored) > ddof else work.new_zeros(())
        advantages = advantages / (spread + epsilon)
    if baseline != "none":
        alone = work if singleton == "raw" else work.new_zeros(())
        advantages = torch.where(count == 1, alone, advantages)
    return torch.where(on, advantages, work.new_zeros(())).detach().to(dtype)


def combined_group_advantages(
    rewards: Tensor,
    parts: Tensor,
    weights: Tensor,
    group_ids: Tensor,
    *,
    is_scored: Tensor,
    epsilon: float = 1e-6,
    **settings: Any,
) -> Tensor:
    """Group advantages of each reward by itself, weighted, summed, and scaled by the batch's standard deviation.

    So a reward with a small spread counts as much as one with a large one. What `rewards` holds beside the weighted
    parts (a length penalty, a KL) is one more part. Nothing is subtracted after the sum: it is centred in every group.

    Args:
        rewards: [B], the sum that is to be taken apart.
        parts: [B, R], NaN where a reward function gave no value; such a row is left out of that part's statistics.
        weights: [B, R].
        group_ids: [B] int64.
        is_scored: [B] bool.
        epsilon: added to the standard deviation.
        settings: of `group_advantages`.
    Returns:
        [B] as `group_advantages`.
    Source: GDPO, arXiv:2601.05242, eq. 4 to 6.
    """
    judged = ~parts.isnan()
    known = torch.where(judged, parts, parts.new_zeros(()))
    rest = rewards - (known * weights).sum(1)
    total = group_advantages(rest, group_ids, is_scored=is_scored, tolerance=1e-6, **settings).double()
    for place in range(parts.shape[1]):
        on = judged[:, place] & is_scored
        own = group_advantages(known[:, place], group_ids, is_scored=on, **settings)
        total = total + weights[:, place] * own.double()
    scored = total[is_scored]
    spread = scored.std(correction=1) if len(scored) > 1 else scored.new_zeros(())
    found = torch.where(is_scored, total / (spread + epsilon), total.new_zeros(()))
    return found.to(torch.float64 if rewards.dtype == torch.float64 else torch.float32)


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> float | None:
    """1 - Var(returns - values) / Var(returns) over counted tokens, population variances; None if returns are constant.

    >>> on = torch.tensor([[True, True]])
    >>> explained_variance(torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 3.0]]), on)
    0.0
    """
    if not bool(mask.any()):
        return None
    wanted, missed = returns[mask].double(), (returns - values)[mask].double()
    spread = float(wanted.var(correction=0))
    return None if spread <= 1e-12 else 1.0 - float(missed.var(correction=0)) / spread


def whiten(values: Tensor, mask: Tensor, *, ddof: int = 1, epsilon: float = 1e-8, shift_mean: bool = True) -> Tensor:
    """(x - mean) / sqrt(var + epsilon) over the True places of the whole batch.

    Args:
        values: [B, T].
        mask: [B, T] bool.
        ddof: 1 divides the variance by n - 1, 0 by n.
        epsilon: inside the root.
        shift_mean: False keeps the mean.
    Returns:
        [B, T], 0 where `mask` is False; a lone or constant value gives 0.
    Source: as in verl and TRL; the variance is that of the batch, not of a rank.

    >>> whiten(torch.tensor([[1.0, 3.0]]), torch.tensor([[True, True]]), ddof=0)
    tensor([[-1.,  1.]])
    """
    work, n = values.double(), mask.sum()
    mean = masked_mean(work, mask)
    centred = torch.where(mask, work - mean, work.new_zeros(()))
    if bool(mask.any()) and work[mask].max() == work[mask].min():
        centred = torch.zeros_like(centred)
    variance = (centred * centred).sum() / (n - ddof).clamp_min(1) if n > ddof else work.new_zeros(())
    scaled = centred / torch.sqrt(variance + epsilon)
    found = scaled if shift_mean else torch.where(mask, scaled + mean, work.new_zeros(()))
    return found.to(values.dtype)
