"""What is installed, whether it is what Trimtab asks for, and how that differs from what another run had."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from trimtab import config as configs
from trimtab.errors import StorageError, UserError
from trimtab.store import journal
from trimtab.store.run_directory import RunDirectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A library that Trimtab asks for."""

    name: str
    wanted: str
    """The range, such as `>=2.9,<2.16`; empty for any."""
    installed: str | None
    is_fitting: bool
    extra: str
    """The extra that it belongs to; empty for what is always needed."""


def libraries() -> list[Library]:
    """Everything that the installed package asks for, in its order, the extras behind."""
    from packaging.requirements import Requirement

    found = []
    for line in metadata.requires("trimtab") or []:
        requirement = Requirement(line)
        extra = next((e for e in extras() if _belongs(requirement, e)), "")
        if requirement.marker is not None and not extra and not requirement.marker.evaluate():
            continue
        there = version(requirement.name)
        found.append(
            Library(
                name=requirement.name,
                wanted=",".join(sorted((str(s) for s in requirement.specifier), reverse=True)),
                installed=there,
                is_fitting=there is not None and requirement.specifier.contains(there, prereleases=True),
                extra=extra,
            )
        )
    return sorted(found, key=lambda library: library.extra)


def extras() -> list[str]:
    return sorted(metadata.metadata("trimtab").get_all("Provides-Extra") or [])


def _belongs(requirement: Any, extra: str) -> bool:
    marker = requirement.marker
    return marker is not None and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""})


def version(name: str) -> str | None:
    """The installed version of a distribution, or None."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


# ------------------------------------------------------------------------------------------------------- another run
@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that another run had otherwise; None: it did not have it."""

    what: str
    theirs: Any
    ours: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherRun:
    """What a run that was made says of itself."""

    root: Path
    facts: Mapping[str, Mapping[str, Any]]
    """The parts of its run.json that have parts."""
    resolved: Mapping[str, Any]
    """Its newest configuration."""
    completion_length: float | None
    """Mean tokens of a completion in its last ten steps, if they were sampled."""


def other_run(root: Path) -> OtherRun:
    """A run to compare with.

    Raises:
        UserError: there is no run, or its files cannot be read.
    """
    import yaml

    directory = RunDirectory(root)
    if not directory.exists:
        raise UserError(f"--like {root}: no run was started here (there is no run.json)")
    try:
        facts = json.loads((root / "run.json").read_bytes())
        resolved = directory.newest_config()["resolved"]
        steps = journal.read(directory.journal).steps()[-10:]
        lengths = [s["metrics"]["length/mean"] for s in steps if "length/mean" in s["metrics"]]
        mean = sum(lengths) / len(lengths) if lengths else None
        found = {name: dict(value) for name, value in facts.items() if isinstance(value, dict)}
        return OtherRun(root=root, facts=found, resolved=dict(resolved), completion_length=mean)
    except (
        OSError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RecursionError,
        yaml.YAMLError,
        StorageError,
    ) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(f"--like {root}: its files cannot be read ({reason}); try `trimtab verify {root}`") from error


def against(
    other: OtherRun, *, config: configs.RunConfig, fingerprints: Mapping[str, str], numerics: Any
) -> list[Difference]:
    """How a run of this configuration, here and now, would differ from one that was made."""
    reason = "threads_by"  # why there are so many threads, not how many
    theirs = {part: {k: v for k, v in values.items() if k != reason} for part, values in other.facts.items()}
    ours = {
        "versions": {name: _now(name) for name in other.facts.get("versions", {})},
        "numerics": {name: value for name, value in asdict(numerics).items() if name != reason},
        "seeds": {"train": config.train.seed, "data": config.data.seed},
        "data_fingerprints": dict(fingerprints),
    }
    found = []
    for part, values in ours.items():
        for key, before, after in configs.differences(theirs.get(part, {}), values):
            if key:
                found.append(Difference(what=f"{part}.{key}", theirs=before, ours=after))
    for key, before, after in configs.differences(other.resolved, config.resolved):
        found.append(Difference(what=key, theirs=before, ours=after))
    return found


def _now(name: str) -> str | None:
    return platform.python_version() if name == "python" else version(name)
