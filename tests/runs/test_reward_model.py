"""A reward model from its training to its use: a run on pairs, its `final/`, and runs that are paid by it."""

import json

import pytest
import safetensors.torch
import torch
import transformers

from tests.runs import small
from trimtab import config as configs
from trimtab.errors import ModelError, RewardError
from trimtab.operate import finish
from trimtab.operate.start import train_in
from trimtab.operate.verify import verify
from trimtab.rewards.model import AUC, auc_of
from trimtab.store import journal
from trimtab.store.run_directory import RunDirectory

PAIRS = [
    {"prompt": f"{a}+{b}=", "chosen": str(a + b), "rejected": "x" * (1 + a % 3)} for a in range(10, 18) for b in (3, 40)
]
TRAINED = """
algorithm: reward_model
policy: {{model: builtin:tiny}}
data: {{train: {rows}, validation: {rows}}}
sampling: {{max_length: 24}}
optim: {{learning_rate: 3e-3}}
train: {{max_steps: 6, prompts_per_step: 8}}
eval: {{every: 3, early_stop: {{patience: null}}}}
checkpoint: {{rolling_every: 1, rolling_keep: 10}}
"""


@pytest.fixture(autouse=True, scope="module")
def without_reports():
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(finish, "write_report", lambda *_, **__: [])
        yield


def written(folder):
    rows = folder / "pairs.jsonl"
    rows.write_text("\n".join(map(json.dumps, PAIRS)))
    path = folder / "rm.yaml"
    path.write_text(TRAINED.format(rows=rows))
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rm")
    return small.train(written(folder), folder / "run")


def test_it_learns_and_its_final_is_a_transformers_directory_with_its_figure(trained):
    steps, evaluations = small.steps(trained), journal.read(trained.journal).evaluations()
    assert steps[0]["metrics"]["loss/preference"] == pytest.approx(0.6931, abs=1e-4)
    assert evaluations[0]["metrics"][AUC] == 0.5
    assert evaluations[-1]["metrics"][AUC] > 0.95
    assert auc_of(trained.final) == pytest.approx(max(e["metrics"][AUC] for e in evaluations), abs=1e-3)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(trained.final)
    tokenizer = transformers.AutoTokenizer.from_pretrained(trained.final)
    found = []
    for row in PAIRS[:4]:
        ids = [[*tokenizer(row["prompt"] + row[side]).input_ids, 2] for side in ("chosen", "rejected")]
        with torch.no_grad():
            found.append(model(**tokenizer.pad({"input_ids": ids}, return_tensors="pt")).logits.squeeze(-1))
    assert all(chosen > rejected for chosen, rejected in found)
    assert "text-classification" in (trained.final / "README.md").read_text()
    assert verify(trained.root).exit_code == 0


def test_an_interrupted_run_goes_on_bit_for_bit(trained, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        small.interrupt_after(patched, 2)
        with pytest.raises(small.Interrupted):
            small.train(written(tmp_path), tmp_path / "run")
    again = small.train(tmp_path / "rm.yaml", tmp_path / "run")
    assert small.evidence(again) == small.evidence(trained)


def test_an_adapter_is_trained_resumed_and_merged(tmp_path, monkeypatch):
    words = ["policy.lora={rank: 4}", "policy.dtype=bfloat16", "train.max_steps=2", "eval.every=2"]
    path = written(tmp_path)
    whole = small.train(path, tmp_path / "whole", *words)
    with monkeypatch.context() as patched:
        small.interrupt_after(patched, 1)
        with pytest.raises(small.Interrupted):
            small.train(path, tmp_path / "run", *words)
    again = small.train(path, tmp_path / "run", *words)
    assert small.evidence(again) == small.evidence(whole)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(whole.final, dtype=torch.float32)
    assert model.score.weight.any()
    assert verify(whole.root).exit_code == 0


def test_a_trained_one_may_be_trained_on_with_its_head(trained, tmp_path):
    further = small.train(written(tmp_path), tmp_path / "run", f"policy.model={trained.root}", "train.max_steps=1")
    assert journal.read(further.journal).evaluations()[0]["metrics"][AUC] > 0.95


@pytest.mark.parametrize("name", ["grpo", "ppo"])
def test_a_policy_is_paid_by_it(trained, tmp_path, name):
    words = [f"rewards=[{{model: {trained.root}}}, {{name: length, weight: 0.0, options: {{max_tokens: 4}}}}]"]
    run = small.train(small.write(tmp_path, name, steps=2), tmp_path / "run", *words)
    for step in small.steps(run):
        metrics = step["metrics"]
        assert metrics["reward/mean"] == pytest.approx(metrics["reward/reward_model"])
        assert metrics["reward/std"] > 0
    shown = [json.loads(line) for file in run.samples.glob("*.jsonl") for line in file.read_text().splitlines()]
    assert {"reward_model", "length"} <= set(shown[0]["reward_parts"])
    assert "eval/reward/reward_model" in journal.read(run.journal).evaluations()[0]["metrics"]


def test_a_critic_may_begin_as_it(trained, tmp_path):
    words = [f"value.model={trained.root}", f"rewards=[{{model: {trained.root}}}]"]
    run = small.train(small.write(tmp_path, "ppo", steps=1), tmp_path / "run", *words)
    first = safetensors.torch.load_file(run.checkpoints / "0" / "value" / "model.safetensors")
    judge = safetensors.torch.load_file(trained.final / "model.safetensors")
    trunk = {name.removeprefix("trunk."): tensor for name, tensor in first.items() if name.startswith("trunk.")}
    assert all(torch.equal(tensor, judge[f"model.{name}"]) for name, tensor in trunk.items())
    assert len(trunk) > 10


def test_it_is_no_policy(trained, tmp_path):
    with pytest.raises(ModelError, match=r"policy.model: .*run is a reward model, which writes nothing"):
        small.train(small.write(tmp_path), tmp_path / "run", f"policy.model={trained.root}")


def test_a_weak_one_is_refused_unless_it_is_asked_for(trained, tmp_path):
    import shutil

    weak = tmp_path / "weak"
    shutil.copytree(trained.final, weak)
    card = weak / "README.md"
    card.write_text(f"| {AUC} | 0.61 |\n")
    path, rewards = small.write(tmp_path, "grpo", steps=1), f"rewards=[{{model: {weak}}}]"
    with pytest.raises(RewardError, match=r"rewards\[0\]: .*weak: eval/reward_model/auc is 0.610.*allow_weak: true"):
        train_in(configs.load(path, [rewards]), RunDirectory(tmp_path / "run"))
    allowed = rewards.replace("}]", ", allow_weak: true}]")
    run = small.train(path, tmp_path / "other", allowed)
    assert "reward/reward_model" in small.steps(run)[0]["metrics"]
