"""What is chosen for a machine: from config, model and machine description alone, never from load."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trimtab.config import RunConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """What was chosen. A continued run takes it from run.json, so that its numbers stay the same."""

    threads: int
    micro_batch_tokens: int
    rollout_rows: int
    """Completions decoded together, at most."""
    device: str


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def choose_numerics(config: RunConfig, model_config: Any, *, before: Mapping[str, Any] | None = None) -> Numerics:
    """Threads, device and sizes of work.

    Args:
        config: checked.
        model_config: of transformers.
        before: what the run began with; taken as it is, but for a device that is not here.
    """
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if before:
        kept = before["device"] if before["device"] == "cpu" or device == "cuda" else device
        return Numerics(**{**{name: before[name] for name in Numerics.__slots__}, "device": kept})
    asked = os.environ.get("OMP_NUM_THREADS", "")
    text = model_config.get_text_config()
    return Numerics(
        threads=int(asked) if asked.isdigit() and int(asked) else max(1, available_cores() // 2),
        micro_batch_tokens=config.train.micro_batch_tokens or min(16384, max(2048, (1 << 28) // int(text.vocab_size))),
        rollout_rows=_rollout_rows(config, text),
        device=device,
    )


def _rollout_rows(config: RunConfig, text: Any) -> int:
    """As many completions as a quarter of the memory holds the cache of at full length; 1024 at most."""
    import psutil
    import torch

    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    length = min(
        config.sampling.max_length, getattr(text, "max_position_embeddings", None) or config.sampling.max_length
    )
    bytes_a_row = 2 * 4 * text.num_hidden_layers * heads * width * length
    on_gpu = torch.cuda.is_available()
    memory = torch.cuda.get_device_properties(0).total_memory if on_gpu else psutil.virtual_memory().total
    return int(max(1, min(1024, memory // 4 // bytes_a_row)))


def what_differs(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What of two runs' facts ends the promise that their numbers are the same to the last bit."""
    pairs = {
        "device": (before.get("numerics", {}).get("device"), after["numerics"]["device"]),
        "processes": (before.get("ranks"), after["ranks"]),
        "torch": (before.get("versions", {}).get("torch"), after["versions"]["torch"]),
        "transformers": (before.get("versions", {}).get("transformers"), after["versions"]["transformers"]),
    }
    return [f"{name} {old} -> {new}" for name, (old, new) in pairs.items() if old is not None and old != new]
