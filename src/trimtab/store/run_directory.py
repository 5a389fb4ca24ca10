"""A run's directory: who may use it, what it says of itself, its configurations."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trimtab.errors import LockError, StorageError, UserError
from trimtab.store import disk, writer


class RunDirectory:
    """Paths and small files of one run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.checkpoints = root / "checkpoints"
        self.samples = root / "samples"
        self.config = root / "config"
        self.final = root / "final"
        self.journal = root / "journal.jsonl"
        self.audit = root / "audit.jsonl"
        self.report = root / "report.html"
        self.picture = root / "report.png"
        self.failure = root / "failure.json"
        self.drill = root / "drill.json"
        self.upload = root / "store.json"
        self.supervisor = root / "supervisor.jsonl"

    @classmethod
    def existing(cls, root: Path) -> RunDirectory:
        """The directory of a run that was started.

        Raises:
            UserError: there is none.
        """
        directory = cls(root)
        if not directory.exists:
            raise UserError(f"{root}: no run was started here (there is no run.json)")
        return directory

    @property
    def exists(self) -> bool:
        """Whether a run was started here."""
        return (self.root / "run.json").is_file()

    def create(self) -> None:
        """The folders, for nobody else to look into.

        Raises:
            UserError: the path leads through a file, or nothing may be written there.
            StorageError: the disk takes no more.
        """
        try:
            writer.make_directory(self.root)
            disk.set_mode(self.root, 0o700)
            for folder in (self.checkpoints, self.samples, self.config):
                writer.make_directory(folder)
        except (FileExistsError, FileNotFoundError, NotADirectoryError, PermissionError) as error:
            what = f"{self.root}: no run can be kept here: {error.strerror}"
            raise UserError(f"{what}; give a directory with --run-dir") from error
        except OSError as error:
            if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
                what = f"{str(self.root)[:80]}...: no run can be kept here: {error.strerror}"
                raise UserError(f"{what}; give another directory with --run-dir") from error
            raise StorageError(f"cannot write to {self.root}: {error.strerror or error}") from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else trains here meanwhile. The system frees the lock of a process that has died.

        Raises:
            LockError: another process holds it; the message says which.
            StorageError: it cannot be written.
        """
        path = self.root / "lock"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StorageError(f"cannot write to {path}: {error.strerror or error}") from error
        try:
            if not _acquire(descriptor):
                holder = path.read_text() or "an unknown process"
                raise LockError(f"{self.root}: another process trains here: {holder}")
            started = time.strftime("%Y-%m-%d %H:%M:%S %z")
            said = f"pid {os.getpid()} on {socket.gethostname()}, since {started}"
            try:
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, said.encode(), 0)
            except OSError as error:
                raise StorageError(f"cannot write to {path}: {error.strerror or error}") from error
            yield
        finally:
            os.close(descriptor)

    def is_locked(self) -> bool:
        """Whether a process trains here now."""
        try:
            with (self.root / "lock").open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def describe(self, **facts: Any) -> None:
        """Put facts into run.json beside those that are there."""
        self._replace(self.root / "run.json", json.dumps({**self.facts(), **facts}, indent=1))

    def facts(self) -> dict[str, Any]:
        """What run.json says; nothing if it is not there.

        Raises:
            StorageError: it is not as it was written.
        """
        path = self.root / "run.json"
        try:
            found = json.loads(path.read_bytes()) if path.is_file() else {}
        except ValueError as error:
            raise StorageError(
                f"{path}: is not as it was written: {error}; see `trimtab verify {self.root}`"
            ) from error
        if not isinstance(found, dict):
            raise StorageError(f"{path}: is no JSON object; see `trimtab verify {self.root}`")
        return found

    def last_drill(self) -> Mapping[str, Any] | None:
        """What the newest recovery drill left, or None."""
        try:
            found = json.loads(self.drill.read_bytes())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def last_upload(self) -> Mapping[str, Any] | None:
        """Which checkpoint is the newest that this directory has brought to an object store, or None."""
        try:
            found = json.loads(self.upload.read_bytes())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) and {"step", "time", "url"} <= found.keys() else None

    def add_config(
        self,
        requested: Mapping[str, Any],
        resolved: Mapping[str, Any],
        *,
        folder: Path = Path(),
        why: str,
        changes: Mapping[str, Any] | None = None,
        who: str | None = None,
        request: str | None = None,
    ) -> int:
        """A new version of the configuration; its number.

        Args:
            requested: what the run was started with.
            resolved: every key at its value.
            folder: where its file lies: paths are looked for there.
            why: in words.
            changes: what swaps, rollbacks and the guard have set over it, by dotted key.
            who: else the user of this process.
            request: what asked for it.
        """
        import yaml

        version = len(self.config_versions()) + 1
        document = {
            "version": version,
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "who": who or os.environ.get("USER") or str(os.getuid()),
            "why": why,
            "request": request,
            "folder": str(folder.resolve()),
            "requested": dict(requested),
            "changes": dict(changes or {}),
            "resolved": dict(resolved),
        }
        text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
        self._replace(self.config / f"{version:04}.yaml", text)
        return version

    @staticmethod
    def _replace(path: Path, text: str) -> None:
        try:
            writer.replace_text(path, text)
        except OSError as error:
            raise StorageError(f"cannot write to {path}: {error.strerror or error}") from error

    def config_versions(self) -> list[Path]:
        return sorted(p for p in self.config.glob("*.yaml") if p.stem.isdigit())

    def newest_config(self) -> Mapping[str, Any]:
        """The newest version's document.

        Raises:
            StorageError: there is none, or it is not as it was written.
        """
        versions = self.config_versions()
        if not versions:
            raise StorageError(f"{self.config}: holds no configuration; see `trimtab verify {self.root}`")
        return self._config_at(versions[-1])

    def config_of(self, version: int) -> Mapping[str, Any]:
        """The document of a version.

        Raises:
            UserError: there is no such version.
            StorageError: it is not as it was written.
        """
        path = self.config / f"{version:04}.yaml"
        if not path.is_file():
            there = ", ".join(str(int(p.stem)) for p in self.config_versions())
            raise UserError(f"{self.root}: there is no configuration {version}; there are {there}")
        return self._config_at(path)

    def _config_at(self, path: Path) -> Mapping[str, Any]:
        import yaml

        try:
            found = yaml.safe_load(path.read_bytes())
        except yaml.YAMLError as error:
            raise StorageError(f"{path}: is not as it was written; see `trimtab verify {self.root}`") from error
        if not isinstance(found, dict) or not {"requested", "resolved", "folder"} <= found.keys():
            raise StorageError(f"{path}: is no configuration; see `trimtab verify {self.root}`")
        return found

    def move_aside(self) -> Path:
        """Give a run another name, so that a new one can take its place."""
        number = 1
        while (aside := self.root.with_name(f"{self.root.name}.old-{number}")).exists():
            number += 1
        try:
            writer.rename(self.root, aside)
        except OSError as error:
            raise StorageError(f"cannot give {self.root} another name: {error.strerror or error}") from error
        return aside


def _acquire(descriptor: int) -> bool:
    """Whether the lock was got; tried for a moment, since a look at the lock holds it for an instant."""
    for _ in range(5):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.02)
        else:
            return True
    return False
