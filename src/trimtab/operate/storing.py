"""A run and its object store: from there if it is nowhere else, and whether it may be kept there at all."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trimtab.config import RunConfig
from trimtab.errors import ConfigError, Finding, LockError, Preempted, StorageError, UserError
from trimtab.store import retention
from trimtab.store.run_directory import RunDirectory

if TYPE_CHECKING:
    from trimtab.operate.start import Front
    from trimtab.store.remote import Contents, Remote
    from trimtab.store.remote_mirror import Mirror

WAIT = 600.0
"""Seconds that the end of a run waits for its last upload."""
GRACE = 20.0
"""Seconds of them where the process has been told to end."""


class RunStore:
    """The store of one run; without `checkpoint.store` nothing of it does anything. Only the first rank has one."""

    def __init__(self, config: RunConfig, directory: RunDirectory, front: Front) -> None:
        """
        Raises:
            MissingExtraError: the library for this kind of store is not installed.
        """
        from trimtab.store.remote import Remote

        self.config, self.directory, self.front = config, directory, front
        url = config.checkpoint.store
        self.remote: Remote | None = None if url is None else Remote(url)
        self.mirror: Mirror | None = None
        self.run_id: str | None = None
        """Of a run that has put its mark there and nothing else, and is the one that is started now."""
        requested = json.dumps(config.requested, sort_keys=True, default=str)
        self._print = hashlib.sha256(requested.encode()).hexdigest()
        self._contents: Contents | None = None

    def refuse_fresh(self) -> None:
        """
        Raises:
            UserError: a new run would begin where an old one lies.
        """
        if self.remote is None:
            return
        owner = self.remote.owner()
        if owner is not None:
            from trimtab.store.remote_owner import of_another_run

            raise UserError(f"{self.front.over}: {of_another_run(self.remote, owner)}")

    def begin(self, compare: Callable[[RunDirectory], None]) -> None:
        """Bring the run from the store if its directory has no checkpoint.

        Args:
            compare: given a run's small files, raises if they are not of the configuration that was asked for.

        Raises:
            UserError: another run lies there, or this one with what the directory knows nothing of.
            StorageError: the store cannot be looked at, and the directory has nothing to go on from; or none of its
                checkpoints is good.
        """
        from trimtab.store import remote_fetch
        from trimtab.store.remote_owner import of_another_run

        remote, directory = self.remote, self.directory
        if remote is None:
            return
        here = [int(p.name) for p in directory.checkpoints.glob("*") if p.name.isdigit()]
        has_run = directory.exists and bool(here)
        try:
            owner = remote.owner()
            if owner is not None and directory.exists and directory.facts().get("id") != owner["id"]:
                raise UserError(of_another_run(remote, owner))
            self._contents = contents = remote.contents()
        except StorageError as error:
            if not has_run:
                from trimtab.operate.start import write_failure

                write_failure(directory, error)
                raise
            self.front.say(f"the store cannot be looked at: {error}; the run goes on from its directory")
            return
        found = remote_fetch.newest(contents)
        if has_run:
            if found is not None and found.step > max(here) and found.manifest_sha256 not in self._known():
                what = (
                    f"checkpoint.store: {remote.url} has step {found.step} of this run, which {directory.root} has not"
                )
                hint = "to go on from there give a new --run-dir, to go on from here another checkpoint.store"
                raise UserError(f"{what}; {hint}")
        elif contents.uploads or contents.faults:
            step = remote_fetch.bring_back(
                remote, contents, directory, self.front.say, lambda found: self._refuse(found, compare)
            )
            self._contents = remote.contents()
            self.front.say(f"the run is here again, up to step {step}, from {remote.url}")
        elif owner is not None and owner.get("config") == self._print:
            self.run_id = str(owner["id"])

    def _refuse(self, found: RunDirectory, compare: Callable[[RunDirectory], None]) -> None:
        """As `compare`; a difference is said of the store."""
        try:
            compare(found)
        except ConfigError as error:
            shutil.rmtree(found.root, ignore_errors=True)
            head = Finding(
                place=str(self.config.checkpoint.store),
                what="the run that is kept here was started with another configuration",
                hint="give another checkpoint.store to start over",
            )
            raise ConfigError([head, *error.findings[1:]]) from None

    def open(self, run_id: str) -> Mirror | None:
        """What brings checkpoints to the store from here on.

        Raises:
            UserError: another run's mark is there, or another process has put its own there this moment.
        """
        from trimtab.store.remote import StoreError
        from trimtab.store.remote_mirror import Mirror
        from trimtab.store.remote_owner import TakenError

        if self.remote is None:
            return None
        self.mirror = mirror = Mirror(
            self.remote, self.directory, run_id=run_id, config=self._print, say=self.front.say
        )
        try:
            mirror.owner.claim()
        except TakenError as error:
            raise LockError(str(error)) from error
        except StoreError as error:  # the first upload tries again
            if self._contents is not None:
                raise
            self.front.say(f"the store cannot be written to: {error}")
        return mirror

    def catch_up(self, checkpoints: Any) -> None:
        """Bring what the store should have already, and has not: uploads that were cut off."""
        if self.mirror is not None and self._contents is not None:
            rules = retention.Rules(checkpoints.settings, checkpoints.rolling_every, checkpoints.metric)
            is_good = lambda step: checkpoints.fault(step) is None  # noqa: E731
            self.mirror.catch_up(checkpoints.steps(), self._contents, rules, is_good)

    def close(self, error: BaseException | None = None) -> None:
        """Wait for the last upload.

        Args:
            error: what ended the run, if it did not end well.

        Raises:
            StorageError: the run ended well, but its last checkpoint is not in the store.
        """
        mirror, self.mirror = self.mirror, None
        if mirror is None:
            return
        is_there = mirror.finish(GRACE if isinstance(error, Preempted | KeyboardInterrupt) else WAIT)
        if is_there:
            return
        what = f"the newest checkpoint is not in {self.config.checkpoint.store}, but in {self.directory.checkpoints}"
        what += f"; there the newest is {mirror.stored if mirror.stored is not None else 'none'}"
        if error is None:
            raise StorageError(f"{what}; the same command brings it there")
        self.front.say(f"{what}; the same command goes on and brings it there")

    def _known(self) -> set[str]:
        """SHA-256 of the manifest of every checkpoint that the directory has, those of lines that were left, too."""
        root = self.directory.root
        found = [*root.glob("checkpoints/*/manifest.json"), *root.glob("branches/*/checkpoints/*/manifest.json")]
        return {hashlib.sha256(path.read_bytes()).hexdigest() for path in found}
