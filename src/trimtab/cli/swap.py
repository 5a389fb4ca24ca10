"""`trimtab swap RUN KEY=VALUE ...`: another algorithm or other coefficients for a job that runs."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from trimtab.config import document

TIMEOUT = Annotated[
    float, typer.Option("--timeout", min=0.1, help="Seconds to wait for the running job's next step boundary.")
]


def swap(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.", show_default=False)],
    timeout: TIMEOUT = 600.0,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Change the algorithm or coefficients of a running job at its next step; weights, optimiser and data go on.

    trimtab swap runs/a algorithm=gspo policy.clip_low=3e-4 policy.clip_high=4e-4
    """
    from trimtab.errors import UserError
    from trimtab.operate import asking
    from trimtab.store.requests import Request
    from trimtab.store.run_directory import RunDirectory

    directory = RunDirectory.existing(run)
    changes = {".".join(map(str, key)): value for key, value, _ in document.parse_overrides(context.args)}
    if not changes:
        raise UserError("nothing to change: give KEY=VALUE, such as algorithm=gspo or optim.learning_rate=1e-6")
    before = directory.newest_config()["version"]
    found = asking.ask(directory, Request(kind="swap", changes=changes), timeout=timeout)
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=1))
        return
    typer.echo(found.message)
    typer.echo(f"to undo it: trimtab rollback {run} --config {before}")
