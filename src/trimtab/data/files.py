"""Where the lines of a data file are: read again by place when they are needed, so that memory does not grow with it.

JSON lines are read where they lie. Everything else (gzip, a JSON array, Parquet, a Hugging Face data set) is written once
as JSON lines into a temporary file without a name, which the system removes when the process ends.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import stat
import tempfile
import zlib
from array import array
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO
from uuid import UUID

from trimtab import not_json
from trimtab.errors import DataError, Finding, MissingExtraError, nearest

HELD_BYTES = 32 << 20
"""Smaller files are kept in memory."""
WHOLE_BYTES = 256 << 20
"""A JSON array is parsed in one piece; a larger one is refused."""
BATCH = 1000
"""Rows of a Parquet file that are in memory at once."""
HUB = "hf:"
_MARK = b"\xef\xbb\xbf"
_GZIP, _PARQUET = b"\x1f\x8b", b"PAR1"


class Stored:
    """Bytes that are read by place."""

    def __init__(self, name: str, file: BinaryIO) -> None:
        self.name = name
        self._held: bytes | None = None
        self._file = file
        status = os.fstat(file.fileno())
        self._known = (status.st_size, status.st_mtime_ns)
        if not stat.S_ISREG(status.st_mode) or status.st_size <= HELD_BYTES:
            file.seek(0) if file.seekable() else None
            self._hold(file.read())
            file.close()

    @classmethod
    def of_bytes(cls, name: str, data: bytes) -> Stored:
        """Bytes that are in memory already."""
        found = cls.__new__(cls)
        found.name = name
        found._hold(data)
        return found

    def _hold(self, data: bytes) -> None:
        self._held = data

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Every line without its end, and where it begins. A byte order mark in front is no part of it."""
        if self._held is None:
            self._file.seek(0)
        place, file = 0, self._file if self._held is None else io.BytesIO(self._held)
        for raw in file:
            text = raw.removesuffix(b"\n")
            if place == 0 and text.startswith(_MARK):
                yield len(_MARK), text[len(_MARK) :]
            else:
                yield place, text
            place += len(raw)

    def beginning(self, size: int) -> bytes:
        """The first bytes, no more than there are."""
        return self.read(0, size if self._held is not None else min(size, self._known[0]))

    def read(self, start: int, size: int) -> bytes:
        """
        Raises:
            DataError: the file was changed since it was opened, or cannot be read any more.
        """
        if self._held is not None:
            return self._held[start : start + size]
        try:
            status = os.fstat(self._file.fileno())
            found = os.pread(self._file.fileno(), size, start)
        except OSError as error:
            raise _fault(self.name, f"cannot be read any more: {error.strerror}") from None
        if (status.st_size, status.st_mtime_ns) != self._known or len(found) != size:
            what = "was changed while it was being read, so that what was checked no longer holds"
            raise _fault(self.name, what, "write a new file beside it and rename that")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A file's lines of JSON."""

    stored: Stored
    numbers: array[int] | None = None
    """The line at which each stored line begins in the file itself; None where that is the same."""


def opened(source: str, first: int | None = None) -> Opened:
    """A file in any of the forms that are known by its name.

    Args:
        source: `x.jsonl` or any other name, `.gz`, `.json` (an array of objects, or lines), `.parquet`; `hf:NAME[:SPLIT]`
            is a data set of Hugging Face or a directory with one.
        first: of Parquet and data sets, no more rows than that.
    Raises:
        DataError: it is not there, cannot be read, or is not what its name says.
        MissingExtraError: Parquet or a data set, without the libraries for it.
    """
    if source.startswith(HUB):
        return Opened(stored=_of_hub(source, first))
    if not source:
        raise _fault("data", "the name of the file is empty", "give a JSONL file, or builtin:addition")
    path = Path(source)
    try:
        if path.is_dir():
            raise _fault(
                source, "is a directory, expected a JSONL file", f"a data set that was saved there is {HUB}{source}"
            )
        if path.suffix == ".parquet":
            return Opened(stored=_of_parquet(source, first))
        if path.suffix == ".gz":
            return Opened(stored=_of_gzip(source))
        file = path.open("rb")
        if path.suffix == ".json" and file.peek(1 << 16).removeprefix(_MARK).lstrip()[:1] == b"[":
            with file:
                return _of_array(source, file)
        return Opened(stored=Stored(source, file))
    except FileNotFoundError:
        raise _fault(source, "no such file", _instead_of(path)) from None
    except (OSError, ValueError) as error:  # a name with a NUL in it is a ValueError
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise _fault(source, f"cannot be read: {reason}") from None


def _instead_of(path: Path) -> str:
    """What to do about a file that is not there."""
    if "://" in str(path).replace(":/", "://"):
        return "it is an address: download the file, and give its path"
    if str(path).startswith("~"):
        return "`~` is not read here: write the directory out"
    with suppress(OSError):
        names = {other.name.partition(".")[0]: other.name for other in path.parent.iterdir() if other.is_file()}
        if near := nearest(path.name.partition(".")[0], names):
            return f"did you mean {names[near]}?"
    return "give a JSONL file, or builtin:addition"


def fingerprint(source: str) -> str:
    """SHA-256 of the rows of a data set, as JSON lines."""
    found = hashlib.sha256()
    for _, line in opened(source).stored.lines():
        found.update(line + b"\n")
    return found.hexdigest()


def _fault(place: str, what: str, hint: str = "") -> DataError:
    return DataError([Finding(place=place, what=what, hint=hint)])


# ------------------------------------------------------------------------------------------------------- other forms
def _of_gzip(source: str) -> Stored:
    scratch = tempfile.TemporaryFile()  # noqa: SIM115 - it is kept
    try:
        with gzip.open(source, "rb") as packed:
            while piece := packed.read(1 << 20):
                scratch.write(piece)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise _gzip_fault(source, error) from None
    return _kept(source, scratch)


def _gzip_fault(source: str, error: Exception) -> DataError:
    with Path(source).open("rb") as file:
        start = file.read(2)
    if start != _GZIP:
        return _fault(source, f"is no gzip: it begins with {start!r}", "let its name end as what it is, such as .jsonl")
    reason = str(error).removeprefix("Error -3 while decompressing data: ")
    if isinstance(error, EOFError):
        reason = "its end is cut off"
    elif "Not a gzipped file" in reason:
        reason = "something else follows the packed data"
    elif reason.startswith(("CRC check failed", "Incorrect length")):
        reason = "its checksum is not that of the data"
    return _fault(source, f"is not whole gzip: {reason}", "fetch it again, or pack it again: gzip FILE")


def _of_array(source: str, file: BinaryIO) -> Opened:
    """Each element on a line of its own; the numbers are the lines at which they begin."""
    if os.fstat(file.fileno()).st_size > WHOLE_BYTES:
        what = f"is a JSON array of more than {WHOLE_BYTES >> 20} MB, which cannot be read in pieces"
        raise _fault(source, what, "write it as JSON lines: jq -c '.[]' FILE.json > FILE.jsonl")
    try:
        text = file.read().removeprefix(_MARK).decode("utf-8")
    except UnicodeDecodeError as error:
        line = 1 + error.object.count(b"\n", 0, error.start)
        raw = error.object.split(b"\n")[line - 1]
        try:
            raw.decode("utf-8")
        except UnicodeDecodeError as inner:
            raise _fault(f"{source}:{line}", *not_json.not_utf8(raw, inner, source)) from None
        raise
    scratch, numbers, decoder = tempfile.TemporaryFile(), array("Q"), json.JSONDecoder()  # noqa: SIM115
    place, line, counted = _after_space(text, text.index("[") + 1), 1, 0
    try:
        while text[place : place + 1] != "]":
            if numbers:
                place = _after_space(text, _after_comma(text, place))
            _, end = decoder.raw_decode(text, place)
            line, counted = line + text.count("\n", counted, place), place
            numbers.append(line)
            # a line end inside a JSON text would be a fault, so that all of these stand between words
            scratch.write(
                text[place:end].replace("\n", " ").replace("\r", " ").encode("utf-8", "surrogatepass") + b"\n"
            )
            place = _after_space(text, end)
    except json.JSONDecodeError as error:
        fault = not_json.explained(text, error)
        hint = "is the file cut off?" if error.pos >= len(text.rstrip()) else fault.hint
        raise _fault(f"{source}:{error.lineno}:{error.colno}", f"not JSON: {fault.what}", hint) from None
    except RecursionError:
        line += text.count("\n", counted, place)
        raise _fault(f"{source}:{line}", "an element is nested too deeply", "a row has a few levels at most") from None
    if rest := text[place + 1 :].strip():
        line = 1 + text.count("\n", 0, text.index(rest[0], place + 1))
        what = f"more than one value in the file: {not_json.excerpt(rest)} follows the array"
        raise _fault(f"{source}:{line}", what, "take it out, or put it into the array")
    return Opened(stored=_kept(source, scratch), numbers=numbers)


def _after_comma(text: str, place: int) -> int:
    if text[place : place + 1] != ",":
        raise json.JSONDecodeError("Expecting ',' delimiter", text, place)
    return place + 1


def _after_space(text: str, place: int) -> int:
    while text[place : place + 1] in (" ", "\n", "\r", "\t"):
        place += 1
    return place


def _of_parquet(source: str, first: int | None) -> Stored:
    parquet = library("pyarrow.parquet", f"{source}: reading Parquet")
    arrow = library("pyarrow", source)
    _refuse_what_is_no_parquet(source)
    scratch, left = tempfile.TemporaryFile(), first  # noqa: SIM115
    try:
        with parquet.ParquetFile(source) as file:
            for batch in file.iter_batches(batch_size=BATCH if first is None else min(first, BATCH)):
                _write(scratch, batch.to_pylist(), source)
                left = None if left is None else left - batch.num_rows
                if left is not None and left <= 0:
                    break
    except (arrow.ArrowException, OSError) as error:
        if getattr(error, "errno", None) is not None:
            raise
        reason = " ".join(str(error).split()).rstrip(".")
        raise _fault(source, f"is not whole Parquet: {reason}", "fetch it again, or write it again") from None
    return _kept(source, scratch)


def _refuse_what_is_no_parquet(source: str) -> None:
    with Path(source).open("rb") as file:
        start, size = file.read(4), os.fstat(file.fileno()).st_size
        file.seek(max(size - 4, 0))
        end = file.read(4)
    if start != _PARQUET:
        found = "is empty" if not start else f"is no Parquet: it begins with {start!r}"
        raise _fault(source, found, "let its name end as what it is, such as .jsonl" if start else "write it again")
    if end != _PARQUET or size < 12:
        what = f"is not whole Parquet: its {size:,} bytes do not end with {_PARQUET.decode()}, so the end is cut off"
        raise _fault(source, what, "fetch it again, or write it again")


def _of_hub(source: str, first: int | None) -> Stored:
    if not source.removeprefix(HUB).partition(":")[0]:
        raise _fault(source, "names no data set", f"expected {HUB}NAME or {HUB}NAME:SPLIT")
    sets = library("datasets", f"{source}: reading a data set")
    name, split = _name_and_split(source)
    if name.startswith(("/", ".", "~")) and not Path(name).exists():
        raise _fault(source, "no such directory", "name one that `save_to_disk` wrote, or a data set of Hugging Face")
    try:
        found = sets.load_from_disk(name) if _was_saved(name) else sets.load_dataset(name, split=split)
        if isinstance(found, Mapping):
            found = found[split]
    except KeyError:
        raise _fault(
            source, f"has no split {split!r}, found {', '.join(found)}", f"name one: {HUB}{name}:SPLIT"
        ) from None
    except Exception as error:  # whatever the library meets: no network, no such name, a script that it refuses
        reason = " ".join(str(error).split())[:300]
        raise _fault(
            source, f"cannot be loaded: {reason}", "without a network, name a directory that holds it"
        ) from None
    scratch = tempfile.TemporaryFile()  # noqa: SIM115
    count = len(found) if first is None else min(first, len(found))
    for start in range(0, count, BATCH):
        columns = found[start : min(start + BATCH, count)]
        _write(
            scratch, [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)], source
        )
    return _kept(source, scratch)


def _name_and_split(source: str) -> tuple[str, str]:
    """
    >>> _name_and_split("hf:someone/pairs"), _name_and_split("hf:someone/pairs:test")
    (('someone/pairs', 'train'), ('someone/pairs', 'test'))
    """
    name, _, split = source.removeprefix(HUB).partition(":")
    return name, split or "train"


def _was_saved(name: str) -> bool:
    return any((Path(name) / file).exists() for file in ("dataset_dict.json", "dataset_info.json", "state.json"))


def library(name: str, what: str) -> Any:
    """A library of the extra `data`.

    Raises:
        MissingExtraError: it is not installed.
    """
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise MissingExtraError(f"{what} needs {package}: pip install 'trimtab[data]'") from None


def _write(scratch: BinaryIO, rows: list[dict[str, Any]], source: str) -> None:
    for row in rows:
        kept = without_nulls(row)
        try:
            text = json.dumps(kept, ensure_ascii=False, allow_nan=False, default=_as_text)
        except (TypeError, ValueError) as error:
            column = next(name for name, value in kept.items() if not _is_json(value))
            is_nan = isinstance(error, ValueError)
            found = "NaN or infinity, which JSON does not have" if is_nan else _kind_inside(kept[column])
            hint = "write null, or leave the column out" if is_nan else "leave the column out, or write it as text"
            raise _fault(f"{source}:{1 + _lines_of(scratch)}", f"`{column}` holds {found}", hint) from None
        scratch.write(text.encode("utf-8", "surrogatepass") + b"\n")


def _as_text(value: Any) -> str:
    """Dates, decimal numbers and the like as people write them.

    Raises:
        TypeError: it is none of these.
    """
    if isinstance(value, date | time | timedelta | Decimal | UUID):
        return str(value)
    raise TypeError(type(value).__name__)


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False, default=_as_text)
    except (TypeError, ValueError):
        return False
    return True


def _kind_inside(value: Any) -> str:
    """The type of what JSON cannot hold, in a value."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    found = next((v for v in inside if not _is_json(v)), None)
    return _kind_inside(found) if found is not None else type(value).__name__


def _lines_of(scratch: BinaryIO) -> int:
    scratch.seek(0)
    return sum(1 for _ in scratch)


def without_nulls(value: Any) -> Any:
    """A columnar file gives every object all members, those that it does not have as null: they are left out again.

    >>> without_nulls({"a": None, "b": [{"c": 1, "d": None}], "e": [None]})
    {'b': [{'c': 1}], 'e': [None]}
    """
    if isinstance(value, dict):
        return {name: without_nulls(member) for name, member in value.items() if member is not None}
    return [without_nulls(entry) for entry in value] if isinstance(value, list) else value


def _kept(source: str, scratch: BinaryIO) -> Stored:
    scratch.flush()
    return Stored(source, scratch)
