"""What a run reads before any model is loaded: rows and reward functions."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from trimtab.assemble.numerics import available_cores
from trimtab.config import RunConfig
from trimtab.data import builtin, rows
from trimtab.errors import DataError, Finding
from trimtab.rewards import rules
from trimtab.rewards.pool import Pool
from trimtab.rewards.scorer import Scorer
from trimtab.types import Need


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSets:
    """The rows of a run, read and checked, not yet tokenised."""

    train: list[rows.Row]
    validation: list[rows.Row]
    fingerprints: dict[str, str]


def read_rows(config: RunConfig) -> RowSets:
    """All rows of the run's files, training and validation in one pass.

    Raises:
        DataError: with up to twenty faults of each file, or every column that a reward reads and a file lacks.
    """
    required = ("prompt", "completion") if config.need & Need.DEMONSTRATIONS else ("prompt",)
    names = {"train": config.data.train}
    if config.data.validation is not None:
        names["validation"] = config.data.validation
    found: dict[str, list[rows.Row]] = {}
    findings: list[Finding] = []
    for part, name in names.items():
        held_out = part == "validation"
        try:
            found[part] = rows.read(find(config, name), config.data.columns, required, held_out=held_out)
        except DataError as error:
            findings += error.findings
    if not findings and config.need & Need.ROLLOUTS:
        findings = [finding for part in found.values() for finding in _missing_columns(config, part)]
    if findings:
        raise DataError(findings)
    return RowSets(
        train=found["train"],
        validation=found.get("validation", [])[: config.eval.prompts],
        fingerprints={part: fingerprint(config, name) for part, name in names.items()},
    )


def find(config: RunConfig, name: str) -> str:
    """A file as it is named, else beside the configuration."""
    beside = config.folder / name
    return str(beside) if not Path(name).exists() and beside.exists() else name


def fingerprint(config: RunConfig, name: str) -> str:
    """SHA-256 of a file's bytes, or of a built-in task's rows."""
    if name in builtin.NAMES:
        made = [repr(list(builtin.addition(held_out=part))) for part in (False, True)]
        return hashlib.sha256("".join(made).encode()).hexdigest()
    with Path(find(config, name)).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _missing_columns(config: RunConfig, found: list[rows.Row]) -> list[Finding]:
    """For every column that a reward reads, the first row that lacks it."""
    findings = []
    for spec in config.rewards:
        for column in rules.columns_of(rules.make(spec.name, spec.options)) if spec.name in rules.RULES else ():
            row = next((r for r in found if column not in r.values), None)
            if row is not None:
                what = f"no column `{column}`, which reward {spec.name} reads; found {', '.join(map(repr, row.values))}"
                hint = f"name the column that holds it: data.columns: {{{column}: ...}}"
                findings.append(Finding(place=row.place, what=what, hint=hint))
    return findings


def scorer_of(config: RunConfig) -> Scorer | None:
    """The reward functions of a run that samples, imported; None for one that reads.

    Raises:
        RewardError: a function cannot be imported.
    """
    if not config.need & Need.ROLLOUTS:
        return None
    elsewhere = any(s.name not in rules.RULES or s.name in rules.RUNS_ELSEWHERE for s in config.rewards)
    paths = [str(config.folder.resolve()), str(Path.cwd())]
    pool = Pool(max(1, min(4, available_cores() - 1)), paths=paths) if elsewhere else None
    scorer = Scorer(config.rewards, pool=pool)
    scorer.load()
    return scorer
