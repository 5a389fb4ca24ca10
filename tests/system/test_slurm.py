"""deploy/slurm/train.sbatch in a real Slurm of one node that is started for it: `apt-get install slurm-wlm munge`."""

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.runs import small
from trimtab.store import journal
from trimtab.store.run_directory import RunDirectory

ROOT = Path(__file__).parents[2]
SBATCH = ROOT / "deploy" / "slurm" / "train.sbatch"
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "scancel", "srun")
pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(
        any(shutil.which(name) is None for name in PROGRAMS), reason="apt-get install -y slurm-wlm munge"
    ),
    pytest.mark.skipif(os.geteuid() != 0, reason="slurmd starts jobs as root"),
]
CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
ReturnToService=2
SchedulerParameters=sched_interval=1,bf_interval=1
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=1000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
"""Credentials that are short-lived make the pause before a job that was queued again a few seconds, else two minutes."""


def until(condition, what, seconds=120.0):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, what() if callable(what) else what
        time.sleep(0.1)
    return found


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """The environment in which Slurm's programs talk to the controller that runs here."""
    folder = tmp_path_factory.mktemp("slurm")
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o400)
    ports = []
    with socket.socket() as one, socket.socket() as other:
        for listener in (one, other):
            listener.bind(("127.0.0.1", 0))
            ports.append(listener.getsockname()[1])
    host = socket.gethostname().partition(".")[0]
    (folder / "slurm.conf").write_text(CONF.format(folder=folder, ports=ports, host=host, cpus=os.cpu_count()))
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    munge = ["munged", "--foreground", "--force", f"--key-file={folder}/munge.key", f"--socket={folder}/munge.socket"]
    munge += [f"--{name}-file={folder}/munge.{name}" for name in ("pid", "log", "seed")]
    log = (folder / "daemons.txt").open("w")
    started = [subprocess.Popen(munge, stdout=log, stderr=log)]
    try:
        until(lambda: (folder / "munge.socket").exists(), "munged does not start")
        for words in (["slurmctld", "-D"], ["slurmd", "-D", "-N", host]):
            started.append(subprocess.Popen(words, stdout=log, stderr=log, env=environment))
        idle = ["sinfo", "--noheader", "--format=%t"]
        asked = lambda: subprocess.run(idle, capture_output=True, text=True, env=environment).stdout.strip() == "idle"  # noqa: E731
        until(asked, lambda: (folder / "daemons.txt").read_text()[-3000:])
        yield environment
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
        log.close()


class Job:
    def __init__(self, environment, folder, *words, python=sys.executable):
        self.log = folder / "job.log"
        self.environment = {**environment, "TRIMTAB_PYTHON": str(python), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        own = ["--parsable", "--cpus-per-task=1", "--mem=0", f"--output={self.log}", f"--chdir={ROOT}"]
        done = self.ask("sbatch", *own, str(SBATCH), *words)
        assert done.returncode == 0, done.stderr
        self.number = done.stdout.strip()

    def ask(self, *words):
        return subprocess.run([str(w) for w in words], capture_output=True, text=True, env=self.environment)

    def state(self):
        said = self.ask("scontrol", "--oneliner", "show", "job", self.number).stdout
        return dict(word.split("=", 1) for word in said.split() if "=" in word)

    def ends_as(self, state):
        until(lambda: self.state().get("JobState") == state, lambda: f"{self.state()}\n{self.said()}")
        return self.state()

    def said(self):
        return self.log.read_text() if self.log.exists() else ""


def standing_in(folder, *codes):
    """A program instead of Python that ends with these codes, one a start."""
    program = folder / "python"
    listed = " ".join(codes)
    program.write_text(
        f'#!/bin/bash\ncodes=({listed})\necho "$@" >> {folder}/starts\n'
        f"code=${{codes[$(($(wc -l < {folder}/starts) - 1))]}}\n"
        f'[ "$code" = wait ] && {{ trap "exit 75" TERM; while :; do sleep 0.1; done; }}\nexit "$code"\n'
    )
    program.chmod(0o755)
    return program


def starts(folder):
    return len((folder / "starts").read_text().splitlines()) if (folder / "starts").exists() else 0


def test_a_lost_and_a_preempted_run_are_queued_again_until_it_is_done(slurm, tmp_path):
    job = Job(slurm, tmp_path, "a.yaml", tmp_path / "run", python=standing_in(tmp_path, "5", "75", "0"))
    found = job.ends_as("COMPLETED")
    assert found["Restarts"] == "2", job.said()
    assert starts(tmp_path) == 3
    assert "exit code 5, 1 of 5: queued again" in job.said()
    assert "preempted and saved: queued again" in job.said()


def test_a_users_fault_is_not_queued_again(slurm, tmp_path):
    job = Job(slurm, tmp_path, "a.yaml", tmp_path / "run", python=standing_in(tmp_path, "2", "0"))
    assert job.ends_as("FAILED")["ExitCode"] == "2:0"
    assert starts(tmp_path) == 1


def test_a_job_that_is_cancelled_does_not_come_back(slurm, tmp_path):
    job = Job(slurm, tmp_path, "a.yaml", tmp_path / "run", python=standing_in(tmp_path, "wait", "0"))
    until(lambda: starts(tmp_path) == 1, "it does not start")
    job.ask("scancel", job.number)
    assert job.ends_as("CANCELLED").get("Restarts") == "0"
    assert starts(tmp_path) == 1


def test_a_real_run_that_gets_sigterm_saves_and_goes_on_bit_for_bit(slurm, tmp_path):
    path = small.write(tmp_path, steps=20)
    whole = small.train(path, tmp_path / "whole")
    run = RunDirectory(tmp_path / "run")
    job = Job(slurm, tmp_path, path, run.root)
    until(lambda: len(small.steps(run)) >= 2, lambda: job.said())
    job.ask("scancel", "--signal=TERM", job.number)
    assert job.ends_as("COMPLETED")["Restarts"] == "1", job.said()
    assert [e["event"] for e in journal.read(run.journal).events("preempted", "resumed")] == ["preempted", "resumed"]
    assert small.evidence(run) == small.evidence(whole)
