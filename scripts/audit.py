"""The supply chain: a lock with hashes, known faults of what is in it, a bill of materials. `make audit` runs all three.

    python scripts/audit.py lock       write requirements.lock from pyproject.toml and constraints.txt (asks the index)
    python scripts/audit.py check      whether requirements.lock is still theirs (asks nobody)
    python scripts/audit.py bom FILE   a bill of materials, CycloneDX 1.6 as JSON (asks nobody)
    python scripts/audit.py faults     known faults of what is locked (asks the advisory database)

Each ends with 1 and a line for each finding. What could not be looked up is a finding: a database that cannot be reached
does not say that nothing is known.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"
PINS = ROOT / "constraints.txt"
PROJECT = ROOT / "pyproject.toml"
MAX_DIRECT = 12
"""Packages that an installation without extras asks for."""


@dataclass(slots=True)
class Locked:
    """A package in the lock."""

    name: str
    version: str
    marker: str = ""
    hashes: list[str] = field(default_factory=list)


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def locked(text: str) -> list[Locked]:
    """The packages of a lock."""
    found: list[Locked] = []
    for line in text.replace("\\\n", " ").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        head, *hashes = re.split(r"\s+--hash=", line.strip())
        requirement, _, marker = head.partition(";")
        name, _, version = requirement.strip().partition("==")
        found.append(Locked(plain(name), version.strip(), marker.strip(), hashes))
    return found


def direct() -> list[str]:
    """What an installation without extras asks for."""
    words = tomllib.loads(PROJECT.read_text())["project"]["dependencies"]
    return [plain(re.split(r"[^A-Za-z0-9._-]", word)[0]) for word in words]


# ------------------------------------------------------------------------------------------------------------ commands
def lock() -> list[str]:
    command = [str(Path(sys.executable).with_name("uv")), "pip", "compile", "--quiet", "--universal"]
    command += ["--python-version", "3.11", "--generate-hashes", "--no-header", "--no-annotate"]
    command += ["--no-emit-index-url", "--no-emit-find-links", "-c", PINS.name, PROJECT.name, "-o", LOCK.name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        return [f"{LOCK.name} cannot be made: {done.stderr.strip()}"]
    head = "# Every package of an installation without extras, with the hashes of its files. Made by scripts/audit.py lock.\n"
    LOCK.write_text(head + LOCK.read_text())
    return check()


def check(text: str | None = None) -> list[str]:
    """Findings about a lock: its text, else that of the file."""
    if text is None and not LOCK.exists():
        return [f"{LOCK.name} is missing; python scripts/audit.py lock"]
    packages = locked(LOCK.read_text() if text is None else text)
    versions = {p.name: p.version for p in packages}
    pins = {plain(n): v for n, _, v in (line.partition("==") for line in PINS.read_text().splitlines()) if v}
    found = [f"{p.name}: no hash" for p in packages if not p.hashes]
    found += [
        f"{p.name}: {h} is no SHA-256"
        for p in packages
        for h in p.hashes
        if not re.fullmatch(r"sha256:[0-9a-f]{64}", h)
    ]
    found += [f"{name}: locked {v}, pinned {pins[name]}" for name, v in versions.items() if pins.get(name, v) != v]
    found += [f"{name}: is asked for and not locked" for name in direct() if name not in versions]
    if len(direct()) > MAX_DIRECT:
        found.append(f"{len(direct())} direct dependencies, at most {MAX_DIRECT}: {', '.join(direct())}")
    return found


def faults(lines: str | None = None) -> list[str]:
    """Known faults of what is locked, and what could not be looked up; `lines`: what pip-audit has said."""
    if lines is None:
        command = [
            str(Path(sys.executable).with_name("pip-audit")),
            "-r",
            str(LOCK),
            "--require-hashes",
            "--disable-pip",
        ]
        done = subprocess.run(
            [*command, "--format", "json", "--progress-spinner", "off"], capture_output=True, text=True, check=False
        )
        lines = done.stdout
        if not lines.strip():
            last = next(iter(done.stderr.strip().splitlines()[-1:]), f"exit code {done.returncode}")
            return [f"the advisory database was not asked: {last}"]
    told = {plain(entry["name"]): entry for entry in json.loads(lines)["dependencies"]}
    found, unknown, packages = [], [], locked(LOCK.read_text())
    for package in packages:
        entry = told.get(package.name)
        if entry is None or "skip_reason" in entry:
            unknown.append(package.name)
            continue
        for fault in entry["vulns"]:
            fixed = ", ".join(fault.get("fix_versions", [])) or "no version"
            found.append(f"{package.name} {package.version}: {fault['id']}, mended in {fixed}")
    if unknown:
        shown = ", ".join(unknown[:5]) + (", ..." if len(unknown) > 5 else "")
        found.append(f"the advisory database gave no answer about {len(unknown)} of {len(packages)} packages: {shown}")
    return found


def bom(path: Path) -> list[str]:
    """Write the bill of materials."""
    from cyclonedx.model import Property
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.output.json import JsonV1Dot6
    from packageurl import PackageURL

    version = tomllib.loads(PROJECT.read_text())["project"]["version"]
    root = Component(name="trimtab", version=version, type=ComponentType.APPLICATION, bom_ref="trimtab")
    made = Bom()
    made.metadata.component = root
    parts = []
    for package in locked(LOCK.read_text()):
        url = PackageURL("pypi", name=package.name, version=package.version)
        properties = [Property(name="trimtab:marker", value=package.marker)] if package.marker else []
        # every file of a release has a hash; which one is installed, the machine says
        properties += [Property(name="trimtab:hash", value=text) for text in package.hashes]
        part = Component(
            name=package.name,
            version=package.version,
            type=ComponentType.LIBRARY,
            purl=url,
            bom_ref=str(url),
            properties=properties,
            description=_summary(package.name),
        )
        made.components.add(part)
        if package.name in direct():
            parts.append(part)
    made.register_dependency(root, parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(JsonV1Dot6(made).output_as_string(indent=1))
    return []


def _summary(name: str) -> str | None:
    try:
        metadata: Any = importlib.metadata.metadata(name)
    except importlib.metadata.PackageNotFoundError:  # of another system
        return None
    return metadata["Summary"]


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["lock", "check", "bom", "faults"])
    parser.add_argument("file", nargs="?", type=Path, default=ROOT / "build" / "trimtab.cdx.json")
    asked = parser.parse_args(words)
    found = (
        bom(asked.file) if asked.command == "bom" else {"lock": lock, "check": check, "faults": faults}[asked.command]()
    )
    for line in found:
        print(line)
    if not found:
        print(f"{asked.command}: {'written to ' + str(asked.file) if asked.command == 'bom' else 'nothing found'}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
