"""How rows are cut: mini-batches of whole prompts, micro-batches of like lengths; and how they are put together again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from trimtab.types import Frozen

Record = TypeVar("Record")


def minibatches(group_ids: Tensor, count: int, *, seed: int, step: int, epoch: int) -> list[Tensor]:
    """Row numbers of each mini-batch: whole prompts, drawn by a hash of (seed, step, epoch).

    Args:
        group_ids: [B] int64 over all ranks.
        count: mini-batches; there are fewer if there are fewer prompts, and one without a row if there is no prompt.
    Returns:
        int64 tensors, each in ascending order; together every row once.
    """
    if count == 1 or not len(group_ids):
        return [torch.arange(len(group_ids))]
    groups = sorted(set(group_ids.tolist()), key=lambda g: _number(seed, step, epoch, g))
    count = min(count, len(groups))
    part_of = {g: place * count // len(groups) for place, g in enumerate(groups)}
    parts = torch.tensor([part_of[g] for g in group_ids.tolist()])
    return [(parts == part).nonzero().squeeze(1) for part in range(count)]


def micro_batches(lengths: Tensor, budget: int, together: Tensor | None = None) -> list[Tensor]:
    """Row numbers of each forward pass: rows of like length, at most `budget` tokens with padding, at least one row.

    Args:
        lengths: [n] int64, tokens.
        budget: tokens.
        together: [n] int64; rows with the same number are not parted, as those of a pair.

    >>> [m.tolist() for m in micro_batches(torch.tensor([9, 3, 10, 4]), 20)]
    [[2, 0], [3, 1]]
    >>> [m.tolist() for m in micro_batches(torch.tensor([9, 3, 10, 4]), 20, torch.tensor([5, 5, 6, 6]))]
    [[2, 3], [0, 1]]
    """
    units: dict[int, list[int]] = {}
    for row, unit in enumerate(range(len(lengths)) if together is None else together.tolist()):
        units.setdefault(unit, []).append(row)
    longest = {unit: max(int(lengths[row]) for row in rows) for unit, rows in units.items()}
    parts: list[list[int]] = []
    width = 0
    for unit in sorted(units, key=lambda u: (-longest[u], units[u][0])):
        rows = units[unit]
        if parts and (len(parts[-1]) + len(rows)) * width <= budget:
            parts[-1] += rows
        else:
            parts.append([*rows])
            width = longest[unit]
    return [torch.tensor(part) for part in parts]


def joined(records: Sequence[Record]) -> Record:
    """Rows of several records one below the other, narrower ones padded."""
    if len(records) == 1:
        return records[0]
    whole: dict[str, Any] = {}
    for spec in fields(records[0]):  # type: ignore[arg-type]
        values = [getattr(r, spec.name) for r in records]
        if any(v is not None for v in values):
            like = next(v for v in values if v is not None)
            whole[spec.name] = _stacked(
                [v if v is not None else _zeros(r, like, spec.metadata) for r, v in zip(records, values, strict=True)]
            )
    return replace(records[0], **whole)  # type: ignore[type-var]


def _zeros(record: Any, like: Tensor, metadata: Mapping[Any, Any]) -> Tensor:
    """What a rank that lacks a field stands in with."""
    rows, width = record.loss_mask.shape
    shape = (rows, width) if metadata.get("per_token") else (rows, *like.shape[1:])
    return torch.zeros(shape, dtype=like.dtype)


def _stacked(values: list[Tensor]) -> Tensor:
    if values[0].ndim < 2:
        return torch.cat(values)
    width = max(v.shape[1] for v in values)
    return torch.cat([torch.nn.functional.pad(v, (0, width - v.shape[1])) for v in values])


def on(record: Record, device: torch.device | str) -> Record:
    """The record with its tensors on a device; itself if they are there."""
    if str(device) == "cpu":
        return record
    values = {f.name: getattr(record, f.name) for f in fields(record)}  # type: ignore[arg-type]
    moved = {name: value.to(device) for name, value in values.items() if value is not None}
    return replace(record, **moved)  # type: ignore[type-var]


def assembled(parts: Sequence[tuple[Tensor, Frozen]], loss_mask: Tensor) -> Frozen:
    """One `Frozen` in the batch's order and width from those of its micro-batches."""
    whole: dict[str, Any] = {}
    for spec in fields(Frozen):
        if spec.name == "loss_mask" or not parts or getattr(parts[0][1], spec.name) is None:
            continue
        first = getattr(parts[0][1], spec.name)
        shape = loss_mask.shape if first.ndim == 2 else loss_mask.shape[:1]
        field = torch.zeros(shape, dtype=first.dtype)
        for index, part in parts:
            value = getattr(part, spec.name).cpu()
            if value.ndim == 2:
                field[index, : value.shape[1]] = value
            else:
                field[index] = value
        whole[spec.name] = field
    return Frozen(loss_mask=loss_mask, **whole)


def _number(*parts: int) -> bytes:
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
