"""Two evaluations paired: in what order prompts are shown, and which of their completions."""

import json

import pytest

from trimtab.cli import side_by_side
from trimtab.operate.evaluate import Evaluation
from trimtab.operate.evaluation_document import Asked
from trimtab.operate.evaluation_files import EvaluationFiles, line_of
from trimtab.rollout import evaluation
from trimtab.rollout.evaluation import Completion
from trimtab.types import Prompt

IDENTITY = {"model": "m", "sampling": {"greedy": False, "samples": 2, "temperature": 1.0, "top_p": 1.0, "seed": 3}}


def made(root, rewards, texts, asked, name="run"):
    """An evaluation with these rewards and texts, a list a prompt."""
    files = EvaluationFiles(root)
    files.create()
    groups = [
        [
            Completion(
                prompt_id=p,
                index=i,
                text=text,
                tokens=2,
                reward=reward,
                parts={"rule": reward},
                is_truncated=False,
                extracted=text,
            )
            for i, (reward, text) in enumerate(zip(own, said, strict=True))
        ]
        for p, (own, said) in enumerate(zip(rewards, texts, strict=True))
    ]
    files.append(b"".join(line_of(c, asked.right) for group in groups for c in group))
    answered = [evaluation.answered(group, ("rule",), asked.wanted, asked.right) for group in groups]
    document = {
        "identity": IDENTITY,
        "data": {"name": "rows.jsonl"},
        "metrics": evaluation.figures(answered, ("rule",), asked.wanted),
    }
    prompts = [Prompt(id=p, text=f"prompt {p}", tokens=(1,), columns={"answer": p}) for p in range(len(rewards))]
    return Evaluation(name=name, files=files, document=document, answered=answered, prompts=prompts)


def test_the_largest_change_comes_first_whatever_its_sign_then_changed_texts_then_the_unchanged(tmp_path):
    asked = Asked(samples=2)
    before = made(tmp_path / "b", [[0, 0], [1, 1], [0, 1], [0, 0], [None, None]], [["a", "b"]] * 5, asked)
    texts = [["a", "c"], ["a", "b"], ["a", "b"], ["a", "d"], ["a", "b"]]
    after = made(tmp_path / "a", [[0, 1], [0, 0], [0, 1], [0, 0], [1, 1]], texts, asked)
    counts = dict.fromkeys(("better", "worse", "changed", "same"), 0)
    shown = side_by_side._shown(before, after, asked, counts)
    assert [(s.after.prompt_id, s.kind) for s in shown] == [
        (1, "worse"),
        (0, "better"),
        (3, "changed"),
        (2, "same"),
        (4, "same"),
    ]
    assert counts == {"better": 1, "worse": 1, "changed": 1, "same": 2}
    by_prompt = {s.after.prompt_id: s for s in shown}
    assert (by_prompt[0].before.completion, by_prompt[0].after.completion) == ("b", "c")
    assert by_prompt[3].after.completion == "d"
    assert (by_prompt[0].means, by_prompt[4].means) == ((0.0, 0.5), None)


def test_the_difference_is_paired_over_prompts_that_both_have_a_reward_for(tmp_path):
    asked = Asked(samples=2)
    before = made(tmp_path / "b", [[0, 0], [0, 1], [None, None]], [["a", "b"]] * 3, asked)
    after = made(tmp_path / "a", [[0, 1], [1, 1], [1, 1]], [["a", "b"]] * 3, asked)
    joint = side_by_side.joined(after, before, asked)
    assert (joint.prompts, joint.left_out) == (2, 1)
    assert joint.reward.mean == joint.right.mean == 0.5
    assert joint.names == ("run (b)", "run (a)")
    said = "\n".join(side_by_side.lines(joint))
    assert "1 prompt has no reward in one of them and is left out" in said
    assert "2 better, 0 worse, 1 same" in said
    values = json.loads(joint.page.with_suffix(".json").read_text())
    assert (values["better"], values["left_out"], values["reward"]["mean"]) == (2, 1, 0.5)
    assert "Mean reward +0.5000 (95 % interval" in joint.page.read_text()


def test_of_one_prompt_no_interval_is_claimed(tmp_path):
    asked = Asked(samples=2)
    before, after = (made(tmp_path / name, [[r, r]], [["a", "b"]], asked, name) for name, r in (("b", 0), ("a", 1)))
    joint = side_by_side.joined(after, before, asked)
    assert (joint.reward, joint.right) == (None, None)
    assert "Fewer than two prompts have a reward in both" in joint.page.read_text()


@pytest.mark.parametrize(("name", "slug"), [("runs/a:3", "runs-a-3"), ("../x", "x"), ("://", "model")])
def test_names_become_parts_of_file_names(name, slug):
    assert side_by_side._slug(name) == slug
