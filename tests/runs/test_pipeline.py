"""examples/pipeline: marked solutions of GSM8K, then five stages, each of which starts where another has ended."""

import importlib
import json
import sys
from pathlib import Path

import pytest

from tests.runs import small
from trimtab import config as configs
from trimtab.operate import finish
from trimtab.rewards.model import AUC, auc_of
from trimtab.store import journal
from trimtab.store.run_directory import RunDirectory

EXAMPLES = Path(__file__).parents[2] / "examples"
FOLDER = EXAMPLES / "pipeline"
SHORT = [
    "train.max_steps=1", "train.prompts_per_step=2", "eval.every=1", "eval.prompts=4", "observe.term_norms_every=null",
    "checkpoint.rolling_every=100",
]  # fmt: skip
PARENTS = {"sft": None, "reward_model": "sft", "ppo": "sft", "dpo": "sft", "dpo_after_ppo": "ppo"}


@pytest.fixture(scope="module")
def pipeline():
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(FOLDER))
        yield importlib.import_module("run")
        for name in ("run", "pairs"):
            sys.modules.pop(name, None)


def start(pipeline, monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["run.py", *words])
    pipeline.main()


def runs():
    return {name: RunDirectory.existing(Path("runs/pipeline") / name) for name in PARENTS}


def few_solutions(folder):
    """Of the problems the shortest, so that a character model samples little."""
    lines = (FOLDER / "data" / "solutions.jsonl").read_text().splitlines()
    few = sorted(lines, key=lambda line: len(json.loads(line)["question"]))[:8]
    path = folder / "few.jsonl"
    path.write_text("\n".join(few))
    return path


def check_chain(found, said):
    """What holds of the chain however long its stages are."""
    for name, parent in PARENTS.items():
        facts = found[name].facts()
        assert facts["outcome"] == "all steps done"
        assert facts["parent"] == (None if parent is None else str(found[parent].root))
    evaluations = journal.read(found["reward_model"].journal).evaluations()
    assert evaluations[0]["metrics"][AUC] == 0.5
    assert auc_of(found["reward_model"].final) is not None
    assert f"{AUC} 0.500 at step 0 -> " in said
    assert "is under 0.85, used since allow_weak is true" in said
    metrics = small.steps(found["ppo"])[0]["metrics"]
    assert {"reward/reward_model", "reward/final_number"} <= metrics.keys()
    assert metrics["reward/mean"] == pytest.approx(metrics["reward/reward_model"])
    # Only where policy and reference did not start as one is there a margin to tell.
    margins = [line for line in said.splitlines() if line.startswith("mean margin of the implicit rewards")]
    assert len(margins) == 1
    assert said.index(margins[0]) > said.index("dpo_after_ppo.yaml --run-dir")
    assert abs(float(margins[0].split(": ")[1].split()[0])) > 1e-5


def test_stages_follow_each_other_and_a_weak_reward_model_is_refused_unless_allowed(
    pipeline, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(finish, "write_report", lambda *_, **__: [])
    start(pipeline, monkeypatch, "--solutions", str(few_solutions(tmp_path)), *SHORT)
    found = runs()
    check_chain(found, capsys.readouterr().out)

    with pytest.raises(SystemExit) as refused:
        pipeline.command("train", str(FOLDER / "ppo.yaml"), "--run-dir", "runs/strict", *SHORT, "train.minibatches=1")
    assert refused.value.code == 2
    assert "allow_weak: true" in capsys.readouterr().err

    before = found["dpo"].journal.read_bytes()
    pipeline.command("train", str(FOLDER / "tiny" / "dpo.yaml"), "--run-dir", "runs/pipeline/dpo", *SHORT)
    assert "already finished: all 1 steps are done" in capsys.readouterr().out
    assert len(small.steps(found["dpo"])) == 1
    assert found["dpo"].journal.read_bytes().startswith(before)


@pytest.mark.soak
def test_the_pipeline_as_it_stands(pipeline, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    start(pipeline, monkeypatch)
    check_chain(runs(), capsys.readouterr().out)
    nll = [e["metrics"]["eval/loss/nll"] for e in journal.read(runs()["sft"].journal).evaluations()]
    assert nll[-1] < 0.8 * nll[0]
    assert all(found.report.is_file() for found in runs().values())

    start(pipeline, monkeypatch)
    assert capsys.readouterr().out.count("already finished") == len(PARENTS)


def test_a_stage_that_fails_ends_the_pipeline_with_its_exit_code(pipeline, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        start(pipeline, monkeypatch, "--model", "not/there/at/all", *SHORT)
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert "not/there/at/all" in said.err
    assert said.out.count("$ trimtab train") == 1
    assert f"train {pipeline.shown(FOLDER / 'sft.yaml')}" in said.out


def test_right_and_wrong_solutions_make_pairs_and_none_of_a_held_out_problem_is_trained_on(
    pipeline, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    pipeline.prepare(FOLDER / "data" / "solutions.jsonl")
    rows = {
        name: [
            json.loads(line) for line in (tmp_path / "runs/pipeline/data" / f"{name}.jsonl").read_text().splitlines()
        ]
        for name in ("pairs.train", "pairs.validation", "problems.train", "problems.validation")
    }
    assert [len(found) for found in rows.values()] == [266, 66, 82, 20]
    seen = {name: {row["prompt"] for row in found} for name, found in rows.items()}
    assert not seen["problems.train"] & seen["problems.validation"]
    assert seen["pairs.train"] <= seen["problems.train"]
    answers = {
        row["prompt"]: row["answer"].rsplit("A: ", 1)[1] for part in rows.values() for row in part if "answer" in row
    }
    for pair in rows["pairs.train"][:40]:
        ends = [pair[side].rsplit("A: ", 1)[-1].strip() for side in ("chosen", "rejected")]
        assert ends[0] == answers[pair["prompt"]].strip() != ends[1]


@pytest.mark.parametrize("name", PARENTS)
def test_the_settings_for_a_pretrained_model_are_sound(name):
    config = configs.load(FOLDER / f"{name}.yaml")
    assert config.unused == ()
    assert not any(spec.allow_weak for spec in config.rewards)


def test_the_guides_dpo_file_runs_and_says_what_each_of_its_names_is(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(finish, "write_report", lambda *_, **__: [])
    path = EXAMPLES / "guide_dpo.yaml"
    config = configs.load(path)
    assert list(config.aliases) == [
        "epoch_num -> train.epochs_per_batch: 1 (passes over each batch, not over the data)",
        "ref_model_path -> reference.model: runs/demo-sft",
        "policy_model_path -> policy.model: runs/ppo",
        "batch_size -> train.prompts_per_step: 256 (rows of the data; a pair is one)",
        "temperature -> preference.beta: 0.1 (what dpo divides by)",
        "dpo_loss_weight: 0.5 has no effect: the preference term is the only one, and Adam divides a common factor out; "
        "mix names other parts",
    ]
    assert config.unused == ()
    sft = small.train(small.write(tmp_path, "sft", steps=1), tmp_path / "sft")
    text = path.read_text().replace("runs/demo-sft", str(sft.root)).replace("runs/ppo", "builtin:tiny")
    (tmp_path / "guide.yaml").write_text(text.replace("batch_size: 256", "batch_size: 4"))
    capsys.readouterr()
    words = ["train.max_steps=1", "eval.prompts=4", "observe.term_norms_every=null"]
    run = small.train(tmp_path / "guide.yaml", tmp_path / "run", *words)
    said = capsys.readouterr().out
    assert all(said.count(f"\n{name}") == 1 for name in ("epoch_num", "ref_model_path", "batch_size", "temperature ->"))
    assert "mean margin of the implicit rewards before training" in said
    assert len(small.steps(run)) == 1
