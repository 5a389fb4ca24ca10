"""Saves beside training: one at most, none lost, and everything that reads waits for it."""

import threading

import pytest
import torch

from tests.unit.store.test_checkpoints import FakeRun
from trimtab.errors import StorageError
from trimtab.store import checkpoints
from trimtab.store.checkpoints import CheckpointStore
from trimtab.store.settings import Checkpoint


class GatedRun(FakeRun):
    """Its files are not written before `gate` is open; `log` tells of what happens, in order."""

    def __init__(self, value=0.0):
        super().__init__(value)
        self.gate, self.log = threading.Event(), []

    def snapshot(self, **how):
        self.log.append(f"snapshot {self.facts['step']:g}")
        return super().snapshot(**how)

    def write_models(self, directory):
        assert self.gate.wait(30)
        super().write_models(directory)
        self.log.append(f"written {self.facts['step']:g}")

    def __deepcopy__(self, memo):
        copied = GatedRun(self.facts["step"])
        copied.weights = {name: t.clone() for name, t in self.weights.items()}
        copied.moments = {name: t.clone() for name, t in self.moments.items()}
        copied.gate, copied.log = self.gate, self.log
        return copied


def store_in(tmp_path, said=None, **rule):
    said = [] if said is None else said
    rule = Checkpoint(**{"every": 100, "rolling_every": 1, **rule})
    return CheckpointStore(tmp_path / "checkpoints", rule, max_steps=10, metric="eval/reward/mean", warn=said.append)


def names(store):
    return sorted(p.name for p in store.directory.iterdir()) if store.directory.is_dir() else []


def waiting(monkeypatch, run):
    """Whoever waits for a save opens its gate, and is noted."""

    def wait(futures, real=checkpoints.futures.wait):
        run.log.append("waits")
        run.gate.set()
        return real(futures, timeout=30)

    monkeypatch.setattr(checkpoints.futures, "wait", wait)


def test_training_goes_on_while_a_save_is_written_and_what_is_written_is_what_was(tmp_path):
    store, run = store_in(tmp_path), GatedRun(3.0)
    assert store.save_if_due(3, run, {}) is not None
    assert [name for name in names(store) if not name.startswith(".")] == []
    assert store.saves() == []
    for tensor in (*run.weights.values(), *run.moments.values()):
        tensor.zero_()
    run.facts["step"] = 99.0
    run.gate.set()
    store.wait()
    assert names(store) == ["3"]
    other = FakeRun()
    assert store.restore(other) == 3
    assert (other.weights["w"].tolist(), other.facts) == ([3.0] * 3, {"step": 3.0})
    assert other.moments["w.first"].tolist() == [1.5] * 3


def test_a_save_beside_training_is_the_save_in_its_place_byte_for_byte(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints.time, "time", lambda: 1.0)
    found = []
    for is_beside in (True, False):
        store = store_in(tmp_path / f"{is_beside}", async_=is_beside)
        store.save_if_due(3, FakeRun(3.0), {"eval/reward/mean": 0.5})
        place = store.directory / "3"
        assert store.fault(3) is None
        found.append({str(p.relative_to(place)): p.read_bytes() for p in place.rglob("*") if p.is_file()})
    assert found[0] == found[1]
    assert len(found[0]) == 5


READERS = {
    "the next save": lambda store: store.save_if_due(4, FakeRun(4.0), {}),
    "the last save": lambda store: store.save_if_due(4, FakeRun(4.0), {}, last=True),
    "a better evaluation": lambda store: store.save_if_due(4, FakeRun(4.0), {"eval/reward/mean": 1.0}),
    "restore": lambda store: store.restore(FakeRun()),
    "newest_good": lambda store: store.newest_good(),
    "best": lambda store: store.best(),
    "steps": lambda store: store.steps(),
    "fault": lambda store: store.fault(3),
    "wait": lambda store: store.wait(),
}


@pytest.mark.parametrize("name", READERS)
def test_what_looks_at_the_checkpoints_waits_for_the_save_that_is_under_way(tmp_path, monkeypatch, name):
    store, run = store_in(tmp_path, rolling_every=3 if name == "a better evaluation" else 1), GatedRun(3.0)
    waiting(monkeypatch, run)
    store.save_if_due(3, run, {})
    READERS[name](store)
    assert run.log == ["snapshot 3", "waits", "written 3"]
    assert store.fault(3) is None


def test_the_next_snapshot_is_taken_when_the_save_before_has_ended(tmp_path, monkeypatch):
    store, run = store_in(tmp_path), GatedRun(3.0)
    waiting(monkeypatch, run)
    store.save_if_due(3, run, {})
    run.facts["step"] = 4.0
    store.save_if_due(4, run, {})
    store.wait()
    assert run.log == ["snapshot 3", "waits", "written 3", "snapshot 4", "waits", "written 4"]
    assert store.steps() == [3, 4]


def test_an_evaluation_is_held_against_that_of_the_save_under_way(tmp_path, monkeypatch):
    store, run = store_in(tmp_path, rolling_every=3), GatedRun(3.0)
    waiting(monkeypatch, run)
    store.save_if_due(3, run, {"eval/reward/mean": 0.9})
    assert store.save_if_due(4, FakeRun(4.0), {"eval/reward/mean": 0.5}) is None
    assert store.steps() == [3]


@pytest.mark.parametrize(("step", "last"), [(0, True), (7, True)])
def test_the_first_and_the_last_save_are_there_on_return(tmp_path, step, last):
    store = store_in(tmp_path, rolling_every=5)
    store.save_if_due(step, FakeRun(float(step)), {}, last=last)
    assert names(store) == [str(step)]
    (saved,) = store.saves()
    assert saved.stall_seconds >= saved.seconds > 0


def test_a_step_that_is_not_due_waits_for_nothing(tmp_path):
    store, run = store_in(tmp_path, rolling_every=5), GatedRun(5.0)
    store.save_if_due(5, run, {})
    assert store.save_if_due(6, FakeRun(), {}) is None
    assert run.log == ["snapshot 5"]
    run.gate.set()
    store.wait()
    assert [save.step for save in store.saves()] == [5]


# ------------------------------------------------------------------------------------------------------------- failures
class Broken(FakeRun):
    def __init__(self, error=None):
        super().__init__()
        self.error = error or OSError(28, "No space left on device")

    def write_models(self, directory):
        raise self.error


def fail(store, times):
    for step in range(1, times + 1):
        store.save_if_due(step, Broken(), {})
        store.wait()


@pytest.mark.parametrize("is_beside", [True, False], ids=["beside", "in place"])
def test_training_goes_on_after_as_many_failed_saves_in_a_row_as_are_allowed(tmp_path, is_beside):
    said = []
    store = store_in(tmp_path, said, max_failed_saves=2, async_=is_beside)
    store.save_if_due(0, FakeRun(), {}, last=True)
    fail(store, times=2)
    assert store.figures()["checkpoint/failed"] == 2.0
    store.save_if_due(3, FakeRun(3.0), {})
    store.wait()
    assert store.figures()["checkpoint/failed"] == 0.0
    reason = f"cannot write to {store.directory}: No space left on device; training goes on"
    assert said == [
        f"checkpoint of step 1: {reason}, and 1 more may fail in a row (checkpoint.max_failed_saves)",
        f"checkpoint of step 2: {reason}, and the next one that fails ends the run (checkpoint.max_failed_saves)",
        "checkpoint of step 3: written; 2 saves before it had failed",
    ]
    assert [(save.step, bool(save.failure)) for save in store.saves()] == [(0, False), (1, True), (2, True), (3, False)]
    assert names(store) == ["0", "3"]


@pytest.mark.parametrize("allowed", [0, 1, 3])
@pytest.mark.parametrize("is_beside", [True, False], ids=["beside", "in place"])
def test_one_more_ends_the_run_at_the_next_step_boundary(tmp_path, allowed, is_beside):
    said = []
    store = store_in(tmp_path, said, max_failed_saves=allowed, async_=is_beside)
    with pytest.raises(StorageError, match="No space left on device") as error:
        fail(store, times=99)
    assert (error.value.exit_code, store.failed, len(said)) == (4, allowed + 1, allowed)
    assert ("saves in a row have failed" in str(error.value)) == (allowed > 0)
    store.save_if_due(9, FakeRun(9.0), {}, last=True)
    assert store.newest_good() == 9, "the last save is tried whatever was before"


def test_a_last_save_that_fails_is_an_error_however_many_may_fail(tmp_path):
    store = store_in(tmp_path, max_failed_saves=9)
    with pytest.raises(StorageError, match=r"checkpoint of step 7: .*No space left on device"):
        store.save_if_due(7, Broken(), {}, last=True)


def test_a_fault_of_the_program_in_the_thread_is_raised_as_it_is(tmp_path):
    store = store_in(tmp_path)
    store.save_if_due(1, Broken(TypeError("not JSON")), {})
    with pytest.raises(TypeError, match="not JSON"):
        store.wait()
    store.save_if_due(2, FakeRun(2.0), {})
    assert store.steps() == [2], "and once"


def test_lines_that_arise_in_the_thread_are_said_by_the_caller(tmp_path):
    said = []
    store = store_in(tmp_path, said)
    store.warn = store._say = lambda line: said.append((threading.current_thread(), line))
    (store.directory / ".2.new").mkdir(parents=True)
    store.save_if_due(3, FakeRun(3.0), {})
    store.wait()
    ((thread, line),) = said
    assert thread is threading.main_thread()
    assert line.endswith("was left by a save that was interrupted, and is removed")


def test_the_process_does_not_end_before_a_save_has():
    gate = threading.Event()
    future = checkpoints.beside(gate.wait)
    (thread,) = [t for t in threading.enumerate() if t.name == "trimtab-save"]
    assert not thread.daemon
    gate.set()
    assert future.result(30) is True


# -------------------------------------------------------------------------------------------------------------- figures
def test_the_figures_tell_what_saving_has_cost_and_what_a_crash_would(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(checkpoints.time, "monotonic", lambda: now[0])
    store = store_in(tmp_path)
    assert set(store.figures()) == {
        "checkpoint/rejected",
        "checkpoint/failed",
        "checkpoint/stall_seconds",
        "time/checkpoint",
    }
    store.save_if_due(1, FakeRun(1.0), {})
    store.wait()
    now[0] = 107.0
    found = store.figures()
    assert found["checkpoint/age"] == 7.0
    assert 0 < found["checkpoint/stall_seconds"] < found["checkpoint/stall_seconds"] + found["checkpoint/save_seconds"]
    assert store.figures()["checkpoint/stall_seconds"] == 0.0, "since it was last asked"
    store.save_if_due(2, Broken(), {})
    store.wait()
    assert store.figures()["checkpoint/age"] == 7.0, "a failed save is no checkpoint"


@pytest.mark.parametrize("jump", [-3600.0, 0.0, 3600.0])
def test_a_checkpoint_that_was_gone_back_to_is_as_old_as_it_says_or_new_and_never_younger(tmp_path, monkeypatch, jump):
    clock = [1_000_000.0]
    monkeypatch.setattr(checkpoints.time, "time", lambda: clock[0])
    store_in(tmp_path, async_=False).save_if_due(1, FakeRun(1.0), {})
    clock[0] += jump
    store = store_in(tmp_path)
    store.restore(FakeRun())
    assert store.figures()["checkpoint/age"] == pytest.approx(max(0.0, jump), abs=60)


# ---------------------------------------------------------------------------------------------- the policy's weights alone
class WithCritic(FakeRun):
    def write_models(self, directory):
        super().write_models(directory)
        (directory / "value").mkdir()
        (directory / "value" / "config.json").write_text("{}")

    def write_policy(self, directory):
        super().write_models(directory)


@pytest.mark.parametrize("is_beside", [True, False], ids=["beside", "in place"])
def test_the_policys_weights_alone_are_saved_between_and_stay(tmp_path, is_beside):
    said = []
    store = store_in(tmp_path, said, rolling_every=4, rolling_keep=2, weights_every=3, async_=is_beside)
    for step in range(15):
        store.save_if_due(step, WithCritic(float(step)), {}, last=step == 0)
    store.wait()
    kept = checkpoints.resumable(store.directory)
    assert kept == {0: True, 3: False, 6: False, 8: True, 9: False, 12: True}
    place = store.directory / "9"
    assert sorted(p.name for p in place.iterdir()) == ["manifest.json", "policy"]
    assert [store.fault(step) for step in kept] == [None] * len(kept)
    assert not said
    assert [(s.step, s.policy_only) for s in store.saves() if s.step in (8, 9)] == [(8, False), (9, True)]


def test_of_a_checkpoint_that_has_had_its_time_the_policy_stays_if_its_step_is_one(tmp_path):
    store = store_in(tmp_path, rolling_every=1, rolling_keep=2, weights_every=2)
    for step in range(1, 7):
        store.save_if_due(step, WithCritic(float(step)), {"eval/reward/mean": float(step)})
    kept = checkpoints.resumable(store.directory) if store.wait() is None else {}
    assert kept == {2: False, 4: False, 5: True, 6: True}
    assert store._manifest(4)["metrics"] == {"eval/reward/mean": 4.0}
    assert [store.fault(step) for step in kept] == [None] * 4
    weights = torch.full((3,), 4.0)
    other = FakeRun()
    other.read_models(store.directory / "4")
    assert torch.equal(other.weights["w"], weights)


def test_a_run_goes_on_from_the_newest_that_has_everything_and_says_what_it_passed_over(tmp_path):
    said = []
    store = store_in(tmp_path, rolling_every=4, weights_every=1)
    for step in range(7):
        store.save_if_due(step, FakeRun(float(step)), {}, last=step == 0)
    store.wait()
    store = store_in(tmp_path, said)
    assert store.newest_good() == 4
    run = FakeRun()
    assert store.restore(run) == 4
    assert run.facts == {"step": 4.0}
    assert said == ["checkpoints 5, 6: hold the policy's weights alone, so the run can go on from 4 at the latest"]
    assert store.rejected == 0


def test_there_are_two_good_ones_to_go_on_from_whatever_else_is_there(tmp_path):
    store = store_in(tmp_path, rolling_every=2, rolling_keep=1, keep=1, weights_every=1)
    for step in range(12):
        store.save_if_due(step, FakeRun(float(step)), {}, last=step == 0)
    store.wait()
    kept = checkpoints.resumable(store.directory)
    assert [step for step, can_go_on in kept.items() if can_go_on] == [0, 8, 10]
    assert len(kept) == 12


def test_none_that_has_everything_is_a_storage_error(tmp_path):
    store = store_in(tmp_path, rolling_every=9, weights_every=1)
    store.save_if_due(1, FakeRun(1.0), {})
    with pytest.raises(StorageError, match=r"none of 1 checkpoints is good \(.*1 holds the policy's weights alone\)"):
        store.newest_good()


def test_the_best_may_be_of_the_policys_weights_alone(tmp_path):
    store = store_in(tmp_path, rolling_every=4, weights_every=1)
    for step, value in enumerate([0.1, 0.2, 0.9, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]):
        store.save_if_due(step, FakeRun(float(step)), {"eval/reward/mean": value})
    assert store.best() == 2
    assert 2 in store.steps()


def test_what_a_run_will_take_of_the_disk_is_said(tmp_path, monkeypatch):
    store = store_in(tmp_path, rolling_keep=3, keep=2, weights_every=4)
    store.expected_bytes = 3 * 2**20
    text = (
        "checkpoints: up to 5 of 3.0 MiB, 2 of the policy's weights alone of 1.0 MiB, and one being written: 20.0 MiB"
    )
    assert store.room(2**20, is_evaluated=True) == text
    monkeypatch.setattr(checkpoints, "free_bytes", lambda _: 2**20)
    assert store.room(2**20, is_evaluated=True).startswith(f"{text}, but only 1.0 MiB are free: lower checkpoint.keep")
