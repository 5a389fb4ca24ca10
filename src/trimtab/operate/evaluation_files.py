"""The directory of an evaluation: every completion as a line, and what they come to.

    DIR/
      completions.jsonl   one line a completion, prompts in the order of the data, a prompt's completions by index
      metrics.json        what was evaluated and how, its figures; `complete` says whether all prompts are done
      lock

Lines are appended a chunk of prompts at a time and flushed. What a crash has left of a chunk is cut off, and the chunk is
done again, so the file is that of an evaluation that nothing has disturbed.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trimtab import config as configs
from trimtab.errors import LockError, StorageError, UserError, shown
from trimtab.rollout.evaluation import Completion, is_right
from trimtab.secrets import redact
from trimtab.store import writer

PIECE = 1 << 20
"""Bytes that are copied at a time."""
MOST_DIFFERENCES = 5
"""That a refusal names."""


class EvaluationFiles:
    """What one evaluation writes and reads."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.completions = root / "completions.jsonl"
        self.metrics = root / "metrics.json"

    @property
    def exists(self) -> bool:
        """Whether an evaluation was begun here."""
        return self.metrics.is_file()

    def create(self) -> None:
        """
        Raises:
            UserError: the path leads through a file, or nothing may be written there.
            StorageError: the disk takes no more.
        """
        try:
            writer.make_directory(self.root)
        except (FileExistsError, FileNotFoundError, NotADirectoryError, PermissionError) as error:
            what = f"{self.root}: no evaluation can be kept here: {error.strerror}"
            raise UserError(f"{what}; give a directory with --to") from error
        except OSError as error:
            raise StorageError(f"cannot write to {self.root}: {error.strerror or error}") from error
        if not self.exists and any(p.name != "lock" for p in self.root.iterdir()):
            raise UserError(f"{self.root}: holds other things than an evaluation; give an empty directory with --to")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else evaluates into it meanwhile. The system frees the lock of a process that has died.

        Raises:
            LockError: another process holds it.
            UserError, StorageError: it cannot be written.
        """
        path = self.root / "lock"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except PermissionError as error:
            raise UserError(f"{path}: {error.strerror}; give a directory with --to") from error
        except OSError as error:
            raise StorageError(f"cannot write to {path}: {error.strerror or error}") from error
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise LockError(f"{self.root}: another process evaluates into it; wait for it, or use --to") from None
            yield
        finally:
            os.close(descriptor)

    def document(self) -> dict[str, Any]:
        """What metrics.json says.

        Raises:
            StorageError: it is not as it was written.
        """
        try:
            found = json.loads(self.metrics.read_bytes())
        except (OSError, ValueError) as error:
            raise StorageError(f"{self.metrics}: is not as it was written: {error}") from error
        if not isinstance(found, dict) or "identity" not in found:
            raise StorageError(f"{self.metrics}: is not what an evaluation writes")
        return found

    def write_document(self, document: Mapping[str, Any]) -> None:
        try:
            writer.replace_text(
                self.metrics, json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
            )
        except OSError as error:
            raise StorageError(f"cannot write to {self.metrics}: {error.strerror or error}") from error

    def refuse_another(self, identity: Mapping[str, Any]) -> None:
        """
        Raises:
            UserError: what is here was made of something else.
        """
        if changed := configs.differences(self.document()["identity"], identity):
            named = "; ".join(
                f"{key} was {shown(old)}, is {shown(new)}" for key, old, new in changed[:MOST_DIFFERENCES]
            )
            more = f"; and {len(changed) - MOST_DIFFERENCES} more" if len(changed) > MOST_DIFFERENCES else ""
            raise UserError(
                f"{self.metrics}: holds another evaluation: {named}{more}; give another directory with --to"
            )

    def append(self, lines: bytes) -> None:
        """
        Raises:
            StorageError: they cannot be written.
        """
        try:
            writer.append(self.completions, lines)
        except OSError as error:
            raise StorageError(f"cannot write to {self.completions}: {error.strerror or error}") from error

    def mend(self, *, samples: int, chunk: int, prompts: int, threshold: float, is_same: bool) -> int:
        """Cut off what belongs to no whole chunk; how many prompts are left.

        Args:
            samples: completions of a prompt.
            chunk: prompts of a chunk.
            prompts: of all chunks.
            threshold: that the reward of a right completion reaches.
            is_same: whether the lines were judged by it; else they are judged again.
        """
        if not self.completions.exists():
            return 0
        lines, size = self._whole_lines(samples)
        whole = min(lines // samples, prompts)
        done = whole if whole == prompts else whole // chunk * chunk
        if is_same and done * samples == lines and size == self.completions.stat().st_size:
            return done
        change = (lambda line: line) if is_same else lambda line: _judged(line, threshold)
        try:
            self._rewrite(done * samples, change)
        except OSError as error:
            raise StorageError(f"cannot write to {self.completions}: {error.strerror or error}") from error
        return done

    def _whole_lines(self, samples: int) -> tuple[int, int]:
        """How many lines from the beginning are as they were written, and their bytes."""
        number, size, prompt_id = 0, 0, None
        with self.completions.open("rb") as file:
            for line in file:
                row = _parsed(line)
                if row is None or row["index"] != number % samples or (row["index"] and row["prompt_id"] != prompt_id):
                    break
                number, size, prompt_id = number + 1, size + len(line), row["prompt_id"]
        return number, size

    def _rewrite(self, lines: int, change: Callable[[bytes], bytes]) -> None:
        """So many lines from the beginning, each changed; old or new at every moment."""
        scratch = writer.scratch_of(self.completions)
        writer.write_bytes(scratch, b"")
        piece = bytearray()
        with self.completions.open("rb") as file:
            for _ in range(lines):
                piece += change(file.readline())
                if len(piece) > PIECE:
                    writer.append(scratch, bytes(piece))
                    piece.clear()
        writer.append(scratch, bytes(piece))
        writer.rename(scratch, self.completions)

    def read(self) -> Iterator[list[Completion]]:
        """The completions of each prompt, a prompt at a time.

        Raises:
            StorageError: a line is not as it was written.
        """
        group: list[Completion] = []
        with self.completions.open("rb") as file:
            for number, line in enumerate(file, 1):
                row = _parsed(line)
                if row is None:
                    raise StorageError(
                        f"{self.completions}:{number}: is not as it was written; run the evaluation again"
                    )
                if group and row["index"] == 0:
                    yield group
                    group = []
                group.append(_completion(row))
        if group:
            yield group


def line_of(completion: Completion, threshold: float) -> bytes:
    """A completion as a line of the file; no secret is in it."""
    row = {
        "prompt_id": completion.prompt_id,
        "index": completion.index,
        "text": completion.text,
        "tokens": completion.tokens,
        "reward": completion.reward,
        "right": None if completion.reward is None else is_right(completion.reward, threshold),
        "parts": dict(completion.parts),
        "truncated": completion.is_truncated,
        "extracted": completion.extracted,
    }
    return _written(row)


def _written(row: Mapping[str, Any]) -> bytes:
    """Half a pair of surrogates, which some tokenizers decode to, becomes an escape that JSON knows."""
    return redact(json.dumps(row, ensure_ascii=False, allow_nan=False)).encode(errors="backslashreplace") + b"\n"


def _judged(line: bytes, threshold: float) -> bytes:
    row = json.loads(line)
    row["right"] = None if row["reward"] is None else is_right(row["reward"], threshold)
    return _written(row)


def _parsed(line: bytes) -> dict[str, Any] | None:
    if not line.endswith(b"\n"):
        return None
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and row.keys() >= KEYS else None


KEYS = frozenset({"prompt_id", "index", "text", "tokens", "reward", "parts", "truncated", "extracted"})


def _completion(row: Mapping[str, Any]) -> Completion:
    return Completion(
        prompt_id=row["prompt_id"],
        index=row["index"],
        text=row["text"],
        tokens=row["tokens"],
        reward=row["reward"],
        parts=row["parts"],
        is_truncated=row["truncated"],
        extracted=row["extracted"],
    )
