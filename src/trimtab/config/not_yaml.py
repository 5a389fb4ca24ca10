"""Why a file is no YAML, in the words of somebody who has to mend it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import yaml

Said = Callable[[re.Match[str]], tuple[str, str]]


class NotYaml(NamedTuple):
    line: int
    """From 1."""
    column: int
    """From 1."""
    what: str
    hint: str


def explained(text: str, error: yaml.YAMLError) -> NotYaml:
    """What is wrong with a text that PyYAML cannot read, and what to do."""
    if isinstance(error, yaml.reader.ReaderError):
        before = text[: error.position]
        column = error.position - (before.rfind("\n") + 1) + 1
        code = error.character if isinstance(error.character, int) else ord(str(error.character)[0])
        what = f"the character U+{code:04X} cannot stand in YAML"
        return NotYaml(before.count("\n") + 1, column, what, "take it out; is the file damaged?")
    problem = str(getattr(error, "problem", None) or error)
    mark, start = getattr(error, "problem_mark", None), getattr(error, "context_mark", None)
    what, hint = next((say(found) for known, say in _KNOWN if (found := re.search(known, problem))), (problem, ""))
    if start is not None and ("is not closed" in what):
        mark = start
    context = str(getattr(error, "context", None) or "")
    if (anchor := re.search(r"found duplicate anchor '(.*)'", context)) is not None:
        what, hint = f"the anchor `&{anchor[1]}` stands twice", "give one of them another name"
    line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
    return NotYaml(line, column, what, hint)


def _plainly(token: str) -> str:
    """What PyYAML calls a piece of the text, as it looks."""
    seen = {"<stream end>": "the end of the file", "<scalar>": "text", "<block mapping start>": "keys", "-": "`-`"}
    return seen.get(token, token if token.startswith("<") else f"`{token}`")


_OPENED = {"}": "`{`", "]": "`[`"}
_KNOWN: tuple[tuple[str, Said], ...] = (
    (r"found character '\\t' that", lambda _: ("a tab where YAML wants spaces", "indent with spaces")),
    (
        r"found character '(.+)' that cannot start",
        lambda m: (f"`{m[1]}` cannot begin a value", "put the value in quotes"),
    ),
    (
        r"mapping values are not allowed",
        lambda _: (
            "a `:` where no key can be",
            "is it indented too far, is a text with `: ` not in quotes, or is there no space behind a `:` above?",
        ),
    ),
    (
        r"expected <block end>, but found '<block mapping start>'",
        lambda _: ("indented otherwise than the keys beside it", "keys of one section begin in the same column"),
    ),
    (
        r"expected <block end>, but found '(.+)'",
        lambda m: (f"found {_plainly(m[1])} where a key is expected", "is it indented as the keys beside it?"),
    ),
    (r"expected ',' or '(.)', but got '<stream end>'", lambda m: (f"{_OPENED[m[1]]} is not closed", f"add `{m[1]}`")),
    (
        r"expected ',' or '(.)', but got '(.+)'",
        lambda m: (
            f"found {_plainly(m[2])}, expected `,` or `{m[1]}`",
            f"is {_OPENED[m[1]]} closed in the line above?",
        ),
    ),
    (r"found unexpected end of stream", lambda _: ("the quote that begins here is not closed", "add the second one")),
    (
        r"found unexpected document separator",
        lambda _: ("the quote that begins here is not closed", "add the second one"),
    ),
    (
        r"found unknown escape character '(.+)'",
        lambda m: (f"`\\{m[1]}` is no escape in double quotes", "write two backslashes, or put it in single quotes"),
    ),
    (r"found undefined alias '(.*)'", lambda m: (f"`*{m[1]}` names no anchor", f"`&{m[1]}` has to stand before it")),
    (
        r"but found another document",
        lambda _: ("a second document begins here", "a configuration is one; take out `---`, or split the file"),
    ),
    (
        r"expected '<document start>', but found",
        lambda _: ("something stands where the document begins or has ended", "take it out"),
    ),
    (r"could not find expected ':'", lambda _: ("a key without a `:` behind it", "write `key: value`")),
    (
        r"(block )?sequence entries are not allowed",
        lambda _: ("a `-` where no list can begin", "begin the list on a line of its own"),
    ),
    (
        r"expected the node content, but found '(.+)'",
        lambda m: (f"found {_plainly(m[1])} where a value is expected", ""),
    ),
    (
        r"expected alphabetic or numeric character",
        lambda _: ("`&` or `*` without a name", "put the value in quotes if it is no anchor"),
    ),
)
