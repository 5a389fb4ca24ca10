"""`trimtab reward report`: of a run, of a reward model, of a configuration with files."""

import json
import sys

import pytest

from tests.runs import small
from trimtab import cli
from trimtab.operate import finish
from trimtab.store.recorder import write_samples
from trimtab.types import Sample


@pytest.fixture
def report(monkeypatch, capsys):
    """Runs the command: (exit code, output, errors)."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["trimtab", "reward", "report", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        shown = capsys.readouterr()
        return end.value.code, shown.out, shown.err

    return run


def parsed(report, *words):
    code, out, err = report(*words, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run that samples, and one of a reward model."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finish, "write_report", lambda *_, **__: [])
        small.train(small.write(folder, "grpo", steps=2), folder / "grpo", "observe.samples.every=1")
        small.train(small.write(folder, "reward_model", steps=2), folder / "rm")
        small.train(small.write(folder, "sft", steps=1), folder / "sft")
    return folder


def samples(folder, name, rewards, parts=lambda r: {"length": r}):
    write_samples(
        folder / f"{name}.jsonl",
        [
            Sample(
                prompt_id=n, prompt="p", completion="x" * (n + 1), reward=r, reward_parts=parts(r), is_truncated=False
            )
            for n, r in enumerate(rewards)
        ],
    )


@pytest.fixture
def kept(tmp_path):
    """The directory of a run in which samples can be put."""
    directory = small.RunDirectory(tmp_path / "run")
    directory.create()
    directory.describe(algorithm="grpo")
    directory.add_config({"algorithm": "grpo", "rewards": ["exact_match"]}, {}, why="started")
    return directory


def test_of_a_run_the_newest_evaluation_is_compared_with_the_first(report, kept):
    samples(kept.samples, "eval-0000000", [0.0, 0.5] * 20)
    samples(kept.samples, "eval-0000010", [9.0] * 40)
    samples(kept.samples, "eval-0000020", [1.0, 1.5] * 20)
    found = parsed(report, kept.root)
    assert (found["before"], found["now"]) == ("evaluation, step 0", "evaluation, step 20")
    (reward,) = found["rewards"]
    assert (reward["name"], reward["before"]["mean"], reward["now"]["mean"]) == ("length", 0.25, 1.25)
    assert reward["drift"]["level"] == "large"
    assert [f["name"] for f in reward["findings"]] == ["saturated", "risen", "outside"]
    assert "label some of the newest completions" in reward["findings"][1]["text"]
    code, out, _ = report(kept.root)
    assert code == 0
    assert "length: large drift: PSI " in out
    assert "the policy has found what the reward overrates: raise kl.coef" in out


def test_the_sentences_are_chinese_where_that_is_asked_for(report, kept, monkeypatch):
    monkeypatch.setenv("TRIMTAB_LANG", "zh")
    samples(kept.samples, "eval-0000000", [1.0] * 8)
    assert "全部 8 个值都是 1：从中学不到任何东西" in report(kept.root)[1]


def test_without_evaluations_the_first_third_of_the_steps_is_compared_with_the_last(report, kept):
    for step in range(1, 7):
        samples(kept.samples, f"step-{step:07}", [float(step)] * 4)
    found = parsed(report, kept.root)
    assert (found["before"], found["now"]) == ("training, steps 1 to 2", "training, steps 5 to 6")
    assert (found["rewards"][0]["before"]["mean"], found["rewards"][0]["now"]["mean"]) == (1.5, 5.5)


def test_of_several_rewards_each_and_their_sum_are_reported(report, kept):
    samples(kept.samples, "eval-0000000", [0.0, None, 1.0], parts=lambda r: {"a": r, "b": None})
    found = {r["name"]: r for r in parsed(report, kept.root)["rewards"]}
    assert list(found) == ["a", "b", "sum"]
    assert (found["b"]["now"]["count"], found["b"]["now"]["missing"]) == (0, 3)
    assert found["sum"]["now"]["count"] == 2
    assert found["a"]["drift"] is None
    assert report(kept.root)[0] == 0


def test_a_run_that_was_trained_is_reported_on(report, runs):
    found = parsed(report, runs / "grpo")
    assert (found["before"], found["now"]) == ("evaluation, step 0", "evaluation, step 2")
    assert found["rewards"][0]["now"]["count"] == 6


def test_a_reward_model_is_reported_on_by_chosen_and_rejected(report, runs, tmp_path):
    found = parsed(report, runs / "rm")
    (reward,) = found["rewards"]
    assert found["now"] == "builtin:addition"
    assert reward["now"]["good"]["count"] == reward["now"]["bad"]["count"] == 6  # eval.prompts
    assert reward["now"]["auc"]["good"] == 6
    rows = [{"prompt": f"{n}+1=", "chosen": str(n + 1), "rejected": "77"} for n in range(9)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = parsed(report, runs / "rm", tmp_path / "pairs.jsonl", "--against", "builtin:addition")
    assert (found["now"], found["before"]) == (str(tmp_path / "pairs.jsonl"), "builtin:addition")
    assert found["rewards"][0]["now"]["count"] == 18
    assert found["rewards"][0]["drift"] is not None
    code, out, _ = report(runs / "rm")
    assert code == 0
    assert "good" in out
    assert "bad" in out


def test_the_scores_are_those_of_the_model(report, runs):
    from trimtab.data import preferences
    from trimtab.data import rows as data_rows
    from trimtab.models import scoring

    loaded = scoring.load(str(runs / "rm"), seed=0)
    pairs = data_rows.read("builtin:addition", {}, preferences.PAIR, held_out=True)[:6]
    ids = [
        (*loaded.tokenizer(row.values["prompt"] + row.values[side]).input_ids, 2)
        for row in pairs
        for side in preferences.SIDES
    ]
    scores = scoring.scores_of(loaded.model, ids)
    found = parsed(report, runs / "rm")["rewards"][0]["now"]
    assert found["mean"] == pytest.approx(sum(scores) / len(scores), abs=1e-6)
    assert found["good"]["mean"] == pytest.approx(sum(scores[::2]) / 6, abs=1e-6)


def test_a_configuration_rewards_the_completions_of_a_file(report, tmp_path):
    path = small.write(tmp_path, "grpo")
    for name, sizes in (("old", (1, 2, 3)), ("new", (5, 6, 7))):
        rows = [{"prompt": "a", "completion": "b" * n, "label": n % 2} for n in sizes * 8]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words = (path, tmp_path / "new.jsonl", "rewards=[{name: length, options: {max_tokens: 2}}]")
    found = parsed(report, *words, "--against", tmp_path / "old.jsonl")
    (reward,) = found["rewards"]
    assert reward["drift"]["length"] == pytest.approx(7 / 3)  # the end of the sequence is a token
    assert [f["name"] for f in reward["findings"]] == ["constant", "labels", "fallen", "longer"]
    assert reward["now"]["good"]["count"] == 16
    assert found["unit_of_length"] == "tokens"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("c.yaml",), "c.yaml is a configuration; name the FILE with completions behind it"),
        (("c.yaml", "train.seed=1"), "c.yaml is a configuration; name the FILE with completions behind it"),
        (("c.yaml", "--against", "x"), "--against: compared with what? Name the newer FILE before it"),
        ((".",), "no run was started here (there is no run.json); name a run or a configuration"),
        (("nothing.yaml",), "nothing.yaml: no such file"),
        (("SFT",), "a run of sft has no rewards; name a run that samples, or one of reward_model"),
    ],
)
def test_where_there_is_nothing_to_report_on_it_is_said(report, runs, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    small.write(tmp_path, "grpo").rename(tmp_path / "c.yaml")
    code, _, err = report(*(str(runs / "sft") if word == "SFT" else word for word in words))
    assert code == 2
    assert said in err


def test_a_run_without_samples_and_a_damaged_file_are_told_apart(report, kept):
    code, _, err = report(kept.root)
    assert (code, "this run has kept no completions yet; see observe.samples" in err) == (2, True)
    (kept.samples / "eval-0000000.jsonl").write_text('{"prompt_id": 0, "x"')
    code, _, err = report(kept.root)
    assert (code, "eval-0000000.jsonl: is not as it was written" in err) == (2, True)
