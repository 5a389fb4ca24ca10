"""What a file is that is not what its name says: told by its first bytes, as one fault of the whole file."""

from __future__ import annotations

from typing import NamedTuple

LOOKED_AT = 4096
"""Bytes."""


class Beginning(NamedTuple):
    what: str
    hint: str


_KNOWN = (
    (b"\x1f\x8b", "gzip", "let its name end in .gz"),
    (b"PAR1", "Parquet", "let its name end in .parquet"),
    (b"PK\x03\x04", "a ZIP archive", "unpack it: unzip {name}"),
    (b"\x28\xb5\x2f\xfd", "zstd", "unpack it: zstd -d {name}"),
    (b"BZh", "bzip2", "unpack it: bunzip2 {name}"),
    (b"\xfd7zXZ", "xz", "unpack it: xz -d {name}"),
    (b"ARROW1", "Arrow", "write it as Parquet or JSON lines"),
    (b"SQLite format 3", "an SQLite database", "write it as JSON lines"),
    (b"version https://git-lfs", "a pointer of Git LFS, not the file itself", "fetch it: git lfs pull"),
    (b"<", "HTML or XML, not JSON lines", "is it the page of an error that was downloaded in the file's place?"),
)
_WIDE = (
    (b"\xff\xfe\x00\x00", "UTF-32"),
    (b"\x00\x00\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
)


def refused(name: str, data: bytes) -> Beginning | None:
    """What a file that should hold JSON lines is instead; None if nothing speaks against it.

    Args:
        name: the file's.
        data: its first bytes.

    >>> refused("a.jsonl", b"PAR1...")
    Beginning(what='is Parquet', hint='let its name end in .parquet')
    """
    for mark, encoding in _WIDE:
        if data.startswith(mark):
            return Beginning(f"is {encoding}", f"convert it: iconv -f {encoding} -t UTF-8 {name}")
    if (wide := _wide_without_mark(data)) is not None:
        return Beginning(f"is {wide}", f"convert it: iconv -f {wide} -t UTF-8 {name}")
    for mark, kind, hint in _KNOWN:
        if data.startswith(mark):
            if mark == b"\x1f\x8b" and name.endswith(".gz"):
                return Beginning("is packed twice", f"unpack it once: gunzip {name}")
            return Beginning(f"is {kind}", hint.format(name=name))
    if data[257:262] == b"ustar":
        return Beginning("is a tar archive", "unpack it: tar xf FILE")
    return _no_lines(name, data)


def _wide_without_mark(data: bytes) -> str | None:
    if data[1:2] == b"\0" and data[3:4] == b"\0" and data[:1] in (b"{", b"["):
        return "UTF-16LE"
    return "UTF-16BE" if data[:1] == b"\0" and data[1:2] in (b"{", b"[") and data[2:3] == b"\0" else None


def _no_lines(name: str, data: bytes) -> Beginning | None:
    """A value over several lines, or lines of which none begins like an object."""
    lines = [line.strip() for line in data.removeprefix(b"\xef\xbb\xbf").splitlines() if line.strip()][:2]
    if len(lines) < 2:
        return None
    if lines[0] in (b"{", b"["):
        kind, program = ("a JSON array", ".[]") if lines[0] == b"[" else ("JSON", ".")
        return Beginning(
            f"is {kind} over several lines, expected one object a line", f"jq -c '{program}' {name} > NEW.jsonl"
        )
    if any(line.startswith((b"{", b"[")) for line in lines):
        return None
    for mark, kind in ((b",", "CSV"), (b"\t", "TSV")):
        if mark in lines[0] and lines[0].count(mark) == lines[1].count(mark):
            separator = "" if mark == b"," else ", sep='\\t'"
            return Beginning(
                f"looks like {kind}, expected one JSON object a line",
                f"pandas.read_csv('{name}'{separator}).to_json('NEW.jsonl', orient='records', lines=True)",
            )
    return None
