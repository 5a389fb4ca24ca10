"""examples/recipes: what the rewards say of texts, and that each recipe trains."""

import importlib
import json
from pathlib import Path

import pytest

from tests.runs import small
from trimtab.operate import finish

FOLDER = Path(__file__).parents[2] / "examples" / "recipes"
TINY = [
    "policy.model=builtin:tiny", "data.as_chat=false", "train.max_steps=2", "train.prompts_per_step=2",
    "train.minibatches=1", "sampling.group_size=2", "sampling.max_prompt_length=130", "sampling.max_length=150",
    "observe.term_norms_every=null",
]  # fmt: skip


@pytest.fixture
def rewards(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("text_rewards")


@pytest.mark.parametrize(
    ("name", "parts", "terms", "words"),
    [
        ("dialogue", {"phrases", "length"}, {"loss/policy", "loss/value"}, ["value.warmup_steps=0"]),
        ("style", {"numbers", "phrases", "length"}, {"loss/policy"}, []),
        ("compliance", {"refusal", "phrases"}, {"loss/policy", "loss/mix/dpo/preference"}, []),
    ],
)
def test_a_recipe_trains_and_each_of_its_rewards_is_shown(tmp_path, monkeypatch, name, parts, terms, words):
    monkeypatch.setattr(finish, "write_report", lambda *_, **__: [])
    run = small.train(FOLDER / f"{name}.yaml", tmp_path / "run", *TINY, *words)
    metrics = [step["metrics"] for step in small.steps(run)]
    assert len(metrics) == 2
    assert run.facts()["data"]["rows"]["train"] == 6
    assert {f"reward/{part}" for part in parts} <= metrics[0].keys()
    assert terms <= metrics[0].keys()


def test_phrases_count_as_whole_words_and_a_forbidden_one_is_worth_nothing(rewards):
    texts = ["Sorry, your ORDER NUMBER?", "your order numbers", "sorry, your order number, I promise"]
    must, avoid = [["sorry", "order number"]] * 3, [["promise"]] * 3
    assert rewards.phrases(texts, must, avoid) == [1.0, 0.0, 0.0]
    assert rewards.phrases(["sorry"], [["sorry", "refund"]], [[]]) == [0.5]


@pytest.mark.parametrize(
    ("text", "is_refusal"),
    [
        ("I can't advise you.", True),
        ("I can\u2019t tell from here.", True),
        ("Sorry, we cannot do that.", True),
        ("I am not able to say.", True),
        ("I am able to help.", False),
        ("I'm sorry to hear that; send the receipt.", False),
        ("A share makes you an owner.", False),
        ("A bond is a loan. " * 10 + "I can't say more.", False),
    ],
)
def test_a_refusal_is_right_where_it_is_asked_for_and_wrong_elsewhere(rewards, text, is_refusal):
    assert rewards.refusal([text, text], [is_refusal, not is_refusal]) == [1.0, 0.0]


def test_every_judged_answer_of_the_compliance_recipe_is_told_apart_from_its_opposite(rewards):
    for line in (FOLDER / "compliance_pairs.jsonl").read_text().splitlines():
        pair = json.loads(line)
        assert rewards.is_refusal(pair["chosen"]) is not rewards.is_refusal(pair["rejected"])


def test_a_length_within_the_bounds_is_worth_one(rewards):
    words = [[4, 8]] * 5
    assert rewards.length(["a " * n for n in (0, 2, 6, 12, 20)], words) == [0.0, 0.5, 1.0, 0.5, 0.0]


def test_a_number_that_the_prompt_does_not_have_is_worth_nothing(rewards):
    prompts = ["31 mm, average 58 mm, 1,200 people"] * 4
    texts = ["31 mm fell, not 58, on 1,200", "31 mm fell.", "31 mm fell, twice 60.", "It rained."]
    assert rewards.numbers(prompts, texts) == [1.0, pytest.approx(1 / 3), 0.0, 0.0]
