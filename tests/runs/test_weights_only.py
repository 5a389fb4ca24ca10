"""Checkpoints of the policy's weights alone: whoever wants a policy takes one, a run goes on from another."""

import json

import pytest
import torch
import transformers
from typer.testing import CliRunner

from tests.runs import small
from trimtab.cli import app
from trimtab.models import policy as policies
from trimtab.operate import finish
from trimtab.store import checkpoints, journal
from trimtab.store.run_directory import RunDirectory

RULE = ["checkpoint.rolling_every=4", "checkpoint.rolling_keep=2", "checkpoint.weights_every=3"]
WORDS = ["data.validation=null", "train.minibatches=1", *RULE]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A PPO run, which has a critic, of seven steps."""
    folder = tmp_path_factory.mktemp("weights")
    path = small.write(folder, "ppo", steps=7)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finish, "write_report", lambda *_, **__: [])
        return small.train(path, folder / "run", "optim.learning_rate=1e-5", *WORDS)


def command(*words):
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_they_are_there_beside_the_others_and_much_smaller(made):
    kept = checkpoints.resumable(made.checkpoints)
    assert kept == {0: True, 3: False, 4: True, 6: False, 7: True}
    sizes = {s: sum(p.stat().st_size for p in (made.checkpoints / str(s)).rglob("*") if p.is_file()) for s in kept}
    assert sizes[6] < sizes[7] / 5, "a third of the policy's part, and nothing of the critic's"
    assert json.loads((made.checkpoints / "6" / "manifest.json").read_bytes())["resumable"] is False
    (saved,) = [e for e in journal.read(made.journal).events("saved") if e["step"] == 6]
    assert saved["policy_only"] is True


def test_transformers_export_and_policy_model_read_one(made, tmp_path):
    model = transformers.AutoModelForCausalLM.from_pretrained(made.checkpoints / "6" / "policy")
    exported = command("export", made.root, "--to", tmp_path / "out", "--checkpoint", "6")
    assert str(tmp_path / "out") in exported
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    loaded = policies.load(str(made.checkpoints / "6" / "policy"), seed=0).model
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name])
        assert torch.equal(weight, loaded.state_dict()[name])
    assert "eval/reward/mean" in command(
        "eval", made.root, "--checkpoint", "6", "data.validation=builtin:addition", "eval.prompts=4"
    )


def test_the_commands_that_look_at_a_run_tell_them_apart(made):
    found = json.loads(command("status", made.root, "--json"))
    assert (found["checkpoints"], found["weights_only"]) == ([0, 4, 7], [3, 6])
    assert "of the policy's weights alone            3, 6" in command("status", made.root)
    said = command("verify", made.root)
    assert "the same `trimtab train` would go on from checkpoint 7" in said or "7" in said
    assert "FAIL" not in said


def test_a_run_goes_on_from_the_newest_that_has_everything_to_the_last_bit(made, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(finish, "write_report", lambda *_, **__: [])
    path = small.write(tmp_path, "ppo", steps=7)
    words = ["optim.learning_rate=1e-5", *WORDS]
    with monkeypatch.context() as patch:
        small.interrupt_after(patch, 6)
        with pytest.raises(small.Interrupted):
            small.train(path, tmp_path / "run", *words)
    assert small.failure(RunDirectory(tmp_path / "run"))["last_checkpoint"] == 4
    capsys.readouterr()
    directory = small.train(path, tmp_path / "run", *words)
    said = capsys.readouterr().out
    assert said.count("checkpoint 6: holds the policy's weights alone, so the run can go on from 4 at the latest") == 1
    assert small.evidence(directory) == small.evidence(made)


def test_what_the_checkpoints_will_take_is_said_before_training(made, tmp_path):
    path = small.write(tmp_path, "ppo", steps=1)
    line = "up to 2 of 18.6 MiB, 1 of the policy's weights alone of 3.1 MiB, and one being written: 58.8 MiB"
    said = command("train", path, "--run-dir", tmp_path / "run", *WORDS, "checkpoint.weights_every=1")
    assert f"checkpoints: {line}" in said
    assert said.index("checkpoints: ") < said.index("event  started")
    check = json.loads(command("check", path, *WORDS, "checkpoint.weights_every=1", "--json"))
    assert check["disk"]["weights_checkpoints"] == 1
    assert check["disk"]["weights_bytes"] == pytest.approx(3.1 * 2**20, rel=0.02)
