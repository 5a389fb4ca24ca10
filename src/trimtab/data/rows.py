"""Reading JSONL: every fault with its place, up to twenty at once, before anything is trained."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab.data import builtin, preferences
from trimtab.data.messages import MessageError, arranged, has_half_a_pair, kind
from trimtab.errors import DataError, Finding

MAX_FINDINGS = 20
MAX_INTEGER = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    id: int
    """The row's number, from 0, blank lines not counted."""
    place: str
    """`file:line`."""
    values: Mapping[str, Any]
    """By our names, after `data.columns`; a conversation as `messages.arranged` leaves it."""


def read(
    source: str,
    columns: Mapping[str, str],
    required: tuple[str, ...],
    *,
    held_out: bool = False,
    first: int | None = None,
) -> list[Row]:
    """All rows of a file or built-in task.

    Args:
        source: a JSONL file, or `builtin:addition`.
        columns: our name -> the file's name.
        required: our names that every row must have, as non-empty text or as messages; a `messages` column stands for
            a prompt, or for prompt and completion. `preferences.PAIR` and `LABELLED` are rows of those forms.
        held_out: of a built-in task, the rows that are kept for validation.
        first: read no more rows than that.
    Raises:
        DataError: with up to twenty findings, each at its `file:line`.
    """
    if source in builtin.NAMES:
        made = builtin.rows(required, held_out=held_out)
        return [Row(id=i, place=f"{source}:{i + 1}", values=values) for i, values in enumerate(made)][:first]
    if source.startswith("builtin:"):
        _refuse(source, f"no built-in task has that name, there is {', '.join(builtin.NAMES)}")
    return _Reader(source, columns, required).rows(first)


def parse(lines: bytes, source: str, columns: Mapping[str, str], required: tuple[str, ...]) -> list[Row]:
    """Rows from JSON lines that are in memory, under the same rules; `source` is what faults are said to be in."""
    return _Reader(source, columns, required).parsed(lines)


def _refuse(place: str, what: str, hint: str = "") -> None:
    raise DataError([Finding(place=place, what=what, hint=hint)])


class _Reader:
    def __init__(self, source: str, columns: Mapping[str, str], required: tuple[str, ...]) -> None:
        self.source = source
        self.columns = columns
        self.required = required
        self.findings: list[Finding] = []

    def rows(self, first: int | None) -> list[Row]:
        path = Path(self.source)
        if path.is_dir():
            _refuse(self.source, "is a directory, expected a JSONL file")
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            _refuse(self.source, "no such file", "give a JSONL file, or builtin:addition")
        except OSError as error:
            _refuse(self.source, f"cannot be read: {error.strerror}")
        return self.parsed(data, first)

    def parsed(self, data: bytes, first: int | None = None) -> list[Row]:
        found: list[Row] = []
        for line, raw in self._lines(data):
            values = self._row(line, raw)
            if values is not None:
                found.append(Row(id=len(found), place=f"{self.source}:{line}", values=values))
            if len(self.findings) >= MAX_FINDINGS or len(found) == first:
                break
        if self.findings:
            raise DataError(self.findings[:MAX_FINDINGS])
        if not found:
            _refuse(f"{self.source}:1", "has no rows", "expected one JSON object a line")
        return found

    def _lines(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        if data.startswith((b"\xff\xfe", b"\xfe\xff")):
            _refuse(f"{self.source}:1:1", "is UTF-16", f"convert it: iconv -f UTF-16 -t UTF-8 {self.source}")
        for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
            if raw.strip():
                yield number, raw

    def _find(self, line: int, what: str, hint: str = "", column: int | None = None) -> None:
        place = f"{self.source}:{line}" + (f":{column}" if column else "")
        self.findings.append(Finding(place=place, what=what, hint=hint))

    def _row(self, line: int, raw: bytes) -> dict[str, Any] | None:
        before = len(self.findings)
        values = self._parse(line, raw)
        if not isinstance(values, dict):
            if len(self.findings) == before:
                self._find(line, f"expected a JSON object, found {kind(values)}")
            return None
        try:
            named = self._arranged(self._renamed(values))
        except MessageError as fault:
            self._find(line, fault.what, fault.hint)
            return None
        for name in () if self.required == preferences.PAIR else self.required:
            self._check(line, name, named, values)
        return named if len(self.findings) == before else None

    def _arranged(self, values: dict[str, Any]) -> dict[str, Any]:
        if self.required == preferences.PAIR:
            return preferences.arranged_pair(values)
        if self.required == preferences.LABELLED:
            return preferences.arranged_label(values)
        return arranged(values, with_answers="completion" in self.required)

    def _parse(self, line: int, raw: bytes) -> Any:
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            byte = f"0x{raw[error.start]:02x}"
            hint = f"convert it, such as: iconv -f GBK -t UTF-8 {self.source}"
            return self._find(line, f"not UTF-8: byte {byte} at offset {error.start} of the line", hint)
        try:
            decoder = json.JSONDecoder(
                object_pairs_hook=_without_duplicates,
                parse_constant=_no_constant,
                parse_int=_bounded_integer,
                parse_float=_finite,
            )
            start = len(text) - len(text.lstrip())
            value, end = decoder.raw_decode(text, start)
        except json.JSONDecodeError as error:
            return self._find(line, f"not JSON: {error.msg}", column=error.colno)
        except RecursionError:
            return self._find(line, "nested too deeply")
        except ValueError as error:
            return self._find(line, str(error))
        if rest := text[end:].strip():
            return self._find(line, f"more than one value on the line: {rest[:40]!r} follows", column=end + 1)
        return value

    def _renamed(self, values: dict[str, Any]) -> dict[str, Any]:
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
    seen: dict[str, Any] = {}
    for name, value in pairs:
        if name in seen:
            raise ValueError(f"key {name!r} stands twice in one object")
        seen[name] = value
    return seen


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
