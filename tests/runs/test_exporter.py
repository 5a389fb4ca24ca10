"""A run that is scraped while it trains: every journalled figure, its labels, its end; and keys that are refused."""

import json
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.runs import small
from trimtab import catalogue
from trimtab import config as configs
from trimtab.errors import ConfigError
from trimtab.store import journal
from trimtab.train import loop

WORDS = ["observe.prometheus_port=0", "train.max_steps=3"]


def parsed(text):
    """Name in the catalogue -> value, of the families without labels of their own; and the labels seen."""
    values, labels = {}, set()
    by_name = {m.prometheus_name: m for m in catalogue.METRICS.values()}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels |= set(sample.labels)
            entry = by_name.get(sample.name)
            if entry is not None and not entry.labels:
                values[entry.name] = sample.value
    return values, labels


@pytest.fixture(scope="module")
def scraped(tmp_path_factory):
    """A run of PPO, and what a scrape behind its second step saw."""
    folder = tmp_path_factory.mktemp("scraped")
    save, seen = loop._save, {}

    def saved(run, report, *, last):
        save(run, report, last=last)
        if report.step == 2:
            url = json.loads((folder / "run" / "run.json").read_text())["metrics"]
            for path in ("metrics", "readyz", "healthz"):
                with urllib.request.urlopen(url.replace("metrics", path), timeout=10) as answer:
                    seen[path] = answer.read().decode()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "_save", saved)
        textfile = f"observe.prometheus_textfile={folder / 'run.prom'}"
        directory = small.train(small.write(folder, "ppo"), folder / "run", *WORDS, textfile)
    return directory, seen, (folder / "run.prom").read_text()


def test_every_figure_of_the_journal_is_scraped_with_its_value(scraped):
    directory, seen, _ = scraped
    values, _ = parsed(seen["metrics"])
    step = journal.read(directory.journal).steps()[1]["metrics"]
    plain = {n: v for n, v in step.items() if catalogue.find(n).kind == "gauge" and not catalogue.find(n).labels}
    assert len(plain) > 50
    assert {n: values.get(n) for n in plain} == plain
    assert values["updates/count"] == sum(
        s["metrics"]["updates/count"] for s in journal.read(directory.journal).steps()[:2]
    )


def test_labels_are_bounded(scraped):
    _, labels = parsed(scraped[1]["metrics"])
    assert labels <= {
        "run", "algorithm", "environment", "name", "rule", "level", "figure", "role", "state", "version", "model"
    }  # fmt: skip
    assert 'run="run"' in scraped[1]["metrics"]
    assert 'algorithm="ppo"' in scraped[1]["metrics"]


def test_a_run_that_trains_is_ready_and_well(scraped):
    assert json.loads(scraped[1]["readyz"])["state"] == "training"
    assert json.loads(scraped[1]["healthz"]) | {"roles": None} == {
        "run": "run", "state": "training", "step": 2, "roles": None, "stalled": []
    }  # fmt: skip


def test_the_textfile_has_the_end(scraped):
    values, _ = parsed(scraped[2])
    assert values["run/step"] == values["run/max_steps"] == 3.0
    assert 'state="finished"} 1.0' in scraped[2]


def test_figures_of_the_computer_stand_in_the_journal(scraped):
    for step in journal.read(scraped[0].journal).steps():
        assert 0 < step["metrics"]["utilisation/memory"] < 1
        assert step["metrics"]["io/disk_bytes"] >= 0


def test_the_environment_is_that_of_the_file_which_extends_others(tmp_path):
    small.write(tmp_path, "grpo").rename(tmp_path / "base.yaml")
    (tmp_path / "prod.yaml").write_text("extends: base.yaml\n")
    directory = small.train(
        tmp_path / "prod.yaml", tmp_path / "run", "train.max_steps=1", f"observe.prometheus_textfile={tmp_path / 'p'}"
    )
    assert 'environment="prod"' in (tmp_path / "p").read_text()
    assert directory.facts()["metrics"] is None


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "10.0.0.7", "trainer.example"])
def test_an_address_that_others_reach_needs_a_token(tmp_path, address):
    words = ["observe.prometheus_port=9464", f"observe.prometheus_address='{address}'"]
    with pytest.raises(ConfigError) as caught:
        configs.load(small.write(tmp_path), words)
    assert "can be reached from other computers" in str(caught.value)
    assert "observe.prometheus_token" in str(caught.value)
    assert configs.load(small.write(tmp_path), [*words, "observe.prometheus_token=${env:SCRAPE_TOKEN}"]).export
    assert configs.load(small.write(tmp_path), words[1:]).export.prometheus_port is None


def test_a_token_that_is_not_there_is_said_before_the_run_begins(tmp_path, monkeypatch):
    monkeypatch.delenv("SCRAPE_TOKEN", raising=False)
    with pytest.raises(ConfigError, match="the environment variable is not set"):
        small.train(small.write(tmp_path), tmp_path / "run", *WORDS, "observe.prometheus_token=${env:SCRAPE_TOKEN}")
