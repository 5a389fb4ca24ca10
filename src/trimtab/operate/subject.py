"""The model that an evaluation is of: a run at a step, or a model by its name; of an encrypted run a copy in plain."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from trimtab.config import RunConfig
from trimtab.errors import UserError
from trimtab.store import encryption
from trimtab.store.run_directory import RunDirectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The model that is evaluated."""

    config: RunConfig
    """With the model in `policy.model`, in plain."""
    name: str
    """What it is called: a run, a directory, a hub id."""
    step: int | None
    """Of the checkpoint; None for a model that is of no run."""

    def __str__(self) -> str:
        return self.name if self.step is None else f"{self.name} at step {self.step:,}"


def model_of_run(run: RunDirectory, checkpoint: int | None) -> str:
    """What `policy.model` is for a run: its final model, or that of a checkpoint.

    Raises:
        UserError: there is no such checkpoint.
    """
    if checkpoint is None:
        return str(run.root)
    model = run.checkpoints / str(checkpoint) / "policy"
    if not model.is_dir():
        there = sorted(int(p.name) for p in run.checkpoints.iterdir() if p.name.isdigit())
        raise UserError(f"{run.root}: no checkpoint of step {checkpoint}; there are {', '.join(map(str, there))}")
    return str(model)


@contextmanager
def opened(config: RunConfig, run: RunDirectory | None, checkpoint: int | None) -> Iterator[Subject]:
    """The model of a run, or of the configuration if there is no run; readable for as long as it lasts.

    Args:
        config: with the model in `policy.model`.
        run: whose model that is.
        checkpoint: a step of it; None for its final model.
    """
    if run is None:
        yield Subject(config=config, name=config.policy.model, step=None)
        return
    step = run.facts().get("final_step") if checkpoint is None else checkpoint
    if step is None or not encryption.is_encrypted(run.checkpoints / str(step)):
        yield Subject(config=config, name=str(run.root), step=step)
        return
    with encryption.opened(run.checkpoints / str(step), encryption.vault_of_run(run), ("policy/",)) as plain:
        readable = replace(config, policy=replace(config.policy, model=str(plain / "policy")))
        yield Subject(config=readable, name=str(run.root), step=step)


def run_and_step(text: str) -> tuple[RunDirectory | None, int | None]:
    """The run that `RUN` or `RUN:STEP` names, and the step; no run if it is the name of a model.

    >>> run_and_step("builtin:tiny")
    (None, None)
    """
    if (run := RunDirectory(Path(text))).exists:
        return run, None
    head, colon, step = text.rpartition(":")
    if colon and step.isdigit() and (run := RunDirectory(Path(head))).exists:
        return run, int(step)
    return None, None
