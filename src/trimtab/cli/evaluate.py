"""`trimtab eval CONFIG|RUN`: the evaluation alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trimtab import config as configs
from trimtab.errors import UserError

if TYPE_CHECKING:
    from trimtab.assemble import RowSets
    from trimtab.store.run_directory import RunDirectory


def evaluate(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(metavar="CONFIG|RUN", help="A YAML file or a run.", show_default=False)],
    checkpoint: Annotated[int | None, typer.Option("--checkpoint", help="A step of the run; default its best.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Evaluate a run's model, or the model of a configuration, on data.validation."""
    import tempfile

    from trimtab import assemble
    from trimtab.cluster.torchrun import joined
    from trimtab.store.run_directory import RunDirectory
    from trimtab.train.control import NoControl

    config = _config_of(path, checkpoint, context.args)
    if config.data.validation is None:
        raise UserError("data.validation is not set: there is nothing to evaluate on")
    run = RunDirectory(path)
    with joined(), tempfile.TemporaryDirectory() as scratch, _in_plain(config, run, checkpoint) as readable:
        directory = RunDirectory(Path(scratch) / "run")
        directory.create()
        built = assemble.build(readable, directory, NoControl(), row_sets=_rows(config, run))
        try:
            report = built.run.evaluator.evaluate_if_due(0, last=True)
        finally:
            built.close()
    if report is None:
        raise UserError(f"data.validation: {config.data.validation} has no rows to evaluate on")
    if as_json:
        typer.echo(json.dumps(dict(report.metrics), indent=1))
        return
    typer.echo(f"{config.policy.model} on {config.data.validation}")
    for name, value in report.metrics.items():
        typer.echo(f"  {name:<28} {value:.4f}")


@contextmanager
def _in_plain(config: configs.RunConfig, run: RunDirectory, checkpoint: int | None) -> Iterator[configs.RunConfig]:
    """The configuration with a model that can be read: of an encrypted run a copy, for as long as it lasts."""
    from trimtab.store import encryption

    step = (run.facts().get("final_step") if checkpoint is None else checkpoint) if run.exists else None
    if step is None or not encryption.is_encrypted(run.checkpoints / str(step)):
        yield config
        return
    with encryption.opened(run.checkpoints / str(step), encryption.vault_of_run(run), ("policy/",)) as plain:
        yield replace(config, policy=replace(config.policy, model=str(plain / "policy")))


def _rows(config: configs.RunConfig, run: RunDirectory) -> RowSets:
    """What is evaluated on; of a run, each file stands in its audit log."""
    from trimtab import assemble
    from trimtab.operate import audited

    told: list[assemble.Admission] = []
    try:
        return assemble.read_rows(config, tell=told.append)
    finally:
        for found in told if run.exists else ():
            audited.note_if_possible(run, "eval", key=found.key, place=found.place, allowed=found.is_allowed)


def _config_of(path: Path, checkpoint: int | None, words: list[str]) -> configs.RunConfig:
    from trimtab.store.run_directory import RunDirectory

    directory = RunDirectory(path)
    if not directory.exists:
        return configs.load(path, words)
    if checkpoint is not None:
        model = directory.checkpoints / str(checkpoint) / "policy"
        if not model.is_dir():
            there = sorted(int(p.name) for p in directory.checkpoints.iterdir() if p.name.isdigit())
            raise UserError(f"{path}: no checkpoint of step {checkpoint}; there are {', '.join(map(str, there))}")
    else:
        model = path
    version = directory.newest_config()
    requested = dict(version["requested"])
    requested["policy"] = {**requested.get("policy", {}), "model": str(model)}
    return configs.from_mapping(requested, words, folder=Path(version["folder"]))
