"""Builds a run from its configuration: the only room that knows every other."""

from __future__ import annotations

from trimtab.assemble.build import Assembled, build
from trimtab.assemble.given import NOTHING, Given
from trimtab.assemble.inputs import NAMES, RowSets, read_rows, scorer_of
from trimtab.assemble.numerics import Numerics, what_differs

__all__ = [
    "NAMES",
    "NOTHING",
    "Assembled",
    "Given",
    "Numerics",
    "RowSets",
    "build",
    "read_rows",
    "scorer_of",
    "what_differs",
]
