"""Arithmetic that algorithms share: aggregation, ratios, KL estimators, advantages.

Every function takes fields that `Batch`, `Frozen` and `Policy` have neutralised (0 where masked) and works in the
dtype it is given, at least float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trimtab.types import Sums, torch

if TYPE_CHECKING:
    from torch import Tensor

AGGREGATIONS = (
    "token-mean",
    "seq-mean-token-mean",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
    "prompt-mean",
    "token-sum",
)


# ---------------------------------------------------------------------------------------------------- aggregation
def row_weights(
    mask: Tensor, aggregation: str, *, group_ids: Tensor | None = None, norm_length: int | None = None
) -> Tensor:
    """What one counted token of each row weighs in the loss.

    The loss is `(row_weights[:, None] * values)[mask].sum()`. The weights come from the mask of the *whole update*, so
    rows may then be cut into micro-batches and ranks at will: their sums add up to the same loss and gradient.

    Args:
        mask: [B, T] bool over every row of the update, True where a token counts. Rows without one weigh nothing and
            are not counted.
        aggregation: one of `AGGREGATIONS`.
        group_ids: [B] int64, for `prompt-mean`.
        norm_length: tokens, the constant of `seq-mean-token-sum-norm`.
    Returns:
        [B] float64, 1 / tokens; all 0 if nothing counts.
    Raises:
        ValueError: the mode is unknown or lacks its argument.
    Source: DAPO arXiv:2503.14476 eq. 8 (prompt-mean, token-mean), GRPO arXiv:2402.03300 eq. 3 (seq-mean-token-mean),
        Dr. GRPO arXiv:2503.20783 (seq-mean-token-sum-norm).

    >>> on = torch.tensor([[True, True], [True, False]])
    >>> row_weights(on, "token-mean")
    tensor([0.3333, 0.3333], dtype=torch.float64)
    >>> row_weights(on, "seq-mean-token-mean")
    tensor([0.2500, 0.5000], dtype=torch.float64)
    """
    tokens = mask.sum(1).double()
    live = (tokens > 0).double()
    if aggregation == "token-mean":
        return live / tokens.sum().clamp_min(1)
    if aggregation == "token-sum":
        return live
    if aggregation == "seq-mean-token-mean":
        return live / (tokens.clamp_min(1) * live.sum().clamp_min(1))
    if aggregation == "seq-mean-token-sum":
        return live / live.sum().clamp_min(1)
    if aggregation == "seq-mean-token-sum-norm":
        if not norm_length:
            raise ValueError("seq-mean-token-sum-norm needs norm_length, a constant number of tokens")
        return live / (live.sum().clamp_min(1) * norm_length)
    if aggregation == "prompt-mean":
        if group_ids is None:
            raise ValueError("prompt-mean needs group_ids")
        _, place = torch.unique(group_ids, return_inverse=True)
        of_prompt = torch.zeros(int(place.max()) + 1 if len(place) else 0, dtype=torch.float64, device=mask.device)
        of_prompt = of_prompt.index_add(0, place, tokens)
        return live / (of_prompt[place].clamp_min(1) * (of_prompt > 0).sum().clamp_min(1))
    raise ValueError(f"aggregation {aggregation!r}; there are {', '.join(AGGREGATIONS)}")


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over True places, [] in the dtype of `values`; 0 if there is none."""
    return torch.where(mask, values, values.new_zeros(())).sum() / mask.sum().clamp_min(1)


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


# ----------------------------------------------------------------------------------------------- ratios, surrogate
def log_ratio(log_probs: Tensor, old_log_probs: Tensor, clamp: float | None = 20.0) -> Tensor:
    """log_probs - old_log_probs, [B, T] nats, cut to plus and minus `clamp` (no gradient outside).

    >>> log_ratio(torch.tensor([[0.0, -1.0]]), torch.tensor([[-50.0, -1.5]]))
    tensor([[20.0000,  0.5000]])
    """
    difference = log_probs - old_log_probs
    return difference if clamp is None else difference.clamp(-clamp, clamp)


def clipped_surrogate(
    ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float, dual_clip: float | None = None
) -> Tensor:
    """-min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A), to be minimised.

    Args:
        ratio: [B, T], exp of the log-ratio.
        advantages: [B, T].
        clip_low, clip_high: how far the ratio may leave 1 below and above.
        dual_clip: above 1; a negative advantage never costs more than `dual_clip * -A`.
    Returns:
        [B, T]. In a tie the unclipped branch, with its gradient, is taken.
    Source: Schulman et al. 2017, arXiv:1707.06347, eq. 7; dual clip: Ye et al. 2019, arXiv:1912.09729, eq. 5.

    >>> clipped_surrogate(torch.tensor([1.5, 0.5]), torch.tensor([1.0, 1.0]), 0.2, 0.2)
    tensor([-1.2000, -0.5000])
    """
    plain = ratio * advantages
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages
    objective = torch.where(plain <= clipped, plain, clipped)
    if dual_clip is not None:
        floor = dual_clip * advantages
        objective = torch.where((advantages < 0) & (objective < floor), floor, objective)
    return -objective


def clip_metrics(
    ratio: Tensor, advantages: Tensor, mask: Tensor, clip_low: float, clip_high: float, dual_clip: float | None = None
) -> dict[str, Sums]:
    """Shares of counted tokens whose gradient the clip has switched off, below, above and by the dual clip."""
    count = mask.sum()

    def share(where: Tensor) -> Sums:
        return Sums(total=(where & mask).sum(), count=count)

    found = {
        "clip_fraction/low": share((ratio < 1.0 - clip_low) & (advantages < 0)),
        "clip_fraction/high": share((ratio > 1.0 + clip_high) & (advantages > 0)),
    }
    if dual_clip is not None:
        found["clip_fraction/dual"] = share((ratio > dual_clip) & (advantages < 0))
    return found


def clipped_value_loss(values: Tensor, old_values: Tensor, returns: Tensor, clip_ratio: float | None) -> Tensor:
    """Half the squared error of the critic, or of its prediction clipped around the old one, whichever is larger.

    Args:
        values: [B, T], reward units, with gradient.
        old_values: [B, T], reward units, before the first update on this batch.
        returns: [B, T], reward units.
        clip_ratio: reward units, how far a prediction may move; None for no clip.
    Returns:
        [B, T]. The factor 1/2 is inside.
    Source: as in baselines' PPO2; the clipped form is not in the paper.
    """
    plain = (values - returns) ** 2
    if clip_ratio is None:
        return 0.5 * plain
    near = old_values + (values - old_values).clamp(-clip_ratio, clip_ratio)
    clipped = (near - returns) ** 2
    return 0.5 * torch.where(plain >= clipped, plain, clipped)


# -------------------------------------------------------------------------------------------------------------- KL
def kl_estimate(log_probs: Tensor, other_log_probs: Tensor, estimator: str, clamp: float | None = 20.0) -> Tensor:
    """One-sample estimate of KL(policy || other) from tokens that the policy sampled.

    Args:
        log_probs, other_log_probs: [B, T] nats.
        estimator: `k1` d, `k2` d^2/2, `k3` exp(-d) - 1 + d, or `abs` |d|, with d = log_probs - other_log_probs.
        clamp: d is cut to plus and minus this.
    Returns:
        [B, T] nats. k1 and k3 have the KL as their mean; k3 is never negative.
    Raises:
        ValueError: the estimator is unknown.
    Source: Schulman 2020, "Approximating KL divergence".
    """
    d = log_ratio(log_probs, other_log_probs, clamp)
    if estimator == "k1":
        return d
    if estimator == "k2":
        return 0.5 * d * d
    if estimator == "k3":
        return torch.exp(-d) - 1.0 + d
    if estimator == "abs":
        return torch.where(d >= 0, d, -d)
    raise ValueError(f"KL estimator {estimator!r}; there are k1, k2, k3, abs")


def kl_loss(
    log_probs: Tensor,
    other_log_probs: Tensor,
    *,
    estimator: str,
    gradient: str,
    old_log_probs: Tensor | None = None,
    clamp: float | None = 20.0,
) -> Tensor:
    """KL(policy || other) as a loss: the value of one estimator with the gradient that is chosen.

    Args:
        log_probs: [B, T] nats, with gradient.
        other_log_probs: [B, T] nats, the reference (or old) policy.
        estimator: see `kl_estimate`.
        gradient: `direct` differentiates the estimator (k1: zero in expectation; k3: the *other* KL); `k2` has the
            gradient of k2, unbiased for this KL on-policy; `weighted` multiplies by the token ratio and differentiates
            through it, unbiased off-policy too.
        old_log_probs: [B, T] nats, for `weighted`; None means the policy sampled itself.
        clamp: cuts log-ratios.
    Returns:
        [B, T] nats.
    Raises:
        ValueError: the gradient is unknown.
    Source: DeepSeek-V3.2 arXiv:2512.02556 (weighted); arXiv:2512.21852 compares the gradients.
    """
    value = kl_estimate(log_probs, other_log_probs, estimator, clamp)
    if gradient == "direct":
        return value
    if gradient == "k2":
        k2 = kl_estimate(log_probs, other_log_probs, "k2", clamp)
        return k2 - k2.detach() + value.detach()
    if gradient == "weighted":
        base = log_probs.detach() if old_log_probs is None else old_log_probs
        return torch.exp(log_ratio(log_probs, base, 20.0)) * value
    raise ValueError(f"KL gradient {gradient!r}; there are direct, k2, weighted")


# ------------------------------------------------------------------------------------------- rewards and advantages
def per_token(rows: Tensor, mask: Tensor) -> Tensor:
    """One number a row, [B], at every counted token of it, [B, T]."""
    return torch.where(mask, rows[:, None], rows.new_zeros(()))


def last_token(mask: Tensor) -> Tensor:
    """[B, T] bool, True at the last counted token of each row and nowhere in an empty one."""
    after = mask.flip(1).cumsum(1).flip(1)
    return mask & (after == 1)


def terminal_rewards(rewards: Tensor, mask: Tensor, token_rewards: Tensor | None = None) -> Tensor:
    """[B, T]: each row's reward at its last counted token, beside the rewards that arose at tokens."""
    placed = torch.where(last_token(mask), rewards[:, None], rewards.new_zeros(()))
    return placed if token_rewards is None else placed + token_rewards


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
