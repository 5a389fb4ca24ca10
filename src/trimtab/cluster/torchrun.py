"""Joining the processes that torchrun, or `local`, started."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from trimtab.errors import UserError, WorkerError


def is_started_by_torchrun() -> bool:
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


def processes_started() -> int | None:
    """How many processes train together, as torchrun or another launcher has said; None if nobody has started several.

    torchrun may start one alone; others leave RANK=0 and WORLD_SIZE=1 around a process that nobody is beside.
    """
    if is_started_by_torchrun() or "TORCHELASTIC_RUN_ID" in os.environ:
        return int(os.environ.get("WORLD_SIZE", "1"))
    return None


def refuse_more_than_devices() -> None:
    """
    Raises:
        UserError: there are GPUs on this machine, and not one for each of its processes.
    """
    if not is_started_by_torchrun():
        return
    import torch

    local = int(os.environ.get("LOCAL_WORLD_SIZE", int(os.environ.get("LOCAL_RANK", "0")) + 1))
    if torch.cuda.is_available() and local > (count := torch.cuda.device_count()):
        raise UserError(
            f"cluster.processes: {local} on this machine, but it has {count} GPU{'s' * (count != 1)} and each process "
            f"needs one; use at most {count}, or hide the GPUs with CUDA_VISIBLE_DEVICES= to train on the CPU"
        )


@contextmanager
def joined(timeout_seconds: float = 7200.0) -> Iterator[None]:
    """Inside, the process group of all ranks stands; nothing happens for a process on its own.

    The time-out is long, since one rank may save or wait for rewards while the others wait for it; a rank that has died
    is noticed at once by torchrun.
    """
    if not is_started_by_torchrun():
        yield
        return
    refuse_more_than_devices()
    import torch
    import torch.distributed as dist

    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    backend, timeout = "cpu:gloo,cuda:nccl" if on_gpu else "gloo", timedelta(seconds=timeout_seconds)
    try:
        dist.init_process_group(backend, timeout=timeout)
    except RuntimeError as error:
        raise WorkerError(f"the processes have not found each other: {str(error).splitlines()[0]}") from error
    try:
        yield
    finally:
        dist.destroy_process_group()
