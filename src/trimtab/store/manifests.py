"""A checkpoint's manifest, read as what anybody may have written: only what it should be, naming only what lies beside it.

Checksums find damage. They do not say that somebody who could write the files meant well, since he could write the
manifest too; so nothing that a manifest says is done before it was looked at.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trimtab import untrusted
from trimtab.untrusted import HarmError

NAME = "manifest.json"
STATE = "state.json"
MOMENTS = "optimizer.safetensors"
MAX_MANIFEST = 16 << 20
MAX_STATE = 256 << 20
"""Bytes of `state.json`, which holds completions that were sampled and not trained on yet."""


def parsed(path: Path) -> Mapping[str, Any] | None:
    """The JSON object in a file; None if there is none. `is_one` says whether it is a manifest of this format."""
    try:
        found = untrusted.json_of(path, MAX_MANIFEST)
    except (OSError, HarmError):
        return None
    return found if isinstance(found, dict) else None


def checksum(manifest: Mapping[str, Any]) -> str:
    """SHA-256 over everything else in a manifest."""
    rest = {name: value for name, value in manifest.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def is_one(found: Mapping[str, Any]) -> bool:
    """Whether it has what a manifest has, each of its kind."""
    files, metrics = found.get("files"), found.get("metrics")
    return (
        isinstance(files, dict)
        and all(_is_entry(entry) for entry in files.values())
        and isinstance(metrics, dict)
        and all(isinstance(value, int | float) for value in metrics.values())
        and isinstance(found.get("encryption", {}), dict)
    )


def _is_entry(entry: Any) -> bool:
    return isinstance(entry, dict) and type(entry.get("bytes")) is int and isinstance(entry.get("sha256"), str)


def harm(place: Path, manifest: Mapping[str, Any]) -> str | None:
    """What means harm in the names that a manifest has, in words; no file was opened by then.

    Args:
        place: the checkpoint's directory.
        manifest: of `parsed`.
    """
    if manifest.get("resumable", True) is True:
        for name in (STATE, MOMENTS):
            if name not in manifest["files"]:
                return f"{place / NAME} names no {name}"
    for name in manifest["files"]:
        try:
            untrusted.refuse_name(name)
        except HarmError as error:
            return f"{place / NAME} {error}"
        try:
            if name.endswith(untrusted.PICKLED):
                return f"{place / name} is pickled, which can run code when it is read, and which no checkpoint has"
            untrusted.refuse_link(place, name)
            if name == STATE:
                untrusted.refuse_size(place / name, MAX_STATE)
        except HarmError as error:
            return f"{place / name} {error}"
        except OSError:
            continue  # that it is not there, whoever compares sizes says
    return None


def harm_inside(place: Path, name: str) -> str | None:
    """What means harm in a file that is as its manifest says, in words."""
    try:
        if name.endswith(".safetensors"):
            untrusted.refuse_header(place / name)
        elif name == STATE and not isinstance(untrusted.json_of(place / name, MAX_STATE), dict):
            return f"{place / name} is no JSON object"
    except HarmError as error:
        return f"{place / name} {error}"
    return None
