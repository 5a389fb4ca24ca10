"""`trimtab compare CONFIG --vary KEY=A,B`: the same run with one thing different, and what that was worth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def compare(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(metavar="CONFIG", help="A YAML file.", show_default=False)],
    vary: Annotated[
        list[str], typer.Option("--vary", metavar="KEY=A,B,C", help="What differs; several are crossed.")
    ] = [],  # noqa: B006 - typer reads it
    seeds: Annotated[int, typer.Option("--seeds", help="Runs of each arm; seeds follow train.seed.")] = 3,
    jobs: Annotated[int, typer.Option("--jobs", help="Runs at a time.")] = 1,
    budget: Annotated[
        str | None, typer.Option("--budget", metavar="KIND=N", help="steps, samples, tokens or seconds of a run.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--to", help="Its directory; default runs/compare-<name of the file>.")
    ] = None,
    size: Annotated[float, typer.Option("--size", help="A difference worth seeing, for the number of seeds.")] = 0.05,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Train arms that differ in one thing, judge them on the same prompts, and say how sure that is.

    KEY=VALUE behind the file sets what all arms have in common. The same command goes on with what was interrupted.
    """
    from trimtab.compare import comparison
    from trimtab.compare.plan import Budget
    from trimtab.operate import finish

    root = to or Path("runs") / f"compare-{path.stem}"
    values = comparison.compare(
        path,
        context.args,
        vary,
        seeds=seeds,
        root=root,
        jobs=jobs,
        budget=None if budget is None else Budget.read(budget),
        size=size,
        say=(lambda _: None) if as_json else lambda line: typer.echo(line),
    )
    if as_json:
        typer.echo(json.dumps(values, indent=1, ensure_ascii=False))
        return
    typer.echo(f"\n{values['headline']}\n")
    for pair in values["pairs"]:
        typer.echo(f"  {pair['said']}")
    for remark in values["remarks"]:
        typer.echo(f"  {remark}")
    typer.echo(f"\nreport  {finish.relative(root / 'report.html')}")
