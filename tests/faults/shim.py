"""A disk that counts what is asked of it, and lets one operation fail: by a kill, an error, or a loss of power.

It stands between `trimtab.store.disk` and a real directory. For a loss of power it keeps a second picture of every file
and directory, of what was flushed: bytes count once the file was synced, names once their directory was.
"""

import errno
import os
import shutil
from pathlib import Path

from trimtab.store import disk

KILLS = ("killed before", "killed after", "killed within")
ERRORS = ("EIO", "ENOSPC")
LOSSES = ("power lost, nothing unsynced is there", "power lost, names are there and unsynced bytes are zero")
FAULTS = (*KILLS, *ERRORS, *LOSSES)
WRITING = ("write", "append", "copy", "fill")
TAKING_SPACE = (*WRITING, "make_directory")


class Killed(BaseException):
    """The process is no more. No `except Exception` may stop it, and nothing reaches the disk behind it."""


class Shim:
    """The operations of `disk`, counted from 1; the one of number `at` meets `fault`."""

    def __init__(self, root, fault=None, at=0):
        self.root = Path(root)
        self.fault = fault
        self.at = at
        self.done = []
        """(operation, path) of each that was asked for."""
        self.is_dead = False
        self._flushed = {}
        self._held = {}
        self._real = {name: getattr(disk, name) for name in disk.OPERATIONS}
        if fault in LOSSES:
            self._look([self.root, *self.root.rglob("*")])

    def install(self, patch):
        for name, real in self._real.items():
            patch.setattr(disk, name, self._watched(name, real))
        return self

    def applies(self):
        """Whether the fault is one that this operation can meet: only what writes bytes can be cut within."""
        return self.fault != "killed within" or self.done[self.at - 1][0] in WRITING

    def _watched(self, name, real):
        def operation(path, *rest):
            if self.is_dead:
                raise Killed
            self.done.append((name, Path(path)))
            if len(self.done) == self.at:
                self._meet(name, real, path, *rest)
            elif self.fault == "ENOSPC" and 0 < self.at < len(self.done) and name in TAKING_SPACE:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            else:
                real(path, *rest)
                self._note(name, path)

        return operation

    def _meet(self, name, real, path, *rest):
        if self.fault in ERRORS:
            if name in WRITING:
                self._half(name, path, *rest)
            number = getattr(errno, self.fault)
            raise OSError(number, os.strerror(number))
        if self.fault == "killed within" and name in WRITING:
            self._half(name, path, *rest)
        elif self.fault != "killed before":
            real(path, *rest)
            self._note(name, path)
        self.is_dead = True
        raise Killed

    def _half(self, name, path, *rest):
        """Only a part of the bytes arrives."""
        if name in ("write", "append"):
            self._real[name](path, rest[0][: len(rest[0]) // 2])
        elif name == "copy":
            Path(rest[0]).write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        else:
            rest[0](path)
            *_, last = sorted(p for p in path.rglob("*") if p.is_file())
            os.truncate(last, last.stat().st_size // 2)

    # ------------------------------------------------------------------------------------------------ loss of power
    def _note(self, name, path):
        if self.fault in LOSSES and name == "sync":
            self._look([Path(path)])

    def _look(self, paths):
        """Remember what is there now, by the number of the file, which is held open so that no other file gets it."""
        for path in paths:
            number = path.stat().st_ino
            if number not in self._held:
                self._held[number] = os.open(path, os.O_RDONLY)
            self._flushed[number] = (
                {p.name: (p.stat().st_ino, p.is_dir()) for p in path.iterdir()} if path.is_dir() else path.read_bytes()
            )

    def after(self):
        """The directory as the next process finds it."""
        if self.fault not in LOSSES:
            return self.root
        found = self.root.with_name(f"{self.root.name}-after")
        if self.fault == LOSSES[0]:
            self._build(self.root.stat().st_ino, True, found)
        else:
            shutil.copytree(self.root, found)
            for path in (p for p in self.root.rglob("*") if p.is_file()):
                kept = self._flushed.get(path.stat().st_ino, b"")
                now = path.read_bytes()
                if now != kept:
                    common = len(kept) if now.startswith(kept) else 0
                    (found / path.relative_to(self.root)).write_bytes(now[:common] + bytes(len(now) - common))
        for descriptor in self._held.values():
            os.close(descriptor)
        return found

    def _build(self, number, is_directory, path):
        kept = self._flushed.get(number)
        if not is_directory:
            path.write_bytes(kept or b"")
            return
        path.mkdir()
        for name, (inner, is_folder) in (kept or {}).items():
            self._build(inner, is_folder, path / name)
