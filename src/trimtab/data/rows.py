"""Reading rows: every fault with its place, up to twenty at once, before anything is trained.

A file is gone through once; then it is known where each row lies, and a row is read when it is asked for. So memory grows
by 16 bytes a row, not with the file.
"""

from __future__ import annotations

import json
import math
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

from trimtab.data import builtin, files, formats, preferences
from trimtab.data.messages import MessageError, arranged, has_half_a_pair, kind
from trimtab.errors import DataError, Finding

MAX_FINDINGS = 20
MAX_INTEGER = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    id: int
    """The row's number, from 0, blank lines not counted."""
    place: str
    """`file:line`; of Parquet and data sets the number is the row's, from 1."""
    values: Mapping[str, Any]
    """By our names, after `data.columns`; a conversation as `messages.arranged` leaves it."""


@dataclass(slots=True, kw_only=True)
class _Index:
    """Where the rows of a file lie, and what was met on the way."""

    starts: array[int] = field(default_factory=lambda: array("Q"))
    sizes: array[int] = field(default_factory=lambda: array("I"))
    lines: array[int] = field(default_factory=lambda: array("I"))
    counts: Counter[str] = field(default_factory=Counter)
    """Form of a row -> how many rows have it."""
    columns: dict[frozenset[str], int] = field(default_factory=dict)
    """Columns that rows have together -> the first row that has them; no more than `MOST_SHAPES`."""


MOST_SHAPES = 1000


class Rows(Sequence[Row]):
    """The rows of a file that has been checked. Each is read and parsed when it is asked for, and not kept."""

    def __init__(self, reader: _Reader, stored: files.Stored, index: _Index, chosen: range) -> None:
        self._reader, self._stored, self._index, self._chosen = reader, stored, index, chosen

    def __len__(self) -> int:
        return len(self._chosen)

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> Rows: ...
    def __getitem__(self, place: int | slice) -> Row | Rows:
        if isinstance(place, slice):
            return Rows(self._reader, self._stored, self._index, self._chosen[place])
        number = self._chosen[place]
        line = self._index.lines[number]
        values = self._reader.row(line, self._raw(number))
        if values is None:
            raise DataError(self._reader.findings[:MAX_FINDINGS])
        return Row(id=number, place=f"{self._reader.source}:{line}", values=values)

    def raw(self, place: int) -> bytes:
        """The row's JSON as it stands in the file."""
        return self._raw(self._chosen[place])

    def _raw(self, number: int) -> bytes:
        return self._stored.read(self._index.starts[number], self._index.sizes[number])

    @property
    def formats(self) -> Mapping[str, int]:
        """Form of a row -> how many rows of the file have it."""
        return self._index.counts

    def first_without(self, column: str) -> int | None:
        """Number of the first row of the file without that column; None if all have it."""
        if len(self._index.columns) >= MOST_SHAPES:
            return next((row.id for row in self if column not in row.values), None)
        return min((row for names, row in self._index.columns.items() if column not in names), default=None)


def read(
    source: str,
    columns: Mapping[str, str],
    required: tuple[str, ...],
    *,
    held_out: bool = False,
    first: int | None = None,
) -> Sequence[Row]:
    """All rows of a file or built-in task.

    Args:
        source: a file in one of the forms of `files.opened`, or `builtin:addition`.
        columns: our name -> the file's name.
        required: our names that every row must have, as non-empty text or as messages; a `messages` column stands for
            a prompt, or for prompt and completion. `preferences.PAIR` and `LABELLED` are rows of those forms.
        held_out: of a built-in task, the rows that are kept for validation.
        first: read no more rows than that.
    Raises:
        DataError: with up to twenty findings, each at its `file:line`.
        MissingExtraError: the form needs a library that is not installed.
    """
    if source in builtin.NAMES:
        made = builtin.rows(required, held_out=held_out)
        return [Row(id=i, place=f"{source}:{i + 1}", values=values) for i, values in enumerate(made)][:first]
    if source.startswith("builtin:"):
        _refuse(source, f"no built-in task has that name, there is {', '.join(builtin.NAMES)}")
    return _Reader(source, columns, required).rows(files.opened(source, first), first)


def parse(lines: bytes, source: str, columns: Mapping[str, str], required: tuple[str, ...]) -> Rows:
    """Rows from JSON lines that are in memory, under the same rules; `source` is what faults are said to be in."""
    return _Reader(source, columns, required).rows(files.Opened(stored=files.Stored.of_bytes(source, lines)))


def first_values(source: str, columns: Mapping[str, str]) -> Mapping[str, Any]:
    """The first row of a file that is a JSON object, as it stands but for the names of its columns; {} without one."""
    if source in builtin.NAMES:
        return next(builtin.rows(("prompt",), held_out=False))
    reader = _Reader(source, columns, ())
    for _, raw in files.opened(source, 1).stored.lines():
        values = reader.parsed(1, raw) if raw.strip() else None
        if isinstance(values, dict):
            return reader.renamed(values)
    return {}


def first_without(rows: Sequence[Row], column: str) -> str | None:
    """Place of the first row without that column; None if all have it."""
    if isinstance(rows, Rows):
        number = rows.first_without(column)
        return None if number is None else rows[number].place
    return next((row.place for row in rows if column not in row.values), None)


def remarks(rows: Sequence[Row]) -> list[str]:
    """What is to be said about the form of a file's rows."""
    return formats.remarks(rows.formats) if isinstance(rows, Rows) else []


def _refuse(place: str, what: str, hint: str = "") -> None:
    raise DataError([Finding(place=place, what=what, hint=hint)])


class _Reader:
    def __init__(self, source: str, columns: Mapping[str, str], required: tuple[str, ...]) -> None:
        self.source = source
        self.columns = columns
        self.required = required
        self.findings: list[Finding] = []
        self._has_columns = True
        self._decoder = json.JSONDecoder(
            object_pairs_hook=_without_duplicates,
            parse_constant=_no_constant,
            parse_int=_bounded_integer,
            parse_float=_finite,
        )

    def rows(self, opened: files.Opened, first: int | None = None) -> Rows:
        index, number = _Index(), 0
        self._has_columns = opened.numbers is None
        for count, (start, raw) in enumerate(self._lines(opened.stored)):
            number = count + 1 if opened.numbers is None else opened.numbers[count]
            if not raw.strip():
                continue
            values = self.row(number, raw, index.counts)
            if values is not None:
                names = frozenset(values)
                if names not in index.columns and len(index.columns) < MOST_SHAPES:
                    index.columns[names] = len(index.starts)
                index.starts.append(start)
                index.sizes.append(len(raw))
                index.lines.append(number)
            if len(self.findings) >= MAX_FINDINGS or len(index.starts) == first:
                break
        if self.findings:
            raise DataError(self.findings[:MAX_FINDINGS])
        if not index.starts:
            _refuse(f"{self.source}:1", "has no rows", "expected one JSON object a line")
        return Rows(self, opened.stored, index, range(len(index.starts)))

    def _lines(self, stored: files.Stored) -> Iterator[tuple[int, bytes]]:
        for start, raw in stored.lines():
            if start == 0 and raw.startswith((b"\xff\xfe", b"\xfe\xff")):
                _refuse(f"{self.source}:1:1", "is UTF-16", f"convert it: iconv -f UTF-16 -t UTF-8 {self.source}")
            yield start, raw

    def _find(self, line: int, what: str, hint: str = "", column: int | None = None) -> None:
        place = f"{self.source}:{line}" + (f":{column}" if column and self._has_columns else "")
        self.findings.append(Finding(place=place, what=what, hint=hint))

    def row(self, line: int, raw: bytes, counts: Counter[str] | None = None) -> dict[str, Any] | None:
        """The row in a line as `Row.values` has it; None if it has faults, which `findings` then has."""
        before = len(self.findings)
        values = self.parsed(line, raw)
        if not isinstance(values, dict):
            if len(self.findings) == before:
                self._find(line, f"expected a JSON object, found {kind(values)}")
            return None
        named = self.renamed(values)
        if counts is not None:
            counts[formats.name_of(named)] += 1
        try:
            named = self._arranged(named)
        except MessageError as fault:
            self._find(line, fault.what, fault.hint)
            return None
        for name in () if self.required == preferences.PAIR else self.required:
            self._check(line, name, named, values)
        return named if len(self.findings) == before else None

    def _arranged(self, values: dict[str, Any]) -> dict[str, Any]:
        values = formats.adapted(values, as_pair=self.required == preferences.PAIR)
        if self.required == preferences.PAIR:
            return preferences.arranged_pair(values)
        if self.required == preferences.LABELLED:
            return preferences.arranged_label(values)
        return arranged(values, with_answers="completion" in self.required)

    def parsed(self, line: int, raw: bytes) -> Any:
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            byte = f"0x{raw[error.start]:02x}"
            hint = f"convert it, such as: iconv -f GBK -t UTF-8 {self.source}"
            return self._find(line, f"not UTF-8: byte {byte} at offset {error.start} of the line", hint)
        try:
            start = len(text) - len(text.lstrip())
            value, end = self._decoder.raw_decode(text, start)
        except json.JSONDecodeError as error:
            return self._find(line, f"not JSON: {error.msg}", column=error.colno)
        except RecursionError:
            return self._find(line, "nested too deeply")
        except ValueError as error:
            return self._find(line, str(error))
        if rest := text[end:].strip():
            return self._find(line, f"more than one value on the line: {rest[:40]!r} follows", column=end + 1)
        return value

    def renamed(self, values: dict[str, Any]) -> dict[str, Any]:
        named = {own: values[name] for own, name in self.columns.items() if name in values}
        taken = {*self.columns, *self.columns.values()}
        return named | {name: value for name, value in values.items() if name not in taken}

    def _check(self, line: int, name: str, named: dict[str, Any], values: dict[str, Any]) -> None:
        if name == "label" or (isinstance(named.get("prompt"), list) and (name == "prompt" or "messages" in named)):
            return None  # checked already
        if name not in named:
            wanted = self.columns.get(name, name)
            hint = f"name the column that holds it: data.columns: {{{name}: ...}}"
            return self._find(line, f"no column `{wanted}`, found {', '.join(map(repr, values))}", hint)
        value = named[name]
        if not isinstance(value, str):
            return self._find(line, f"`{name}` is {kind(value)}, expected text or messages")
        if not value and not (name == "completion" and self.required == preferences.LABELLED):
            return self._find(line, f"`{name}` is empty")
        if has_half_a_pair(value):
            return self._find(line, f"`{name}` has half a surrogate pair, which is no character")
        return None


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise ValueError(f"key {twice!r} stands twice in one object")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON; write a number or null")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"the number {digits[:24]} is too large; write it as text")
    return value


def _bounded_integer(digits: str) -> int:
    if len(digits) > 20 or abs(int(digits)) > MAX_INTEGER:
        raise ValueError(f"the integer {digits[:24]} does not fit into 64 bits; write it as text")
    return int(digits)
