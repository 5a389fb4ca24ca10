"""`trimtab train --supervise`: which endings are followed by another start, and that the run is the undisturbed one."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.runs import small
from trimtab import cli, errors
from trimtab.cli import status
from trimtab.operate import supervise
from trimtab.operate.supervise import Patience
from trimtab.store.run_directory import RunDirectory

CHILD = '''
"""Stands for training: does what the next line of its plan says."""
import json, os, pathlib, signal, sys, time
root = pathlib.Path(sys.argv[1])
plan, calls = root.parent / "plan.txt", root.parent / "calls.txt"
with calls.open("a") as file:
    file.write(json.dumps([os.getpid(), *sys.argv[2:]]) + "\\n")
number = len(calls.read_text().splitlines()) - 1
root.mkdir(exist_ok=True)
for word in plan.read_text().splitlines()[number].split():
    name, _, value = word.partition(":")
    if name == "saved" or name == "weights":
        from trimtab.store.journal import Journal
        more = {"policy_only": True} if name == "weights" else {}
        Journal(root / "journal.jsonl").append("event", event="saved", step=int(value), **more)
    elif name == "rolled":
        from trimtab.store.journal import Journal
        Journal(root / "journal.jsonl").append("event", event="rolled back", step=int(value))
    elif name == "id":
        (root / "run.json").write_text(json.dumps({"id": value}))
    elif name == "fails":
        (root / "failure.json").write_text(json.dumps({"code": int(value), "cause": f"because of {value}"}))
        sys.exit(int(value))
    elif name == "killed":
        os.kill(os.getpid(), int(value))
    elif name == "listen":
        def heard(number, _):
            with (root.parent / "heard.txt").open("a") as file:
                file.write(f"{number}\\n")
            if int(value) >= 0:
                sys.exit(int(value))
        signal.signal(signal.SIGTERM, heard)
        signal.signal(signal.SIGINT, heard)
        (root.parent / "listening.txt").write_text(str(os.getpid()))
        while True:
            time.sleep(60)
    else:
        sys.exit(int(name))
'''
QUICK = Patience(first_seconds=0.001, longest_seconds=0.002)


@pytest.fixture
def planned(tmp_path):
    """Supervise the child that follows a plan: (exit code, its starts, what the supervisor noted, what it said)."""
    (tmp_path / "child.py").write_text(CHILD)

    def run(*plan, once=(), patience=QUICK):
        (tmp_path / "plan.txt").write_text("\n".join(plan))
        directory, said = RunDirectory(tmp_path / "run"), []
        command = [sys.executable, str(tmp_path / "child.py"), str(directory.root)]
        code = supervise.supervise(command, directory, once=once, patience=patience, say=said.append)
        starts = [json.loads(line)[1:] for line in (tmp_path / "calls.txt").read_text().splitlines()]
        return code, starts, supervise.restarts(directory), said

    return run


@pytest.mark.parametrize("code", [0, 1, 2, 3, 4, 130, 77])
def test_a_run_that_is_done_or_cannot_be_helped_is_not_started_again(planned, code):
    assert planned(str(code)) == (code, [[]], [], [])


def test_a_lost_run_is_started_again_and_each_restart_is_noted_with_its_cause(planned):
    code, starts, notes, said = planned("fails:5", "fails:6", f"killed:{signal.SIGSEGV.value}", "0")
    assert code == 0
    assert len(starts) == 4
    assert [(n["event"], n["code"], n["signal"], n["restarts"]) for n in notes] == [
        ("restarted", 5, None, 1),
        ("restarted", 6, None, 2),
        ("restarted", 5, "SIGSEGV", 3),
    ]
    causes = ["because of 5", "because of 6", "the training process was ended by SIGSEGV"]
    assert [n["cause"] for n in notes] == causes
    assert all(0 < n["wait_seconds"] <= 0.002 and n["time"] > 0 for n in notes)
    assert [cause in line for cause, line in zip(causes, said, strict=True)] == [True] * 3


def test_the_limit_ends_it_with_the_last_code_and_failure_json_says_how_often(planned, tmp_path):
    code, starts, notes, said = planned("5", "5", "fails:6", patience=Patience(max_restarts=2, first_seconds=0.001))
    assert code == 6
    assert len(starts) == 3
    assert [n["event"] for n in notes] == ["restarted", "restarted", "gave up"]
    failure = json.loads((tmp_path / "run" / "failure.json").read_text())
    assert (failure["code"], failure["cause"], failure["restarts"]) == (6, "because of 6", 2)
    assert "started it again 2 times" in failure["what_to_do"]
    assert "2 times without a new checkpoint" in said[-1]


def test_a_killed_process_counts_as_lost_and_its_failure_json_is_written_for_it(planned, tmp_path):
    code, _, _, _ = planned(f"killed:{signal.SIGKILL.value}", patience=Patience(max_restarts=0))
    assert code == errors.WorkerError.exit_code
    failure = json.loads((tmp_path / "run" / "failure.json").read_text())
    assert failure["code"] == 5
    assert "SIGKILL, as the system does when memory runs out" in failure["cause"]


def test_the_count_starts_anew_with_each_new_checkpoint(planned):
    code, starts, _, _ = planned("5", "saved:4 5", "saved:8 5", "5", "0", patience=_one_in_a_row())
    assert code == 5
    assert len(starts) == 4, "of the four losses in a row only the last has no new checkpoint since the one before"


def _one_in_a_row():
    return Patience(max_restarts=1, first_seconds=0.001)


@pytest.mark.parametrize(("second", "starts"), [("saved:4", 2), ("weights:9", 2), ("saved:5", 3)])
def test_a_checkpoint_that_was_there_or_cannot_be_gone_on_from_is_no_progress(planned, second, starts):
    found = planned("saved:4 5", f"{second} 5", "5", "5", patience=_one_in_a_row())
    assert len(found[1]) == starts


def test_behind_a_rollback_the_steps_that_are_done_again_are_progress(planned):
    _, starts, _, _ = planned("saved:9 rolled:3 5", "saved:6 5", "5", patience=_one_in_a_row())
    assert len(starts) == 3


def test_preemption_is_followed_by_a_start_that_does_not_count(planned):
    code, starts, notes, _ = planned("75", "75", "75", "5", "0", patience=_one_in_a_row())
    assert code == 0
    assert len(starts) == 5
    assert [n["wait_seconds"] == 0 for n in notes] == [True, True, True, False]


def test_fresh_is_said_once_the_old_run_has_been_moved_aside(planned, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text('{"id": "old"}')
    _, starts, _, _ = planned("5", "id:new 5", "5", "0", once=["--fresh"])
    assert starts == [["--fresh"], ["--fresh"], [], []], "the first was lost before it had done what --fresh asks for"


def test_a_pause_grows_threefold_up_to_a_limit(planned):
    chance = type("Top", (), {"uniform": lambda self, low, high: high})()
    assert [Patience().pause(n, chance) for n in range(6)] == [2, 6, 18, 54, 162, 300]


STARTER = """
import sys
from trimtab.operate.supervise import Patience, supervise
from trimtab.store.run_directory import RunDirectory
root = sys.argv[2]
patience = Patience(first_seconds=float(sys.argv[3]), longest_seconds=1000)
sys.exit(supervise([sys.executable, sys.argv[1], root], RunDirectory(__import__("pathlib").Path(root)), patience=patience))
"""


@pytest.fixture
def beside(tmp_path):
    """A supervisor in a process of its own, over the child that follows a plan."""
    (tmp_path / "child.py").write_text(CHILD)
    started = []

    def start(*plan, pause=0.001):
        (tmp_path / "plan.txt").write_text("\n".join(plan))
        words = [sys.executable, "-c", STARTER, str(tmp_path / "child.py"), str(tmp_path / "run"), str(pause)]
        started.append(subprocess.Popen(words))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def until(condition, seconds=30.0):
    """Wait for something to become true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)
    return found


def content(path):
    return path.read_text() if path.is_file() else ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_supervisor_reaches_the_process_and_its_code_is_returned(beside, tmp_path, number):
    supervisor = beside("listen:75", "0")
    until(lambda: content(tmp_path / "listening.txt"))
    supervisor.send_signal(number)
    assert supervisor.wait(30) == 75
    assert content(tmp_path / "heard.txt").split() == [str(int(number))]
    assert len(content(tmp_path / "calls.txt").splitlines()) == 1, "told to stop, it does not start it again"


def test_a_second_signal_is_passed_on_too(beside, tmp_path):
    supervisor = beside("listen:-1")
    child = int(until(lambda: content(tmp_path / "listening.txt")))
    for count in (1, 2):
        supervisor.send_signal(signal.SIGINT)
        until(lambda count=count: len(content(tmp_path / "heard.txt").split()) == count)
    os.kill(child, signal.SIGINT + 7)  # SIGKILL: an ending that would be retried, had nobody told it to stop
    assert supervisor.wait(30) == 5
    assert len(content(tmp_path / "calls.txt").splitlines()) == 1


def test_a_signal_in_a_pause_ends_it_at_once(beside, tmp_path):
    supervisor = beside("5", "0", pause=1000)
    until(lambda: content(tmp_path / "run" / "supervisor.jsonl"))
    supervisor.terminate()
    assert supervisor.wait(30) == 75
    assert len(content(tmp_path / "calls.txt").splitlines()) == 1


@pytest.mark.skipif(not supervise.can_tie(), reason="only Linux ends a process with its parent")
def test_a_process_does_not_outlive_a_supervisor_that_was_killed(beside, tmp_path):
    supervisor = beside("listen:-1")
    child = int(until(lambda: content(tmp_path / "listening.txt")))
    supervisor.kill()
    supervisor.wait()
    until(lambda: not _is_alive(child))


def _is_alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def test_a_run_whose_process_is_killed_ends_as_the_undisturbed_one(tmp_path):
    words = [sys.executable, "-m", "tests.runs.supervised", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stdout + done.stderr
    whole, run = RunDirectory(tmp_path / "whole"), RunDirectory(tmp_path / "run")
    assert not (tmp_path / "armed").exists(), "it was not killed"
    (note,) = supervise.restarts(run)
    assert (note["signal"], note["event"]) == ("SIGKILL", "restarted")
    assert 0 < note["checkpoint"] < 4, "in the middle of the run"
    assert len(small.evidence(whole)) == 4
    assert small.evidence(run) == small.evidence(whole)
    assert not run.failure.exists()
    assert [r["cause"] for r in status.describe(run.root)["restarts"]] == [note["cause"]]


def test_status_tells_of_restarts(tmp_path, planned, monkeypatch, capsys):
    planned("5", "fails:6", "0")
    found = {"name": "a", "algorithm": "grpo", "step": 1, "max_steps": 2, "state": "running", "metrics": {}}
    lists = {key: [] for key in ("checkpoints", "weights_only", "alarms", "events", "damaged_lines")}
    notes = supervise.restarts(RunDirectory(tmp_path / "run"))
    monkeypatch.setattr(
        status, "describe", lambda _: {**found, **lists, "drill": None, "store": None, "restarts": notes}
    )
    status.status(tmp_path / "run")
    assert re.search(r"restarts +2, the newest \d{4}-\d\d-\d\d \d\d:\d\d: because of 6", capsys.readouterr().out)


def test_the_process_is_the_same_command_without_what_is_the_supervisors(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        supervise, "supervise", lambda command, directory, **more: asked.append((command, directory.root, more)) or 0
    )
    monkeypatch.setattr(
        sys, "argv", ["trimtab", "train", "a.yaml", "--supervise", "kl.coef=0.1", "--fresh", "--max-restarts", "2"]
    )
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 0
    ((command, root, more),) = asked
    assert command == [sys.executable, "-m", "trimtab", "train", "a.yaml", "--run-dir", "runs/a", "kl.coef=0.1"]
    assert (root, more) == (Path("runs/a"), {"once": ["--fresh"], "patience": Patience(max_restarts=2)})


def test_beside_torchrun_it_is_refused_with_what_to_do(tmp_path):
    environment = {**os.environ, "TORCHELASTIC_RUN_ID": "none"}
    words = [sys.executable, "-m", "trimtab", "train", str(small.write(tmp_path)), "--supervise"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 2
    assert "leave --supervise out and give torchrun --max-restarts=N" in done.stderr


def test_the_supervisor_does_not_load_torch_and_a_limit_needs_one(tmp_path):
    code = (
        "import sys, trimtab.cli, trimtab.operate.supervise; print([m for m in ('torch', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n"
    words = [sys.executable, "-m", "trimtab", "train", str(small.write(tmp_path)), "--max-restarts", "3"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, "only --supervise starts a run again" in done.stderr) == (2, True)
