"""Real runs that tell webhooks and trackers what happens to them, and a process that is killed before it has."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from tests.receiver import Receiver
from tests.runs import small
from tests.security.commands import command
from trimtab import config as configs
from trimtab import secrets
from trimtab.errors import ConfigError, GuardError, MissingExtraError
from trimtab.operate import finish
from trimtab.store import journal

HOOK = "observe.webhook={url: '${env:THE_HOOK}', on: [alarm, warning, cleared, rollback, swap, save_failed, stop, failed, preempted, finished, started, resumed]}"  # noqa: E501
ASTRAY = ["guard.rules={kl_update: {act: 1e-9}}", "train.max_steps=2", "data.validation=null"]


@pytest.fixture(autouse=True)
def _no_pictures(monkeypatch):
    monkeypatch.setattr(finish, "write_report", lambda *_, **__: [])
    yield
    secrets.forget()


@pytest.fixture
def receiver(monkeypatch):
    with Receiver() as found:
        monkeypatch.setenv("THE_HOOK", found.url)
        yield found


def kinds(receiver):
    return [body["kind"] for body in receiver.bodies()]


def test_a_run_tells_of_its_start_and_end_once(tmp_path, receiver):
    path = small.write(tmp_path, "sft", steps=2)
    words = ["train.minibatches=1", HOOK]
    directory = small.train(path, tmp_path / "run", *words)
    assert kinds(receiver) == ["started", "finished"]
    small.train(path, tmp_path / "run", *words)
    assert kinds(receiver) == ["started", "finished", "resumed"]
    body = receiver.bodies()[1]
    assert body["run_id"] == directory.facts()["id"]
    assert body["step"] == body["max_steps"] == 2
    assert body["text"].startswith("all steps done: eval/loss/nll ")
    assert not list((directory.root / "outbox").rglob("*.json"))
    assert receiver.url not in (directory.root / "run.json").read_text()


def test_a_run_that_goes_astray_tells_of_each_alarm_each_rollback_and_why_it_was_stopped(tmp_path, receiver):
    path = small.write(tmp_path, "grpo")
    with pytest.raises(GuardError):
        small.train(path, tmp_path / "run", *ASTRAY, "guard.max_rollbacks=1", "observe.language=zh", HOOK)
    told = [
        (b["kind"], b["facts"].get("rule")) for b in receiver.bodies() if b["facts"].get("rule") in (None, "kl_update")
    ]
    assert told == [
        ("started", None),
        ("alarm", "kl_update"),
        ("rollback", "kl_update"),
        ("alarm", "kl_update"),
        ("stop", None),
    ]
    alarm, end = receiver.bodies()[1], receiver.bodies()[-1]
    assert alarm["title"].startswith("警报：")
    assert "训练将回退到更早的检查点。" in alarm["text"]
    assert end["facts"]["code"] == 3
    assert "guard.max_rollbacks" in end["text"]
    assert len({body["key"] for body in receiver.bodies()}) == len(receiver.bodies())


def test_a_run_that_fails_tells_of_its_exit_code_and_cause_once_however_often_it_is_started(tmp_path, receiver):
    (tmp_path / "broken.py").write_text("def bad(prompts, completions, **_):\n    raise ValueError('no such judge')\n")
    path = small.write(tmp_path, "grpo")
    words = ["rewards=[{name: 'broken:bad'}]", "data.validation=null", HOOK]
    for _ in range(2):
        with pytest.raises(Exception, match="no such judge"):
            small.train(path, tmp_path / "run", *words)
    assert kinds(receiver) == ["started", "failed", "resumed"]
    [failed] = [body for body in receiver.bodies() if body["kind"] == "failed"]
    assert failed["facts"]["code"] == small.failure(small.RunDirectory(tmp_path / "run"))["code"] == 2
    assert "no such judge" in failed["text"]


def test_a_hook_that_cannot_be_read_is_refused_before_anything_is_trained(tmp_path):
    path = small.write(tmp_path, "sft", steps=1)
    with pytest.raises(
        ConfigError, match=r"observe\.webhook\.url: \$\{env:NOT_SET\}: the environment variable is not set"
    ):
        small.train(path, tmp_path / "run", "train.minibatches=1", "observe.webhook={url: '${env:NOT_SET}'}")
    assert not small.RunDirectory(tmp_path / "run").exists


def test_a_secret_for_a_service_that_signs_nothing_is_refused(tmp_path, receiver, monkeypatch):
    monkeypatch.setenv("SIGN_KEY", "0123456789abcdef")
    path = small.write(tmp_path, "sft", steps=1)
    words = "observe.webhook={url: '${env:THE_HOOK}', format: slack, secret: '${env:SIGN_KEY}'}"
    with pytest.raises(ConfigError, match=r"observe\.webhook\.secret: slack signs no messages; leave it out"):
        small.train(path, tmp_path / "run", "train.minibatches=1", words)


def test_two_webhooks_that_are_the_same_are_refused(tmp_path, receiver):
    path = small.write(tmp_path, "sft", steps=1)
    words = "observe.webhook=[{url: '${env:THE_HOOK}', on: alarm}, {url: '${env:THE_HOOK}', on: failed}]"
    message = r"observe\.webhook\[1\]: has the address and format of observe\.webhook\[0\]; name it once"
    with pytest.raises(ConfigError, match=message):
        small.train(path, tmp_path / "run", "train.minibatches=1", words)


def test_a_dead_receiver_changes_nothing_in_the_numbers(tmp_path, monkeypatch):
    monkeypatch.setenv("THE_HOOK", "http://127.0.0.1:9/hook/0123")
    path = small.write(tmp_path, "grpo", steps=2)
    told = small.train(path, tmp_path / "told", HOOK)
    plain = small.train(path, tmp_path / "plain")
    assert small.evidence(told) == small.evidence(plain)
    assert small.steps(told)[-1]["metrics"]["notify/waiting"] >= 1
    assert len(list((told.root / "outbox").rglob("*.json"))) >= 2


# ------------------------------------------------------------------------------------------------------ a real process
TELLS = """
    import sys, threading
    from pathlib import Path
    from trimtab import config as configs
    from trimtab.assemble import monitors
    from trimtab.store.run_directory import RunDirectory

    config = configs.load(sys.argv[1])
    directory = RunDirectory(Path(sys.argv[2]))
    directory.create()
    notifier = monitors.notifier_of(config, directory, run_id="0f")
    for step in map(int, sys.argv[3].split()):
        notifier.event("alarm", rule="entropy", level="warn", step=step, text="entropy is low", then="warn")
    print("written", flush=True)
    if sys.argv[4] == "hang":
        threading.Event().wait(60)
    notifier.close()
"""


def tell(config, run, steps, then, hook):
    environment = {**os.environ, "THE_HOOK": hook}
    words = [sys.executable, "-c", textwrap.dedent(TELLS), str(config), str(run), steps, then]
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)


def test_a_process_that_is_killed_between_writing_and_sending_loses_nothing(tmp_path):
    config = tmp_path / "a.yaml"
    config.write_text('algorithm: sft\nobserve: {webhook: {url: "${env:THE_HOOK}"}}\n')
    killed = tell(config, tmp_path / "run", "3 4", "hang", "http://127.0.0.1:9/hook/0123")
    assert killed.stdout.readline() == "written\n"
    killed.send_signal(signal.SIGKILL)
    assert killed.wait(20) == -signal.SIGKILL
    killed.stdout.close()
    with Receiver() as receiver:
        again = tell(config, tmp_path / "run", "4 5", "end", receiver.url)
        assert again.communicate(timeout=60)[0] == "written\n"
    assert [body["step"] for body in receiver.bodies()] == [3, 4, 5]
    assert len({request["headers"]["Idempotency-Key"] for request in receiver.got}) == 3


# --------------------------------------------------------------------------------------------------------- the command
def test_the_command_says_what_each_webhook_answered(tmp_path, monkeypatch, capfd):
    config = tmp_path / "a.yaml"
    config.write_text(
        "algorithm: sft\nobserve:\n  webhook:\n"
        '    - {url: "${env:GOOD_HOOK}", format: slack}\n'
        '    - {url: "${env:BAD_HOOK}", format: dingtalk}\n'
        '    - {url: "${env:NOT_SET}", format: wecom}\n'
    )
    bad = (200, '{"errcode":310000,"errmsg":"keywords not in content"}')
    with Receiver("slack") as good, Receiver("dingtalk", [bad] * 2) as refusing:
        monkeypatch.setenv("GOOD_HOOK", good.url)
        monkeypatch.setenv("BAD_HOOK", refusing.url)
        code, lines = command(monkeypatch, capfd, "notify", config)
        _, text = command(monkeypatch, capfd, "notify", config, "--json")
    assert code == 1
    assert lines.splitlines() == [
        "ok    observe.webhook[0]  slack  ${env:GOOD_HOOK}",
        "FAIL  observe.webhook[1]  dingtalk  ${env:BAD_HOOK}: code 310000: keywords not in content",
        "FAIL  observe.webhook[2]  wecom  ${env:NOT_SET}: observe.webhook[2].url: ${env:NOT_SET}: "
        "the environment variable is not set",
    ]
    assert [entry["sent"] for entry in json.loads(text)] == [True, False, False]
    assert good.bodies()[0]["blocks"][0]["text"]["text"].endswith("A test message")


def test_the_command_takes_a_run_and_refuses_one_without_webhooks(tmp_path, receiver, monkeypatch, capfd):
    path = small.write(tmp_path, "sft", steps=1)
    small.train(path, tmp_path / "run", "train.minibatches=1", HOOK)
    capfd.readouterr()
    assert command(monkeypatch, capfd, "notify", tmp_path / "run")[0] == 0
    assert kinds(receiver)[-1] == "test"
    code, said = command(monkeypatch, capfd, "notify", path)
    assert code == 2
    assert "observe.webhook is not set: there is nobody to tell" in said


# ------------------------------------------------------------------------------------------------------------- trackers
def test_a_tracker_whose_library_is_missing_is_refused_naming_the_extra(tmp_path, monkeypatch):
    from trimtab.observe import trackers

    monkeypatch.setattr(trackers, "find_spec", lambda _: None)
    monkeypatch.delitem(sys.modules, "mlflow", raising=False)
    path = small.write(tmp_path, "sft", steps=1)
    with pytest.raises(MissingExtraError, match=r"observe\.trackers: mlflow needs .* pip install 'trimtab\[mlflow\]'"):
        small.train(path, tmp_path / "run", "train.minibatches=1", "observe.trackers=[mlflow]")
    assert not small.RunDirectory(tmp_path / "run").exists


def test_tensorboard_has_each_step_once_over_a_rollback_and_a_resume(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    path = small.write(tmp_path, "grpo")
    words = ["guard.rules={kl_update: {act: 0.3}}", "optim.learning_rate=2e-3", "data.validation=null"]
    words += ["observe.trackers=[tensorboard]", "guard.max_rollbacks=9"]
    small.train(path, tmp_path / "run", *words, "train.max_steps=2")
    directory = small.train(path, tmp_path / "run", *words, "train.max_steps=3")
    assert journal.read(directory.journal).events("rolled back")
    events = EventAccumulator(str(directory.root / "tensorboard"), purge_orphaned_data=True)
    events.Reload()
    shown = [(e.step, e.value) for e in events.Scalars("loss/total")]
    kept = {s["step"]: s["metrics"]["loss/total"] for s in small.steps(directory)}
    assert [step for step, _ in shown] == [1, 2, 3]
    assert [value for _, value in shown] == pytest.approx([kept[step] for step in (1, 2, 3)], rel=1e-6)
    assert any(tag.startswith("alarms/kl_update") for tag in events.Tags()["tensors"])
    assert "config/text_summary" in events.Tags()["tensors"]


def test_no_tracker_is_imported_unless_it_is_chosen():
    script = (
        "import sys, trimtab.cli, trimtab.assemble.monitors, trimtab.observe.notify\n"
        "print([m for m in ('torch', 'tensorboard', 'wandb', 'mlflow', 'trackio', 'swanlab') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_the_configuration_takes_one_webhook_or_several_and_one_tracker_or_several(tmp_path):
    def telling(webhook, trackers):
        return configs.from_mapping({"algorithm": "sft", "observe": {"webhook": webhook, "trackers": trackers}}).telling

    one, several = {"url": "${env:A_HOOK}"}, [{"url": "${env:A_HOOK}"}, {"url": "${env:B_HOOK}", "on": "alarm"}]
    assert [hook.url for hook in telling(one, "wandb").webhook] == ["${env:A_HOOK}"]
    assert telling(one, "wandb").trackers == ("wandb",)
    assert [hook.url for hook in telling(several, []).webhook] == ["${env:A_HOOK}", "${env:B_HOOK}"]
    assert telling(several, []).webhook[1].on == ("alarm",)


@pytest.mark.parametrize(
    ("webhook", "message"),
    [
        (
            {"url": "https://hooks.example.org/services/T0/B0/abcdef"},
            r"observe\.webhook\.url: holds a secret itself; write",
        ),
        ([{"url": "${env:A}"}, {"url": "http://x"}], r"observe\.webhook\.1\.url: holds a secret itself"),
        ({}, r"observe\.webhook\.0\.url is missing"),
        ({"url": "${env:A}", "format": "teams"}, r"observe\.webhook\.0\.format: 'teams'; expected 'json', 'slack'"),
        ({"url": "${env:A}", "on": []}, r"observe\.webhook\.0\.on: \(\)|observe\.webhook\.0\.on: \[\]"),
        ({"url": "${env:A}", "on": ["alrm"]}, r"observe\.webhook\.0\.on\.0: 'alrm'; expected 'alarm'"),
        ({"url": "${env:A}", "timeout_seconds": 0}, r"observe\.webhook\.0\.timeout_seconds: 0; expected more than 0"),
        ({"url": "${env:A}", "formt": "slack"}, r"unknown key `observe\.webhook\.0\.formt`; did you mean `format`\?"),
        (3, r"observe\.webhook: 3; expected a list"),
    ],
)
def test_a_webhook_that_does_not_fit_is_refused_by_its_key(webhook, message):
    with pytest.raises(ConfigError, match=message) as caught:
        configs.from_mapping({"algorithm": "sft", "observe": {"webhook": webhook}})
    assert "abcdef" not in str(caught.value)
    assert len(caught.value.findings) == 1
