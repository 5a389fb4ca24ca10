"""`audit.jsonl`: who did what with a run, and what it was refused; a chain in which no line can be changed unseen.

    {"number": 1, "time": "2026-05-01T09:30:00+0200", "who": "ada@node7", "action": "train", "config": "5b1f...",
     "details": {...}, "previous": "0000...", "hash": "9ac4..."}

`hash` is SHA-256 over the rest of the line, `previous` the hash of the line before, so a line that is altered, left out,
put in or moved breaks the chain there. Who can write the file can make the whole chain anew: only the newest hash, kept
in another place, shows that nobody did, and that no line is missing at the end. `trimtab verify` prints it.

A line that a crash has cut is ended, and the line behind it (`action: mended`) has the hash of what was there.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trimtab.errors import StorageError
from trimtab.secrets import redact
from trimtab.store import writer

FIRST = "0" * 64
MENDED = "mended"


class AuditLog:
    """Appends lines; each is on the disk before the call returns."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, action: str, *, config: Mapping[str, Any] | None = None, **details: Any) -> None:
        """
        Args:
            action: what was done or refused: train, data, rekey, export, ...
            config: the resolved configuration with which; the line has its hash.
            details: JSON values; secrets in them are taken out.

        Raises:
            StorageError: it cannot be written, or the chain is broken, so that a line would hide it.
        """
        try:
            with _alone(self.path):
                reading = read(self.path)
                if reading.faults:
                    place, what = reading.faults[0]
                    raise StorageError(f"{self.path}:{place}: {what}; see `trimtab verify {self.path.parent}`")
                number, previous = len(reading.lines) + 1, reading.newest
                if not reading.is_ended:
                    writer.append(self.path, b"\n")
                if reading.cut:
                    mended = _line(number, previous, MENDED, None, {"cut": _hashes(reading.cut)})
                    writer.append(self.path, mended)
                    number, previous = number + 1, json.loads(mended)["hash"]
                writer.append(self.path, _line(number, previous, action, config, details))
        except OSError as error:
            raise StorageError(f"cannot write to {self.path}: {error.strerror or error}") from error


def fingerprint(config: Mapping[str, Any]) -> str:
    """SHA-256 of a resolved configuration."""
    return hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode()).hexdigest()


def _line(
    number: int, previous: str, action: str, config: Mapping[str, Any] | None, details: Mapping[str, Any]
) -> bytes:
    entry: dict[str, Any] = {
        "number": number,
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "who": f"{_user()}@{socket.gethostname()}",
        "pid": os.getpid(),
        "action": action,
        "config": None if config is None else fingerprint(config),
        "details": json.loads(redact(json.dumps(details))),
        "previous": previous,
    }
    return json.dumps({**entry, "hash": _hash(entry)}).encode() + b"\n"


def _user() -> str:
    """Who runs the process, by the system and not by a variable that anybody can set."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container whose user has no name
        return str(os.getuid())


def _hash(entry: Mapping[str, Any]) -> str:
    rest = {name: value for name, value in entry.items() if name != "hash"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """No other process appends meanwhile: a drill or an export may run beside training."""
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@dataclass(slots=True, kw_only=True)
class Reading:
    """What an audit log says, and whether its chain holds."""

    lines: list[Mapping[str, Any]] = field(default_factory=list)
    faults: list[tuple[int, str]] = field(default_factory=list)
    """(number of the line in the file, what is wrong with it)."""
    cut: list[bytes] = field(default_factory=list)
    """What stands behind the last whole line, if a crash has cut what was to stand there."""
    is_ended: bool = True
    """Whether the file ends with a line's end."""

    @property
    def newest(self) -> str:
        """The hash of the last line, or of none."""
        return str(self.lines[-1]["hash"]) if self.lines else FIRST


def read(path: Path) -> Reading:
    """The lines of a log in order, each checked against the one before; a missing file has none."""
    reading = Reading()
    if not path.exists():
        return reading
    *whole, rest = path.read_bytes().split(b"\n")
    reading.is_ended = not rest
    for place, text in enumerate([*whole, rest] if rest else whole, 1):
        entry = _parsed(text) if place <= len(whole) else None
        if entry is None:
            reading.cut.append(text)
            continue
        if reading.cut:
            if entry["action"] != MENDED or entry["details"] != {"cut": _hashes(reading.cut)}:
                reading.faults.append((place - len(reading.cut), "is not as it was written"))
            reading.cut = []
        if fault := _fault(entry, reading):
            reading.faults.append((place, fault))
        reading.lines.append(entry)
    return reading


def _hashes(cut: list[bytes]) -> list[str]:
    return [hashlib.sha256(text).hexdigest() for text in cut]


def _parsed(text: bytes) -> Mapping[str, Any] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    names = {"number", "time", "who", "action", "details", "previous", "hash"}
    return found if isinstance(found, dict) and names <= found.keys() else None


def _fault(entry: Mapping[str, Any], reading: Reading) -> str | None:
    if entry["hash"] != _hash(entry):
        return "its hash is not that of what it says"
    if entry["previous"] != reading.newest:
        return "does not follow the line before it"
    if entry["number"] != len(reading.lines) + 1:
        return f"has number {entry['number']}, expected {len(reading.lines) + 1}"
    return None
