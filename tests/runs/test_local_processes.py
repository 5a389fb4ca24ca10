"""`cluster.processes=2`: `trimtab train` starts two processes, which make the steps of one and are watched as one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runs import small
from tests.runs.test_torchrun import CONFIG, compare
from trimtab.cli import check
from trimtab.cli.page import Page
from trimtab.operate import finish, supervise
from trimtab.store import journal
from trimtab.store.run_directory import RunDirectory

TWO = "cluster.processes=2"
WORDS = ["guard.rules={kl_update: {then: warn}}", "checkpoint.rolling_every=1"]
REWARD = """
import os, pathlib, signal
HERE = pathlib.Path(__file__).parent

def digits(completions, **_):
    if os.environ["RANK"] == "1":
        calls = HERE / "calls"
        number = int(calls.read_text()) + 1 if calls.exists() else 1
        calls.write_text(str(number))
        if number == 4 and (HERE / "armed").exists():
            (HERE / "armed").unlink()
            os.kill(os.getppid(), signal.SIGKILL)
    return [sum(c.isdigit() for c in text) / 10 for text in completions]
"""
"""Kills the second process of the run in the middle of a step, once."""


def train(path, root, *words):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "trimtab", "train", str(path), "--run-dir", str(root), *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=500)


def test_two_processes_make_the_steps_of_one_and_one_speaks(tmp_path, monkeypatch):
    monkeypatch.setattr(finish, "write_report", lambda *_, **__: [])
    path = tmp_path / "grpo.yaml"
    path.write_text(CONFIG.format(algorithm="grpo"))
    alone = small.train(path, tmp_path / "alone", *WORDS)
    done = train(path, tmp_path / "two", *WORDS, TWO)
    assert done.returncode == 0, done.stdout + done.stderr
    two = RunDirectory(tmp_path / "two")
    compare(journal.read(alone.journal), journal.read(two.journal), two.facts())
    assert done.stdout.count("all steps done") == 1
    assert two.final.is_dir()


@pytest.mark.soak
def test_a_run_one_of_whose_processes_is_killed_ends_as_the_undisturbed_one(tmp_path):
    (tmp_path / "struck.py").write_text(REWARD)
    path = small.write(tmp_path, steps=4)
    path.write_text(path.read_text().replace("{name: length, options: {max_tokens: 4}}", "{name: 'struck:digits'}"))
    done = train(path, tmp_path / "whole", TWO)
    assert done.returncode == 0, done.stdout + done.stderr
    (tmp_path / "calls").unlink()
    (tmp_path / "armed").touch()
    done = train(path, tmp_path / "run", TWO, "--supervise")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (tmp_path / "armed").exists(), "it was not killed"
    whole, run = RunDirectory(tmp_path / "whole"), RunDirectory(tmp_path / "run")
    (note,) = supervise.restarts(run)
    assert (note["code"], note["signal"], note["event"]) == (5, None, "restarted")
    assert "the process of rank 1 was ended by SIGKILL" in note["cause"]
    assert 0 < note["checkpoint"] < 4, "in the middle of the run"
    assert len(small.evidence(whole)) == 4
    assert small.evidence(run) == small.evidence(whole)
    assert not run.failure.exists()


@pytest.mark.soak
def test_a_run_goes_on_with_another_number_of_processes_and_says_so(tmp_path):
    path = small.write(tmp_path, steps=2)
    assert train(path, tmp_path / "run").returncode == 0
    done = train(path, tmp_path / "run", TWO, "train.max_steps=3")
    assert done.returncode == 0, done.stdout + done.stderr
    changed = [line for line in done.stdout.splitlines() if "need not be those of an uninterrupted run" in line]
    assert len(changed) == 1
    assert "processes" in changed[0]
    run = RunDirectory(tmp_path / "run")
    assert [s["step"] for s in small.steps(run)] == [1, 2, 3]


def test_what_is_wrong_is_refused_before_any_process_is_started(tmp_path):
    path = small.write(tmp_path, steps=2)
    done = train(path, tmp_path / "run", "cluster.processes=5")
    assert done.returncode == 2
    assert "cluster.processes: 5, but a step has train.prompts_per_step: 4" in done.stderr
    assert json.loads((tmp_path / "run" / "failure.json").read_text())["code"] == 2
    done = train(path, tmp_path / "other", "cluster.launcher=torchrun", TWO)
    assert done.returncode == 2
    assert f"`torchrun --standalone --nproc-per-node=2 -m trimtab train {path}`" in done.stderr
    assert not Path(tmp_path / "other" / "journal.jsonl").exists()


def test_check_shows_the_processes_and_counts_the_memory_of_all(tmp_path):
    path = small.write(tmp_path)

    def found(*words):
        page = Page(is_silent=True, found={"ok": False})
        check._examine(page, path, list(words), None, tmp_path / "run")
        return page.found

    one, two = found(), found(TWO)
    assert "processes" not in one
    assert two["processes"] == {"count": 2, "launcher": "local"}
    of_the_run = one["memory"]["peak_bytes"] - one["memory"]["program_bytes"]
    assert two["memory"]["peak_bytes"] == 2 * (two["memory"]["program_bytes"] + of_the_run)
    elsewhere = found("cluster={launcher: torchrun, processes: 2}")["memory"]
    assert elsewhere["peak_bytes"] == elsewhere["program_bytes"] + of_the_run
