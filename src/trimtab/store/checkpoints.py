"""Checkpoints: one directory a step, whole or not there, every byte checked before it is used.

    checkpoints/120/
      manifest.json           format, step, metrics, the SHA-256 and size of every other file, and its own checksum
      policy/                 Hugging Face layout
      value/                  the critic, if there is one
      optimizer.safetensors   first and second moments by parameter name
      state.json              counters, cursor, guard, evaluation

Write order: data, fsync, manifest, fsync, rename, fsync of the directory. A directory that has its final name is whole.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trimtab.errors import StorageError
from trimtab.ports import RunState
from trimtab.store import retention, writer
from trimtab.store.settings import Checkpoint

FORMAT = 1
MANIFEST = "manifest.json"


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
    ) -> None:
        self.directory = directory
        self.settings = settings
        self.metric = metric
        """The evaluation that says which checkpoint is the best; a loss is better when lower."""
        self.is_writer = is_writer
        self.barrier = barrier
        self.warn = warn
        self.rejected = 0
        """Damaged checkpoints passed over since the start."""
        self._verified: tuple[list[int], int] | None = None
        """The steps that there were and the newest good one of them, as long as nothing is saved: bytes are read once."""
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

        self._verified = None
        started = time.perf_counter()
        try:
            self._save(step, state, metrics)
            self._prune()
        except (OSError, SafetensorError) as error:
            reason = getattr(error, "strerror", None) or error
            raise StorageError(f"checkpoint of step {step}: cannot write to {self.directory}: {reason}") from error
        return time.perf_counter() - started

    def _is_better(self, metrics: Mapping[str, float]) -> bool:
        """Whether the evaluation in these metrics beats that of every checkpoint."""
        if self.metric not in metrics:
            return False
        manifests = self._manifests()
        rival = retention.best({**manifests, -1: {"metrics": metrics}}, self.metric)
        return rival == -1

    def _manifests(self) -> dict[int, Mapping[str, Any]]:
        return {step: m for step in self.steps() if (m := self._manifest(step)) is not None}

    def _save(self, step: int, state: RunState, metrics: Mapping[str, float]) -> None:
        from safetensors.torch import save

        scratch = self.directory / f".{step}.new"
        if scratch.exists():
            writer.remove_tree(scratch)
        writer.make_directory(scratch)
        state.write_models(scratch)
        for file in sorted(p for p in scratch.rglob("*") if p.is_file()):
            writer.readable_by_umask(file)
            writer.sync(file)
        tensors = {name: t.detach().cpu().contiguous() for name, t in state.tensors().items()}
        writer.write_bytes(scratch / "optimizer.safetensors", save(tensors))
        writer.write_bytes(scratch / "state.json", _json(state.values()))
        manifest = {
            "format": FORMAT,
            "step": step,
            "saved": time.time(),
            "metrics": dict(metrics),
            "files": {
                str(p.relative_to(scratch)): {"bytes": p.stat().st_size, "sha256": sha256(p)}
                for p in sorted(scratch.rglob("*"))
                if p.is_file()
            },
        }
        for folder in sorted(p for p in scratch.rglob("*") if p.is_dir()):
            writer.sync(folder)
        writer.write_bytes(scratch / MANIFEST, _json({**manifest, "checksum": _checksum(manifest)}))
        writer.sync(scratch)
        final, replaced = self.directory / str(step), self.directory / f".{step}.old"
        if replaced.exists():
            writer.remove_tree(replaced)
        if final.exists():
            writer.rename(final, replaced)
        writer.rename(scratch, final)
        if replaced.exists():
            writer.remove_tree(replaced)

    def _prune(self) -> None:
        for step in retention.superfluous(self._manifests(), self.settings, self.rolling_every, self.metric):
            gone = self.directory / f".{step}.old"
            if gone.exists():
                writer.remove_tree(gone)
            writer.rename(self.directory / str(step), gone)
            shutil.rmtree(gone)

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
        if manifest.get("format") != FORMAT:
            return f"{place} has format {manifest.get('format')}, this version reads format {FORMAT}"
        if manifest.get("checksum") != _checksum(manifest):
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
            StorageError: there are checkpoints, but none is good.
        """
        steps = self.steps()
        if self._verified is not None and self._verified[0] == steps:
            return self._verified[1]
        faults = []
        for step in reversed(steps):
            fault = self.fault(step)
            if fault is None:
                self._verified = (steps, step)
                return step
            faults.append(fault)
            self.rejected += 1
            self.warn(f"checkpoint {step} is not used: {fault}")
        if steps:
            raise StorageError(
                f"{self.directory}: none of {len(steps)} checkpoints is good ({faults[0]}); "
                "start over with --fresh, which keeps this run under another name"
            )
        return None

    def restore(self, state: RunState) -> int | None:
        from safetensors.torch import load_file

        step = self.newest_good()
        self.barrier()  # every rank has looked before the first one writes
        if step is None:
            return None
        place = self.directory / str(step)
        state.read_models(place)
        values = json.loads((place / "state.json").read_bytes())
        state.load(load_file(str(place / "optimizer.safetensors")), values)
        return step

    def best(self) -> int | None:
        """The step of the best evaluation among the checkpoints, else the newest."""
        manifests = self._manifests()
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


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1, allow_nan=False).encode()
