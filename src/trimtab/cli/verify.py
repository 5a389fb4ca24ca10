"""`trimtab verify RUN`: whether a run's files are as they were written, and agree."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from trimtab.operate.verdict import Verdict


def verify(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Check every checksum of a run's checkpoints, its journal, and that they agree.

    Ends with 0 if all is as it was written, 4 if a checkpoint is damaged or none is good, 1 for anything else.
    """
    from trimtab.operate import verify as operate

    verdict = operate.verify(run)
    if as_json:
        typer.echo(json.dumps(_plain(run, verdict), indent=1))
    else:
        _show(run, verdict)
    raise typer.Exit(verdict.exit_code)


def _plain(run: Path, verdict: Verdict) -> dict[str, object]:
    return {
        "run": str(run),
        "ok": verdict.exit_code == 0,
        "exit_code": verdict.exit_code,
        "good": dict(verdict.lines),
        "findings": [{"part": part, **asdict(f)} for part, found in verdict.findings.items() for f in found],
        "notes": [asdict(note) for note in verdict.notes],
    }


def _show(run: Path, verdict: Verdict) -> None:
    for part, text in verdict.lines:
        typer.echo(f"ok    {part:<12} {text}")
    for note in verdict.notes:
        typer.echo(f"note  {note}")
    for part, found in verdict.findings.items():
        for finding in found:
            typer.echo(f"FAIL  {part:<12} {finding}")
    count = sum(map(len, verdict.findings.values()))
    if not count:
        typer.echo(f"{run} is as it was written")
        return
    typer.echo(f"{count} finding{'s' * (count > 1)}; {verdict.advice}")
