"""Trackers as they are: each library that is installed is told of a short run and read back.

pip install 'trimtab[mlflow]'      (trackio, swanlab likewise; each has pins of its own, so in an environment of its own)
python -m pytest -m system tests/system/test_trackers.py
"""

import json
import sqlite3
from pathlib import Path

import pytest

from trimtab.observe.trackers import Tracked, TrackerRecorder, backend_of
from trimtab.types import Sample, StepReport

pytestmark = pytest.mark.system
SAMPLE = Sample(prompt_id=1, prompt="1+1=", completion="2", reward=1.0, reward_parts={}, is_truncated=False, answer="2")
ALARM = {"rule": "kl_update", "level": "act", "step": 2, "since": 1, "text": "too far", "then": "roll_back"}


def told(name, folder):
    """Two starts of one run, with an alarm, a rollback and samples in it."""
    path = Path(folder) / "remembered.json"
    for start in (0, 2):
        run = Tracked(
            name="a-run",
            run_id="0123456789abcdef",
            directory=str(folder),
            parameters={"optim.learning_rate": 1e-3, "data.validation": None, "rewards": "[]"},
            algorithm="grpo",
            max_steps=3,
            samples_every=1,
            remembered=json.loads(path.read_text()) if path.is_file() else {},
            remember=lambda what: path.write_text(json.dumps(what)),
        )
        recorder = TrackerRecorder(name, backend_of(name), run)
        if start == 0:
            recorder.event("started", step=0)
            recorder.record(StepReport(step=1, metrics={"loss/total": 0.5, "kl/update": 0.25}, samples=(SAMPLE,)))
            recorder.record(StepReport(step=2, metrics={"loss/total": 9.0}))
            recorder.event("alarm", **ALARM)
            recorder.event("rolled back", step=1, was=2, branch="b", version=2, rule="kl_update", reason="too far")
            recorder.record(StepReport(step=2, metrics={"loss/total": 0.75}))
        else:
            recorder.event("resumed", step=2)
            recorder.record(StepReport(step=3, metrics={"loss/total": 0.25}))
        recorder.close()
    return json.loads(path.read_text())


def test_mlflow(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    known = told("mlflow", tmp_path)
    from mlflow.tracking import MlflowClient

    client = MlflowClient()
    run = client.get_run(known["run_id"])
    assert run.info.status == "FINISHED"
    assert run.data.params["optim.learning_rate"] == "0.001"
    assert run.data.tags["trimtab.run_id"] == "0123456789abcdef"
    assert run.data.tags["trimtab.alarm.kl_update"] == "step 2: too far"
    points = [(m.step, m.value) for m in client.get_metric_history(known["run_id"], "loss/total")]
    assert sorted(points) == [(1, 0.5), (2, 0.75), (2, 9.0), (3, 0.25)]


def test_trackio(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # read when it is imported
    pytest.importorskip("trackio")
    known = told("trackio", tmp_path)
    [database] = (tmp_path / "trackio").rglob("trimtab*.db")
    rows = sqlite3.connect(database).execute("select run_name, step, metrics from metrics order by id").fetchall()
    assert {name for name, *_ in rows} == {known["name"]} == {"a-run-01234567"}
    points = [(step, json.loads(metrics).get("loss/total")) for _, step, metrics in rows]
    assert [p for p in points if p[1] is not None] == [(1, 0.5), (2, 9.0), (2, 0.75), (3, 0.25)]


def test_swanlab(tmp_path, monkeypatch):
    pytest.importorskip("swanlab")
    monkeypatch.setenv("SWANLAB_MODE", "offline")
    told("swanlab", tmp_path)
    data = b"".join(path.read_bytes() for path in sorted((tmp_path / "swanlab").rglob("*")) if path.is_file())
    for word in (b"loss/total", b"optim.learning_rate", b"too far"):
        assert word in data, word
