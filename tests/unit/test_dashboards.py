"""Grafana's dashboards: as the generator makes them, valid, and about metrics that there are. Provisioning and Compose."""

import copy
import doctest
import json
import re
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from scripts import dashboards
from tests.unit import grafana_model
from trimtab import catalogue, rules

OPS = Path(__file__).parents[2] / "ops"
FILES = sorted((OPS / "grafana" / "dashboards").glob("*.json"))
SERIES = {metric.prometheus_name: metric for metric in catalogue.METRICS.values()}
COMMON = {"run", "algorithm", "environment"}
FOREIGN = {
    "trimtab_run_info": {"version", "model"},
    "ALERTS": {"alertname", "alertstate", "severity"},
}
"""Series that are in no catalogue, with the labels they have beside the common ones."""
WORDS = {
    "on", "ignoring", "by", "group_left", "group_right", "bool", "and", "or", "unless", "max", "min", "sum", "group", "rate",
    "increase", "changes", "time", "floor", "label_join", "label_replace", "count_values", "last_over_time", "avg_over_time",
    "max_over_time", "line", "step",
}  # fmt: skip
"""Operators and functions of PromQL, and the labels that expressions make themselves."""


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def dashboard(request):
    return json.loads(request.param.read_text())


def panels(dashboard):
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def targets():
    """Every query of every dashboard, with where it stands."""
    for path in FILES:
        for panel in panels(json.loads(path.read_text())):
            for target in panel.get("targets", []):
                yield f"{path.stem}: {panel['title']} {target['refId']}", target


def expressions():
    yield from ((where, target["expr"]) for where, target in targets())
    for path in FILES:
        for mark in json.loads(path.read_text())["annotations"]["list"]:
            yield f"{path.stem}: {mark['name']}", mark["expr"]


def selectors(expr):
    """Pairs of a series' name and the labels of its matchers."""
    for name, inside in re.findall(r"([A-Za-z_:][\w:]*)\{([^}]*)\}", expr):
        yield name, re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"', inside)


def test_the_files_are_as_the_generator_makes_them():
    stale = [path.name for path in dashboards.outdated()]
    assert not stale, f"{stale}: run `make dashboards`"
    assert len(FILES) == 5


def test_a_file_that_differs_and_one_too_many_are_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(dashboards, "WHERE", tmp_path / "a" / "b" / "ops")
    assert dashboards.main([]) == 0
    assert dashboards.main(["--check"]) == 0
    held = tmp_path / "a" / "b" / "ops"
    (held / "overview.json").write_text("{}")
    (held / "old.json").write_text("{}")
    capsys.readouterr()
    assert dashboards.main(["--check"]) == 1
    told = capsys.readouterr().out
    assert "overview.json" in told
    assert "old.json" in told
    assert (held / "overview.json").read_text() == "{}"
    assert dashboards.main([]) == 0
    assert dashboards.main(["--check"]) == 0
    assert not (held / "old.json").exists()


def test_a_dashboard_is_of_grafanas_model(dashboard):
    grafana_model.Dashboard.model_validate(dashboard)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d["panels"][2].update(id=d["panels"][1]["id"]), "one id"),
        (lambda d: d["panels"][2].update(gridPos=d["panels"][1]["gridPos"]), "lies over"),
        (lambda d: d["panels"][1]["gridPos"].update(x=20, w=8), "over 24 columns"),
        (lambda d: d["panels"][1].update(type="graph"), "type"),
        (lambda d: d["panels"][1]["targets"][0].pop("expr"), "expr"),
        (lambda d: d["panels"][1]["targets"][0].pop("datasource"), "datasource"),
        (lambda d: d["panels"][1]["targets"][0].update(exrp="up"), "exrp"),
        (lambda d: d["panels"][1]["fieldConfig"]["defaults"].update(unit="parsecs"), "parsecs"),
        (lambda d: d["panels"][1]["options"].pop("reduceOptions"), "reduceOptions"),
        (lambda d: d.update(__inputs=[]), "__inputs"),
        (lambda d: d.pop("title"), "title"),
        (lambda d: d["templating"]["list"][0].update(query="loki"), "prometheus"),
    ],
)
def test_the_model_refuses_what_grafana_would_not_show(change, said):
    good = json.loads((OPS / "grafana" / "dashboards" / "overview.json").read_text())
    broken = copy.deepcopy(good)
    change(broken)
    with pytest.raises(ValidationError, match=said):
        grafana_model.Dashboard.model_validate(broken)


def test_uids_and_titles_are_unlike_and_links_lead_to_one():
    held = [json.loads(path.read_text()) for path in FILES]
    uids = {d["uid"] for d in held}
    assert uids == {f"trimtab-{path.stem}" for path in FILES}
    assert len({d["title"] for d in held}) == len(held)
    for d in held:
        assert d["links"][0]["tags"] == d["tags"] == ["trimtab"]
        for panel in panels(d):
            for link in panel.get("links", []):
                assert link["url"].removeprefix("/d/").partition("?")[0] in uids


def test_the_variables_are_there_and_each_depends_on_those_before(dashboard):
    found = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    assert list(found)[:4] == ["datasource", "environment", "algorithm", "run"]
    assert found["run"]["query"]["query"] == (
        'label_values(trimtab_run_info{environment=~"$environment", algorithm=~"$algorithm"}, run)'
    )
    for name in COMMON:
        assert found[name]["multi"]
        assert found[name]["includeAll"]
    for name in re.findall(r"\$([a-z_]\w*)", json.dumps([p.get("targets", []) for p in panels(dashboard)])):
        assert name in found or name.startswith("__"), f"${name} is no variable"


def test_every_expression_names_series_and_labels_that_there_are():
    for where, expr in expressions():
        named = dict(selectors(expr))
        for name, labels in selectors(expr):
            known = COMMON | (set(SERIES[name].labels) if name in SERIES else FOREIGN.get(name, set()))
            assert name in SERIES or name in FOREIGN, f"{where}: no series is called {name}"
            assert set(labels) <= known, f"{where}: {name} has no label {set(labels) - known}"
            assert name in FOREIGN or set(labels) >= COMMON, f"{where}: {name} is not chosen by the variables"
        bare = re.sub(r'"[^"]*"|\{[^}]*\}|\[[^\]]*\]|\$\w+', " ", expr)
        labels = {label for name in named for label in _labels(name)}
        for word in re.findall(r"[A-Za-z_]\w*", bare):
            assert word in WORDS or word in named or word in labels, f"{where}: {word}?"
        assert named, where
        assert expr.count("(") == expr.count(")")


def _labels(name):
    return COMMON | (set(SERIES[name].labels) if name in SERIES else FOREIGN[name])


def test_a_legend_names_labels_that_the_series_have():
    for where, target in targets():
        labels = {label for name, _ in selectors(target["expr"]) for label in _labels(name)}
        for group in re.findall(r"\bby \(([^)]*)\)", target["expr"])[:1]:
            labels = {label.strip() for label in group.split(",")}
        used = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        assert used <= labels, f"{where}: {used - labels}"


def test_every_metric_of_the_catalogue_is_on_a_panel():
    shown = {name for _, expr in expressions() for name, _ in selectors(expr)}
    missing = sorted(metric.name for name, metric in SERIES.items() if name not in shown)
    assert not missing, f"{missing}: give each a place in scripts/dashboard_layout.py"


def test_a_description_has_the_help_of_what_is_shown(dashboard):
    for panel in panels(dashboard):
        for target in panel.get("targets", []):
            if target["refId"] == "Limit":
                continue
            for name, _ in selectors(target["expr"]):
                assert name in FOREIGN or SERIES[name].help in panel["description"], panel["title"]


def test_counters_are_asked_for_as_counters_and_gauges_are_not():
    for where, expr in expressions():
        for name in re.findall(r"(?:rate|increase)\((\w+)", expr):
            assert name.endswith("_total"), f"{where}: {name} is no counter"


def test_limits_are_those_of_figures_that_a_rule_judges():
    judged = {figure for rule in rules.RULES for figure in rule.figures}
    seen = set()
    for where, target in targets():
        for figures in re.findall(r'figure=~"([^"]+)"', target["expr"]):
            seen |= set(figures.split("|"))
            assert set(figures.split("|")) <= judged, where
    assert {"kl/update", "kl/reference", "entropy", "length/truncated", "clip_fraction/high"} <= seen


def test_colours_of_single_figures_follow_the_rules():
    overview = json.loads((OPS / "grafana" / "dashboards" / "overview.json").read_text())
    trainer = next(panel for panel in panels(overview) if panel["title"] == "Trainer")
    beat = [o["properties"] for o in trainer["fieldConfig"]["overrides"] if o["matcher"]["options"] == "B"]
    steps = next(p["value"]["steps"] for properties in beat for p in properties if p["id"] == "thresholds")
    assert steps == [{"color": "green", "value": None}, {"color": "red", "value": rules.HEARTBEAT.act}]


def test_the_overview_has_the_components_in_the_order_of_the_data():
    overview = json.loads((OPS / "grafana" / "dashboards" / "overview.json").read_text())
    heads = {
        panel["options"]["content"].split("\n")[0]: panel["gridPos"]
        for panel in panels(overview)
        if panel["type"] == "text"
    }
    words = ("Policy service", "Reward module", "Learner, value, reference", "Storage")
    places = [next(at for head, at in heads.items() if word in head) for word in words]
    assert [at["x"] for at in places] == [0, 6, 12, 18]
    assert len({at["y"] for at in places}) == 1
    top = next(panel for panel in panels(overview) if panel["title"] == "State")
    below = next(panel for panel in panels(overview) if panel["title"] == "Rules")
    assert top["gridPos"]["y"] < places[0]["y"] < below["gridPos"]["y"]


def test_the_shown_examples_of_the_generator_are_right():
    result = doctest.testmod(dashboards)
    assert result.attempted
    assert not result.failed


def test_both_pages_name_every_dashboard():
    for page in ("grafana.md", "grafana.zh.md"):
        text = (OPS.parent / "docs" / page).read_text()
        for path in FILES:
            held = json.loads(path.read_text())
            assert held["uid"] in text, page
            assert held["title"].removeprefix("Trimtab / ") in text, page


# -------------------------------------------------------------------------------------------- provisioning, compose
def read(path):
    return yaml.safe_load((OPS / path).read_text())


def test_provisioning_names_the_servers_and_the_folder_of_the_compose_file():
    sources = read("grafana/provisioning/datasources/trimtab.yaml")
    provider = read("grafana/provisioning/dashboards/trimtab.yaml")
    compose = read("compose.yaml")["services"]
    assert sources["apiVersion"] == provider["apiVersion"] == 1
    by_type = {source["type"]: source for source in sources["datasources"]}
    for kind, service in (("prometheus", "prometheus"), ("alertmanager", "alertmanager")):
        listens = next(w for w in compose[service]["command"] if w.startswith("--web.listen-address="))
        assert by_type[kind]["url"] == "http://" + listens.partition("=")[2]
        assert by_type[kind]["access"] == "proxy"
    assert by_type["prometheus"]["isDefault"]
    folder = provider["providers"][0]["options"]["path"]
    assert f"./grafana/dashboards:{folder}:ro" in compose["grafana"]["volumes"]
    home = compose["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{folder}/overview.json"


def test_compose_listens_at_loopback_only_and_asks_for_a_password():
    services = read("compose.yaml")["services"]
    for name in ("prometheus", "alertmanager"):
        addresses = [w.partition("=")[2] for w in services[name]["command"] if "listen-address=" in w]
        assert addresses
        assert all(address == "" or address.startswith("127.0.0.1:") for address in addresses), name
    settings = services["grafana"]["environment"]
    assert settings["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"
    assert settings["GF_AUTH_ANONYMOUS_ENABLED"] == "false"
    assert re.fullmatch(r"\$\{GRAFANA_PASSWORD:\?[^}]+\}", settings["GF_SECURITY_ADMIN_PASSWORD"])
    assert not any("ports" in service for service in services.values())  # the network is the host's


def test_compose_pins_images_and_gives_no_rights():
    compose = read("compose.yaml")
    assert set(compose["services"]) == {"prometheus", "alertmanager", "grafana"}
    for name, service in compose["services"].items():
        assert re.fullmatch(r"[a-z.]+/[a-z/]+:v?\d+\.\d+\.\d+", service["image"]), name
        assert service["user"].split(":")[0] not in ("0", "root")
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["healthcheck"]["test"][0] == "CMD"
        assert service["network_mode"] == "host"


def test_every_mount_is_a_named_volume_or_an_existing_file_that_is_only_read():
    compose = read("compose.yaml")
    for name, service in compose["services"].items():
        for mount in service["volumes"]:
            source, _, rest = mount.partition(":")
            if source.startswith("."):
                assert (OPS / source).exists(), f"{name}: {source}"
                assert rest.endswith(":ro"), f"{name}: {mount}"
            else:
                assert source in compose["volumes"], f"{name}: {source}"


def test_the_configuration_files_of_the_commands_are_mounted():
    services = read("compose.yaml")["services"]
    for name in ("prometheus", "alertmanager"):
        config = next(w.partition("=")[2] for w in services[name]["command"] if w.startswith("--config.file="))
        mounts = [mount.split(":") for mount in services[name]["volumes"]]
        source, target, _ = next(mount for mount in mounts if config.startswith(mount[1]))
        assert (OPS / source / Path(config).relative_to(target)).exists(), config
