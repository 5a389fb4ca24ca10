"""What a run that was killed and one that was not must have in common: everything but times."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trimtab import catalogue
from trimtab.store import journal
from trimtab.store.checkpoints import MANIFEST, sha256
from trimtab.store.run_directory import RunDirectory

OF_THE_CLOCK = {"seconds", "tokens/s", "bytes"}
"""Units of metrics that differ from run to run."""
OF_THE_COMPUTER = "utilisation/"
"""And the family of those that say how busy the computer is."""
OF_ITS_OWN = {"id", "started", "ended", "audit"}
"""Facts of run.json that do."""


def differences(whole: Path, killed: Path, *, may_have_more: bool) -> Iterator[str]:
    """In words, each thing that is not as in the undisturbed run.

    What should have been removed behind the last save stays, if a kill has cut that: there is no next save.
    """
    yield from _of_records(whole, killed)
    yield from _of_files(whole, killed)
    if not may_have_more:
        yield from (f"checkpoint {step} is too many" for step in sorted(_extra(whole, killed)))
    for name in sorted(left_over(killed)):
        if not (may_have_more and name.endswith(".gone")):
            yield f"{name} is left"
    yield from _of_facts(whole, killed)


def _of_records(whole: Path, killed: Path) -> Iterator[str]:
    """Every record of a step, of those that were done again each, must be the one record of the undisturbed run."""
    expected = {(r["kind"], r["step"]): _steady(r) for r in _reading(whole).records if r["kind"] != "event"}
    found = _reading(killed)
    met = set()
    for record in found.records:
        if record["kind"] == "event":
            continue
        key = (record["kind"], record["step"])
        met.add(key)
        wanted, got = expected.get(key, {}), _steady(record)
        names = sorted(n for n in wanted.keys() | got.keys() if wanted.get(n) != got.get(n))
        if names:
            first = names[0]
            what = f"{first} is {got.get(first)!r}, in the undisturbed run {wanted.get(first)!r}"
            yield f"{key[0]} {key[1]}: {what}" + (f"; so are {len(names) - 1} more" if names[1:] else "")
    for kind, step in sorted(expected.keys() - met):
        yield f"{kind} {step}: there is no record of it"


def _reading(root: Path) -> journal.Reading:
    return journal.read(RunDirectory(root).journal)


def _steady(record: Mapping[str, Any]) -> dict[str, Any]:
    """What a record says of anything but the clock and the memory."""
    metrics = {n: v for n, v in record["metrics"].items() if not _is_of_the_clock(n)}
    return {**{n: v for n, v in record.items() if n not in ("time", "metrics")}, **metrics}


def _is_of_the_clock(name: str) -> bool:
    return catalogue.find(name).unit in OF_THE_CLOCK or name.startswith(OF_THE_COMPUTER)


def _of_files(whole: Path, killed: Path) -> Iterator[str]:
    """Weights, moments, counters, cursors, samples and `final/`, byte for byte."""
    wanted, found = _prints(whole), _prints(killed)
    extra = _extra(whole, killed)
    for name in sorted(wanted.keys() | found.keys()):
        if name.split("/")[0] == "checkpoints" and name.split("/")[1] in extra:
            continue  # `verify` has looked at it
        if wanted.get(name) != found.get(name):
            how = "is not there" if name not in found else "is too many" if name not in wanted else "has other bytes"
            yield f"{name} {how}"


def _prints(root: Path) -> dict[str, str]:
    """SHA-256 of each file whose bytes do not depend on the clock, by name."""
    places = (root / part for part in ("checkpoints", "final", "samples"))
    files = [p for place in places for p in place.rglob("*") if p.is_file() and p.name != MANIFEST]
    return {str(p.relative_to(root)): sha256(p) for p in files if not _is_left_over(p, root)}


def _extra(whole: Path, killed: Path) -> set[str]:
    return _checkpoints(killed) - _checkpoints(whole)


def _checkpoints(root: Path) -> set[str]:
    return {p.name for p in (root / "checkpoints").iterdir() if p.name.isdigit()}


def _is_left_over(path: Path, root: Path) -> bool:
    return any(part.endswith((".new", ".old", ".gone")) for part in path.relative_to(root).parts)


def left_over(root: Path) -> set[str]:
    """What an operation that was cut has left: the outermost names that a finished one takes away."""
    found = (p for p in root.rglob("*") if p.name.endswith((".new", ".old", ".gone")))
    return {str(p.relative_to(root)) for p in found if not _is_left_over(p.parent, root)}


def _of_facts(whole: Path, killed: Path) -> Iterator[str]:
    wanted, found = RunDirectory(whole).facts(), RunDirectory(killed).facts()
    for name in sorted((wanted.keys() | found.keys()) - OF_ITS_OWN):
        if wanted.get(name) != found.get(name):
            yield f"run.json: {name} is {found.get(name)!r}, in the undisturbed run {wanted.get(name)!r}"
    if len(RunDirectory(killed).config_versions()) != 1:
        yield "config: there is more than one version"
    if RunDirectory(killed).failure.exists():
        yield f"failure.json is there: {json.loads(RunDirectory(killed).failure.read_bytes())['cause']}"
    if not RunDirectory(killed).report.is_file():
        yield "report.html is not there"


def recorded_step(root: Path) -> int:
    """The newest step that the journal tells of, on the branch that the run is on."""
    return max((r["step"] for r in _reading(root).steps()), default=0)
