"""`trimtab rekey RUN --to REFERENCE`: another key for the checkpoints of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def rekey(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run that nobody trains.", show_default=False)],
    to: Annotated[
        str, typer.Option("--to", metavar="REFERENCE", help="'${env:NAME}' or '${file:PATH}': where the new key is.")
    ],
    old: Annotated[
        str | None,
        typer.Option("--from", metavar="REFERENCE", help="Where the present key is, if not where the run says."),
    ] = None,
) -> None:
    """Encrypt every checkpoint of a run with another key; plain ones for the first time.

    If it is interrupted, give the same command again. Old bytes are deleted, not overwritten on the disk.
    """
    from trimtab.operate import rekey as operate

    done = operate.rekey(run, to, old=old, say=typer.echo)
    if done.is_final_removed:
        typer.echo(
            f"{run / 'final'} held plain weights and is removed; `trimtab export {run} --to DIR` makes them again"
        )
    already = f", {done.already} were before" if done.already else ""
    typer.echo(f"{done.changed} checkpoints are under the key of {to} now{already}; the run's configuration names it")
    typer.echo("let the file that you train with name it too: checkpoint.encrypt")
