"""Starting the processes of a run: what they find around them, which exit code explains the run, signals, their ends."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trimtab.cluster import local, torchrun
from trimtab.errors import UserError
from trimtab.operate import supervise
from trimtab.operate.start import _refuse_other_processes
from trimtab.store.run_directory import RunDirectory
from trimtab.train.settings import Cluster

RANK = '''
"""Stands for a rank: does what its line of the plan says."""
import json, os, pathlib, signal, sys, time
root = pathlib.Path(sys.argv[1])
rank = int(os.environ["RANK"])
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")
(root.parent / f"around-{rank}.json").write_text(json.dumps({name: os.environ.get(name) for name in names}))

def until(path):
    while not path.exists():
        time.sleep(0.005)

for word in (root.parent / "plan.txt").read_text().splitlines()[rank].split():
    name, _, value = word.partition(":")
    if name == "say":
        print(value, flush=True)
    elif name == "fails":
        (root / "failure.json").write_text(json.dumps({"code": int(value), "cause": f"rank {rank} says {value}"}))
    elif name == "done":
        (root.parent / f"done-{value}").touch()
    elif name == "after":
        until(root.parent / f"done-{value}")
    elif name == "after-pid":  # the end of another rank, as a broken connection tells it
        until(root.parent / f"pid-{value}")
        pid = int((root.parent / f"pid-{value}").read_text())
        while pathlib.Path(f"/proc/{pid}/stat").exists() and " Z " not in pathlib.Path(f"/proc/{pid}/stat").read_text():
            time.sleep(0.005)
    elif name == "killed":
        os.kill(os.getpid(), int(value))
    elif name == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif name == "listen":
        def heard(number, _):
            with (root.parent / f"heard-{rank}.txt").open("a") as file:
                file.write(f"{number}\\n")
            if len((root.parent / f"heard-{rank}.txt").read_text().split()) == int(value.split("=")[0]):
                os._exit(int(value.split("=")[1]))
        signal.signal(signal.SIGTERM, heard)
        signal.signal(signal.SIGINT, heard)
        (root.parent / f"listening-{rank}").touch()
        while True:
            time.sleep(60)
    elif name == "pid":
        (root.parent / "new").write_text(str(os.getpid()))
        (root.parent / "new").rename(root.parent / f"pid-{rank}")
    elif name == "sleep":
        while True:
            time.sleep(60)
    else:
        sys.exit(int(name))
'''
STARTER = """
import sys, pathlib
from trimtab.cluster import local
from trimtab.store.run_directory import RunDirectory
root = pathlib.Path(sys.argv[2])
sys.exit(local.launch([sys.executable, sys.argv[1], str(root)], RunDirectory(root), int(sys.argv[3])))
"""
QUICK = local.Patience(settling=0.2, grace=0.2)
CALM = local.Patience(settling=60, grace=60)


@pytest.fixture
def planned(tmp_path):
    """Launch ranks that follow a plan: (exit code, what was said, failure.json)."""
    (tmp_path / "rank.py").write_text(RANK)
    directory = RunDirectory(tmp_path / "run")
    directory.root.mkdir()

    def run(*plan, patience=CALM):
        (tmp_path / "plan.txt").write_text("\n".join(plan))
        said = []
        command = [sys.executable, str(tmp_path / "rank.py"), str(directory.root)]
        code = local.launch(command, directory, len(plan), patience=patience, say=said.append)
        return code, said, json.loads(directory.failure.read_text()) if directory.failure.exists() else None

    return run


def test_each_rank_finds_around_it_who_it_is(planned, tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(local, "available_cores", lambda: 7)
    assert planned("0", "0", "0") == (0, [], None)
    found = [json.loads((tmp_path / f"around-{rank}.json").read_text()) for rank in range(3)]
    ports = {around.pop("MASTER_PORT") for around in found}
    assert len(ports) == 1
    assert 0 < int(ports.pop()) < 65536
    assert found == [
        {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3",
            "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "2",
        }
        for rank in range(3)
    ]  # fmt: skip


def test_threads_that_somebody_has_set_stay_and_there_is_one_at_least():
    assert local.environment({"OMP_NUM_THREADS": "5"}, 0, 2, port=1, cores=2)["OMP_NUM_THREADS"] == "5"
    assert local.environment({}, 0, 4, port=1, cores=2)["OMP_NUM_THREADS"] == "1"


KILLED = f"killed:{signal.SIGKILL.value}"


@pytest.mark.parametrize(
    ("plan", "code"),
    [
        (("2", "2"), 2),
        (("after:x 5", "done:x fails:4 4"), 4),
        (("5", "6"), 6),
        (("0", "75"), 75),
        (("130", "130"), 130),
        (("after:x 5", "done:x 1"), 1),
        (("pid 5", "after-pid:0 1"), 1),
        (("after-pid:1 fails:5 5", f"pid {KILLED}"), 5),
        (("after-pid:1 1", f"pid {KILLED}"), 5),
        (("after-pid:1 fails:4 4", f"pid {KILLED}"), 4),
        (("0", "77"), 77),
    ],
    ids=lambda value: "-".join(value).replace(" ", "_") if isinstance(value, tuple) else str(value),
)
def test_the_code_is_that_of_the_rank_that_explains_the_end(planned, plan, code):
    assert planned(*plan)[0] == code


@pytest.mark.parametrize(
    ("codes", "told", "code"),
    [
        ([4, 3], [], 4),
        ([3, 4], [], 3),
        ([5, 1, 3], [], 3),
        ([5, 1, -9], [], 5),
        ([0, -15, 5], [15], 75),
        ([5, -2], [2], 130),
        ([-15, 4], [], 4),
    ],
)
def test_of_several_that_say_why_the_first_counts(tmp_path, codes, told, code):
    """Given in the order in which the ranks have ended."""
    said = []
    launcher = local.Launcher([], RunDirectory(tmp_path / "none"), len(codes), QUICK, said.append, told)
    launcher._ended += [local._Rank(n, None, returncode=found) for n, found in enumerate(codes)]
    assert launcher._concluded(None) == code


def test_a_rank_that_is_killed_counts_as_lost_and_failure_json_names_it(planned):
    code, said, failure = planned("after-pid:1 fails:5 5", f"pid say:hello {KILLED}")
    assert code == failure["code"] == 5
    cause = "the process of rank 1 was ended by SIGKILL, as the system does when memory runs out"
    assert failure["cause"] == f"WorkerError: {cause}"
    assert said == [cause, "the last that the process of rank 1 has said:", "  hello"]


def test_the_first_rank_is_killed_and_nobody_else_can_write_failure_json(planned):
    code, said, failure = planned(f"pid {KILLED}", "after-pid:0 5")
    assert (code, failure["code"]) == (5, 5)
    assert "rank 0 was ended by SIGKILL" in failure["cause"]
    assert len(said) == 1


def test_a_failure_json_that_says_why_stays(planned):
    _, _, failure = planned("after-pid:1 5", "pid fails:4 4")
    assert failure["cause"] == "rank 1 says 4"


def test_a_fault_of_another_rank_is_shown_and_written_over_what_the_first_could_only_guess(planned):
    code, said, failure = planned("after:x fails:5 5", "say:one say:two done:x 1")
    assert code == failure["code"] == 1
    assert failure["cause"] == "the process of rank 1 ended with exit code 1: two"
    assert said[0] == "the process of rank 1 ended with exit code 1"
    assert said[-2:] == ["  one", "  two"]


def test_an_old_failure_json_is_not_taken_for_this_end(planned, tmp_path):
    (tmp_path / "run" / "failure.json").write_text('{"code": 4, "cause": "long ago"}')
    assert planned(KILLED, "sleep", patience=QUICK)[2]["code"] == 5


def test_what_all_ranks_say_alike_is_shown_once(planned):
    _, said, failure = planned("2", "say:again 2")
    assert (said, failure) == ([], None)


def test_only_the_last_lines_of_a_rank_are_kept(planned):
    words = " ".join(f"say:line-{n}" for n in range(local.LAST_LINES + 5))
    _, said, _ = planned("5", f"{words} 4")
    assert [line.strip() for line in said[2:]] == [f"line-{n}" for n in range(5, local.LAST_LINES + 5)]


def test_a_rank_that_goes_on_alone_is_ended_by_force_at_last(planned):
    code, said, _ = planned("4", "deaf done:x sleep", patience=QUICK)
    assert code == 4
    assert said == ["the process of rank 1 went on alone and was ended"]


def test_what_a_rank_ends_with_because_it_was_told_to_explains_nothing(planned):
    assert planned("after:x 5", "done:x listen:1=3", patience=QUICK)[0] == 5


def test_a_rank_that_is_done_ends_no_other(planned):
    """The first one may save and report long after the others have nothing to do."""
    nothing = local.Patience(settling=0.0, grace=0.0)
    assert planned("after-pid:1 0", "pid 0", patience=nothing) == (0, [], None)
    assert planned("after-pid:1 75", "pid 75", patience=nothing) == (75, [], None)


# ------------------------------------------------------------------------------------------------------------ signals
@pytest.fixture
def beside(tmp_path):
    """A launcher in a process of its own, over ranks that follow a plan."""
    (tmp_path / "rank.py").write_text(RANK)
    (tmp_path / "run").mkdir()
    started = []

    def start(*plan):
        (tmp_path / "plan.txt").write_text("\n".join(plan))
        words = [sys.executable, "-c", STARTER, str(tmp_path / "rank.py"), str(tmp_path / "run"), str(len(plan))]
        started.append(subprocess.Popen(words, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def until(condition, seconds=60.0):
    """Wait for something to become true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)
    return found


def heard(folder, rank):
    file = folder / f"heard-{rank}.txt"
    return file.read_text().split() if file.exists() else []


def test_a_signal_reaches_every_rank_and_so_does_the_second(beside, tmp_path):
    launcher = beside("listen:2=130", "listen:2=130")
    until(lambda: all((tmp_path / f"listening-{rank}").exists() for rank in range(2)))
    for count in (1, 2):
        launcher.send_signal(signal.SIGINT)
        until(lambda count=count: all(len(heard(tmp_path, rank)) == count for rank in range(2)))
    assert launcher.wait(60) == 130


def test_sigterm_is_what_it_is_to_the_trainer(beside, tmp_path):
    launcher = beside("listen:1=75", "listen:1=75")
    until(lambda: all((tmp_path / f"listening-{rank}").exists() for rank in range(2)))
    launcher.terminate()
    assert launcher.wait(60) == 75
    assert [heard(tmp_path, rank) for rank in range(2)] == [[str(int(signal.SIGTERM))]] * 2


def test_a_rank_that_dies_of_the_signal_itself_had_nothing_to_save(beside, tmp_path):
    launcher = beside("pid sleep", "pid sleep")
    pids = [int(until(lambda rank=rank: content(tmp_path / f"pid-{rank}"))) for rank in range(2)]
    launcher.terminate()
    assert launcher.wait(60) == 75
    assert not any(map(_is_alive, pids))
    assert not (tmp_path / "run" / "failure.json").exists()


@pytest.mark.skipif(not supervise.can_tie(), reason="only Linux ends a process with its parent")
def test_no_rank_outlives_a_launcher_that_was_killed(beside, tmp_path):
    launcher = beside("pid deaf sleep", "pid deaf sleep")
    pids = [int(until(lambda rank=rank: content(tmp_path / f"pid-{rank}"))) for rank in range(2)]
    launcher.kill()
    launcher.wait()
    until(lambda: not any(map(_is_alive, pids)))


def content(path):
    return path.read_text() if path.is_file() else ""


def _is_alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


# ------------------------------------------------------------------------------------------------- who starts them
@pytest.fixture
def around(monkeypatch):
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    return lambda **found: [monkeypatch.setenv(name, value) for name, value in found.items()]


@pytest.mark.parametrize(
    ("asked", "found", "starts"),
    [
        (Cluster(), {}, False),
        (Cluster(processes=2), {}, True),
        (Cluster(processes=2), {"RANK": "0", "WORLD_SIZE": "1"}, True),
        (Cluster(processes=2), {"RANK": "1", "WORLD_SIZE": "2"}, False),
        (Cluster(), {"RANK": "1", "WORLD_SIZE": "4"}, False),
        (Cluster(launcher="torchrun"), {"RANK": "1", "WORLD_SIZE": "4"}, False),
        (Cluster(launcher="torchrun"), {"RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "none"}, False),
        (Cluster(launcher="torchrun", processes=4), {"RANK": "1", "WORLD_SIZE": "4"}, False),
    ],
)
def test_who_starts_the_processes(around, asked, found, starts):
    around(**found)
    assert local.starts_processes(asked, Path("a.yaml")) is starts


@pytest.mark.parametrize(
    ("asked", "found", "message"),
    [
        (Cluster(launcher="torchrun", processes=2), {}, "`torchrun --standalone --nproc-per-node=2 -m trimtab train a"),
        (Cluster(launcher="torchrun"), {}, "nproc-per-node=N -m trimtab train a.yaml"),
        (Cluster(processes=2), {"RANK": "1", "WORLD_SIZE": "4"}, "processes: 2, but torchrun has started 4"),
        (Cluster(processes=2), {"RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "x"}, "has started 1"),
        (Cluster(launcher="torchrun", processes=2), {"RANK": "1", "WORLD_SIZE": "3"}, "has started 3"),
    ],
)
def test_processes_that_were_not_started_as_the_configuration_says_are_refused(around, asked, found, message):
    around(**found)
    with pytest.raises(UserError, match=message):
        local.starts_processes(asked, Path("a.yaml"))


def test_more_processes_than_gpus_are_refused(around, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    around(RANK="0", LOCAL_RANK="0", WORLD_SIZE="3", LOCAL_WORLD_SIZE="3")
    with pytest.raises(UserError, match=r"processes: 3 on this machine, but it has 2 GPUs .* use at most 2"):
        torchrun.refuse_more_than_devices()
    with pytest.raises(UserError, match="it has 2 GPUs"), torchrun.joined():
        pytest.fail("it has begun")
    around(WORLD_SIZE="6", LOCAL_WORLD_SIZE="2")
    assert torchrun.refuse_more_than_devices() is None


def test_only_the_command_line_starts_other_processes():
    from trimtab import config as configs

    words = {"algorithm": "grpo", "policy": {"model": "builtin:tiny"}, "data": {"train": "builtin:addition"}}
    config = configs.from_mapping({**words, "rewards": ["exact_match"], "cluster": {"processes": 2}})
    with pytest.raises(UserError, match="only the command line starts other processes, and here there is 1"):
        _refuse_other_processes(config, 1)
    assert _refuse_other_processes(config, 2) is None


def test_a_launcher_loads_no_torch():
    code = "import sys, trimtab.cli, trimtab.cluster.local; print([m for m in ('torch', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ)
    assert done.stdout == "[]\n"
