"""Going back to an earlier checkpoint, so that no crash leaves a run between two lines of its history.

    rollback.json            what was decided; written first, taken away last
    branches/0001/           the line that was left: its checkpoints, and branch.json, which says why

Whoever finds `rollback.json` does what it says once more, from the start; every part of it may be done twice. The
checkpoint that a run goes back to is kept in the branch as it was. In its place stands one with the same weights, the new
configuration's number and, if the guard went back, the place in the data that the run had reached: what led it astray is
not met again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trimtab.errors import StorageError
from trimtab.store import writer
from trimtab.store.run_directory import RunDirectory

NAME = "rollback.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """A decision to go back."""

    to: int
    """The step of the checkpoint to go on from."""
    was: int
    """The step that the run had reached."""
    branch: str
    """The name of the line that is left."""
    version: int
    """Number of the configuration that is in force from here on."""
    changes: Mapping[str, Any]
    """What it sets over what the run was started with."""
    rule: str
    """The alarm, or empty where a person has asked for it."""
    why: str
    rollbacks: int
    """By the guard, this one included."""
    sources: list[Mapping[str, Any]] | None = None
    """Where the data goes on, first of the source and then of what is mixed in; None: where it was at the checkpoint."""
    request: str | None = None
    """What asked for it."""

    @property
    def by_hand(self) -> bool:
        return not self.rule


def next_name(directory: RunDirectory) -> str:
    """A name for a line that is about to be left."""
    there = [int(p.name) for p in folder(directory).glob("*") if p.name.isdigit()]
    return f"{max(there, default=0) + 1:04}"


def folder(directory: RunDirectory) -> Path:
    return directory.root / "branches"


def begin(directory: RunDirectory, rollback: Rollback) -> None:
    """Write the decision down.

    Raises:
        StorageError: the disk takes no more.
    """
    path = directory.root / NAME
    try:
        writer.replace_text(path, json.dumps(asdict(rollback), indent=1))
    except OSError as error:
        raise StorageError(f"cannot write to {path}: {error.strerror or error}") from error


def pending(directory: RunDirectory) -> Rollback | None:
    """A decision that was not carried out to the end.

    Raises:
        StorageError: it is not as it was written.
    """
    path = directory.root / NAME
    if not path.is_file():
        return None
    try:
        return Rollback(**json.loads(path.read_bytes()))
    except (ValueError, TypeError) as error:
        raise StorageError(
            f"{path}: is not as it was written: {error}; see `trimtab verify {directory.root}`"
        ) from error


def leave(directory: RunDirectory, rollback: Rollback) -> None:
    """Move the checkpoints behind the step to the branch, and give the step its own back if it is already there.

    Raises:
        StorageError: they cannot be moved.
    """
    branch = folder(directory) / rollback.branch
    kept = branch / "checkpoints"
    place = directory.checkpoints / str(rollback.to)
    try:
        writer.make_directory(kept)
        writer.replace_text(branch / "branch.json", json.dumps(asdict(rollback) | {"sources": None}, indent=1))
        for path in sorted(p for p in directory.checkpoints.iterdir() if p.name.isdigit()):
            if int(path.name) > rollback.to:
                writer.rename(path, kept / path.name)
        if (kept / str(rollback.to)).is_dir():  # it went to the branch, and a crash came before its successor was there
            if place.is_dir():
                writer.remove_tree(place)
            writer.rename(kept / str(rollback.to), place)
    except OSError as error:
        raise StorageError(f"cannot write to {branch}: {error.strerror or error}") from error


def keep_original(directory: RunDirectory, rollback: Rollback) -> None:
    """Move the checkpoint that the run went back to into the branch; its successor is about to be written."""
    place = directory.checkpoints / str(rollback.to)
    try:
        writer.rename(place, folder(directory) / rollback.branch / "checkpoints" / str(rollback.to))
    except OSError as error:
        raise StorageError(f"cannot write to {directory.checkpoints}: {error.strerror or error}") from error


def end(directory: RunDirectory) -> None:
    """All is done: the decision is history."""
    writer.remove_file(directory.root / NAME)
    writer.sync(directory.root)
