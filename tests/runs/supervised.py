"""A run that is left alone, and one whose process is killed in the middle of a step, under a supervisor.

    python -m tests.runs.supervised FOLDER

A process of its own, with one thread: it forks where the supervisor would start Python anew, since that takes seconds.
"""

import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

from tests.kills import warm
from tests.kills.watched import command
from tests.runs import small
from trimtab import cli
from trimtab.operate import supervise
from trimtab.store.run_directory import RunDirectory

STEPS = 4
REWARD = """
import os, pathlib, signal
HERE = pathlib.Path(__file__).parent

def digits(completions, **_):
    calls = HERE / "calls"
    number = int(calls.read_text()) + 1 if calls.exists() else 1
    calls.write_text(str(number))
    if number == 5 and (HERE / "armed").exists():
        (HERE / "armed").unlink()
        os.kill(int((HERE / "run" / "lock").read_text().split()[1]), signal.SIGKILL)
    return [sum(c.isdigit() for c in text) / 10 for text in completions]
"""
"""Kills the training process in the middle of a step, once."""


class Forked:
    """As `subprocess.Popen`, for `python -m trimtab WORDS`."""

    def __init__(self, words, *, stdin, process_group, preexec_fn):
        assert words[:3] == [sys.executable, "-m", "trimtab"]
        self.pid = os.fork()
        if self.pid == 0:
            os.setpgid(0, process_group)
            preexec_fn()
            for number in supervise.PASSED_ON:
                signal.signal(number, signal.SIG_DFL)
            code = command(cli.main, *words[3:])
            sys.stdout.flush()
            os._exit(code)

    def send_signal(self, number):
        os.kill(self.pid, number)

    def wait(self):
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def main(folder):
    for name in warm.MODULES:
        importlib.import_module(name)
    (folder / "struck.py").write_text(REWARD)
    path = small.write(folder, steps=STEPS)
    path.write_text(path.read_text().replace("{name: length, options: {max_tokens: 4}}", "{name: 'struck:digits'}"))
    supervise.subprocess = SimpleNamespace(Popen=Forked, DEVNULL=subprocess.DEVNULL)
    code = start(path, folder / "whole")
    (folder / "calls").unlink()
    (folder / "armed").touch()
    return code or start(path, folder / "run")


def start(path, root):
    words = [sys.executable, "-m", "trimtab", "train", str(path), "--run-dir", str(root)]
    return supervise.supervise(words, RunDirectory(root), patience=supervise.Patience(first_seconds=0.01))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
