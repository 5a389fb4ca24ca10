"""The configuration of a run: read, checked in one pass, resolved.

    RunConfig = algorithm + the sections that rooms and the algorithm declare, each key at its vetted default

Every fault is found at once, each at its `file:line` with what is allowed. A key that the chosen algorithm does not read
is accepted in a file and listed, so that one word switches the algorithm; on the command line it is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trimtab.config import document as documents
from trimtab.config.document import Document, Key
from trimtab.config.resolver import Resolver
from trimtab.config.run_config import RunConfig
from trimtab.errors import ConfigError

__all__ = ["ConfigError", "RunConfig", "differences", "from_mapping", "load", "may_change", "resolve"]

MAY_CHANGE = (
    *("train.max_steps", "eval", "checkpoint", "observe", "guard", "cluster"),
    *("reference.cache", "train.micro_batch_tokens", "policy.gradient_checkpointing"),
)
"""What a continued run may set anew: its limits, and what only memory and speed depend on; anything else would make it
another run."""


def load(path: str | Path, overrides: Iterable[str] = ()) -> RunConfig:
    """The configuration of a file with the command line's words over it.

    Raises:
        ConfigError: with every fault that one pass finds.
    """
    return resolve(documents.read(path), documents.parse_overrides(overrides))


def from_mapping(values: Mapping[str, Any], overrides: Iterable[str] = (), *, folder: Path | None = None) -> RunConfig:
    """The configuration that a dict describes; `folder` is where its relative paths are looked for too."""
    return resolve(documents.from_mapping(values, folder=folder), documents.parse_overrides(overrides))


def resolve(document: Document, overrides: list[tuple[Key, Any, str]]) -> RunConfig:
    return Resolver(document, overrides).result()


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """(dotted key, before, after) of everything that differs; `None` stands for a key that is not there."""
    a, b = dict(_flat(before)), dict(_flat(after))
    return [(key, a.get(key), b.get(key)) for key in sorted({*a, *b}) if a.get(key) != b.get(key)]


def may_change(key: str) -> bool:
    """Whether a continued run may have another value there."""
    return any(key == allowed or key.startswith(allowed + ".") for allowed in MAY_CHANGE)


def _flat(values: Any, prefix: str = "") -> Iterable[tuple[str, Any]]:
    if isinstance(values, Mapping) and values:
        for name, value in values.items():
            yield from _flat(value, f"{prefix}.{name}" if prefix else str(name))
    else:
        yield prefix, values
