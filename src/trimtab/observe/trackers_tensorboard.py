"""TensorBoard: event files in RUN/tensorboard, one a start and one a rollback.

A file says from which step on it holds; TensorBoard shows nothing of older files from there on, so a curve has each step
once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trimtab.observe.trackers import Tracked
from trimtab.types import Sample


class Adapter:
    def __init__(self) -> None:
        self._writer: Any = None
        self._folder = Path()

    def start(self, run: Tracked) -> None:
        self._folder = Path(run.directory) / "tensorboard"
        self._open(None)
        if not run.remembered:
            run.remember({"folder": "tensorboard"})
            known = {"run_id": run.run_id, **run.parameters}
            table = "\n".join(
                f"| {name} | {_cell(json.dumps(value, ensure_ascii=False))} |" for name, value in known.items()
            )
            self._writer.add_text("config", f"| key | value |\n|---|---|\n{table}", 0)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def tell(self, step: int, kind: str, title: str, text: str) -> None:
        self._writer.add_text(f"{kind}s/{title.replace(' ', '_')}", text or title, step)
        self._writer.flush()

    def show(self, step: int, samples: tuple[Sample, ...]) -> None:
        """Nothing: text panels are no table; the run's own samples/ and report have them."""

    def went_back(self, step: int) -> None:
        self._writer.close()
        self._open(step + 1)

    def finish(self, outcome: str) -> None:
        self._writer.close()

    def _open(self, first: int | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(self._folder), purge_step=first)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
