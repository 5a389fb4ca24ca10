"""`trimtab reward check`: rewards over completions that are there already."""

import json
import sys

import pytest
import torch

from tests.unit.data import templates
from trimtab import cli
from trimtab.models import scoring

CONFIG = """algorithm: grpo
policy: {model: builtin:tiny}
rewards:
"""
SUMS = [
    {"prompt": f"{a}+2=", "completion": str(a + 2 + wrong), "answer": str(a + 2), "label": int(not wrong)}
    for a in range(3, 9) for wrong in (0, 1)
]  # fmt: skip


@pytest.fixture
def check(monkeypatch, capsys, tmp_path):
    """Runs the command: (exit code, output, errors)."""

    def run(rewards, rows, *words):
        (tmp_path / "c.yaml").write_text(CONFIG + "".join(f"- {reward}\n" for reward in rewards))
        (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
        (tmp_path / "judges.py").write_text(
            "def odd(prompts, completions, **_):\n"
            "    return [None if c == '5' else 1.0 if c != '8' else 'x' for c in completions]\n"
        )
        command = ["trimtab", "reward", "check", str(tmp_path / "c.yaml"), str(tmp_path / "a.jsonl"), *words]
        monkeypatch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit) as end:
            cli.main()
        shown = capsys.readouterr()
        return end.value.code, shown.out, shown.err

    return run


def records(check, rewards, rows, *words):
    code, out, err = check(rewards, rows, "--json", *words)
    assert (code, err) == (0, "")
    return json.loads(out)


def test_rules_are_compared_with_the_labels(check):
    found = records(check, ["exact_match", "{name: length, weight: 0.5, options: {max_tokens: 2}}"], SUMS)
    assert (found["rows"], found["labels"]) == (12, {"good": 6, "bad": 6, "unlabelled": 0})
    exact, length, total = found["rewards"]
    assert (exact["values"], exact["auc"]["value"]) == ([1.0, 0.0] * 6, 1.0)
    assert (exact["mean"], exact["min"], exact["max"], exact["count"]) == (0.5, 0.0, 1.0, 12)
    assert length["groups_without_spread"] == pytest.approx(5 / 6)  # 7+2 is 9 and 10
    assert total["values"][0] == exact["values"][0] + 0.5 * length["values"][0]
    assert total["name"] == "sum"


def test_length_that_a_reward_follows_is_seen(check):
    rows = [{"prompt": "a", "completion": "b" * n} for n in (1, 3, 2)]
    found = records(check, ["{name: length, options: {max_tokens: 2}}"], rows)["rewards"][0]
    assert (found["length_correlation"], found["auc"]) == (pytest.approx(-1.0), None)


def test_failures_and_abstentions_are_counted_apart_and_told(check):
    words = ["'judges:odd'"]
    found = records(check, words, SUMS)["rewards"][0]
    assert (found["count"], found["abstained"], found["errors"]) == (9, 1, 2)
    assert "value 5 is str 'x'" in found["first_error"]
    code, out, _ = check(words, SUMS)
    assert code == 0
    assert "odd: failed on 2 completions: ValueError: value 5 is str 'x'" in out
    assert "odd: gave no value for 1 completions" in out
    assert "odd: all values are equal" in out


def test_the_table_has_a_line_for_each_reward_with_its_interval(check):
    rows = [*SUMS, {"prompt": "1+1=", "completion": "3", "answer": "2", "label": True}, {**SUMS[0], "label": None}]
    code, out, _ = check(["exact_match"], rows)
    line = next(line for line in out.splitlines() if line.startswith("exact_match"))
    assert code == 0
    assert "14 completions, 7 labelled good, 6 bad, 1 without a label" in out
    assert line.split()[:7] == ["exact_match", "1", "14", "0.5", "0.5189", "0", "1"]
    assert line.split()[7:11] == ["0.929", "0.789", "to", "1.000"]
    assert "DeLong" in out


@pytest.fixture
def reward_model(tmp_path):
    loaded = scoring.load("builtin:tiny", seed=0)
    torch.manual_seed(0)
    torch.nn.init.normal_(loaded.model.score.weight)
    loaded.model.save_pretrained(tmp_path / "RM")
    loaded.tokenizer.save_pretrained(tmp_path / "RM")
    return tmp_path / "RM", loaded


def test_a_reward_model_is_asked_with_prompt_completion_and_end(check, reward_model):
    place, loaded = reward_model
    found = records(check, [f"{{model: {place}}}"], SUMS)
    ids = [(*loaded.tokenizer(row["prompt"] + row["completion"]).input_ids, 2) for row in SUMS]
    assert found["rewards"][0]["name"] == "reward_model"
    assert found["rewards"][0]["values"] == pytest.approx(scoring.scores_of(loaded.model, ids), abs=1e-5)
    assert "quality unknown" in found["remarks"][0]


def test_a_weak_reward_model_is_checked_all_the_same(check, reward_model):
    place, _ = reward_model
    (place / "README.md").write_text("| eval/reward_model/auc | 0.6 |\n")
    found = records(check, [f"{{model: {place}}}"], SUMS)
    assert "0.600 is under 0.85" in found["remarks"][0]


def test_of_a_conversation_the_last_answer_is_judged_and_other_templates_are_used(check, reward_model, tmp_path):
    place, loaded = reward_model
    for folder, template in (
        ("policy", templates.CHATML),
        ("RM", "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"),
    ):
        loaded.tokenizer.chat_template = template
        loaded.tokenizer.save_pretrained(tmp_path / folder)
    from trimtab.models import policy as policies

    policies.load("builtin:tiny", seed=0).model.save_pretrained(tmp_path / "policy")
    turns = [("user", "hi"), ("assistant", "yo"), ("user", "2+2"), ("assistant", "4")]
    talk = [{"messages": [{"role": role, "content": text} for role, text in turns]}]
    found = records(check, [f"{{model: {place}}}"], talk, f"policy.model={tmp_path / 'policy'}")
    ids = (*loaded.tokenizer("hi\nyo\n2+2\n4\n").input_ids, 2)
    assert found["rewards"][0]["values"] == pytest.approx(scoring.scores_of(loaded.model, [ids]), abs=1e-5)
    assert "another tokenizer" in found["remarks"][1]


@pytest.mark.parametrize(
    ("rewards", "rows", "message"),
    [
        (["exact_match"], [{"prompt": "a", "completion": "b", "answer": "b", "label": "good"}], r"a.jsonl:1: `label` is 'good'"),
        (["exact_match"], [{"prompt": "a", "completion": "b"}], "no column `answer`, which reward exact_match reads"),
        (["exact_match"], [{"prompt": "a", "answer": "b"}], "no column `completion`"),
        (["{model: builtin:tiny}"], [{"prompt": "a", "completion": "b"}], "rewards[0].model: builtin:tiny has no head"),
        (["{model: nowhere/at/all}"], [{"prompt": "a", "completion": "b"}], "rewards[0].model: "),
    ],
)  # fmt: skip
def test_what_cannot_be_checked_is_refused(check, rewards, rows, message):
    code, _, err = check(rewards, rows)
    assert (code, message in err, "Traceback" in err) == (2, True, False), err
