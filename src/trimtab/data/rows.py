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
from dataclasses import dataclass, field, replace
from typing import Any, overload

from trimtab import not_json
from trimtab.data import beginnings, builtin, files, formats, preferences
from trimtab.data.columns import ColumnError, missing
from trimtab.data.messages import MessageError, arranged, has_half_a_pair, kind
from trimtab.errors import DataError, Finding

MAX_FINDINGS = 20
MAX_LACKING = 1000
"""So many rows that lack a column are counted; then no more is read."""
MAX_INTEGER = (1 << 63) - 1
MAX_DEPTH = 64
"""Lists and objects in each other."""


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
    nested: dict[str, int] = field(default_factory=dict)
    """Column -> the first row that has a list or an object there; no more than `MOST_SHAPES`."""


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

    def first_nested(self, column: str) -> int | None:
        """Number of the first row of the file with a list or an object there; None if it was met in none."""
        return self._index.nested.get(column)


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


def first_nested(rows: Sequence[Row], column: str) -> Row | None:
    """The first row with a list or an object in that column; None if there is none."""
    if isinstance(rows, Rows):
        number = rows.first_nested(column)
        return None if number is None else rows[number]
    return next((row for row in rows if isinstance(row.values.get(column), list | dict)), None)


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
        self._lacking: dict[tuple[str, str], tuple[int, int]] = {}
        """What a missing column is said with -> its place among the findings, and how many rows have the same fault."""
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
                for name, value in values.items():
                    if isinstance(value, list | dict) and len(index.nested) < MOST_SHAPES:
                        index.nested.setdefault(name, len(index.starts))
                index.starts.append(start)
                index.sizes.append(len(raw))
                index.lines.append(number)
            lacking = sum(count for _, count in self._lacking.values())
            if len(self.findings) >= MAX_FINDINGS or lacking >= MAX_LACKING or len(index.starts) == first:
                break
        if self.findings:
            raise DataError(self._told())
        if not index.starts:
            _refuse(f"{self.source}:1", "has no rows", "expected one JSON object a line")
        return Rows(self, opened.stored, index, range(len(index.starts)))

    def _told(self) -> list[Finding]:
        """The findings as they are shown: a column that several rows lack is one of them."""
        found = list(self.findings)
        for place, count in self._lacking.values():
            if count > 1:
                more = f"{'more than ' if count >= MAX_LACKING else ''}{count - 1:,} more row{'s' if count > 2 else ''}"
                found[place] = replace(found[place], what=f"{found[place].what} (so too in {more})")
        return found[:MAX_FINDINGS]

    def _lines(self, stored: files.Stored) -> Iterator[tuple[int, bytes]]:
        if self._has_columns and (other := beginnings.refused(self.source, stored.beginning(beginnings.LOOKED_AT))):
            _refuse(f"{self.source}:1:1", other.what, other.hint)
        yield from stored.lines()

    def _find(self, line: int, what: str, hint: str = "", column: int | None = None) -> None:
        place = f"{self.source}:{line}" + (f":{column}" if column and self._has_columns else "")
        self.findings.append(Finding(place=place, what=what, hint=hint))

    def row(self, line: int, raw: bytes, counts: Counter[str] | None = None) -> dict[str, Any] | None:
        """The row in a line as `Row.values` has it; None if it has faults, which `findings` then has."""
        before = len(self.findings)
        values = self.parsed(line, raw)
        if not isinstance(values, dict):
            if len(self.findings) == before:
                of_objects = isinstance(values, list) and values and isinstance(values[0], dict)
                hint = f"let the file's name end in .json, or: jq -c '.[]' {self.source} > NEW.jsonl"
                self._find(line, f"expected a JSON object, found {kind(values)}", hint if of_objects else "")
            return None
        named = self.renamed(values)
        if counts is not None:
            counts[formats.name_of(named)] += 1
        try:
            self._refuse_depth(raw, values)
            named = self._arranged(named)
            self._refuse_missing(named, values)
        except ColumnError as fault:
            self._find_once(line, fault)
            return None
        except MessageError as fault:
            self._find(line, fault.what, fault.hint)
            return None
        for name in () if self.required == preferences.PAIR else self.required:
            self._check(line, name, named)
        return named if len(self.findings) == before else None

    def _find_once(self, line: int, fault: ColumnError) -> None:
        place, count = self._lacking.get((fault.what, fault.hint), (len(self.findings), 0))
        if count == 0:
            self._find(line, fault.what, fault.hint)
        self._lacking[fault.what, fault.hint] = (place, count + 1)

    def _refuse_depth(self, raw: bytes, values: dict[str, Any]) -> None:
        """
        Raises:
            MessageError: with the first column that is nested more deeply than can be gone through.
        """
        if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH:
            for name, value in values.items():
                if _depth(value) >= MAX_DEPTH:
                    raise MessageError(*_too_deep(f"`{name}` is"))

    def _refuse_missing(self, named: dict[str, Any], values: dict[str, Any]) -> None:
        """
        Raises:
            ColumnError: with every column that is missing.
        """
        if self.required == preferences.PAIR or isinstance(named.get("prompt"), list):
            lacking = [name for name in self.required if name == "completion" and not {name, "messages"} & named.keys()]
            lacking = [] if self.required == preferences.PAIR else lacking
        else:
            lacking = [name for name in self.required if name not in named]
        if lacking:
            raise missing(lacking, list(values), called=self.columns)

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
            return self._find(line, *not_json.not_utf8(raw, error, self.source))
        try:
            start = len(text) - len(text.lstrip())
            value, end = self._decoder.raw_decode(text, start)
        except json.JSONDecodeError as error:
            fault = not_json.explained(text, error)
            return self._find(line, f"not JSON: {fault.what}", fault.hint, fault.column)
        except RecursionError:
            return self._find(line, *_too_deep("is"))
        except ValueError as error:
            return self._find(line, str(error))
        if text[end:].strip():
            what, hint = not_json.following(text[end:], self.source)
            return self._find(line, what, hint, end + 1)
        return value

    def renamed(self, values: dict[str, Any]) -> dict[str, Any]:
        named = {own: values[name] for own, name in self.columns.items() if name in values}
        taken = {*self.columns, *self.columns.values()}
        return named | {name: value for name, value in values.items() if name not in taken}

    def _check(self, line: int, name: str, named: dict[str, Any]) -> None:
        is_dialogue = isinstance(named.get("prompt"), list)
        if name == "completion" and is_dialogue and "messages" in named and self.required != preferences.LABELLED:
            last = named["messages"][-1]
            if not last["content"] and not last.get("tool_calls"):
                return self._find(line, "the last turn of the assistant is empty, expected text")
        if name == "label" or (is_dialogue and (name == "prompt" or "messages" in named)):
            return None  # checked already
        value = named[name]
        if not isinstance(value, str):
            return self._find(line, f"`{name}` is {kind(value)}, expected text or messages")
        if not value and not (name == "completion" and self.required == preferences.LABELLED):
            return self._find(line, f"`{name}` is empty, expected text")
        if has_half_a_pair(value):
            return self._find(line, f"`{name}` has half a surrogate pair, which is no character")
        return None


def _too_deep(of: str) -> tuple[str, str]:
    return (
        f"{of} nested more than {MAX_DEPTH} levels deep",
        "a row holds text, numbers, and lists and objects of a few levels",
    )


def _depth(value: Any) -> int:
    """How many lists and objects are in each other, at most `MAX_DEPTH`."""
    level, inside = 0, [value]
    while level < MAX_DEPTH and (inside := [v for v in inside if isinstance(v, dict | list)]):
        inside = [member for v in inside for member in (v.values() if isinstance(v, dict) else v)]
        level += 1
    return level


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
