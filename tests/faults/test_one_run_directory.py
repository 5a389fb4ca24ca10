"""A run directory has one trainer, however many are started at once."""

import subprocess
import sys

import pytest

from trimtab.store.run_directory import RunDirectory

STARTS = 20

CONTENDER = """
import sys
from pathlib import Path
from trimtab.errors import UserError
from trimtab.store.run_directory import RunDirectory

directory = RunDirectory(Path(sys.argv[1]))
print("ready", flush=True)
while sys.stdin.readline() == "start\\n":
    try:
        with directory.locked():
            print("trains", flush=True)
            sys.stdin.readline()
    except UserError as error:
        print("refused:", error.exit_code, error, flush=True)
        sys.stdin.readline()
    print("ended", flush=True)
"""


@pytest.fixture
def run(tmp_path):
    run = RunDirectory(tmp_path / "run")
    run.create()
    return run


@pytest.fixture
def contenders(run):
    found = [
        subprocess.Popen(
            [sys.executable, "-c", CONTENDER, str(run.root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(STARTS)
    ]
    assert [hear(process) for process in found] == ["ready"] * STARTS
    yield found
    for process in found:
        process.kill()
        process.communicate()


def hear(process):
    return process.stdout.readline().strip()


def tell(processes, word):
    for process in processes:
        process.stdin.write(f"{word}\n")
        process.stdin.flush()


def winners(processes):
    """Who trains, after all have started; everybody else was refused and told why."""
    tell(processes, "start")
    answers = {process: hear(process) for process in processes}
    losers = [answer for answer in answers.values() if answer != "trains"]
    assert all(answer.startswith("refused: 2 ") and "another process trains here" in answer for answer in losers)
    return [process for process, answer in answers.items() if answer == "trains"]


def test_of_twenty_starts_at_once_exactly_one_trains_every_time_and_a_killed_one_is_in_nobodys_way(run, contenders):
    for _ in range(5):
        assert len(winners(contenders)) == 1
        assert run.is_locked()
        tell(contenders, "end")
        assert [hear(process) for process in contenders] == ["ended"] * STARTS
        assert not run.is_locked()
    (killed,) = winners(contenders)
    killed.kill()
    killed.wait()
    rest = [process for process in contenders if process is not killed]
    tell(rest, "end")
    assert [hear(process) for process in rest] == ["ended"] * (STARTS - 1)
    assert not run.is_locked()
    (heir,) = winners(rest)
    assert (run.root / "lock").read_text().startswith(f"pid {heir.pid} on ")
