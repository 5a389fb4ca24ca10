"""A run that was interrupted goes on as if it had not been."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runs import small
from tests.runs.small import Interrupted, interrupt_after
from trimtab import config as configs
from trimtab.errors import ConfigError, GuardError, Preempted, StorageError


@pytest.mark.parametrize("algorithm", ["grpo", "ppo", "sft"])
def test_a_continued_run_is_the_uninterrupted_one_to_the_last_bit(tmp_path, monkeypatch, algorithm):
    path = small.write(tmp_path, algorithm, steps=4)
    whole = small.train(path, tmp_path / "whole")
    with monkeypatch.context() as patch:
        interrupt_after(patch, 2)
        with pytest.raises(Interrupted):
            small.train(path, tmp_path / "cut")
    cut = small.train(path, tmp_path / "cut")
    assert small.evidence(cut) == small.evidence(whole)
    assert [s["step"] for s in small.steps(cut)] == [1, 2, 3, 4]


def test_the_same_seed_gives_the_same_run_and_another_seed_another(tmp_path):
    path = small.write(tmp_path, steps=2)
    first = small.evidence(small.train(path, tmp_path / "a"))
    assert first == small.evidence(small.train(path, tmp_path / "b"))
    assert first != small.evidence(small.train(path, tmp_path / "c", "train.seed=1"))


def test_a_finished_run_says_so_and_goes_on_when_it_is_given_more_steps(tmp_path, capsys):
    path = small.write(tmp_path, steps=2)
    directory = small.train(path, tmp_path / "run")
    before = small.evidence(directory)
    small.train(path, tmp_path / "run")
    assert "already finished" in capsys.readouterr().out
    assert small.evidence(directory) == before
    small.train(path, tmp_path / "run", "train.max_steps=3")
    assert [s["step"] for s in small.steps(directory)] == [1, 2, 3]
    assert len(directory.config_versions()) == 2


def test_a_run_is_not_continued_with_another_configuration(tmp_path):
    path = small.write(tmp_path, steps=1)
    small.train(path, tmp_path / "run")
    with pytest.raises(ConfigError) as caught:
        small.train(path, tmp_path / "run", "optim.learning_rate=1e-4")
    assert "optim.learning_rate: the run has 0.001, asked for is 0.0001" in str(caught.value)
    assert "--fresh" in str(caught.value)


def test_fresh_keeps_the_old_run_under_another_name(tmp_path):
    path = small.write(tmp_path, steps=1)
    small.train(path, tmp_path / "run")
    small.train(path, tmp_path / "run", "optim.learning_rate=1e-4", fresh=True)
    assert (tmp_path / "run.old-1" / "run.json").is_file()
    assert configs.load(path).train.max_steps == 1


def test_the_layout_of_a_run_directory(tmp_path):
    directory = small.train(small.write(tmp_path, "ppo", steps=2), tmp_path / "run")
    there = {str(p.relative_to(directory.root)) for p in directory.root.rglob("*") if p.is_file()}
    for name in (
        "run.json",
        "config/0001.yaml",
        "journal.jsonl",
        "report.html",
        "report.png",
        "samples/eval-0000000.jsonl",
        "checkpoints/0/manifest.json",
        "checkpoints/2/manifest.json",
        "checkpoints/2/state.json",
        "checkpoints/2/optimizer.safetensors",
        "checkpoints/2/policy/model.safetensors",
        "checkpoints/2/policy/config.json",
        "checkpoints/2/policy/tokenizer.json",
        "checkpoints/2/value/model.safetensors",
        "final/model.safetensors",
        "final/config.json",
        "final/tokenizer.json",
        "final/README.md",
    ):
        assert name in there, name
    assert not directory.failure.exists()
    assert not [n for n in there if n.endswith((".pt", ".bin", ".pkl"))]
    assert directory.root.stat().st_mode & 0o777 == 0o700


def test_final_loads_with_transformers_and_is_the_best_checkpoint(tmp_path):
    import torch
    import transformers

    directory = small.train(small.write(tmp_path, steps=2), tmp_path / "run")
    model = transformers.AutoModelForCausalLM.from_pretrained(directory.final)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory.final)
    assert tokenizer.decode(tokenizer("47+35=").input_ids) == "47+35="
    best = directory.facts()["final_step"]
    kept = transformers.AutoModelForCausalLM.from_pretrained(directory.checkpoints / str(best) / "policy")
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, dict(kept.named_parameters())[name])


def test_one_flipped_bit_is_found_and_the_checkpoint_before_is_used(tmp_path, capsys, monkeypatch):
    path = small.write(tmp_path, steps=4)
    whole = small.evidence(small.train(path, tmp_path / "whole"))
    with monkeypatch.context() as patch:
        interrupt_after(patch, 3)
        with pytest.raises(Interrupted):
            small.train(path, tmp_path / "run")
    file = tmp_path / "run" / "checkpoints" / "3" / "optimizer.safetensors"
    data = bytearray(file.read_bytes())
    data[-100] ^= 1
    file.write_bytes(data)
    directory = small.train(path, tmp_path / "run")
    said = capsys.readouterr().out
    assert "checkpoint 3 is not used" in said
    assert "optimizer.safetensors has SHA-256" in said
    assert small.evidence(directory) == whole
    assert small.steps(directory)[-1]["metrics"]["checkpoint/rejected"] == 1


def test_without_a_good_checkpoint_nothing_starts_from_scratch(tmp_path):
    path = small.write(tmp_path, steps=1)
    directory = small.train(path, tmp_path / "run")
    for manifest in directory.checkpoints.glob("*/manifest.json"):
        manifest.unlink()
    with pytest.raises(StorageError, match="none of 2 checkpoints is good"):
        small.train(path, tmp_path / "run", "train.max_steps=2")
    assert small.failure(directory)["code"] == 4


def test_weights_that_are_not_finite_again_and_again_end_the_run_with_the_saved_ones_unharmed(tmp_path):
    path = small.write(tmp_path, steps=6)
    with pytest.raises(GuardError, match=r"numbers are not finite.* has gone back 3 times") as caught:
        small.train(path, tmp_path / "run", "optim.learning_rate=1e30")
    assert caught.value.exit_code == 3
    written = small.failure(small.RunDirectory(tmp_path / "run"))
    assert written["code"] == 3
    assert "learning_rate" in written["cause"]
    assert written["what_to_do"]
    assert written["last_checkpoint"] == 0


def test_an_early_stop_is_a_completed_run(tmp_path):
    path = small.write(tmp_path, steps=9)
    words = ["optim.learning_rate=0", "eval.every=1", "eval.early_stop.patience=2"]
    directory = small.train(path, tmp_path / "run", *words)
    assert [s["step"] for s in small.steps(directory)] == [1, 2]
    assert directory.facts()["outcome"] == "stopped early"
    small.train(path, tmp_path / "run", *words)
    assert [s["step"] for s in small.steps(directory)] == [1, 2]
    small.train(path, tmp_path / "run", *words[:2], "eval.early_stop.patience=4")
    assert [s["step"] for s in small.steps(directory)] == [1, 2, 3, 4]


def test_a_run_is_not_continued_with_a_changed_file(tmp_path):
    data = tmp_path / "rows.jsonl"
    data.write_text('{"prompt": "1+1="}\n{"prompt": "2+2="}\n')
    path = small.write(tmp_path, steps=1)
    small.train(path, tmp_path / "run", f"data.train={data}")
    data.write_text('{"prompt": "1+1="}\n{"prompt": "3+3="}\n')
    with pytest.raises(ConfigError, match=r"data\.train: the file is not what it was"):
        small.train(path, tmp_path / "run", f"data.train={data}", "train.max_steps=2")


def test_the_best_evaluation_is_saved_and_kept_though_no_save_was_due(tmp_path):
    path = small.write(tmp_path, steps=5)
    words = ["checkpoint.rolling_every=100", "eval.every=1", "optim.learning_rate=1e-2"]
    directory = small.train(path, tmp_path / "run", *words)
    from trimtab.store import journal

    values = {e["step"]: e["metrics"]["eval/reward/mean"] for e in journal.read(directory.journal).evaluations()}
    best = max(values, key=lambda step: (values[step], step))
    kept = [int(p.name) for p in directory.checkpoints.iterdir()]
    assert best in kept
    assert directory.facts()["final_step"] == best


def test_a_critic_can_come_from_a_directory(tmp_path):
    first = small.train(small.write(tmp_path, "grpo", steps=1), tmp_path / "first")
    path = small.write(tmp_path, "ppo", steps=1)
    directory = small.train(path, tmp_path / "run", f"value.model={first.root}")
    assert "loss/value" in small.steps(directory)[0]["metrics"]
    shared = small.train(path, tmp_path / "shared", "value.model=shared")
    assert small.steps(shared)[0]["metrics"]["coefficient/value"] == 0.5
    assert (shared.checkpoints / "1" / "value" / "model.safetensors").stat().st_size < 5000


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_ends_with_75_and_the_same_command_goes_on(tmp_path, number):
    path = small.write(tmp_path, steps=500)
    command = [sys.executable, "-m", "trimtab", "train", str(path), "--run-dir", str(tmp_path / "run")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("step"):
                process.send_signal(number)
                break
        process.stdout.read()
    assert process.returncode == 75
    directory = small.RunDirectory(tmp_path / "run")
    assert small.failure(directory)["code"] == Preempted.exit_code == 75
    last = small.steps(directory)[-1]["step"]
    assert (Path(directory.checkpoints) / str(last) / "manifest.json").is_file()
    small.train(path, tmp_path / "run", f"train.max_steps={last + 1}")
    assert small.steps(directory)[-1]["step"] == last + 1


def test_a_damaged_step_zero_is_not_taken_for_the_reference(tmp_path, monkeypatch):
    path = small.write(tmp_path, steps=3, more="kl: {coef: 0.1}\n")
    with monkeypatch.context() as patch:
        interrupt_after(patch, 2)
        with pytest.raises(Interrupted):
            small.train(path, tmp_path / "run")
    weights = tmp_path / "run" / "checkpoints" / "0" / "policy" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-100] ^= 1
    weights.write_bytes(data)
    with pytest.raises(StorageError, match=r"reference model is the policy at step 0, but .* has SHA-256"):
        small.train(path, tmp_path / "run")


def test_a_refused_continuation_leaves_a_finished_run_finished(tmp_path):
    path = small.write(tmp_path, steps=1)
    directory = small.train(path, tmp_path / "run")
    with pytest.raises(ConfigError):
        small.train(path, tmp_path / "run", "optim.learning_rate=1e-4")
    assert not directory.failure.exists()
    assert directory.facts()["outcome"] == "all steps done"


def test_another_evaluation_metric_is_not_held_against_the_best_of_the_old_one(tmp_path):
    path = small.write(tmp_path, steps=2)
    directory = small.train(path, tmp_path / "run", "eval.early_stop.patience=1", "eval.every=1")
    last = small.steps(directory)[-1]["step"]
    words = [f"train.max_steps={last + 1}", "eval.early_stop={metric: eval/length/mean, patience: 1}", "eval.every=1"]
    small.train(path, tmp_path / "run", *words)
    assert small.steps(directory)[-1]["step"] == last + 1


def test_a_full_disk_in_the_journal_is_a_storage_error(tmp_path, monkeypatch):
    from trimtab.store import writer

    path = small.write(tmp_path, steps=3)

    def full(place, data, real=writer.append):
        if place.name == "journal.jsonl":
            raise OSError(28, "No space left on device")
        real(place, data)

    monkeypatch.setattr(writer, "append", full)
    with pytest.raises(StorageError, match=r"cannot write to .*journal.jsonl: No space left on device"):
        small.train(path, tmp_path / "run")
    assert small.failure(small.RunDirectory(tmp_path / "run"))["code"] == 4


def test_what_ends_the_promise_of_equal_numbers_is_said(tmp_path, capsys):
    path = small.write(tmp_path, steps=1)
    directory = small.train(path, tmp_path / "run")
    facts = directory.facts()
    directory.describe(versions={**facts["versions"], "torch": "2.9.0"}, ranks=2)
    small.train(path, tmp_path / "run", "train.max_steps=2")
    assert "processes 2 -> 1, torch 2.9.0 ->" in capsys.readouterr().out


def test_eval_finds_what_lay_beside_the_configuration(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from trimtab.cli import app

    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "rows.jsonl").write_text('{"prompt": "1+1="}\n{"prompt": "2+2="}\n')
    (tmp_path / "conf" / "beside.py").write_text(
        "def size(prompts, completions, **_):\n    return [1.0] * len(prompts)\n"
    )
    path = small.write(tmp_path / "conf", steps=1)
    words = ["data.train=rows.jsonl", "data.validation=rows.jsonl", "rewards=[{name: 'beside:size'}]"]
    small.train(path, tmp_path / "run", *words)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    result = CliRunner().invoke(app, ["eval", str(tmp_path / "run")], catch_exceptions=False)
    assert result.exit_code == 0
    assert "eval/reward/size" in result.output
