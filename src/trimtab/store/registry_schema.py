"""`ROOT/registry.sqlite`: what is known of all runs under a root. A cache: the truth lies in the run directories.

It is in WAL mode; each change is one short transaction that takes the write lock at its beginning, so any number of
processes may write at once. A file that is damaged, of another program or of another version is put aside and made anew
from the run directories. Where none can be written, one in memory serves the command.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeVar

from trimtab.errors import StorageError
from trimtab.store import disk, writer
from trimtab.store.registry_names import Root

Value = TypeVar("Value")
FILE = "registry.sqlite"
SCHEMA = 1
PROGRAM = 0x7472696D
"""`trim`: SQLite's mark of whose file it is."""
TABLES = """
CREATE TABLE runs (name TEXT PRIMARY KEY, signature TEXT NOT NULL, brief TEXT NOT NULL, facts TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE settings (run TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (key, run)) WITHOUT ROWID;
CREATE INDEX settings_of_run ON settings (run);
CREATE TABLE figures (run TEXT NOT NULL, metric TEXT NOT NULL, value REAL, PRIMARY KEY (metric, run)) WITHOUT ROWID;
CREATE INDEX figures_of_run ON figures (run);
CREATE TABLE marks (run TEXT NOT NULL, place INTEGER NOT NULL, mark TEXT NOT NULL, PRIMARY KEY (run, place)) WITHOUT ROWID
"""
BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
UNWRITABLE = {
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_PERM,
}


class DamagedError(Exception):
    """The file is not what was written; in a few words."""


class UnwritableError(Exception):
    """Nothing can be written there; in a few words."""


class Database:
    """The file, open."""

    def __init__(self, root: Root, say: Callable[[str], None], *, seconds: float = 60.0) -> None:
        """
        Args:
            say: is told when a file is put aside, or cannot be written.
            seconds: that a write waits for those of other processes, at most.
        """
        self.root = root
        self.say = say
        self.seconds = seconds
        self.path = root.path / FILE
        self._number = 0
        self._connection: sqlite3.Connection
        self._connection = self._opened()

    def close(self) -> None:
        self._connection.close()

    def read(self, work: Callable[[sqlite3.Connection], Value]) -> Value:
        """
        Raises:
            DamagedError: the file is not as it was written; see `replace`.
            StorageError: it cannot be read.
        """
        return self._tried(lambda: work(self._connection))

    def write(self, work: Callable[[sqlite3.Connection], Value]) -> Value:
        """All that `work` does, or nothing. It may be called again.

        Raises:
            DamagedError, StorageError: as `read`.
        """

        def whole() -> Value:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                found = work(self._connection)
                self._connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                raise
            return found

        return self._tried(whole)

    def replace(self, fault: str) -> None:
        """Put the file aside and begin a new one, unless another process has done so."""
        self._connection.close()
        try:
            with self.root.alone(self.seconds):
                if _number_of(self.path) == self._number:
                    self._put_aside(fault)
        except OSError as error:
            self.go_without(error.strerror or str(error))
        else:
            self._connection = self._opened()

    def go_without(self, reason: str) -> None:
        """Nothing can be written: use one in memory from here on."""
        self._connection.close()
        self.say(f"{self.path} cannot be written ({reason}): every run is read anew, for this command alone")
        self._connection = _with_tables(_connected(":memory:", self.seconds))

    # ------------------------------------------------------------------------------------------------------------ opening
    def _opened(self) -> sqlite3.Connection:
        try:
            return self._tried(self._open)
        except UnwritableError as error:
            self._connection = _connected(":memory:", self.seconds)
            self.go_without(str(error))
            return self._connection

    def _open(self) -> sqlite3.Connection:
        if _fault(self.path, self.seconds) is not None:
            self._make()
        self._number = _number_of(self.path)
        connection = _connected(str(self.path), self.seconds)
        try:
            connection.execute("BEGIN IMMEDIATE")  # whether it can be written
            connection.execute("ROLLBACK")
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def _make(self) -> None:
        """A file that can be used, if there is none; only one process makes it."""
        try:
            with self.root.alone(self.seconds):
                fault = _fault(self.path, self.seconds)
                if fault:
                    self._put_aside(fault)
                if fault is not None:
                    with closing(_connected(str(self.path), self.seconds)) as connection:
                        connection.execute("PRAGMA journal_mode = WAL")
                        _with_tables(connection)
                    disk.set_mode(self.path, 0o600)
        except OSError as error:
            raise UnwritableError(error.strerror or str(error)) from error

    def _put_aside(self, fault: str) -> None:
        """The caller is alone."""
        number = 1
        while os.path.lexists(aside := self.path.with_name(f"{FILE}.aside-{number}")):
            number += 1
        writer.rename(self.path, aside)
        for end in ("-wal", "-shm"):
            if os.path.lexists(beside := self.path.with_name(FILE + end)):
                writer.rename(beside, aside.with_name(aside.name + end))
        self.say(f"{self.path} {fault}; it is now {aside.name}, and the registry is made anew from the run directories")

    def _tried(self, work: Callable[[], Value]) -> Value:
        """Again while other processes keep the file busy; SQLite's own waiting does not cover every case."""
        ends = time.monotonic() + self.seconds
        while True:
            try:
                return work()
            except sqlite3.Error as error:
                code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
                if code in UNWRITABLE:
                    raise UnwritableError(str(error)) from error
                if code not in BUSY:
                    raise DamagedError(f"is damaged ({error})") from error
                if time.monotonic() > ends:
                    raise StorageError(
                        f"{self.path}: other processes have kept it busy for {self.seconds:.0f} s"
                    ) from error
                time.sleep(0.02)


def _connected(place: str, seconds: float) -> sqlite3.Connection:
    connection = sqlite3.connect(place, timeout=seconds, isolation_level=None)
    connection.execute("PRAGMA synchronous = NORMAL")
    return connection


def _with_tables(connection: sqlite3.Connection) -> sqlite3.Connection:
    connection.execute("BEGIN IMMEDIATE")
    for statement in TABLES.split(";"):
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {PROGRAM}")
    connection.execute(f"PRAGMA user_version = {SCHEMA}")
    connection.execute("COMMIT")
    return connection


def _fault(path: Path, seconds: float) -> str | None:
    """Why a file cannot be used, in words; "" if there is none yet; None if it can.

    Raises:
        sqlite3.Error: it is busy, or cannot be opened.
    """
    for end in ("", "-wal", "-shm"):
        if path.with_name(path.name + end).is_symlink():
            return f"is a link{' in part' if end else ''}"
    if path.exists() and not path.is_file():
        return "is no file"
    if not path.exists() or path.stat().st_size == 0:
        return ""
    try:
        with closing(sqlite3.connect(str(path), timeout=seconds, isolation_level=None)) as connection:
            program = connection.execute("PRAGMA application_id").fetchone()[0]
            version = connection.execute("PRAGMA user_version").fetchone()[0]
    except sqlite3.DatabaseError as error:
        code = (error.sqlite_errorcode or 0) & 0xFF
        if code in BUSY | UNWRITABLE:
            raise
        return f"is no database ({error})"
    if program != PROGRAM:
        return "is of another program"
    return None if version == SCHEMA else f"has format {version}, this version reads format {SCHEMA}"


def _number_of(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0
