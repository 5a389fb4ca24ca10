"""Every recorder through the recorder suite."""

import io

import pytest
from rich.console import Console

from trimtab.observe.live import LiveView
from trimtab.observe.notify import Courier, Notifier
from trimtab.observe.notify_messages import Editor, Subject
from trimtab.observe.recorders import Recorders
from trimtab.observe.settings import Webhook
from trimtab.secrets import Secret
from trimtab.store.outbox import Outbox
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


def webhooks(folder):
    hook = Webhook(url=Secret("${env:NOT_SET}"), on=("alarm", "started"))
    courier = Courier(hook, Outbox(folder / "outbox"), say=lambda _: None)
    editor = Editor(Subject(name="run", run_id="0f", algorithm="grpo", max_steps=20))
    return Notifier([courier], editor, version=lambda: 1)


MAKERS = {
    "journal and samples": journal,
    "live view": lambda folder: live(folder, terminal=True),
    "plain lines": lambda folder: live(folder, terminal=False),
    "several": lambda folder: Recorders(journal(folder), [live(folder, terminal=False)]),
    "webhooks": webhooks,
    "none": lambda folder: Recorders(None),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("check", suite.CHECKS, ids=lambda check: check.__name__)
def test_contract(make, check, tmp_path):
    check(lambda: make(tmp_path))
