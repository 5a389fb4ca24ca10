"""What is asked of the registry and done with it: a run with its lineage, two runs beside each other, tags, promotions."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab import config as configs
from trimtab.errors import StorageError, UserError
from trimtab.operate import finish
from trimtab.secrets import redact
from trimtab.store import encryption, manifests, registry_tags, retention, writer
from trimtab.store.audit import AuditLog
from trimtab.store.checkpoints import CheckpointStore, sha256
from trimtab.store.registry import Registry
from trimtab.store.registry_index import HEADLINES, Entry, size_of
from trimtab.store.registry_names import Root, link_in
from trimtab.store.registry_tags import Promotion
from trimtab.store.run_directory import RunDirectory
from trimtab.store.settings import Checkpoint


# ---------------------------------------------------------------------------------------------------------- checkpoints
@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A checkpoint, by its manifest; nothing of it was verified."""

    step: int
    bytes: int
    is_resumable: bool
    metrics: Mapping[str, float]


def checkpoints_of(directory: RunDirectory) -> dict[int, Kept]:
    """By step. One behind a link is none, and neither is one without a manifest."""
    found = {}
    for place in folders(directory.checkpoints):
        if place.name.isdigit() and not (place / manifests.NAME).is_symlink():
            manifest = manifests.parsed(place / manifests.NAME)
            if manifest is not None and manifests.is_one(manifest):
                found[int(place.name)] = Kept(
                    step=int(place.name),
                    bytes=size_of(place),
                    is_resumable=manifest.get("resumable", True) is True,
                    metrics=manifest["metrics"],
                )
    return dict(sorted(found.items()))


def folders(place: Path) -> list[Path]:
    """The directories in one, and no link."""
    if place.is_symlink() or not place.is_dir():
        return []
    with os.scandir(place) as entries:
        return sorted(Path(e.path) for e in entries if e.is_dir(follow_symlinks=False))


def store_of(directory: RunDirectory, metric: str = "") -> CheckpointStore:
    """For looking only."""
    return CheckpointStore(directory.checkpoints, Checkpoint(), max_steps=1, metric=metric, is_writer=False)


def metric_of(entry: Entry, kept: Mapping[int, Kept]) -> str:
    """The evaluation that says which checkpoint is the best."""
    wanted = entry.settings.get("eval.early_stop.metric")
    if isinstance(wanted, str) and wanted != "auto":
        return wanted
    return next((name for name in HEADLINES if any(name in k.metrics for k in kept.values())), "")


def best_whole(store: CheckpointStore, kept: Mapping[int, Kept], metric: str) -> int | None:
    """The step of the best checkpoint whose bytes are all as they were written; without an evaluation the newest such."""
    left = dict(kept)
    while left:
        found = retention.best({step: {"metrics": k.metrics} for step, k in left.items()}, metric)
        step = max(left) if found is None else found
        if store.fault(step) is None:
            return step
        del left[step]
    return None


# -------------------------------------------------------------------------------------------------------------- lineage
@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A run reads a model of another."""

    child: str
    key: str
    """Of the child's configuration."""
    parent: str
    part: str
    """Of the parent: final, checkpoints/120/policy, ...; empty where it is named as a run."""


def links(registry: Registry) -> list[Link]:
    """Which run reads which other one's models, as far as both are here."""
    names, folders = {b.name for b in registry.briefs()}, registry.folders()
    found = []
    for child, key, text in registry.models():
        owner = _owner(text, folders.get(child), registry.root, names)
        if owner is not None and owner[0] != child:
            found.append(Link(child=child, key=key, parent=owner[0], part=owner[1]))
    return found


def _owner(text: str, folder: str | None, root: Root, names: set[str]) -> tuple[str, str] | None:
    """The run that a path lies in, and where in it. Nothing is opened."""
    if not text or "\0" in text or ":" in text:
        return None
    beside = [Path(folder)] if folder else []
    for base in [root.path.parent, *beside, Path.cwd()]:
        place = Path(os.path.normpath(base / text))
        for top in (root.path, root.given.absolute()):
            if place.is_relative_to(top):
                parts = place.relative_to(top).parts
                for length in range(len(parts), 0, -1):
                    if (name := "/".join(parts[:length])) in names:
                        return name, "/".join(parts[length:])
    return None


def ancestors(found: Sequence[Link], name: str) -> set[str]:
    """Every run whose model went into a run's, directly or not."""
    known: set[str] = set()
    left = [name]
    while left:
        child = left.pop()
        new = {link.parent for link in found if link.child == child} - known
        known |= new
        left += sorted(new)
    return known - {name}


# -------------------------------------------------------------------------------------------------------------- looking
def readable(registry: Registry, name: str) -> Entry:
    """
    Raises:
        UserError: the run's files cannot be read.
    """
    entry = registry.entry(name)
    if entry.brief.problem:
        hint = f"see `trimtab verify {registry.root.given / name}`"
        raise UserError(f"{registry.root.given / name}: {entry.brief.problem}; {hint}")
    return entry


def described(registry: Registry, name: str) -> dict[str, Any]:
    """Everything about a run, for people and programs.

    Raises:
        UserError: its files cannot be read.
    """
    entry, directory = readable(registry, name), registry.root.directory(name)
    facts, brief, found = entry.facts, entry.brief, links(registry)
    return {
        "name": name,
        "path": str(directory.root),
        "id": facts.get("id"),
        "algorithm": brief.algorithm,
        "model": brief.model,
        "state": brief.state(directory),
        "outcome": brief.outcome or None,
        "failure": facts.get("failure"),
        "step": brief.step,
        "max_steps": brief.max_steps,
        "started": facts.get("started"),
        "ended": facts.get("ended"),
        "bytes": brief.bytes,
        "tags": list(brief.tags),
        "labels": [label for label, bearers in registry.standing().items() if bearers[-1].run == name],
        "metric": brief.metric or None,
        "evaluations": facts.get("evaluations", {}),
        "figures": dict(entry.figures),
        "data": facts.get("data"),
        "data_fingerprints": facts.get("data_fingerprints"),
        "versions": facts.get("versions"),
        "seeds": facts.get("seeds"),
        "numerics": facts.get("numerics"),
        "config": dict(entry.settings),
        "config_versions": facts.get("config_versions", []),
        "parents": [{"run": x.parent, "key": x.key, "part": x.part} for x in found if x.child == name],
        "children": [{"run": x.child, "key": x.key, "part": x.part} for x in found if x.parent == name],
        "checkpoints": [
            {"step": k.step, "bytes": k.bytes, "resumable": k.is_resumable, "metrics": dict(k.metrics)}
            for k in checkpoints_of(directory).values()
        ],
        "checkpoints_behind_a_link": link_in(directory.root, ("checkpoints",)) is not None,
        "promotions": [told(registry, p) for p in registry.promotions() if p.run == name],
        "damaged_lines": facts.get("damaged_lines", 0),
    }


def compared(registry: Registry, one: str, other: str) -> dict[str, Any]:
    """What differs between two runs, and their results beside each other; each difference is (what, theirs, theirs).

    Raises:
        UserError: the files of one cannot be read.
    """
    a, b = readable(registry, one), readable(registry, other)
    parts = ("data_fingerprints", "versions", "seeds", "numerics")
    ends = {
        end: (_evaluation(a, end), _evaluation(b, end))
        for end in ("first", "best", "last")
        if _evaluation(a, end) or _evaluation(b, end)
    }
    return {
        "a": one,
        "b": other,
        "config": configs.differences(_nested(a), _nested(b)),
        **{p: configs.differences(_mapping(a.facts.get(p)), _mapping(b.facts.get(p))) for p in parts},
        "steps": [a.brief.step, b.brief.step],
        "results": {
            end: {
                "steps": [x.get("step"), y.get("step")],
                "metrics": {n: [x.get("metrics", {}).get(n), y.get("metrics", {}).get(n)] for n in _names(x, y)},
            }
            for end, (x, y) in ends.items()
        },
    }


def _nested(entry: Entry) -> dict[str, Any]:
    """The values of a configuration, a list as a whole."""
    return {key: value for key, value in entry.settings.items() if "[" not in key}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _evaluation(entry: Entry, end: str) -> Mapping[str, Any]:
    return _mapping(_mapping(entry.facts.get("evaluations")).get(end))


def _names(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    return sorted({*one.get("metrics", {}), *other.get("metrics", {})})


# ----------------------------------------------------------------------------------------------------------------- tags
def tag(registry: Registry, name: str, text: str, *, remove: bool = False, why: str = "") -> bool:
    """Give a run a tag, or take it away; whether that changed anything.

    Raises:
        UserError: the run's files cannot be read.
        StorageError: it cannot be written.
    """
    directory = _own(registry, name)
    with registry.root.alone():
        has = text in registry_tags.tags_of(registry_tags.read(directory))
        if has != remove:
            return False
        AuditLog(directory.audit).write("untag" if remove else "tag", name=text, why=why)
        registry_tags.append(directory, "tag", name=text, is_on=not remove, why=why)
        registry.register(name)
    return True


def _own(registry: Registry, name: str) -> RunDirectory:
    """The directory of a run that is about to be changed.

    Raises:
        UserError: a part of it lies somewhere else, or its files cannot be read.
    """
    directory = registry.root.directory(name)
    if (link := link_in(directory.root)) is not None:
        raise UserError(f"{registry.root.given / name}: {link} is a link; nothing behind a link is changed")
    readable(registry, name)
    return directory


# ----------------------------------------------------------------------------------------------------------- promotions
def told(registry: Registry, promotion: Promotion) -> dict[str, Any]:
    """A promotion, for programs."""
    return {
        "label": promotion.label,
        "number": promotion.number,
        "run": promotion.run,
        "step": promotion.step,
        "path": str(registry.root.path / promotion.run / promotion.folder),
        "is_adapter": promotion.is_adapter,
        "metrics": dict(promotion.metrics),
        "time": promotion.time,
        "who": promotion.who,
        "why": promotion.why,
        "undone": dict(promotion.undone) if promotion.undone else None,
    }


def bearer(registry: Registry, label: str) -> Promotion | None:
    """The promotion that a label stands for now."""
    found = registry.standing().get(label)
    return found[-1] if found else None


def promote(registry: Registry, name: str, step: int | None, label: str, why: str) -> tuple[Promotion, bool]:
    """Let a label stand for a checkpoint, whose policy gets a directory of its own that nothing removes.

    Args:
        step: None: the best checkpoint, else the newest.

    Returns:
        The promotion, and whether it is new: the checkpoint may bear the label already.

    Raises:
        UserError: there is no such checkpoint, or it is encrypted.
        StorageError: it is damaged, or the disk takes no more.
    """
    directory = _own(registry, name)
    with registry.root.alone():
        registry.refresh()
        step = _chosen(registry, directory, readable(registry, name), step)
        wanted, present = _policy_of(directory, step), bearer(registry, label)
        is_there = present is not None and (present.run, present.step) == (name, step) and _has(present.files, wanted)
        if present is not None and is_there and fault_of(registry, present) is None:
            return present, False
        try:
            folder, files = _model_directory(directory, step, wanted)
        except OSError as error:
            raise StorageError(
                f"{directory.root / 'promoted'}: cannot be written: {error.strerror or error}"
            ) from error
        AuditLog(directory.audit).write("promote", label=label, step=step, why=why)
        registry_tags.append(
            directory,
            "promote",
            label=label,
            number=registry_tags.next_number(registry.marks(), label),
            run=name,
            step=step,
            folder=folder,
            files=files,
            metrics={n: v for n, v in checkpoints_of(directory)[step].metrics.items() if n.startswith("eval/")},
            is_adapter="adapter_config.json" in files,
            why=why,
        )
        registry.register(name)
        found = bearer(registry, label)
    assert found is not None
    return found, True


def _chosen(registry: Registry, directory: RunDirectory, entry: Entry, step: int | None) -> int:
    """A checkpoint whose bytes were verified."""
    kept, said = checkpoints_of(directory), registry.root.given / entry.brief.name
    store, there = store_of(directory), ", ".join(map(str, kept)) or "none"
    if step is None:
        step = best_whole(store, kept, metric_of(entry, kept))
        if step is None:
            raise StorageError(f"{said}: there is no whole checkpoint; see `trimtab verify {said}`")
    elif step not in kept:
        raise UserError(f"{said} has no checkpoint of step {step}; there are: {there}")
    elif (fault := store.fault(step)) is not None:
        raise StorageError(f"{said}: checkpoint {step} is damaged: {fault}; there are: {there}")
    if encryption.is_encrypted(directory.checkpoints / str(step)):
        hint = f"`trimtab export {said} --checkpoint {step} --to DIR` makes one"
        raise UserError(
            f"{said}: checkpoint {step} is encrypted, and what is promoted is a plain model directory; {hint}"
        )
    return step


def _policy_of(directory: RunDirectory, step: int) -> dict[str, dict[str, Any]]:
    """The files of the policy of a verified checkpoint, from `policy/`: size and SHA-256 by name."""
    manifest = manifests.parsed(directory.checkpoints / str(step) / manifests.NAME) or {"files": {}}
    files = {n.removeprefix("policy/"): dict(v) for n, v in manifest["files"].items() if n.startswith("policy/")}
    if not files:
        raise StorageError(f"{directory.checkpoints / str(step)} has no policy")
    return files


def _has(files: Mapping[str, Any], wanted: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether a model directory has the policy's files, byte by byte."""
    return all(_mapping(files.get(name)).get("sha256") == entry["sha256"] for name, entry in wanted.items())


def _model_directory(
    directory: RunDirectory, step: int, wanted: Mapping[str, Mapping[str, Any]]
) -> tuple[str, dict[str, dict[str, Any]]]:
    """The policy of a verified checkpoint as a directory of its own; its name from the run, and its files.

    Its files are further names of the same bytes where the file system has that, so they take no room; retention, a
    rollback and `gc` take away the other name. What was promoted from the same step with other weights, before a
    rollback, stays beside it.
    """
    source, above = directory.checkpoints / str(step) / "policy", directory.root / "promoted"
    number = 1
    while os.path.lexists(place := above / (str(step) if number == 1 else f"{step}-{number}")):
        if not place.is_symlink() and _has(files := _hashed(place), wanted):
            return f"promoted/{place.name}", files
        number += 1
    scratch = above / f".{place.name}.new"
    if os.path.lexists(scratch):
        (writer.remove_file if scratch.is_symlink() else writer.remove_tree)(scratch)
    writer.fill(scratch, lambda to: _link_files(source, to, wanted))
    if not (scratch / "README.md").exists():
        writer.write_bytes(scratch / "README.md", redact(finish.model_card(directory, step)).encode())
        writer.sync(scratch)
    if not _has(files := _hashed(scratch), wanted):
        raise StorageError(f"{source} has changed while it was promoted")
    writer.rename(scratch, place)
    return f"promoted/{place.name}", files


def _hashed(place: Path) -> dict[str, dict[str, Any]]:
    return {
        str(p.relative_to(place)): {"bytes": p.stat().st_size, "sha256": sha256(p)}
        for p in sorted(place.rglob("*"))
        if p.is_file() and not p.is_symlink()
    }


def _link_files(source: Path, to: Path, names: Iterable[str]) -> None:
    for name in names:
        target = to / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source / name, target)
        except OSError:  # the file system has no second names
            shutil.copyfile(source / name, target)


def fault_of(registry: Registry, promotion: Promotion) -> str | None:
    """What is wrong with the model directory of a promotion, or None if every byte is as it was."""
    place = registry.root.path / promotion.run / promotion.folder
    if link_in(registry.root.path / promotion.run, ("promoted", promotion.folder)) is not None:
        return f"{place} is a link"
    for name, wanted in _entries(promotion):
        file = place / name
        try:
            if file.is_symlink() or file.stat().st_size != wanted.get("bytes") or sha256(file) != wanted.get("sha256"):
                return f"{file} is not as it was promoted"
        except OSError as error:
            return f"{file}: {error.strerror or error}"
    return None


def _entries(promotion: Promotion) -> Iterator[tuple[str, Mapping[str, Any]]]:
    from trimtab import untrusted

    if not isinstance(promotion.files, Mapping) or not promotion.files:
        raise StorageError(f"{promotion.run}: the promotion as {promotion.label} names no files")
    for name, wanted in promotion.files.items():
        try:
            untrusted.refuse_name(name)
        except untrusted.HarmError as error:
            raise StorageError(f"{promotion.run}: the promotion as {promotion.label} {error}") from error
        yield name, _mapping(wanted)


def undo(registry: Registry, label: str, why: str) -> tuple[Promotion, Promotion | None]:
    """Take the newest promotion back; it, and the one that the label stands for again.

    Raises:
        UserError: nothing bears the label.
        StorageError: what it would stand for again is damaged; nothing was changed.
    """
    with registry.root.alone():
        registry.refresh()
        found = registry.standing().get(label)
        if not found:
            raise UserError(f"nothing under {registry.root.given} is promoted as {label}")
        last, before = found[-1], found[-2] if len(found) > 1 else None
        if before is not None and (fault := fault_of(registry, before)) is not None:
            hint = f"promote another checkpoint, `trimtab runs promote RUN:STEP --as {label}`"
            raise StorageError(f"{label} would stand for {before.run}:{before.step} again, but {fault}; {hint}")
        directory = _own(registry, last.run)
        AuditLog(directory.audit).write("undo promotion", label=label, step=last.step, why=why)
        number = registry_tags.next_number(registry.marks(), label)
        registry_tags.append(directory, "undo", label=label, number=number, undoes=last.number, why=why)
        registry.register(last.run)
    return last, before
