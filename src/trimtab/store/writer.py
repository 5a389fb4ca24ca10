"""The file operations that everything durable goes through.

Order of a save: data, fsync, manifest, fsync, rename, fsync of the directory. Nothing is changed in place.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def make_directory(path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    """A new file, flushed to the disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def append(path: Path, data: bytes) -> None:
    """At the end of a file, flushed to the disk."""
    with path.open("ab") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Flush a file or directory that somebody else has written."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename(old: Path, new: Path) -> None:
    """Move within a file system, and flush the directory that holds the new name."""
    old.rename(new)
    sync(new.parent)


def remove_tree(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=False)


def replace_bytes(path: Path, data: bytes) -> None:
    """A whole file, old or new at every moment."""
    scratch = path.with_name(path.name + ".new")
    write_bytes(scratch, data)
    scratch.replace(path)
    sync(path.parent)


def readable_by_umask(path: Path) -> None:
    """Some libraries write files as 0600 whatever the umask is; give them the mode that other files get."""
    umask = os.umask(0)
    os.umask(umask)
    path.chmod((0o777 if path.is_dir() else 0o666) & ~umask)
