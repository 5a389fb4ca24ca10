"""Why a line or a file is no JSON, in the words of somebody who has to mend it."""

from __future__ import annotations

import json
import re
from typing import NamedTuple

SHOWN = 24
"""Characters of a file that a message shows."""
_OF_PYTHON = {"True": "true", "False": "false", "None": "null"}
_WORD = re.compile(r"[^\s,:\]}]+")


class NotJson(NamedTuple):
    what: str
    hint: str
    column: int
    """From 1."""


def explained(text: str, error: json.JSONDecodeError) -> NotJson:
    """What is wrong with a line that `json` cannot read, and what to do.

    >>> explained("{'a': 1}", json.JSONDecodeError("Expecting property name", "{'a': 1}", 1))
    NotJson(what="`'a': 1}` has single quotes, expected double ones", hint='', column=2)
    """
    place = error.pos
    what, hint = _string_fault(text, error) or _place_fault(text, error)
    return NotJson(what, hint, place + 1)


def excerpt(text: str) -> str:
    """The beginning of a text in backticks, with what cannot be seen as an escape.

    >>> excerpt("a\\tb"), excerpt("x" * 30)
    ('`a\\\\tb`', '`xxxxxxxxxxxxxxxxxxxxxxxx...`')
    """
    text = text.strip()
    seen = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[:SHOWN])
    return f"`{seen}{'...' if len(text) > SHOWN else ''}`"


def following(rest: str, name: str) -> tuple[str, str]:
    """What is wrong with a line that goes on behind its object, and what to do."""
    if rest.lstrip(" \t").startswith("\r"):
        return "its lines end in CR alone, expected LF", f"convert them: tr '\\r' '\\n' < {name} > NEW.jsonl"
    rest = rest.strip()
    what = f"more than one value on the line: {excerpt(rest)} follows"
    if rest == ",":
        return what, "JSON lines have no commas between them; take it out"
    return what, "put each object on a line of its own" if rest[0] in "{[" else "take it out"


def not_utf8(raw: bytes, error: UnicodeDecodeError, name: str) -> tuple[str, str]:
    """What is wrong with a line that is no UTF-8, and what to do.

    >>> not_utf8(b"caf\\xe9!", UnicodeDecodeError("utf-8", b"caf\\xe9!", 3, 4, ""), "a.jsonl")
    ('not UTF-8: byte 0xe9 at offset 3 of the line', 'convert it, such as: iconv -f CP1252 -t UTF-8 a.jsonl')
    """
    what = f"not UTF-8: byte 0x{raw[error.start]:02x} at offset {error.start} of the line"
    if b"\0" in raw:
        return what, "it is no text; is the file packed, or damaged?"
    if raw[error.start : error.start + 1] == b"\xed" and raw[error.start + 1 : error.start + 2] >= b"\xa0":
        return what, "it is half a surrogate pair, which is no character; write the text anew from its source"
    for encoding in ("GBK", "CP1252"):
        try:
            raw.decode(encoding)
        except UnicodeDecodeError:
            continue
        return what, f"convert it, such as: iconv -f {encoding} -t UTF-8 {name}"
    return what, "is the file damaged, or a character cut in two?"


def _string_fault(text: str, error: json.JSONDecodeError) -> tuple[str, str] | None:
    """Of faults inside a text."""
    place = error.pos
    if error.msg.startswith("Unterminated string"):
        return "the text that begins here does not end", "is the line cut off? A line end inside a text is written \\n"
    if error.msg.startswith("Invalid control character"):
        found = text[place : place + 1]
        if found == "\0":
            return "a NUL byte inside a text", "the file may be damaged; fetch or write it again"
        name = {"\t": "a tab", "\r": "a carriage return"}.get(found, f"the control character U+{ord(found or ' '):04X}")
        return f"{name} inside a text", f"write it as {json.dumps(found)[1:-1]}"
    if error.msg.startswith("Invalid \\escape"):
        start = text.rfind("\\", 0, place + 1)
        return f"{excerpt(text[start : start + 2])} is no escape", "write a backslash as two: \\\\"
    if error.msg.startswith("Invalid \\uXXXX escape"):
        start = max(text.rfind("\\", 0, place + 1), 0)
        return f"{excerpt(text[start : start + 6])} is no escape", "four hexadecimal digits follow \\u"
    return None


def _place_fault(text: str, error: json.JSONDecodeError) -> tuple[str, str]:
    """Of something else than what is expected at a place."""
    rest = text[error.pos :]
    expected = _expected(error.msg)
    if not rest.strip():
        return f"ends where {expected} is expected", "is the line cut off, or an object on more than one line?"
    first, word = rest[0], _WORD.match(rest)
    found = word.group() if word else first
    if first == "\0":
        return f"NUL bytes, expected {expected}", "the file may be damaged; fetch or write it again"
    if first == "\ufeff":
        return "a byte order mark (U+FEFF) inside the file", "were two files put together? Take it out"
    if first == "'":
        return f"{excerpt(rest)} has single quotes, expected double ones", ""
    if found in _OF_PYTHON:
        return f"`{found}` is Python's, expected {_OF_PYTHON[found]}", "write the file with json.dumps"
    if rest.startswith(("#", "//")):
        return "a comment, and JSON has none", "take it out"
    before = text[: error.pos].rstrip()
    if (first in "}]" and before.endswith(",")) or error.msg.startswith("Illegal trailing comma"):
        return "a comma with nothing behind it", "take it out"
    return f"found {excerpt(rest)}, expected {expected}", ""


def _expected(said: str) -> str:
    if said.startswith("Expecting property name"):
        return "a key in double quotes"
    if said.startswith("Expecting ',' delimiter"):
        return "`,` or a closing bracket"
    if said.startswith("Expecting ':' delimiter"):
        return "`:`"
    return "a value"
