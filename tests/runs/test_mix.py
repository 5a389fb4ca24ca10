"""A run with parts mixed in, from its configuration: faults, evidence, and that it goes on where it was."""

import json

import pytest

from tests.runs import small
from trimtab import config as configs

MIX = """
mix:
- {algorithm: sft, data: builtin:addition, weight: 0.5, rows_per_step: 6}
- {algorithm: dpo, data: pairs.jsonl, weight: 0.2, rows_per_step: 3, preference: {beta: 0.3}}
"""


@pytest.fixture
def path(tmp_path):
    rows = [{"prompt": f"{n}+1=", "chosen": str(n + 1), "rejected": str(n)} for n in range(1, 8)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return small.write(tmp_path, "grpo", steps=3, more=MIX)


def test_an_interrupted_run_with_parts_goes_on_to_the_same_bits(tmp_path, path, monkeypatch):
    whole = small.train(path, tmp_path / "whole")
    with monkeypatch.context() as context:
        small.interrupt_after(context, 1)
        with pytest.raises(small.Interrupted):
            small.train(path, tmp_path / "cut")
    assert small.evidence(small.train(path, tmp_path / "cut")) == small.evidence(whole)
    metrics = small.steps(whole)[-1]["metrics"]
    assert {"loss/policy", "loss/mix/sft/nll", "loss/mix/dpo/preference", "preference/accuracy"} <= set(metrics)
    weighted = 0.5 * metrics["loss/mix/sft/nll"] + 0.2 * metrics["loss/mix/dpo/preference"]
    assert metrics["loss/total"] == pytest.approx(metrics["loss/policy"] + weighted, rel=1e-5)
    assert whole.facts()["data_fingerprints"].keys() == {"train", "validation", "mix[0]", "mix[1]"}


def test_every_fault_of_the_list_is_told_with_its_line(tmp_path):
    text = """
mix:
- {algorithm: grpo, data: x.jsonl}
- {algorithm: dpo, data: x.jsonl, weight: -1}
- {algorithm: dpo, data: x.jsonl, preference: {betta: 0.1}}
- {algorithm: dpo}
- 3
- {algorithm: dpoo, data: x.jsonl}
"""
    with pytest.raises(configs.ConfigError) as caught:
        configs.load(small.write(tmp_path, "ppo", more=text))
    told = str(caught.value)
    for line in (
        "mix[0].algorithm: grpo cannot be mixed in",
        "mix[1].weight: -1; expected at least 0",
        "unknown key `preference.betta`; did you mean `beta`?",
        "mix[3].data is missing",
        "mix[4]: 3; expected keys and values",
        "did you mean `dpo`?",
    ):
        assert line in told, told
    assert told.count("ppo.yaml:") == 6


def test_a_part_that_compares_with_the_reference_brings_it_to_the_run(tmp_path):
    config = configs.load(small.write(tmp_path, "grpo", more="mix: [{algorithm: dpo, data: pairs.jsonl}]\n"))
    assert "reference" in config.resolved
    assert "reference" not in configs.load(small.write(tmp_path, "grpo")).resolved
    assert config.resolved["mix"][0]["preference"]["beta"] == 0.1


def test_the_faults_of_a_parts_file_are_found_before_a_model_is_loaded(tmp_path, monkeypatch):
    from trimtab.errors import DataError
    from trimtab.models import policy as policies

    monkeypatch.setattr(policies, "load", lambda *_, **__: pytest.fail("a model was loaded"))
    (tmp_path / "pairs.jsonl").write_text('{"prompt": "1+1=", "chosen": "2"}\n')
    with pytest.raises(DataError, match=r"pairs\.jsonl:1"):
        small.train(small.write(tmp_path, "grpo", steps=1, more=MIX), tmp_path / "run")
