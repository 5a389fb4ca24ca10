"""How large a model is and what a run of it holds, from config.json alone, before any weight is read."""

from __future__ import annotations

from typing import Any


def sizes(name: str) -> dict[str, int]:
    """Parameters and vocabulary of a directory, hub id, finished run or `builtin:tiny`.

    Raises:
        ModelError: nothing that could be a model is there.
        OSError, ValueError: there is no configuration to read.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig

    from trimtab.models import builtin, policy

    place = policy.checked_name(name, "policy.model")
    if name == builtin.NAME:
        config: Any = LlamaConfig(**builtin.CONFIG)
    else:
        config = AutoConfig.from_pretrained(place, trust_remote_code=False)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "vocabulary": int(config.get_text_config().vocab_size),
    }


def estimate(*, parameters: int, has_own_critic: bool, has_reference: bool) -> dict[str, float]:
    """Bytes by role at float32: a trained model holds weights, gradients and two moments; a frozen one its weights."""
    trained, frozen = 16.0 * parameters, 4.0 * parameters
    found = {"policy (weights, gradients, moments)": trained}
    if has_own_critic:
        found["critic, as much again"] = trained
    if has_reference:
        found["reference (weights)"] = frozen
    return found
