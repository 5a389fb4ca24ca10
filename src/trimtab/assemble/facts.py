"""What run.json says of a run."""

from __future__ import annotations

import platform
import sys
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab import __version__
from trimtab.assemble.inputs import RowSets
from trimtab.assemble.numerics import Numerics
from trimtab.config import RunConfig

if TYPE_CHECKING:
    from trimtab.models.roles import InProcessModels
    from trimtab.models.scoring import ScoringModels


def describe(
    config: RunConfig,
    models: InProcessModels | ScoringModels,
    row_sets: RowSets,
    numerics: Numerics,
    ranks: int,
    counts: dict[str, int],
    parent: str,
) -> dict[str, Any]:
    """What run.json says of a run."""
    parameters = {role: sum(p.numel() for p in found) for role, found in models.parameters().items()}
    return {
        "algorithm": config.algorithm.name,
        "formula": config.algorithm.formula,
        "model": config.policy.model,
        "parent": str(Path(parent).parent) if parent.endswith("final") else None,
        "parameters": parameters,
        "data": {"train": config.data.train, "validation": config.data.validation, "rows": counts},
        "data_fingerprints": row_sets.fingerprints,
        "seeds": {"train": config.train.seed, "data": config.data.seed},
        "numerics": asdict(numerics),
        "ranks": ranks,
        "environment": {"chain": list(config.chain)},
        "versions": {
            "trimtab": __version__,
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "transformers", "safetensors", "pydantic")},
        },
        "platform": sys.platform,
    }
