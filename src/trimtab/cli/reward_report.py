"""`trimtab reward report RUN|CONFIG [FILE]`: how the values of rewards are spread, and how far they have moved."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimtab import config as configs
from trimtab.errors import DataError, Finding, UserError

if TYPE_CHECKING:
    from trimtab.rewards.distribution import Observed
    from trimtab.store.run_directory import RunDirectory

TOTAL = "sum"
WIDTH = 24
"""Characters of the longest bar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Set:
    """Completions with what each reward says of them."""

    name: str
    unit: str
    """Of their length."""
    rewards: dict[str, Observed]
    remarks: list[str] = field(default_factory=list)


def report(
    context: typer.Context,
    place: Annotated[
        Path, typer.Argument(metavar="RUN|CONFIG", help="A run, or a YAML file with rewards.", show_default=False)
    ],
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE]", help="JSONL of completions, or of pairs for a reward model.", show_default=False
        ),
    ] = None,
    against: Annotated[
        str | None, typer.Option("--against", metavar="FILE", help="An earlier set that FILE is compared with.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Distribution of rewards: mean, spread, quantiles, saturation, dependence on length; drift between two sets.

    Of a run that samples: its newest evaluation's completions against its first one's, as they were rewarded. Of a run of
    reward_model: its scores of data.validation, or of FILE, by chosen and rejected. Of a configuration: its rewards over
    the completions of FILE. KEY=VALUE behind the file overrides the configuration.
    """
    words = list(context.args)
    if file is not None and "=" in file and not Path(file).exists():
        words, file = [file, *words], None
    now, before = _sets(place, file, against, words)
    earlier = {} if before is None else before.rewards
    found = [_judged(name, values, earlier.get(name)) for name, values in now.rewards.items()]
    if as_json:
        names = {"now": now.name, "before": before.name if before else None, "unit_of_length": now.unit}
        remarks = [*now.remarks, *(before.remarks if before else [])]
        typer.echo(json.dumps({**names, "remarks": remarks, "rewards": found}, indent=1))
        return
    for line in dict.fromkeys([*now.remarks, *(before.remarks if before else [])]):
        typer.echo(line)
    _show(now, before, found)


# ---------------------------------------------------------------------------------------------------------- reading
def _sets(place: Path, file: str | None, against: str | None, words: Sequence[str]) -> tuple[Set, Set | None]:
    """The set that is reported on, and the one that it is compared with.

    Raises:
        UserError: there is nothing to report on.
        DataError: a file is not as it should be.
    """
    from trimtab.store.run_directory import RunDirectory
    from trimtab.types import Need

    directory = RunDirectory(place)
    if against is not None and file is None:
        raise UserError("--against: compared with what? Name the newer FILE before it")
    if not directory.exists:
        if place.is_dir():
            raise UserError(f"{place}: no run was started here (there is no run.json); name a run or a configuration")
        if file is None and place.is_file():
            raise UserError(f"reward report: {place} is a configuration; name the FILE with completions behind it")
        config = configs.load(place, words)
        assert file is not None  # a file that is not there could not be read
        return _of_rewards(config, file), None if against is None else _of_rewards(config, against)
    version = directory.newest_config()
    config = configs.from_mapping(dict(version["requested"]), words, folder=Path(version["folder"]))
    if config.need & Need.SCORES:
        newer = file or config.data.validation
        if newer is None:
            raise UserError(f"{place}: this reward model was trained without data.validation; name a FILE of pairs")
        return _of_reward_model(directory, config, [newer, *([against] if against else [])])
    if not config.need & Need.ROLLOUTS:
        raise UserError(
            f"{place}: a run of {config.algorithm.name} has no rewards; name a run that samples, or one of reward_model"
        )
    if file is not None:
        return _of_rewards(config, file), None if against is None else _of_rewards(config, against)
    return _of_samples(directory)


def _of_samples(directory: RunDirectory) -> tuple[Set, Set | None]:
    """The newest completions that a run has kept, and the first: of evaluations, else of training steps."""
    evaluated = sorted(directory.samples.glob("eval-*.jsonl"))
    trained = sorted(directory.samples.glob("step-*.jsonl"))
    if len(evaluated) > 1 or (evaluated and not trained):
        parts = [evaluated[-1:], evaluated[:1] if len(evaluated) > 1 else []]
    else:
        third = max(1, len(trained) // 3)
        parts = [trained[-third:], trained[:third] if len(trained) > 1 else []]
    if not parts[0]:
        raise UserError(f"{directory.samples}: this run has kept no completions yet; see observe.samples")
    now, before = (_kept(files) if files else None for files in parts)
    assert now is not None
    return now, before


def _kept(files: Sequence[Path]) -> Set:
    from trimtab.rewards.distribution import Observed
    from trimtab.store.recorder import read_samples

    samples = []
    for file in files:
        try:
            samples += read_samples(file)
        except (ValueError, TypeError) as error:
            raise DataError([Finding(place=str(file), what=f"is not as it was written: {error}")]) from error
    lengths = [float(len(s.completion)) for s in samples]
    names = list(dict.fromkeys(name for s in samples for name in s.reward_parts))
    rewards = {name: Observed(values=[s.reward_parts.get(name) for s in samples], lengths=lengths) for name in names}
    if len(names) != 1:
        rewards[TOTAL] = Observed(values=[s.reward for s in samples], lengths=lengths)
    steps = [file.stem.split("-")[1].lstrip("0") or "0" for file in files]
    kind = "evaluation" if files[0].name.startswith("eval") else "training"
    which = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    return Set(name=f"{kind}, {which}", unit="characters", rewards=rewards)


def _of_rewards(config: configs.RunConfig, file: str) -> Set:
    from trimtab.cli.reward import judged_file
    from trimtab.rewards.distribution import Observed

    columns, rollouts, labels, said = judged_file(config, file)
    lengths = [float(len(rollout.tokens)) for rollout in rollouts]
    rewards = {c.name: Observed(values=c.values, lengths=lengths, labels=labels) for c in columns}
    return Set(name=file, unit="tokens", rewards=rewards, remarks=said)


def _of_reward_model(
    directory: RunDirectory, config: configs.RunConfig, names: Sequence[str]
) -> tuple[Set, Set | None]:
    """The scores that a trained reward model gives to the two sides of pairs."""
    from trimtab.assemble.numerics import choose_numerics
    from trimtab.models import precision, scoring

    loaded = scoring.load(str(directory.root), seed=0)
    numerics = choose_numerics(config, loaded.model.config)
    used = precision.of_policy(config.policy)
    model = scoring.cast(loaded.model.requires_grad_(False), used).to(numerics.device)
    sets = []
    for name in names:
        rows, labels, remarks = _sides(config, name, loaded)
        scores = scoring.scores_of(
            model,
            [(*row.prompt.tokens, *row.completion) for row in rows],
            precision=used,
            micro_batch_tokens=numerics.micro_batch_tokens,
        )
        sets.append(_scored(name, scores, rows, labels, remarks))
    return sets[0], sets[1] if len(sets) > 1 else None


def _scored(name: str, scores: list[float], rows: list[Any], labels: list[bool | None], remarks: list[str]) -> Set:
    from trimtab.rewards.distribution import Observed

    lengths = [float(len(row.completion)) for row in rows]
    seen = Observed(values=scores, lengths=lengths, labels=labels)
    return Set(name=name, unit="tokens", rewards={"reward_model": seen}, remarks=remarks)


def _sides(config: configs.RunConfig, name: str, loaded: Any) -> tuple[list[Any], list[bool | None], list[str]]:
    """Both sides of every pair of a file, as a run reads them; chosen ones are labelled good."""
    from trimtab.assemble import admission
    from trimtab.data import judged, preferences
    from trimtab.data import rows as data_rows
    from trimtab.data.prompts import Limits

    admission.admit(config, {"FILE": name})
    rows = data_rows.read(admission.find(config, name), config.data.columns, preferences.PAIR, held_out=True)
    s = config.sampling
    limits = Limits(max_prompt_length=s.max_prompt_length, max_length=s.max_length, long_prompts=s.long_prompts)
    encoder = judged.Encoder(
        tokenizer=loaded.tokenizer, limits=limits, end_ids=loaded.eos_ids, as_chat=config.data.as_chat
    )
    pairs, left = judged.pairs(rows[: config.eval.prompts] if name == config.data.validation else rows, encoder)
    sides = [side for pair in pairs for side in (pair.chosen, pair.rejected)]
    labels: list[bool | None] = [True, False] * len(pairs)
    return sides, labels, [f"{name}: {left}"] if str(left) else []


# ---------------------------------------------------------------------------------------------------------- figures
def _judged(name: str, now: Observed, before: Observed | None) -> dict[str, Any]:
    from trimtab.rewards import distribution
    from trimtab.rules import language

    found, earlier = distribution.summary(now), None if before is None else distribution.summary(before)
    moved = None if before is None else distribution.drift(before, now)
    facts, spoken = distribution.figures_of(found, moved), language()
    return {
        "name": name,
        "now": asdict(found),
        "before": None if earlier is None else asdict(earlier),
        "drift": None if moved is None else asdict(moved),
        "findings": [{"name": f.name, "text": f.text.said(facts, spoken)} for f in distribution.findings(found, moved)],
    }


# ---------------------------------------------------------------------------------------------------------- showing
def _show(now: Set, before: Set | None, found: Sequence[dict[str, Any]]) -> None:
    typer.echo(f"now     {now.name}")
    if before is not None:
        typer.echo(f"before  {before.name}")
    heads = (
        "reward",
        "",
        "values",
        "mean",
        "std",
        "min",
        "5 %",
        "25 %",
        "50 %",
        "75 %",
        "95 %",
        "max",
        "at max",
        "length",
    )
    table: list[Sequence[str]] = [heads]
    for reward in found:
        for which in ("before", "now"):
            if reward[which] is not None:
                table.append((reward["name"], which, *_cells(reward[which])))
            for label in ("bad", "good") if which == "now" else ():
                if moments := reward[which][label]:
                    numbers = (f"{moments['count']:,}", _number(moments["mean"]), _number(moments["std"]))
                    table.append(("", label, *numbers, *[""] * 9))
    widths = [max(len(row[place]) for row in table) for place in range(len(heads))]
    typer.echo("")
    for row in table:
        cells = [c.ljust(w) if n < 2 else c.rjust(w) for n, (c, w) in enumerate(zip(row, widths, strict=True))]
        typer.echo("  ".join(cells).rstrip())
    for reward in found:
        _show_one(reward)
    typer.echo(f"\nat max: share within 1 % of the range of the largest. length: rank correlation with {now.unit}")
    if before is not None:
        typer.echo(
            "PSI: 0.1 is some drift, 0.25 a large one, if it is above its noise and chance is unlikely (p < 0.01)"
        )


def _cells(values: dict[str, Any]) -> tuple[str, ...]:
    quantiles = [_number(values["quantiles"].get(name)) for name in ("0.05", "0.25", "0.5", "0.75", "0.95")]
    share = "-" if values["at_max"] is None else f"{values['at_max']:.0%}"
    length = "-" if values["length_correlation"] is None else f"{values['length_correlation']:+.2f}"
    numbers = [_number(values[name]) for name in ("mean", "std", "min")]
    return (f"{values['count']:,}", *numbers, *quantiles, _number(values["max"]), share, length)


def _bar(share: float, largest: float) -> str:
    return f"{share:>4.0%} {'#' * round(WIDTH * share / largest):<{WIDTH}}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _show_one(reward: dict[str, Any]) -> None:
    moved = reward["drift"]
    if moved is not None:
        shift = "" if moved["shift"] is None else f", mean {moved['shift']:+.2f} standard deviations"
        level = "no" if moved["level"] == "none" else moved["level"]
        typer.echo(
            f"\n{reward['name']}: {level} drift: PSI {moved['psi']:.3f} (noise up to {moved['psi_noise']:.3f}), "
            f"KS {moved['ks']:.2f} (p {moved['ks_p']:.2g}){shift}"
        )
        typer.echo(f"{'':<24} {'before':<{WIDTH + 5}} now")
        largest = max([share for b in moved["bins"] for share in (b["before"], b["now"])])
        for b in moved["bins"]:
            bars = f"{_bar(b['before'], largest)} {_bar(b['now'], largest)}"
            typer.echo(f"  {_number(b['low']):>9} to {_number(b['high']):<9} {bars}".rstrip())
    for place, finding in enumerate(reward["findings"]):
        before = "" if place or moved is not None else "\n"
        typer.echo(f"{before}{reward['name']}: {finding['text']}")
