"""The policy: loading a causal language model, and what the loss wants to know of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.errors import ModelError
from trimtab.kernels.log_probs import token_log_probs
from trimtab.types import Batch

Head = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    model: Any
    """A transformers `PreTrainedModel` for causal language modelling, in eval mode: no dropout in any pass."""
    tokenizer: Any
    eos_ids: frozenset[int]


def directory_of(name: str) -> str:
    """What `from_pretrained` is to read: a finished run means its `final/`."""
    path = Path(name)
    if (path / "run.json").is_file():
        final = path / "final"
        if not final.is_dir():
            raise ModelError(f"policy.model: {name} is a run that has not finished; it has no `final/` yet")
        return str(final)
    return name


def load(name: str, *, seed: int, key: str = "policy.model") -> LoadedModel:
    """The model and tokenizer of a directory, hub id, finished run, or `builtin:tiny`.

    Raises:
        ModelError: it is not there, is no causal language model, or has no tokenizer.
    """
    from transformers.utils import logging

    from trimtab.models import builtin

    logging.disable_progress_bar()
    place = checked_name(name, key)
    if name == builtin.NAME:
        model, tokenizer = builtin.model(seed), builtin.tokenizer()
    else:
        model, tokenizer = _from_pretrained(place, key)
    model = model.float().eval()
    model.requires_grad_(True)
    return LoadedModel(model=model, tokenizer=tokenizer, eos_ids=_eos_ids(model, tokenizer))


def load_tokenizer(name: str, *, key: str = "policy.model") -> Any:
    """The tokenizer alone.

    Raises:
        ModelError: there is none that can be read.
    """
    from trimtab.models import builtin

    return builtin.tokenizer() if name == builtin.NAME else _tokenizer(directory_of(name), key)


def checked_name(name: str, key: str) -> str:
    """Where `from_pretrained` is to look, refused early if nothing can be there.

    Raises:
        ModelError: a pickled file, an unfinished run, a directory without config.json, or no such path.
    """
    from trimtab.models import builtin

    if name.startswith("builtin:") and name != builtin.NAME:
        raise ModelError(f"{key}: {name}, but the only built-in model is `{builtin.NAME}`")
    place = directory_of(name)
    _refuse_what_is_not_a_model(place, key)
    return place


def _from_pretrained(place: str, key: str) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM

    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            place, dtype=torch.float32, use_safetensors=True, trust_remote_code=False, output_loading_info=True
        )
    except (OSError, ValueError) as error:
        raise ModelError(f"{key}: cannot load {place}: {str(error).splitlines()[0]}") from error
    model, told = loaded
    if told["missing_keys"]:
        names = ", ".join(sorted(told["missing_keys"])[:3])
        raise ModelError(
            f"{key}: {place} lacks weights of {type(model).__name__}: {names}; they would be random, and not by the seed"
        )
    return model, _tokenizer(place, key)


def _refuse_what_is_not_a_model(place: str, key: str) -> None:
    path = Path(place)
    if path.suffix in (".pt", ".bin", ".pth"):
        raise ModelError(
            f"{key}: {place} is a pickled checkpoint, which can run code when it is read; "
            f"convert it to a Hugging Face directory with safetensors first"
        )
    looks_local = place.startswith((".", "/", "~")) or (os.sep in place.strip(os.sep) and path.parent.is_dir())
    if path.is_dir() and not (path / "config.json").is_file():
        raise ModelError(
            f"{key}: {place} has no config.json; expected a Hugging Face model directory or a finished run"
        )
    if looks_local and not path.exists() and place.count("/") != 1:
        raise ModelError(f"{key}: {place} does not exist")


def _tokenizer(place: str, key: str) -> Any:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=False)
    except Exception as error:
        raise ModelError(
            f"{key}: {place} has no tokenizer that can be read ({str(error).splitlines()[0]}); "
            "save one beside the model with `tokenizer.save_pretrained`"
        ) from error
    if tokenizer.pad_token_id is None and tokenizer.eos_token_id is not None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _eos_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    found: set[int] = set()
    generation = getattr(model, "generation_config", None)
    for value in (getattr(generation, "eos_token_id", None), model.config.eos_token_id, tokenizer.eos_token_id):
        if isinstance(value, int):
            found.add(value)
        elif value is not None:
            found.update(int(v) for v in value)
    return frozenset(found)


def hidden_states(model: Any, tokens: Tensor) -> Tensor:
    """[B, S, d] of the trunk for right-padded rows. No attention mask: what is causal never looks at padding behind."""
    trunk = model.base_model if hasattr(model, "base_model") else model
    found: Tensor = trunk(input_ids=tokens, use_cache=False).last_hidden_state
    return found


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

    Some architectures scale or cap what the output layer gives; a head that would miss that is refused.
    """
    layer: nn.Module = model.get_output_embeddings()
    cap = getattr(model.config, "final_logit_softcapping", None)
    scale = getattr(model.config, "logit_scale", None)

    def head(hidden: Tensor) -> Tensor:
        logits: Tensor = layer(hidden)
        if scale:
            logits = logits * scale
        return torch.tanh(logits / cap) * cap if cap else logits

    with torch.no_grad():
        ids = torch.arange(4, device=model.device).unsqueeze(0) % model.config.get_text_config().vocab_size
        own = model(input_ids=ids, use_cache=False).logits
        same = head(hidden_states(model, ids))
    if not torch.allclose(own, same, rtol=1e-4, atol=1e-4):
        raise ModelError(
            f"policy.model: {type(model).__name__} does something to its logits that is not known here; "
            "log-probs of the trainer would differ from those that are sampled"
        )
    return head
