"""Asking a run for something: of one that trains by a request that it takes up at its next step, else on its files."""

from __future__ import annotations

import time
from typing import Any

from trimtab.config import RunConfig
from trimtab.errors import LockError, TrimtabError, UserError
from trimtab.operate import changes as changing
from trimtab.operate import steering
from trimtab.store import branches, journal, requests
from trimtab.store.checkpoints import CheckpointStore
from trimtab.store.requests import Answer, Request
from trimtab.store.run_directory import RunDirectory
from trimtab.store.settings import Checkpoint

POLL_SECONDS = 0.2


class RefusedError(UserError):
    """The run has said no; the message says why."""


def ask(directory: RunDirectory, request: Request, *, timeout: float) -> Answer:
    """What became of a request, once it is done.

    What can be refused without the run is refused at once. A run that does not train is changed on the disk; it is
    so when it goes on.

    Args:
        timeout: seconds to wait for the next step boundary of a run that trains.
    Raises:
        ConfigError: the changes do not fit this run. RefusedError: it could not be changed. UserError: it has not
            answered in time; the request is withdrawn.
    """
    if not directory.is_locked():
        try:
            with directory.locked():
                return _on_disk(directory, request)
        except LockError:  # it has been started meanwhile
            pass
    _decided(directory, request)  # what can be refused without the run is
    requests.ask(directory, request)
    ends = time.monotonic() + timeout
    while time.monotonic() < ends:
        found = requests.take_answer(directory, request)
        if found is not None:
            if not found.done:
                raise RefusedError(found.message)
            return found
        if not directory.is_locked() and requests.withdraw(directory, request):
            with directory.locked():
                return _on_disk(directory, request)
        time.sleep(POLL_SECONDS)
    if requests.withdraw(directory, request):
        raise UserError(
            f"{directory.root}: no step has ended within {timeout:.0f} s, and nothing is changed; see --timeout"
        )
    found = requests.take_answer(directory, request)
    if found is None:
        raise TrimtabError(f"{directory.root}: the request was taken up, but there is no answer to it")
    return found


def _store(directory: RunDirectory) -> CheckpointStore:
    return CheckpointStore(directory.checkpoints, Checkpoint(), max_steps=1, is_writer=False, journal=directory.journal)


def _decided(directory: RunDirectory, request: Request) -> tuple[RunConfig, RunConfig, dict[str, Any], int | None]:
    """What the run was started with; configuration, changes and step that a request leads to.

    Raises:
        UserError, ConfigError, StorageError: it leads to nothing.
    """
    newest = directory.newest_config()
    start, present = changing.started_with(newest), newest.get("changes") or {}
    if request.kind == "swap":
        return (start, *changing.changed(start, present, request.changes), None)
    return (start, *steering.decided(start, directory, _store(directory), request))


def _on_disk(directory: RunDirectory, request: Request) -> Answer:
    """Change a run that does not train. The caller holds its lock."""
    start, config, changes, to = _decided(directory, request)
    if branches.pending(directory) is not None:
        raise UserError(f"{directory.root}: a rollback is under way; let the run go on once, then ask again")
    if to is None:
        step = _store(directory).newest_good() or 0
        version = steering.write_version(directory, config, changes, steering.swap_reason(request, step), request)
        told = steering.swap_changes(request, changes)
        journal.Journal(directory.journal).append(
            "event", event="swapped", step=step, version=version, changes=told, who=request.who
        )
        return Answer(done=True, message=_later(version, step), step=step, version=version)
    steps = journal.read(directory.journal).steps()
    version = len(directory.config_versions()) + 1
    rollback = steering.by_hand(
        directory, request, changes, to=to, was=steps[-1]["step"] if steps else 0, version=version
    )
    branches.begin(directory, rollback)
    steering.carry_on(start, directory, rollback)
    directory.describe(ended=None, outcome=None)
    return Answer(done=True, message=_later(version, to), step=to, version=version)


def _later(version: int, step: int) -> str:
    return f"configuration {version} is in force from step {step} on, when the run goes on"
