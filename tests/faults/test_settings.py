"""A setting changes something or is refused; what is switched off asks for nothing."""

from types import SimpleNamespace
from typing import get_args

import pytest
import torch

from tests import online
from tests.runs import small
from trimtab import algorithms, assemble
from trimtab import config as configs
from trimtab.algorithms.base import Aggregation
from trimtab.algorithms.gspo import Segment
from trimtab.assemble.build import _fitted_to_run
from trimtab.config import sections
from trimtab.errors import ConfigError, UserError
from trimtab.store.run_directory import RunDirectory
from trimtab.testing import cases
from trimtab.testing.algorithms import plain_config, rich_config, with_value
from trimtab.train.control import NoControl

BASE = {"algorithm": "grpo", "rewards": ["exact_match"]}
CASE = cases.make(3)
"""Has what every key needs to matter: ratios on both sides of every clip, covariances of all sizes, two rewards."""

EFFECTS = {
    "policy.aggregation": {"value": "token-sum"},
    "policy.clip_low": {"value": 0.01},
    "policy.clip_high": {"value": 0.01},
    "policy.dual_clip": {"value": 1.001},
    "policy.entropy_coef": {"value": 1.0},
    "policy.norm_length": {"value": 3, "beside": {"policy.aggregation": "seq-mean-token-sum-norm"}, "before": 7},
    "policy.log_ratio_clamp": {"value": 0.01},
    "policy.segment": {"value": Segment(length=2)},
    "policy.tau_positive": {"value": 3.0},
    "policy.tau_negative": {"value": 3.0},
    "policy.cov_share": {"value": 1.0, "beside": {"policy.cov_low": 0.1}},
    "policy.cov_low": {"value": 0.1, "beside": {"policy.cov_share": 1.0}},
    "policy.cov_high": {"value": 0.2, "beside": {"policy.cov_share": 1.0, "policy.cov_low": 0.1}},
    "policy.cov_coef": {"value": 0.5},
    "kl.coef": {"value": 1.0},
    "kl.target": {"value": "old_policy", "beside": {"kl.where": "loss"}},
    "kl.estimator": {"value": "k1", "beside": {"kl.where": "loss", "kl.gradient": "direct"}},
    "kl.gradient": {"value": "direct", "beside": {"kl.where": "loss", "kl.estimator": "k3"}},
    "kl.where": {"value": "reward", "before": "loss"},
    "mismatch.mode": {"value": "mask"},
    "mismatch.level": {"value": "sequence"},
    "mismatch.low": {"value": 0.999},
    "mismatch.high": {"value": None},
    "advantage.baseline": {"value": "none"},
    "advantage.scale_by": {"value": "none", "before": "group"},
    "advantage.ddof": {"value": 0, "beside": {"advantage.scale_by": "group", "advantage.whiten": True}},
    "advantage.singleton": {"value": "raw"},
    "advantage.combine": {"value": "normalize_then_sum"},
    "advantage.leave_out_masked": {"value": True},
    "policy.count_dead_rows": {"value": True, "beside": {"policy.aggregation": "seq-mean-token-mean"}},
    "advantage.gamma": {"value": 0.5},
    "advantage.lam": {"value": 0.1},
    "advantage.whiten": {"value": True, "before": False},
    "advantage.bootstrap_truncated": {"value": False},
    "value.coef": {"value": 0.5},
    "value.clip_ratio": {"value": 0.01},
}
"""Another value than the default of every key of the algorithms, and what must stand beside it to matter."""
OF_THE_LEARNER = {
    "kl.controller", "kl.controller_target", "kl.controller_horizon", "kl.unit", "kl.limit", "kl.stop_epochs",
}  # fmt: skip
"""Read between updates or steps, not in the loss: unit/train/test_controller.py and runs/test_every_key.py flip them."""
TRAINED = [*online.NAMES, "sft"]


def keys(name):
    return [f"{o.section}.{key}" for o in sections.of_algorithm(algorithms.load(name)) for key in o.key_names()]


CASES = [(name, key) for name in TRAINED for key in keys(name) if key not in OF_THE_LEARNER]


@pytest.mark.parametrize(("name", "key"), CASES)
def test_every_key_of_an_algorithm_changes_the_loss_or_its_gradient(name, key):
    algorithm, effect = algorithms.load(name), EFFECTS[key]
    config = rich_config(algorithm)
    for beside, value in effect.get("beside", {}).items():
        config = with_value(config, *beside.split("."), value) or config
    section, part = key.split(".")
    before = with_value(config, section, part, effect["before"]) if "before" in effect else config
    after = with_value(config, section, part, effect["value"])
    assert after is not None, f"{key} is not a key of {name}"
    case = CASE
    a, b = cases.evaluate(algorithm, before, case), cases.evaluate(algorithm, after, case)
    changed = any(not torch.equal(a.gradients[n], b.gradients[n]) for n in a.gradients)
    assert changed or a.loss != b.loss


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("key", ["policy.entropy_coef", "kl.coef", "value.coef"])
def test_a_coefficient_enters_the_loss_or_is_refused_as_unread(name, key):
    if key in keys(name):
        algorithm = algorithms.load(name)
        found = [
            cases.evaluate(algorithm, with_value(in_the_loss(algorithm), *key.split("."), value), cases.make()).loss
            for value in (0.0, 0.5, 1.0)
        ]
        assert abs(found[2] - found[0]) > 1e-3
        assert found[2] - found[1] == pytest.approx(found[1] - found[0], abs=1e-5)
    else:
        with pytest.raises(ConfigError, match=f"`{key}` is not read by {name} in this run"):
            configs.from_mapping({**BASE, "algorithm": name}, [f"{key}=1.0"])


@pytest.mark.parametrize(
    "off",
    [
        {"kl": {"coef": 0.0}, "reference": {"model": "./nowhere/at/all"}},
        {"value": {"enabled": False, "model": "./nowhere/at/all", "coef": 0.5, "learning_rate": 1.0}},
        {"eval": {"early_stop": {"patience": None}}},
        {"policy": {"dual_clip": None, "norm_length": None}},
        {"checkpoint": {"rolling_every": None}},
        {"optim": {"max_grad_norm": None}},
        {"policy": {"lora": None, "autocast": None}},
        {"sampling": {"overlong": {"buffer": 0}, "dynamic": {"enabled": False}, "top_k": None}},
        {"mix": [], "overrides": {}},
        {"data": {"validation": None, "allow": None}},
    ],
    ids=lambda off: next(iter(off)),
)
def test_what_is_switched_off_asks_for_nothing(off):
    assert configs.from_mapping({**BASE, **off}).resolved["algorithm"] == "grpo"


def test_fewer_prompts_a_step_than_processes_are_refused_before_anything_is_loaded_with_the_sum(tmp_path, monkeypatch):
    (tmp_path / "pairs.jsonl").write_text('{"prompt": "a", "chosen": "b", "rejected": "c"}\n')
    part = {"algorithm": "dpo", "data": str(tmp_path / "pairs.jsonl"), "rows_per_step": 3}
    config = configs.from_mapping({**BASE, "train": {"prompts_per_step": 2}, "mix": [part]})
    monkeypatch.setattr("trimtab.train.ranks.Ranks", lambda: SimpleNamespace(size=4, rank=0))
    with pytest.raises(UserError) as error:
        assemble.build(config, RunDirectory(tmp_path / "run"), NoControl())
    assert str(error.value).splitlines() == [
        f"{key}, but there are 4 processes and each needs one a step ({count} / 4 < 1); use 4 or more"
        for key, count in (("train.prompts_per_step: 2", 2), ("mix[0].rows_per_step: 3", 3))
    ]
    assert not (tmp_path / "run").exists()


def test_a_reference_that_no_term_needs_is_not_looked_for(tmp_path):
    path = small.write(tmp_path, steps=1, more="kl: {coef: 0.0}\nreference: {model: ./nowhere/at/all}\n")
    directory = small.train(path, tmp_path / "run", "data.validation=null", "train.prompts_per_step=2")
    assert [s["step"] for s in small.steps(directory)] == [1]


def in_the_loss(algorithm):
    config = plain_config(algorithm)
    return with_value(config, "kl", "where", "loss") or config


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("aggregation", get_args(Aggregation))
def test_an_aggregation_can_be_trained_with_or_is_refused_where_it_is_read(name, aggregation):
    """SFT knows neither groups nor the length limit of what is sampled."""
    words = [f"policy.aggregation={aggregation}"]
    if name == "sft" and aggregation in ("prompt-mean", "seq-mean-token-sum-norm"):
        with pytest.raises(ConfigError, match=f"policy.aggregation: '{aggregation}'; expected 'token-mean'"):
            configs.from_mapping({**BASE, "algorithm": name}, words)
        return
    config = configs.from_mapping({**BASE, "algorithm": name}, words)
    assert cases.evaluate(config.algorithm, _fitted_to_run(config, None), cases.make()).loss != 0.0
