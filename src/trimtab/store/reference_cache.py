"""Log-probs of a frozen reference, kept outside of any run: what it says of a row never changes.

    PLACE/FINGERPRINT/facts.json           what the figures depend on besides the row, in words
                      SHA256.safetensors   keys [n, 16] uint8, sizes [n] int64, log_probs [sum of sizes] float32 and the
                                           fingerprint; the name is the checksum of the file's own bytes

Whoever computes the figures of a row under the same facts gets the same figures, so what is kept saves time and changes
nothing. That is why no lock is needed: processes write files of their own, two that write the same row write the same
bits, and what is torn, damaged or gone is computed again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab.store import writer

if TYPE_CHECKING:
    from torch import Tensor

MAX_BYTES = 256 << 20
"""Of one fingerprint, in memory and on the disk. Rows that find no room are computed each time they are met."""
PLACE_BYTES = 4 << 30
"""Of a place; what was not used for the longest time goes first."""
FLUSH_BYTES = 256 << 10
"""What a process that dies may lose."""
NAMED = 4
"""Facts that may differ from those of other figures and still be worth naming."""
LEFTOVER_SECONDS = 86400.0
FACTS = "facts.json"
_FINGERPRINT = re.compile(r"[0-9a-f]{32}")


def default_place() -> Path:
    """The user's cache: `$TRIMTAB_CACHE`, else `trimtab` in `$XDG_CACHE_HOME` or `~/.cache`."""
    if own := os.environ.get("TRIMTAB_CACHE"):
        return Path(own).expanduser() / "reference"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "trimtab" / "reference"


@dataclass(slots=True)
class _Own:
    """A file that this process has written."""

    path: Path | None
    segment: int
    keys: list[bytes]


class ReferenceCache:
    """Log-probs of rows by their content, under one set of facts."""

    def __init__(
        self,
        facts: Mapping[str, str],
        place: Path,
        *,
        tell: Callable[[str], None] = lambda _: None,
        max_bytes: int = MAX_BYTES,
        place_bytes: int = PLACE_BYTES,
        flush_bytes: int = FLUSH_BYTES,
    ) -> None:
        """
        Args:
            facts: all that the figures depend on besides the row; name -> value.
            place: a directory, made when it is needed.
            tell: is told what was found, what was damaged, and what cannot be written.
        """
        self.facts = dict(facts)
        self.fingerprint = hashlib.sha256(json.dumps(self.facts, sort_keys=True).encode()).hexdigest()[:32]
        self.place = place
        self.directory = place / self.fingerprint
        self.tell = tell
        self.max_bytes = max_bytes
        self.place_bytes = place_bytes
        self.flush_bytes = flush_bytes
        self.bytes = 0
        """Of the figures in memory."""
        self.damaged = 0
        """Files that were not as they had been written."""
        self._at: dict[bytes, tuple[int, int, int]] = {}
        """Where the figures of a row are: segment, start, size."""
        self._segments: list[Tensor | None] = []
        self._new: dict[bytes, Tensor] = {}
        self._new_bytes = 0
        self._own: list[_Own] = []
        self._seen: set[str] = set()
        self._is_written = True

    def __len__(self) -> int:
        return len(self._at) + len(self._new)

    # ------------------------------------------------------------------------------------------------------- opening
    def open(self) -> None:
        """Read what is kept; make room in the place; say what was found."""
        others = self._others()
        self.refresh()
        if len(self):
            self.tell(f"reference.cache: log-probs of {len(self):,} rows are known, in {self.directory}")
        elif (changed := self._changed(others)) is not None:
            was, names = changed
            self.tell(
                f"reference.cache: log-probs are computed anew: those in {self.place / was} are of another {names}"
            )
        try:
            self._tidy(others)
            self._put(self.directory / FACTS, json.dumps(self.facts, indent=1).encode())
        except OSError as error:
            self._give_up(error)

    def _others(self) -> dict[str, float]:
        """Other fingerprints in the place, and when they were used last."""
        found = {}
        with suppress(OSError):
            for path in self.place.iterdir():
                if _FINGERPRINT.fullmatch(path.name) and path.name != self.fingerprint:
                    with suppress(OSError):  # somebody may be removing it
                        found[path.name] = (path / FACTS).stat().st_mtime
        return found

    def _changed(self, others: Mapping[str, float]) -> tuple[str, str] | None:
        """The fingerprint whose facts are the nearest, and the names of those that differ; None if none is near."""
        nearest: tuple[int, float, str, str] | None = None
        for name, used in others.items():
            facts = _read_facts(self.place / name / FACTS)
            differing = [key for key in {**facts, **self.facts} if facts.get(key) != self.facts.get(key)]
            if facts and 0 < len(differing) <= NAMED:
                found = (len(differing), -used, name, ", ".join(differing))
                nearest = found if nearest is None else min(nearest, found)
        return None if nearest is None else nearest[2:]

    def _tidy(self, others: Mapping[str, float]) -> None:
        """Take away what a killed process has left here, and of other fingerprints as much as is too much."""
        for path in self.directory.glob(".*.new"):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > LEFTOVER_SECONDS:
                    writer.remove_file(path)
        sizes = {name: _bytes_in(self.place / name) for name in others}
        total = sum(sizes.values()) + max(_bytes_in(self.directory), self.max_bytes)
        for name in sorted(others, key=lambda n: others[n]):
            if total <= self.place_bytes:
                return
            with suppress(OSError):  # another process may remove it, or write into it, at the same moment
                writer.remove_tree(self.place / name)
                self.tell(f"reference.cache: {self.place / name} is removed, unused for the longest time")
            total -= sizes[name]

    # ------------------------------------------------------------------------------------------------------- reading
    def get(self, key: bytes) -> Tensor | None:
        """[n] float32 nats on the CPU, or None."""
        if (new := self._new.get(key)) is not None:
            return new
        if (at := self._at.get(key)) is None or (segment := self._segments[at[0]]) is None:
            return None
        return segment[at[1] : at[1] + at[2]]

    def refresh(self) -> None:
        """Read what other processes have written since."""
        for path in sorted(self.directory.glob("*.safetensors")):
            if path.name not in self._seen:
                self._seen.add(path.name)
                self._read(path)

    def _read(self, path: Path) -> None:
        try:
            data = path.read_bytes()
        except FileNotFoundError:  # its writer has put it into a larger one
            return
        except OSError as error:
            self.tell(f"reference.cache: {path} cannot be read: {error.strerror or error}; its rows are computed again")
            return
        found = self._parsed(path, data)
        if found is None:
            self.damaged += 1
            self.tell(f"reference.cache: {path} is not as it was written; its rows are computed again")
            with suppress(OSError):
                writer.remove_file(path)
            return
        wanted: dict[bytes, Tensor] = {}
        for key, row in found:
            if key not in self._at and key not in self._new and self._has_room(row):
                wanted[key] = row
                self.bytes += row.numel() * 4
        if wanted:
            self._add(wanted)

    def _parsed(self, path: Path, data: bytes) -> list[tuple[bytes, Tensor]] | None:
        """The rows of a file, or None if it is not one that was written here, whole, of these facts."""
        from safetensors import SafetensorError
        from safetensors.torch import load

        if hashlib.sha256(data).hexdigest() != path.stem:
            return None
        try:
            tensors = load(data)
            keys, sizes, joined = (tensors[name] for name in ("keys", "sizes", "log_probs"))
            if bytes(tensors["fingerprint"].tolist()).hex() != self.fingerprint:
                return None
            rows = joined.split(sizes.tolist())
            return list(zip((bytes(key) for key in keys.tolist()), rows, strict=True))
        except (SafetensorError, KeyError, ValueError, RuntimeError):
            return None

    # ------------------------------------------------------------------------------------------------------- writing
    def put(self, key: bytes, log_probs: Tensor) -> None:
        """Keep the figures [n] of a row that is not known yet, if there is room."""
        if key in self._at or key in self._new or not self._has_room(log_probs):
            return
        self._new[key] = log_probs.detach().float().cpu().clone()
        self.bytes += log_probs.numel() * 4
        self._new_bytes += log_probs.numel() * 4
        if self._new_bytes >= self.flush_bytes:
            self.flush()

    def _has_room(self, row: Tensor) -> bool:
        return self.bytes + row.numel() * 4 <= self.max_bytes

    def flush(self) -> None:
        """Write what is new. Files of this process that are not larger become part of the new one, so there are few."""
        if not self._new:
            return
        merged: list[_Own] = []
        rows = dict(self._new)
        while self._own and len(self._own[-1].keys) <= len(rows):
            merged.append(self._own.pop())
            rows = {key: row for key in merged[-1].keys if (row := self.get(key)) is not None} | rows
        self._new, self._new_bytes = {}, 0
        segment = self._add(rows)
        for old in merged:
            self._segments[old.segment] = None
        path = self._written(rows)
        self._own.append(_Own(path, segment, list(rows)))
        for old in merged:
            if path is not None and old.path is not None and old.path != path:
                with suppress(OSError):
                    writer.remove_file(old.path)

    def _add(self, rows: Mapping[bytes, Tensor]) -> int:
        """Put rows into one piece of memory; its number."""
        import torch

        self._segments.append(torch.cat([*rows.values(), torch.zeros(0)]))
        number, start = len(self._segments) - 1, 0
        for key, row in rows.items():
            self._at[key] = (number, start, len(row))
            start += len(row)
        return number

    def _written(self, rows: Mapping[bytes, Tensor]) -> Path | None:
        if not self._is_written:
            return None
        import torch
        from safetensors.torch import save

        data = save(
            {
                "keys": torch.tensor([list(key) for key in rows], dtype=torch.uint8),
                "sizes": torch.tensor([len(row) for row in rows.values()], dtype=torch.int64),
                "log_probs": torch.cat([*rows.values(), torch.zeros(0)]),
                "fingerprint": torch.tensor(list(bytes.fromhex(self.fingerprint)), dtype=torch.uint8),
            }
        )
        path = self.directory / f"{hashlib.sha256(data).hexdigest()}.safetensors"
        self._seen.add(path.name)
        try:
            self._put(path, data)
        except OSError as error:
            self._give_up(error)
            return None
        return path

    def _put(self, path: Path, data: bytes) -> None:
        """A whole file, old or new at every moment, whoever else writes or makes room meanwhile."""
        for attempt in range(2):
            scratch = path.with_name(f".{path.name}.{uuid.uuid4().hex}.new")
            try:
                writer.make_directory(path.parent)
                writer.write_bytes(scratch, data)
                writer.rename(scratch, path)
                return
            except FileNotFoundError:
                if attempt:
                    raise
            except OSError:
                with suppress(OSError):
                    writer.remove_file(scratch)
                raise

    def _give_up(self, error: OSError) -> None:
        """The run goes on with what it has in memory."""
        if self._is_written:
            self._is_written = False
            self.tell(
                f"reference.cache: cannot write to {self.place}: {error.strerror or error}; nothing is kept for other runs"
            )


def _read_facts(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _bytes_in(directory: Path) -> int:
    total = 0
    with suppress(OSError):
        for path in directory.iterdir():
            with suppress(OSError):
                total += path.stat().st_size
    return total
