"""A run from an object store into a directory that has none of its checkpoints.

What comes is looked at before it gets its place: names that stay where they belong, sizes, then every hash. What is
damaged is passed over and named. `run.json` comes last: without it a directory holds no run, and the next start begins
anew.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from trimtab import untrusted
from trimtab.errors import StorageError
from trimtab.store import writer
from trimtab.store.checkpoints import MANIFEST, CheckpointStore, mib, sha256
from trimtab.store.remote import RUN, Contents, Remote, StoreError, Upload, line_of
from trimtab.store.run_directory import RunDirectory
from trimtab.store.settings import Checkpoint
from trimtab.untrusted import HarmError

INCOMING = ".incoming"
"""In the run's directory: what is not verified yet."""
APPENDED = ("journal.jsonl", "audit.jsonl")
"""A run's own, where it goes on from what comes, is the newer one."""
Say = Callable[[str], None]


def newest(contents: Contents) -> Upload | None:
    """The checkpoint that a run would go on from, not verified yet."""
    line = line_of(contents.uploads).values()
    return max((u for u in line if u.is_resumable), key=lambda u: u.number, default=None)


def incoming_of(directory: RunDirectory) -> RunDirectory:
    return RunDirectory(directory.root / INCOMING)


def bring_run(remote: Remote, upload: Upload, directory: RunDirectory) -> str | None:
    """What lies beside a checkpoint, into the incoming place; what is wrong with it, or None.

    Raises:
        StoreError: the store does not give it.
    """
    incoming = incoming_of(directory)
    shutil.rmtree(incoming.root, ignore_errors=True)
    for name, entry in upload.files.items():
        try:
            untrusted.refuse_name(name)
        except HarmError as error:
            return f"{remote.url}/{RUN}/{upload.name}/files.json {error}"
        remote.get(f"{RUN}/{upload.name}/{name}", incoming.root / name)
        if (found := sha256(incoming.root / name)) != entry["sha256"]:
            where = f"{remote.url}/{RUN}/{upload.name}/{name}"
            return f"{where} has SHA-256 {found[:16]}..., expected {entry['sha256'][:16]}..."
    if not incoming.exists or not incoming.config_versions():
        return f"{remote.url}/{RUN}/{upload.name} holds no run.json and configuration"
    return None


def bring_back(
    remote: Remote, contents: Contents, directory: RunDirectory, say: Say, refuse: Callable[[RunDirectory], None]
) -> int:
    """A run's checkpoints, its configurations and its journal; the step that it goes on from.

    Args:
        remote: the store.
        contents: what lies there.
        directory: locked by this process.
        say: is told what comes and what is passed over.
        refuse: given the run's small files, raises if this is not the run to go on with.

    Raises:
        StorageError: none of its checkpoints is good, or the disk takes no more.
    """
    for text in contents.faults.values():
        say(f"checkpoint in the store is not used: {text}")
    for name in contents.unfinished:
        say(f"checkpoint in the store is not used: {remote.url}/{name}/{MANIFEST} is missing or cut off")
    left, first = list(contents.uploads), None
    faults = [*contents.faults.values()]
    while (upload := newest(Contents(uploads=tuple(left), faults={}, unfinished=()))) is not None:
        fault = bring_run(remote, upload, directory)
        if fault is None:
            refuse(incoming_of(directory))
            say(f"checkpoint {upload.step} comes from {remote.url}: {mib(upload.bytes)}")
            fault = _bring(remote, upload, directory)
        if fault is None:
            first = upload
            break
        say(f"checkpoint {upload.step} in the store is not used: {fault}")
        faults.append(fault)
        left.remove(upload)
    if first is None:
        what = f"none of {len(contents.uploads) + len(contents.faults)} checkpoints is good"
        raise StorageError(f"{remote.url}: {what} ({faults[0]}); give another checkpoint.store to start over")
    for step, upload in sorted(line_of(left).items()):
        if upload is first:
            continue
        try:
            fault = _bring(remote, upload, directory)
        except StoreError as error:
            fault = str(error)
        if fault is not None:
            say(f"checkpoint {step} in the store is not used: {fault}")
    _place_run(directory)
    return first.step


def _bring(remote: Remote, upload: Upload, directory: RunDirectory) -> str | None:
    """A checkpoint into its place, verified before; what is wrong with it, or None."""
    checkpoints = incoming_of(directory).checkpoints
    place = checkpoints / str(upload.step)
    shutil.rmtree(place, ignore_errors=True)
    for name in upload.manifest["files"]:
        try:
            untrusted.refuse_name(name)
        except HarmError as error:
            return f"{remote.url}/{upload.name}/{MANIFEST} {error}"
    try:
        for name in [*sorted(upload.manifest["files"]), MANIFEST]:
            remote.get(f"{upload.name}/{name}", place / name)
        fault = CheckpointStore(checkpoints, Checkpoint(), max_steps=1, is_writer=False).fault(upload.step)
        if fault is not None:
            shutil.rmtree(place)
            return fault.replace(str(place), f"{remote.url}/{upload.name}")
        _flush(place)
        writer.make_directory(directory.checkpoints)
        writer.replace_directory(place, directory.checkpoints / str(upload.step))
    except OSError as error:
        raise StorageError(f"cannot write to {directory.root}: {error.strerror or error}") from error
    return None


def _place_run(directory: RunDirectory) -> None:
    """Configurations and journal to their places, then what says that there is a run."""
    incoming = incoming_of(directory).root
    names = sorted(str(p.relative_to(incoming)) for p in incoming.rglob("*") if p.is_file() and p.name != "run.json")
    try:
        for name in [*names, "run.json"]:
            data, path = (incoming / name).read_bytes(), directory.root / name
            if name in APPENDED and path.is_file() and path.read_bytes().startswith(data):
                continue
            writer.make_directory(path.parent)
            writer.replace_bytes(path, data)
        shutil.rmtree(incoming)
    except OSError as error:
        raise StorageError(f"cannot write to {directory.root}: {error.strerror or error}") from error


def _flush(place: Path) -> None:
    for path in sorted(place.rglob("*")):
        writer.sync(path)
    writer.sync(place)
