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
    """All rows of the run's files.

    Raises:
        DataError: with up to twenty faults of each file.
    """
    required = ["prompt"]
    if config.need & Need.DEMONSTRATIONS:
        required.append("completion")
    train = _read(config, config.data.train, tuple(required), held_out=False)
    validation: list[rows.Row] = []
    if config.data.validation is not None:
        validation = _read(config, config.data.validation, tuple(required), held_out=True)[: config.eval.prompts]
    if config.need & Need.ROLLOUTS:
        _check_reward_columns(config, train)
    names = {"train": config.data.train, "validation": config.data.validation}
    prints = {part: fingerprint(config, name) for part, name in names.items() if name is not None}
    return RowSets(train=train, validation=validation, fingerprints=prints)


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


def _read(config: RunConfig, name: str, required: tuple[str, ...], *, held_out: bool) -> list[rows.Row]:
    return rows.read(find(config, name), config.data.columns, required, held_out=held_out)


def _check_reward_columns(config: RunConfig, found: list[rows.Row]) -> None:
    for spec in config.rewards:
        if spec.name not in rules.RULES:
            continue
        for column in rules.columns_of(rules.make(spec.name, spec.options)):
            row = next((r for r in found if column not in r.values), None)
            if row is not None:
                what = f"no column `{column}`, which reward {spec.name} reads; found {', '.join(map(repr, row.values))}"
                hint = f"name the column that holds it: data.columns: {{{column}: ...}}"
                raise DataError([Finding(place=row.place, what=what, hint=hint)])


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
