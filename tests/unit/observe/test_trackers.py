"""Every tracker through one suite, those that are large behind a stand-in that takes what the library takes."""

import enum
import json
import sys
import threading
import types
from pathlib import Path

import pytest

from trimtab.errors import UserError
from trimtab.observe import trackers
from trimtab.observe.recorders import Recorders
from trimtab.observe.trackers import LIBRARIES, Tracked, TrackerRecorder, backend_of
from trimtab.testing import recorders as suite
from trimtab.types import Sample, StepReport

SAMPLE = Sample(prompt_id=1, prompt="1+1=", completion="2", reward=1.0, reward_parts={}, is_truncated=False, answer="2")
ALARM = {"rule": "kl_update", "level": "act", "step": 2, "since": 1, "text": "too far", "then": "roll_back"}


def tracked(folder, remembered=None, **changes):
    """A run in a folder; what is remembered is kept there as a run's directory keeps it."""
    path = Path(folder) / "remembered.json"

    def remember(what):
        path.write_text(json.dumps(what))

    known = json.loads(path.read_text()) if path.is_file() else {}
    values = {
        "name": "a-run",
        "run_id": "0123456789abcdef",
        "directory": str(folder),
        "parameters": {"optim.learning_rate": 1e-3, "data.validation": None, "rewards": "[]", "algorithm": "grpo"},
        "algorithm": "grpo",
        "max_steps": 3,
        "samples_every": 2,
        "remembered": known if remembered is None else remembered,
        "remember": remember,
    }
    return Tracked(**{**values, **changes})


# -------------------------------------------------------------------------------------------------------- the stand-ins
class Calls(list):
    """What a stand-in was told, in order."""

    def of(self, name):
        return [given for called, given in self if called == name]


def fake_wandb(calls):
    class Run:
        def define_metric(self, name, step_metric=None):
            calls.append(("define", (name, step_metric)))

        def log(self, data, step=None):
            calls.append(("log", (step, data)))

        def alert(self, title, text, level=None, wait_duration=None):
            calls.append(("alert", (title, text, level)))

        def mark_preempting(self):
            calls.append(("preempting", ()))

        def finish(self, exit_code=None):
            calls.append(("finish", exit_code))

    def init(*, id, resume, project, name, dir, config, allow_val_change, tags, settings):
        calls.append(("init", {"id": id, "resume": resume, "project": project, "name": name, "config": config}))
        return Run()

    module = types.ModuleType("wandb")
    module.init = init
    module.AlertLevel = enum.Enum("AlertLevel", {"WARN": "WARN", "ERROR": "ERROR"})
    module.Table = lambda columns, data: {"columns": columns, "data": data}
    module.Settings = lambda **values: values
    return {"wandb": module}


def fake_mlflow(calls):
    class Client:
        def get_experiment_by_name(self, name):
            calls.append(("experiment", name))

        def create_experiment(self, name):
            return "7"

        def create_run(self, experiment_id, run_name=None, tags=None):
            calls.append(("init", {"id": None, "name": run_name, "tags": tags}))
            return types.SimpleNamespace(info=types.SimpleNamespace(run_id="mlflow-id"))

        def update_run(self, run_id, status=None):
            calls.append(("init", {"id": run_id, "status": status}))

        def log_batch(self, run_id, metrics=(), params=()):
            assert run_id == "mlflow-id"
            assert len(metrics) <= 1000
            assert len(params) <= 100
            if params:
                calls.append(("params", dict(params)))
            if metrics:
                assert len({step for *_, step in metrics}) == 1
                calls.append(("log", (metrics[0][3], {name: value for name, value, *_ in metrics})))

        def set_tag(self, run_id, key, value):
            calls.append(("alert", (key, value)))

        def set_terminated(self, run_id, status):
            calls.append(("finish", status))

    top, tracking, entities = (types.ModuleType(n) for n in ("mlflow", "mlflow.tracking", "mlflow.entities"))
    tracking.MlflowClient = Client
    entities.Param = lambda key, value: (key, value)
    entities.Metric = lambda key, value, timestamp, step: (key, value, timestamp, step)
    return {"mlflow": top, "mlflow.tracking": tracking, "mlflow.entities": entities}


def fake_trackio(calls):
    class Run:
        def log(self, metrics, step=None):
            calls.append(("log", (step, metrics)))

        def alert(self, title, text=None, level=None):
            calls.append(("alert", (title, text, level)))

        def finish(self):
            calls.append(("finish", None))

    def init(project, name=None, config=None, resume="never", embed=True):
        calls.append(("init", {"id": name, "resume": resume, "project": project, "config": config}))
        return Run()

    module = types.ModuleType("trackio")
    module.init = init
    module.AlertLevel = enum.Enum("AlertLevel", {"WARN": "warn", "ERROR": "error"})
    module.Table = lambda columns, data: {"columns": columns, "data": data}
    return {"trackio": module}


def fake_swanlab(calls):
    class Run:
        def log(self, data, step=None):
            texts = {k: v for k, v in data.items() if isinstance(v, Text)}
            calls.append(("alert", texts) if texts else ("log", (step, data)))

        def finish(self, state="success", error=None):
            assert (state == "crashed") == (error is not None)  # as the library demands
            calls.append(("finish", state))

    class Text:
        def __init__(self, content):
            self.content = content

    def init(*, project=None, name=None, log_dir=None, config=None, tags=None, id=None, resume=None):
        assert len(id) == 21
        calls.append(("init", {"id": id, "resume": resume, "project": project, "name": name, "config": config}))
        return Run()

    module = types.ModuleType("swanlab")
    module.init, module.Text = init, Text
    return {"swanlab": module}


def fake_tensorboard(calls):
    class SummaryWriter:
        def __init__(self, folder, purge_step=None):
            calls.append(("init", {"id": folder, "purge_step": purge_step}))

        def add_scalar(self, name, value, step):
            calls.append(("log", (step, {name: value})))

        def add_text(self, name, text, step):
            calls.append(("alert" if name != "config" else "params", (name, text, step)))

        def flush(self):
            pass

        def close(self):
            calls.append(("finish", None))

    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = SummaryWriter
    return {"tensorboard": types.ModuleType("tensorboard"), "torch.utils.tensorboard": module}


FAKES = {
    "tensorboard": fake_tensorboard,
    "wandb": fake_wandb,
    "mlflow": fake_mlflow,
    "trackio": fake_trackio,
    "swanlab": fake_swanlab,
}


@pytest.fixture(autouse=True)
def _no_settings_of_the_tester(monkeypatch):
    import os

    for name in list(os.environ):
        if name.startswith(("WANDB_", "MLFLOW_", "TRACKIO_", "SWANLAB_")):
            monkeypatch.delenv(name)


@pytest.fixture(params=FAKES)
def tracker(request, monkeypatch):
    calls = Calls()
    for name, module in FAKES[request.param](calls).items():
        monkeypatch.setitem(sys.modules, name, module)
    return types.SimpleNamespace(name=request.param, calls=calls)


def recorder(tracker, folder, **settings):
    return TrackerRecorder(tracker.name, backend_of(tracker.name), tracked(folder), **settings)


def logged(tracker):
    """Every figure that was told: (step, name) -> value, in order."""
    found = []
    for step, data in tracker.calls.of("log"):
        place = data.get("step", step) if isinstance(data, dict) else step
        found += [(place, name, value) for name, value in data.items() if isinstance(value, float)]
    return found


# ------------------------------------------------------------------------------------------------------------ the suite
def test_every_tracker_has_a_stand_in_and_an_adapter():
    assert set(FAKES) == set(LIBRARIES)


@pytest.mark.parametrize("check", suite.CHECKS, ids=lambda check: check.__name__)
def test_it_is_a_recorder(tracker, check, tmp_path):
    check(lambda: recorder(tracker, tmp_path))


def test_figures_go_by_step_under_their_names_and_an_evaluation_once(tracker, tmp_path):
    told = recorder(tracker, tmp_path)
    told.event("started", step=0)
    told.record(StepReport(step=0, phase="eval", metrics={"eval/reward/mean": 0.1}))
    told.record(StepReport(step=1, metrics={"loss/total": 0.5, "kl/update": 0.25}))
    told.record(StepReport(step=2, phase="eval", metrics={"eval/reward/mean": 0.2}))
    told.record(StepReport(step=2, metrics={"loss/total": 0.75, "eval/reward/mean": 0.2}, samples=(SAMPLE,)))
    told.close()
    assert logged(tracker) == [
        (0, "eval/reward/mean", 0.1),
        (1, "loss/total", 0.5),
        (1, "kl/update", 0.25),
        (2, "eval/reward/mean", 0.2),
        (2, "loss/total", 0.75),
    ]


def test_samples_go_to_those_that_have_tables_as_often_as_they_are_kept(tracker, tmp_path):
    told = recorder(tracker, tmp_path)
    for step in (1, 2, 3):
        told.record(StepReport(step=step, metrics={"loss/total": 0.5}, samples=(SAMPLE,)))
    told.close()
    tables = [data["samples"]["data"] for _, data in tracker.calls.of("log") if "samples" in data]
    assert len(tables) == (1 if tracker.name in ("wandb", "trackio") else 0)
    assert all("1+1=" in row for table in tables for row in table)


def test_alarms_are_told_of(tracker, tmp_path):
    told = recorder(tracker, tmp_path)
    told.event("alarm", **ALARM)
    told.close()
    [alert] = tracker.calls.of("alert")
    shown = str({k: v.content for k, v in alert.items()} if tracker.name == "swanlab" else alert)
    assert "kl_update" in shown
    assert "too far" in shown


def test_the_configuration_goes_along(tracker, tmp_path):
    recorder(tracker, tmp_path).close()
    shown = str(tracker.calls.of("init")) + str(tracker.calls.of("params"))
    assert "optim.learning_rate" in shown
    assert "0.001" in shown


def test_a_resumed_run_goes_on_in_the_same_one(tracker, tmp_path):
    for _ in range(2):
        told = recorder(tracker, tmp_path)
        told.close()
    first, second = (given["id"] for given in tracker.calls.of("init")[:2])
    if tracker.name == "mlflow":
        assert (first, second) == (None, "mlflow-id")
    else:
        assert first == second


@pytest.mark.parametrize("how", ["finished", "finished early", "preempted", "failed"])
def test_it_is_told_how_the_run_ended(tracker, tmp_path, how):
    told = recorder(tracker, tmp_path)
    told.event("started", step=0)
    told.record(StepReport(step=3 if how == "finished" else 2, metrics={"loss/total": 0.5}))
    if how in ("finished early", "preempted"):
        told.event(how, step=2, reason="")
    told.close()
    outcome = tracker.calls.of("finish")[-1]
    expected = {
        "wandb": {"finished": 0, "finished early": 0, "preempted": 1, "failed": 1},
        "mlflow": {"finished": "FINISHED", "finished early": "FINISHED", "preempted": "KILLED", "failed": "FAILED"},
        "swanlab": {"finished": "success", "finished early": "success", "preempted": "aborted", "failed": "crashed"},
    }.get(tracker.name)
    assert outcome == (None if expected is None else expected[how])
    assert bool(tracker.calls.of("preempting")) == (tracker.name == "wandb" and how == "preempted")


def test_steps_that_come_again_after_a_rollback_are_told_again(tracker, tmp_path):
    told = recorder(tracker, tmp_path)
    for step, loss in ((1, 0.5), (2, 9.0)):
        told.record(StepReport(step=step, metrics={"loss/total": loss}))
    told.event("rolled back", step=1, was=2, branch="b", version=2, rule="kl_update", reason="too far")
    told.record(StepReport(step=2, metrics={"loss/total": 0.25}))
    told.close()
    assert logged(tracker) == [(1, "loss/total", 0.5), (2, "loss/total", 9.0), (2, "loss/total", 0.25)]
    if tracker.name == "tensorboard":
        assert [given["purge_step"] for given in tracker.calls.of("init")] == [None, 2]


def test_environment_variables_say_where(monkeypatch, tmp_path):
    names = {
        "wandb": ("WANDB_PROJECT", "project"),
        "trackio": ("TRACKIO_PROJECT", "project"),
        "mlflow": ("MLFLOW_RUN_NAME", "name"),
    }
    for name, (variable, field) in names.items():
        calls = Calls()
        for module, fake in FAKES[name](calls).items():
            monkeypatch.setitem(sys.modules, module, fake)
        monkeypatch.setenv(variable, "of-the-environment")
        (tmp_path / name).mkdir()
        recorder(types.SimpleNamespace(name=name), tmp_path / name).close()
        assert calls.of("init")[0][field] == "of-the-environment"


def test_what_the_environment_decides_is_left_to_swanlab(monkeypatch, tmp_path):
    calls = Calls()
    monkeypatch.setitem(sys.modules, "swanlab", fake_swanlab(calls)["swanlab"])
    monkeypatch.setenv("SWANLAB_PROJECT", "mine")
    monkeypatch.setenv("SWANLAB_EXP_NAME", "mine")
    recorder(types.SimpleNamespace(name="swanlab"), tmp_path).close()
    assert (calls.of("init")[0]["project"], calls.of("init")[0]["name"]) == (None, None)


# ------------------------------------------------------------------------------------------- trackers that do not work
class Broken:
    """Fails or hangs where it is told to."""

    def __init__(self, *, fails=(), hangs=()):
        self.fails, self.hangs = fails, hangs
        self.released = threading.Event()
        self.entered = threading.Event()
        self.done = []

    def _do(self, name):
        if name in self.hangs:
            self.entered.set()
            self.released.wait(30)
        if name in self.fails:
            raise OSError(f"the server is gone in {name}")
        self.done.append(name)

    def start(self, run):
        self._do("start")

    def log(self, step, metrics):
        self._do("log")

    def tell(self, step, kind, title, text):
        self._do("tell")

    def show(self, step, samples):
        self._do("show")

    def went_back(self, step):
        self._do("went_back")

    def finish(self, outcome):
        self._do("finish")


def test_one_that_cannot_start_ends_the_run(tmp_path):
    with pytest.raises(UserError, match=r"observe\.trackers: wandb cannot start: OSError: the server is gone in start"):
        TrackerRecorder("wandb", Broken(fails=("start",)), tracked(tmp_path))


def test_one_that_hangs_at_the_start_ends_the_run(tmp_path):
    backend = Broken(hangs=("start",))
    with pytest.raises(UserError, match=r"wandb has not started within 0\.05 s; is its server reachable"):
        TrackerRecorder("wandb", backend, tracked(tmp_path), start_seconds=0.05)
    backend.released.set()


def test_one_that_fails_later_is_switched_off_said_and_counted(tmp_path, capsys):
    backend = Broken(fails=("log",))
    told = TrackerRecorder("wandb", backend, tracked(tmp_path))

    class Notes:
        def __init__(self):
            self.reports = []

        def record(self, report):
            self.reports.append(report)

        def event(self, kind, **facts):
            pass

        def close(self):
            pass

    notes = Notes()
    recorders = Recorders(notes, [told])
    recorders.record(StepReport(step=1, metrics={"loss/total": 0.5}))
    told._thread.join(20)
    for step in (2, 3):
        recorders.record(StepReport(step=step, metrics={"loss/total": 0.5}))
    recorders.close()
    assert [r.metrics["observe/failed_monitors"] for r in notes.reports] == [0.0, 0.0, 1.0]
    said = capsys.readouterr().err
    assert said.count("warning:") == 1
    assert "wandb: OSError: the server is gone in log" in said


def test_one_that_hangs_does_not_hold_training_and_what_it_misses_is_counted_and_said_once(tmp_path):
    said, backend = [], Broken(hangs=("log",))
    told = TrackerRecorder("wandb", backend, tracked(tmp_path), say=said.append, close_seconds=0.1, queued=5)
    told.record(StepReport(step=1, metrics={"loss/total": 0.5}))
    assert backend.entered.wait(20)
    for step in range(2, 12):
        told.record(StepReport(step=step, metrics={"loss/total": 0.5}))
    assert told.figures() == {"observe/dropped_calls": 5.0}
    told.close()
    backend.released.set()
    assert said == [
        "wandb is too slow: points are left out, observe/dropped_calls counts them",
        "wandb has not taken everything within 0.1 s; its last points may be missing",
    ]


def test_a_fault_at_the_end_is_not_lost(tmp_path):
    told = TrackerRecorder("wandb", Broken(fails=("finish",)), tracked(tmp_path))
    with pytest.raises(RuntimeError, match="the server is gone in finish"):
        told.close()


def test_a_secret_stands_in_no_message(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "never-to-be-seen-tracker-4567")

    class Talkative(Broken):
        def start(self, run):
            raise OSError("401 for never-to-be-seen-tracker-4567")

    with pytest.raises(UserError) as caught:
        TrackerRecorder("wandb", Talkative(), tracked(tmp_path))
    assert "never-to-be-seen" not in str(caught.value)


# ---------------------------------------------------------------------------------------------------------- the real one
def test_wandb_itself_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    told = TrackerRecorder("wandb", backend_of("wandb"), tracked(tmp_path))
    told.event("started", step=0)
    for step in (1, 2):
        told.record(StepReport(step=step, metrics={"loss/total": 0.5 * step}, samples=(SAMPLE,)))
    told.event("alarm", **ALARM)
    told.event("rolled back", step=1, was=2, branch="b", version=2, rule="kl_update", reason="too far")
    told.record(StepReport(step=2, metrics={"loss/total": 0.25}))
    told.close()
    [file] = tmp_path.rglob("*.wandb")
    data = file.read_bytes()
    known = json.loads((tmp_path / "remembered.json").read_text())
    assert known["id"].encode() in data
    for word in (b"loss/total", b"optim.learning_rate", b"too far", b"a-run"):
        assert word in data, word


def test_the_start_may_take_a_while_but_not_for_ever():
    assert trackers.START_SECONDS >= 60
