"""A real run, a real Prometheus with our rules, a real Alertmanager, and somebody who is told."""

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from tests.receiver import Receiver
from tests.system import servers
from trimtab.observe.alerts import alerts
from trimtab.store import journal

pytestmark = pytest.mark.system
OPS = Path(__file__).parents[2] / "ops"
RULES = OPS / "prometheus" / "rules.yml"
HEALTHY_STEPS = 12
"""More than the guard needs to know what is usual."""
RUN = """
algorithm: grpo
policy: {model: "builtin:tiny"}
data: {train: "builtin:addition", validation: "builtin:addition"}
rewards: [{name: length, options: {max_tokens: 4}}, {name: "judge:judge"}]
sampling: {group_size: 4, max_length: 14}
optim: {learning_rate: 1.5e-4, warmup_steps: 4}
train: {max_steps: 400, prompts_per_step: 6}
eval: {every: 400, prompts: 8, early_stop: {patience: null}}
checkpoint: {rolling_every: 2, rolling_keep: 10}
guard: {rules: {truncated: {then: off}}}
"""
"""A model that knows nothing yet does not end its completions."""
JUDGE = '''
import time


def judge(prompts, completions, **columns):
    """Takes its time, as a real one does, so that a step lasts longer than a scrape interval; has no opinion."""
    time.sleep(2)
    return [None] * len(completions)
'''


def told(program, package, *words, folder=None):
    """What a program says; it must be content."""
    found = subprocess.run(
        [servers.installed(program, package), *map(str, words)], capture_output=True, text=True, cwd=folder, timeout=240
    )
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout + found.stderr


def promtool(*words, **more):
    return told("promtool", "prometheus", *words, **more)


# ------------------------------------------------------------------------------------------------------------- files
def test_promtool_accepts_the_rules_and_the_configuration():
    assert re.search(r"SUCCESS: [5-9]\d rules found", promtool("check", "rules", RULES))
    assert "WARNING" not in promtool("check", "config", OPS / "prometheus" / "prometheus.yml")


def test_prometheus_judges_every_rule_as_its_test_expects():
    assert "SUCCESS" in promtool("test", "rules", "rules_test.yml", folder=OPS / "prometheus")


def test_a_rule_with_another_limit_fails_its_test(tmp_path):
    rules = RULES.read_text()
    assert rules.count("trimtab_checkpoint_failed > 0") == 1
    (tmp_path / "rules.yml").write_text(rules.replace("trimtab_checkpoint_failed > 0", "trimtab_checkpoint_failed > 1"))
    tests = yaml.safe_load((OPS / "prometheus" / "rules_test.yml").read_text())
    tests["tests"] = [test for test in tests["tests"] if test["name"] == "saves_fail"]
    (tmp_path / "rules_test.yml").write_text(yaml.safe_dump(tests))
    found = subprocess.run(
        ["promtool", "test", "rules", "rules_test.yml"], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    assert found.returncode == 1
    assert "TrimtabSavesFail" in found.stderr + found.stdout


def test_amtool_accepts_the_routes_and_the_examples_in_their_comments(tmp_path):
    path = OPS / "alertmanager" / "alertmanager.yml"
    assert "SUCCESS" in told("amtool", "prometheus-alertmanager", "check-config", path)
    text = re.sub(r"^    # (slack_configs|wechat_configs|  )", r"    \1", path.read_text(), flags=re.MULTILINE)
    (tmp_path / "with-examples.yml").write_text(text)
    receiver = yaml.safe_load(text)["receivers"][0]
    assert {"webhook_configs", "slack_configs", "wechat_configs"} <= set(receiver)
    assert "SUCCESS" in told("amtool", "prometheus-alertmanager", "check-config", tmp_path / "with-examples.yml")


@pytest.mark.parametrize("severity", ["warning", "critical"])
def test_an_alert_of_either_severity_has_a_receiver(severity):
    path = OPS / "alertmanager" / "alertmanager.yml"
    words = ["config", "routes", "test", f"--config.file={path}", f"severity={severity}", "run=a"]
    assert told("amtool", "prometheus-alertmanager", *words).split()[0] == "operators"


# ------------------------------------------------------------------------------------------------------------ for real
@contextmanager
def alertmanager(folder, url):
    """With the routes that we ship, told to be quick, sending to a URL."""
    program = servers.installed("prometheus-alertmanager", "prometheus-alertmanager")
    routes = yaml.safe_load((OPS / "alertmanager" / "alertmanager.yml").read_text())
    routes["route"] |= {"group_wait": "1s", "group_interval": "1s"}
    routes["receivers"][0]["webhook_configs"][0]["url"] = url
    folder.mkdir()
    (folder / "alertmanager.yml").write_text(yaml.safe_dump(routes))
    address = f"127.0.0.1:{servers.free_port()}"
    command = [
        program,
        f"--config.file={folder / 'alertmanager.yml'}",
        f"--storage.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--cluster.listen-address=",
    ]
    with servers.serving(command, f"http://{address}/-/ready", folder / "log"):
        yield address


def watching(run, told_to):
    """The scrape configuration that we ship, at these addresses and every second."""
    found = yaml.safe_load((OPS / "prometheus" / "prometheus.yml").read_text())
    found["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    found["rule_files"] = [str(RULES)]
    found["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"] = [told_to]
    found["scrape_configs"][0]["static_configs"][0]["targets"] = [run]
    del found["scrape_configs"][0]["file_sd_configs"]
    return found


@contextmanager
def training(folder, port):
    """A process that trains, until the block is left."""
    folder.mkdir()
    (folder / "judge.py").write_text(JUDGE)
    (folder / "run.yaml").write_text(RUN)
    command = [sys.executable, "-m", "trimtab", "train", folder / "run.yaml", "--run-dir", folder / "run"]
    with servers.serving(
        [*command, f"observe.prometheus_port={port}"], f"http://127.0.0.1:{port}/metrics", folder / "log"
    ) as process:
        yield process


def messages(receiver):
    """Every alert that Alertmanager has said is firing."""
    found = [alert for request in receiver.got for alert in json.loads(request["body"])["alerts"]]
    return [alert for alert in found if alert["status"] == "firing"]


def sent(receiver):
    return {(alert["labels"]["alertname"], alert["labels"]["severity"]) for alert in messages(receiver)}


def alarms(directory):
    """What the guard of a run has raised by itself, as its alerts are named."""
    names = {(alert.rule, alert.level): (alert.name, alert.severity) for alert in alerts()}
    return {names[event["rule"], event["level"]] for event in journal.read(directory / "journal.jsonl").events("alarm")}


def test_what_the_guard_raises_rings_at_the_receiver_and_a_healthy_run_is_silent(tmp_path):
    port = servers.free_port()
    receiver = Receiver()
    receiver.thread.start()
    with (
        training(tmp_path / "training", port) as process,
        alertmanager(tmp_path / "alertmanager", receiver.url) as address,
        servers.prometheus(tmp_path / "prometheus", watching(f"127.0.0.1:{port}", address)) as prometheus,
    ):
        log = tmp_path / "training" / "log"

        def has_reached(step):
            assert process.poll() is None, log.read_text()
            return prometheus.values("trimtab_run_step") >= [step]

        servers.wait_for(lambda: has_reached(HEALTHY_STEPS), f"step {HEALTHY_STEPS}", 180)
        assert prometheus.query("ALERTS") == []
        assert receiver.got == []
        assert promtool_of_the_page(port) == ""

        swap = [sys.executable, "-m", "trimtab", "swap", tmp_path / "training" / "run", "optim.learning_rate=2e-2"]
        subprocess.run([str(word) for word in swap], check=True, timeout=120, capture_output=True)
        servers.wait_for(lambda: prometheus.values("trimtab_guard_rollbacks_total") >= [1.0], "a rollback", 60)
        servers.wait_for(lambda: receiver.got, "a message", 30)
        back_at = prometheus.values("trimtab_run_step")[0]
        servers.wait_for(lambda: has_reached(back_at + 3), "healthy steps", 60)
        raised = alarms(tmp_path / "training" / "run")
        assert ("TrimtabKlUpdate", "critical") in raised
        assert sent(receiver) == raised
        (alert,) = [a for a in messages(receiver) if a["labels"]["severity"] == "critical"][:1]
        assert alert["labels"] | {"action": "roll_back", "rule": "kl_update", "run": "run"} == alert["labels"]
        assert "lower optim.learning_rate" in alert["annotations"]["description"]
        assert "the limit is 0.05" in alert["annotations"]["description"]

        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        servers.wait_for(lambda: ("TrimtabRunDown", "critical") in sent(receiver), "that the run is down", 60)
        assert sent(receiver) == raised | {("TrimtabRunDown", "critical")}
    receiver.server.shutdown()


def promtool_of_the_page(port):
    """What promtool has against the page that a run shows."""
    page = servers.fetch(f"http://127.0.0.1:{port}/metrics")
    assert "trimtab_kl_update_nats{" in page
    found = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, text=True, timeout=60)
    return found.stdout + found.stderr
