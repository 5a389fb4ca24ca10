"""SwanLab: in its cloud, on an own server or local, by SWANLAB_MODE, SWANLAB_API_KEY, SWANLAB_API_HOST and the others.

SwanLab takes one value for each name and step: of steps that come again after a rollback it keeps the first.
"""

from __future__ import annotations

import os
import secrets
import string
from collections.abc import Mapping
from typing import Any

from trimtab.observe.trackers import Tracked
from trimtab.types import Sample

ID_CHARACTERS = 21
"""Of a run's id, letters and digits."""


class Adapter:
    def __init__(self) -> None:
        self._swanlab: Any = None
        self._run: Any = None

    def start(self, run: Tracked) -> None:
        import swanlab

        self._swanlab = swanlab
        letters = string.ascii_lowercase + string.digits
        run_id = run.remembered.get("id") or "".join(secrets.choice(letters) for _ in range(ID_CHARACTERS))
        run.remember({"id": run_id})
        asked: dict[str, Any] = {
            "config": {"run_id": run.run_id, **run.parameters},
            "tags": [run.algorithm],
        }
        if not _is_set("SWANLAB_PROJECT", "SWANLAB_PROJ_NAME"):
            asked["project"] = "trimtab"
        if not _is_set("SWANLAB_EXP_NAME"):
            asked["name"] = run.name
        if not _is_set("SWANLAB_LOG_DIR", "SWANLAB_LOGDIR"):
            asked["log_dir"] = os.path.join(run.directory, "swanlab")  # noqa: PTH118 - a text is what it wants
        if os.environ.get("SWANLAB_MODE", "online") in ("online", "cloud"):  # only a server knows runs by their id
            asked |= {"id": run_id, "resume": "allow"}
        self._run = swanlab.init(**asked)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def tell(self, step: int, kind: str, title: str, text: str) -> None:
        if kind != "event":
            self._run.log({f"{kind}s/{title}": self._swanlab.Text(text)}, step=step)

    def show(self, step: int, samples: tuple[Sample, ...]) -> None:
        """Nothing: the run's own samples/ and report have them."""

    def went_back(self, step: int) -> None:
        """Nothing can be done: it keeps the first value of a step."""

    def finish(self, outcome: str) -> None:
        state = {"finished": "success", "preempted": "aborted", "failed": "crashed"}[outcome]
        if state == "crashed":
            self._run.finish(state=state, error="the run ended early; see failure.json")
        else:
            self._run.finish(state=state)


def _is_set(*names: str) -> bool:
    return any(os.environ.get(name) for name in names)
