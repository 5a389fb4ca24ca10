"""`trimtab watch RUN`: the live view of a run, from its journal, in any terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

LOOK_SECONDS = 0.5


def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.", show_default=False)],
    once: Annotated[bool, typer.Option("--once", help="Show what there is and end.")] = False,
) -> None:
    """Follow a run until it ends; Ctrl-C ends the watching, not the run."""
    from trimtab.observe.live import LiveView
    from trimtab.store.run_directory import RunDirectory

    directory = RunDirectory.existing(run)
    resolved = directory.newest_config()["resolved"]
    view = LiveView(name=directory.root.name, algorithm=resolved["algorithm"], max_steps=resolved["train"]["max_steps"])
    try:
        for record in follow(directory, once=once):
            show(view, directory, record)
    finally:
        view.close()


def follow(directory: Any, *, once: bool) -> Iterator[Mapping[str, Any]]:
    """The journal's records, those that come while we look too, until nobody trains there any more."""
    from trimtab.store import journal

    seen = 0
    while True:
        is_running = directory.is_locked()
        records = journal.read(directory.journal).records
        yield from records[seen:]
        seen = len(records)
        if once or not is_running:
            return
        time.sleep(LOOK_SECONDS)


def show(view: Any, directory: Any, record: Mapping[str, Any]) -> None:
    """One record of the journal in the live view."""
    from trimtab.store.recorder import read_samples
    from trimtab.types import StepReport

    if record["kind"] == "event":
        view.event(record["event"], **{k: v for k, v in record.items() if k not in ("kind", "time", "event")})
        return
    phase = "eval" if record["kind"] == "eval" else "train"
    samples = read_samples(directory.samples / f"step-{record['step']:07}.jsonl") if phase == "train" else []
    view.record(StepReport(step=record["step"], metrics=record["metrics"], samples=tuple(samples), phase=phase))
