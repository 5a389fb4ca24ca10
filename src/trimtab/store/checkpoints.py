"""Checkpoints: one directory a step, whole or not there, every byte checked before it is used.

    checkpoints/120/
      manifest.json           format, step, metrics, the SHA-256 and size of every other file, and its own checksum
      policy/                 Hugging Face layout
      value/                  the critic, if there is one
      optimizer.safetensors   first and second moments by parameter name
      state.json              counters, cursor, guard, evaluation

Write order: data, fsync, manifest, fsync, rename, fsync of the directory. A directory that has its final name is whole.
What an interrupted save or removal leaves has another name, which begins with a dot; the next save takes it away:

    .120.new                not finished
    .120.old                was checkpoint 120 until a newer one of that step took its place; comes back if none did
    .120.gone               being removed
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from trimtab import __version__
from trimtab.errors import StorageError
from trimtab.ports import RunState
from trimtab.store import journal, retention, writer
from trimtab.store.settings import Checkpoint

FORMAT = 1
MANIFEST = "manifest.json"
LEFTOVER = re.compile(r"\.(\d+)\.(new|old|gone)")
Signature = tuple[tuple[str, int, int, int], ...]
"""Of each file its name, size, time of change and number: what says, without reading it, that nobody wrote to it."""


class CheckpointStore:
    """The checkpoints of one run. On several ranks only the first writes; all read."""

    def __init__(
        self,
        directory: Path,
        settings: Checkpoint,
        *,
        max_steps: int,
        metric: str = "",
        is_writer: bool = True,
        barrier: Callable[[], None] = lambda: None,
        warn: Callable[[str], None] = lambda _: None,
        journal: Path | None = None,
    ) -> None:
        self.directory = directory
        self.settings = settings
        self.metric = metric
        """The evaluation that says which checkpoint is the best; a loss is better when lower."""
        self.is_writer = is_writer
        self.barrier = barrier
        self.warn = warn
        self.journal = journal
        """Tells of checkpoints that are not there any more."""
        self.rejected = 0
        """Damaged checkpoints passed over since the start."""
        self.leftovers = 0
        """What interrupted saves had left behind, and was taken away."""
        self.expected_bytes = 0.0
        """Of one checkpoint, weights and optimiser, before there is one whose size is known."""
        self._known: dict[int, tuple[Signature, str | None]] = {}
        """The fault of each checkpoint that was read, or None: bytes are read once, unless somebody has written since."""
        self.rolling_every = settings.rolling_every or max(1, max_steps // 50)

    # ------------------------------------------------------------------------------------------------------ write
    def save_if_due(
        self, step: int, state: RunState, metrics: Mapping[str, float], *, last: bool = False
    ) -> float | None:
        """Save at every rolling or kept step, at the last, and whenever the evaluation is the best so far.

        Returns:
            The seconds it took, or None if no save was due.

        Raises:
            StorageError: the state could not be written; what was there before is untouched.
        """
        if not self.is_writer:
            return None
        on_schedule = last or step % self.rolling_every == 0 or step % self.settings.every == 0
        if not on_schedule and not self._is_better(metrics):
            return None
        from safetensors import SafetensorError

        started = time.perf_counter()
        try:
            self._tidy()
            self._refuse_if_full(f"checkpoint of step {step}")
            self._save(step, state, metrics)
            self._prune()
        except (OSError, SafetensorError) as error:
            with suppress(OSError):  # the space is wanted back; what cannot be removed now is by the next save
                self._tidy()
            reason = getattr(error, "strerror", None) or error
            raise StorageError(f"checkpoint of step {step}: cannot write to {self.directory}: {reason}") from error
        return time.perf_counter() - started

    def _is_better(self, metrics: Mapping[str, float]) -> bool:
        """Whether the evaluation in these metrics beats that of every checkpoint."""
        if self.metric not in metrics:
            return False
        rival = retention.best({**self._good(), -1: {"metrics": metrics}}, self.metric)
        return rival == -1

    def _tidy(self) -> None:
        """Take away what an interrupted save has left, and give back what it had put aside."""
        if not self.directory.is_dir():
            return
        self._recover()
        for path in sorted(p for p in self.directory.iterdir() if LEFTOVER.fullmatch(p.name)):
            self.leftovers += 1
            self.warn(f"{path} was left by a save that was interrupted, and is removed")
            writer.remove_tree(path)

    def _recover(self) -> None:
        """The checkpoints whose name a save had taken, without giving it to a newer one."""
        for path in sorted(self.directory.glob(".*.old")):
            if (found := LEFTOVER.fullmatch(path.name)) and writer.recover_directory(self.directory / found[1]):
                self.warn(
                    f"checkpoint {found[1]} has its name again; a save had been interrupted that was to replace it"
                )

    def _refuse_if_full(self, name: str) -> None:
        """
        Raises:
            StorageError: one more checkpoint is larger than what is free.
        """
        sizes = [sum(f["bytes"] for f in m["files"].values()) for m in self._manifests().values()]
        wanted = max([self.expected_bytes, *sizes])
        there = next(p for p in (self.directory.absolute(), *self.directory.absolute().parents) if p.exists())
        free = shutil.disk_usage(there).free
        if wanted > free:
            what = f"{name}: {_mib(wanted)} are needed in {self.directory}, but {_mib(free)} are free"
            raise StorageError(f"{what}; free space, or lower checkpoint.keep and checkpoint.rolling_keep")

    def _save(self, step: int, state: RunState, metrics: Mapping[str, float]) -> None:
        from safetensors.torch import save

        scratch = self.directory / f".{step}.new"
        writer.fill(scratch, state.write_models)
        tensors = {name: t.detach().cpu().contiguous() for name, t in state.tensors().items()}
        writer.write_bytes(scratch / "optimizer.safetensors", save(tensors))
        writer.write_bytes(scratch / "state.json", _json(state.values()))
        manifest = {
            "format": FORMAT,
            "trimtab": __version__,
            "step": step,
            "saved": time.time(),
            "metrics": dict(metrics),
            "files": {
                str(p.relative_to(scratch)): {"bytes": p.stat().st_size, "sha256": sha256(p)}
                for p in sorted(scratch.rglob("*"))
                if p.is_file()
            },
        }
        writer.write_bytes(scratch / MANIFEST, _json({**manifest, "checksum": _checksum(manifest)}))
        writer.sync(scratch)
        writer.replace_directory(scratch, self.directory / str(step))
        self._known[step] = (self._signature(step), None)

    def _prune(self) -> None:
        """Only whole checkpoints count; a damaged one is never what the others are removed for."""
        for step in retention.superfluous(self._good(), self.settings, self.rolling_every, self.metric):
            gone = self.directory / f".{step}.gone"
            writer.rename(self.directory / str(step), gone)
            writer.remove_tree(gone)

    # ------------------------------------------------------------------------------------------------------- read
    def steps(self) -> list[int]:
        """Steps that have a checkpoint, whether its bytes are good or not, ascending."""
        if not self.directory.is_dir():
            return []
        return sorted(int(p.name) for p in self.directory.iterdir() if p.is_dir() and p.name.isdigit())

    def fault(self, step: int) -> str | None:
        """What is wrong with a checkpoint, or None if every byte is as it was written."""
        place = self.directory / str(step)
        manifest = self._parsed(step)
        if manifest is None:
            return f"{place / MANIFEST} is missing or cannot be read"
        if (other := _other_format(manifest)) is not None:
            return f"{place} {other}"
        if not _is_as_written(manifest, (place / MANIFEST).read_bytes()):
            return f"{place / MANIFEST} is not as it was written"
        if manifest.get("step") != step:
            return f"{place / MANIFEST} is of step {manifest.get('step')}"
        for name, expected in manifest["files"].items():
            file = place / name
            if not file.is_file():
                return f"{file} is missing"
            if file.stat().st_size != expected["bytes"]:
                return f"{file} has {file.stat().st_size} bytes, expected {expected['bytes']}"
            found = sha256(file)
            if found != expected["sha256"]:
                return f"{file} has SHA-256 {found[:16]}..., expected {expected['sha256'][:16]}..."
        return None

    def newest_good(self) -> int | None:
        """The newest step whose checkpoint is whole; damaged ones are named in a warning.

        Raises:
            StorageError: there are checkpoints, but none is good; or there were some; or the newest whole one is of
                another format, behind which the run would silently go back.
        """
        if self.is_writer and self.directory.is_dir():
            try:
                self._recover()
            except OSError as error:
                raise StorageError(f"cannot write to {self.directory}: {error.strerror or error}") from error
        steps, faults = self.steps(), []
        for step in reversed(steps):
            manifest = self._manifest(step)
            if manifest is not None and (other := _other_format(manifest)) is not None:
                what = f"{self.directory / str(step)} {other}, written by trimtab {manifest.get('trimtab', 'unknown')}"
                raise StorageError(f"{what}; this is trimtab {__version__}: go on with the version that wrote it")
            fault = self._fault_known(step)
            if fault is None:
                return step
            faults.append(fault)
        again = "start over with --fresh, which keeps this run under another name"
        if steps:
            raise StorageError(f"{self.directory}: none of {len(steps)} checkpoints is good ({faults[0]}); {again}")
        if self.journal is not None and (saved := journal.read(self.journal).events("saved")):
            what = f"{self.directory}: there is no checkpoint, but the journal tells of one of step {saved[-1]['step']}"
            raise StorageError(f"{what}; put it back, or {again}")
        return None

    def _fault_known(self, step: int) -> str | None:
        """As `fault`, without reading again what was read before; what is damaged is named and counted once."""
        signature = self._signature(step)
        if step not in self._known or self._known[step][0] != signature:
            fault = self.fault(step)
            self._known[step] = (signature, fault)
            if fault is not None:
                self.rejected += 1
                self.warn(f"checkpoint {step} is not used: {fault}")
        return self._known[step][1]

    def _signature(self, step: int) -> Signature:
        place = self.directory / str(step)
        found = [(str(p.relative_to(place)), p.stat()) for p in sorted(place.rglob("*")) if p.is_file()]
        return tuple((name, stat.st_size, stat.st_mtime_ns, stat.st_ino) for name, stat in found)

    def _good(self) -> dict[int, Mapping[str, Any]]:
        """The manifests of the checkpoints whose bytes are all as they were written."""
        return {step: m for step, m in self._manifests().items() if self._fault_known(step) is None}

    def _manifests(self) -> dict[int, Mapping[str, Any]]:
        return {step: m for step in self.steps() if (m := self._manifest(step)) is not None}

    def restore(self, state: RunState) -> int | None:
        from safetensors.torch import load_file

        step = self.newest_good()
        self.barrier()  # every rank has looked before the first one writes
        if step is None:
            return None
        if self.is_writer:
            self._refuse_if_full("the next checkpoint")
        place = self.directory / str(step)
        state.read_models(place)
        values = json.loads((place / "state.json").read_bytes())
        tensors = load_file(str(place / "optimizer.safetensors"))
        try:
            state.load(tensors, values)
        except KeyError as error:
            by = (self._manifest(step) or {}).get("trimtab", "an earlier version")
            if by == __version__:
                raise
            what = f"{place}: its state has no {error}; it was written by trimtab {by}, this is trimtab {__version__}"
            raise StorageError(f"{what}: go on with the version that wrote it") from error
        return step

    def best(self) -> int | None:
        """The step of the best evaluation among the checkpoints, else the newest."""
        manifests = self._good()
        found = retention.best(manifests, self.metric)
        return found if found is not None else max(manifests, default=None)

    def _manifest(self, step: int) -> Mapping[str, Any] | None:
        """A manifest that is as it was written, or None."""
        found = self._parsed(step)
        return found if found is not None and found.get("checksum") == _checksum(found) else None

    def _parsed(self, step: int) -> Mapping[str, Any] | None:
        try:
            found = json.loads((self.directory / str(step) / MANIFEST).read_bytes())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None


def _checksum(manifest: Mapping[str, Any]) -> str:
    """SHA-256 over everything else in a manifest."""
    rest = {name: value for name, value in manifest.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _other_format(manifest: Mapping[str, Any]) -> str | None:
    """That a manifest is of another format than the one that is read here, in words."""
    found = manifest.get("format")
    return None if found == FORMAT else f"has format {found}, this version reads format {FORMAT}"


def _is_as_written(manifest: Mapping[str, Any], data: bytes) -> bool:
    """Whether the checksum is right, and no byte is another spelling of the same values."""
    return manifest.get("checksum") == _checksum(manifest) and _json(manifest) == data


def _mib(size: float) -> str:
    """
    >>> _mib(13.1e6), _mib(2**31)
    ('12.5 MiB', '2.0 GiB')
    """
    return f"{size / 2**30:,.1f} GiB" if size >= 2**30 else f"{size / 2**20:,.1f} MiB"


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1, allow_nan=False).encode()
