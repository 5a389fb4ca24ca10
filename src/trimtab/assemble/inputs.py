"""What a run reads before any model is loaded: rows and reward functions."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trimtab.assemble.admission import Admission, Tell, admit, find
from trimtab.assemble.given import NOTHING, Given, missing
from trimtab.assemble.numerics import available_cores
from trimtab.config import RunConfig
from trimtab.data import builtin, files, preferences, rows
from trimtab.data.columns import proposal
from trimtab.data.messages import kind
from trimtab.errors import ConfigError, DataError, Finding
from trimtab.rewards import rules
from trimtab.rewards.pool import Pool
from trimtab.rewards.scorer import Scorer
from trimtab.types import Need

NAMES = {"train": "prompts", "validation": "validation"}
"""How messages call rows that Python has given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSets:
    """The rows of a run, read and checked, not yet tokenised."""

    train: Sequence[rows.Row]
    validation: Sequence[rows.Row]
    fingerprints: dict[str, str]
    mixed: tuple[Sequence[rows.Row], ...] = ()
    """Of each part of `mix`."""
    admissions: tuple[Admission, ...] = ()
    """Of each file."""


def read_rows(config: RunConfig, given: Given = NOTHING, tell: Tell = lambda _: None) -> RowSets:
    """All rows of the run's files, training and validation in one pass.

    Args:
        config: checked.
        given: rows that stand in the place of files.
        tell: is told of each file whether it may be read, before any is.

    Raises:
        ConfigError: an object is to stand in the place of a file, and was not given.
        DataError: with up to twenty faults of each file, or every column that a reward reads and a file lacks.
    """
    if faults := missing(config, given):
        raise ConfigError(faults)
    required = required_columns(config.need)
    names = {"train": config.data.train}
    if config.data.validation is not None:
        names["validation"] = config.data.validation
    asked = {f"data.{part}": name for part, name in names.items() if part not in given.rows}
    asked |= {f"mix[{number}].data": part.spec.data for number, part in enumerate(config.mix)}
    admissions: list[Admission] = []

    def both(told: Admission) -> None:
        admissions.append(told)
        tell(told)

    admit(config, asked, both)
    found: dict[str, Sequence[rows.Row]] = {}
    findings: list[Finding] = []
    for part, name in names.items():
        held_out = part == "validation"
        try:
            if part in given.rows:
                found[part] = rows.parse(given.rows[part], NAMES[part], config.data.columns, required)
            else:
                found[part] = rows.read(find(config, name), config.data.columns, required, held_out=held_out)
        except DataError as error:
            findings += error.findings
    mixed, faults = _mixed_rows(config)
    findings += faults
    if not findings and config.need & Need.ROLLOUTS:
        findings = [finding for part in found.values() for finding in missing_columns(config, part)]
    if findings:
        raise DataError(findings)
    return RowSets(
        train=found["train"],
        validation=found.get("validation", [])[: config.eval.prompts],
        fingerprints={
            part: hashlib.sha256(given.rows[part]).hexdigest() if part in given.rows else fingerprint(config, name)
            for part, name in names.items()
        }
        | {f"mix[{n}]": fingerprint(config, part.spec.data) for n, part in enumerate(config.mix)},
        mixed=mixed,
        admissions=tuple(admissions),
    )


def _mixed_rows(config: RunConfig) -> tuple[tuple[Sequence[rows.Row], ...], list[Finding]]:
    """The rows of each part of `mix`, and the faults in their files."""
    found: list[Sequence[rows.Row]] = []
    findings: list[Finding] = []
    for part in config.mix:
        try:
            found.append(rows.read(find(config, part.spec.data), part.spec.columns, required_columns(part.need)))
        except DataError as error:
            findings += error.findings
    return tuple(found), findings


def required_columns(need: Need) -> tuple[str, ...]:
    """Our names of the columns that every row must have."""
    if need & Need.PAIRS:
        return preferences.PAIR
    if need & Need.LABELS:
        return preferences.LABELLED
    return ("prompt", "completion") if need & Need.DEMONSTRATIONS else ("prompt",)


def evaluation_interval(config: RunConfig, rows: int) -> int:
    """Steps between evaluations; of `epoch`, those that the training rows last for."""
    every = config.eval.every
    return every if isinstance(every, int) else -(-rows // config.train.prompts_per_step)


def fingerprint(config: RunConfig, name: str) -> str:
    """SHA-256 of a file's bytes, or of a built-in task's rows."""
    if name in builtin.NAMES:
        made = [repr(list(builtin.addition(held_out=part))) for part in (False, True)]
        return hashlib.sha256("".join(made).encode()).hexdigest()
    if name.startswith(files.HUB):
        return files.fingerprint(name)
    with Path(find(config, name)).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def missing_columns(config: RunConfig, found: Sequence[rows.Row]) -> list[Finding]:
    """For every column that a reward reads, the first row that lacks it, or has a list or an object there."""
    findings = []
    for spec in config.rewards:
        is_rule = spec.model is None and spec.name in rules.RULES
        for column in rules.columns_of(rules.make(spec.name, spec.options)) if is_rule else ():
            place = rows.first_without(found, column)
            if place is not None:
                there = next(row.values for row in found if row.place == place)
                what = f"no column `{column}`, which reward {spec.name} reads; found {', '.join(map(repr, there))}"
                hint = f"name the column that holds it: {proposal([column], list(there))}"
                findings.append(Finding(place=place, what=what, hint=hint))
            elif (nested := rows.first_nested(found, column)) is not None:
                what = f"`{column}` is {kind(nested.values[column])}, which reward {spec.name} cannot compare"
                findings.append(Finding(place=nested.place, what=what, hint="expected text or a number, or null"))
    return findings


def scorer_of(config: RunConfig, given: Given = NOTHING) -> Scorer | None:
    """The reward functions of a run that samples, imported; None for one that reads.

    Raises:
        RewardError: a function cannot be imported.
    """
    if not config.need & Need.ROLLOUTS:
        return None
    elsewhere = any(
        (s.name not in rules.RULES and s.name not in given.rewards) or s.name in rules.RUNS_ELSEWHERE
        for s in config.rewards
        if s.model is None
    )
    paths = [str(config.folder.resolve()), str(Path.cwd())]
    pool = Pool(max(1, min(4, available_cores() - 1)), paths=paths) if elsewhere else None
    scorer = Scorer(config.rewards, pool=pool, functions=given.rewards)
    scorer.load()
    return scorer
