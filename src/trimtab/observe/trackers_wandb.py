"""Weights & Biases, online or off: WANDB_MODE, WANDB_PROJECT, WANDB_ENTITY and the rest of its variables count.

The step is a figure of its own, `step`, and the axis of every curve: wandb's own counter cannot go back, and a run can.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from typing import Any

from trimtab.observe.trackers import Tracked
from trimtab.types import Sample

COLUMNS = ("step", "prompt", "completion", "reward", "truncated", "answer")


class Adapter:
    def __init__(self) -> None:
        self._wandb: Any = None
        self._run: Any = None

    def start(self, run: Tracked) -> None:
        import wandb

        self._wandb = wandb
        own = os.environ.get("WANDB_RUN_ID")
        run_id = run.remembered.get("id") or own or secrets.token_hex(6)
        run.remember({"id": run_id})
        self._run = wandb.init(
            id=run_id,
            resume="allow",
            project=os.environ.get("WANDB_PROJECT", "trimtab"),
            name=os.environ.get("WANDB_NAME", run.name),
            dir=os.environ.get("WANDB_DIR", run.directory),
            config={"run_id": run.run_id, **run.parameters},
            allow_val_change=True,
            tags=[run.algorithm],
            settings=None if "WANDB_CONSOLE" in os.environ else wandb.Settings(console="off"),
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log({"step": step, **metrics})

    def tell(self, step: int, kind: str, title: str, text: str) -> None:
        if kind == "event":
            return
        level = self._wandb.AlertLevel.ERROR if kind == "alarm" else self._wandb.AlertLevel.WARN
        self._run.alert(title=f"{title} at step {step}", text=text, level=level)

    def show(self, step: int, samples: tuple[Sample, ...]) -> None:
        rows = [[step, s.prompt, s.completion, s.reward, s.is_truncated, s.answer] for s in samples]
        self._run.log({"step": step, "samples": self._wandb.Table(columns=list(COLUMNS), data=rows)})

    def went_back(self, step: int) -> None:
        """Nothing: what was sent stays, and the steps that come again are drawn beside it; config/version tells them apart."""

    def finish(self, outcome: str) -> None:
        if outcome == "preempted":
            self._run.mark_preempting()
        self._run.finish(exit_code=0 if outcome == "finished" else 1)
