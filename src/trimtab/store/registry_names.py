"""A directory of runs, and the names that people give: what is asked for lies under it, or is refused before it is opened.

    ROOT/registry.sqlite               what is known of all of them (`registry_schema`); a cache
    ROOT/compare-x/arms/grpo/seed-0    a run: a directory with a run.json, at most four levels down

A link is never followed to look for runs, and no file of a run is read or written through one.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from trimtab.errors import StorageError, UserError, nearest, shown
from trimtab.store.run_directory import RunDirectory

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""Of a tag, of a label, and of each directory on the way to a run."""
DEPTH = 4
"""Levels under the root at which a run may lie."""
LONGEST_PATH = 4096
VARIABLE = "TRIMTAB_RUNS"
OWN = (
    *("run.json", "journal.jsonl", "tags.jsonl", "failure.json", "audit.jsonl", "lock"),
    *("config", "checkpoints", "samples", "promoted"),
)
"""What the registry reads or writes of a run; each as it lies there, not somewhere else."""


def checked(text: str, what: str) -> str:
    """A tag or a label.

    Raises:
        UserError: it is no name.

    >>> checked("prod", "--as")
    'prod'
    """
    if not NAME.fullmatch(text):
        hint = "up to 100 letters, digits, `.`, `_` and `-`, a letter or digit first"
        raise UserError(f"{what}: {shown(text)} is no name; expected {hint}")
    return text


def link_in(run: Path, names: tuple[str, ...] = OWN) -> str | None:
    """The first of these files and folders of a run that is a link."""
    return next((name for name in names if (run / name).is_symlink()), None)


def _is_name(text: str) -> bool:
    """Whether a text may be a run's path from the root."""
    words = text.rstrip("/").split("/")
    return len(words) <= DEPTH and all(map(NAME.fullmatch, words))


@dataclass(slots=True)
class Root:
    """A directory of runs."""

    given: Path
    """As it was named."""
    path: Path = field(init=False)
    """Where it really is."""
    _held: int = 0

    def __post_init__(self) -> None:
        """
        Raises:
            UserError: it is not there, or is a run itself.
        """
        try:
            self.path = self.given.resolve()
            is_there, is_run = self.path.is_dir(), (self.path / "run.json").is_file()
        except (OSError, RuntimeError, ValueError):
            is_there = is_run = False
        hint = f"give the directory that holds your runs with --root DIR or {VARIABLE}"
        if not is_there:
            raise UserError(f"{str(self.given)[:200]!r} is no directory; {hint}")
        if is_run:
            raise UserError(f"{self.given} is a run, expected a directory of runs; {hint}")

    def directory(self, name: str) -> RunDirectory:
        """The directory of a run that `find` or `name_of` has named."""
        return RunDirectory(self.path / name)

    def name_of(self, text: str) -> str:
        """The name of a run under the root, which is its path from there.

        Args:
            text: such a name, or a path that leads there.

        Raises:
            UserError: there is no run of that name, or the path leads out of the root. It is the same message whatever
                lies outside, and nothing there was opened.
        """
        for place in self._places(text):
            try:
                parts = place.resolve().relative_to(self.path).parts
            except (OSError, RuntimeError, ValueError):
                continue
            if 0 < len(parts) <= DEPTH and all(map(NAME.fullmatch, parts)) and self._is_run(parts):
                return "/".join(parts)
        meant = nearest(text, self.find()[0]) if _is_name(text) else None
        hint = f"did you mean {meant}?" if meant else f"`trimtab runs list --root {self.given}` shows them"
        raise UserError(f"{shown(text)} is no run under {self.given}; {hint}")

    def _places(self, text: str) -> list[Path]:
        """Where a text may lead: a name from the root, else a path from here."""
        if not text or len(text) > LONGEST_PATH or any(ord(c) < 32 or ord(c) == 127 for c in text):
            return []
        return [self.path / text, Path(text)] if _is_name(text) else [Path(text)]

    def _is_run(self, parts: tuple[str, ...]) -> bool:
        told = self.path.joinpath(*parts, "run.json")
        return told.is_file() and not told.is_symlink()

    def find(self) -> tuple[list[str], list[str]]:
        """The names of all runs, in order, and what could not be looked at, in words."""
        names: list[str] = []
        problems: list[str] = []
        self._look(self.path, (), names, problems)
        return sorted(names), problems

    def _look(self, folder: Path, above: tuple[str, ...], names: list[str], problems: list[str]) -> None:
        try:
            with os.scandir(folder) as entries:
                below = sorted(e.name for e in entries if e.is_dir(follow_symlinks=False) and e.name[0] != ".")
        except OSError as error:
            problems.append(f"{folder}: cannot be looked into: {error.strerror or error}")
            return
        for name in below:
            place, path = folder / name, (*above, name)
            if os.path.lexists(place / "run.json"):
                if all(map(NAME.fullmatch, path)):
                    names.append("/".join(path))
                else:
                    hint = "names have letters, digits, `.`, `_` and `-`, a letter or digit first; rename it"
                    problems.append(f"{'/'.join(path)!a}: is left out, since its path is no name; {hint}")
            elif len(path) < DEPTH:
                self._look(place, path, names, problems)

    @contextmanager
    def alone(self, seconds: float = 60.0) -> Iterator[None]:
        """No other process changes tags and promotions, or makes the database anew, meanwhile.

        Raises:
            StorageError: another process has not let go of it in time.
        """
        if self._held:
            yield
            return
        descriptor, ends = os.open(self.path, os.O_RDONLY), time.monotonic() + seconds
        try:
            while not _locked(descriptor):
                if time.monotonic() > ends:
                    raise StorageError(f"{self.given}: another process has changed the registry for {seconds:.0f} s")
                time.sleep(0.01)
            self._held += 1
            try:
                yield
            finally:
                self._held -= 1
        finally:
            os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
