"""Checkpoints in an object store, through fsspec: what lies there, and how a thing is put there and taken from there.

    URL/owner.json               whose store this is: the run's id, and the process that writes
    URL/120/                     a checkpoint, byte for byte as in the run's directory; manifest.json is written last
    URL/run/120/                 what else a new machine needs: run.json, config/, journal.jsonl, audit.jsonl as they
                                 were when checkpoint 120 was good
    URL/run/120/files.json       size and SHA-256 of those and of the manifest, and the number of the upload

Nothing is written over but owner.json. A step that is saved a second time, behind a rollback, is put beside the first one
as `120-1`; of two the one with the higher number counts. Whoever finds a manifest finds everything it names.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from trimtab.errors import MissingExtraError, StorageError
from trimtab.secrets import redact
from trimtab.store import manifests
from trimtab.store.checkpoints import MANIFEST, PIECE, sha256
from trimtab.store.location import scheme_of

OWNER = "owner.json"
SEAL = "files.json"
RUN = "run"
NAME = re.compile(r"(\d{1,12})(?:-\d{1,6})?")
MAX_SMALL = manifests.MAX_MANIFEST
"""Bytes of an object that is read into memory."""
EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
Value = TypeVar("Value")


class StoreError(StorageError):
    """An object store did not do what it was asked for. Training does not end of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """A checkpoint in the store whose objects are all there, in the sizes that its manifest says."""

    name: str
    step: int
    number: int
    """Uploads are counted; the run goes on from the newest."""
    run: str
    """The run's id."""
    manifest: Mapping[str, Any]
    manifest_sha256: str
    files: Mapping[str, Mapping[str, Any]]
    """Of `URL/run/NAME`: size and SHA-256 by name."""

    @property
    def is_resumable(self) -> bool:
        return self.manifest.get("resumable", True) is True

    @property
    def bytes(self) -> int:
        return sum(entry["bytes"] for entry in self.manifest["files"].values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What lies in a store."""

    uploads: tuple[Upload, ...]
    """In the order in which they came."""
    faults: Mapping[str, str]
    """What is wrong with a checkpoint that has a manifest, by its name."""
    unfinished: tuple[str, ...]
    """Names of uploads or removals that were cut off."""

    def newest(self) -> dict[int, Upload]:
        """Of each step the upload that counts."""
        return {upload.step: upload for upload in self.uploads}


class Remote:
    """A place in an object store. Every call may raise `StoreError`, which names the object."""

    def __init__(self, url: str) -> None:
        """
        Raises:
            MissingExtraError: the library for this kind of store is not installed.
        """
        import fsspec

        self.url = url
        scheme = scheme_of(url)
        options: dict[str, Any] = {"skip_instance_cache": True, "use_listings_cache": False}
        if scheme in ("file", "local"):
            options["auto_mkdir"] = True
        try:
            self._fs, self._root = fsspec.core.url_to_fs(url, **options)
        except (ImportError, ValueError) as error:
            extra = EXTRAS.get(scheme)
            hint = f"pip install 'trimtab[{extra}]'" if extra else "install the fsspec library that knows it"
            what = f"checkpoint.store: {scheme}:// cannot be opened ({redact(str(error))})"
            raise MissingExtraError(f"{what}; {hint}") from error
        self._has_md5 = True
        """Until an object that is as it was written has another ETag: then the store makes them of something else."""

    # ---------------------------------------------------------------------------------------------------- operations
    def put(self, path: Path, name: str) -> None:
        """A file as an object that is not there yet, checked by its size and, where the store says one, its checksum."""
        try:
            self._tried(name, lambda: self._fs.put_file(str(path), self._path(name)))
            info = self._info(name)
        except FileNotFoundError as error:
            if not path.is_file():
                raise
            raise StoreError(f"{self._said(name)}: {error}") from error  # such as a bucket that is not there
        if info.get("size") != path.stat().st_size:
            raise StoreError(f"{self._said(name)}: has {info.get('size')} bytes, {path.stat().st_size} were written")
        self._refuse_other_checksum(name, info, path)

    def put_bytes(self, data: bytes, name: str, *, is_new: bool = False) -> None:
        """A small object; with `is_new` only if there is none.

        Raises:
            FileExistsError: there is one already.
        """
        mode = {"mode": "create"} if is_new else {}
        try:
            self._tried(name, lambda: self._fs.pipe_file(self._path(name), data, **mode))
        except FileNotFoundError as error:
            raise StoreError(f"{self._said(name)}: {error}") from error

    def bytes_of(self, name: str) -> bytes | None:
        """A small object, or None if there is none."""
        try:
            if (size := self._info(name)["size"]) > MAX_SMALL:
                raise StoreError(f"{self._said(name)}: has {size} bytes, at most {MAX_SMALL} are read")
            found = self._tried(name, lambda: self._fs.cat_file(self._path(name)))
        except FileNotFoundError:
            return None
        return bytes(found)

    def get(self, name: str, path: Path) -> None:
        """An object as a file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._tried(name, lambda: self._fs.get_file(self._path(name), str(path)))
        except FileNotFoundError as error:
            raise StoreError(f"{self._said(name)}: is missing") from error

    def remove(self, name: str) -> None:
        """Nothing if it is not there."""
        try:
            self._tried(name, lambda: self._fs.rm_file(self._path(name)))
        except FileNotFoundError:
            return

    def sizes(self, below: str = "") -> dict[str, int]:
        """Every object and its size."""
        self._fs.invalidate_cache()
        start = self._path(below)
        try:
            found = self._tried(below, lambda: self._fs.find(start, detail=True))
        except FileNotFoundError:
            return {}
        root = self._root.rstrip("/") + "/"
        return {name.removeprefix(root): info["size"] for name, info in found.items() if name.startswith(root)}

    def is_writable(self) -> None:
        """Write, read and remove a small object.

        Raises:
            StoreError: one of them cannot be done.
        """
        import uuid

        name, data = f"check-{uuid.uuid4().hex}", b"trimtab check"
        self.put_bytes(data, name)
        try:
            if self.bytes_of(name) != data:
                raise StoreError(f"{self._said(name)}: what was written is not what is read")
        finally:
            self.remove(name)

    # --------------------------------------------------------------------------------------------------------- whose
    def owner(self) -> Mapping[str, Any] | None:
        """What the marker says, or None if there is none; of one that was cut off, what the checkpoints say.

        Raises:
            StoreError: it cannot be read, or is not as it was written.
        """
        data = self.bytes_of(OWNER)
        if data is None:
            return None
        found = _object(data)
        if found is None or not isinstance(found.get("id"), str):
            if len(runs := {upload.run for upload in self.contents().uploads}) == 1:
                return {"id": runs.pop()}
            raise StoreError(f"{self._said(OWNER)}: is not as it was written; remove it if no run writes there")
        return found

    # ---------------------------------------------------------------------------------------------------------- look
    def contents(self) -> Contents:
        """What lies there. Manifests and seals are read, of the rest the sizes are looked at."""
        sizes = self.sizes()
        begun = {match[0] for name in sizes if (match := NAME.fullmatch(name.split("/")[0]))}
        begun |= {n.split("/")[1] for n in sizes if n.startswith(f"{RUN}/") and n.count("/") > 1}
        begun = {name for name in begun if NAME.fullmatch(name)}
        uploads, faults, unfinished = [], {}, []
        for name in sorted(begun):
            data = self.bytes_of(f"{name}/{MANIFEST}") if f"{name}/{MANIFEST}" in sizes else None
            if data is None or _object(data) is None:
                unfinished.append(name)
                continue
            found = self._upload(name, data, sizes)
            if isinstance(found, str):
                faults[name] = found
            else:
                uploads.append(found)
        uploads.sort(key=lambda upload: upload.number)
        return Contents(uploads=tuple(uploads), faults=faults, unfinished=tuple(unfinished))

    def _upload(self, name: str, data: bytes, sizes: Mapping[str, int]) -> Upload | str:
        """A checkpoint that has a manifest, or what is wrong with it."""
        sealed = self.bytes_of(f"{RUN}/{name}/{SEAL}")
        manifest, seal = _object(data), _object(sealed or b"")
        if sealed is None:
            return f"{self._said(f'{RUN}/{name}/{SEAL}')} is missing"
        if seal is None or seal.get("checksum") != manifests.checksum(seal) or not _is_seal(seal):
            return f"{self._said(f'{RUN}/{name}/{SEAL}')} is not as it was written"
        found, expected = hashlib.sha256(data).hexdigest(), seal["manifest"]["sha256"]
        if found != expected:
            return f"{self._said(f'{name}/{MANIFEST}')} has SHA-256 {found[:16]}..., expected {expected[:16]}..."
        if (
            manifest is None
            or manifest.get("checksum") != manifests.checksum(manifest)
            or not manifests.is_one(manifest)
        ):
            return f"{self._said(f'{name}/{MANIFEST}')} is not as it was written"
        match = NAME.fullmatch(name)
        if match is None or manifest.get("step") != int(match[1]):
            return f"{self._said(f'{name}/{MANIFEST}')} is of step {manifest.get('step')}"
        wanted = {f"{name}/{file}": entry["bytes"] for file, entry in manifest["files"].items()}
        wanted |= {f"{RUN}/{name}/{file}": entry["bytes"] for file, entry in seal["files"].items()}
        for file, size in wanted.items():
            if file not in sizes:
                return f"{self._said(file)} is missing"
            if sizes[file] != size:
                return f"{self._said(file)} has {sizes[file]} bytes, expected {size}"
        return Upload(
            name=name,
            step=int(match[1]),
            number=seal["number"],
            run=seal["run"],
            manifest=manifest,
            manifest_sha256=found,
            files=seal["files"],
        )

    # -------------------------------------------------------------------------------------------------------- inside
    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}".rstrip("/")

    def _said(self, name: str) -> str:
        return f"{self.url}/{name}"

    def _info(self, name: str) -> Mapping[str, Any]:
        self._fs.invalidate_cache()
        found: Mapping[str, Any] = self._tried(name, lambda: self._fs.info(self._path(name)))
        return found

    def _tried(self, name: str, work: Callable[[], Value]) -> Value:
        """
        Raises:
            StoreError: the store or its library failed, in whatever way: each has errors of its own.
            FileNotFoundError, FileExistsError: as they are.
        """
        try:
            return work()
        except (FileNotFoundError, FileExistsError):
            raise
        except Exception as error:
            said = " ".join(redact(str(error)).split()) or type(error).__name__
            raise StoreError(f"{self._said(name)}: {said[:300]}") from error

    def _refuse_other_checksum(self, name: str, info: Mapping[str, Any], path: Path) -> None:
        """What the store says of an object's bytes is what they are; where it says nothing, nothing is refused.

        An ETag is the MD5 of an object that was written in one piece, unless the store encrypts it under a key of its
        own: so one that differs is looked into, by reading the object.
        """
        said = _md5_said(info) if self._has_md5 else None
        if said is None or said == _md5(path):
            return
        if self._sha256(name) != sha256(path):
            raise StoreError(f"{self._said(name)}: the store has other bytes than were written (MD5 {said})")
        self._has_md5 = False

    def _sha256(self, name: str) -> str:
        def read() -> str:
            digest = hashlib.sha256()
            with self._fs.open(self._path(name), "rb") as file:
                while piece := file.read(PIECE):
                    digest.update(piece)
            return digest.hexdigest()

        return self._tried(name, read)


def line_of(uploads: Iterable[Upload]) -> dict[int, Upload]:
    """The checkpoints of a run as it went: behind a step that came again nothing counts that was there before it."""
    line: dict[int, Upload] = {}
    for upload in sorted(uploads, key=lambda u: u.number):
        if upload.is_resumable:
            line = {step: known for step, known in line.items() if step < upload.step}
        line[upload.step] = upload
    return line


def _md5_said(info: Mapping[str, Any]) -> str | None:
    """The MD5 that a store tells of an object, hexadecimal: S3's ETag, or what Google calls md5Hash."""
    tag = str(info.get("ETag", "")).strip('"').lower()
    if re.fullmatch(r"[0-9a-f]{32}", tag):
        return tag
    coded = info.get("md5Hash")
    return base64.b64decode(coded).hex() if isinstance(coded, str) else None


def _md5(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            digest.update(piece)
    return digest.hexdigest()


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _is_seal(seal: Mapping[str, Any]) -> bool:
    files, manifest = seal.get("files"), seal.get("manifest")
    entries = [*files.values(), manifest] if isinstance(files, dict) else [None]
    return (
        type(seal.get("number")) is int
        and isinstance(seal.get("run"), str)
        and all(
            isinstance(e, dict) and type(e.get("bytes")) is int and isinstance(e.get("sha256"), str) for e in entries
        )
    )
