"""`trimtab train CONFIG`: start a run, or go on with it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trimtab import config as configs


def train(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(metavar="CONFIG", help="A YAML file.", show_default=False)],
    run_dir: Annotated[
        Path | None, typer.Option("--run-dir", help="Where the run lives; default runs/<name of the file>.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over; a run that is there gets another name.")] = False,
) -> None:
    """Train. The same command goes on with a run that was interrupted.

    KEY=VALUE (or --key value) behind the file overrides it: algorithm=ppo optim.learning_rate=1e-5
    """
    from trimtab.cluster.torchrun import joined
    from trimtab.operate import start
    from trimtab.store.run_directory import RunDirectory

    directory = RunDirectory(run_dir or Path("runs") / path.stem)
    try:
        config = configs.load(path, context.args)
    except Exception as error:
        if run_dir is not None:
            directory.create()
        start.write_failure(directory, error)
        raise
    with joined():
        start.train_in(config, directory, fresh=fresh)
