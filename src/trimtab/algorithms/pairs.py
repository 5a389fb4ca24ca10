"""Arithmetic of preference losses: rows in pairs, sums over completions, and logarithms that do not overflow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trimtab.types import Batch, Sums, torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Where the two rows of each pair stand in a batch."""

    chosen: Tensor
    """[N] int64, row numbers."""
    rejected: Tensor
    """[N] int64."""
    is_valid: Tensor
    """[N] bool, both sides have a counted token."""

    def difference(self, rows: Tensor) -> Tensor:
        """[N]: a number of the chosen row less that of the rejected, from [B]."""
        return rows[self.chosen] - rows[self.rejected]

    def at_chosen(self, values: Tensor, like: Tensor) -> Tensor:
        """[B]: each pair's number at its chosen row, 0 elsewhere.

        Args:
            values: [N].
            like: [B], for its length.
        """
        return values.new_zeros(len(like)).index_put((self.chosen,), values)

    def counted(self, like: Tensor) -> Tensor:
        """[B] bool, True at the chosen row of every valid pair."""
        return torch.zeros(len(like), dtype=torch.bool, device=like.device).index_put((self.chosen,), self.is_valid)


def pairs_of(batch: Batch) -> Pairs:
    """The pairs of a batch, in the order of their ids; rows whose other half is elsewhere are no pair.

    Raises:
        ValueError: the batch has no pairs.
    """
    if batch.pair_ids is None or batch.is_chosen is None:
        raise ValueError("the rows are not in pairs; the algorithm must declare Need.PAIRS")
    is_chosen, ids = batch.is_chosen, batch.pair_ids
    chosen, rejected = is_chosen.nonzero().squeeze(1), (~is_chosen).nonzero().squeeze(1)
    chosen, rejected = chosen[torch.argsort(ids[chosen])], rejected[torch.argsort(ids[rejected])]
    chosen = chosen[torch.isin(ids[chosen], ids[rejected])]
    rejected = rejected[torch.isin(ids[rejected], ids[chosen])]
    live = batch.loss_mask.any(1)
    return Pairs(chosen=chosen, rejected=rejected, is_valid=live[chosen] & live[rejected])


def row_sums(values: Tensor, mask: Tensor, *, average: bool = False) -> Tensor:
    """[B]: the sum, or the mean, over each row's counted tokens; 0 for an empty row.

    Args:
        values: [B, T], 0 at masked places.
        mask: [B, T] bool.
    """
    sums = values.sum(1)
    return sums / mask.sum(1).clamp_min(1) if average else sums


def log_ratio_of_sums(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """[B]: the completion's log-prob less that under the reference, each summed first, in float64, token by token.

    For figures that ask which of two is larger: two completions that move alike then differ by no more than the rounding of
    two sums in the order of their tokens, as in the reference implementation, whatever the padding or the processor.

    Args:
        log_probs, ref_log_probs: [B, T] nats, 0 at masked places.
    """
    if not log_probs.shape[1]:
        return log_probs.double().sum(1)
    return log_probs.double().cumsum(1)[:, -1] - ref_log_probs.double().cumsum(1)[:, -1]


def log_sigmoid(x: Tensor) -> Tensor:
    """log(1 / (1 + exp(-x))), finite for every finite x."""
    return torch.nn.functional.logsigmoid(x)


def log1mexp(x: Tensor) -> Tensor:
    """log(1 - exp(x)) for x < 0, right where x is near 0 and where it is very negative.

    Source: Maechler 2012, "Accurately computing log(1 - exp(-|a|))".

    >>> log1mexp(torch.tensor([-1e-6, -20.0]))
    tensor([-1.3816e+01, -2.0612e-09])
    """
    is_near = x > -0.6931471805599453
    near = torch.where(is_near, x, x.new_tensor(-1.0))
    far = torch.where(is_near, x.new_tensor(-1.0), x)
    return torch.where(is_near, torch.log(-torch.expm1(near)), torch.log1p(-torch.exp(far)))


def preference_metrics(pairs: Pairs, rewards: Tensor) -> dict[str, Sums]:
    """How the implicit rewards, [B], order the pairs: strict accuracy, mean margin, Bradley-Terry probability."""
    ahead = pairs.difference(rewards)[pairs.is_valid]
    count = pairs.is_valid.sum()
    return {
        "preference/accuracy": Sums(total=(ahead > 0).sum(), count=count),
        "preference/margin": Sums(total=ahead.sum(), count=count),
        "preference/probability": Sums(total=torch.sigmoid(ahead).sum(), count=count),
    }


def auc(chosen: Tensor, rejected: Tensor) -> float:
    """How often a chosen score is above a rejected one, over all pairs of the pooled scores; a tie counts half.

    Args:
        chosen, rejected: [N], [M].

    >>> auc(torch.tensor([2.0, 1.0]), torch.tensor([1.0, 0.0]))
    0.875
    """
    ordered = rejected.sort().values
    chosen = chosen.contiguous()
    below = torch.searchsorted(ordered, chosen, right=False).double()
    not_above = torch.searchsorted(ordered, chosen, right=True).double()
    return float((0.5 * (below + not_above)).mean()) / max(len(ordered), 1)
