"""Joining the processes that torchrun started."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta


def is_started_by_torchrun() -> bool:
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


@contextmanager
def joined(timeout_seconds: float = 7200.0) -> Iterator[None]:
    """Inside, the process group of all ranks stands; nothing happens for a process on its own.

    The time-out is long, since one rank may save or wait for rewards while the others wait for it; a rank that has died
    is noticed at once by torchrun.
    """
    if not is_started_by_torchrun():
        yield
        return
    import torch
    import torch.distributed as dist

    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout=timedelta(seconds=timeout_seconds))
    try:
        yield
    finally:
        dist.destroy_process_group()
