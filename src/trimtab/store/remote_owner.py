"""Whose an object store is: one run's, and of its processes the one that was started last.

`owner.json` has the run's id and a number that each start draws for itself. A store that has another run's id is left
alone. A process that finds another one's number has been followed by it, on another machine perhaps, and writes no more.
"""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from collections.abc import Mapping
from typing import Any

from trimtab.store.remote import OWNER, Remote, StoreError


class TakenError(StoreError):
    """Another run, or another process of this one, writes there now."""


class Owner:
    """This process's mark on a store."""

    def __init__(self, remote: Remote, *, run_id: str, config: str = "") -> None:
        """
        Args:
            remote: the store.
            run_id: of the run.
            config: a hash of what was asked for, which says whether a start is of the same command.
        """
        self.remote = remote
        self.run_id = run_id
        self._config = config
        self._session = uuid.uuid4().hex
        self._is_claimed = False

    def hold(self) -> None:
        """Put the mark there, if that was not done yet, and see that it is still there.

        Raises:
            TakenError: somebody else writes to the store.
            StoreError: it cannot be read or written.
        """
        if not self._is_claimed:
            self.claim()
        found = self.remote.owner()
        if found is None or found.get("session") != self._session:
            by = f"{found.get('host')}, pid {found.get('pid')}" if found else "nobody"
            what = f"{self.remote.url}/{OWNER}: the store is held by {by} now, and no longer by this process"
            raise TakenError(f"{what}; end one of the two, and give each run a place of its own")

    def claim(self) -> None:
        """Put the mark there.

        Raises:
            TakenError: another run's is there.
            StoreError: it cannot be read or written.
        """
        mark = {
            "id": self.run_id,
            "config": self._config,
            "session": self._session,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "since": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        }
        data = json.dumps(mark, indent=1).encode()
        try:
            self.remote.put_bytes(data, OWNER, is_new=True)
        except (FileExistsError, StoreError):  # how a store says that there is one already, differs
            found = self.remote.owner()
            if found is None:
                raise
            if found["id"] != self.run_id:
                raise TakenError(of_another_run(self.remote, found)) from None
            self.remote.put_bytes(data, OWNER)
        if (self.remote.owner() or {}).get("session") != self._session:
            raise TakenError(f"{self.remote.url}/{OWNER}: another process has put its mark there at the same moment")
        self._is_claimed = True


def of_another_run(remote: Remote, owner: Mapping[str, Any]) -> str:
    """That a store has another run's mark, and what to do."""
    what = f"checkpoint.store: {remote.url} is of run {owner['id']} ({owner.get('host', 'unknown host')})"
    return f"{what}; one place is for one run: give another prefix, or remove what lies there"
