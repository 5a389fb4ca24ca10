"""How many tokens one pass over the models has: halved where memory does not suffice, and kept so.

What a pass that failed has left behind is thrown away and the work it was part of is done again in smaller passes. The
shares of any cut add up to the same loss and gradient, so only memory and speed change.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from trimtab import heartbeat
from trimtab.errors import OutOfMemoryError
from trimtab.train import batches
from trimtab.train.ranks import Ranks

Result = TypeVar("Result")
SAID = ("can't allocate memory", "not enough memory", "out of memory", "bad_alloc", "cannot allocate memory")
"""In what torch, the C++ library and the system say where memory does not suffice, in small letters."""


def is_shortage(error: BaseException) -> bool:
    """Whether memory did not suffice, of the computer or of a device.

    >>> is_shortage(MemoryError()), is_shortage(RuntimeError("CUDA error: an illegal memory access was encountered"))
    (True, False)
    """
    if isinstance(error, OutOfMemoryError | MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError | OSError) and any(words in str(error).lower() for words in SAID)


def asked_bytes(error: BaseException) -> float | None:
    """How much was asked for when it did not suffice, if the error says so.

    >>> asked_bytes(RuntimeError("can't allocate memory: you tried to allocate 512000 bytes. Error code 12"))
    512000.0
    >>> asked_bytes(RuntimeError("CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has ..."))
    1610612736.0
    """
    found = re.search(r"tried to allocate ([\d.]+) (bytes|KiB|MiB|GiB)", str(error), re.IGNORECASE)
    if found is None:
        return None
    return float(found[1]) * {"bytes": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30}[found[2].lower()]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pass:
    """The pass in progress."""

    rows: int
    width: int
    """Tokens of its longest row; the others are padded to it."""
    is_least: bool
    """One row, or one pair: it cannot be cut."""

    @property
    def tokens(self) -> int:
        return self.rows * self.width


class Passes:
    """Does work in passes of at most `tokens` tokens, padding included, at least one row (or pair) each."""

    def __init__(self, tokens: int, ranks: Ranks, device: Callable[[], torch.device]) -> None:
        self.tokens = tokens
        self.ranks = ranks
        self.device = device
        self.halvings = 0
        """Of this rank, since it began."""
        self._now: _Pass | None = None

    def micro_batches(self, lengths: Tensor, together: Tensor | None = None) -> Iterator[Tensor]:
        """Row numbers of each pass, as `batches.micro_batches` cuts them."""
        for index in batches.micro_batches(lengths, self.tokens, together):
            units = len(index) if together is None else len(together[index].unique())
            heartbeat.beat("trainer")
            self._now = _Pass(rows=len(index), width=int(lengths[index].max()), is_least=units == 1)
            yield index
        self._now = None

    def done(self, work: Callable[[], Result], *, discard: Callable[[], None] = lambda: None) -> Result:
        """What `work` gives, which is begun again with smaller passes where memory does not suffice for one.

        Args:
            work: makes its passes over `micro_batches`, and nothing that other ranks must join in.
            discard: undoes what `work` has done so far.

        Raises:
            OutOfMemoryError: on every rank, if a pass over one row (or pair) does not fit on one of them.
        """
        found: list[Result] = []
        fault = self._now = None
        random = _random_state(self.device())
        while not found and fault is None:
            shortage = None
            try:
                found = [work()]
            except Exception as error:
                if not is_shortage(error):
                    raise
                shortage = OutOfMemoryError(_first_line(error), asked=asked_bytes(error))
            if shortage is not None:  # outside of the handler, whose traceback holds what the pass had made
                discard()
                _put_back(random, self.device())
                _release()
                fault = self._halve(shortage)
        faults = [f for f in self._of_all_ranks(fault) if f is not None]
        if faults:
            raise faults[0]
        return found[0]

    def _halve(self, shortage: OutOfMemoryError) -> OutOfMemoryError | None:
        """Cut passes smaller than the one that failed; what to raise if that is not possible."""
        now, self._now = self._now, None
        failed = self.tokens if now is None else min(now.tokens, self.tokens)
        if failed <= 1 or (now is not None and now.is_least):
            where = "a pass over the models" if now is None else f"a pass of {now.rows} x {now.width} tokens"
            words = f"{where} does not fit" + ("" if shortage.asked else f": {shortage}")
            return OutOfMemoryError(words, asked=shortage.asked, tokens=failed)
        while self.tokens >= failed:
            self.tokens //= 2
        self.halvings += 1
        return None

    def _of_all_ranks(self, fault: OutOfMemoryError | None) -> list[OutOfMemoryError | None]:
        """Every rank's fault; asked for only if there is one anywhere."""
        if self.ranks.size == 1 or not float(self.ranks.max(torch.tensor([float(fault is not None)]))):
            return [fault]
        return self.ranks.gather(fault)


def _random_state(device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Where the random numbers of this process and its device stand."""
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def _put_back(state: tuple[Tensor, Tensor | None], device: torch.device) -> None:
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1], device)


def _release() -> None:
    """Give back what only a traceback or a cycle held."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
