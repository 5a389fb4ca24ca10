"""Brings a run's checkpoints into an object store, beside training.

A checkpoint that is good on the disk is offered; a thread uploads one at a time. What waits is little: a newer one takes
the place of an older one that nothing but its age makes stay. While the store fails training goes on, and the next
checkpoint tries again. What is uploaded are links to the files, so what the run removes meanwhile is uploaded whole.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab.secrets import redact
from trimtab.store import manifests, writer
from trimtab.store.checkpoints import MANIFEST, sha256
from trimtab.store.remote import NAME, RUN, SEAL, Contents, Remote, StoreError, Upload, line_of
from trimtab.store.remote_owner import Owner, TakenError
from trimtab.store.retention import Rules
from trimtab.store.run_directory import RunDirectory

STAGE = ".store"
"""In the run's directory: what is about to be uploaded."""
COPIED = ("run.json", "rollback.json", "audit.jsonl", "journal.jsonl")
"""Beside a checkpoint and the configurations, what a run goes on with; in the order in which they are copied, so that
what is told of by one is there in the other."""
TRIES = 3
"""At the end of a run."""
PAUSE = 5.0
"""Seconds between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waiting:
    """A checkpoint that is to be uploaded."""

    step: int
    rules: Rules
    taken: float
    """When its state was, by a clock that only goes forward."""
    stage: Path


class Mirror:
    """The store's side of one run. Only the first rank has one."""

    def __init__(
        self, remote: Remote, directory: RunDirectory, *, run_id: str, say: Callable[[str], None], config: str = ""
    ) -> None:
        self.remote = remote
        self.directory = directory
        self.run_id = run_id
        self.failed = 0
        """Uploads in a row that have failed."""
        self.stored: int | None = None
        """The step of the newest checkpoint that is whole in the store."""
        self._say = say
        self.owner = Owner(remote, run_id=run_id, config=config)
        self._taken_by = ""
        self._taken: float | None = None
        self._number = 0
        self._stages = 0
        self._lines: list[str] = []
        self._waiting: list[_Waiting] = []
        self._is_busy = False
        self._changed = threading.Condition()
        shutil.rmtree(directory.root / STAGE, ignore_errors=True)

    # ------------------------------------------------------------------------------------------- from any thread
    def offer(self, step: int, rules: Rules, *, taken: float) -> None:
        """Upload a checkpoint that is good; on return what else a new machine needs is as it was now."""
        with self._changed:
            self._stages += 1
            stage = self.directory.root / STAGE / str(self._stages)
        try:
            self._copy(stage)
        except OSError as error:
            shutil.rmtree(stage, ignore_errors=True)
            self._count(step, f"cannot write to {stage}: {error.strerror or error}")
            return
        there = self._local()
        with self._changed:
            under_way = self._waiting[:1] if self._is_busy else []
            waiting = self._waiting[len(under_way) :]
            left = [w for w in waiting if w.step != step and not w.rules.is_passing(w.step, there)]
            for gone in waiting:
                if gone not in left:
                    shutil.rmtree(gone.stage, ignore_errors=True)
            self._waiting = [*under_way, *left, _Waiting(step=step, rules=rules, taken=taken, stage=stage)]
        self._start()

    def figures(self) -> dict[str, float]:
        """Metrics of the store; what there is to say is said."""
        self._tell()
        found = {"checkpoint/store_failed": float(self.failed)}
        if self._taken is not None:
            found["checkpoint/store_age"] = time.monotonic() - self._taken
        return found

    def finish(self, seconds: float, *, every: float = 30.0, pause: float | None = None) -> bool:
        """Wait until everything is in the store, and try again if something failed; whether it is.

        Ctrl-C ends the wait.

        Args:
            seconds: to wait at most.
            every: seconds between two lines that say so.
            pause: seconds before another try; PAUSE by default.
        """
        end, tries = time.monotonic() + seconds, 1
        said = time.monotonic()
        self._start()
        try:
            while True:
                with self._changed:
                    left = end - time.monotonic()
                    if self._is_busy and left > 0:
                        self._changed.wait(min(left, max(0.01, said + every - time.monotonic())))
                    is_busy, steps = self._is_busy, [w.step for w in self._waiting]
                self._tell()
                if not is_busy and not steps:
                    return self.failed == 0
                if time.monotonic() >= end or (not is_busy and (tries >= TRIES or self._taken_by)):
                    return False
                if not is_busy:
                    tries += 1
                    time.sleep(max(0.0, min(PAUSE if pause is None else pause, end - time.monotonic())))
                    self._start()
                elif time.monotonic() - said >= every:
                    said = time.monotonic()
                    self._say(
                        f"checkpoint of step {steps[0]} is being uploaded to {self.remote.url}; Ctrl-C ends the wait"
                    )
        except KeyboardInterrupt:
            self._say("the upload is not waited for any longer")
            return False

    def settle(self) -> None:
        """Until nothing is under way; what failed stays waiting."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_busy)

    def catch_up(self, steps: Iterable[int], contents: Contents, rules: Rules, is_good: Callable[[int], bool]) -> None:
        """Offer what of the run's checkpoints should be in the store and is not."""
        line = line_of(contents.uploads)
        newest = max((u for u in line.values() if u.is_resumable), key=lambda u: u.number, default=None)
        there, ours = self._local(), sorted(steps)
        known = {upload.manifest_sha256 for upload in line.values()}
        if newest is not None:
            self.stored = newest.step
            self._taken = self._since(newest.manifest)
        for step in ours:
            path = self.directory.checkpoints / str(step) / MANIFEST
            is_newer = newest is None or step > newest.step
            is_due = step == ours[-1] or (is_newer and not rules.is_passing(step, there))
            if is_due and _hash(path) not in known and is_good(step):
                self.offer(step, rules, taken=self._since(there.get(step, {})))

    # ------------------------------------------------------------------------------------------------- the thread
    def _start(self) -> None:
        """Start the thread, if there is something to do and none does it."""
        with self._changed:
            if self._is_busy or not self._waiting or self._taken_by:
                return
            self._is_busy = True
        try:
            threading.Thread(target=self._work, name="trimtab-store", daemon=True).start()
        except RuntimeError as error:  # the system gives no thread; the next checkpoint tries again
            with self._changed:
                self._is_busy = False
            self._count(self._waiting[0].step, str(error))

    def _work(self) -> None:
        """Upload what waits, the oldest first, until nothing does or one fails."""
        while True:
            with self._changed:
                item = self._waiting[0]
            failure = self._sent(item)
            with self._changed:
                if failure is None:
                    self._waiting.remove(item)
                    shutil.rmtree(item.stage, ignore_errors=True)
                is_last = failure is not None or not self._waiting
                if failure is not None:
                    self._count(item.step, failure)
                    self._forget_passing(item)
                if is_last:
                    self._is_busy = False
                    self._changed.notify_all()
                    return

    def _forget_passing(self, failed: _Waiting) -> None:
        """What has failed and would not be missed makes room for what came after it."""
        if len(self._waiting) > 1 and failed.rules.is_passing(failed.step, self._local()):
            self._waiting.remove(failed)
            shutil.rmtree(failed.stage, ignore_errors=True)

    def _sent(self, item: _Waiting) -> str | None:
        """Why an upload has failed, or None."""
        try:
            files = self._linked(item)
            if files is None:  # the run has removed it, so it would be removed there too
                return None
            self.owner.hold()
            contents = self._tidied(self.remote.contents())
            known = contents.newest().get(item.step)
            if known is None or known.manifest_sha256 != _hash(files / MANIFEST):
                self._upload(item.step, files, item.stage / RUN, contents)
                contents = self.remote.contents()
                self._refuse_missing(item.step, files, contents)
            self._succeeded(item)
            self._prune(contents, item)
        except TakenError as error:
            self._taken_by = str(error)
            return str(error)
        except FileNotFoundError as error:
            is_there = (self.directory.checkpoints / str(item.step) / MANIFEST).is_file()
            return f"{self.remote.url}: {error}" if is_there else None
        except (StoreError, OSError) as error:
            return str(error)
        except Exception as error:  # nothing here may end training, or leave somebody waiting
            return f"{type(error).__name__}: {redact(str(error))}"
        return None

    def _succeeded(self, item: _Waiting) -> None:
        with self._changed:
            if self.failed:
                self._lines.append(
                    f"checkpoint of step {item.step} is in {self.remote.url}; {self.failed} uploads had failed"
                )
            self.failed, self.stored, self._taken = 0, item.step, item.taken
        note = {"url": str(self.remote.url), "step": item.step, "number": self._number, "time": round(time.time(), 3)}
        with suppress(OSError):  # for `trimtab status` alone
            writer.replace_text(self.directory.upload, json.dumps(note, indent=1))

    def _tidied(self, contents: Contents) -> Contents:
        """Take away what uploads and removals have left that were cut off."""
        for name in contents.unfinished:
            self._remove(name)
        numbers = [upload.number for upload in contents.uploads]
        self._number = max([self._number, *numbers])
        return contents

    def _upload(self, step: int, files: Path, run: Path, contents: Contents) -> None:
        """Data first, then what the run needs, then the seal, then the manifest."""
        taken = {upload.name for upload in contents.uploads} | set(contents.faults)
        names = itertools.chain([str(step)], (f"{step}-{again}" for again in itertools.count(1)))
        name = next(name for name in names if name not in taken)
        self._number += 1
        manifest = files / MANIFEST
        for file in sorted(manifests.parsed(manifest)["files"]):  # type: ignore[index]
            self.remote.put(files / file, f"{name}/{file}")
        beside = sorted(p for p in run.rglob("*") if p.is_file())
        for path in beside:
            self.remote.put(path, f"{RUN}/{name}/{path.relative_to(run)}")
        seal = {
            "number": self._number,
            "step": step,
            "run": self.run_id,
            "manifest": _entry(manifest),
            "files": {str(p.relative_to(run)): _entry(p) for p in beside},
        }
        sealed = json.dumps({**seal, "checksum": manifests.checksum(seal)}, indent=1).encode()
        self.remote.put_bytes(sealed, f"{RUN}/{name}/{SEAL}")
        self.owner.hold()
        self.remote.put(manifest, f"{name}/{MANIFEST}")

    def _refuse_missing(self, step: int, files: Path, contents: Contents) -> None:
        """
        Raises:
            StoreError: what was uploaded is not what is read.
        """
        found = contents.newest().get(step)
        if found is None or found.manifest_sha256 != _hash(files / MANIFEST):
            faults = "; ".join(text for name, text in contents.faults.items() if name.split("-")[0] == str(step))
            raise StoreError(f"{self.remote.url}/{step}: is not what was uploaded ({faults or 'it is not there'})")

    def _prune(self, contents: Contents, item: _Waiting) -> None:
        """What is superfluous goes, once a newer one is whole; two that a run can go on from stay at least."""
        line = line_of(contents.uploads)
        good = {step: upload for step, upload in line.items() if upload.is_resumable}
        if len(good) >= 2:
            for upload in contents.uploads:
                if line.get(upload.step) is not upload:
                    self._remove(upload.name)
        weights_every = item.rules.settings.weights_every
        for step in item.rules.superfluous({step: upload.manifest for step, upload in good.items()}):
            if weights_every is not None and step % weights_every == 0:
                self._leave_policy(good[step], item, contents)
            else:
                self._remove(good[step].name)

    def _leave_policy(self, upload: Upload, item: _Waiting, contents: Contents) -> None:
        """Of a checkpoint that has had its time the policy's weights stay, as the run has left them."""
        place = self.directory.checkpoints / str(upload.step)
        found = manifests.parsed(place / MANIFEST)
        if found is not None and found.get("resumable") is False:
            self._upload(upload.step, place, item.stage / RUN, contents)
            self._remove(upload.name)

    def _remove(self, name: str) -> None:
        """The manifest first: what has none is no checkpoint."""
        if not NAME.fullmatch(name):
            return
        self.remote.remove(f"{name}/{MANIFEST}")
        for part in (name, f"{RUN}/{name}"):
            for file in self.remote.sizes(part):
                self.remote.remove(file)

    # -------------------------------------------------------------------------------------------------- the disk
    def _copy(self, stage: Path) -> None:
        """What a run goes on with besides its checkpoint, as it is now."""
        run = stage / RUN
        (run / "config").mkdir(parents=True)
        for name in COPIED[:2]:
            if (path := self.directory.root / name).is_file():
                shutil.copyfile(path, run / name)
        for path in self.directory.config_versions():
            shutil.copyfile(path, run / "config" / path.name)
        for name in COPIED[2:]:
            if (path := self.directory.root / name).is_file():
                shutil.copyfile(path, run / name)

    def _linked(self, item: _Waiting) -> Path | None:
        """The checkpoint's files under names of their own; None if the run has removed it.

        Where the disk has no links, the files themselves.
        """
        place, links = self.directory.checkpoints / str(item.step), item.stage / "checkpoint"
        shutil.rmtree(links, ignore_errors=True)
        if not (place / MANIFEST).is_file():
            return None
        try:
            for path in sorted(p for p in place.rglob("*") if p.is_file()):
                target = links / path.relative_to(place)
                target.parent.mkdir(parents=True, exist_ok=True)
                os.link(path, target)
        except FileNotFoundError:
            return None
        except OSError:
            return place
        return links if (links / MANIFEST).is_file() else None

    def _local(self) -> dict[int, Mapping[str, Any]]:
        """The manifests on the disk, not verified."""
        steps = [int(p.name) for p in self.directory.checkpoints.glob("*") if p.name.isdigit()]
        found = {s: manifests.parsed(self.directory.checkpoints / str(s) / MANIFEST) for s in steps}
        return {step: m for step, m in found.items() if m is not None and manifests.is_one(m)}

    @staticmethod
    def _since(manifest: Mapping[str, Any]) -> float:
        now = time.time()
        return time.monotonic() - max(0.0, now - float(manifest.get("saved", now)))

    def _count(self, step: int, why: str) -> None:
        with self._changed:
            self.failed += 1
            if self.failed == 1:
                then = "no more is uploaded" if self._taken_by else "the next checkpoint tries again"
                self._lines.append(
                    f"checkpoint of step {step} is not in {self.remote.url}: {why}; training goes on, and {then}"
                )

    def _tell(self) -> None:
        with self._changed:
            lines, self._lines = self._lines, []
        for line in lines:
            self._say(line)


def _entry(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
