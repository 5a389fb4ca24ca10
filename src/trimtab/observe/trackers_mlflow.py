"""MLflow: MLFLOW_TRACKING_URI says where, MLFLOW_EXPERIMENT_NAME (else `trimtab`) under which experiment.

MLflow keeps every point that it is told, also two of one step. Its parameters cannot be changed, so they are those that
the run was started with.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from typing import Any

from trimtab.observe.trackers import Tracked
from trimtab.types import Sample

PARAMETER_CHARACTERS = 500
"""Of a parameter's value that every version of the server takes."""
TAG_CHARACTERS = 5000
A_BATCH = 100
"""Parameters or figures that one call may have."""
STATUS = {"finished": "FINISHED", "preempted": "KILLED", "failed": "FAILED"}
_NO_NAME = re.compile(r"[^\w\-. :/]")


class Adapter:
    def __init__(self) -> None:
        self._client: Any = None
        self._id = ""

    def start(self, run: Tracked) -> None:
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient()
        before = run.remembered.get("run_id")
        if before is not None:
            self._id = before
            self._client.update_run(before, status="RUNNING")
            return
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", "trimtab")
        found = self._client.get_experiment_by_name(experiment)
        number = self._client.create_experiment(experiment) if found is None else found.experiment_id
        tags = {"trimtab.run_id": run.run_id, "trimtab.algorithm": run.algorithm}
        made = self._client.create_run(number, run_name=os.environ.get("MLFLOW_RUN_NAME", run.name), tags=tags)
        self._id = made.info.run_id
        run.remember({"run_id": self._id})
        self._log_parameters(run.parameters)

    def _log_parameters(self, parameters: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        found = [Param(_name(key), str(value)[:PARAMETER_CHARACTERS]) for key, value in parameters.items()]
        for start in range(0, len(found), A_BATCH):
            self._client.log_batch(self._id, params=found[start : start + A_BATCH])

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = round(time.time() * 1000)
        found = [Metric(_name(name), value, now, step) for name, value in metrics.items()]
        for start in range(0, len(found), A_BATCH):
            self._client.log_batch(self._id, metrics=found[start : start + A_BATCH])

    def tell(self, step: int, kind: str, title: str, text: str) -> None:
        """As a tag, of which there is one for each rule: the newest."""
        self._client.set_tag(self._id, f"trimtab.{kind}.{_name(title)}", f"step {step}: {text}"[:TAG_CHARACTERS])

    def show(self, step: int, samples: tuple[Sample, ...]) -> None:
        """Nothing: each table would be a file in the server's store."""

    def went_back(self, step: int) -> None:
        """Nothing: MLflow keeps both points of a step; config/version tells them apart."""

    def finish(self, outcome: str) -> None:
        self._client.set_terminated(self._id, STATUS[outcome])


def _name(text: str) -> str:
    """A name that MLflow takes."""
    return _NO_NAME.sub("_", text)[:250]
