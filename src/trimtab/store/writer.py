"""What everything durable is written with: whole files, whole directories, lines at an end.

Order of a save: data, fsync, manifest, fsync, rename, fsync of the directory. Nothing is changed in place. All of it is
made of the ten operations of `disk`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from trimtab import heartbeat
from trimtab.secrets import redact
from trimtab.store import disk


def make_directory(path: Path) -> None:
    """A directory and those above it, their names flushed to the disk."""
    if path.is_dir():
        return
    if not path.parent.exists():
        make_directory(path.parent)
    try:
        disk.make_directory(path)
    except FileExistsError:
        if not path.is_dir():
            raise
    disk.sync(path.parent)


def write_bytes(path: Path, data: bytes) -> None:
    """A new file, flushed to the disk; its name is not, until its directory is."""
    disk.write(path, data)
    disk.sync(path)
    heartbeat.beat("saving")


def append(path: Path, data: bytes) -> None:
    """At the end of a file, flushed to the disk; of a new file the name, too."""
    is_new = not path.exists()
    disk.append(path, data)
    disk.sync(path)
    if is_new:
        disk.sync(path.parent)


def fill(directory: Path, write: Callable[[Path], object]) -> None:
    """Let a library write into a new directory, then give its files the usual mode and flush them and their names."""
    make_directory(directory)
    disk.fill(directory, write)
    for path in sorted(directory.rglob("*")):
        readable_by_umask(path)
        disk.sync(path)
        heartbeat.beat("saving")
    disk.sync(directory)


def copy_tree(old: Path, new: Path) -> None:
    """A directory once more, as a new one, flushed to the disk."""
    make_directory(new)
    for path in sorted(old.rglob("*")):
        target = new / path.relative_to(old)
        if path.is_dir():
            make_directory(target)
        else:
            disk.copy(path, target)
            disk.sync(target)
    for folder in [new, *(p for p in new.rglob("*") if p.is_dir())]:
        disk.sync(folder)


def sync(path: Path) -> None:
    """Flush a file or directory that somebody else has written."""
    disk.sync(path)


def rename(old: Path, new: Path) -> None:
    """Move within a file system, and flush the directories that hold the names."""
    disk.rename(old, new)
    disk.sync(new.parent)
    if old.parent != new.parent:
        disk.sync(old.parent)


def remove_file(path: Path) -> None:
    """Nothing if it is not there."""
    if path.exists():
        disk.remove_file(path)


def remove_tree(path: Path) -> None:
    """A directory with all that is in it; a link is removed, not followed."""
    for folder, folders, files in os.walk(path, topdown=False):
        for name in files:
            disk.remove_file(Path(folder, name))
        for name in folders:
            place = Path(folder, name)
            (disk.remove_file if place.is_symlink() else disk.remove_directory)(place)
    disk.remove_directory(path)


def replace_bytes(path: Path, data: bytes) -> None:
    """A whole file, old or new at every moment."""
    scratch = scratch_of(path)
    write_bytes(scratch, data)
    rename(scratch, path)


def scratch_of(path: Path) -> Path:
    """Where a file is written until it is whole."""
    return path.with_name(path.name + ".new")


def replace_text(path: Path, text: str) -> None:
    """A whole file of text, old or new at every moment, and no secret in it."""
    replace_bytes(path, redact(text).encode())


def replace_directory(new: Path, path: Path) -> None:
    """Give a directory that is whole and flushed its name. What had it is `.NAME.old` for a moment, then gone.

    A process that dies in between leaves `.NAME.old` without NAME: see `recover_directory`.
    """
    old = path.with_name(f".{path.name}.old")
    if path.exists():
        if old.exists():
            remove_tree(old)
        rename(path, old)
    rename(new, path)
    if old.exists():
        remove_tree(old)


def recover_directory(path: Path) -> bool:
    """Give a directory its name back that an interrupted `replace_directory` has taken; whether there was one."""
    old = path.with_name(f".{path.name}.old")
    if path.exists() or not old.is_dir():
        return False
    rename(old, path)
    return True


def readable_by_umask(path: Path) -> None:
    """Some libraries write files as 0600 whatever the umask is; give them the mode that other files get."""
    umask = os.umask(0)
    os.umask(umask)
    mode = (0o777 if path.is_dir() else 0o666) & ~umask
    if path.stat().st_mode & 0o777 != mode:
        disk.set_mode(path, mode)
