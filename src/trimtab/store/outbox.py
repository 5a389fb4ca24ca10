"""Letters that wait to be sent: written before anybody tries, removed when somebody has them.

    RUN/outbox/<hook>/000000000007-<key>.json   one letter, numbered in the order in which they were written
    RUN/outbox/<hook>/settled                   keys of letters that need no sending any more, a line each

A process that dies leaves what it has not sent, and the next one finds it. A key that waits or is settled is not taken
again, so what a resumed run says a second time is said once.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from trimtab.store import writer

MOST = 1000
"""Letters that wait; of more the oldest are dropped, since the newest say how things stand."""
REMEMBERED = 10_000
"""Keys in `settled` above which half of them are forgotten at the next start, the oldest."""


class Outbox:
    """The letters to one receiver. Not for several threads at once."""

    def __init__(self, folder: Path, *, most: int = MOST) -> None:
        """
        Raises:
            OSError: the folder is there and cannot be read.
        """
        self.folder = folder
        self.most = most
        self.dropped = 0
        """Letters that were given up because too many waited or a file was damaged, since the start of the process."""
        self._settled = folder / "settled"
        self._names: deque[str] = deque()
        self._keys: set[str] = set()
        self._number = 0
        if folder.is_dir():
            self._find()

    def __len__(self) -> int:
        return len(self._names)

    def put(self, key: str, letter: Mapping[str, Any]) -> bool:
        """Write a letter down; False if its key is known, which means that it waits or that nobody needs it any more.

        Raises:
            OSError: it cannot be written.
        """
        if key in self._keys:
            return False
        writer.make_directory(self.folder)
        name = f"{self._number:012}-{key}.json"
        writer.replace_text(self.folder / name, json.dumps(letter, ensure_ascii=False, indent=1))
        self._number += 1
        self._keys.add(key)
        self._names.append(name)
        while len(self._names) > self.most:
            self._drop(self._names.popleft())
        return True

    def first(self) -> tuple[str, Mapping[str, Any]] | None:
        """The oldest letter that waits, with its key, or None. A file that is no letter any more is dropped and counted."""
        while self._names:
            try:
                found = json.loads((self.folder / self._names[0]).read_bytes())
            except (OSError, ValueError):
                found = None
            if isinstance(found, dict):
                return _key(self._names[0]), found
            self._drop(self._names.popleft())
        return None

    def settle(self, key: str) -> None:
        """A letter is sent, or refused for good: its key is remembered, and the letter removed if it is still there.

        A crash in between leaves the letter, which is then sent twice under the same key.

        Raises:
            OSError: that cannot be written; in this process the letter is settled nevertheless.
        """
        names = [name for name in self._names if _key(name) == key]
        for name in names:
            self._names.remove(name)
        writer.append(self._settled, f"{key}\n".encode())
        for name in names:
            writer.remove_file(self.folder / name)

    def _drop(self, name: str) -> None:
        self.dropped += 1
        with suppress(OSError):  # it is found again, and dropped again, at the next start
            writer.remove_file(self.folder / name)

    def _find(self) -> None:
        """What an earlier process has left."""
        settled = self._settled.read_text(errors="replace").split() if self._settled.is_file() else []
        if len(settled) > REMEMBERED:
            settled = settled[-REMEMBERED // 2 :]
            writer.replace_text(self._settled, "\n".join(settled) + "\n")
        done = set(settled)
        for path in sorted(self.folder.iterdir()):
            if path.name.endswith(".new"):  # of a process that died while it wrote
                writer.remove_file(path)
            elif path.suffix == ".json" and path.name[:12].isdigit():
                self._number = max(self._number, int(path.name[:12]) + 1)
                if _key(path.name) in done:
                    writer.remove_file(path)
                else:
                    self._names.append(path.name)
        self._keys = done | {_key(name) for name in self._names}


def _key(name: str) -> str:
    return name.removesuffix(".json")[13:]
