"""Every recorder through the recorder suite."""

import io

import pytest
from rich.console import Console

from trimtab.observe.live import LiveView
from trimtab.observe.recorders import Recorders
from trimtab.store.recorder import RunRecorder
from trimtab.store.run_directory import RunDirectory
from trimtab.store.settings import Samples
from trimtab.testing import recorders as suite


def journal(folder):
    directory = RunDirectory(folder / "run")
    directory.create()
    return RunRecorder(directory, Samples())


def live(folder, *, terminal):
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100)
    return LiveView(name="run", algorithm="grpo", max_steps=20, console=console)


MAKERS = {
    "journal and samples": journal,
    "live view": lambda folder: live(folder, terminal=True),
    "plain lines": lambda folder: live(folder, terminal=False),
    "several": lambda folder: Recorders(journal(folder), [live(folder, terminal=False)]),
    "none": lambda folder: Recorders(None),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("check", suite.CHECKS, ids=lambda check: check.__name__)
def test_contract(make, check, tmp_path):
    check(lambda: make(tmp_path))
