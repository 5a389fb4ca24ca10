"""Builds a run from its configuration: the only room that knows every other."""

from __future__ import annotations

from trimtab.assemble.admission import Admission, Tell
from trimtab.assemble.build import Assembled, build, evaluation_metric
from trimtab.assemble.given import NOTHING, Given
from trimtab.assemble.inputs import NAMES, RowSets, read_rows, scorer_of
from trimtab.assemble.numerics import Numerics, what_differs
from trimtab.assemble.watching import exporter_of

__all__ = [
    "NAMES",
    "NOTHING",
    "Admission",
    "Assembled",
    "Given",
    "Numerics",
    "RowSets",
    "Tell",
    "build",
    "evaluation_metric",
    "exporter_of",
    "read_rows",
    "scorer_of",
    "what_differs",
]
