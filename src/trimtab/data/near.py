"""Near duplicates by MinHash: texts that share most of their runs of three words.

The share of equal entries of two signatures estimates the Jaccard similarity of the sets of runs (Broder 1997). Only rows
that agree in one of 16 bands of 4 entries are compared, each with the first row of that band.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from typing import Any

ENTRIES, BANDS = 64, 16
SIMILAR = 0.8
"""Of two rows that are called near duplicates, at least, in the estimate (its standard error is 0.05 there)."""
RUN = 3
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]+")
"""Chinese and Japanese have no spaces: each character is a word."""
_PRIME = (1 << 61) - 1


class Signatures:
    """Signatures of texts that come one after the other; 256 bytes each."""

    def __init__(self) -> None:
        import numpy

        self._np: Any = numpy
        draw = numpy.random.Generator(numpy.random.PCG64(0))
        self._factors = draw.integers(1, 1 << 31, (ENTRIES, 1), numpy.uint64)
        self._shifts = draw.integers(0, 1 << 31, (ENTRIES, 1), numpy.uint64)
        self._first: dict[bytes, int] = {}
        self._kept: list[Any] = []

    def add(self, text: str) -> int | None:
        """Number of an earlier text that this one is nearly equal to; None without one. Texts without words match none."""
        number = len(self._kept)
        signature = self._signature(text)
        self._kept.append(signature)
        if signature is None:
            return None
        width = ENTRIES // BANDS
        candidates = set()
        for band in range(BANDS):
            key = bytes([band]) + signature[band * width : (band + 1) * width].tobytes()
            candidates.add(self._first.setdefault(key, number))
        return next(
            (c for c in sorted(candidates - {number}) if self._similarity(signature, self._kept[c]) >= SIMILAR), None
        )

    def _signature(self, text: str) -> Any:
        runs = {zlib.crc32(run.encode("utf-8", "surrogatepass")) for run in _runs(text)}
        if not runs:
            return None
        hashes = self._np.fromiter(runs, self._np.uint64, len(runs))
        # below 2^32 times below 2^31 stays within 64 bits
        return ((self._factors * hashes + self._shifts) % _PRIME).min(axis=1).astype(self._np.uint32)

    def _similarity(self, one: Any, other: Any) -> float:
        return float((one == other).mean())


def _runs(text: str) -> Iterator[str]:
    words = _WORD.findall(text.casefold())
    if len(words) < RUN:
        return iter([" ".join(words)] if words else [])
    return (" ".join(words[place : place + RUN]) for place in range(len(words) - RUN + 1))
