"""Whole runs in two bytes, with adapters, with layers computed again: they train, resume to the last bit, and end plainly."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file

from tests.runs import small
from trimtab import config as configs
from trimtab.errors import ModelError, UserError
from trimtab.models import policy as policies
from trimtab.operate import finish
from trimtab.operate.verify import verify
from trimtab.train import scaler as scalers

KL = "kl.coef=0.05"
FEW = ("train.prompts_per_step=2", "train.minibatches=1", "eval.prompts=1", "sampling.max_length=12")
WAYS = {
    "bfloat16 autocast": ("grpo", KL, *FEW, "policy.autocast=bfloat16"),
    "bfloat16": ("ppo", KL, *FEW, "policy.dtype=bfloat16"),
    "adapter": ("grpo", KL, *FEW, "policy.lora={rank: 4}"),
    "adapter with a critic in bfloat16": ("ppo", KL, *FEW, "policy.lora={rank: 4}", "policy.dtype=bfloat16"),
    "adapter with a shared critic": ("ppo", *FEW, "policy.lora={rank: 4}", "value.model=shared"),
}
FLOAT16 = (*FEW, "policy.autocast=float16", "observe.term_norms_every=null")


@pytest.fixture(autouse=True)
def without_reports(monkeypatch):
    monkeypatch.setattr(finish, "write_report", lambda *_, **__: [])


def newest(directory):
    return max(directory.checkpoints.iterdir(), key=lambda p: int(p.name))


@pytest.mark.parametrize("name", WAYS)
def test_an_interrupted_run_goes_on_to_the_last_bit(tmp_path, monkeypatch, name):
    algorithm, *words = WAYS[name]
    config = small.write(tmp_path, algorithm, steps=2)
    whole = small.train(config, tmp_path / "whole", *words)
    with monkeypatch.context() as patch:
        small.interrupt_after(patch, 1)
        with pytest.raises(small.Interrupted):
            small.train(config, tmp_path / "cut", *words)
    cut = small.train(config, tmp_path / "cut", *words)
    assert small.evidence(whole) == small.evidence(cut)
    first, last = (small.steps(whole)[n]["weights"] for n in (0, -1))
    assert first != last
    a, b = (load_file(newest(d) / "optimizer.safetensors") for d in (whole, cut))
    assert a.keys() == b.keys()
    assert all(torch.equal(a[key], b[key]) for key in a)


@pytest.mark.parametrize("name", ["adapter", "bfloat16"])
def test_final_is_a_plain_model_in_the_precision_of_the_run(tmp_path, name):
    algorithm, *words = WAYS[name]
    directory = small.train(small.write(tmp_path, algorithm, steps=1), tmp_path / "run", *words)
    model = transformers.AutoModelForCausalLM.from_pretrained(directory.final)
    assert model.dtype == (torch.bfloat16 if name == "bfloat16" else torch.float32)
    assert not any(p.name.startswith("adapter") for p in directory.final.iterdir())
    loaded = policies.load(str(directory.root), seed=0)
    assert "lora" not in " ".join(loaded.model.state_dict())
    assert not verify(directory.root).findings
    if name == "adapter":
        there = {p.name for p in (newest(directory) / "policy").iterdir()}
        assert "adapter_model.safetensors" in there
        assert "model.safetensors" not in there


def test_a_run_with_layers_computed_again_is_the_same_run(tmp_path):
    config = small.write(tmp_path, "ppo", steps=2)
    plain = small.train(config, tmp_path / "plain", KL, *FEW)
    again = small.train(config, tmp_path / "again", KL, *FEW, "policy.gradient_checkpointing=true")
    assert small.evidence(plain) == small.evidence(again)


def test_before_the_first_update_the_ratio_is_1_in_two_bytes(tmp_path):
    words = (*FEW, "policy.autocast=bfloat16")
    directory = small.train(small.write(tmp_path, "grpo", steps=2), tmp_path / "run", *words)
    for step in small.steps(directory):
        found = step["metrics"]
        assert found["ratio/min"] == pytest.approx(1, abs=1e-3)
        assert found["ratio/max"] == pytest.approx(1, abs=1e-3)
        assert 0 < found["rollout/trainer_mismatch"] < 0.03


def test_a_base_that_was_changed_ends_a_run_with_an_adapter(tmp_path):
    loaded = policies.load("builtin:tiny", seed=5)
    for part in (loaded.model, loaded.tokenizer):
        part.save_pretrained(tmp_path / "base")
    config = small.write(tmp_path, "grpo", steps=1)
    words = (f"policy.model={tmp_path / 'base'}", "policy.lora={rank: 4}")
    small.train(config, tmp_path / "run", *words)
    policies.load("builtin:tiny", seed=6).model.save_pretrained(tmp_path / "base")
    with pytest.raises(ModelError, match="has other weights than those that the adapter"):
        small.train(config, tmp_path / "run", *words, "train.max_steps=2")


# ------------------------------------------------------------------------------------------------------------ float16
def test_an_overflow_skips_the_update_halves_the_scale_and_nothing_else_moves_on(tmp_path, monkeypatch):
    unscale = scalers.LossScaler.unscale
    calls = []

    def once(self, parameters):
        """The first update of the run overflows."""
        parameters = list(parameters)
        calls.append(len(parameters))
        if len(calls) == 1:
            parameters[0].grad[0] = float("inf")
        return unscale(self, parameters)

    monkeypatch.setattr(scalers.LossScaler, "unscale", once)
    words = (*FLOAT16, "optim.warmup_steps=10")
    directory = small.train(small.write(tmp_path, "ppo", steps=2), tmp_path / "run", *words)
    first, second = (step["metrics"] for step in small.steps(directory))
    assert (first["updates/overflow"], first["updates/skipped"], first["updates/non_finite"]) == (1, 1, 0)
    assert first["updates/count"] == 0
    assert (first["loss_scale"], second["loss_scale"]) == (32768, 32768)
    assert second["updates/count"] == 1
    assert second["updates/overflow"] == 0
    assert second["learning_rate"] == first["learning_rate"] == pytest.approx(1e-4)
    state = json.loads((newest(directory) / "state.json").read_text())["learner"]
    assert state["scaler"] == {"loss_scale": 32768, "good_updates": 1}
    assert set(state["optimizer"]["counts"].values()) == {1}
    assert state["applied_steps"] == 1


def test_in_float16_the_scale_is_capped_and_restored(tmp_path, monkeypatch):
    config = small.write(tmp_path, "ppo", steps=2)
    words = (*FLOAT16, "optim.max_loss_scale=256", "optim.learning_rate=1e-4")
    whole = small.train(config, tmp_path / "whole", *words)
    assert {s["metrics"]["loss_scale"] for s in small.steps(whole)} == {256}
    with monkeypatch.context() as patch:
        small.interrupt_after(patch, 1)
        with pytest.raises(small.Interrupted):
            small.train(config, tmp_path / "cut", *words)
    cut = small.train(config, tmp_path / "cut", *words)
    assert small.evidence(whole) == small.evidence(cut)
    scale = [json.loads((newest(d) / "state.json").read_text())["learner"]["scaler"] for d in (whole, cut)]
    assert scale[0] == scale[1] == {"loss_scale": 256, "good_updates": 2}


def test_the_scale_changes_no_gradient_but_for_rounding(tmp_path):
    config = small.write(tmp_path, "ppo", steps=1)
    norms = [
        small.steps(small.train(config, tmp_path / scale, *FLOAT16, f"optim.max_loss_scale={scale}"))[0]["metrics"][
            "grad_norm/total"
        ]
        for scale in ("1", "65536")
    ]
    assert norms[0] > 0.1
    assert norms[0] == pytest.approx(norms[1], rel=0.02)


# -------------------------------------------------------------------------------------------------- what is said of it
def said(tmp_path, capsys, *words):
    small.train(small.write(tmp_path, "grpo", steps=1), tmp_path / f"run-{len(words)}", KL, *FEW, *words)
    text = capsys.readouterr()
    return " ".join((text.out + text.err).split())


def test_a_key_without_effect_is_named(tmp_path, capsys):
    found = said(tmp_path, capsys, "reference.offload=true", "optim.max_loss_scale=256")
    assert "reference.offload has no effect: the run is on the CPU" in found
    assert "optim.max_loss_scale has no effect: only float16 scales the loss" in found
    found = said(tmp_path, capsys, "policy.lora={rank: 2}", "reference.dtype=bfloat16", "reference.offload=true")
    assert "reference.dtype and reference.offload have no effect: the reference is the policy with its adapter" in found


def test_the_threads_are_said_at_the_start_and_recorded(tmp_path, capsys):
    assert "threads of mathematics: " in said(tmp_path, capsys)
    facts = json.loads((tmp_path / "run-0" / "run.json").read_text())["numerics"]
    assert facts["threads"] >= 1
    assert "core" in facts["threads_by"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("policy.dtype=float16", "policy.autocast=bfloat16"),
            "policy.autocast: bfloat16, but policy.dtype is float16",
        ),
        (("policy.lora={target_modules: [qproj]}",), "no layer is named qproj"),
    ],
)
def test_what_does_not_go_together_is_refused_before_a_run_begins(tmp_path, words, message):
    with pytest.raises(UserError, match=message):
        small.train(small.write(tmp_path), tmp_path / "run", *words)


@pytest.mark.parametrize("word", ["policy.lora={dropout: 0.1}", "policy.lora={rank: 0}", "policy.dtype=int8"])
def test_values_out_of_range_are_refused_by_name(tmp_path, word):
    with pytest.raises(configs.ConfigError, match=word.split("=")[0]):
        configs.load(small.write(tmp_path), [word])
