"""A disk that is full, that cannot be written to, or a clock that jumps, while a whole run trains."""

import errno
import json
import os
import resource
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.runs import small
from trimtab.errors import StorageError
from trimtab.operate import finish
from trimtab.store import checkpoints, disk, journal
from trimtab.store.checkpoints import CheckpointStore
from trimtab.store.recorder import RunRecorder
from trimtab.store.run_directory import RunDirectory
from trimtab.store.settings import Checkpoint
from trimtab.train import loop

STEPS = 6
QUICK = ["data.validation=null", "train.minibatches=1"]


@pytest.fixture(autouse=True)
def _without_a_report(monkeypatch):
    monkeypatch.setattr(finish, "write_report", lambda *_, **__: [])


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return small.write(tmp_path_factory.mktemp("full"), "sft", steps=STEPS)


@pytest.fixture(scope="module")
def whole(path):
    """What a run does that nothing befalls."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finish, "write_report", lambda *_, **__: [])
        return small.evidence(small.train(path, path.parent / "whole", *QUICK))


def failing(monkeypatch, fails, number=errno.ENOSPC, operations=("write", "fill", "append", "copy", "make_directory")):
    """Let these operations fail wherever `fails(path)` says so; the paths that did."""
    met = []

    def watched(real):
        def operation(place, *rest):
            if fails(Path(place)):
                met.append(Path(place))
                raise OSError(number, os.strerror(number))
            return real(place, *rest)

        return operation

    for name in operations:
        monkeypatch.setattr(disk, name, watched(getattr(disk, name)))
    return met


def of_checkpoints(*steps):
    return lambda place: any(part in {f".{step}.new" for step in steps} for part in place.parts)


def failures(directory):
    return [e["step"] for e in journal.read(directory.journal).events("save failed")]


def good(directory):
    store = CheckpointStore(directory.checkpoints, Checkpoint(), max_steps=1)
    assert [store.fault(step) for step in store.steps()] == [None] * len(store.steps())
    return store.steps()


@pytest.mark.parametrize("is_beside", [True, False], ids=["beside", "in place"])
def test_a_run_trains_on_while_saves_fail_and_ends_as_if_none_had(
    path, whole, tmp_path, monkeypatch, capsys, is_beside
):
    failing(monkeypatch, of_checkpoints(2, 3))
    words = [*QUICK, f"checkpoint.async={str(is_beside).lower()}", "checkpoint.max_failed_saves=2"]
    directory = small.train(path, tmp_path / "run", *words)
    assert small.evidence(directory) == whole
    assert failures(directory) == [2, 3]
    said = capsys.readouterr().out
    assert said.count("No space left on device; training goes on") == 2
    assert "checkpoint of step 4: written; 2 saves before it had failed" in said
    assert good(directory) == [0, 1, 4, 5, 6]
    assert directory.facts()["outcome"] == "all steps done"
    counts = {s["step"]: s["metrics"]["checkpoint/failed"] for s in small.steps(directory)}
    assert max(counts.values()) == 2.0
    assert (counts[2], counts[6]) == (0.0, 0.0)


@pytest.mark.parametrize("is_beside", [True, False], ids=["beside", "in place"])
def test_too_many_end_it_with_4_and_the_same_command_goes_on_when_there_is_room(
    path, whole, tmp_path, monkeypatch, is_beside
):
    words = [*QUICK, f"checkpoint.async={str(is_beside).lower()}", "checkpoint.max_failed_saves=1"]
    with monkeypatch.context() as patch:
        failing(patch, of_checkpoints(2, 3, 4))
        with pytest.raises(StorageError, match="2 saves in a row have failed") as error:
            small.train(path, tmp_path / "run", *words)
    directory = RunDirectory(tmp_path / "run")
    assert error.value.exit_code == small.failure(directory)["code"] == 4
    assert "No space left on device" in small.failure(directory)["cause"]
    assert small.failure(directory)["last_checkpoint"] == 1
    assert good(directory) == [0, 1]
    small.train(path, tmp_path / "run", *words)
    assert small.evidence(directory) == whole


def test_a_limit_of_the_system_on_the_size_of_files_is_such_a_failure(path, whole, tmp_path, monkeypatch, capsys):
    """Not simulated: the kernel refuses the bytes while checkpoints 2 and 3 are written."""
    free = resource.getrlimit(resource.RLIMIT_FSIZE)
    real = loop._save

    def limited(run, report, *, last):
        if report.step in (2, 3):
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, free[1]))
        try:
            real(run, report, last=last)
            run.checkpoints.wait()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, free)

    monkeypatch.setattr(loop, "_save", limited)
    directory = small.train(path, tmp_path / "run", *QUICK)
    assert small.evidence(directory) == whole
    assert failures(directory) == [2, 3]
    assert "File too large" in capsys.readouterr().out
    assert good(directory) == [0, 1, 4, 5, 6]
    assert not list(directory.checkpoints.glob(".*"))


def test_what_a_failed_save_has_written_is_taken_away_and_nothing_else_is(path, tmp_path, monkeypatch):
    failing(monkeypatch, lambda place: place.name == "state.json" and place.parent.name == ".2.new")
    directory = small.train(path, tmp_path / "run", *QUICK, "train.max_steps=3")
    assert (failures(directory), good(directory)) == ([2], [0, 1, 3])
    assert sorted(p.name for p in directory.checkpoints.iterdir()) == ["0", "1", "3"]


def test_the_first_save_must_not_fail(path, tmp_path, monkeypatch):
    failing(monkeypatch, of_checkpoints(0))
    with pytest.raises(StorageError, match=r"checkpoint of step 0: .*No space left on device"):
        small.train(path, tmp_path / "run", *QUICK)
    assert small.failure(RunDirectory(tmp_path / "run"))["last_checkpoint"] is None


def test_the_journal_tells_of_a_checkpoint_when_it_is_there(path, tmp_path, monkeypatch):
    seen = []

    def event(self, kind, real=RunRecorder.event, **facts):
        if kind == "saved":
            place = self.directory.checkpoints / str(facts["step"])
            seen.append((facts["step"], (place / "manifest.json").is_file()))
        real(self, kind, **facts)

    monkeypatch.setattr(RunRecorder, "event", event)
    directory = small.train(path, tmp_path / "run", *QUICK)
    assert seen == [(step, True) for step in range(STEPS + 1)]
    steps = {r["step"]: n for n, r in enumerate(journal.read(directory.journal).records) if r["kind"] == "step"}
    saved = {r["step"]: n for n, r in enumerate(journal.read(directory.journal).records) if r.get("event") == "saved"}
    assert all(saved[step] > steps[step] for step in steps), "behind the record of its step"


def test_a_save_that_is_under_way_when_the_run_breaks_is_finished_and_told(path, tmp_path, monkeypatch):
    """The thread is held until the run has broken; then it writes, and the journal says so."""
    broken = threading.Event()

    def write(self, *rest, real=CheckpointStore._save, **more):
        if rest[0] == 2:
            assert self._under_way is not None
            assert broken.wait(30)
        real(self, *rest, **more)

    class Breaks(Exception):
        pass

    def breaks(run, report, *, last, real=loop._save):
        real(run, report, last=last)
        if report.step == 2:
            broken.set()
            raise Breaks

    monkeypatch.setattr(CheckpointStore, "_save", write)
    monkeypatch.setattr(loop, "_save", breaks)
    with pytest.raises(Breaks):
        small.train(path, tmp_path / "run", *QUICK)
    directory = RunDirectory(tmp_path / "run")
    assert good(directory) == [0, 1, 2]
    assert [e["step"] for e in journal.read(directory.journal).events("saved")] == [0, 1, 2]


# ------------------------------------------------------------------------------------------------------ samples, journal
def test_samples_that_cannot_be_written_are_counted_and_said_and_training_goes_on(tmp_path, monkeypatch, capsys):
    path = small.write(tmp_path, "grpo", steps=3)
    words = ["observe.samples.every=1", "optim.learning_rate=1e-5", "eval.every=1"]
    met = failing(monkeypatch, lambda place: place.parent.name == "samples", number=errno.EROFS)
    directory = small.train(path, tmp_path / "run", *words)
    assert [s["step"] for s in small.steps(directory)] == [1, 2, 3]
    assert len(met) == 7, "three of steps, four of evaluations"
    assert [s["metrics"]["samples/failed"] for s in small.steps(directory)] == [2.0, 4.0, 6.0]
    (event,) = journal.read(directory.journal).events("samples failed")
    assert event["reason"] == "Read-only file system"
    said = capsys.readouterr().out
    assert said.count("the samples cannot be written: Read-only file system; training goes on") == 1
    assert f"7 files of samples could not be written to {directory.samples}" in said
    assert not list(directory.samples.iterdir())


def test_half_a_file_of_samples_is_taken_away(tmp_path, monkeypatch):
    from trimtab.store.settings import Samples
    from trimtab.types import Sample, StepReport

    directory = RunDirectory(tmp_path / "run")
    directory.create()
    recorder = RunRecorder(directory, Samples(every=1))
    sample = Sample(prompt_id=1, prompt="p", completion="c", reward=0.5, reward_parts={}, is_truncated=False)
    with monkeypatch.context() as patch:
        failing(patch, lambda place: place.parent.name == "samples", operations=("sync",))
        recorder.record(StepReport(step=1, metrics={}, samples=(sample,)))
    assert (recorder.failed, list(directory.samples.iterdir())) == (1, [])
    recorder.record(StepReport(step=2, metrics={}, samples=(sample,)))
    assert [p.name for p in directory.samples.iterdir()] == ["step-0000002.jsonl"]


def test_a_journal_that_cannot_be_written_ends_the_run_with_4_and_harms_no_checkpoint(
    path, whole, tmp_path, monkeypatch
):
    def full(place):
        return place.name == "journal.jsonl" and len(small.steps(RunDirectory(place.parent))) == 3

    with monkeypatch.context() as patch:
        failing(patch, full)
        with pytest.raises(StorageError, match=r"cannot write to .*journal.jsonl: No space left on device"):
            small.train(path, tmp_path / "run", *QUICK)
    directory = RunDirectory(tmp_path / "run")
    assert small.failure(directory)["code"] == 4
    assert good(directory)[-1] == 3, "the save that was under way is finished"
    small.train(path, tmp_path / "run", *QUICK)
    assert small.evidence(directory) == whole


# ------------------------------------------------------------------------------------------------- nothing can be written
def refused(path, *words):
    from trimtab.cli import app

    result = CliRunner().invoke(app, ["train", str(path), *map(str, words)])
    return result.exception, result.output


@pytest.mark.parametrize("kind", ["a new run", "a run that is there"])
def test_a_file_system_that_is_read_only_is_one_message_and_4(path, tmp_path, monkeypatch, kind):
    root = tmp_path / "run"
    if kind == "a run that is there":
        small.train(path, root, *QUICK, "train.max_steps=1")
        before = {p: p.read_bytes() for p in root.rglob("*") if p.is_file()}

    def opened(place, flags, *rest, real=os.open):
        if flags & (os.O_WRONLY | os.O_RDWR) and str(place).startswith(str(tmp_path)):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(place))
        return real(place, flags, *rest)

    failing(monkeypatch, lambda _: True, number=errno.EROFS, operations=disk.OPERATIONS)
    monkeypatch.setattr(os, "open", opened)
    error, output = refused(path, *QUICK, "train.max_steps=2", "--run-dir", root)
    assert isinstance(error, StorageError), error
    assert error.exit_code == 4
    assert "Read-only file system" in str(error)
    assert len(str(error).splitlines()) == 1
    assert "Traceback" not in output
    if kind == "a run that is there":
        assert {p: p.read_bytes() for p in root.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("part", ["lock", "journal.jsonl", "config", "run.json", "failure.json", "checkpoints"])
def test_so_is_a_part_of_a_run_that_cannot_be_written(path, tmp_path, monkeypatch, part):
    root = tmp_path / "run"
    RunDirectory(root).create()
    if part == "failure.json":
        (root / part).write_text("{}")
        failing(monkeypatch, lambda place: place.name == part, number=errno.EACCES, operations=("remove_file",))
    elif part == "lock":
        (root / "lock").mkdir()
    else:
        failing(monkeypatch, lambda place: part in place.relative_to(root).parts[0], number=errno.EACCES)
    error, _ = refused(path, *QUICK, "--run-dir", root)
    assert getattr(error, "exit_code", None) in (2, 4), error
    assert part in str(error)
    assert len(str(error).splitlines()) == 1


# ------------------------------------------------------------------------------------------------------------- the clock
def test_a_clock_that_jumps_changes_nothing(path, whole, tmp_path, monkeypatch):
    asked = []

    def jumps(real=checkpoints.time.time):
        asked.append(None)
        return real() + (3600.0 if len(asked) % 2 else -3600.0)

    monkeypatch.setattr(checkpoints.time, "time", jumps)
    with monkeypatch.context() as patch:
        small.interrupt_after(patch, 3)
        with pytest.raises(small.Interrupted):
            small.train(path, tmp_path / "run", *QUICK)
    directory = small.train(path, tmp_path / "run", *QUICK)
    assert len(asked) > 20
    assert small.evidence(directory) == whole
    assert good(directory) == list(range(STEPS + 1))
    figures = [s["metrics"] for s in small.steps(directory)]
    seconds = [m[n] for m in figures for n in m if n.startswith(("time/", "checkpoint/"))]
    assert min(seconds) >= 0.0
    assert {m["checkpoint/age"] >= 0.0 for m in figures if "checkpoint/age" in m} == {True}
    assert not directory.is_locked()
    assert json.loads((directory.root / "run.json").read_bytes())["outcome"] == "all steps done"
