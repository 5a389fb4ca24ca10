"""Looks at files that somebody else may have made, before a library reads them: what they are, not what they say they are.

A library that meets a file which means harm runs no code of it, since none that is used here reads pickle. But it may
take all memory, read a file of another place, or take of two entries the one that was not looked at. So a file is looked
at first, with bounds on what that costs, and each function says what is wrong in a few words.
"""

from __future__ import annotations

import json
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

PICKLED = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle")
MAX_HEADER = 16 << 20
"""Bytes of the header of a safetensors file: of as many entries as may be in it, with long names."""
MAX_TENSORS = 50_000
"""Entries of one header; a model with more has several files."""
BITS = {
    "F64": 64,
    "F32": 32,
    "F16": 16,
    "BF16": 16,
    "I64": 64,
    "I32": 32,
    "I16": 16,
    "I8": 8,
    "U64": 64,
    "U32": 32,
    "U16": 16,
    "U8": 8,
    "BOOL": 8,
    "C64": 64,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "F4": 4,
}
"""Of one number of each type that safetensors has."""


class HarmError(ValueError):
    """What is wrong with a file, in a few words; whoever asked says which file."""


# ------------------------------------------------------------------------------------------------------------ names
def refuse_name(name: Any) -> None:
    """A name that a file gives of another beside it stays beside it.

    Raises:
        HarmError: it is no text, absolute, or leads out of the directory.

    >>> refuse_name("policy/model.safetensors")
    >>> refuse_name("../model.safetensors")
    Traceback (most recent call last):
        ...
    trimtab.untrusted.HarmError: names '../model.safetensors', which leads out of the directory
    """
    if not isinstance(name, str) or not name or "\0" in name or "\\" in name:
        raise HarmError(f"names {str(name)[:80]!r}, which is no name of a file")
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise HarmError(f"names {name[:80]!r}, which leads out of the directory")


def refuse_link(folder: Path, name: str) -> None:
    """
    Raises:
        HarmError: the file, or a directory on the way to it, is a link; or it is no plain file.
    """
    path = folder
    for part in PurePosixPath(name).parts:
        path = path / part
        if path.is_symlink():
            raise HarmError("is a link, or lies behind one")
    if path.exists() and not stat.S_ISREG(path.stat().st_mode):
        raise HarmError("is no plain file")


def links_out(folder: Path, roots: tuple[Path, ...]) -> Iterator[tuple[Path, Path]]:
    """Links in a directory that lead to a place in none of these, and special files; (the path, where it leads)."""
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() and not any((real := path.resolve()).is_relative_to(root) for root in roots):
            yield path, real
        elif path.exists() and not stat.S_ISREG(mode := path.stat().st_mode) and not stat.S_ISDIR(mode):
            yield path, path.resolve()


# -------------------------------------------------------------------------------------------------------------- JSON
def json_of(path: Path, max_bytes: int) -> Any:
    """The value in a JSON file.

    Raises:
        HarmError: it is too large, nested too deeply, or no JSON.
        OSError: it cannot be read.
    """
    refuse_size(path, max_bytes)
    try:
        return json.loads(path.read_bytes())
    except RecursionError:
        raise HarmError("is nested too deeply") from None
    except ValueError as error:
        raise HarmError(f"is no JSON: {next(iter(str(error).splitlines()), '')[:120]}") from None


def refuse_size(path: Path, max_bytes: int) -> None:
    """
    Raises:
        HarmError: the file is larger.
    """
    if (size := path.stat().st_size) > max_bytes:
        raise HarmError(f"has {size / 2**20:,.0f} MiB, expected at most {max_bytes / 2**20:,.0f}")


# -------------------------------------------------------------------------------------------------------- safetensors
def refuse_header(path: Path) -> None:
    """The header of a safetensors file says of every byte behind it, once, of which tensor it is.

    Raises:
        HarmError: it does not.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(8)
        if len(start) < 8:
            raise HarmError("is no safetensors file: it ends before its header")
        (length,) = struct.unpack("<Q", start)
        if length > size - 8:
            raise HarmError(f"is no safetensors file: its header should have {length} bytes, the file has {size}")
        if length > MAX_HEADER:
            raise HarmError(f"has a header of {length >> 20} MiB, expected at most {MAX_HEADER >> 20}")
        text = file.read(length)
    entries = _entries(text)
    place = 0
    for begin, end, name in sorted(_span(name, entry) for name, entry in entries.items()):
        if begin != place:
            how = "overlaps the tensor before it" if begin < place else "leaves bytes before it that are of no tensor"
            raise HarmError(f"has a header in which {name[:80]!r} {how}")
        place = end
    if place != size - 8 - length:
        cut = "; the file was cut, so fetch it again" if place > size - 8 - length else ""
        raise HarmError(f"has a header for {place:,} bytes of tensors, but there are {size - 8 - length:,}{cut}")


def _entries(text: bytes) -> dict[str, Any]:
    if text.count(b"data_offsets") > MAX_TENSORS:  # before time and memory go into reading it
        raise HarmError(f"has a header with more than {MAX_TENSORS:,} entries")
    try:
        found = json.loads(text.decode("utf-8"), object_pairs_hook=_once)
    except RecursionError:
        raise HarmError("has a header that is nested too deeply") from None
    except HarmError:
        raise
    except ValueError:
        raise HarmError("has a header that is no JSON") from None
    if not isinstance(found, dict):
        raise HarmError("has a header that is no JSON object")
    if len(found) > MAX_TENSORS:
        raise HarmError(f"has a header with more than {MAX_TENSORS:,} entries")
    return {name: entry for name, entry in found.items() if name != "__metadata__"}


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise HarmError(f"has a header with {next(n for n in names if names.count(n) > 1)[:80]!r} in it twice")
    return found


def _span(name: str, entry: Any) -> tuple[int, int, str]:
    """Where a tensor's bytes are, if they are as many as its type and shape need."""
    kind = entry.get("dtype") if isinstance(entry, dict) else None
    bits = BITS.get(kind) if isinstance(kind, str) else None
    if bits is None:
        raise HarmError(f"has a header with an unknown type of number at {name[:80]!r}")
    shape, offsets = entry.get("shape"), entry.get("data_offsets")
    if not _are_counts(shape) or not _are_counts(offsets) or len(offsets) != 2:
        raise HarmError(f"has a header with no shape or no place at {name[:80]!r}")
    count = 1
    for side in shape:
        count *= side
    begin, end = offsets
    if (end - begin) * 8 != count * bits:
        raise HarmError(
            f"has a header in which {name[:80]!r} has {end - begin} bytes, but its shape needs {count * bits / 8:g}"
        )
    return begin, end, name


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)
