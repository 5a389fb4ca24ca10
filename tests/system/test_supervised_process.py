"""`trimtab train --supervise` as it is typed: two real processes, the first of which is killed."""

import subprocess
import sys

import pytest

from tests.runs import small
from tests.runs.supervised import REWARD
from trimtab.operate import supervise
from trimtab.store.run_directory import RunDirectory

pytestmark = pytest.mark.system


def test_a_killed_process_is_started_again_and_the_run_is_the_undisturbed_one(tmp_path):
    (tmp_path / "struck.py").write_text(REWARD)
    path = small.write(tmp_path, steps=5)
    path.write_text(path.read_text().replace("{name: length, options: {max_tokens: 4}}", "{name: 'struck:digits'}"))
    whole = small.train(path, tmp_path / "whole")
    (tmp_path / "calls").unlink()
    (tmp_path / "armed").touch()
    words = [sys.executable, "-m", "trimtab", "train", str(path), "--supervise", "--run-dir", str(tmp_path / "run")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    run = RunDirectory(tmp_path / "run")
    assert [note["signal"] for note in supervise.restarts(run)] == ["SIGKILL"]
    assert small.evidence(run) == small.evidence(whole)
