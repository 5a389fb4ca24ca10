"""Rows of one pass laid end to end in fewer, so that less of the pass is padding. No row sees another.

Positions begin anew with each row. From that transformers knows which tokens belong together and builds the mask of every
attention layer, sliding windows included, from causality within a row alone. Who asks gets the states of each row as if
it had been padded: what a batch is, what is averaged over and what is recorded are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trimtab.errors import ModelError

KEY = "data.packing"
PROBE = ((5, 3, 4), (7, 5))
"""Tokens of the rows that show whether an architecture keeps rows apart: several in a packed row, several packed rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """The rows of a pass in fewer rows."""

    tokens: Tensor
    """[P, W] int64."""
    positions: Tensor
    """[P, W] int64, from 0 in each row; the padding behind is a row of its own."""
    places: Tensor
    """[B, S] int64, where a row's token stands among the P x W; 0 behind its end."""

    def apart(self, states: Tensor) -> Tensor:
        """[P, W, d] -> [B, S, d]; anything behind a row's end."""
        found: Tensor = states.flatten(0, 1)[self.places]
        return found


def packed(tokens: Tensor, lengths: Tensor) -> Packed | None:
    """Rows [B, S], padded behind, in as few rows as wide as the longest of them; None if that makes no fewer.

    Args:
        lengths: [B] int64, tokens of each row.
    """
    sizes = lengths.tolist()
    width = max(sizes, default=0)
    bins = bins_of(sizes, width)
    if not width or len(bins) == len(sizes):
        return None
    whole = tokens.new_zeros(len(bins), width)
    positions = torch.zeros(len(bins), width, dtype=torch.int64)
    places = torch.zeros(tokens.shape, dtype=torch.int64)
    for number, rows in enumerate(bins):
        start = 0
        for row in rows:
            size = sizes[row]
            whole[number, start : start + size] = tokens[row, :size]
            positions[number, start : start + size] = torch.arange(size)
            places[row, :size] = torch.arange(size) + number * width + start
            start += size
        positions[number, start:] = torch.arange(width - start)
    return Packed(tokens=whole, positions=positions.to(tokens.device), places=places.to(tokens.device))


def bins_of(sizes: Sequence[int], width: int) -> list[list[int]]:
    """Row numbers that together have at most `width` tokens: the longest first, each where it fits first.

    >>> bins_of([3, 9, 5, 1, 2], 10)
    [[1, 3], [2, 0, 4]]
    """
    bins: list[list[int]] = []
    room: list[int] = []
    for row in sorted(range(len(sizes)), key=lambda r: (-sizes[r], r)):
        place = next((n for n, left in enumerate(room) if left >= sizes[row]), None)
        if place is None:
            place = len(bins)
            bins.append([])
            room.append(width)
        bins[place].append(row)
        room[place] -= sizes[row]
    return bins


def states_of(trunk: Any, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
    """[B, S, d] of a trunk for right-padded rows. No attention mask: what is causal never looks at padding behind.

    Args:
        lengths: [B] int64, tokens of each row, to pack them; None computes them as they stand.
    """
    whole = None if lengths is None else packed(tokens, lengths)
    if whole is None:
        found: Tensor = trunk(input_ids=tokens, use_cache=False).last_hidden_state
        return found
    states = trunk(input_ids=whole.tokens, position_ids=whole.positions, use_cache=False).last_hidden_state
    return whole.apart(states)


@torch.no_grad()
def refuse_what_mixes_rows(trunk: Any, name: str) -> None:
    """Look whether rows that are packed have the states that each has alone.

    Args:
        trunk: in the precision in which it was loaded.
        name: of the model's class.
    Raises:
        ModelError: they have not, or the architecture takes no positions.
    """
    what = f"{KEY}: true, but {name} does not keep packed rows apart"
    hint = "set it to false; llama, qwen2, qwen3, gemma3, mistral, gpt2 and most that know positions can be packed"
    sizes = [size for sizes in PROBE for size in sizes]
    tokens = torch.arange(sum(sizes), device=trunk.device) % trunk.config.get_text_config().vocab_size
    rows = torch.nn.utils.rnn.pad_sequence(list(tokens.split(sizes)), batch_first=True)
    lengths = torch.tensor(sizes, device=trunk.device)
    try:
        together = states_of(trunk, rows, lengths).float()
    except TypeError as error:
        raise ModelError(f"{what}: it takes no positions; {hint}") from error
    for row, size in enumerate(sizes):
        alone = states_of(trunk, rows[row : row + 1, :size])[0].float()
        tolerance = (3e-2 if trunk.dtype.itemsize == 2 else 1e-4) * max(1.0, float(alone.abs().max()))
        if not bool(((together[row, :size] - alone).abs() <= tolerance).all()):
            raise ModelError(f"{what}: a token of one changes the states of another; {hint}")
