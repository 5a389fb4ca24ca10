"""The commands as a user types them, on a small run; the guide's configuration; an algorithm from outside."""

import json
import sys
import textwrap
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from tests.runs import small
from trimtab import algorithms
from trimtab import config as configs
from trimtab.cli import app
from trimtab.errors import TrimtabError, UserError

ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / "examples").rglob("*.yaml"))


def call(*words):
    return CliRunner().invoke(app, list(map(str, words)), catch_exceptions=True)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("commands")
    return small.train(small.write(folder, steps=2), folder / "run")


def test_status_says_step_figures_checkpoints_and_state(finished):
    text = call("status", finished.root).output
    assert "step 2/2  all steps done" in text
    assert "reward/mean" in text
    found = json.loads(call("status", finished.root, "--json").output)
    assert found["step"] == 2
    assert found["checkpoints"] == [0, 1, 2]
    assert found["metrics"]["loss/policy"] == small.steps(finished)[-1]["metrics"]["loss/policy"]


def test_eval_of_a_run_repeats_its_last_evaluation(finished):
    found = json.loads(call("eval", finished.root, "--checkpoint", "2", "--json").output)
    from trimtab.store import journal

    last = journal.read(finished.journal).evaluations()[-1]["metrics"]
    assert {name: found[name] for name in last} == {
        name: pytest.approx(value, abs=1e-6) for name, value in last.items()
    }


def test_eval_of_a_checkpoint_that_is_not_there_names_those_that_are(finished):
    result = call("eval", finished.root, "--checkpoint", "77")
    assert isinstance(result.exception, UserError)
    assert "there are 0, 1, 2" in str(result.exception)


@pytest.mark.parametrize("algorithm", ["grpo", "ppo", "sft"])
def test_smoke_goes_through_every_stage(tmp_path, algorithm):
    result = call("smoke", small.write(tmp_path, algorithm))
    assert result.exit_code == 0, result.output
    for stage in ("data", "load", "source", "update", "weights", "engine", "save", "restore"):
        assert f"ok    {stage}" in result.output
    assert "every stage passed" in result.output


def test_smoke_fails_when_a_stage_does(tmp_path, monkeypatch):
    from trimtab.train.learner import Learner

    update = Learner.update

    def spoilt(self, batch):
        batch.rewards[0] = float("nan")
        return update(self, batch)

    monkeypatch.setattr(Learner, "update", spoilt)
    result = call("smoke", small.write(tmp_path))
    assert isinstance(result.exception, TrimtabError)
    assert "stage `update` failed: not finite" in str(result.exception)
    assert result.exception.exit_code == 1


def test_check_reads_everything_and_trains_nothing(tmp_path):
    result = call("check", small.write(tmp_path, "ppo"))
    assert result.exit_code == 0, result.output
    for part in ("config", "data", "rewards", "model"):
        assert f"ok    {part}" in result.output
    assert "critic, as much again" in result.output
    assert not list(tmp_path.glob("run*"))


@pytest.mark.parametrize("path", SHIPPED, ids=[str(p.relative_to(ROOT)) for p in SHIPPED])
def test_every_shipped_configuration_is_valid(path):
    if path.parent.name == "models":
        pytest.importorskip("yaml")
        assert "algorithm" not in yaml.safe_load(path.read_text())
        return
    configs.load(path)


def test_the_guides_nested_example_stands_verbatim_in_the_shipped_file():
    found = yaml.safe_load((ROOT / "examples" / "guide.yaml").read_text())
    found.pop("extends")
    assert found == {
        "algorithm": "ppo_like",
        "policy": {"clip_ratio": 0.2, "entropy_coef": 0.01},
        "value": {"enabled": True, "coef": 0.5},
        "kl": {"coef": 0.02, "target": "reference_model"},
        "sampling": {"group_size": 8, "temperature": 1.0, "max_length": 4096},
    }


@pytest.mark.parametrize("words", [[], ["algorithm=grpo"]], ids=["as it stands", "grpo by one word"])
def test_the_guides_example_trains(tmp_path, words, capsys):
    more = ["policy.model=builtin:tiny", "sampling.max_length=16", "train.max_steps=1", "train.prompts_per_step=4"]
    more += ["train.minibatches=2", "eval.prompts=4", "rewards=[{name: length, options: {max_tokens: 4}}]"]
    directory = small.train(ROOT / "examples" / "guide.yaml", tmp_path / "run", *words, *more)
    metrics = small.steps(directory)[0]["metrics"]
    assert {"loss/policy", "loss/entropy", "loss/kl", "loss/total"} <= set(metrics)
    assert ("loss/value" in metrics) == (not words)
    total = metrics["loss/policy"] - 0.01 * metrics["loss/entropy"] + 0.02 * metrics["loss/kl"]
    assert metrics["loss/total"] == pytest.approx(total + 0.5 * metrics.get("loss/value", 0.0), abs=1e-5)
    if words:
        assert "unused by grpo: value.enabled, value.coef" in capsys.readouterr().out


def test_a_reward_function_of_a_user_is_found_beside_the_configuration(tmp_path):
    (tmp_path / "my_rewards.py").write_text(
        "def even(prompts, completions, **columns):\n    return [float(len(c) % 2 == 0) for c in completions]\n"
    )
    path = small.write(tmp_path, steps=1)
    directory = small.train(path, tmp_path / "run", "rewards=[{name: 'my_rewards:even'}]")
    assert 0.0 <= small.steps(directory)[0]["metrics"]["reward/even"] <= 1.0


TOY = """
from dataclasses import dataclass, field

from trimtab.algorithms.base import (
    Advantages, Algorithm, Group, Need, Shared, group_relative, require, shared_terms, term
)
from trimtab.algorithms.math import per_token


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyConfig:
    shared: Shared = field(default_factory=Shared)


def needs(config):
    return Need.ROLLOUTS | Need.GROUPS | config.shared.needs()


def advantages(batch, frozen, config):
    rows = group_relative(batch, frozen, Group(scale_by="none"), config.shared)
    return Advantages(loss_mask=batch.loss_mask, values=per_token(rows, batch.loss_mask))


def terms(batch, frozen, advantages, policy, config):
    own = term(-advantages.values * require(policy.log_probs), config.shared)
    return {"policy": own, **shared_terms(frozen, policy, config.shared)}


TOY = Algorithm(name="toy", config=ToyConfig, needs=needs, advantages=advantages, terms=terms, summary="a toy")
"""


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """A package as pip would have installed it: a module and its entry point."""
    site = tmp_path / "site"
    info = site / "toy_algorithm-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "toy_algorithm.py").write_text(textwrap.dedent(TOY))
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-algorithm\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[trimtab.algorithms]\ntoy = toy_algorithm:TOY\n")
    monkeypatch.syspath_prepend(str(site))
    yield "toy"
    sys.modules.pop("toy_algorithm", None)


def test_an_algorithm_from_outside_is_listed_tested_and_trained(plugin, tmp_path):
    assert "toy" in algorithms.names()
    assert "toy a toy" in " ".join(call("algorithms").output.split())
    tested = call("algorithms", "toy", "--test")
    assert tested.exit_code == 0, tested.output
    assert "0 failed" in tested.output
    directory = small.train(small.write(tmp_path, "toy", steps=1), tmp_path / "run")
    assert "loss/policy" in small.steps(directory)[0]["metrics"]


def test_a_plugin_that_breaks_the_contract_fails_its_test(plugin, tmp_path, monkeypatch):
    path = tmp_path / "site" / "toy_algorithm.py"
    path.write_text(path.read_text().replace("-advantages.values", "-advantages.values / len(batch)"))
    result = call("algorithms", "toy", "--test")
    assert result.exit_code == 1
    assert "FAIL  gradient does not depend on the micro batches" in result.output


def test_a_key_that_only_a_plugin_reads_is_known_to_every_algorithm(tmp_path, plugin):
    module = tmp_path / "site" / "toy_algorithm.py"
    text = module.read_text().replace(
        "class ToyConfig:",
        "class Strength:\n    __pydantic_config__ = {'extra': 'forbid'}\n    toy_strength: float = 1.0\n\n\n"
        "@dataclass(frozen=True, slots=True, kw_only=True)\nclass ToyConfig:\n"
        "    policy: Strength = field(default_factory=Strength)",
    )
    module.write_text(text)
    path = small.write(tmp_path, "toy")
    path.write_text(path.read_text().replace("{model: builtin:tiny}", "{model: builtin:tiny, toy_strength: 2.0}"))
    assert configs.load(path).resolved["policy"]["toy_strength"] == 2.0
    assert configs.load(path, ["algorithm=grpo"]).unused == ("policy.toy_strength",)


def test_a_broken_plugin_is_named_and_spoils_nothing_else(tmp_path, plugin):
    (tmp_path / "site" / "toy_algorithm.py").write_text("import a_module_that_is_not_there\n")
    listed = call("algorithms")
    assert listed.exit_code == 0
    assert "cannot be loaded" in listed.output
    assert "clipped policy gradient" in listed.output
    with pytest.raises(UserError, match=r"toy-algorithm 1\.0.*a_module_that_is_not_there"):
        algorithms.load("toy")
    assert configs.load(small.write(tmp_path)).algorithm.name == "grpo"


def test_a_plugin_that_claims_a_rooms_key_is_refused(tmp_path, plugin):
    module = tmp_path / "site" / "toy_algorithm.py"
    module.write_text(
        module.read_text().replace(
            "class ToyConfig:",
            "class Claim:\n    temperature: float = 1.0\n\n\n@dataclass(frozen=True, slots=True, kw_only=True)\n"
            "class ToyConfig:\n    sampling: Claim = field(default_factory=Claim)",
        )
    )
    with pytest.raises(UserError, match=r"sampling\.temperature is declared by sampling and by algorithm\.sampling"):
        configs.load(small.write(tmp_path, "toy"))


def test_check_refuses_what_train_would_refuse(tmp_path):
    for name, message in (("weights.pt", "pickled"), ("./nowhere/at/all", "does not exist"), ("builtin:huge", "only")):
        result = call("check", small.write(tmp_path), f"policy.model={name}")
        assert isinstance(result.exception, UserError)
        assert message in str(result.exception)


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ("exact_mach", "no reward is called `exact_mach`; did you mean `exact_match`?"),
        ("{name: 'a:b', options: {x: 1}}", "options are for built-in rules"),
        ("{name: regex}", "reward regex"),
        ("{name: length, options: {most: 3}}", "reward length has no option `most`; it has max_tokens"),
    ],
)
def test_a_reward_that_cannot_be_is_found_when_the_configuration_is_read(tmp_path, reward, message):
    with pytest.raises(configs.ConfigError) as caught:
        configs.load(small.write(tmp_path), [f"rewards=[{reward}]", "sampling.group_size=1", "train.minibatches=0"])
    assert message in str(caught.value)
    assert "sampling.group_size: 1" in str(caught.value)
    assert "train.minibatches: 0" in str(caught.value)
