"""Sampling without a generator: every random number is a hash of what it is for.

The number that picks a token is a function of (key, prompt, draw, index in the group, position). There is no state to
save or to restore, a completion does not depend on which others shared its batch, and any rank, restart or order of
work gives the same text.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

_MASK = (1 << 64) - 1


def _signed(value: int) -> int:
    value &= _MASK
    return value - (1 << 64) if value >= 1 << 63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MIX_A = _signed(0xBF58476D1CE4E5B9)
_MIX_B = _signed(0x94D049BB133111EB)


def key(*parts: object) -> int:
    """A signed 64-bit key from a seed and names, the same in every process.

    >>> key(0, "main", "rollout") == key(0, "main", "rollout"), key(0, "a") == key(0, "b")
    (True, False)
    """
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _shift(value: Tensor, bits: int) -> Tensor:
    """Logical shift to the right; torch's keeps the sign."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def mix(state: Tensor, value: Tensor | int) -> Tensor:
    """One round of the splitmix64 finaliser over `state` with `value` taken in; int64, wrapping."""
    spread = _signed(value * _GOLDEN) if isinstance(value, int) else value * _GOLDEN
    z = state + spread + _GOLDEN
    z = (z ^ _shift(z, 30)) * _MIX_A
    z = (z ^ _shift(z, 27)) * _MIX_B
    return z ^ _shift(z, 31)


def streams(seed_key: int, prompt_ids: Tensor, draws: Tensor, indices: Tensor) -> Tensor:
    """[n] int64: the state of each completion, of which `uniform` takes a number a position.

    Args:
        seed_key: of `key`.
        prompt_ids, draws, indices: [n] int64.
    """
    state = torch.full_like(prompt_ids, seed_key)
    for value in (prompt_ids, draws, indices):
        state = mix(state, value)
    return state


def uniform(state: Tensor, position: int | Tensor) -> Tensor:
    """[n] float64 in [0, 1): the number of each completion at a position of it.

    >>> u = uniform(torch.arange(100_000), 3)
    >>> bool(0.49 < u.mean() < 0.51), bool((u >= 0).all() and (u < 1).all())
    (True, True)
    """
    return _shift(mix(state, position), 11).double() * 2.0**-53


def sampling_log_probs(logits: Tensor, *, temperature: float, top_p: float = 1.0, top_k: int | None = None) -> Tensor:
    """Log-probs of the distribution that is sampled from.

    Args:
        logits: [n, V].
        temperature: above 0, divides the logits.
        top_p: keep the smallest set of most likely tokens whose probability reaches this.
        top_k: keep so many most likely tokens; None keeps all.
    Returns:
        [n, V] float32 nats, -inf at tokens cut off, renormalised over the kept ones.
    """
    log_probs = torch.log_softmax(logits.float() / temperature, dim=-1)
    if top_k is not None and top_k < log_probs.shape[-1]:
        least = log_probs.topk(top_k, dim=-1).values[:, -1:]
        log_probs = log_probs.masked_fill(log_probs < least, -torch.inf)
    if top_p < 1.0:
        ranked, order = torch.log_softmax(log_probs, dim=-1).sort(dim=-1, descending=True)
        before = ranked.exp().cumsum(-1) - ranked.exp()
        cut = torch.zeros_like(before, dtype=torch.bool).scatter(-1, order, before >= top_p)
        log_probs = log_probs.masked_fill(cut, -torch.inf)
    if top_p < 1.0 or top_k is not None:
        log_probs = torch.log_softmax(log_probs, dim=-1)
    return log_probs


def inverse_cdf(log_probs: Tensor, numbers: Tensor) -> Tensor:
    """The token at which the cumulative distribution passes each number.

    Args:
        log_probs: [n, V] nats, -inf at tokens that must not be drawn.
        numbers: [n] float64 in [0, 1).
    Returns:
        [n] int64; never a token of probability 0.

    >>> inverse_cdf(torch.tensor([[0.25, 0.0, 0.75]]).log(), torch.tensor([0.3], dtype=torch.float64))
    tensor([2])
    """
    cumulative = log_probs.double().exp().cumsum(-1)
    target = (numbers * cumulative[:, -1]).unsqueeze(-1)
    drawn = torch.searchsorted(cumulative, target, right=True).squeeze(-1)
    last = log_probs.shape[-1] - 1 - log_probs.isfinite().flip(-1).int().argmax(-1)
    return torch.minimum(drawn, last)
