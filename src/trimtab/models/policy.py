"""The policy: what the loss wants to know of a causal language model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from trimtab.errors import ModelError
from trimtab.kernels.log_probs import token_log_probs
from trimtab.models.loading import (
    LoadedModel,
    checked_name,
    directory_of,
    from_objects,
    load,
    load_tokenizer,
    with_tokenizer,
)
from trimtab.models.packing import states_of
from trimtab.types import Batch

__all__ = [
    "Head",
    "LoadedModel",
    "checked_name",
    "completion_states",
    "completion_tokens",
    "directory_of",
    "from_objects",
    "head_of",
    "hidden_states",
    "load",
    "load_tokenizer",
    "log_probs_and_entropy",
    "trunk_of",
    "with_tokenizer",
]

Head = Callable[[Tensor], Tensor]


def trunk_of(model: Any) -> Any:
    """The part of a causal model that gives hidden states: all but the output layer.

    Raises:
        ModelError: the model is in one piece.
    """
    from transformers import PreTrainedModel

    for found in (_decoder(model), getattr(model, "base_model", None), getattr(model, "model", None)):
        if isinstance(found, PreTrainedModel) and found is not model:
            return found
    raise ModelError(f"policy.model: {type(model).__name__} has no part that gives hidden states alone")


def _decoder(model: Any) -> Any:
    get = getattr(model, "get_decoder", None)
    return get() if get is not None else None


def hidden_states(model: Any, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
    """[B, S, d] of the trunk for right-padded rows, packed if their `lengths` [B] are given."""
    return states_of(trunk_of(model), tokens, lengths)


def completion_states(hidden: Tensor, batch: Batch) -> Tensor:
    """[B, T, d]: the state before each completion token, which predicts it."""
    width = batch.loss_mask.shape[1]
    place = batch.prompt_lengths[:, None] - 1 + torch.arange(width, device=hidden.device)
    place = place.clamp(0, max(hidden.shape[1] - 1, 0))
    return hidden.gather(1, place[:, :, None].expand(-1, -1, hidden.shape[2]))


def completion_tokens(batch: Batch) -> Tensor:
    """[B, T] int64, 0 behind each row's end."""
    width = batch.loss_mask.shape[1]
    place = batch.prompt_lengths[:, None] + torch.arange(width, device=batch.tokens.device)
    inside = torch.arange(width, device=batch.tokens.device) < batch.completion_lengths[:, None]
    tokens = batch.tokens.gather(1, place.clamp(max=max(batch.tokens.shape[1] - 1, 0)))
    return torch.where(inside, tokens, tokens.new_zeros(()))


def log_probs_and_entropy(
    hidden: Tensor, head: Head, batch: Batch, *, vocabulary: int, temperature: float, entropy_with_gradient: bool
) -> tuple[Tensor, Tensor]:
    """[B, T] float32 nats each, at counted tokens only; 0 elsewhere."""
    mask = batch.loss_mask
    found, entropy = token_log_probs(
        completion_states(hidden, batch)[mask],
        head,
        completion_tokens(batch)[mask],
        vocabulary=vocabulary,
        temperature=temperature,
        entropy_with_gradient=entropy_with_gradient,
    )
    empty = found.new_zeros(mask.shape)
    return empty.masked_scatter(mask, found), empty.masked_scatter(mask, entropy)


def head_of(model: Any) -> Head:
    """hidden [n, d] -> logits [n, V], checked once against the model's own logits.

    The output layer alone where that is all the model does. Where it also scales, caps or transforms (Cohere, Granite,
    Gemma 2, ...) its own forward pass is run from the hidden states on, so nothing of that need be known here.

    Raises:
        ModelError: the logits are not a function of the hidden states, or a token's depend on those behind it.
    """
    layer, through = model.get_output_embeddings(), _through(model)
    with torch.no_grad():
        ids = torch.arange(4, device=model.device).unsqueeze(0) % model.config.get_text_config().vocab_size
        own = model(input_ids=ids, use_cache=False).logits[0]
        hidden = hidden_states(model, ids)[0]
        # Of one shape, so that they round alike: in two bytes, 18 layers make much of another order of sums.
        behind = [torch.cat([ids, torch.full_like(ids, token)], dim=1) for token in (0, 1)]
        first, second = (hidden_states(model, tokens)[0, : len(hidden)] for tokens in behind)
        if not _same(first, second):
            raise ModelError(
                f"policy.model: a token of {type(model).__name__} depends on those behind it; the model is not causal"
            )
        if not _same(own, through(hidden)):
            raise ModelError(
                f"policy.model: {type(model).__name__} does something to its logits that is not known here; "
                "log-probs of the trainer would differ from those that are sampled"
            )
        # Small logits pass through a soft cap as if there were none: hence the hidden states that are blown up.
        is_plain = layer is not None and all(
            _same(through(hidden * size), layer(hidden * size)) for size in (1.0, 1e2, 1e4)
        )
    return layer if is_plain else through


def _same(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape:
        return False
    # Two ways through one layer round differently, by a few units of the last place of what it computes in.
    is_half = 2 in (a.element_size(), b.element_size())
    a, b = a.float(), b.float()
    tolerance = (3e-2 if is_half else 1e-4) * max(1.0, float(b.abs().max()))
    return bool(((a - b).abs() <= tolerance).all())


def _through(model: Any) -> Head:
    """The model's own way from hidden states to logits: its forward pass, with the trunk's answer put in."""
    trunk = trunk_of(model)

    def head(hidden: Tensor) -> Tensor:
        ids = torch.zeros((1, hidden.shape[0]), dtype=torch.int64, device=hidden.device)
        with _answering(trunk, hidden.unsqueeze(0)):
            found: Tensor = model(input_ids=ids, use_cache=False).logits[0]
        return found

    return head


class _Answer(tuple[Tensor, ...]):
    """What a trunk gives, as far as an output layer wants to know: the hidden states, and nothing of all else."""

    last_hidden_state = property(lambda self: self[0])

    def __getattr__(self, name: str) -> None:
        return None


@contextmanager
def _answering(trunk: Any, hidden: Tensor) -> Iterator[None]:
    """A trunk that gives these hidden states whatever it is asked."""
    before = trunk.__dict__.get("forward")
    trunk.forward = lambda *_, **__: _Answer((hidden,))
    try:
        yield
    finally:
        if before is None:
            del trunk.forward
        else:
            trunk.forward = before
