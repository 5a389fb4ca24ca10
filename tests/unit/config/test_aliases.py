"""Flat names of the guides, as YAML and as a dict."""

import pytest

from trimtab import config as configs

FLAT = {
    "algorithm": "ppo",
    "batch_size": 256,
    "epoch_num": 4,
    "clip_epsilon": 0.2,
    "kl_coef": 0.01,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "rewards": ["exact_match"],
}


def test_every_flat_name_lands_where_it_belongs_and_is_said_once():
    config = configs.from_mapping(FLAT)
    found = config.resolved
    assert found["train"]["prompts_per_step"] == 32
    assert found["train"]["epochs_per_batch"] == 4
    assert (found["policy"]["clip_low"], found["policy"]["clip_high"]) == (0.2, 0.2)
    assert found["kl"]["coef"] == 0.01
    assert (found["advantage"]["gamma"], found["advantage"]["lam"]) == (0.99, 0.95)
    assert len(config.aliases) == 6
    assert "batch_size -> train.prompts_per_step: 32 (256 completions = 32 prompts x group_size 8)" in config.aliases
    assert any("KL to the reference model" in line for line in config.aliases)
    assert not set(FLAT) & set(found) - {"algorithm", "rewards"}


def test_the_file_and_the_dict_say_the_same(tmp_path):
    path = tmp_path / "flat.yaml"
    path.write_text("\n".join(f"{name}: {value}" for name, value in FLAT.items()).replace("'", ""))
    assert configs.load(path).resolved == configs.from_mapping(FLAT).resolved


def test_models_by_path():
    flat = {**FLAT, "policy_model_path": "a/b", "ref_model_path": "c/d"}
    found = configs.from_mapping(flat).resolved
    assert (found["policy"]["model"], found["reference"]["model"]) == ("a/b", "c/d")


def test_the_batch_is_divided_by_the_group_size_that_is_set():
    flat = {**FLAT, "sampling": {"group_size": 16}}
    assert configs.from_mapping(flat).resolved["train"]["prompts_per_step"] == 16


@pytest.mark.parametrize("size", [255, 0.5, "many", True])
def test_a_batch_that_is_no_whole_number_of_groups_is_refused(size):
    with pytest.raises(configs.ConfigError, match=r"batch_size: .*group_size: 8; make it a multiple"):
        configs.from_mapping({**FLAT, "batch_size": size})


def test_an_alias_beside_its_key_is_refused():
    with pytest.raises(configs.ConfigError, match=r"gamma beside advantage\.gamma; they are the same setting"):
        configs.from_mapping({**FLAT, "advantage": {"gamma": 1.0}})


def test_under_another_algorithm_an_alias_is_unused_as_its_key_would_be():
    config = configs.from_mapping(FLAT, ["algorithm=grpo"])
    assert set(config.unused) == {"advantage.gamma", "advantage.lam"}


def test_an_alias_on_the_command_line_counts_as_its_key():
    found = configs.from_mapping({"algorithm": "grpo", "rewards": ["exact_match"]}, ["clip_epsilon=0.1"]).resolved
    assert found["policy"]["clip_low"] == 0.1


def test_a_misspelt_alias_is_suggested():
    with pytest.raises(configs.ConfigError, match="unknown key `clip_epsilom`; did you mean `clip_epsilon`"):
        configs.from_mapping({**FLAT, "clip_epsilom": 0.1})
