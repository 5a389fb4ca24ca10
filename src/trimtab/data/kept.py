"""What is made of the rows that are kept: made again whenever it is asked for, so that memory does not grow with them."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar, overload

if TYPE_CHECKING:
    from trimtab.data.rows import Row

Made = TypeVar("Made")
CACHED = 1024
"""So many that were asked for last stay in memory."""


class Kept(Sequence[Made], Generic[Made]):
    """A sequence over some of the rows, in their order; 4 bytes for each.

    `make` gives the same for the same row, always.
    """

    def __init__(self, rows: Sequence[Row], make: Callable[[Row], Made]) -> None:
        self._rows = rows
        self._make = make
        self._numbers = array("I")
        self._newest: OrderedDict[int, Made] = OrderedDict()

    def keep(self, number: int, made: Made) -> None:
        """The row with that place among the rows stays, and this is made of it."""
        self._numbers.append(number)
        if len(self._newest) < CACHED:
            self._newest[number] = made

    def rows(self) -> Iterator[Row]:
        """The rows that are kept, as they are."""
        return (self._rows[number] for number in self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, place: int) -> Made: ...
    @overload
    def __getitem__(self, place: slice) -> list[Made]: ...
    def __getitem__(self, place: int | slice) -> Made | list[Made]:
        if isinstance(place, slice):
            return [self._made(number) for number in self._numbers[place]]
        return self._made(self._numbers[place])

    def _made(self, number: int) -> Made:
        if number in self._newest:
            self._newest.move_to_end(number)
            return self._newest[number]
        made = self._newest[number] = self._make(self._rows[number])
        if len(self._newest) > CACHED:
            self._newest.popitem(last=False)
        return made
