"""What Prometheus sees of a run: names, kinds, labels, who may ask, and that nothing of it stops training."""

import json
import re
import socket
import threading
import urllib.error
import urllib.request

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from trimtab import catalogue, heartbeat
from trimtab.errors import UserError
from trimtab.observe import prometheus
from trimtab.observe.metrics_server import MetricsServer
from trimtab.observe.prometheus import Exporter, RunCollector
from trimtab.types import Standing, StepReport

LABELS = {"run": "a run", "algorithm": "grpo", "environment": "prod"}


def collector(max_steps=10):
    return RunCollector(labels=LABELS, info={"version": "1", "model": "m"}, max_steps=max_steps, clock=lambda: 100.0)


def samples(of):
    """(name, labels of a family) -> value, as a parser of another project reads it."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(of)
    found = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            own = {k: v for k, v in sample.labels.items() if k not in LABELS}
            assert {k: sample.labels[k] for k in LABELS} == of.labels
            found[sample.name, *sorted(own.items())] = sample.value
    return found


def member(name):
    """A name of a family's member, or the name itself."""
    labels = catalogue.METRICS[name].labels
    return name.removesuffix("*") + "/".join(f"x{i}" for i, _ in enumerate(labels)) if labels else name


@pytest.mark.parametrize("name", catalogue.METRICS)
def test_every_metric_of_the_catalogue_is_seen_under_its_name_with_its_labels(name):
    of, entry = collector(), catalogue.METRICS[name]
    of.take(StepReport(step=1, metrics={member(name): 0.25}))
    own = tuple(sorted((label, f"x{i}") for i, label in enumerate(entry.labels)))
    expected = {"run/step": 1.0, "run/last_step": 100.0}.get(name, 0.25)
    assert samples(of)[entry.prometheus_name, *own] == expected


def test_names_are_as_prometheus_wants_them():
    names = [entry.prometheus_name for entry in catalogue.METRICS.values()]
    assert len(set(names)) == len(names)
    for entry in catalogue.METRICS.values():
        name = entry.prometheus_name
        assert re.fullmatch(r"trimtab_[a-z0-9_]+", name)
        assert name.endswith("_total") == (entry.kind != "gauge"), name
        assert not name.endswith(("_count", "_sum", "_bucket", "_info", "_created", "_milliseconds", "_percent")), name
        assert not set(entry.labels) & {"prompt", "step", "completion", "id"}


def test_what_happens_in_a_step_adds_up_and_what_happened_since_the_start_does_not():
    of = collector()
    for step in (1, 2, 3):
        of.take(StepReport(step=step, metrics={"updates/count": 4.0, "guard/rollbacks": 1.0, "kl/update": step / 100}))
    found = samples(of)
    assert found["trimtab_updates_total",] == 12.0
    assert found["trimtab_guard_rollbacks_total",] == 1.0
    assert found["trimtab_kl_update_nats",] == 0.03
    assert found["trimtab_run_step",] == 3.0


def test_a_figure_of_a_plug_in_that_no_catalogue_has_is_left_out():
    of = collector()
    of.take(StepReport(step=1, metrics={"mine/own": 1.0, "entropy": 2.0}))
    assert ("trimtab_entropy_nats",) in samples(of)
    assert not [name for name in samples(of) if "mine" in name[0]]


def test_rules_show_their_limits_and_how_far_they_are_broken():
    of = collector()
    over = Standing(rule="kl_update", level="act", figure="kl/update", limit=0.05, breach=1.0, raised="act")
    of.take(StepReport(step=1, metrics={"kl/update": 0.06}, standings=(over,)))
    found = samples(of)
    place = (("level", "act"), ("rule", "kl_update"))
    assert found["trimtab_guard_limit", ("figure", "kl/update"), *place] == 0.05
    assert found["trimtab_guard_breach_ratio", *place] == 1.0
    assert found["trimtab_alarm", ("rule", "kl_update")] == 2.0
    well = Standing(rule="kl_update", level="act", figure="kl/update", limit=None, breach=0.0)
    of.take(StepReport(step=2, metrics={}, standings=(well,)))
    found = samples(of)
    assert ("trimtab_guard_limit", ("figure", "kl/update"), *place) not in found
    assert found["trimtab_alarm", ("rule", "kl_update")] == 0.0


def state(of):
    return [dict(key[1:])["state"] for key, value in samples(of).items() if key[0] == "trimtab_run_state" and value]


def test_the_state_is_that_of_the_run():
    exporter = Exporter(collector(max_steps=2))
    of = exporter.collector
    assert state(of) == ["starting"]
    exporter.event("started", step=0)
    assert state(of) == ["training"]
    exporter.record(StepReport(step=2, metrics={}))
    exporter.close()
    assert state(of) == ["finished"]


@pytest.mark.parametrize(
    ("event", "facts", "expected"),
    [
        ("preempted", {"step": 1, "signal": "SIGTERM"}, "preempted"),
        ("finished early", {"step": 1, "reason": "r"}, "finished"),
        ("alarm", {"rule": "no_signal", "level": "act", "then": "stop"}, "stopped"),
        ("alarm", {"rule": "kl_update", "level": "warn", "then": "warn"}, "failed"),
        ("saved", {"step": 1}, "failed"),
    ],
)
def test_a_run_that_ends_before_its_last_step_says_how(event, facts, expected):
    exporter = Exporter(collector())
    exporter.event("started", step=0)
    exporter.record(StepReport(step=1, metrics={}))
    exporter.event(event, **facts)
    exporter.close()
    assert state(exporter.collector) == [expected]


def test_a_run_that_goes_back_or_changes_says_where_it_is_and_with_what():
    exporter = Exporter(collector())
    exporter.record(StepReport(step=7, metrics={}))
    exporter.event("alarm", rule="kl_update", level="act", then="roll_back")
    exporter.event("rolled back", step=4, was=7, algorithm="grpo")
    assert samples(exporter.collector)["trimtab_run_step",] == 4.0
    assert samples(exporter.collector)["trimtab_alarms_total", ("level", "act"), ("rule", "kl_update")] == 1.0
    exporter.event("swapped", step=4, algorithm="gspo", changes={})
    assert exporter.collector.labels["algorithm"] == "gspo"
    samples(exporter.collector)  # every series has the new label


# ----------------------------------------------------------------------------------------------------------- the server
@pytest.fixture
def served():
    exporters = []

    def start(**more):
        exporters.append(Exporter(collector(), port=0, **more))
        return exporters[-1]

    yield start
    for exporter in exporters:
        exporter.close()
        exporter.stop()
    prometheus.LINGERING.clear()


def asked(url, method="GET", **headers):
    """Status, headers and body."""
    request = urllib.request.Request(url, method=method, headers={k.replace("_", "-"): v for k, v in headers.items()})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


def test_metrics_are_text_or_open_metrics_as_the_scraper_wants(served):
    exporter = served()
    exporter.record(StepReport(step=3, metrics={"updates/count": 2.0}))
    status, headers, body = asked(exporter.url)
    assert (status, headers["Content-Type"].split(";")[0]) == (200, "text/plain")
    assert b'trimtab_updates_total{algorithm="grpo",environment="prod",run="a run"} 2.0' in body
    status, headers, body = asked(exporter.url, Accept="application/openmetrics-text; version=1.0.0")
    assert headers["Content-Type"].startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")
    assert asked(exporter.url, "HEAD")[2] == b""
    assert asked(exporter.url.replace("/metrics", "/run.json"))[0] == 404


def test_ready_is_a_run_that_trains_and_well_is_one_that_is_not_stuck(served, monkeypatch):
    exporter = served()
    ready, well = (exporter.url.replace("metrics", name) for name in ("readyz", "healthz"))
    assert asked(ready)[0] == 503
    exporter.event("started", step=0)
    assert asked(ready)[0] == 200
    monkeypatch.setattr(heartbeat, "ages", lambda: {"trainer": 299.0, "rollout": 0.0})
    assert asked(well)[0] == 200
    monkeypatch.setattr(heartbeat, "ages", lambda: {"trainer": 301.0, "rollout": 0.0})
    status, _, body = asked(well)
    assert (status, json.loads(body)["stalled"]) == (503, ["trainer"])
    assert samples(exporter.collector)["trimtab_role_up", ("role", "trainer")] == 0.0


@pytest.mark.parametrize(
    "host", ["attacker.example", "localhost.attacker.example", "127.0.0.1.nip.example:80", "0x7f.1"]
)
def test_a_page_under_another_name_gets_nothing(served, host):
    status, _, body = asked(served().url, Host=host)
    assert status == 403
    assert b"trimtab_" not in body


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1", "[::1]:9464"])
def test_our_own_names_are_answered(served, host):
    assert asked(served().url, Host=host)[0] == 200


def test_a_token_is_needed_where_one_is_set_and_read_anew_each_time(served):
    tokens = ["first-token-of-many"]
    exporter = served(token=lambda: tokens[-1])
    assert asked(exporter.url)[0] == 401
    assert asked(exporter.url, Authorization="Bearer another")[0] == 401
    assert asked(exporter.url, Authorization="Bearer first-token-of-many")[0] == 200
    tokens.append("second-token-of-many")
    assert asked(exporter.url, Authorization="Bearer first-token-of-many")[0] == 401
    assert asked(exporter.url.replace("metrics", "healthz"))[0] == 200  # probes have no token


def test_a_token_that_cannot_be_read_any_more_lets_nobody_in(served):
    def gone():
        raise UserError("the file cannot be read")

    status, _, body = asked(served(token=gone).url, Authorization="Bearer anything")
    assert (status, body) == (503, b"the token cannot be read\n")


def test_a_port_that_is_taken_is_said_and_nothing_else_happens():
    said = []
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        exporter = Exporter(collector(), port=taken.getsockname()[1], warn=said.append)
    assert exporter.url is None
    assert "Address already in use" in said[0]
    assert "the run goes on without" in said[0]
    exporter.record(StepReport(step=1, metrics={}))
    exporter.close()


def test_a_scraper_that_comes_regularly_sees_the_end(served, monkeypatch):
    said = []
    exporter = served(warn=said.append)
    url = exporter.url
    exporter.event("started", step=0)
    asked(url)
    asked(url)
    monkeypatch.setattr(MetricsServer, "interval", 30.0)
    exporter.record(StepReport(step=10, metrics={}))
    exporter.close()
    seen = threading.Thread(target=lambda: said.append(asked(url)[2].decode()))
    seen.start()
    prometheus.let_go()
    seen.join()
    assert said[0] == "waiting up to 45 s for a scrape that sees the end (Ctrl-C: do not)"
    assert 'state="finished"} 1.0' in said[1]
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=5)


def test_the_next_run_of_a_process_takes_the_port_over(served):
    first = served()
    for _ in range(2):
        asked(first.url)
    port = int(first.url.split(":")[2].split("/")[0])
    first.close()
    assert asked(f"http://127.0.0.1:{port}/metrics")[0] == 200
    second = Exporter(collector(), port=port)
    try:
        assert second.url is not None
        assert first.url is None
    finally:
        second.close()


def test_nobody_listens_after_the_end_of_a_run_that_nobody_scraped(served):
    exporter = served()
    url = exporter.url
    exporter.close()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=5)


# ------------------------------------------------------------------------------------------------------------- textfile
def test_a_textfile_is_whole_and_has_the_last_word(tmp_path):
    path = tmp_path / "run.prom"
    exporter = Exporter(collector(max_steps=3), textfile=path)
    exporter.record(StepReport(step=1, metrics={"entropy": 1.0}))
    assert b"trimtab_run_step" in path.read_bytes()
    exporter.record(StepReport(step=3, metrics={"entropy": 3.0}))
    exporter.close()
    text = path.read_text()
    assert 'trimtab_run_state{algorithm="grpo",environment="prod",run="a run",state="finished"} 1.0' in text
    assert 'trimtab_entropy_nats{algorithm="grpo",environment="prod",run="a run"} 3.0' in text
    assert [p.name for p in tmp_path.iterdir()] == ["run.prom"]


def test_a_textfile_that_cannot_be_written_is_said_once_and_training_goes_on(tmp_path):
    said = []
    exporter = Exporter(collector(), textfile=tmp_path / "none" / "run.prom", warn=said.append)
    exporter.record(StepReport(step=1, metrics={}))
    exporter.close()
    assert len(said) == 1
    assert said[0].endswith("No such file or directory; training goes on")
