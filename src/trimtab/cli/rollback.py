"""`trimtab rollback RUN`: go on from an earlier checkpoint, or with an earlier configuration."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from trimtab.cli.swap import TIMEOUT
from trimtab.config import document


def rollback(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.", show_default=False)],
    to: Annotated[int | None, typer.Option("--to", min=0, help="The step of a checkpoint.", show_default=False)] = None,
    version: Annotated[
        int | None, typer.Option("--config", min=1, help="A configuration's number.", show_default=False)
    ] = None,
    timeout: TIMEOUT = 600.0,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Go back to a checkpoint with the configuration of its time, or put a configuration back; KEY=VALUE changes it.

    What came after the checkpoint is kept in RUN/branches. A running job goes back at its next step, another one when it
    is started again by the command that started it.
    """
    from trimtab.errors import UserError
    from trimtab.operate import asking
    from trimtab.store.requests import Request
    from trimtab.store.run_directory import RunDirectory

    directory = RunDirectory.existing(run)
    if (to is None) == (version is None):
        versions = ", ".join(str(int(p.stem)) for p in directory.config_versions())
        steps = ", ".join(sorted((p.name for p in directory.checkpoints.iterdir() if p.name.isdigit()), key=int))
        raise UserError(f"give --to STEP (there are {steps or 'none'}) or --config VERSION (there are {versions})")
    changes = {".".join(map(str, key)): value for key, value, _ in document.parse_overrides(context.args)}
    found = asking.ask(directory, Request(kind="rollback", changes=changes, to=to, version=version), timeout=timeout)
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=1))
        return
    typer.echo(found.message)
