"""Starting the processes of a run on this machine, as torchrun does, with the exit codes' contract kept.

The launcher loads no torch. It starts one process a rank, each the same command with the environment that says who it is,
and waits. The first rank has the launcher's output; of the others the last lines are kept, and shown if one of them is
why the run ended. Signals are passed on to all, as they come.

When a rank fails, the others get time to end by themselves, since a broken connection tells most of them at once and one
of them may know why; then SIGTERM, then SIGKILL. The launcher ends with the code of the rank that explains it:

    2 3 4 6 75 130         said on purpose; of several the first
    death by a signal      5; failure.json is written for it
    1 and others           a fault
    5                      of a rank that noticed that another one is gone
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trimtab.assemble.numerics import available_cores
from trimtab.cluster import torchrun
from trimtab.errors import Preempted, UserError
from trimtab.operate import supervise
from trimtab.secrets import redact
from trimtab.store.run_directory import RunDirectory
from trimtab.train.settings import Cluster

PEACEFUL = (0, Preempted.exit_code)
"""Codes with which all ranks end together, each when its work is done."""
ON_PURPOSE = (2, 3, 4, 6, Preempted.exit_code, 130)
LAST_LINES = 20
"""Of a rank's output, kept to be shown."""
PIECE = 4096
"""Bytes of a line that are read at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """With the ranks that go on when one has failed, in seconds."""

    settling: float = 20.0
    """Until SIGTERM."""
    grace: float = 10.0
    """From SIGTERM to SIGKILL."""


def starts_processes(asked: Cluster, config: Path) -> bool:
    """Whether this process is to start those that train, and does not train itself.

    Raises:
        UserError: it was not started as the configuration says.
    """
    started, wanted = torchrun.processes_started(), asked.processes
    if started is None:
        if asked.launcher == "local":
            return wanted > 1
        number = wanted if wanted > 1 else "N"
        command = f"torchrun --standalone --nproc-per-node={number} -m trimtab train {config}"
        raise UserError(f"cluster.launcher: torchrun, but torchrun has not started this process; use `{command}`")
    if wanted not in (1, started):
        raise UserError(
            f"cluster.processes: {wanted}, but torchrun has started {started}; start as many, or leave "
            "cluster.processes at 1, which takes as many as there are"
        )
    return False


def launch(
    command: Sequence[str],
    directory: RunDirectory,
    processes: int,
    *,
    patience: Patience | None = None,
    say: Callable[[str], None] | None = None,
) -> int:
    """Run a command as so many ranks until all have ended; the exit code that explains it.

    Args:
        command: trains in the directory.
        directory: of the run.
        processes: ranks.
        patience: with those that go on when one has failed.
        say: what happened, in lines.
    """
    return Launcher(command, directory, processes, patience or Patience(), say or _aloud).run()


@dataclass(slots=True)
class _Rank:
    """One of the processes."""

    number: int
    child: subprocess.Popen[bytes]
    last: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_LINES))
    reader: threading.Thread | None = None
    returncode: int | None = None
    is_ended_by_us: bool = False
    """It was told to end, or killed, since another one had failed."""

    @property
    def code(self) -> int:
        """In the exit codes' contract."""
        returncode = self.returncode or 0
        return supervise.LOST if returncode < 0 else returncode

    @property
    def name(self) -> str:
        return f"the process of rank {self.number}"

    @property
    def failed(self) -> bool:
        return self.returncode is not None and self.code not in PEACEFUL

    def said(self) -> list[str]:
        if self.reader is not None:
            self.reader.join(1.0)  # a process that it has started may still hold the pipe
        return list(self.last)


@dataclass(slots=True)
class Launcher:
    command: Sequence[str]
    directory: RunDirectory
    processes: int
    patience: Patience
    say: Callable[[str], None]
    _told: list[int] = field(default_factory=list)
    _ended: list[_Rank] = field(default_factory=list)
    """In the order in which they have."""

    def run(self) -> int:
        before = supervise.written(self.directory.failure)
        with supervise.listening(self._told.append) as (heard, bell):
            ranks: list[_Rank] = []
            waiting: list[threading.Thread] = []
            try:
                self._start(ranks)
                waiting += [threading.Thread(target=self._await, args=(rank, bell)) for rank in ranks]
                for thread in waiting:
                    thread.start()
                self._watch(ranks, heard)
            finally:
                for rank in ranks:
                    if rank.returncode is None:
                        rank.child.kill()
                for thread in waiting:
                    thread.join()  # before the bell is gone
        return self._concluded(before)

    def _start(self, ranks: list[_Rank]) -> None:
        port, cores = _free_port(), available_cores()
        for number in range(self.processes):
            others = None if number == 0 else subprocess.PIPE
            child = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=others,
                stderr=None if number == 0 else subprocess.STDOUT,
                env=environment(os.environ, number, self.processes, port=port, cores=cores),
                process_group=0,
                preexec_fn=supervise.tied_to(os.getpid()),
            )
            rank = _Rank(number, child)
            ranks.append(rank)
        for rank in ranks[1:]:  # no thread runs while a process is forked
            rank.reader = threading.Thread(target=_keep_last, args=(rank,), daemon=True)
            rank.reader.start()

    def _await(self, rank: _Rank, bell: int) -> None:
        rank.returncode = rank.child.wait()
        self._ended.append(rank)
        os.write(bell, b"!")

    def _watch(self, ranks: Sequence[_Rank], heard: int) -> None:
        """Until all have ended."""
        passed_on, deadline = 0, float("inf")
        steps = deque([(signal.SIGTERM, self.patience.grace), (signal.SIGKILL, float("inf"))])
        while running := [rank for rank in ranks if rank.returncode is None]:
            wait = deadline - time.monotonic()
            select.select([heard], [], [], None if wait == float("inf") else max(0.0, wait))
            _emptied(heard)
            for number in self._told[passed_on:]:
                passed_on += 1
                for rank in running:
                    rank.child.send_signal(number)
            if len(steps) == 2 and deadline == float("inf") and any(rank.failed for rank in ranks):
                deadline = time.monotonic() + self.patience.settling
            if time.monotonic() >= deadline:
                number, seconds = steps.popleft()
                deadline = time.monotonic() + seconds
                for rank in running:
                    rank.is_ended_by_us = True
                    rank.child.send_signal(number)

    # ---------------------------------------------------------------------------------------------- what it came to
    def _concluded(self, before: int | None) -> int:
        """The exit code; says and writes down what the ranks could not.

        Args:
            before: when failure.json had been written before the start.
        """
        rank = self._explains()
        if rank is None:
            return 0
        code = self._code_of(rank)
        for other in self._ended:
            if other.is_ended_by_us:
                self.say(f"{other.name} went on alone and was ended")
        if rank.returncode is not None and rank.returncode < 0 and code == supervise.LOST:
            cause = supervise.of_signal(-rank.returncode, rank.name)
            self.say(cause)
            if self._newly_written(before) in (None, supervise.LOST):
                supervise.write_lost(self.directory, cause)  # the others only know that it is gone
            self._show(rank)
            return code
        others = [other for other in self._ended if other.number == 0 and other.code == code]
        if rank.number > 0 and not others:
            self.say(f"{rank.name} ended with exit code {code}")
            self._show(rank)
        known = self._newly_written(before)
        if known != code and (known is not None or code in (1, supervise.LOST)):
            from trimtab.operate.start import ADVICE

            last = rank.said()[-1:]
            cause = f"{rank.name} ended with exit code {code}{': ' if last else ''}{''.join(last)}"
            supervise.write_for_it(self.directory, code=code, cause=redact(cause), advice=ADVICE.get(code, ADVICE[1]))
        return code

    def _explains(self) -> _Rank | None:
        """The rank because of which the run ended as it did; None if all is done."""
        own = [rank for rank in self._ended if rank.returncode and not rank.is_ended_by_us]
        return min(own, key=self._order, default=None)

    def _order(self, rank: _Rank) -> int:
        code = self._code_of(rank)
        if code in ON_PURPOSE:
            return 0
        if (rank.returncode or 0) < 0:
            return 1
        return 3 if code == supervise.LOST else 2

    def _code_of(self, rank: _Rank) -> int:
        return supervise.EARLY.get(rank.returncode or 0, rank.code) if self._told else rank.code

    def _newly_written(self, before: int | None) -> int | None:
        """The code in failure.json, None if this start has not written one."""
        if supervise.written(self.directory.failure) in (None, before):
            return None
        code = supervise.read(self.directory.failure).get("code")
        return code if isinstance(code, int) else None

    def _show(self, rank: _Rank) -> None:
        if lines := rank.said():
            self.say(f"the last that {rank.name} has said:")
            for line in lines:
                self.say(f"  {line}")


def environment(around: Mapping[str, str], rank: int, processes: int, *, port: int, cores: int) -> dict[str, str]:
    """What a rank finds around it; what somebody has set of threads and of the network's card stays.

    >>> found = environment({"HOME": "/root"}, 1, 2, port=29400, cores=8)
    >>> [found[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT", "OMP_NUM_THREADS", "HOME")]
    ['1', '1', '2', '29400', '4', '/root']
    """
    unless_set = {"OMP_NUM_THREADS": str(max(1, cores // processes))}
    if sys.platform == "linux":
        unless_set["GLOO_SOCKET_IFNAME"] = "lo"  # else the name of this computer must have an address
    return {
        **unless_set,
        **around,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _keep_last(rank: _Rank) -> None:
    """Read what a rank says, so that it never waits for somebody to, and keep the end."""
    pipe = rank.child.stdout
    assert pipe is not None
    with pipe:
        for line in iter(lambda: pipe.readline(PIECE), b""):
            if text := line.decode(errors="replace").rstrip():
                rank.last.append(text)


def _emptied(heard: int) -> None:
    """Take what has come out of the pipe, if anything has."""
    if select.select([heard], [], [], 0.0)[0]:
        os.read(heard, PIECE)


def _aloud(text: str) -> None:
    print(redact(text), file=sys.stderr, flush=True)
