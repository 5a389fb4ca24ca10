"""Arithmetic that losses share: aggregation, ratios, clipping, KL estimators. Advantages are made in `credit`.

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
    "pair-mean",
)


# ---------------------------------------------------------------------------------------------------- aggregation
def row_weights(
    mask: Tensor,
    aggregation: str,
    *,
    group_ids: Tensor | None = None,
    norm_length: int | None = None,
    count_dead_rows: bool = False,
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
        count_dead_rows: rows without a counted token are part of the means over rows.
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
    rows = torch.ones_like(live).sum() if count_dead_rows else live.sum()
    if aggregation in ("token-mean", "pair-mean"):  # a pair's loss stands once, at its chosen row
        return live / tokens.sum().clamp_min(1)
    if aggregation == "token-sum":
        return live
    if aggregation == "seq-mean-token-mean":
        return live / (tokens.clamp_min(1) * rows.clamp_min(1))
    if aggregation == "seq-mean-token-sum":
        return live / rows.clamp_min(1)
    if aggregation == "seq-mean-token-sum-norm":
        if not norm_length:
            raise ValueError("seq-mean-token-sum-norm needs norm_length, a constant number of tokens")
        return live / (rows.clamp_min(1) * norm_length)
    if aggregation == "prompt-mean":
        if group_ids is None:
            raise ValueError("prompt-mean needs group_ids")
        _, place = torch.unique(group_ids, return_inverse=True)
        of_prompt = torch.zeros(int(place.max()) + 1 if len(place) else 0, dtype=torch.float64, device=mask.device)
        of_prompt = of_prompt.index_add(0, place, tokens)
        return live / (of_prompt[place].clamp_min(1) * (of_prompt > 0).sum().clamp_min(1))
    raise ValueError(f"aggregation {aggregation!r}; there are {', '.join(AGGREGATIONS)}")


def per_token(rows: Tensor, mask: Tensor) -> Tensor:
    """One number a row, [B], at every counted token of it, [B, T]."""
    return torch.where(mask, rows[:, None], rows.new_zeros(()))


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over True places, [] in the dtype of `values`; 0 if there is none."""
    return torch.where(mask, values, values.new_zeros(())).sum() / mask.sum().clamp_min(1)


# ----------------------------------------------------------------------------------------------- ratios, surrogate
def log_ratio(log_probs: Tensor, old_log_probs: Tensor, clamp: float | None = 20.0) -> Tensor:
    """log_probs - old_log_probs, [B, T] nats, cut to plus and minus `clamp` (no gradient outside).

    >>> log_ratio(torch.tensor([[0.0, -1.0]]), torch.tensor([[-50.0, -1.5]]))
    tensor([[20.0000,  0.5000]])
    """
    difference = log_probs - old_log_probs
    return difference if clamp is None else difference.clamp(-clamp, clamp)


def sequence_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over each row's counted tokens, at every one of them, [B, T]; 0 elsewhere and in an empty row.

    >>> sequence_mean(torch.tensor([[1.0, 3.0, 0.0]]), torch.tensor([[True, True, False]]))
    tensor([[2., 2., 0.]])
    """
    return per_token(values.sum(1) / mask.sum(1).clamp_min(1), mask)


def segment_ids(mask: Tensor, *, length: int | None = None, end_marks: Tensor | None = None) -> Tensor:
    """Number of the segment that each counted token lies in, from 0 in every row; -1 at masked tokens.

    Masked tokens are skipped: they add to no length, close nothing, and a segment goes on behind them.

    Args:
        mask: [B, T] bool.
        length: counted tokens of a segment; a shorter rest is one of its own.
        end_marks: [B, T] bool, True at the last token of a segment. Exactly one of the two is given.
    Returns:
        [B, T] int64.
    Raises:
        ValueError: both or neither is given, or the length is under 1.

    >>> on = torch.tensor([[True, True, False, True]])
    >>> segment_ids(on, length=2)
    tensor([[ 0,  0, -1,  1]])
    >>> segment_ids(on, end_marks=torch.tensor([[True, False, True, False]]))
    tensor([[ 0,  1, -1,  1]])
    """
    if (length is None) == (end_marks is None) or (length is not None and length < 1):
        raise ValueError(f"a segment's end is given by a length from 1 or by marks, got {length!r} and {end_marks!r}")
    if end_marks is not None:
        closing = (end_marks & mask).long()
        number = closing.cumsum(1) - closing  # how many were closed before this token
    else:
        number = (mask.long().cumsum(1) - 1).clamp_min(0) // (length or 1)
    return torch.where(mask, number, -torch.ones((), dtype=torch.int64, device=mask.device))


def segment_mean(values: Tensor, segments: Tensor) -> Tensor:
    """Mean over the tokens of each segment, at every one of them, [B, T]; 0 where `segments` is -1.

    Args:
        values: [B, T], 0 at masked places.
        segments: [B, T] int64 of `segment_ids`.

    >>> segment_mean(torch.tensor([[1.0, 3.0, 5.0]]), torch.tensor([[0, 0, 1]]))
    tensor([[2., 2., 5.]])
    """
    width = values.shape[1]
    place = segments.clamp_min(0)
    on = segments >= 0
    values = torch.where(on, values, values.new_zeros(()))
    sums = values.new_zeros(values.shape[0], max(width, 1)).scatter_add(1, place, values)
    counts = values.new_zeros(values.shape[0], max(width, 1)).scatter_add(1, place, on.to(values.dtype))
    means = (sums / counts.clamp_min(1)).gather(1, place)
    return torch.where(on, means, values.new_zeros(()))


def mismatch_weights(
    old_log_probs: Tensor,
    rollout_log_probs: Tensor,
    mask: Tensor,
    *,
    mode: str,
    level: str = "token",
    low: float | None = None,
    high: float | None = 2.0,
) -> Tensor:
    """How much the trainer's policy differed from the one that the engine sampled with, bounded; no gradient.

    Args:
        old_log_probs, rollout_log_probs: [B, T] nats, of the trainer and as the engine reported them.
        mask: [B, T] bool.
        mode: `truncate` cuts weights to [low, high]; `mask` sets those outside to 0; `geometric_mask` keeps token
            weights as they are, and sets a whole row to 0 whose geometric mean lies outside.
        level: `token`, or `sequence` for the product over the row; `geometric_mask` has its own.
        low, high: bounds of the weight; None for none.
    Returns:
        [B, T], 0 at masked places.
    Raises:
        ValueError: mode or level is unknown.
    Source: truncated importance sampling: Espeholt et al. 2018, arXiv:1802.01561; IcePop arXiv:2510.18855 (token mask).

    >>> on = torch.tensor([[True, True]])
    >>> mismatch_weights(torch.log(torch.tensor([[6.0, 0.5]])), torch.zeros(1, 2), on, mode="truncate")
    tensor([[2.0000, 0.5000]])
    """
    difference = (old_log_probs - rollout_log_probs).detach()
    difference = torch.where(mask, difference, difference.new_zeros(()))
    weights = torch.exp(difference.clamp(-20, 20))
    tested = weights
    if mode == "geometric_mask":
        tested = torch.exp(sequence_mean(difference, mask).clamp(-20, 20))
    elif level == "sequence":
        weights = tested = torch.exp(difference.sum(1).clamp(-20, 20))[:, None].expand_as(difference)
    elif level != "token":
        raise ValueError(f"level {level!r}; there are token, sequence")
    if mode == "truncate":
        weights = weights.clamp(low, high) if low is not None or high is not None else weights
    elif mode in ("mask", "geometric_mask"):
        inside = torch.ones_like(mask)
        inside = inside if low is None else inside & (tested >= low)
        inside = inside if high is None else inside & (tested <= high)
        weights = torch.where(inside, weights, weights.new_zeros(()))
    else:
        raise ValueError(f"mode {mode!r}; there are truncate, mask, geometric_mask")
    return torch.where(mask, weights, weights.new_zeros(()))


def effective_sample_size(weights: Tensor, mask: Tensor) -> float | None:
    """(sum w)^2 / (n sum w^2) over counted tokens, in (0, 1]; None if no weight is positive.

    >>> effective_sample_size(torch.tensor([[1.0, 1.0, 0.0]]), torch.tensor([[True, True, True]]))
    0.666...
    """
    counted = weights[mask].double()
    squares = float((counted * counted).sum())
    return None if not squares else float(counted.sum()) ** 2 / (len(counted) * squares)


def covariance(values: Tensor, log_probs: Tensor, mask: Tensor) -> Tensor:
    """(values - mean) (log_probs - mean) at each counted token, means over the whole update; [B, T], 0 elsewhere.

    Source: Cui et al. 2025, arXiv:2505.22617, eq. 10.
    """
    product = (values - masked_mean(values, mask)) * (log_probs - masked_mean(log_probs, mask))
    return torch.where(mask, product, product.new_zeros(())).detach()


def first_tokens(order: Tensor, candidates: Tensor, count: int, row_ids: Tensor) -> Tensor:
    """The `count` candidates with the smallest `order`; ties go by row id, then by position.

    So the choice depends on no order of rows.

    Args:
        order: [B, T].
        candidates: [B, T] bool.
        count: at most so many.
        row_ids: [B] int64.
    Returns:
        [B, T] bool.

    >>> first_tokens(torch.tensor([[3.0, 1.0], [1.0, 2.0]]), torch.ones(2, 2).bool(), 1, torch.tensor([9, 4]))
    tensor([[False, False],
            [ True, False]])
    """
    rows, positions = candidates.nonzero(as_tuple=True)
    by_name = torch.argsort(row_ids[rows] * candidates.shape[1] + positions)
    rows, positions = rows[by_name], positions[by_name]
    chosen = torch.argsort(order[rows, positions], stable=True)[:count]
    picked = torch.zeros_like(candidates)
    picked[rows[chosen], positions[chosen]] = True
    return picked


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


def js_estimate(log_probs: Tensor, other_log_probs: Tensor, clamp: float | None = 20.0) -> Tensor:
    """One-sample estimate of the Jensen-Shannon divergence of two policies, from tokens that the first sampled.

    Args:
        log_probs, other_log_probs: [B, T] nats.
        clamp: cuts the log-ratio.
    Returns:
        [B, T] nats; never negative, 0 where the two agree; its mean is the divergence, at most ln 2.
    """
    d = log_ratio(other_log_probs, log_probs, clamp)  # log w, w = other / policy
    soft = torch.nn.functional.softplus(d)
    ln2 = 0.6931471805599453
    return 0.5 * (ln2 - soft) + 0.5 * torch.exp(d) * (ln2 + d - soft)


def divergences(logits: Tensor, other_logits: Tensor) -> dict[str, Tensor]:
    """Exact divergences of two next-token distributions: `kl` of the first from the second, `reverse_kl`, `js`.

    Args:
        logits, other_logits: [..., V].
    Returns:
        [...] nats each.
    """
    p, q = logits.log_softmax(-1), other_logits.log_softmax(-1)
    middle = torch.logaddexp(p, q) - 0.6931471805599453

    def kl(a: Tensor, b: Tensor) -> Tensor:
        return (a.exp() * (a - b)).sum(-1)

    return {"kl": kl(p, q), "reverse_kl": kl(q, p), "js": 0.5 * (kl(p, middle) + kl(q, middle))}


def adaptive_kl(coef: float, observed: float, *, target: float, samples: int, horizon: int) -> float:
    """The next KL coefficient: it follows the KL's relative distance from its target, at most a fifth per horizon.

    Args:
        coef: beta so far.
        observed, target: nats, in the same unit (a token's or a sequence's).
        samples: completions of the step.
        horizon: completions over which the coefficient may change by a fifth.
    Source: Ziegler et al. 2019, arXiv:1909.08593, section 2.2.

    >>> round(adaptive_kl(0.1, 9.0, target=6.0, samples=100, horizon=1000), 6)
    0.102
    """
    error = min(max(observed / target - 1.0, -0.2), 0.2)
    return coef * (1.0 + error * samples / horizon)


def penalty_kl(coef: float, observed: float, *, target: float) -> float:
    """The next KL coefficient: half under target / 1.5, twice over target * 1.5.

    Source: Schulman et al. 2017, arXiv:1707.06347, section 4.

    >>> penalty_kl(0.1, 0.9, target=0.5), penalty_kl(0.1, 0.5, target=0.5), penalty_kl(0.1, 0.1, target=0.5)
    (0.2, 0.1, 0.05)
    """
    if observed < target / 1.5:
        return coef / 2.0
    return coef * 2.0 if observed > target * 1.5 else coef


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
