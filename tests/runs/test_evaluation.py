"""`trimtab eval`: the same completions whatever the processes, interruptions and numbers of samples; two models beside
each other."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.contracts import rank_pool
from tests.runs import evaluations, small
from trimtab.cli import app
from trimtab.errors import LockError, StorageError, UserError
from trimtab.operate import evaluate as operate
from trimtab.operate.evaluation_files import EvaluationFiles

ROOT = Path(__file__).parents[2]


def call(*words):
    return CliRunner().invoke(app, ["eval", *map(str, words)], catch_exceptions=True)


def rows_of(directory):
    return [json.loads(line) for line in (Path(directory) / "completions.jsonl").read_text().splitlines()]


def results_of(directory):
    """What must be the same however an evaluation was carried out."""
    document = json.loads((Path(directory) / "metrics.json").read_text())
    return (Path(directory) / "completions.jsonl").read_bytes(), {k: v for k, v in document.items() if k != "made_with"}


@pytest.fixture
def config(tmp_path):
    return evaluations.write(tmp_path)


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(operate, "CHUNK_PROMPTS", 3)


def test_two_processes_write_what_one_writes(tmp_path, config, monkeypatch):
    monkeypatch.setattr(operate, "CHUNK_PROMPTS", operate.CHUNK_PROMPTS)
    evaluations.by_ranks(str(config), 0, 1)
    more = ["trimtab.operate.evaluate", "trimtab.models.loading", "trimtab.rollout.in_process", "transformers"]
    monkeypatch.setattr(rank_pool, "PRELOADED", [*rank_pool.PRELOADED, *more])
    pool = rank_pool.Pool(2)
    try:
        pool.run(2, [str(config)], tmp_path / "meeting", evaluations.by_ranks)
    finally:
        pool.close()
    assert results_of(tmp_path / "by-2") == results_of(tmp_path / "by-1")
    keys = [(row["prompt_id"], row["index"]) for row in rows_of(tmp_path / "by-2")]
    assert keys == [(prompt, index) for prompt in range(20) for index in range(5)]
    made = [json.loads((tmp_path / f"by-{n}" / "metrics.json").read_text())["made_with"]["processes"] for n in (1, 2)]
    assert made == [1, 2]


KILLED = """
import os, signal, sys
from tests.runs import evaluations
from trimtab.operate import evaluate as operate
from trimtab.store import writer

operate.CHUNK_PROMPTS = 3
append, calls = writer.append, []

def torn(path, data):
    calls.append(path)
    if path.name == "completions.jsonl" and len(calls) == 3:
        append(path, data[: len(data) * 2 // 3 + 9])
        os.kill(os.getpid(), signal.SIGKILL)
    append(path, data)

writer.append = torn
evaluations.evaluated(sys.argv[1], sys.argv[2], samples=4)
"""


def test_an_evaluation_that_was_killed_in_the_middle_of_a_line_goes_on_to_the_same_end(tmp_path, config, small_chunks):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", KILLED, str(config), str(tmp_path / "killed")]
    assert subprocess.run(command, env=environment).returncode == -signal.SIGKILL
    left = (tmp_path / "killed" / "completions.jsonl").read_bytes()
    assert not left.endswith(b"\n")
    assert len(left.splitlines()) > 2 * 3 * 4
    assert json.loads((tmp_path / "killed" / "metrics.json").read_text())["complete"] is False
    said = []
    evaluations.evaluated(config, tmp_path / "killed", samples=4, say=said.append)
    assert f"{tmp_path / 'killed'}: 6 of 20 prompts are done" in said
    evaluations.evaluated(config, tmp_path / "whole", samples=4)
    assert results_of(tmp_path / "killed") == results_of(tmp_path / "whole")


def test_what_is_complete_is_not_done_again_and_another_k_threshold_or_column_needs_no_sampling(
    tmp_path, config, monkeypatch
):
    first = evaluations.evaluated(config, tmp_path / "it", samples=4)
    before = rows_of(tmp_path / "it")
    monkeypatch.setattr(operate, "_answers", lambda *_: pytest.fail("sampled again"))
    found = evaluations.evaluated(config, tmp_path / "it", samples=4, ks=(2, 3), right=0.5, by="scene")
    metrics = found.document["metrics"]
    assert {"eval/pass@2", "eval/maj@3"} <= metrics.keys()
    assert "eval/pass@1" not in metrics
    assert metrics["eval/reward/mean"] == first.document["metrics"]["eval/reward/mean"]
    rows = rows_of(tmp_path / "it")
    assert [row["right"] for row in rows] == [row["reward"] >= 0.5 for row in before]
    assert any(row["right"] for row in rows)
    assert [{**row, "right": None} for row in rows] == [{**row, "right": None} for row in before]
    groups = {g["value"]: g["metrics"]["eval/prompts"] for g in found.document["groups"]}
    assert groups == {"s0": 5.0, "s1": 5.0, "s2": 5.0, None: 5.0}


def test_completions_depend_on_the_seed_and_not_on_chunks_number_of_samples_or_the_seed_of_training(
    tmp_path, config, monkeypatch
):
    monkeypatch.setattr(operate, "TOGETHER", 2)
    many = evaluations.evaluated(config, tmp_path / "many", samples=5)
    monkeypatch.setattr(operate, "CHUNK_PROMPTS", 7)
    few = evaluations.evaluated(config, tmp_path / "few", samples=2)
    other = evaluations.evaluated(config, tmp_path / "other", samples=2, seed=1)
    texts = {
        name: {(r["prompt_id"], r["index"]): r["text"] for r in rows_of(e.files.root)}
        for name, e in {"many": many, "few": few, "other": other}.items()
    }
    assert all(texts["many"][key] == text for key, text in texts["few"].items())
    assert sum(texts["other"][key] == text for key, text in texts["few"].items()) < 4
    assert len({texts["many"][0, i] for i in range(5)}) == 5


def test_another_seed_of_training_samples_the_same_of_the_same_weights(tmp_path):
    directory = small.train(small.write(tmp_path, steps=1), tmp_path / "run")
    words = (directory.root, "--samples", 3, "--prompts", 5, "--json")
    found = [json.loads(call(*words, f"train.seed={seed}", "--to", tmp_path / str(seed)).stdout) for seed in (0, 7)]
    assert rows_of(found[0]["directory"]) == rows_of(found[1]["directory"])


def test_a_directory_of_another_evaluation_is_refused_with_what_differs(tmp_path, config):
    evaluations.evaluated(config, tmp_path / "it", samples=2)
    with pytest.raises(
        UserError, match=r"holds another evaluation: sampling\.seed was 0, is 1; give another directory"
    ):
        evaluations.evaluated(config, tmp_path / "it", samples=2, seed=1)
    with pytest.raises(UserError, match=r"model was .* is "):
        evaluations.evaluated(config, tmp_path / "it", words=["train.seed=1"], samples=2)
    with config.with_name("rows.jsonl").open("a") as file:
        file.write('{"prompt": "1+1=", "answer": "a"}\n')
    with pytest.raises(UserError, match=r"data\.fingerprint was"):
        evaluations.evaluated(config, tmp_path / "it", samples=2)
    (config.with_name("judge.py")).write_text(evaluations.JUDGE.replace("[:1]", "[:2]"))
    with pytest.raises(UserError, match="rewards was"):
        evaluations.evaluated(config, tmp_path / "it", samples=2)


def test_a_directory_with_other_things_or_in_use_is_refused(tmp_path, config):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes").write_text("mine")
    with pytest.raises(UserError, match="holds other things than an evaluation"):
        evaluations.evaluated(config, tmp_path / "full")
    files = EvaluationFiles(tmp_path / "used")
    files.create()
    with files.locked(), pytest.raises(LockError, match="another process evaluates into it"):
        evaluations.evaluated(config, tmp_path / "used")


def test_a_line_that_was_altered_is_done_again(tmp_path, config, small_chunks):
    evaluations.evaluated(config, tmp_path / "it")
    whole = results_of(tmp_path / "it")
    lines = (tmp_path / "it" / "completions.jsonl").read_bytes().splitlines(keepends=True)
    lines[10] = lines[10][:20] + b"\n"
    (tmp_path / "it" / "completions.jsonl").write_bytes(b"".join(lines))
    with pytest.raises(StorageError, match=r"completions\.jsonl:11: is not as it was written"):
        list(EvaluationFiles(tmp_path / "it").read())
    evaluations.evaluated(config, tmp_path / "it")
    assert results_of(tmp_path / "it") == whole


def test_a_column_that_no_prompt_has_is_refused_with_those_that_there_are(tmp_path, config):
    with pytest.raises(UserError, match="--by lane: no prompt has that column; there are answer, scene"):
        evaluations.evaluated(config, tmp_path / "it", by="lane")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--temperature", "0.5"], "--temperature has no effect on greedy completions; add --samples K"),
        (["--top-p", "0.5"], "--top-p has no effect on greedy completions"),
        (["--samples", "0"], "--samples 0: expected 1 or more"),
        (["--samples", "4", "--temperature", "0"], "leave --samples out for greedy completions"),
        (["--samples", "4", "--top-p", "0"], "--top-p 0: expected a number above 0, 1 at most"),
        (["--samples", "4", "--k", "1,8"], "--k 8: 4 completions are sampled; expected 1 to 4, or --samples 8"),
        (["--k", "2"], "--k 2: one completion of each prompt is made; expected 1 to 1, or --samples 2"),
        (["--k", "1;2"], "--k 1;2: expected whole numbers above 0 with commas between them"),
        (["--right", "nan"], "--right nan: expected a finite number"),
        (["--prompts", "0"], "--prompts 0: expected 1 or more"),
        (["--checkpoint", "3"], "is a configuration, only a run has checkpoints"),
        (["algorithm=sft", "data.columns={completion: answer}", "--samples", "2"], "--samples: sft evaluates rows that are read"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused(config, words, said):
    result = call(config, *words)
    assert isinstance(result.exception, UserError), result.output
    assert said in str(result.exception)


# ------------------------------------------------------------------------------------------------------- side by side
@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    path = small.write(folder, steps=2)
    path.write_text(path.read_text().replace("1e-3", "1e-2"))
    return small.train(path, folder / "run")


def test_two_checkpoints_side_by_side(trained, tmp_path):
    words = (trained.root, "--samples", "3", "--against", f"{trained.root}:0", "--by", "answer")
    result = call(*words)
    assert result.exit_code == 0, result.output
    found = json.loads(call(*words, "--json").stdout)
    against = found["against"]
    assert against["other"] == f"{trained.root} at step 0"
    assert against["prompts"] == 6
    assert against["better"] + against["worse"] + against["changed"] + against["same"] == 6
    assert against["better"] > 0
    reward = against["reward"]
    assert reward["mean"] == pytest.approx(found["eval/reward/mean"] - against["metrics"]["eval/reward/mean"])
    assert reward["low"] <= reward["mean"] <= reward["high"]
    assert f"{against['better']} better" in result.output
    text = Path(against["page"]).read_text()
    kinds = re.findall(r'<tr class="(better|worse|same)">', text)
    assert len(kinds) == 6
    moved = against["better"] + against["worse"]
    assert "same" not in kinds[:moved]
    assert set(kinds[moved:]) <= {"same"}
    assert {p.name.split("-")[0] + p.name.split("-")[1] for p in (trained.root / "evaluations").iterdir()} == {
        "step0",
        "step2",
    }


def test_an_evaluation_that_was_made_is_compared_with_and_one_made_otherwise_is_refused(trained, tmp_path):
    call(trained.root, "--checkpoint", "0", "--to", tmp_path / "first")
    found = json.loads(
        call(trained.root, "--to", tmp_path / "second", "--against", tmp_path / "first", "--json").stdout
    )
    assert found["against"]["other"] == f"{trained.root} at step 0"
    call(trained.root, "--checkpoint", "0", "--to", tmp_path / "fewer", "--prompts", "3")
    result = call(trained.root, "--to", tmp_path / "second", "--against", tmp_path / "fewer")
    assert "was not made in the same way: data.prompts is 3, here 6" in str(result.exception)


def test_a_run_beside_its_base_model_of_the_same_weights_changes_nothing(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = (trained.root, "--checkpoint", "0", "--against", "builtin:tiny", "--to", tmp_path / "it", "--json")
    against = json.loads(call(*words).stdout)["against"]
    assert (against["better"], against["worse"], against["changed"], against["same"]) == (0, 0, 0, 6)
    assert (against["reward"]["low"], against["reward"]["high"]) == (0.0, 0.0)


def test_an_algorithm_that_reads_keeps_its_figures(tmp_path):
    directory = small.train(small.write(tmp_path, "sft", steps=1), tmp_path / "run")
    found = json.loads(call(directory.root, "--json").stdout)
    assert {"eval/loss/nll", "eval/count"} <= found.keys()
    (kept,) = (directory.root / "evaluations").iterdir()
    document = json.loads((kept / "metrics.json").read_text())
    assert document["metrics"] == found
    assert document["model"] == {"name": str(directory.root), "step": 1}
