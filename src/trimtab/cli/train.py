"""`trimtab train CONFIG`: start a run, or go on with it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from trimtab import config as configs
from trimtab.errors import UserError


def train(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(metavar="CONFIG", help="A YAML file.", show_default=False)],
    run_dir: Annotated[
        Path | None, typer.Option("--run-dir", help="Where the run lives; default runs/<name of the file>.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over; a run that is there gets another name.")] = False,
    supervise: Annotated[
        bool,
        typer.Option("--supervise", help="Start it again when it is lost (exit codes 5, 6, a signal) or preempted."),
    ] = False,
    max_restarts: Annotated[
        int | None,
        typer.Option(
            "--max-restarts", min=0, help="With --supervise: so often in a row without a new checkpoint. [default: 5]"
        ),
    ] = None,
) -> None:
    """Train. The same command goes on with a run that was interrupted.

    KEY=VALUE (or --key value) behind the file overrides it: algorithm=ppo optim.learning_rate=1e-5
    """
    if supervise:
        root = run_dir or Path("runs") / path.stem
        raise typer.Exit(_supervised(path, context.args, root, fresh=fresh, max_restarts=max_restarts))
    if max_restarts is not None:
        raise UserError("--max-restarts: only --supervise starts a run again; give both, or neither")
    from trimtab.cluster import local
    from trimtab.cluster.torchrun import joined, refuse_more_than_devices
    from trimtab.store.run_directory import RunDirectory

    directory = RunDirectory(run_dir or Path("runs") / path.stem)
    try:
        config = configs.load(path, context.args)
        is_launcher = local.starts_processes(config.cluster, path)
        refuse_more_than_devices()
    except Exception as error:
        from trimtab.operate import start

        if run_dir is not None:
            directory.create()
        start.write_failure(directory, error)
        raise
    if is_launcher:
        command = _command(path, context.args, directory.root) + (["--fresh"] if fresh else [])
        raise typer.Exit(local.launch(command, directory, config.cluster.processes))
    from trimtab.operate import start

    with joined():
        start.train_in(config, directory, fresh=fresh)


def _supervised(path: Path, words: list[str], root: Path, *, fresh: bool, max_restarts: int | None) -> int:
    """The same command as a process of its own, under a supervisor."""
    from trimtab.cluster.torchrun import is_started_by_torchrun
    from trimtab.operate import supervise
    from trimtab.store.run_directory import RunDirectory

    if is_started_by_torchrun() or "TORCHELASTIC_RUN_ID" in os.environ:
        what = "--supervise: this process was started by torchrun, which watches all of them"
        raise UserError(f"{what}; leave --supervise out and give torchrun --max-restarts=N")
    if not supervise.can_tie():
        print("if the supervisor is killed, the training process goes on: only Linux can end it too", file=sys.stderr)
    command = _command(path, words, root)
    patience = supervise.Patience() if max_restarts is None else supervise.Patience(max_restarts=max_restarts)
    return supervise.supervise(command, RunDirectory(root), once=["--fresh"] if fresh else [], patience=patience)


def _command(path: Path, words: list[str], root: Path) -> list[str]:
    """The same command without what is the supervisor's or said once."""
    return [sys.executable, "-m", "trimtab", "train", str(path), "--run-dir", str(root), *words]
