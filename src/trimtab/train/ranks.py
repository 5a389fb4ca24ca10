"""The processes that train together, and the few things they tell each other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

BUCKET_ELEMENTS = 1 << 24


class Ranks:
    """One process, or the members of the default process group."""

    def __init__(self) -> None:
        is_on = dist.is_available() and dist.is_initialized()
        self.size: int = dist.get_world_size() if is_on else 1
        self.rank: int = dist.get_rank() if is_on else 0

    def sum(self, values: Tensor) -> Tensor:
        """The sum over ranks, the same bits on each."""
        if self.size > 1:
            values = values.clone()
            dist.all_reduce(values)
        return values

    def max(self, values: Tensor) -> Tensor:
        if self.size > 1:
            values = values.clone()
            dist.all_reduce(values, op=dist.ReduceOp.MAX)
        return values

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, by rank."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Add up gradients over ranks, in flat buckets. A rank without rows takes part with zeros.

        A parameter without a gradient gets zeros on one rank as on many, so the optimiser treats it alike.
        """
        parameters = list(parameters)
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        if self.size == 1:
            return
        bucket: list[nn.Parameter] = []
        for parameter in parameters:
            bucket.append(parameter)
            if sum(p.numel() for p in bucket) >= BUCKET_ELEMENTS:
                _sum_bucket(bucket)
                bucket = []
        if bucket:
            _sum_bucket(bucket)

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier()


def _sum_bucket(parameters: list[nn.Parameter]) -> None:
    flat = torch.cat([p.grad.reshape(-1) for p in parameters if p.grad is not None])
    dist.all_reduce(flat)
    start = 0
    for p in parameters:
        if p.grad is not None:
            p.grad.copy_(flat[start : start + p.numel()].view_as(p))
        start += p.numel()
