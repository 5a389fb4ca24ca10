"""`trimtab reward check CONFIG FILE`: the rewards of a configuration over completions that are there already.

What their distribution is and how it has moved, `reward report` says.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimtab import config as configs
from trimtab.errors import DataError, Finding, UserError

if TYPE_CHECKING:
    from trimtab.data.rows import Row
    from trimtab.rewards.agreement import Auc
    from trimtab.rewards.scorer import Judged, Scorer
    from trimtab.types import Rollout

app = typer.Typer(help="Rewards: what they say of completions.", no_args_is_help=True)
LABEL = "label"
TOTAL = "sum"
MAX_FINDINGS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """What one reward, or their weighted sum, says of the file's completions."""

    name: str
    weight: float | None
    """None of the sum."""
    values: list[float | None]
    """None where it gave none, in the order of the rows."""
    errors: int = 0
    """Completions on which it failed; on the others without a value it abstained."""
    first_error: str = ""
    auc: Auc | None = None
    length: float | None = None
    """Rank correlation with the completion's tokens."""
    equal_groups: float | None = None
    """Share of prompts with several completions that all have one value."""

    @property
    def given(self) -> list[float]:
        return [value for value in self.values if value is not None]

    def record(self) -> dict[str, Any]:
        found = self.given
        return {
            "name": self.name,
            "weight": self.weight,
            "count": len(found),
            "abstained": len(self.values) - len(found) - self.errors,
            "errors": self.errors,
            "first_error": self.first_error,
            "mean": statistics.fmean(found) if found else None,
            "std": statistics.stdev(found) if len(found) > 1 else None,
            "min": min(found, default=None),
            "max": max(found, default=None),
            "groups_without_spread": self.equal_groups,
            "length_correlation": self.length,
            "auc": None if self.auc is None else asdict(self.auc),
            "values": self.values,
        }


@app.callback()
def reward() -> None:
    """Rewards: what they say of completions."""


@app.command("check", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def check(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(metavar="CONFIG", help="A YAML file with rewards.", show_default=False)],
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="JSONL: prompt, completion, what rewards read, label.", show_default=False),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="For programs; every value too.")] = False,
) -> None:
    """Rewards over a file of completions: values, spread, errors, agreement with labels, dependence on length.

    A row's `label` is true or 1 for a good completion, false or 0 for a bad one, or missing. Nothing is trained.
    KEY=VALUE (or --key value) behind the file overrides the configuration.
    """
    columns, rollouts, labels, said = judged_file(configs.load(path, context.args), file)
    columns = [_described(column, rollouts, labels) for column in columns]
    if as_json:
        counts = {"good": labels.count(True), "bad": labels.count(False), "unlabelled": labels.count(None)}
        found = {"file": file, "rows": len(rollouts), "labels": counts, "remarks": said}
        typer.echo(json.dumps(found | {"rewards": [column.record() for column in columns]}, indent=1))
    else:
        _show(file, columns, labels, said)


# ---------------------------------------------------------------------------------------------------------- reading
def judged_file(
    config: configs.RunConfig, file: str
) -> tuple[list[Column], list[Rollout], list[bool | None], list[str]]:
    """What each reward says of a file's completions, the completions, their labels, and lines about reward models."""
    rows, labels = _read(config, file)
    rollouts, scorer, said = _prepared(config, rows)
    try:
        judged = scorer.judge(rollouts)
    finally:
        scorer.close()
    return _columns(scorer, rollouts, judged), rollouts, labels, said


def _read(config: configs.RunConfig, file: str) -> tuple[Sequence[Row], list[bool | None]]:
    """The rows and their labels."""
    from trimtab.assemble import admission, inputs
    from trimtab.data import rows

    if not config.rewards:
        raise UserError(
            f"reward check: {config.algorithm.name} reads no rewards here; add rewards to an online algorithm"
        )
    admission.admit(config, {"FILE": file})
    found = rows.read(admission.find(config, file), config.data.columns, ("prompt", "completion"))
    findings = inputs.missing_columns(config, found)
    labels: list[bool | None] = []
    for row in found:
        value = row.values.get(LABEL)
        if value is not None and value not in (0, 1):
            what = f"`{LABEL}` is {value!r}, expected true, false, 1, 0 or none"
            findings.append(Finding(place=row.place, what=what))
        labels.append(None if value is None else bool(value))
    if findings:
        raise DataError(findings[:MAX_FINDINGS])
    return found, labels


def _prepared(config: configs.RunConfig, rows: Sequence[Row]) -> tuple[list[Rollout], Scorer, list[str]]:
    """The completions in ids of the policy's tokenizer, the scorer, and lines about reward models."""
    from trimtab import assemble
    from trimtab.assemble import judges
    from trimtab.assemble.numerics import choose_numerics
    from trimtab.models import loading

    config = replace(config, rewards=tuple(replace(spec, on_error="skip") for spec in config.rewards))
    said = judges.examine(replace(config, rewards=tuple(replace(spec, allow_weak=True) for spec in config.rewards)))
    tokenizer = loading.load_tokenizer(config.policy.model)
    rollouts = [_rollout(config, row, tokenizer) for row in rows]
    scorer = assemble.scorer_of(config)
    if scorer is None:
        raise UserError(f"reward check: {config.algorithm.name} reads no rewards")
    numerics = choose_numerics(config, loading.configuration(config.policy.model))
    said += judges.put_into(scorer, config, tokenizer, numerics)
    return rollouts, scorer, said


def _rollout(config: configs.RunConfig, row: Row, tokenizer: Any) -> Rollout:
    """A row's completion as if it had been sampled."""
    from trimtab.data.messages import MessageError
    from trimtab.data.prompts import demonstration_of, prompt_of
    from trimtab.types import Prompt, Rollout

    as_chat, turns = config.data.as_chat, row.values.get("messages")
    if turns is not None and isinstance(row.values["prompt"], list):  # a conversation: its last answer is judged
        values = {name: value for name, value in row.values.items() if name != "messages"}
        row = replace(row, values={**values, "prompt": turns[:-1], "completion": turns[-1]["content"]})
    text = row.values["completion"]
    try:
        prompt = prompt_of(row, tokenizer, as_chat=as_chat)
        tokens = demonstration_of(row, tokenizer, tokenizer.eos_token_id, as_chat=as_chat).completion
    except MessageError as fault:
        raise DataError([Finding(place=row.place, what=fault.what, hint=fault.hint)]) from None
    columns = {name: value for name, value in prompt.columns.items() if name not in ("completion", LABEL)}
    return Rollout(
        prompt=Prompt(id=prompt.id, text=prompt.text, tokens=prompt.tokens, columns=columns),
        draw=row.id,
        index=0,
        tokens=tokens,
        log_probs=(0.0,) * len(tokens),
        text=text,
        is_truncated=False,
        policy_version=0,
    )


# ---------------------------------------------------------------------------------------------------------- figures
def _columns(scorer: Scorer, rollouts: Sequence[Rollout], judged: Sequence[Judged]) -> list[Column]:
    found = [
        Column(name=name, weight=weight, values=j.values, errors=sum(j.failed), first_error=j.reason)
        for name, weight, j in zip(scorer.labels, scorer.weights, judged, strict=True)
    ]
    if len(found) > 1:
        rows = [scorer.combine(rollout, row, judged) for row, rollout in enumerate(rollouts)]
        failed = sum(any(j.failed[row] for j in judged) for row in range(len(rows)))
        values = [s.reward if s.is_scored else None for s in rows]
        found.append(Column(name=TOTAL, weight=None, values=values, errors=failed))
    return found


def _described(column: Column, rollouts: Sequence[Rollout], labels: Sequence[bool | None]) -> Column:
    """With what needs more than the values."""
    from trimtab.rewards import agreement

    whole = list(zip(column.values, rollouts, labels, strict=True))
    labelled = [(value, label) for value, _, label in whole if value is not None and label is not None]
    sized = [(value, float(len(rollout.tokens))) for value, rollout, _ in whole if value is not None]
    groups: dict[str, list[float]] = {}
    for value, rollout, _ in whole:
        if value is not None:
            groups.setdefault(rollout.prompt.text, []).append(value)
    several = [values for values in groups.values() if len(values) > 1]
    return replace(
        column,
        auc=agreement.auc([v for v, _ in labelled], [label for _, label in labelled]),
        length=agreement.rank_correlation([v for v, _ in sized], [size for _, size in sized]),
        equal_groups=sum(len(set(values)) == 1 for values in several) / len(several) if several else None,
    )


# ---------------------------------------------------------------------------------------------------------- showing
def _show(file: str, columns: Sequence[Column], labels: Sequence[bool | None], said: Sequence[str]) -> None:
    for line in said:
        typer.echo(line)
    good, bad, rest = labels.count(True), labels.count(False), labels.count(None)
    with_labels = f"{good:,} labelled good, {bad:,} bad" + (f", {rest:,} without a label" if rest else "")
    typer.echo(f"{file}: {len(labels):,} completions, {with_labels if good or bad else 'no labels'}\n")
    heads = ("reward", "weight", "values", "mean", "std", "min", "max", "AUC", "95 %", "length")
    table = [heads, *(_cells(column) for column in columns)]
    widths = [max(len(row[place]) for row in table) for place in range(len(heads))]
    for row in table:
        first, *others = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        typer.echo("  ".join([first.strip().ljust(widths[0]), *others]).rstrip())
    typer.echo("")
    for column in columns:
        for remark in _remarks(column):
            typer.echo(f"{column.name}: {remark}")
    typer.echo(
        "AUC: chance that a good completion is above a bad one; its interval is DeLong's. length: rank correlation"
    )


def _cells(column: Column) -> tuple[str, ...]:
    found, auc = column.record(), column.auc
    numbers = (_number(found[name]) for name in ("mean", "std", "min", "max"))
    weight = "" if column.weight is None else f"{column.weight:g}"
    interval = f"{auc.low:.3f} to {auc.high:.3f}" if auc is not None and auc.low is not None else "-"
    area = f"{auc.value:.3f}" if auc is not None else "-"
    length = "-" if column.length is None else f"{column.length:+.2f}"
    return (column.name, weight, f"{found['count']:,}", *numbers, area, interval, length)


def _number(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.4g}"


def _remarks(column: Column) -> list[str]:
    found = column.record()
    remarks = []
    if column.errors:
        because = f": {column.first_error}" if column.first_error else ""
        remarks.append(f"failed on {column.errors:,} completions{because}")
    if found["abstained"]:
        remarks.append(f"gave no value for {found['abstained']:,} completions")
    if found["count"] > 1 and found["min"] == found["max"]:
        remarks.append("all values are equal: there is nothing to learn from it here")
    elif column.equal_groups:
        remarks.append(f"equal for all completions of a prompt in {column.equal_groups:.0%} of prompts with several")
    return remarks
