"""The ten operations that change what is on a disk. Everything durable is made of these, and of nothing else.

They are looked up in this module at every call, so a test can put itself between them and the disk, and let any one of
them fail.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

OPERATIONS = (
    "make_directory",
    "write",
    "append",
    "copy",
    "fill",
    "sync",
    "rename",
    "remove_file",
    "remove_directory",
    "set_mode",
)


def make_directory(path: Path) -> None:
    path.mkdir()


def write(path: Path, data: bytes) -> None:
    """A new file, not yet flushed."""
    with path.open("wb") as file:
        file.write(data)


def append(path: Path, data: bytes) -> None:
    """At the end of a file, not yet flushed."""
    with path.open("ab") as file:
        file.write(data)


def copy(old: Path, new: Path) -> None:
    """The bytes of a file under another name, not yet flushed."""
    shutil.copyfile(old, new)


def fill(directory: Path, write: Callable[[Path], object]) -> None:
    """Let a library write files into a directory, in its own way: models and tokenizers save themselves."""
    write(directory)


def sync(path: Path) -> None:
    """Flush a file, or the names in a directory, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename(old: Path, new: Path) -> None:
    """Within a file system; a file that has the new name is replaced in one go."""
    old.replace(new)


def remove_file(path: Path) -> None:
    path.unlink()


def remove_directory(path: Path) -> None:
    path.rmdir()


def set_mode(path: Path, mode: int) -> None:
    path.chmod(mode)
