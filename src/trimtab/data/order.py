"""In which order rows are met: a permutation an epoch, made by a hash, so that it needs no generator's state."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Mapping, Sequence
from typing import Any


class Order:
    """An endless stream of row numbers with a cursor. Every row once an epoch, whatever the batch size.

    >>> order = Order(5, seed=0, shuffle=False)
    >>> order.take(3), order.take(3)
    ([0, 1, 2], [3, 4, 0])
    """

    def __init__(self, count: int, *, seed: int, shuffle: bool) -> None:
        self.count = count
        self.seed = seed
        self.shuffle = shuffle
        self.drawn = 0
        """Rows given out since the start."""
        self._epoch = -1
        self._rows: Sequence[int] = ()

    def take(self, size: int) -> list[int]:
        """The next `size` row numbers; the cursor moves."""
        found = []
        for place in range(self.drawn, self.drawn + size):
            epoch, offset = divmod(place, self.count)
            if epoch != self._epoch:
                self._epoch, self._rows = epoch, self._permutation(epoch)
            found.append(self._rows[offset])
        self.drawn += size
        return found

    @property
    def epoch(self) -> int:
        """Passes begun, from 1; 0 before the first row."""
        return -(-self.drawn // self.count)

    def _permutation(self, epoch: int) -> Sequence[int]:
        if not self.shuffle:
            return range(self.count)
        import numpy

        # in arrays: with objects of Python it takes 150 bytes a row
        keys = numpy.fromiter((_number(self.seed, epoch, row) for row in range(self.count)), numpy.uint64, self.count)
        return array("Q", keys.argsort(kind="stable").astype(numpy.uint64).tobytes())

    def state(self) -> Mapping[str, Any]:
        return {"drawn": self.drawn}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.drawn = int(state["drawn"])


def _number(*parts: int) -> int:
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "big")
