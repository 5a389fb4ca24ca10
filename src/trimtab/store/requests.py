"""What people ask of a run that trains: a file a wish, and a file an answer.

requests/ID.json           written by `trimtab swap` and `rollback`, taken up at the next step boundary
requests/ID.answer.json    what became of it
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from trimtab.errors import StorageError
from trimtab.store import writer
from trimtab.store.run_directory import RunDirectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A wish."""

    kind: Literal["swap", "rollback"]
    changes: Mapping[str, Any] = field(default_factory=dict)
    """By dotted key."""
    to: int | None = None
    """Of a rollback: the step."""
    version: int | None = None
    """Of a rollback: the configuration's number."""
    who: str = field(default_factory=lambda: os.environ.get("USER") or str(os.getuid()))
    when: float = field(default_factory=time.time)
    id: str = field(default_factory=lambda: uuid.uuid4().hex)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of it."""

    done: bool
    message: str
    step: int
    version: int | None = None


def _folder(directory: RunDirectory) -> Path:
    return directory.root / "requests"


def ask(directory: RunDirectory, request: Request) -> None:
    """
    Raises:
        StorageError: the disk takes no more.
    """
    try:
        writer.make_directory(_folder(directory))
        writer.replace_text(_folder(directory) / f"{request.id}.json", json.dumps(asdict(request), indent=1))
    except OSError as error:
        raise StorageError(f"cannot write to {_folder(directory)}: {error.strerror or error}") from error


def waiting(directory: RunDirectory) -> list[Request]:
    """Wishes without an answer, the oldest first; a file that is no wish is left alone."""
    found = []
    for path in _folder(directory).glob("*.json") if _folder(directory).is_dir() else ():
        if path.name.endswith(".answer.json") or _answer(directory, path.stem).exists():
            continue
        try:
            request = Request(**json.loads(path.read_bytes()))
        except (OSError, ValueError, TypeError):
            continue
        if request.id == path.stem:
            found.append(request)
    return sorted(found, key=lambda request: (request.when, request.id))


def answer(directory: RunDirectory, request: Request, given: Answer) -> None:
    try:
        writer.replace_text(_answer(directory, request.id), json.dumps(asdict(given), indent=1))
        writer.remove_file(_folder(directory) / f"{request.id}.json")
    except OSError as error:
        raise StorageError(f"cannot write to {_folder(directory)}: {error.strerror or error}") from error


def take_answer(directory: RunDirectory, request: Request) -> Answer | None:
    """The answer, if there is one; it is taken away."""
    path = _answer(directory, request.id)
    try:
        found = Answer(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
    writer.remove_file(path)
    return found


def withdraw(directory: RunDirectory, request: Request) -> bool:
    """Take a wish back; whether it was still there."""
    path = _folder(directory) / f"{request.id}.json"
    if not path.exists():
        return False
    writer.remove_file(path)
    return True


def _answer(directory: RunDirectory, request_id: str) -> Path:
    return _folder(directory) / f"{request_id}.answer.json"
