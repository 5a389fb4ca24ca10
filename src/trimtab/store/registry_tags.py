"""`RUN/tags.jsonl`: tags and promotions of a run, in lines like the journal's. Nothing in it is ever changed or taken away.

    {"kind": "tag", "name": "paper", "is_on": true, "who": ..., "why": ...}
    {"kind": "promote", "label": "prod", "number": 4, "run": "a", "step": 120, "folder": "promoted/120", "files": {...}, ...}
    {"kind": "undo", "label": "prod", "number": 5, "undoes": 4, ...}

The numbers of a label go up over all runs of a root. The bearer of a label is the promotion with the highest number that
was not undone; so one line, written whole or not at all, moves a label from one run to another, and back.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trimtab.errors import StorageError
from trimtab.store import journal
from trimtab.store.journal import Journal
from trimtab.store.registry_names import NAME
from trimtab.store.run_directory import RunDirectory

FILE = "tags.jsonl"
HEAD = re.compile(rb'\{"length": (\d+), "crc": "[0-9a-f]{8}", "record": ')
BEGINNING = re.compile(rb'(?:\{|\{"[a-z]{0,6}|\{"length":?|\{"length": \d*,?|\{"length": \d+, "[a-z0-9:", ]*)')
FOLDER = re.compile(r"promoted/\d+(-\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """A checkpoint that was given a label."""

    run: str
    """Its name."""
    label: str
    number: int
    step: int
    folder: str
    """Of the model, from the run."""
    files: Mapping[str, Mapping[str, Any]] = field(repr=False)
    """Of the model directory: size and SHA-256 by name."""
    metrics: Mapping[str, float]
    """Of its evaluation."""
    is_adapter: bool
    time: float
    who: str
    why: str
    undone: Mapping[str, Any] | None = None
    """When, by whom and why it was undone."""


def read(directory: RunDirectory) -> list[Mapping[str, Any]]:
    """The lines of a run that are as they were written, each what it should be.

    Raises:
        StorageError: a line is damaged, so what is tagged cannot be told.
        OSError: it cannot be read.
    """
    path = directory.root / FILE
    reading = journal.read(path)
    if reading.damaged_lines and not _are_torn(path, reading.damaged_lines):
        raise StorageError(
            f"{path}:{reading.damaged_lines[0]}: is not as it was written; tags and promotions are unknown"
        )
    return [record for record in reading.records if _is_mark(record)]


def _are_torn(path: Path, damaged: tuple[int, ...]) -> bool:
    """Whether each of these lines is one that a crash has cut; it was never said to be there."""
    lines = path.read_bytes().split(b"\n")
    return all(_is_torn(lines[number - 1]) for number in damaged)


def _is_torn(line: bytes) -> bool:
    """Whether a line is the beginning of one.

    >>> _is_torn(b'{"len'), _is_torn(b'{"length": 9, "crc": "00000000", "record": {"a": 1}'), _is_torn(b"else")
    (True, True, False)
    """
    head = HEAD.match(line)
    if head is None:
        return BEGINNING.fullmatch(line) is not None
    return len(line) - head.end() < int(head[1]) + 1


def _is_mark(record: Mapping[str, Any]) -> bool:
    if record.get("kind") == "tag":
        return _is_named(record.get("name"))
    whole = {"promote": {"step", "folder", "files", "metrics"}, "undo": {"undoes"}}.get(str(record.get("kind")))
    return (
        whole is not None
        and whole <= record.keys()
        and _is_named(record.get("label"))
        and FOLDER.fullmatch(str(record.get("folder", "promoted/0"))) is not None
        and all(type(record.get(n)) is int for n in ("number", *(whole & {"step", "undoes"})))
    )


def _is_named(name: Any) -> bool:
    return isinstance(name, str) and NAME.fullmatch(name) is not None


def append(directory: RunDirectory, kind: str, **facts: Any) -> None:
    """A line; the caller is alone (`Root.alone`).

    Raises:
        StorageError: it cannot be written.
    """
    Journal(directory.root / FILE).append(kind, **facts, who=who())


def who() -> str:
    """Who runs the process, by the system, and where."""
    import pwd

    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container whose user has no name
        name = str(os.getuid())
    return f"{name}@{socket.gethostname()}"


def tags_of(marks: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The tags that a run has.

    >>> tags_of([{"kind": "tag", "name": n, "is_on": on} for n, on in (("b", True), ("a", True), ("b", False))])
    ('a',)
    """
    found = {}
    for mark in marks:
        if mark["kind"] == "tag":
            found[mark["name"]] = bool(mark.get("is_on"))
    return tuple(sorted(name for name, is_on in found.items() if is_on))


def promotions(marks: Iterable[tuple[str, Mapping[str, Any]]]) -> list[Promotion]:
    """Every promotion, in order, the undone ones too. A run that was moved keeps its own; a copy of one has none.

    Args:
        marks: the name of a run, and a line of its.
    """
    marks = list(marks)
    undone = {(run, m["label"], m["undoes"]): m for run, m in marks if m["kind"] == "undo"}
    made = [(run, m) for run, m in marks if m["kind"] == "promote"]
    at_home = {(run, m["label"], m["number"]) for run, m in made if m.get("run") == run}
    found = [
        _promotion(run, m, undone.get((run, m["label"], m["number"])))
        for run, m in made
        if m.get("run") == run or (m.get("run"), m["label"], m["number"]) not in at_home  # else a copy of that run
    ]
    return sorted(found, key=lambda p: (p.label, p.number, p.time, p.run))


def _promotion(run: str, mark: Mapping[str, Any], undone: Mapping[str, Any] | None) -> Promotion:
    return Promotion(
        run=run,
        label=mark["label"],
        number=mark["number"],
        step=mark["step"],
        folder=mark["folder"],
        files=mark["files"],
        metrics=mark["metrics"],
        is_adapter=bool(mark.get("is_adapter")),
        time=float(mark.get("time", 0.0)),
        who=str(mark.get("who", "")),
        why=str(mark.get("why", "")),
        undone={n: undone.get(n) for n in ("time", "who", "why")} if undone else None,
    )


def next_number(marks: Iterable[tuple[str, Mapping[str, Any]]], label: str) -> int:
    """Of the next line about a label."""
    return (
        max((m["number"] for _, m in marks if m["kind"] in ("promote", "undo") and m["label"] == label), default=0) + 1
    )


def standing(found: Iterable[Promotion]) -> dict[str, list[Promotion]]:
    """By label the promotions that were not undone, in order; the last one bears it, the others are what an undo gives back."""
    by_label: dict[str, list[Promotion]] = {}
    for promotion in found:
        if promotion.undone is None:
            by_label.setdefault(promotion.label, []).append(promotion)
    return by_label
