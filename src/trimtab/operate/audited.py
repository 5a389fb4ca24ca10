"""What is written into a run's audit log: each command that changes the run, takes its weights or reads data for it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from trimtab.assemble import Admission
from trimtab.errors import StorageError
from trimtab.store import audit
from trimtab.store.audit import AuditLog
from trimtab.store.run_directory import RunDirectory


def note(directory: RunDirectory, action: str, config: Mapping[str, Any] | None, **details: Any) -> None:
    """A line about what is done to a run.

    Raises:
        StorageError: it cannot be written.
    """
    AuditLog(directory.audit).write(action, config=config, **details)


def newest(directory: RunDirectory) -> str:
    """The hash of the newest line, for run.json: a log that does not have it has lost lines at its end."""
    return audit.read(directory.audit).newest


def note_data(directory: RunDirectory, config: Mapping[str, Any], admissions: Iterable[Admission]) -> None:
    """A line about each file that was to be read as data.

    Raises:
        StorageError: it cannot be written.
    """
    for found in admissions:
        details = {"key": found.key, "name": found.name, "place": found.place, "allowed": found.is_allowed}
        AuditLog(directory.audit).write("data", config=config, **details)


def note_if_possible(directory: RunDirectory, action: str, **details: Any) -> None:
    """As `note`, of a command that only reads the run, which may lie where nothing can be written; then that is said."""
    try:
        AuditLog(directory.audit).write(action, config=directory.newest_config()["resolved"], **details)
    except StorageError as error:
        print(f"warning: {error}; this {action} stands in no audit log", file=sys.stderr)
