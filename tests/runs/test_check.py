"""`trimtab check` as a user meets it: every fault of a stage at once, the cheap first, nothing loaded too early."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from tests.runs import small
from trimtab.cli import app
from trimtab.errors import DataError, ModelError, UserError
from trimtab.models import memory
from trimtab.operate import advice

WITHOUT = """
import sys
from trimtab.cli import main
try:
    main()
except SystemExit as end:
    print("loaded", [name for name in ("torch", "transformers") if name in sys.modules], "code", end.code, file=sys.stderr)
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Measure for a moment only."""
    monkeypatch.setattr(advice, "MEASURED_SECONDS", 0.02)


def call(*words):
    return CliRunner().invoke(app, ["check", *map(str, words)])


def told(*words):
    """What programs are told, and the error."""
    result = call(*words, "--json")
    return json.loads(result.output), result.exception if result.exit_code else None


def in_a_process(*words):
    command = [sys.executable, "-c", WITHOUT, "check", *map(str, words)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    *messages, last = found.stderr.splitlines()
    return messages, last


def bad_data(folder):
    (folder / "train.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n{"prompt": 3}\nno json\n')
    (folder / "held.jsonl").write_text('{"question": "1+1="}\n')
    return f"data.train={folder / 'train.jsonl'}", f"data.validation={folder / 'held.jsonl'}"


# -------------------------------------------------------------------------------------------------------- what is wrong
def test_faults_of_both_files_are_shown_at_once_and_no_model_library_is_loaded(tmp_path):
    messages, last = in_a_process(small.write(tmp_path), *bad_data(tmp_path), "policy.model=./nowhere/at/all")
    assert last == "loaded [] code 2"
    assert [m.split(": ")[1].removeprefix(f"{tmp_path}/") for m in messages] == [
        "train.jsonl:2", "train.jsonl:3:1", "held.jsonl:1",
    ]  # fmt: skip


def test_faults_of_the_configuration_are_shown_at_once_and_no_model_library_is_loaded(tmp_path):
    messages, last = in_a_process(small.write(tmp_path), "optim.lr=1", "sampling.group_size=1")
    assert last == "loaded [] code 2"
    assert len(messages) == 2


def test_up_to_twenty_faults_of_a_file_are_shown(tmp_path):
    (tmp_path / "train.jsonl").write_text("no json\n" * 50)
    result = call(small.write(tmp_path), f"data.train={tmp_path / 'train.jsonl'}")
    assert isinstance(result.exception, DataError)
    assert len(result.exception.findings) == 20


def test_a_column_that_only_the_validation_rows_lack_is_found(tmp_path):
    (tmp_path / "held.jsonl").write_text('{"prompt": "1+1="}\n')
    word = f"data.validation={tmp_path / 'held.jsonl'}"
    result = call(small.write(tmp_path), word, "rewards=[exact_match]")
    assert str(result.exception).startswith(
        f"{tmp_path / 'held.jsonl'}:1: no column `answer`, which reward exact_match"
    )


def test_a_column_that_a_reward_reads_is_missed_in_both_files_at_once_and_by_train_too(tmp_path):
    for name in ("shown", "held"):
        (tmp_path / f"{name}.jsonl").write_text('{"prompt": "1+1="}\n')
    words = [f"data.train={tmp_path / 'shown.jsonl'}", f"data.validation={tmp_path / 'held.jsonl'}"]
    result = call(small.write(tmp_path), *words, "rewards=[exact_match]")
    assert result.exception.exit_code == 2
    lines = str(result.exception).splitlines()
    assert [line.split(":1:")[0] for line in lines] == [str(tmp_path / "shown.jsonl"), str(tmp_path / "held.jsonl")]
    assert all("no column `answer`, which reward exact_match reads; found 'prompt'" in line for line in lines)
    with pytest.raises(DataError) as refused:
        small.train(small.write(tmp_path), tmp_path / "run", words[1], "rewards=[exact_match]")
    assert "held.jsonl:1" in str(refused.value)


def test_a_reward_that_cannot_be_imported_is_named(tmp_path):
    result = call(small.write(tmp_path), "rewards=[exact_match, 'not_there:f']")
    assert result.exception.exit_code == 2
    assert "not_there" in str(result.exception)


def test_every_model_that_cannot_be_is_named(tmp_path):
    words = ("policy.model=./no/policy/here", "kl.coef=0.1", "reference.model=./no/reference/here")
    result = call(small.write(tmp_path), *words)
    assert isinstance(result.exception, UserError)
    assert [line.split(":")[0] for line in str(result.exception).splitlines()] == ["policy.model", "reference.model"]


def test_a_model_that_plays_two_roles_is_complained_of_once(tmp_path):
    result = call(small.write(tmp_path, "ppo"), "policy.model=./no/policy/here", "kl.coef=0.1")
    assert len(str(result.exception).splitlines()) == 1


def test_a_model_without_a_tokenizer_is_refused_before_a_weight_is_read(tmp_path, monkeypatch):
    from trimtab.models import builtin

    builtin.model(0).save_pretrained(tmp_path / "model")
    monkeypatch.setattr("transformers.modeling_utils.safe_open", lambda *_, **__: pytest.fail("weights were opened"))
    result = call(small.write(tmp_path), f"policy.model={tmp_path / 'model'}")
    assert "has no tokenizer that can be read" in str(result.exception)
    builtin.tokenizer().save_pretrained(tmp_path / "model")
    assert call(small.write(tmp_path), f"policy.model={tmp_path / 'model'}").exit_code == 0


def test_too_little_memory_and_disk_are_both_said_after_all_else_was_shown(tmp_path, monkeypatch):
    import shutil
    from types import SimpleNamespace

    monkeypatch.setattr(memory, "available_bytes", lambda device: (1e9, 2e9))
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=1e6))
    path = small.write(tmp_path, "ppo")
    words = ("sampling.max_length=512", "train.prompts_per_step=4096", "train.minibatches=2")
    found, error = told(path, *words)
    assert isinstance(error, UserError)
    assert [line.split(":")[0] for line in str(error).splitlines()] == ["memory", "disk"]
    assert "are free; " in str(error)  # what is advised depends on the computer
    assert (found["ok"], len(found["problems"]), found["memory"]["is_enough"]) == (False, 2, False)
    assert "FAIL  memory" in call(path, *words).output
    assert "guides say" in call(path, *words).output


def test_programs_are_told_what_is_wrong_too(tmp_path):
    found, error = told(small.write(tmp_path), *bad_data(tmp_path))
    assert isinstance(error, DataError)
    assert (found["ok"], len(found["problems"]), found["config"]["algorithm"]) == (False, 3, "grpo")


# ---------------------------------------------------------------------------------------------------------- what is well
def test_a_sound_configuration_is_described_from_its_parts_to_its_time(tmp_path):
    found, error = told(small.write(tmp_path, "ppo"), "kl.coef=0.01")
    assert error is None
    assert found["ok"]
    assert set(found) == {
        "ok", "config", "data", "rewards", "models", "memory", "disk", "time", "advice",
    }  # fmt: skip
    assert set(found["memory"]["held_bytes"]) == {"policy", "critic", "reference", "saving"}
    assert found["memory"]["held_bytes"]["policy"] == 16 * found["models"]["policy"]["parameters"]
    assert set(found["time"]["cases"][0]["phases"]) == {"rollout", "freeze", "update", "optimizer", "probe"}
    assert found["disk"]["checkpoint_bytes"] < found["disk"]["wanted_bytes"]


def test_an_own_critic_is_said_to_double_the_trained_memory_and_a_shared_one_is_not(tmp_path):
    path = small.write(tmp_path, "ppo")
    assert "a critic of its own doubles the trained memory, 12.5 MiB to 24.7 MiB" in call(path).output
    shared = call(path, "value.model=shared").output
    assert "doubles" not in shared
    assert "a head on the policy's trunk" in shared


def test_more_tokens_than_the_model_has_positions_are_said(tmp_path):
    assert "but the model has 512 positions; 512 is used" in call(
        small.write(tmp_path), "sampling.max_length=4096"
    ).output  # fmt: skip


@pytest.mark.parametrize("algorithm", ["grpo", "sft"])
def test_the_estimated_checkpoint_is_as_large_as_the_one_that_is_written(tmp_path, algorithm):
    path = small.write(tmp_path, algorithm, steps=1)
    run = small.train(path, tmp_path / "run")
    size = sum(p.stat().st_size for p in (run.checkpoints / "1").rglob("*") if p.is_file())
    assert told(path)[0]["disk"]["checkpoint_bytes"] == pytest.approx(size, rel=0.01)


def test_like_says_what_differs_from_a_run(tmp_path):
    path = small.write(tmp_path, steps=1)
    run = small.train(path, tmp_path / "run")
    assert told(path, "--like", run.root)[0]["like"]["differences"] == []
    found, _ = told(path, "--like", run.root, "train.seed=7", "sampling.max_length=12")
    names = {d["what"]: (d["theirs"], d["ours"]) for d in found["like"]["differences"]}
    assert names["seeds.train"] == names["train.seed"] == (0, 7)
    assert names["sampling.max_length"] == (14, 12)
    assert len(found["time"]["cases"]) == 1  # as long as the completions of that run
    assert "differs from" in call(path, "--like", run.root, "train.seed=7").output


def test_like_a_place_without_a_run_is_refused_before_the_data_is_read(tmp_path):
    result = call(small.write(tmp_path), "--like", tmp_path / "none", *bad_data(tmp_path))
    assert "no run was started here" in str(result.exception)


def test_the_number_of_threads_is_as_it_was_afterwards(tmp_path):
    import torch

    before = torch.get_num_threads()
    call(small.write(tmp_path))
    assert torch.get_num_threads() == before


def test_the_error_of_a_stage_is_that_of_the_tree(tmp_path):
    result = call(small.write(tmp_path), "policy.model=builtin:huge")
    assert isinstance(result.exception, UserError)
    assert not isinstance(result.exception, ModelError)
    assert result.exception.exit_code == 2


def test_whoever_is_told_is_looked_at_without_being_called(tmp_path, monkeypatch):
    monkeypatch.setenv("A_HOOK", "http://127.0.0.1:9/hook/0123456789")
    words = ["observe.webhook={url: '${env:A_HOOK}', format: slack}", "observe.trackers=[tensorboard]"]
    found, error = told(small.write(tmp_path), *words, "observe.prometheus_port=9464")
    assert error is None
    assert found["told"] == ["tensorboard", "slack webhook", "Prometheus at 127.0.0.1:9464"]
    monkeypatch.delenv("A_HOOK")
    found, error = told(small.write(tmp_path), *words)
    assert isinstance(error, UserError)
    assert "observe.webhook.url" in str(error)
    assert "the environment variable is not set" in str(error)
