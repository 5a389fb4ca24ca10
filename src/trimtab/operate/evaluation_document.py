"""What an evaluation is asked for, and what its metrics.json says of it before there are figures."""

from __future__ import annotations

import hashlib
import json
import math
import platform
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from trimtab import __version__
from trimtab.assemble import Assembled, RowSets
from trimtab.assemble.exam import Exam
from trimtab.errors import UserError
from trimtab.operate.subject import Subject
from trimtab.rollout import evaluation

MATTERS = ("trimtab", "torch", "transformers", "device", "threads")
"""What a last bit of a completion's probability may depend on."""
READ = ("preference", "kl", "reference", "sampling")
"""Sections that figures of rows that are read depend on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is wanted of an evaluation."""

    samples: int | None = None
    """Completions of each prompt, sampled; None: one, greedy."""
    ks: tuple[int, ...] = ()
    """Of pass@k and maj@k; none: 1 and the number of completions."""
    temperature: float | None = None
    """None: the run's."""
    top_p: float | None = None
    """None: the run's."""
    seed: int = 0
    right: float = 1.0
    """A completion is right if its reward reaches this."""
    by: str | None = None
    """A column of the data to break everything down by."""

    @property
    def count(self) -> int:
        """Completions of each prompt."""
        return self.samples or 1

    @property
    def wanted(self) -> tuple[int, ...]:
        return tuple(sorted(set(self.ks or (1, self.count))))

    def check(self) -> None:
        """
        Raises:
            UserError: a number is out of its range, or has no effect.
        """
        if self.samples is not None and self.samples < 1:
            raise UserError(f"--samples {self.samples}: expected 1 or more")
        if self.samples is None and (self.temperature is not None or self.top_p is not None):
            name = "--temperature" if self.temperature is not None else "--top-p"
            raise UserError(f"{name} has no effect on greedy completions; add --samples K to sample K of each prompt")
        if self.temperature is not None and not 0 < self.temperature < math.inf:
            hint = (
                "leave --samples out for greedy completions" if self.temperature == 0 else "expected a number above 0"
            )
            raise UserError(f"--temperature {self.temperature:g}: {hint}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UserError(f"--top-p {self.top_p:g}: expected a number above 0, 1 at most")
        if not math.isfinite(self.right):
            raise UserError(f"--right {self.right:g}: expected a finite number")
        if bad := [k for k in self.ks if not 1 <= k <= self.count]:
            few = (
                "one completion of each prompt is made" if self.count == 1 else f"{self.count} completions are sampled"
            )
            raise UserError(f"--k {bad[0]}: {few}; expected 1 to {self.count}, or --samples {max(self.ks)}")


def label_of(step: int | None) -> str:
    return "model" if step is None else f"step-{step}"


def digest(identity: Any) -> str:
    return hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()[:8]


def name_of(identity: dict[str, Any], step: int | None) -> str:
    """Of the directory: readable, and another for everything that the completions depend on."""
    sampled = identity["sampling"]
    how = "greedy" if sampled["greedy"] else f"{sampled['samples']}-samples"
    return f"{label_of(step)}-{how}-{digest(identity)}"


def begun(subject: Subject, exam: Exam, asked: Asked, identity: dict[str, Any], ranks: int) -> dict[str, Any]:
    """metrics.json before there are figures: everything that is needed to do it again."""
    config = subject.config
    return {
        "complete": False,
        "model": {"name": subject.name, "step": subject.step},
        "data": {"name": config.data.validation, "too_long": exam.left},
        "algorithm": config.algorithm.name,
        "right": asked.right,
        "k": list(asked.wanted),
        "reward_labels": list(exam.scorer.labels),
        "answers_read_by": exam.extraction,
        "majority": _majority(asked),
        "identity": json.loads(json.dumps(identity)),
        "made_with": {
            "trimtab": __version__,
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "transformers")},
            "device": exam.numerics.device,
            "threads": exam.numerics.threads,
            "processes": ranks,
        },
    }


def _majority(asked: Asked) -> str:
    if max(asked.wanted) == 1:
        return "none: one completion"
    if asked.count > evaluation.EXACT and any(1 < k < asked.count for k in asked.wanted):
        return f"mean over {evaluation.SUBSETS:,} subsets drawn with seed {asked.seed}; of all completions exact"
    return "exact: mean over all subsets"


def document_of_reading(subject: Subject, built: Assembled, rows: RowSets) -> dict[str, Any]:
    """As `begun`, for an algorithm that evaluates rows that are read."""
    from trimtab.models import lora

    config = subject.config
    resolved = {key: value for key, value in config.resolved.items() if key in READ}
    policy = {key: value for key, value in config.resolved["policy"].items() if key != "model"}
    return {
        "model": {"name": subject.name, "step": subject.step},
        "data": {"name": config.data.validation},
        "algorithm": config.algorithm.name,
        "identity": {
            "model": lora.fingerprint(built.models.model),
            "data": {
                "fingerprint": rows.fingerprints["validation"],
                "rows": len(rows.validation),
                "columns": dict(config.data.columns),
            },
            "algorithm": config.algorithm.name,
            "settings": json.loads(json.dumps({**resolved, "policy": policy}, default=str)),
        },
        "made_with": {name: built.facts[name] for name in ("versions", "numerics", "ranks")},
    }
