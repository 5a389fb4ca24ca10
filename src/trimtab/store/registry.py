"""The registry of the runs under a root: brought up to date from their directories, asked, kept for the next time."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from trimtab.errors import StorageError, UserError, nearest
from trimtab.store import registry_index as index
from trimtab.store import registry_tags
from trimtab.store.registry_index import Brief, Entry
from trimtab.store.registry_names import Root
from trimtab.store.registry_schema import DamagedError, Database, UnwritableError
from trimtab.store.registry_search import Condition
from trimtab.store.registry_tags import Promotion

Value = TypeVar("Value")
Say = Callable[[str], None]
TRIES = 3
"""A run is read again so often if it changes while it is read; the next look reads it anyway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refreshed:
    """What a look at the directories has found."""

    read: tuple[str, ...]
    """Runs that were new or had changed."""
    gone: tuple[str, ...]
    problems: tuple[str, ...]
    """What could not be looked at, in words."""


class Registry:
    """Of one root."""

    def __init__(self, root: Root, say: Say, *, seconds: float = 60.0) -> None:
        """
        Args:
            say: is told what went wrong with the database, which never stops a command.
            seconds: to wait for other processes, at most.
        """
        self.root = root
        self.say = say
        self.database = Database(root, say, seconds=seconds)

    def close(self) -> None:
        self.database.close()

    # ---------------------------------------------------------------------------------------------------------- up to date
    def refresh(self) -> Refreshed:
        """Read the runs that are new or have changed, and forget those that are gone.

        Raises:
            StorageError: the database is damaged again, as soon as it was made anew.
        """
        return self._mended(self._refresh)

    def register(self, *names: str) -> None:
        """Read these runs, whatever is known of them.

        Raises:
            StorageError: as `refresh`.
        """
        self._mended(lambda: self._put([self._read(name) for name in names]))

    def _refresh(self) -> Refreshed:
        names, problems = self.root.find()
        known = dict(self.database.read(lambda c: c.execute("SELECT name, signature FROM runs").fetchall()))
        changed = [n for n in names if known.get(n) != index.signature(self.root.path / n)]
        gone = sorted(known.keys() - set(names))
        for start in range(0, len(changed), 50):
            self._put([self._read(name) for name in changed[start : start + 50]])
        if gone:
            self.database.write(lambda c: _forget(c, *gone))
        return Refreshed(read=tuple(changed), gone=tuple(gone), problems=tuple(problems))

    def _read(self, name: str) -> tuple[str, Entry]:
        place = self.root.path / name
        signature = index.signature(place)
        return signature, index.entry_of(name, place)

    def _put(self, found: Sequence[tuple[str, Entry]]) -> None:
        """Write entries down. One whose run has changed meanwhile is read again, so that no older one replaces a newer."""

        def put(connection: sqlite3.Connection) -> None:
            for read in found:
                signature, entry = read
                name = entry.brief.name
                for _ in range(TRIES):
                    if signature == index.signature(self.root.path / name):
                        break
                    signature, entry = self._read(name)
                _forget(connection, name)
                if (self.root.path / name / "run.json").is_file():
                    _write(connection, signature, entry)

        self.database.write(put)

    def _mended(self, work: Callable[[], Value]) -> Value:
        """Again, with a database that is made anew, if it is damaged; with one in memory if it cannot be written."""
        try:
            return work()
        except DamagedError as error:
            self.database.replace(str(error))
        except UnwritableError as error:
            self.database.go_without(str(error))
        try:
            if work != self._refresh:
                self._refresh()
            return work()
        except (DamagedError, UnwritableError) as error:
            raise StorageError(f"{self.database.path}: {error}, though it was made anew") from error

    def _rows(self, statement: str, *values: Any) -> list[Any]:
        return self._mended(lambda: self.database.read(lambda c: c.execute(statement, values).fetchall()))

    # --------------------------------------------------------------------------------------------------------------- asking
    def briefs(self) -> list[Brief]:
        """Every run, by name, with the labels that its checkpoints bear."""
        labels: dict[str, list[str]] = {}
        for label, found in self.standing().items():
            labels.setdefault(found[-1].run, []).append(label)
        briefs = [index.brief_of(text) for (text,) in self._rows("SELECT brief FROM runs ORDER BY name")]
        return [replace(b, labels=tuple(labels.get(b.name, ()))) for b in briefs]

    def entry(self, name: str) -> Entry:
        """All that is known of a run.

        Raises:
            UserError: it is not there any more.
        """
        rows = self._rows("SELECT brief, facts FROM runs WHERE name = ?", name)
        if not rows:
            self.register(name)
            rows = self._rows("SELECT brief, facts FROM runs WHERE name = ?", name)
        if not rows:
            raise UserError(f"{self.root.given / name}: there is no run any more")
        brief, facts = rows[0]
        settings = self._rows("SELECT key, value FROM settings WHERE run = ? ORDER BY key", name)
        figures = self._rows("SELECT metric, value FROM figures WHERE run = ? ORDER BY metric", name)
        marks = self._rows("SELECT mark FROM marks WHERE run = ? ORDER BY place", name)
        return Entry(
            brief=index.brief_of(brief),
            facts=json.loads(facts),
            settings={key: json.loads(value) for key, value in settings},
            figures=dict(figures),
            marks=[json.loads(mark) for (mark,) in marks],
        )

    def matching(self, condition: Condition) -> tuple[set[str], str]:
        """The names of the runs that meet a condition; and where none has such a key, what was probably meant."""
        found = self._rows("SELECT run, value FROM settings WHERE key = ?", condition.key)
        if not found:
            known = [key for (key,) in self._rows("SELECT DISTINCT key FROM settings")]
            meant = nearest(condition.key, known)
            return set(), f"no run has a key {condition.key}" + (f"; did you mean {meant}?" if meant else "")
        return {run for run, value in found if condition.holds(json.loads(value))}, ""

    def figures(self, metric: str) -> dict[str, float]:
        """The newest value of a metric by run."""
        return dict(self._rows("SELECT run, value FROM figures WHERE metric = ?", metric))

    def metrics(self) -> list[str]:
        """Names of the metrics that any run has."""
        return [name for (name,) in self._rows("SELECT DISTINCT metric FROM figures ORDER BY metric")]

    def models(self) -> list[tuple[str, str, str]]:
        """(run, key, value) of every key of a configuration that names a model."""
        found = self._rows("SELECT run, key, value FROM settings WHERE key LIKE '%.model' ORDER BY run, key")
        return [(run, key, value) for run, key, text in found if isinstance(value := json.loads(text), str)]

    def folders(self) -> dict[str, str]:
        """By run the folder from which paths in its configuration were looked for."""
        found = self._rows("SELECT name, json_extract(facts, '$.folder') FROM runs")
        return {name: folder for name, folder in found if isinstance(folder, str)}

    def marks(self) -> list[tuple[str, Mapping[str, Any]]]:
        """The name of a run and a line about its tags and promotions, of all of them."""
        return [(run, json.loads(mark)) for run, mark in self._rows("SELECT run, mark FROM marks ORDER BY run, place")]

    def promotions(self) -> list[Promotion]:
        return registry_tags.promotions(self.marks())

    def standing(self) -> dict[str, list[Promotion]]:
        return registry_tags.standing(self.promotions())


def _forget(connection: sqlite3.Connection, *names: str) -> None:
    connection.executemany("DELETE FROM runs WHERE name = ?", [(name,) for name in names])
    for table in ("settings", "figures", "marks"):
        statement = f"DELETE FROM {table} WHERE run = ?"  # noqa: S608 - the names above
        connection.executemany(statement, [(name,) for name in names])


def _write(connection: sqlite3.Connection, signature: str, entry: Entry) -> None:
    name = entry.brief.name
    connection.execute(
        "INSERT INTO runs VALUES (?, ?, ?, ?)",
        (name, signature, index.brief_json(entry.brief), index.as_json(dict(entry.facts))),
    )
    _many(connection, "settings", ((name, key, index.as_json(value)) for key, value in entry.settings.items()))
    _many(connection, "figures", ((name, metric, value) for metric, value in entry.figures.items()))
    _many(connection, "marks", ((name, place, index.as_json(mark)) for place, mark in enumerate(entry.marks)))


def _many(connection: sqlite3.Connection, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
    connection.executemany(f"INSERT INTO {table} VALUES (?, ?, ?)", rows)  # noqa: S608 - the names above
