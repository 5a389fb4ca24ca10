"""Gradient checkpointing: layers keep their input alone and are computed again in the backward pass.

transformers does this in training mode only, and here every pass runs in eval mode. So the flag is put on the layers
themselves, not on what is in them, and only while a pass with gradient runs: dropout inside stays off, and an engine
that samples from the same model keeps its cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from trimtab.errors import ModelError

KEY = "policy.gradient_checkpointing"


def enable(model: Any) -> list[nn.Module]:
    """Prepare a model, or a trunk; its layers, for `recomputing`.

    Raises:
        ModelError: its architecture cannot do it, or its layers compute something else in training mode.
    """
    name = type(model).__name__
    if not getattr(model, "supports_gradient_checkpointing", False):
        raise ModelError(f"{KEY}: true, but {name} cannot compute its layers again; set it to false")
    switch = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    switch({"use_reentrant": False})
    layers = [m for m in model.modules() if getattr(m, "gradient_checkpointing", False)]
    tokens = torch.arange(8, device=model.device).unsqueeze(0) % model.config.get_text_config().vocab_size
    with torch.no_grad():
        plain = model(input_ids=tokens, use_cache=False)[0]
        with recomputing(layers):
            again = model(input_ids=tokens, use_cache=False)[0]
    if not torch.equal(plain, again):
        raise ModelError(
            f"{KEY}: true, but the layers of {name} drop out in training mode, so log-probs would not be those that were "
            "sampled; set its dropout to 0 in config.json, or the key to false"
        )
    return layers


@contextmanager
def recomputing(layers: list[nn.Module]) -> Iterator[None]:
    """Forward passes in this context keep the inputs of these layers and nothing from within."""
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False
