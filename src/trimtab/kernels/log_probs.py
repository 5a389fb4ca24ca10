"""Log-probs and entropies of given tokens from hidden states, without ever holding all logits."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from trimtab.algorithms.math import divergences

CHUNK_ELEMENTS = 1 << 24
"""Most logits alive at once in one chunk: 64 MB in float32."""


def token_log_probs(
    hidden: Tensor,
    head: Callable[[Tensor], Tensor],
    targets: Tensor,
    *,
    vocabulary: int,
    temperature: float,
    entropy_with_gradient: bool = False,
) -> tuple[Tensor, Tensor]:
    """Log-probs of the targets and the entropy of the whole distribution at each place.

    Args:
        hidden: [n, d], the states that predict the targets.
        head: hidden [m, d] -> logits [m, V].
        targets: [n] int64.
        vocabulary: V, to size the chunks.
        temperature: above 0, divides the logits, so the figures are those of the sampling distribution.
        entropy_with_gradient: False gives the entropy as a figure only.
    Returns:
        log-probs and entropy, [n] nats, at least float32. Where the logits exceed `CHUNK_ELEMENTS` they are computed in chunks
        and again in the backward pass.
    """

    def one_chunk(states: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        logits = head(states)
        logits = (logits if logits.dtype == torch.float64 else logits.float()) / temperature
        every = torch.log_softmax(logits, dim=-1)
        picked = every.gather(-1, wanted.unsqueeze(-1)).squeeze(-1)
        source = every if entropy_with_gradient else every.detach()
        return picked, -(source.exp() * source).sum(-1)

    rows = max(1, CHUNK_ELEMENTS // vocabulary)
    if hidden.shape[0] <= rows:
        return one_chunk(hidden, targets)
    parts = []
    for start in range(0, hidden.shape[0], rows):
        states, wanted = hidden[start : start + rows], targets[start : start + rows]
        if torch.is_grad_enabled():
            parts.append(checkpoint(one_chunk, states, wanted, use_reentrant=False))
        else:
            parts.append(one_chunk(states, wanted))
    return torch.cat([p for p, _ in parts]), torch.cat([e for _, e in parts])


@torch.no_grad()
def js_divergence(
    hidden: Tensor,
    head: Callable[[Tensor], Tensor],
    other_hidden: Tensor,
    other_head: Callable[[Tensor], Tensor],
    *,
    vocabulary: int,
) -> Tensor:
    """Jensen-Shannon divergence of two models' next-token distributions, exact over the vocabulary.

    Args:
        hidden, other_hidden: [n, d], [n, d'], the states that predict the same tokens.
        head, other_head: hidden [m, d] -> logits [m, V].
        vocabulary: V, to size the chunks.
    Returns:
        [n] nats, from 0 to ln 2, float32. Only the logits of a chunk are alive at once.
    """
    rows = max(1, CHUNK_ELEMENTS // vocabulary)
    parts = [
        divergences(head(hidden[at : at + rows]).float(), other_head(other_hidden[at : at + rows]).float())["js"]
        for at in range(0, hidden.shape[0], rows)
    ]
    return torch.cat(parts) if parts else hidden.new_zeros(0, dtype=torch.float32)
