"""A run that a reward model judges: it goes on with the weights it began with, and its memory is counted."""

import json

import pytest
import torch

from tests.runs import small
from trimtab import config as configs
from trimtab.assemble.numerics import Numerics
from trimtab.errors import ConfigError
from trimtab.models import memory, scoring
from trimtab.operate import advice, finish

NUMERICS = Numerics(threads=1, micro_batch_tokens=2048, rollout_rows=64, device="cpu")


@pytest.fixture(autouse=True)
def without_report(monkeypatch):
    monkeypatch.setattr(finish, "write_report", lambda *_, **__: [])


def put_model(place, seed):
    loaded = scoring.load("builtin:tiny", seed=0)
    torch.manual_seed(seed)
    torch.nn.init.normal_(loaded.model.score.weight)
    loaded.model.save_pretrained(place)
    loaded.tokenizer.save_pretrained(place)


def test_a_run_does_not_go_on_with_other_weights_under_the_same_name(tmp_path):
    place = tmp_path / "RM"
    put_model(place, 1)
    path, words = small.write(tmp_path, steps=1), [f"rewards=[{{model: {place}}}]", "data.validation=null"]
    run = small.train(path, tmp_path / "run", *words)
    known = json.loads((run.root / "run.json").read_text())["reward_models"]
    assert list(known) == [str(place)]
    put_model(place, 2)
    with pytest.raises(
        ConfigError, match=r"RM: the weights are not those that this run was started with; put them back"
    ):
        small.train(path, run.root, *words, "train.max_steps=2")
    assert len(small.steps(run)) == 1
    put_model(place, 1)
    assert len(small.steps(small.train(path, run.root, *words, "train.max_steps=2"))) == 2


def test_a_run_that_knows_no_weights_goes_on_and_remembers_them(tmp_path):
    place = tmp_path / "RM"
    put_model(place, 1)
    path, words = small.write(tmp_path, steps=1), [f"rewards=[{{model: {place}}}]", "data.validation=null"]
    run = small.train(path, tmp_path / "run", *words)
    facts = json.loads((run.root / "run.json").read_text())
    known = facts.pop("reward_models")
    (run.root / "run.json").write_text(json.dumps(facts))
    small.train(path, run.root, *words, "train.max_steps=2")
    assert run.facts()["reward_models"] == known


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2)])
def test_the_memory_of_reward_models_is_counted(tmp_path, dtype, size):
    place = tmp_path / "RM"
    put_model(place, 1)
    words = [f"rewards=[exact_match, {{model: {place}}}, {{model: {place}}}]", f"policy.dtype={dtype}"]
    config = configs.load(small.write(tmp_path), words)
    named = advice.models_of(config)
    assert named["rewards[1]"] == ("rewards[1].model", str(place))
    assert "rewards[0]" not in named
    sizes = {role: memory.sizes(name, key) for role, (key, name) in named.items()}
    with_judges = advice.demand_of(config, sizes, NUMERICS, longest=14)
    without = advice.demand_of(config, {"policy": sizes["policy"]}, NUMERICS, longest=14)
    model = scoring.load(str(place), seed=0).model
    one = sum(p.numel() for p in model.parameters())
    assert with_judges.held()["rewards"] == 2 * one * size
    assert with_judges.peak() - without.peak() == 2 * one * size


def test_a_run_that_reads_has_no_judges(tmp_path):
    config = configs.load(small.write(tmp_path, "sft"))
    assert list(advice.models_of(config)) == ["policy"]
