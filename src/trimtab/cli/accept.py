"""`trimtab accept RUN`: the acceptance list as pass or fail, with figures."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer


def accept(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Hold a run against the acceptance list; exit code 1 if a line fails."""
    from trimtab.operate import accept as acceptance
    from trimtab.store.run_directory import RunDirectory

    directory = RunDirectory.existing(run)
    found = acceptance.accept(directory)
    failed = [check for check in found if check.state == "FAIL"]
    if as_json:
        typer.echo(json.dumps([asdict(check) for check in found], indent=1))
    else:
        for check in found:
            typer.echo(f"{check.state:<5} {check.name:<34} {check.seen:<40} {check.limit}")
        typer.echo(f"{'not accepted' if failed else 'accepted'}: {len(failed)} of {len(found)} fail")
    if failed:
        raise typer.Exit(1)
