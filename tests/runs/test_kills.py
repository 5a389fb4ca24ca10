"""A run that is killed again and again, at any moment, ends as the run that was not.

The forks, the blows and the comparison are those of `tests.kills`, which needs a process of its own: one with one thread.
"""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kills import subjects
from tests.kills.strike import Course, draw
from tests.runs import small

PROJECT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "tests.kills"]


@pytest.fixture(scope="module")
def outcome_of(tmp_path_factory):
    """Ask for one trial: a run of an algorithm that meets a signal so many times and is started again each time."""
    folder = tmp_path_factory.mktemp("kills")
    words = [*COMMAND, "--serve", "--no-flush", "--folder", str(folder)]
    with (
        (folder / "said.txt").open("w+") as said,
        subprocess.Popen(
            words, cwd=PROJECT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said
        ) as process,
    ):
        assert process.stdout.readline() == "ready\n", (folder / "said.txt").read_text()

        def ask(**trial):
            process.stdin.write(json.dumps(trial) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
            assert answer, (folder / "said.txt").read_text()
            return json.loads(answer)

        yield ask
        process.stdin.close()


@pytest.mark.parametrize("algorithm", subjects.ALGORITHMS)
def test_a_run_killed_four_times_at_random_ends_as_the_undisturbed_one(outcome_of, algorithm):
    outcome = outcome_of(algorithm=algorithm, signal="KILL", seed=1, strikes=4)
    assert outcome["faults"] == [], outcome["strikes"]
    assert outcome["struck"] == 4


@pytest.mark.parametrize(("algorithm", "seed"), [("grpo", 0), ("gspo", 0), ("sft", 4)])
def test_so_does_a_run_that_is_asked_to_end_once_or_twice(outcome_of, algorithm, seed):
    outcome = outcome_of(algorithm=algorithm, signal="TERM", seed=seed, strikes=2)
    assert outcome["faults"] == [], outcome["strikes"]
    assert outcome["struck"] >= 1


def course():
    """Of a run of two steps that saves before and behind them."""
    places = ["start", "ready", *(f"save 0 {n}" for n in range(1, 5)), "step 1", "step 2"]
    places += [*(f"save 2 {n}" for n in range(1, 9)), *(f"end {n}" for n in range(1, 4))]
    operations = {p: "rename" if p.endswith((" 3", " 8")) else "sync" for p in places if p.startswith(("save", "end"))}
    times = {place: 0.1 * n for n, place in enumerate(places)}
    return Course(times=times, operations=operations, total=0.1 * len(places))


def test_half_of_the_kills_fall_anywhere_and_half_between_the_operations_of_a_save():
    blows = [draw(random.Random(seed), course(), None, number=signal.SIGKILL, left=1).blows for seed in range(2000)]
    places = [blow.place for (blow,) in blows]
    aimed = [place for place in places if place.startswith(("save", "end"))]
    assert 900 < len(aimed) < 1100
    assert set(aimed) == {p for p in course().times if p.startswith(("save", "end"))}, "each operation is met"
    assert 400 < sum(course().operations[place] == "rename" for place in aimed) < 600, "rare ones as often as others"
    assert set(places) - set(aimed) == {"start", "ready", "step 1", "step 2"}
    assert 400 < sum(blow.delay is None for (blow,) in blows) < 600, "of the aimed ones half are exactly there"


def test_a_process_that_goes_on_from_a_checkpoint_is_killed_only_in_what_it_still_does():
    strikes = [draw(random.Random(seed), course(), 2, number=signal.SIGKILL, left=1) for seed in range(500)]
    assert {s.blows[0].place.split()[0] for s in strikes} == {"start", "ready", "end"}
    stretches = dict(course().stretches(1))
    assert list(stretches) == ["start", "ready", "step 2"]
    assert sum(stretches.values()) == pytest.approx(0.1 + 0.1 + 1.2)


def test_a_seed_always_draws_the_same_blows():
    def drawn():
        chance = random.Random("ppo SIGTERM 7")
        return [draw(chance, course(), saved, number=signal.SIGTERM, left=2) for saved in (None, 0, 1, 2) * 9]

    assert drawn() == drawn()
    seconds = {blow.signal for strike in drawn() for blow in strike.blows[1:]}
    assert seconds == {signal.SIGTERM, signal.SIGKILL}, "a second SIGTERM, or the SIGKILL of who waits no longer"


# ---------------------------------------------------------------------------------------------------------------- soak
@pytest.mark.soak
@pytest.mark.parametrize(("name", "count"), [("KILL", 1000), ("TERM", 100)])
def test_so_do_hundreds_of_runs(tmp_path, capfd, name, count):
    """SOAK_KILL and SOAK_TERM are other counts; the report is runs/kills-KILL.json."""
    count = int(os.environ.get(f"SOAK_{name}", count))
    words = [*COMMAND, "--signal", name, "--kills", str(count), "--folder", str(tmp_path)]
    with capfd.disabled():
        done = subprocess.run(words, cwd=PROJECT, stdout=sys.__stderr__, check=False)
    report = json.loads((PROJECT / "runs" / f"kills-{name}.json").read_text())
    assert report["faults"] == []
    assert done.returncode == 0
    assert report["ended"] >= count


def train_and_kill(path, target, lines):
    """Start the command and kill it behind so many lines of its output; its exit code."""
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


@pytest.mark.soak
def test_so_does_a_longer_run_in_processes_that_are_not_forked(tmp_path):
    chance = random.Random("grpo")
    path = small.write(tmp_path, "grpo", steps=60, more="")
    path.write_text(path.read_text().replace("rolling_keep: 10", "rolling_keep: 3"))
    whole = small.evidence(small.train(path, tmp_path / "whole"))
    kills = 0
    while (code := train_and_kill(path, tmp_path / "killed", chance.randint(0, 16))) != 0:
        assert code == -9, f"ended with {code}"
        kills += 1
        assert kills < 100
    assert kills >= 3
    assert small.evidence(small.RunDirectory(tmp_path / "killed")) == whole
