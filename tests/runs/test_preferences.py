"""Runs that read pairs and labels: they learn, go on where they were, and are refused where they cannot work."""

import json

import pytest

from tests.runs import small
from trimtab import config as configs
from trimtab.assemble.build import evaluation_metric
from trimtab.data import preferences, rows
from trimtab.operate import finish
from trimtab.operate.verify import verify
from trimtab.store import journal

FAST = ["data.validation=null", "observe.term_norms_every=null", "checkpoint.rolling_every=100"]


@pytest.fixture(autouse=True)
def without_report(monkeypatch):
    monkeypatch.setattr(finish, "write_report", lambda *_, **__: [])


@pytest.fixture
def few_pairs(tmp_path):
    """The built-in pairs that are easiest to tell apart: the wrong sum lacks its last digit."""
    made = rows.read("builtin:addition", {}, preferences.PAIR, first=4000)
    short = [r.values for r in made if len(r.values["rejected"]) < len(r.values["chosen"])][:16]
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(json.dumps({k: v for k, v in row.items() if v is not None}) for row in short))
    return path


def test_dpo_learns_which_side_is_chosen(tmp_path, few_pairs):
    words = [f"data.train={few_pairs}", "train.prompts_per_step=16", "train.minibatches=1", "optim.learning_rate=1e-3"]
    directory = small.train(small.write(tmp_path, "dpo", steps=12), tmp_path / "run", *words, *FAST)
    steps = small.steps(directory)
    assert steps[0]["metrics"]["loss/preference"] == pytest.approx(0.6931, abs=1e-4)
    assert steps[0]["metrics"]["preference/margin"] == pytest.approx(0.0, abs=1e-5)  # policy and reference are one
    assert steps[-1]["metrics"]["preference/accuracy"] > 0.9
    assert steps[-1]["metrics"]["preference/margin"] > 0.5
    assert verify(directory.root).findings == {}


@pytest.mark.parametrize("name", ["dpo", "kto"])
def test_an_interrupted_run_goes_on_bit_by_bit(tmp_path, monkeypatch, name):
    path = small.write(tmp_path, name, steps=3)
    words = ["observe.term_norms_every=null"]
    whole = small.train(path, tmp_path / "whole", *words)
    small.interrupt_after(monkeypatch, 1)
    with pytest.raises(small.Interrupted):
        small.train(path, tmp_path / "cut", *words)
    monkeypatch.undo()
    monkeypatch.setattr(finish, "write_report", lambda *_, **__: [])
    cut = small.train(path, tmp_path / "cut", *words)
    assert small.evidence(cut) == small.evidence(whole)
    evaluations = [[e["metrics"] for e in journal.read(d.journal).evaluations()] for d in (cut, whole)]
    assert evaluations[0] == evaluations[1]
    assert "eval/preference/accuracy" in evaluations[0][0]


@pytest.mark.parametrize(("prompts", "minibatches"), [(1, 1), (4, 4), (5, 3)])
def test_kto_with_one_row_an_update_is_refused_when_the_configuration_is_read(tmp_path, prompts, minibatches):
    words = [f"train.prompts_per_step={prompts}", f"train.minibatches={minibatches}"]
    with pytest.raises(configs.ConfigError, match=r"leaves updates of one row, but kto compares a row with others"):
        configs.load(small.write(tmp_path, "kto"), words)


def test_an_epoch_between_evaluations_is_the_steps_that_the_rows_last_for(tmp_path, few_pairs, capsys):
    words = [f"data.train={few_pairs}", "train.prompts_per_step=6", "eval.every=epoch", "train.minibatches=1"]
    directory = small.train(small.write(tmp_path, "simpo", steps=4), tmp_path / "run", *words)
    assert "eval.every: epoch, that is 3 steps (16 rows, 6 a step)" in capsys.readouterr().out
    assert [e["step"] for e in journal.read(directory.journal).evaluations()] == [0, 3, 4]


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        ("dpo", "eval/preference/accuracy"),
        ("kto", "eval/preference/accuracy"),
        ("reward_model", "eval/reward_model/auc"),
        ("sft", "eval/loss/nll"),
        ("grpo", "eval/reward/mean"),
    ],
)
def test_the_figure_that_finds_the_best_checkpoint(tmp_path, name, metric):
    assert evaluation_metric(configs.load(small.write(tmp_path, name))) == metric


def test_a_run_whose_accuracy_stands_still_stops_early(tmp_path):
    words = ["optim.learning_rate=0", "eval.every=1", "eval.early_stop.patience=1"]
    directory = small.train(small.write(tmp_path, "simpo", steps=3), tmp_path / "run", *words)
    assert len(small.steps(directory)) == 1
    assert directory.facts()["outcome"] == "stopped early"


@pytest.mark.parametrize(
    ("document", "beta", "said"),
    [
        ({"temperature": 0.2}, 0.2, "temperature -> preference.beta: 0.2 (what dpo divides by)"),
        ({"sampling": {"temperature": 0.2}}, 0.2, "sampling.temperature -> preference.beta: 0.2 (dpo samples nothing)"),
        ({"sampling": {"temperature": 1.0}}, 0.1, None),
        ({"sampling": {"temperature": 0.2}, "preference": {"beta": 0.3}}, 0.3, None),
    ],
)
def test_the_temperature_of_the_guides_is_beta(document, beta, said):
    config = configs.from_mapping({"algorithm": "dpo", **document})
    assert config.resolved["preference"]["beta"] == beta
    assert list(config.aliases) == ([said] if said else [])
    assert ("sampling.temperature" in config.unused) == (said is None)


def test_a_temperature_outside_of_a_section_is_refused_where_there_is_no_beta():
    with pytest.raises(configs.ConfigError, match=r"temperature: 1\.0 outside of a section is preference\.beta"):
        configs.from_mapping({"algorithm": "grpo", "rewards": ["exact_match"], "temperature": 1.0})


def test_the_weight_of_a_lone_preference_term_is_said_to_have_no_effect():
    config = configs.from_mapping({"algorithm": "dpo", "dpo_loss_weight": 0.5})
    assert config.aliases[0].startswith("dpo_loss_weight: 0.5 has no effect: the preference term is the only one")
    for document in ({"algorithm": "grpo", "rewards": ["exact_match"]}, {"algorithm": "dpo"}):
        with pytest.raises(configs.ConfigError, match="dpo_loss_weight"):
            configs.from_mapping({**document, "dpo_loss_weight": 0.5 if "rewards" in document else 0})


@pytest.mark.parametrize(
    ("name", "metric"), [("dpo", "eval/preference/margin"), ("kto", "eval/kto/z0"), ("ipo", "eval/loss/total")]
)
def test_a_figure_of_the_algorithm_can_stop_the_run(name, metric):
    document = {"algorithm": name, "eval": {"early_stop": {"metric": metric}}}
    assert configs.from_mapping(document).eval.early_stop.metric == metric


@pytest.mark.parametrize("value", ["epohc", 0, 1.5])
def test_an_interval_is_a_number_or_the_word_epoch(value):
    with pytest.raises(configs.ConfigError) as fault:
        configs.from_mapping({"algorithm": "dpo", "eval": {"every": value}})
    assert [f.what for f in fault.value.findings] == [f"eval.every: {value!r}"] * len(fault.value.findings)
