"""Trackio: a local database, a server or a Space, by TRACKIO_DIR, TRACKIO_SERVER_URL, TRACKIO_SPACE_ID; project `trimtab`.

A run is known by its name, so the name has the beginning of the run's id behind it. Trackio keeps every point that it is
told, also two of one step.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from trimtab.observe.trackers import Tracked
from trimtab.types import Sample

COLUMNS = ("prompt", "completion", "reward", "truncated", "answer")


class Adapter:
    def __init__(self) -> None:
        self._trackio: Any = None
        self._run: Any = None

    def start(self, run: Tracked) -> None:
        import trackio

        self._trackio = trackio
        name = run.remembered.get("name") or f"{run.name}-{run.run_id[:8]}"
        run.remember({"name": name})
        self._run = trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", "trimtab"),
            name=name,
            config={"run_id": run.run_id, **run.parameters},
            resume="allow",
            embed=False,
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def tell(self, step: int, kind: str, title: str, text: str) -> None:
        if kind != "event":
            level = self._trackio.AlertLevel.ERROR if kind == "alarm" else self._trackio.AlertLevel.WARN
            self._run.alert(f"{title} at step {step}", text=text, level=level)

    def show(self, step: int, samples: tuple[Sample, ...]) -> None:
        rows = [[s.prompt, s.completion, s.reward, s.is_truncated, s.answer] for s in samples]
        self._run.log({"samples": self._trackio.Table(columns=list(COLUMNS), data=rows)}, step=step)

    def went_back(self, step: int) -> None:
        """Nothing: both points of a step stay; config/version tells them apart."""

    def finish(self, outcome: str) -> None:
        self._run.finish()
