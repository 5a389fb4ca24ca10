"""`journal.jsonl`: one line a step or event, each with the length and the CRC-32 of its record.

    {"length": 431, "crc": "5b1f6c02", "record": {"kind": "step", "step": 7, ...}}

Kinds: `step` (metrics, prompt ids, completion hashes, weights sum), `eval` (metrics), `event` (started, resumed, saved,
finished, ...). A run that is resumed from step S writes the steps behind S again; of two records of a step the later
one is the run's.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab.errors import StorageError
from trimtab.secrets import redact
from trimtab.store import writer

GONE_BACK = ("resumed", "rolled back")
"""Events whose `step` the run goes on from; the steps behind it that were recorded before are not the run's."""


class Journal:
    """Appends records; each reaches the disk before the call returns."""

    def __init__(self, path: Path) -> None:
        """
        Raises:
            StorageError: it cannot be read, or a line that a crash has cut cannot be ended.
        """
        self.path = path
        self._mend_torn_end()

    def append(self, kind: str, **facts: Any) -> None:
        said = {"kind": kind, "time": round(time.time(), 3), **facts}
        record = redact(json.dumps(said, ensure_ascii=False, allow_nan=False, sort_keys=False)).encode()
        line = b'{"length": %d, "crc": "%08x", "record": %s}\n' % (len(record), zlib.crc32(record), record)
        try:
            writer.append(self.path, line)
        except OSError as error:
            raise StorageError(f"cannot write to {self.path}: {error.strerror or error}") from error

    def _mend_torn_end(self) -> None:
        """End a line that a crash has cut, so that the next record stands on a line of its own."""
        try:
            if self.path.exists() and (data := self.path.read_bytes()) and not data.endswith(b"\n"):
                writer.append(self.path, b"\n")
        except OSError as error:
            raise StorageError(f"cannot write to {self.path}: {error.strerror or error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a journal says."""

    records: tuple[Mapping[str, Any], ...]
    damaged_lines: tuple[int, ...]
    """Numbers of lines that are torn or altered, from 1."""

    def steps(self) -> list[Mapping[str, Any]]:
        """The newest record of each step, in order; steps that a resume abandoned are left out."""
        return _newest(self.records, "step")

    def evaluations(self) -> list[Mapping[str, Any]]:
        return _newest(self.records, "eval")

    def events(self, *names: str) -> list[Mapping[str, Any]]:
        return [r for r in self.records if r["kind"] == "event" and (not names or r["event"] in names)]


def read(path: Path) -> Reading:
    """All whole records of a journal; what is damaged is named, not guessed at."""
    records, damaged = [], []
    if path.exists():
        for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
            record = _parse(line)
            if record is not None:
                records.append(record)
            elif line.strip():
                damaged.append(number)
    return Reading(records=tuple(records), damaged_lines=tuple(damaged))


def _parse(line: bytes) -> Mapping[str, Any] | None:
    start = line.find(b'"record": ')
    if start < 0 or not line.endswith(b"}"):
        return None
    body = line[start + len(b'"record": ') : -1]
    try:
        head = json.loads(line[:start].rstrip().rstrip(b",") + b"}")
        if head["length"] != len(body) or int(head["crc"], 16) != zlib.crc32(body):
            return None
        record: Mapping[str, Any] = json.loads(body)
    except (ValueError, KeyError, TypeError):
        return None
    return record


def _newest(records: tuple[Mapping[str, Any], ...], kind: str) -> list[Mapping[str, Any]]:
    found: dict[int, Mapping[str, Any]] = {}
    for record in records:
        if record["kind"] == "event" and record["event"] in GONE_BACK:
            found = {step: r for step, r in found.items() if step <= record["step"]}
        elif record["kind"] == kind:
            found[record["step"]] = record
    return [found[step] for step in sorted(found)]
