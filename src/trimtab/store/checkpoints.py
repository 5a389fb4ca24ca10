"""Checkpoints: one directory a step, whole or not there, every byte checked before it is used.

    checkpoints/120/
      manifest.json           format, step, metrics, the SHA-256 and size of every other file, and its own checksum
      policy/                 Hugging Face layout
      value/                  the critic, if there is one
      optimizer.safetensors   first and second moments by parameter name
      state.json              counters, cursor, guard, evaluation

One of the policy's weights alone (`checkpoint.weights_every`) has `policy/` and a manifest that says `resumable: false`.

Write order: data, fsync, manifest, fsync, rename, fsync of the directory. A directory that has its final name is whole.
What an interrupted save or removal leaves has another name, which begins with a dot; the next save takes it away:

    .120.new                not finished
    .120.old                was checkpoint 120 until a newer one of that step took its place; comes back if none did
    .120.gone               being removed

A save writes from a snapshot. Beside training (`checkpoint.async`) the snapshot is a copy, and a thread writes, hashes,
flushes, renames and removes. There is one save at most; whatever else looks at the checkpoints waits for it first.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab import __version__, heartbeat
from trimtab.errors import StorageError
from trimtab.ports import RunState, Saved, Snapshot
from trimtab.store import encryption, journal, manifests, retention, writer
from trimtab.store.beside import beside, here
from trimtab.store.settings import Checkpoint

if TYPE_CHECKING:
    from trimtab.store.remote_mirror import Mirror

FORMAT = 1
MANIFEST = manifests.NAME
PIECE = 1 << 22
"""Bytes that are hashed at once."""
LEFTOVER = re.compile(r"\.(\d+)\.(new|old|gone)")
Signature = tuple[tuple[str, int, int, int], ...]
"""Of each file its name, size, time of change and number: what says, without reading it, that nobody wrote to it."""


@dataclass(slots=True, kw_only=True)
class _Save:
    """One that was begun."""

    step: int
    policy_only: bool
    taken: float
    """When its snapshot was, by a clock that only goes forward."""
    future: Future[float] = field(default_factory=Future)
    stall_seconds: float = 0.0
    said: list[str] = field(default_factory=list)
    """Lines that arose while it was written; they are said by the caller's thread."""


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
        self._say = warn
        self.journal = journal
        """Tells of checkpoints that are not there any more."""
        self.rejected = 0
        """Damaged checkpoints passed over since the start."""
        self.leftovers = 0
        """What interrupted saves had left behind, and was taken away."""
        self.failed = 0
        """Saves in a row that have failed."""
        self.expected_bytes = 0.0
        """Of one checkpoint, weights and optimiser, before there is one whose size is known."""
        self.vault = encryption.vault_of(settings.encrypt)
        self._key_id: str | None = None
        """Of the last save."""
        self._has_said_plain = False
        self.mirror: Mirror | None = None
        """Brings what is good into an object store; goes on over a rebuild of the run."""
        self._known: dict[int, tuple[Signature, str | None]] = {}
        """The fault of each checkpoint that was read, or None: bytes are read once, unless somebody has written since."""
        self.max_steps = max_steps
        self.rolling_every = retention.rolling_interval(settings, max_steps)
        self._under_way: _Save | None = None
        self._ended: list[Saved] = []
        self._failure: StorageError | None = None
        self._stalled = 0.0
        self._save_seconds: float | None = None
        self._newest: float | None = None
        """When the snapshot of the newest checkpoint was taken."""
        self._passed_over: tuple[int, ...] = ()

    # ------------------------------------------------------------------------------------------------------ write
    def save_if_due(
        self, step: int, state: RunState, metrics: Mapping[str, float], *, last: bool = False
    ) -> float | None:
        """Save at every rolling or kept step, at the last, and whenever the evaluation is the best so far.

        The last one is there on return. The others are written beside training if `checkpoint.async` says so.

        Returns:
            The seconds that training stood still, or None if no save was due.

        Raises:
            StorageError: the last save failed, or more in a row than `checkpoint.max_failed_saves`; what was there
                before is untouched.
        """
        if not self.is_writer:
            return None
        started = time.perf_counter()
        self._collect()
        is_due, policy_only = self._due(step, metrics, last=last)
        if is_due:
            self.wait()
        if not last:  # the last one is tried whatever was before
            self._refuse_failures(self.settings.max_failed_saves)
        if not is_due:
            return None
        is_beside = self.settings.async_ and not last
        source = state.snapshot(is_copied=is_beside, policy_only=policy_only)
        save = _Save(step=step, policy_only=policy_only, taken=time.monotonic())
        self._under_way, self._say = save, save.said.append
        work = partial(self._write, step, source, dict(metrics), policy_only=policy_only)
        save.future = (beside if is_beside else here)(work)
        save.stall_seconds = time.perf_counter() - started
        self._stalled += save.stall_seconds
        if not is_beside:
            self._collect(is_last=last)
            self._refuse_failures(0 if last else self.settings.max_failed_saves)
        return save.stall_seconds

    def _due(self, step: int, metrics: Mapping[str, float], *, last: bool) -> tuple[bool, bool]:
        """Whether to save at a step, and whether the policy alone."""
        s = self.settings
        if last or step % self.rolling_every == 0 or step % s.every == 0 or self._is_better(metrics):
            return True, False
        return s.weights_every is not None and step % s.weights_every == 0, True

    def wait(self) -> None:
        """Until the save that is under way has ended."""
        if self._under_way is not None:
            futures.wait([self._under_way.future])
            self._collect()

    def saves(self) -> Sequence[Saved]:
        """The saves that have ended since this was last asked, in their order."""
        self._collect()
        found, self._ended = self._ended, []
        return found

    def figures(self) -> dict[str, float]:
        """Metrics of saving: what training waited for it since this was last asked, and how things stand."""
        found = {"checkpoint/rejected": float(self.rejected), "checkpoint/failed": float(self.failed)}
        found["checkpoint/stall_seconds"] = found["time/checkpoint"] = self._stalled
        self._stalled = 0.0
        if self._save_seconds is not None:
            found["checkpoint/save_seconds"] = self._save_seconds
        if self._newest is not None:
            found["checkpoint/age"] = time.monotonic() - self._newest
        return found if self.mirror is None else found | self.mirror.figures()

    def _collect(self, *, is_last: bool = False) -> None:
        """Take over the outcome of the save that was under way, if it has ended."""
        save = self._under_way
        if save is None or not save.future.done():
            return
        self._under_way, self._say = None, self.warn
        for line in save.said:
            self.warn(line)
        seconds, failure = 0.0, None
        try:
            seconds = save.future.result()
        except StorageError as error:
            failure = error
        if failure is not None:
            self._count_failure(failure, is_last=is_last)
        else:
            if self.failed:
                self.warn(f"checkpoint of step {save.step}: written; {_saves(self.failed)} before it had failed")
            self.failed, self._save_seconds = 0, seconds
            if not save.policy_only:
                self._newest = save.taken
        ended = Saved(
            step=save.step,
            seconds=seconds,
            stall_seconds=save.stall_seconds,
            policy_only=save.policy_only,
            failure=str(failure or ""),
        )
        self._ended.append(ended)

    def _count_failure(self, failure: StorageError, *, is_last: bool) -> None:
        self.failed, self._failure = self.failed + 1, failure
        left = self.settings.max_failed_saves - self.failed
        if left >= 0 and not is_last:
            then = f"{left} more may fail in a row" if left else "the next one that fails ends the run"
            self.warn(f"{failure}; training goes on, and {then} (checkpoint.max_failed_saves)")

    def _refuse_failures(self, allowed: int) -> None:
        if self.failed > allowed:
            many = f"; {_saves(self.failed)} in a row have failed" if self.failed > 1 else ""
            raise StorageError(f"{self._failure}{many}") from self._failure

    def room(self, policy_bytes: float, *, is_evaluated: bool) -> str:
        """What the checkpoints of the run will take of the disk at most, in a line.

        Args:
            policy_bytes: of a checkpoint of the policy's weights alone.
            is_evaluated: whether there is a best one, which stays.
        """
        each = max([self.expected_bytes, *(_bytes_of(m) for m in self._manifests().values() if _is_resumable(m))])
        count, alone = retention.most_kept(self.settings, self.max_steps, is_evaluated=is_evaluated)
        wanted = (count + 1) * each + alone * policy_bytes
        more = f", {alone} of the policy's weights alone of {mib(policy_bytes)}" if alone else ""
        text = f"checkpoints: up to {count} of {mib(each)}{more}, and one being written: {mib(wanted)}"
        there = sum(_bytes_of(m) for m in self._manifests().values())
        free = free_bytes(self.directory)
        if wanted <= there + free:
            return text
        hint = "lower checkpoint.keep and checkpoint.rolling_keep, or make room before saves fail"
        return f"{text}, but only {mib(free)} are free: {hint}"

    # ------------------------------------------------------------------------------------ write, in whichever thread
    def _write(self, step: int, source: Snapshot, metrics: Mapping[str, float], *, policy_only: bool) -> float:
        """The seconds it took.

        Raises:
            StorageError: it could not be written; what was there before is untouched.
        """
        from safetensors import SafetensorError

        started = time.perf_counter()
        try:
            with heartbeat.at_work("saving"):
                self._tidy()
                self._refuse_if_full(f"checkpoint of step {step}", policy_only=policy_only)
                self._save(step, source, metrics, policy_only=policy_only)
                self._prune()
            if self.mirror is not None:
                rules = retention.Rules(self.settings, self.rolling_every, self.metric)
                self.mirror.offer(step, rules, taken=time.monotonic() - (time.perf_counter() - started))
        except (OSError, SafetensorError) as error:
            with suppress(OSError):  # the space is wanted back; what cannot be removed now is by the next save
                self._tidy(quietly=True)
            reason = getattr(error, "strerror", None) or error
            raise StorageError(f"checkpoint of step {step}: cannot write to {self.directory}: {reason}") from error
        return time.perf_counter() - started

    def _is_better(self, metrics: Mapping[str, float]) -> bool:
        """Whether the evaluation in these metrics beats that of every checkpoint."""
        if self.metric not in metrics:
            return False
        self.wait()
        rival = retention.best({**self._good(), -1: {"metrics": metrics}}, self.metric)
        return rival == -1

    def _tidy(self, *, quietly: bool = False) -> None:
        """Take away what an interrupted save has left, and give back what it had put aside."""
        if not self.directory.is_dir():
            return
        self._recover()
        for path in sorted(p for p in self.directory.iterdir() if LEFTOVER.fullmatch(p.name)):
            if not quietly:
                self.leftovers += 1
                self._say(f"{path} was left by a save that was interrupted, and is removed")
            writer.remove_tree(path)

    def _recover(self) -> None:
        """The checkpoints whose name a save had taken, without giving it to a newer one."""
        for path in sorted(self.directory.glob(".*.old")):
            if (found := LEFTOVER.fullmatch(path.name)) and writer.recover_directory(self.directory / found[1]):
                self._say(
                    f"checkpoint {found[1]} has its name again; a save had been interrupted that was to replace it"
                )

    def _refuse_if_full(self, name: str, *, policy_only: bool = False) -> None:
        """
        Raises:
            StorageError: one more checkpoint is larger than what is free.
        """
        part = "policy/" if policy_only else ""
        sizes = [_bytes_of(m, part) for m in self._manifests().values()]
        wanted = max([0.0 if policy_only else self.expected_bytes, *sizes])
        free = free_bytes(self.directory)
        if wanted > free:
            what = f"{name}: {mib(wanted)} are needed in {self.directory}, but {mib(free)} are free"
            raise StorageError(f"{what}; free space, or lower checkpoint.keep and checkpoint.rolling_keep")

    def _save(self, step: int, source: Snapshot, metrics: Mapping[str, float], *, policy_only: bool) -> None:
        from safetensors.torch import save_file

        def write(directory: Path) -> None:
            source.write_models(directory)
            if not policy_only:
                tensors = {name: t.detach().cpu().contiguous() for name, t in source.tensors.items()}
                save_file(tensors, str(directory / "optimizer.safetensors"))

        scratch, entry = self.directory / f".{step}.new", None
        if (vault := self.vault) is not None:
            entry = self._key_now(vault)
            more: dict[str, Any] = {}
            if not policy_only:
                tensors = encryption.parts_of_tensors(source.tensors)
                more = {"optimizer.safetensors": tensors, "state.json": [_json(source.values)]}
            room = self.expected_bytes / 3  # weights without moments
            writer.fill(scratch, lambda to: encryption.fill(to, source.write_models, more, vault, entry, step, room))
        else:
            writer.fill(scratch, write)
            if not policy_only:
                writer.write_bytes(scratch / "state.json", _json(source.values))
        self._seal(scratch, step, metrics, saved=time.time(), policy_only=policy_only, entry=entry)

    def _key_now(self, vault: encryption.Vault) -> Mapping[str, str]:
        """What the manifest says of the key, which may have changed since the last save."""
        entry = vault.entry()
        if self._key_id not in (None, entry["key_id"]):
            self._say(
                f"{vault.secret} has another value: what was saved before stays under the old key; "
                f"`trimtab rekey {self.directory.parent}` takes it to the new one"
            )
        self._key_id = entry["key_id"]
        return entry

    def _seal(
        self,
        scratch: Path,
        step: int,
        metrics: Mapping[str, float],
        *,
        saved: float,
        policy_only: bool,
        entry: Mapping[str, str] | None,
    ) -> None:
        """Give what was written into `scratch` its manifest and its name; `entry`: how it is encrypted."""
        facts = {
            "format": FORMAT,
            "trimtab": __version__,
            "step": step,
            "resumable": not policy_only,
            "saved": saved,
            "metrics": dict(metrics),
            **({} if entry is None else {"encryption": dict(entry)}),
        }
        self._name(scratch, step, facts)

    def _name(self, scratch: Path, step: int, facts: Mapping[str, Any]) -> None:
        """Put beside the facts of a manifest what the files are, and give the directory its name."""
        manifest = {
            **facts,
            "files": {
                str(p.relative_to(scratch)): {"bytes": p.stat().st_size, "sha256": sha256(p)}
                for p in sorted(scratch.rglob("*"))
                if p.is_file()
            },
        }
        writer.write_bytes(scratch / MANIFEST, _json({**manifest, "checksum": manifests.checksum(manifest)}))
        writer.sync(scratch)
        writer.replace_directory(scratch, self.directory / str(step))
        self._known[step] = (self._signature(step), None)

    def clear_leftovers(self) -> None:
        """Take away what interrupted saves have left, which may be under a key that is to be used no more.

        Raises:
            OSError: it cannot be taken away.
        """
        self.wait()
        self._tidy()

    def encrypt_anew(self, step: int, vault: encryption.Vault) -> None:
        """Put a checkpoint's files under another key, as a new directory in the place of the old one.

        Args:
            step: of a checkpoint that is as it was written.
            vault: of the new key; `self.vault` has the old one.

        Raises:
            ConfigError: the old key is another one.
            OSError: the disk takes no more; the old directory is as it was.
        """
        manifest = dict(self._manifest(step) or {})
        scratch, names, entry = self.directory / f".{step}.new", list(manifest["files"]), vault.entry()
        with self.opened(step) as plain:
            writer.fill(scratch, lambda to: encryption.encrypt_files(plain, names, to, vault, entry, step))
        left = {name: value for name, value in manifest.items() if name not in ("files", "checksum")}
        self._name(scratch, step, {**left, "encryption": entry})

    def _prune(self) -> None:
        """Only whole checkpoints count, that a run can go on from; a damaged one is never what others are removed for."""
        good = {step: m for step, m in self._good().items() if _is_resumable(m)}
        weights_every = self.settings.weights_every
        for step in retention.superfluous(good, self.settings, self.rolling_every, self.metric):
            if weights_every is not None and step % weights_every == 0:
                self._leave_policy(step, good[step])
            else:
                gone = self.directory / f".{step}.gone"
                writer.rename(self.directory / str(step), gone)
                writer.remove_tree(gone)

    def _leave_policy(self, step: int, manifest: Mapping[str, Any]) -> None:
        """Of a checkpoint that has had its time, the policy's weights stay."""
        scratch = self.directory / f".{step}.new"
        writer.copy_tree(self.directory / str(step) / "policy", scratch / "policy")
        entry = manifest.get("encryption")
        self._seal(scratch, step, manifest["metrics"], saved=manifest["saved"], policy_only=True, entry=entry)

    # ------------------------------------------------------------------------------------------------------- read
    def steps(self) -> list[int]:
        """Steps that have a checkpoint, whether its bytes are good or not, ascending."""
        self.wait()
        return _steps(self.directory)

    def fault(self, step: int) -> str | None:
        """What is wrong with a checkpoint, or None if every byte is as it was written."""
        self.wait()
        return self._fault_of(step)

    def _fault_of(self, step: int) -> str | None:
        place = self.directory / str(step)
        manifest = self._parsed(step)
        if manifest is None:
            return f"{place / MANIFEST} is missing or cannot be read"
        if (other := _other_format(manifest)) is not None:
            return f"{place} {other}"
        if not _is_as_written(manifest, (place / MANIFEST).read_bytes()) or not manifests.is_one(manifest):
            return f"{place / MANIFEST} is not as it was written"
        if manifest.get("step") != step:
            return f"{place / MANIFEST} is of step {manifest.get('step')}"
        if (harm := manifests.harm(place, manifest)) is not None:
            return harm
        for name, expected in manifest["files"].items():
            file = place / name
            if not file.is_file():
                return f"{file} is missing"
            if file.stat().st_size != expected["bytes"]:
                return f"{file} has {file.stat().st_size} bytes, expected {expected['bytes']}"
            found = sha256(file)
            if found != expected["sha256"]:
                return f"{file} has SHA-256 {found[:16]}..., expected {expected['sha256'][:16]}..."
            is_plain = manifest.get("encryption") is None
            if is_plain and (harm := manifests.harm_inside(place, name)) is not None:
                return harm
        return None

    def newest_good(self, *, before: int | None = None) -> int | None:
        """The newest step whose checkpoint is whole and can be gone on from; those passed over are named in a warning.

        Args:
            before: only steps before this one.

        Raises:
            StorageError: there are checkpoints, but none is good; or there were some; or the newest whole one is of
                another format, behind which the run would silently go back.
        """
        self.wait()
        if self.is_writer and self.directory.is_dir():
            try:
                self._recover()
            except OSError as error:
                raise StorageError(f"cannot write to {self.directory}: {error.strerror or error}") from error
        steps, faults, alone = [s for s in self.steps() if before is None or s < before], [], []
        for step in reversed(steps):
            manifest = self._manifest(step)
            if manifest is not None and (other := _other_format(manifest)) is not None:
                what = f"{self.directory / str(step)} {other}, written by trimtab {manifest.get('trimtab', 'unknown')}"
                raise StorageError(f"{what}; this is trimtab {__version__}: go on with the version that wrote it")
            if manifest is not None and not _is_resumable(manifest):
                alone.append(step)
                faults.append(f"{self.directory / str(step)} holds the policy's weights alone")
                continue
            fault = self._fault_known(step)
            if fault is None:
                self._say_passed_over(alone, step)
                self._refuse_key(step, manifest or {})
                return step
            faults.append(fault)
        again = "start over with --fresh, which keeps this run under another name"
        if steps:
            raise StorageError(f"{self.directory}: none of {len(steps)} checkpoints is good ({faults[0]}); {again}")
        if self.journal is not None and (saved := journal.read(self.journal).events("saved")):
            what = f"{self.directory}: there is no checkpoint, but the journal tells of one of step {saved[-1]['step']}"
            raise StorageError(f"{what}; put it back, or {again}")
        return None

    def _refuse_key(self, step: int, manifest: Mapping[str, Any]) -> None:
        """
        Raises:
            ConfigError: the checkpoint is encrypted, and there is no key or another one.
        """
        entry = manifest.get("encryption")
        if entry is not None:
            encryption.vault_for(self.directory / str(step), entry, self.vault)
        elif self.vault is not None and not self._has_said_plain:
            self._has_said_plain = True
            hint = f"`trimtab rekey {self.directory.parent}` encrypts them"
            self._say(f"checkpoints up to {step} were saved before there was a key, and are plain; {hint}")

    def _say_passed_over(self, alone: Sequence[int], step: int) -> None:
        if alone and tuple(alone) != self._passed_over:
            self._passed_over = tuple(alone)
            many = "checkpoints" if len(alone) > 1 else "checkpoint"
            holds = "hold" if len(alone) > 1 else "holds"
            names = ", ".join(map(str, sorted(alone)))
            self._say(
                f"{many} {names}: {holds} the policy's weights alone, so the run can go on from {step} at the latest"
            )

    def _fault_known(self, step: int) -> str | None:
        """As `fault`, without reading again what was read before; what is damaged is named and counted once."""
        signature = self._signature(step)
        if step not in self._known or self._known[step][0] != signature:
            fault = self._fault_of(step)
            self._known[step] = (signature, fault)
            if fault is not None:
                self.rejected += 1
                self._say(f"checkpoint {step} is not used: {fault}")
        return self._known[step][1]

    def _signature(self, step: int) -> Signature:
        place = self.directory / str(step)
        found = [(str(p.relative_to(place)), p.stat()) for p in sorted(place.rglob("*")) if p.is_file()]
        return tuple((name, stat.st_size, stat.st_mtime_ns, stat.st_ino) for name, stat in found)

    def _good(self) -> dict[int, Mapping[str, Any]]:
        """The manifests of the checkpoints whose bytes are all as they were written."""
        return {step: m for step, m in self._manifests().items() if self._fault_known(step) is None}

    def _manifests(self) -> dict[int, Mapping[str, Any]]:
        found = {step: self._manifest(step) for step in _steps(self.directory)}
        return {step: m for step, m in found.items() if m is not None and manifests.is_one(m)}

    def values(self, step: int) -> Mapping[str, Any]:
        """What a checkpoint says of its run besides weights and the optimiser's moments; it must be whole."""
        with self.opened(step, ("state.json",)) as plain:
            found: Mapping[str, Any] = json.loads((plain / "state.json").read_bytes())
        return found

    def opened(self, step: int, names: Sequence[str] = ()) -> AbstractContextManager[Path]:
        """A checkpoint's files in plain, of which `names` says how they begin: where they lie, or decrypted meanwhile."""
        return encryption.opened(self.directory / str(step), self.vault, names)

    def metrics(self, step: int) -> Mapping[str, float]:
        """The figures of a checkpoint's step."""
        found: Mapping[str, float] = (self._manifest(step) or {}).get("metrics", {})
        return found

    def restore(self, state: RunState) -> int | None:
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        step = self.newest_good()
        self.barrier()  # every rank has looked before the first one writes
        if step is None:
            return None
        if self.is_writer:
            self._refuse_if_full("the next checkpoint")
        place = self.directory / str(step)
        manifest = self._manifest(step) or {}
        # The clock may have been put back since: then it is new.
        self._newest = time.monotonic() - max(0.0, time.time() - manifest.get("saved", time.time()))
        try:
            with self.opened(step) as plain:
                state.read_models(plain)
                values = json.loads((plain / "state.json").read_bytes())
                state.load(load_file(str(plain / "optimizer.safetensors")), values)
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, SafetensorError) as error:
            by = manifest.get("trimtab", "an earlier version")
            what = f"has no {error}" if isinstance(error, KeyError) else f"cannot be put into this run ({error})"
            what = f"{place}: its state {what}; it was written by trimtab {by}, this is trimtab {__version__}"
            hint = "it is not one of this run, or not as it was written" if by == __version__ else ""
            raise StorageError(f"{what}: {hint or 'go on with the version that wrote it'}") from error
        if self.is_writer:
            self._finish_removal()
        return step

    def _finish_removal(self) -> None:
        """Remove what the newest save was cut off in removing; there may be no other save that does."""
        known = {step: m for step, m in self._manifests().items() if _is_resumable(m)}
        begun = any(self.directory.glob(".*.gone"))
        if not begun and not retention.superfluous(known, self.settings, self.rolling_every, self.metric):
            return  # without reading every checkpoint to its end
        try:
            self._tidy(quietly=True)
            self._prune()
        except OSError as error:  # it takes room, and harms nothing
            self.warn(f"{self.directory}: what is superfluous cannot be removed: {error.strerror or error}")

    def best(self) -> int | None:
        """The step of the best evaluation among the checkpoints, else the newest."""
        self.wait()
        manifests = self._good()
        found = retention.best(manifests, self.metric)
        return found if found is not None else max(manifests, default=None)

    def _manifest(self, step: int) -> Mapping[str, Any] | None:
        """A manifest that is as it was written, or None."""
        found = self._parsed(step)
        return found if found is not None and found.get("checksum") == manifests.checksum(found) else None

    def _parsed(self, step: int) -> Mapping[str, Any] | None:
        return manifests.parsed(self.directory / str(step) / MANIFEST)


def sha256(path: Path) -> str:
    """In large pieces: between two of them a thread that trains waits for this one."""
    digest, block = hashlib.sha256(), bytearray(PIECE)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(block):
            digest.update(memoryview(block)[:count])
    return digest.hexdigest()


def resumable(directory: Path) -> dict[int, bool]:
    """Each step that has a checkpoint, and whether a run could go on from it; nothing is verified."""
    found = {}
    for step in _steps(directory):
        manifest = manifests.parsed(directory / str(step) / MANIFEST)
        found[step] = _is_resumable(manifest) if manifest is not None else True
    return found


def free_bytes(place: Path) -> float:
    """On the file system of a directory that may not be there yet."""
    there = next(p for p in (place.absolute(), *place.absolute().parents) if p.exists())
    return float(shutil.disk_usage(there).free)


def _bytes_of(manifest: Mapping[str, Any], part: str = "") -> float:
    """Of the files whose names begin so."""
    return float(sum(f["bytes"] for name, f in manifest["files"].items() if name.startswith(part)))


def _steps(directory: Path) -> list[int]:
    if not directory.is_dir():
        return []
    return sorted(int(p.name) for p in directory.iterdir() if p.is_dir() and p.name.isdigit())


def _is_resumable(manifest: Mapping[str, Any]) -> bool:
    return manifest.get("resumable", True) is True


def _other_format(manifest: Mapping[str, Any]) -> str | None:
    """That a manifest is of another format than the one that is read here, in words."""
    found = manifest.get("format")
    return None if found == FORMAT else f"has format {found}, this version reads format {FORMAT}"


def _is_as_written(manifest: Mapping[str, Any], data: bytes) -> bool:
    """Whether the checksum is right, and no byte is another spelling of the same values."""
    return manifest.get("checksum") == manifests.checksum(manifest) and _json(manifest) == data


def _saves(count: int) -> str:
    """
    >>> _saves(1), _saves(2)
    ('1 save', '2 saves')
    """
    return f"{count} save{'' if count == 1 else 's'}"


def mib(size: float) -> str:
    """
    >>> mib(13.1e6), mib(2**31)
    ('12.5 MiB', '2.0 GiB')
    """
    return f"{size / 2**30:,.1f} GiB" if size >= 2**30 else f"{size / 2**20:,.1f} MiB"


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1, allow_nan=False).encode()
