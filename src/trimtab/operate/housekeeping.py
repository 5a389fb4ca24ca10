"""`trimtab runs gc`: what takes room under a root and is not needed, in tiers; the cheapest loss goes first.

    samples   files of completions of runs that do not train, older than so many days
    rolling   checkpoints of finished runs that served a crash, but not the first, the last or the best
    kept      those that `checkpoint.every` and `weights_every` made, likewise; only where that is asked for
              model directories of promotions that were undone

Never touched: a run that has a tag, that a label stands for, or whose model went into one that a label stands for; a run
that trains; a checkpoint that another run's configuration names; a promotion that an undo would give back; the journal,
the configuration, run.json, the report and `final/` of any run. A run without a whole newest checkpoint keeps them all,
and all runs do while one that has tags or promotions cannot be read.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trimtab.errors import LockError, StorageError, UserError
from trimtab.operate import registry as asked
from trimtab.store import writer
from trimtab.store.audit import AuditLog
from trimtab.store.registry import Registry
from trimtab.store.registry_index import Brief, is_training
from trimtab.store.registry_names import link_in
from trimtab.store.registry_tags import FILE as TAGS
from trimtab.store.run_directory import RunDirectory

TIERS = ("leftover", "samples", "rolling", "kept")
STAYING = ("first", "best", "last", "tagged", "kept")
"""Words of `--keep-checkpoints`; the first four hold whether they are said or not."""
DAY = 86400.0
GONE = re.compile(r"\.\d+(-\d+)?\.gone")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What may go."""

    samples_days: float | None = 30.0
    """Files of completions that are older; None: none."""
    keep: frozenset[str] = frozenset(STAYING)
    free: int | None = None
    """Stop when so many bytes are free; None: all that may go does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Something that may go."""

    run: str
    tier: str
    path: Path
    bytes: int
    time: float
    """Of its last change: of one tier the oldest goes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    items: tuple[Item, ...]
    spared: tuple[tuple[str, str], ...]
    """(a run of which nothing goes, why)."""

    @property
    def bytes(self) -> int:
        return sum(item.bytes for item in self.items)


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What has gone."""

    items: tuple[Item, ...]
    failures: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Needed:
    """What must stay, by run."""

    runs: dict[str, str]
    """Whole runs, and why."""
    folders: dict[str, set[str]]
    """Checkpoints and promoted models that others read or that an undo gives back, from their run."""
    unknown: str
    """A run that has tags or promotions which cannot be read, so what they need is not known; empty if there is none."""


def parsed_keep(text: str) -> frozenset[str]:
    """
    Raises:
        UserError: a word is none of `STAYING`.
    """
    words = frozenset(w.strip() for w in text.split(",") if w.strip())
    if unknown := sorted(words - set(STAYING)):
        raise UserError(f"--keep-checkpoints: {unknown[0]!r} is no such word; expected of {', '.join(STAYING)}")
    return words


def plan(registry: Registry, rule: Rule, *, now: float | None = None) -> Plan:
    """What would go. Checkpoints that are to stay for the others' sake are verified, byte by byte.

    Args:
        now: seconds since the epoch.
    """
    moment, needed = time.time() if now is None else now, _needed(registry)
    items: list[Item] = []
    spared: list[tuple[str, str]] = []
    for brief in registry.briefs():
        why = _spared(registry, brief, needed)
        if why:
            spared.append((brief.name, why))
        else:
            items += _of_run(registry, brief, rule, needed, moment, spared)
    items.sort(key=lambda item: (TIERS.index(item.tier), item.time, str(item.path)))
    counted = _freed(items)
    return Plan(items=tuple(_enough(counted, rule.free)), spared=tuple(spared))


def collect(registry: Registry, chosen: Plan, rule: Rule, *, now: float | None = None) -> Done:
    """Remove what a plan has, after another look at each run: it may have been tagged, promoted or started meanwhile.

    A checkpoint gets another name before its files go, so whatever interrupts it, none is there in part.
    """
    moment, removed, failures = time.time() if now is None else now, [], []
    for name in dict.fromkeys(item.run for item in chosen.items):
        wanted = {item.path: item for item in chosen.items if item.run == name}
        directory = registry.root.directory(name)
        try:
            with registry.root.alone(), directory.locked():
                registry.refresh()
                needed = _needed(registry)
                brief = next((b for b in registry.briefs() if b.name == name), None)
                if brief is None or _spared(registry, brief, needed, is_ours=True):
                    continue
                still = {item.path for item in _of_run(registry, brief, rule, needed, moment, [])}
                going = [item for path, item in wanted.items() if path in still]
                if going:
                    told = [str(item.path.relative_to(directory.root)) for item in going]
                    AuditLog(directory.audit).write("gc", removed=told, bytes=sum(i.bytes for i in going))
                for item in going:
                    _remove(item.path)
                    removed.append(item)
                registry.register(name)
        except LockError:
            continue  # it trains by now
        except (OSError, StorageError) as error:
            failures.append(f"{name}: {getattr(error, 'strerror', None) or error}")
    return Done(items=tuple(removed), failures=tuple(failures))


def _remove(path: Path) -> None:
    if not path.is_dir():
        writer.remove_file(path)
        writer.sync(path.parent)
        return
    gone = path if GONE.fullmatch(path.name) else path.with_name(f".{path.name}.gone")
    if gone != path:
        if gone.exists():
            writer.remove_tree(gone)
        writer.rename(path, gone)
    writer.remove_tree(gone)
    writer.sync(path.parent)


# ------------------------------------------------------------------------------------------------------- what must stay
def _needed(registry: Registry) -> _Needed:
    found, standing = asked.links(registry), registry.standing()
    runs: dict[str, str] = {}
    for brief in registry.briefs():
        if brief.tags:
            runs[brief.name] = f"tagged {', '.join(brief.tags)}"
    for label, promotions in sorted(standing.items()):
        bearer = promotions[-1].run
        runs[bearer] = f"bears {label}"
        for name in sorted(asked.ancestors(found, bearer)):
            runs.setdefault(name, f"its model went into {bearer}, which bears {label}")
    folders: dict[str, set[str]] = {}
    for link in found:
        folders.setdefault(link.parent, set()).add("/".join(link.part.split("/")[:2]))
    for promotion in (p for promotions in standing.values() for p in promotions):
        folders.setdefault(promotion.run, set()).update((promotion.folder, f"checkpoints/{promotion.step}"))
    unread = (b.name for b in registry.briefs() if b.problem and (registry.root.path / b.name / TAGS).exists())
    return _Needed(runs=runs, folders=folders, unknown=next(unread, ""))


def _spared(registry: Registry, brief: Brief, needed: _Needed, *, is_ours: bool = False) -> str:
    """Why nothing of a run goes; empty if something may.

    Args:
        is_ours: this process holds the run's lock.
    """
    directory = registry.root.directory(brief.name)
    if brief.problem:
        return brief.problem
    if brief.name in needed.runs:
        return needed.runs[brief.name]
    if (link := link_in(directory.root)) is not None:
        return f"{link} is a link, and nothing behind a link is removed"
    return "a process trains there" if not is_ours and is_training(directory) else ""


# ---------------------------------------------------------------------------------------------------------- what may go
def _of_run(
    registry: Registry, brief: Brief, rule: Rule, needed: _Needed, now: float, spared: list[tuple[str, str]]
) -> list[Item]:
    directory = registry.root.directory(brief.name)
    items = [*_leftovers(brief.name, directory), *_samples(brief.name, directory, rule, now)]
    if not brief.outcome:
        return items
    if needed.unknown:
        why = f"its checkpoints may be needed by {needed.unknown}, whose promotions cannot be read"
        spared.append((brief.name, f"{why}; mend it, or move it out of the root"))
        return items
    items += _undone(brief.name, directory, rule, needed)
    entry, kept = registry.entry(brief.name), asked.checkpoints_of(directory)
    needed_here = needed.folders.get(brief.name, set())
    every = entry.settings.get("checkpoint.every")
    going = {}
    for step, found in kept.items():
        is_kept = not found.is_resumable or (isinstance(every, int) and every > 0 and step % every == 0)
        if step and f"checkpoints/{step}" not in needed_here and not (is_kept and "kept" in rule.keep):
            going[step] = "kept" if is_kept else "rolling"
    if not going:
        return items
    store, metric = asked.store_of(directory), asked.metric_of(entry, kept)
    resumable = {step: k for step, k in kept.items() if k.is_resumable}
    last = next((step for step in sorted(resumable, reverse=True) if store.fault(step) is None), None)
    if last is None:
        spared.append((brief.name, "none of its checkpoints is whole; see `trimtab verify`"))
        return items
    staying = {last, asked.best_whole(store, kept, metric), asked.best_whole(store, resumable, metric)}
    for step, tier in going.items():
        if step not in staying and step < last:  # what lies behind the last whole one is damaged: evidence, not rubbish
            items.append(_item(brief.name, tier, directory.checkpoints / str(step)))
    return items


def _leftovers(name: str, directory: RunDirectory) -> Iterator[Item]:
    """What an interrupted removal has left."""
    for folder in (directory.checkpoints, directory.root / "promoted"):
        for place in asked.folders(folder):
            if GONE.fullmatch(place.name):
                yield _item(name, "leftover", place)


def _samples(name: str, directory: RunDirectory, rule: Rule, now: float) -> Iterator[Item]:
    if rule.samples_days is None or not directory.samples.is_dir():
        return
    for path in sorted(directory.samples.iterdir()):
        if not path.is_symlink() and path.is_file() and now - path.stat().st_mtime > rule.samples_days * DAY:
            yield _item(name, "samples", path)


def _undone(name: str, directory: RunDirectory, rule: Rule, needed: _Needed) -> Iterator[Item]:
    stay = needed.folders.get(name, set())
    for place in asked.folders(directory.root / "promoted"):
        if "kept" not in rule.keep and place.name[0] != "." and f"promoted/{place.name}" not in stay:
            yield _item(name, "kept", place)


def _item(name: str, tier: str, path: Path) -> Item:
    return Item(run=name, tier=tier, path=path, bytes=0, time=path.stat().st_mtime)


def _freed(items: Sequence[Item]) -> list[Item]:
    """Each with the bytes that go with it: those of a file with several names go with the last of them."""
    left: Counter[tuple[int, int]] = Counter()
    found = []
    for item in items:
        size = 0
        for path in sorted(item.path.rglob("*")) if item.path.is_dir() else [item.path]:
            stat = path.lstat()
            if path.is_symlink() or not path.is_file():
                continue
            left[stat.st_dev, stat.st_ino] += 1
            size += stat.st_size if left[stat.st_dev, stat.st_ino] == stat.st_nlink else 0
        found.append(Item(run=item.run, tier=item.tier, path=item.path, bytes=size, time=item.time))
    return found


def _enough(items: Sequence[Item], wanted: int | None) -> Iterator[Item]:
    freed = 0
    for item in items:
        if wanted is not None and freed >= wanted:
            return
        freed += item.bytes
        yield item
