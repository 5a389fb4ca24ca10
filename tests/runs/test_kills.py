"""A run that is killed again and again, at any moment, ends as the run that was not."""

import os
import random
import subprocess
import sys

import pytest

from tests.runs import small

pytestmark = pytest.mark.soak
STEPS = 60


def train_and_kill(path, target, lines):
    """Start the command and kill it behind so many lines of its output; whether it ended by itself before."""
    command = [sys.executable, "-m", "trimtab", "train", str(path), "--run-dir", str(target)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        for number, _ in enumerate(process.stdout):
            if number >= lines:
                process.kill()
                break
        process.stdout.read()
    return process.returncode


@pytest.mark.parametrize("algorithm", ["grpo", "ppo", "sft"])
def test_a_run_killed_at_random_ends_as_the_undisturbed_one(tmp_path, algorithm):
    chance = random.Random(algorithm)
    path = small.write(tmp_path, algorithm, steps=STEPS, more="")
    path.write_text(path.read_text().replace("rolling_keep: 10", "rolling_keep: 3"))
    whole = small.evidence(small.train(path, tmp_path / "whole"))
    kills = 0
    while (code := train_and_kill(path, tmp_path / "killed", chance.randint(0, 16))) != 0:
        assert code == -9, f"ended with {code}"
        kills += 1
        assert kills < 100
    print(f"{algorithm}: {kills} kills")
    assert kills >= 3
    assert small.evidence(small.RunDirectory(tmp_path / "killed")) == whole
