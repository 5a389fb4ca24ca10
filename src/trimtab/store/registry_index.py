"""What a run's own files say of it, in the shape that the registry keeps; and which of them have changed since."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from trimtab.catalogue import is_better_lower
from trimtab.errors import StorageError
from trimtab.store import journal, registry_tags
from trimtab.store.registry_names import link_in
from trimtab.store.run_directory import RunDirectory

HEADLINES = ("eval/reward/mean", "eval/reward_model/auc", "eval/preference/accuracy", "eval/loss/nll")
"""The figure that says how good a run is: the first of these that it has, else of the steps those below."""
OF_STEPS = ("reward/mean", "preference/accuracy", "loss/total")
WATCHED = (
    "run.json",
    "journal.jsonl",
    registry_tags.FILE,
    "failure.json",
    "config",
    "checkpoints",
    "samples",
    "promoted",
)
MAX_SETTINGS = 20_000
"""Values of one configuration; YAML can make any number of a few lines."""
MAX_BYTES = 64 << 20
PLAIN = ("run.json", "journal.jsonl", registry_tags.FILE, "failure.json", "config", "lock")
FAULTS = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    RecursionError,
    OverflowError,
    StorageError,
)
"""What reading files may raise that are not as they were written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Brief:
    """What a list shows of a run."""

    name: str
    problem: str = ""
    """Why it could not be read; everything else is empty then."""
    algorithm: str = ""
    model: str = ""
    step: int = 0
    max_steps: int | None = None
    outcome: str = ""
    """How it ended, if it came to its end."""
    code: int | None = None
    """What it was ended with, if it failed."""
    metric: str = ""
    value: float | None = None
    started: float | None = None
    bytes: int = 0
    tags: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    """That its checkpoints bear; known where all runs are."""

    def state(self, directory: RunDirectory) -> str:
        """In a word or two, as it is now."""
        if self.problem:
            return "unreadable"
        if self.outcome:
            return "finished" if self.outcome == "all steps done" else self.outcome
        if is_training(directory):
            return "running"
        if self.code is None:
            return "interrupted"
        return f"interrupted ({self.code})" if self.code in (75, 130) else f"failed ({self.code})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """All that the registry keeps of a run."""

    brief: Brief
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Of run.json, and `evaluations` (first, best, last), `versions_of_config`, `damaged_lines`."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """By dotted key, of the newest configuration."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """Of the newest evaluation and step."""
    marks: Sequence[Mapping[str, Any]] = ()


def is_training(directory: RunDirectory) -> bool:
    """Whether a process trains there now."""
    return link_in(directory.root, ("lock",)) is None and directory.is_locked()


def signature(run: Path) -> str:
    """Of the files that an entry is made of: changes when one of them does."""
    found = []
    configs = [] if link_in(run, ("config",)) else RunDirectory(run).config_versions()
    newest = [f"config/{path.name}" for path in configs[-1:]]
    for name in (*WATCHED, *newest):
        try:
            stat = (run / name).lstat()
            found.append([stat.st_mtime_ns, stat.st_size, stat.st_ino])
        except OSError:
            found.append([])
    return json.dumps(found)


def entry_of(name: str, run: Path) -> Entry:
    """What a run's files say; of one that cannot be read, why."""
    try:
        if (link := link_in(run, PLAIN)) is not None:
            return Entry(brief=Brief(name=name, problem=f"{link} is a link, which is not followed"))
        return _read(name, RunDirectory(run))
    except FAULTS as error:
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        return Entry(brief=Brief(name=name, problem=f"cannot be read: {reason[:300]}"))


def _read(name: str, directory: RunDirectory) -> Entry:
    _refuse(directory.root / "run.json")
    facts, document = directory.facts(), newest_config(directory)
    reading = journal.read(directory.journal)
    steps, evaluations = reading.steps(), reading.evaluations()
    failure = _object(directory.failure) if directory.failure.is_file() else {}
    marks = registry_tags.read(directory)
    settings = dict(flat(document["resolved"]))
    figures = {
        n: v for record in [*steps[-1:], *evaluations[-1:]] for n, v in record["metrics"].items() if _is_finite(v)
    }
    metric = next((m for m in (*HEADLINES, *OF_STEPS) if m in figures), "")
    max_steps = settings.get("train.max_steps")
    brief = Brief(
        name=name,
        algorithm=str(facts.get("algorithm", "")),
        model=str(facts.get("model", "")),
        step=steps[-1]["step"] if steps else 0,
        max_steps=max_steps if isinstance(max_steps, int) else None,
        outcome=str(facts.get("outcome") or "finished") if facts.get("ended") else "",
        code=failure["code"] if isinstance(failure.get("code"), int) else None,
        metric=metric,
        value=figures.get(metric),
        started=_epoch(facts.get("started")),
        bytes=size_of(directory.root),
        tags=registry_tags.tags_of(marks),
    )
    more = {
        "evaluations": _told(evaluations, metric),
        "config_versions": _versions(directory),
        "damaged_lines": len(reading.damaged_lines),
        "failure": failure or None,
        "folder": str(document["folder"]) if _is_plain(document["folder"]) else "",
    }
    return Entry(brief=brief, facts={**facts, **more}, settings=settings, figures=figures, marks=marks)


def _told(evaluations: Sequence[Mapping[str, Any]], metric: str) -> dict[str, Mapping[str, Any]]:
    """The first, the best and the last evaluation."""
    if not evaluations:
        return {}
    shown = [
        {"step": e["step"], "metrics": {n: v for n, v in e["metrics"].items() if _is_finite(v)}} for e in evaluations
    ]
    found: dict[str, Mapping[str, Any]] = {"first": shown[0], "last": shown[-1]}
    valued = [e for e in shown if metric in e["metrics"]]
    if valued:
        sign = -1.0 if is_better_lower(metric) else 1.0
        found["best"] = max(valued, key=lambda e: (sign * e["metrics"][metric], e["step"]))
    return found


def _versions(directory: RunDirectory) -> list[dict[str, Any]]:
    """Of each version of the configuration its number, when, by whom and why."""
    found = []
    for path in directory.config_versions():
        document = _yaml(path)
        told: dict[str, Any] = {n: str(v) for n in ("version", "time", "who", "why") if _is_plain(v := document.get(n))}
        changes = document.get("changes")
        found.append({**told, "changes": dict(flat(changes)) if isinstance(changes, Mapping) and changes else {}})
    return found


def newest_config(directory: RunDirectory) -> Mapping[str, Any]:
    """The newest version's document. The same as `RunDirectory.newest_config`, many times as fast.

    Raises:
        StorageError, OSError: there is none, or it is not as it was written.
    """
    versions = directory.config_versions()
    if not versions:
        raise StorageError("there is no configuration")
    found = _yaml(versions[-1])
    if not {"resolved", "folder"} <= found.keys():
        raise StorageError(f"{versions[-1].name} is no configuration")
    return found


def _yaml(path: Path) -> Mapping[str, Any]:
    import yaml

    _refuse(path)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(path.read_bytes())
    try:
        found = loader.get_single_data()
    except yaml.YAMLError as error:
        raise StorageError(f"{path.name} is not as it was written") from error
    finally:
        loader.dispose()
    if not isinstance(found, dict):
        raise StorageError(f"{path.name} is no configuration")
    return found


def _object(path: Path) -> Mapping[str, Any]:
    _refuse(path)
    found = json.loads(path.read_bytes())
    return found if isinstance(found, dict) else {}


def _refuse(path: Path) -> None:
    if path.is_symlink():
        raise StorageError(f"{path.name} is a link, which is not followed")
    if path.stat().st_size > MAX_BYTES:
        raise StorageError(f"{path.name} has {path.stat().st_size:,} bytes, expected at most {MAX_BYTES:,}")


def flat(values: Any) -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of everything in a configuration; a list as a whole, and what is in it at `key[0]`.

    >>> dict(flat({"a": {"b": 1}, "c": [{"d": 2}]}))
    {'a.b': 1, 'c': [{'d': 2}], 'c[0].d': 2}

    Raises:
        StorageError: there are too many.
    """
    for count, (key, value) in enumerate(_flat(values, ""), 1):
        if count > MAX_SETTINGS:
            raise StorageError(f"the configuration has more than {MAX_SETTINGS:,} values")
        yield key, value


def _flat(values: Any, prefix: str) -> Iterable[tuple[str, Any]]:
    if isinstance(values, Mapping) and values:
        for name, value in values.items():
            yield from _flat(value, f"{prefix}.{name}" if prefix else str(name))
        return
    yield prefix, values
    if isinstance(values, list):
        for place, value in enumerate(values):
            yield from _flat(value, f"{prefix}[{place}]")


def size_of(place: Path) -> int:
    """Bytes of the files in a directory; a file with several names counts once, and no link is followed."""
    sizes: dict[tuple[int, int], int] = {}
    for folder, _, files in os.walk(place):
        for name in files:
            try:
                stat = Path(folder, name).lstat()
            except OSError:  # it was removed meanwhile
                continue
            sizes[stat.st_dev, stat.st_ino] = stat.st_size
    return sum(sizes.values())


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _is_plain(value: Any) -> bool:
    """Whether it is one value: the text of a structure may be endless, since YAML lets it hold a part many times."""
    return not isinstance(value, list | dict | set | tuple)


def _epoch(text: Any) -> float | None:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def as_json(value: Any) -> str:
    """
    Raises:
        ValueError: it has a cycle.
    """
    return json.dumps(value, default=str)


def brief_json(brief: Brief) -> str:
    return as_json(asdict(brief))


def brief_of(text: str) -> Brief:
    found = json.loads(text)
    return Brief(**{**found, "tags": tuple(found["tags"]), "labels": tuple(found["labels"])})
