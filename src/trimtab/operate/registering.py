"""A run that trains, in the registry of the directory that it lies in. Nothing that goes wrong here ends or delays a run."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from trimtab.errors import UserError
from trimtab.store.run_directory import RunDirectory

SECONDS = 5.0
"""That training waits for other processes, at most."""
_said: set[Path] = set()
"""Runs of which this process has said that they could not be registered."""


def register(directory: RunDirectory, say: Callable[[str], None]) -> bool:
    """Put a run into the registry of a directory above it; where there is none, only if it lies in `runs/`.

    Args:
        directory: of the run; one that was not begun is none.
        say: is told why it could not be done, once.
    Returns:
        Whether it was done.
    """
    try:
        return _registered(directory)
    except Exception as error:
        if directory.root not in _said:
            _said.add(directory.root)
            say(f"warning: {directory.root} is not in the registry ({error}); `trimtab runs list` looks at it again")
        return False


def _registered(directory: RunDirectory) -> bool:
    from trimtab.store.registry import Registry
    from trimtab.store.registry_names import DEPTH, NAME, VARIABLE, Root
    from trimtab.store.registry_schema import FILE

    if not directory.exists:
        return False
    place = directory.root.resolve()
    above, usual = place.parents[:DEPTH], Path(os.environ.get(VARIABLE) or "runs").resolve()
    found = next((p for p in above if (p / FILE).is_file()), usual if usual in above else None)
    if found is None:
        return False
    if not all(map(NAME.fullmatch, place.relative_to(found).parts)):
        raise UserError("its path has more than letters, digits, `.`, `_` and `-` in it")
    root = Root(found)
    with closing(Registry(root, lambda _: None, seconds=SECONDS)) as registry:
        registry.register(root.name_of(str(place)))
    return True
