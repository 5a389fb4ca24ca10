"""What is chosen for a machine: from config, model and machine description alone, never from load."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from trimtab.config import RunConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """What was chosen for this machine. A continued run takes it from run.json, so that its numbers stay the same."""

    threads: int
    micro_batch_tokens: int
    device: str


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def choose_numerics(config: RunConfig, *, vocabulary: int, before: dict[str, Any] | None = None) -> Numerics:
    """Threads, device and micro-batch, from config, model and machine alone; or what the run began with."""
    import torch

    if before:
        return Numerics(**{name: before[name] for name in ("threads", "micro_batch_tokens", "device")})
    cores = available_cores()
    asked = os.environ.get("OMP_NUM_THREADS", "")
    threads = int(asked) if asked.isdigit() and int(asked) else max(1, cores // 2)
    budget = config.train.micro_batch_tokens or min(16384, max(2048, (1 << 28) // vocabulary))
    return Numerics(threads=threads, micro_batch_tokens=budget, device="cuda" if torch.cuda.is_available() else "cpu")
