"""Every query of Grafana's dashboards, answered by a real Prometheus that has watched real runs."""

import json
import re

import pytest

from tests.runs import small
from tests.runs.test_metrics import MORE, OTHERS
from tests.system import servers
from tests.unit import test_dashboards as shown
from trimtab import catalogue
from trimtab.store import journal
from trimtab.train import loop

pytestmark = pytest.mark.system
RUNS = {
    "ppo": [
        "policy.entropy_coef=0.01",
        "policy.dual_clip=3",
        "sampling.dynamic.enabled=true",
        "sampling.overlong.buffer=4",
        "observe.term_norms_every=1",
    ],
    "grpo": ["kl.coef=0.05", "observe.term_norms_every=1"],
    "dr_grpo": [
        "guard.rules.kl_update.then=roll_back",
        "guard.max_rollbacks=20",
        "kl.limit.act=0.1",
        "optim.learning_rate=4e-3",
    ],
} | OTHERS
STEPS = dict.fromkeys(RUNS, 3) | {"grpo": 14}
"""Long enough for the limits that are held against a run's own first steps."""
ENVIRONMENT = "dpo"
"""The run whose configuration extends another: it has an environment."""
EMPTY = {
    "utilisation/accelerator": "no accelerator here",
    "utilisation/accelerator_memory": "no accelerator here",
    "time/communication": "one process",
    "drill/last_success": "nobody has drilled these runs",
    "notify/sent": "no webhook",
    "notify/failed": "no webhook",
    "notify/waiting": "no webhook",
    "observe/failed_monitors": "no tracker",
    "observe/dropped_calls": "no tracker",
    "samples/failed": "every sample was written",
}
"""Metrics that these runs cannot have, and why; of all others every query must have an answer."""


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """A Prometheus that has seen each step of each run, and when it has last seen each run."""
    folder = tmp_path_factory.mktemp("watched")
    ports = {name: servers.free_port() for name in RUNS}
    save, current = loop._save, {}

    def saved(run, report, *, last):
        save(run, report, last=last)
        selector = f'trimtab_run_step{{run="{current["run"]}"}}'
        servers.wait_for(lambda: current["server"].values(selector) == [report.step], f"{selector} {report.step}")
        current["server"].seen[current["run"]] = current["server"].last_seen(selector)

    addresses = (f"127.0.0.1:{port}" for port in ports.values())
    configuration = servers.scraping(*addresses) | {"rule_files": [str(shown.OPS / "prometheus" / "rules.yml")]}
    with servers.prometheus(folder / "prometheus", configuration) as server:
        server.seen, server.directories = {}, {}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop, "_save", saved)
            for name, words in RUNS.items():
                current |= {"run": f"of-{name}", "server": server}
                path = small.write(folder, name, steps=STEPS[name], more=MORE if name == "ppo" else "")
                if name == ENVIRONMENT:
                    path = folder / "laboratory.yaml"
                    path.write_text(f"extends: {name}.yaml\n")
                directory = folder / current["run"]
                server.directories[current["run"]] = small.train(
                    path, directory, f"observe.prometheus_port={ports[name]}", *words
                )
        yield server


def asked(expr, run, every="100ms"):
    """An expression as Grafana asks it, with the variables filled in."""
    values = {
        "environment": ".*",
        "algorithm": ".*",
        "run": run,
        "bucket": "1",
        "__range": "30m",
        "__rate_interval": "1m",
        "__interval": every,
    }
    return re.sub(r"\$(\w*[a-z]\w*)", lambda match: values[match[1]], expr)


def may_be_empty(expr):
    """Whether it is about something that these runs do not have."""
    names = {shown.SERIES[name].name if name in shown.SERIES else name for name, _ in shown.selectors(expr)}
    figures = {figure for figures in re.findall(r'figure=~"([^"]+)"', expr) for figure in figures.split("|")}
    return bool(names & set(EMPTY)) or bool(figures and figures <= set(EMPTY))


def test_every_query_has_an_answer_from_some_run(watched):
    empty, failed = [], []
    for where, expr in shown.expressions():
        try:
            is_answered = any(watched.query(asked(expr, run, "1s"), at) for run, at in watched.seen.items())
        except AssertionError as error:
            failed.append(f"{where}: {error}")
            continue
        if not is_answered and not may_be_empty(expr):
            empty.append(f"{where}: {expr}")
    assert not failed, "\n".join(failed)
    assert not empty, "\n".join(empty)


def test_what_may_be_empty_is_something_that_the_dashboards_show():
    assert set(EMPTY) <= set(catalogue.METRICS)


def test_the_variables_offer_the_runs_and_their_algorithms(watched):
    overview = json.loads(shown.FILES[[path.stem for path in shown.FILES].index("overview")].read_text())
    for variable in overview["templating"]["list"]:
        if variable["type"] != "query":
            continue
        selector = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
        found = {
            series["metric"].get(selector[2])
            for run, at in watched.seen.items()
            for series in watched.query(asked(selector[1], run), at)
        }
        wanted = {"run": set(watched.seen), "algorithm": set(RUNS), "environment": {None, "laboratory"}}
        assert found == wanted[selector[2]]


def test_by_step_means_what_the_journal_says_and_finished_runs_stay(watched):
    path = next(path for path in shown.FILES if path.stem == "comparison")
    panel = next(p for p in shown.panels(json.loads(path.read_text())) if p["title"] == "Reward by step")
    at = max(watched.seen.values())
    found = {}
    for series in watched.query(asked(panel["targets"][0]["expr"], "of-(ppo|grpo)"), at):
        found[series["metric"]["line"], int(series["metric"]["step"])] = float(series["value"][1])
    for name in ("ppo", "grpo"):
        for step in journal.read(watched.directories[f"of-{name}"].journal).steps():
            assert found[f"of-{name} {name}", step["step"]] == pytest.approx(step["metrics"]["reward/mean"])


def test_the_table_of_runs_has_a_line_for_each_that_the_time_range_holds(watched):
    path = next(path for path in shown.FILES if path.stem == "comparison")
    panel = next(p for p in shown.panels(json.loads(path.read_text())) if p["title"] == "Runs")
    step = next(t["expr"] for t in panel["targets"] if "trimtab_run_step" in t["expr"])
    found = watched.query(asked(step, ".*"), max(watched.seen.values()))
    steps = {series["metric"]["run"]: float(series["value"][1]) for series in found}
    assert steps == {f"of-{name}": float(number) for name, number in STEPS.items()}


def test_the_parts_of_the_loss_add_up_to_the_total(watched):
    path = next(path for path in shown.FILES if path.stem == "algorithm")
    panel = next(p for p in shown.panels(json.loads(path.read_text())) if p["title"] == "Coefficient x term")
    *parts, total = (target["expr"] for target in panel["targets"])
    run = "of-grpo"
    at = watched.seen[run]
    whole = sum(sum(watched.values(asked(part, run), at)) for part in parts)
    assert whole == pytest.approx(watched.values(asked(total, run), at)[0], rel=1e-4, abs=1e-7)
