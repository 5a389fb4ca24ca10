"""What `trimtab.prepare` makes of its arguments, before anything is trained."""

import functools
import math
from pathlib import Path

import pytest

import trimtab
from trimtab.assemble import fingerprints
from trimtab.models import builtin

GRPO = {"algorithm": "grpo"}


def steady(completions, **columns):
    return [1.0] * len(completions)


def prepared(config=GRPO, overrides=(), **more):
    return trimtab.prepare(config, overrides, **{"prompts": ["1+1="], "rewards": steady, **more})


@pytest.mark.parametrize(
    "overrides",
    [
        {"optim.learning_rate": 1e-4, "policy.clip_ratio": 0.3},
        {"optim": {"learning_rate": 1e-4}, "policy": {"clip_ratio": 0.3}},
        ["optim.learning_rate=1e-4", "--policy.clip_ratio", "0.3"],
    ],
)
def test_overrides_lie_over_the_configuration_in_each_form(overrides):
    config = {**GRPO, "optim": {"learning_rate": 1.0, "max_grad_norm": 0.5}}
    found = prepared(config, overrides).config
    assert (found.optim.learning_rate, found.optim.max_grad_norm) == (1e-4, 0.5)
    assert found.resolved["policy"]["clip_low"] == found.resolved["policy"]["clip_high"] == 0.3


def test_a_file_is_read_where_a_path_stands_and_names_the_run(tmp_path):
    path = tmp_path / "first.yaml"
    path.write_text("{algorithm: grpo, train: {max_steps: 7}}")
    run = prepared(path)
    assert run.config.train.max_steps == 7
    assert run.directory == Path("runs/first")
    assert prepared().directory == Path("runs/grpo")


def test_every_fault_is_told_at_once_and_where_it_stands():
    with pytest.raises(trimtab.ConfigError) as caught:
        prepared({**GRPO, "train": {"max_stepps": 7}}, {"optim.learning_rate": "fast"})
    said = str(caught.value)
    assert "config: unknown key `train.max_stepps`; did you mean `max_steps`?" in said
    assert "overrides: optim.learning_rate: 'fast'" in said


def test_a_key_that_the_algorithm_does_not_read_is_refused_as_on_the_command_line():
    with pytest.raises(trimtab.ConfigError, match=r"overrides: `value\.coef` is not read by grpo"):
        prepared(GRPO, {"value.coef": 0.5})
    with pytest.raises(trimtab.ConfigError, match="rewards: `rewards` is not read by sft"):
        prepared({"algorithm": "sft"})


def test_objects_may_stand_in_a_dict_where_names_are_expected(tmp_path):
    model = builtin.model(0)
    config = {
        **GRPO,
        "policy": {"model": model},
        "data": {"train": ["1+1=", "2+2="], "validation": ["3+3="]},
        "rewards": [{"name": steady, "weight": 0.5}, "length"],
    }
    config["rewards"][1] = {"name": "length", "options": {"max_tokens": 3}}
    run = trimtab.prepare(config, tokenizer=builtin.tokenizer(), run_dir=tmp_path / "run")
    assert run._given.model is model
    assert [r.weight for r in run.config.rewards] == [0.5, 1.0]
    assert run.config.resolved["data"]["validation"] == "python:validation"
    assert len(run._rows.train) == 2
    assert config["policy"] == {"model": model}  # the caller's dict is as it was


def test_names_may_stand_where_objects_are_expected(tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "1+1=", "answer": "2"}\n')
    run = trimtab.prepare(GRPO, model="builtin:tiny", prompts=rows, rewards="exact_match")
    assert run.config.data.train == str(rows)
    assert run.config.policy.model == "builtin:tiny"
    assert run.config.rewards[0].name == "exact_match"


# --------------------------------------------------------------------------------------------------------------- rows
class Table:
    """What a table of pandas offers; iterating it gives the names of its columns."""

    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return iter(self.rows[0])

    def iterrows(self):
        return enumerate(self.rows)

    def to_dict(self, orient):
        assert orient == "records"
        return self.rows


def test_prompts_are_texts_rows_conversations_tables_or_anything_that_gives_rows():
    import numpy as np

    rows = [{"prompt": "1+1=", "answer": np.int64(2), "weights": np.array([1.0, 2.0])}]
    told = [{"role": "user", "content": "hello"}]
    for prompts, first in (
        (["1+1="], {"prompt": "1+1="}),
        ((p for p in ["1+1="]), {"prompt": "1+1="}),
        (rows, {"prompt": "1+1=", "answer": 2, "weights": [1.0, 2.0]}),
        (Table(rows), {"prompt": "1+1=", "answer": 2, "weights": [1.0, 2.0]}),
        ([told], {"prompt": told}),
    ):
        assert dict(prepared(prompts=prompts)._rows.train[0].values) == first


def test_columns_are_renamed_as_those_of_a_file():
    run = prepared({**GRPO, "data": {"columns": {"prompt": "question"}}}, prompts=[{"question": "1+1="}])
    assert run._rows.train[0].values == {"prompt": "1+1="}


@pytest.mark.parametrize(
    ("prompts", "told"),
    [
        ([], "prompts: there are no rows"),
        ({"train": ["1+1="], "test": []}, "prompts: a dict with 'train', 'test', expected a list of rows"),
        (7, "prompts: int, expected a list of texts or of rows"),
        (["1+1=", 7], "prompts:2: int, expected a text, a mapping or a list"),
        ([{"prompt": "1+1=", "picture": object()}], "prompts:1: column `picture` does not fit into JSON"),
        ([{"prompt": "1+1=", "weight": math.nan}], "prompts:1:.* NaN is not JSON"),
        ([{"question": "1+1="}], "prompts:1: no column `prompt`, found 'question'"),
        (["1+1=", ""], "prompts:2: `prompt` is empty"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(prompts, told):
    with pytest.raises(trimtab.DataError, match=told):
        prepared(prompts=prompts)


def test_rows_are_those_that_were_given_though_the_list_changes_later():
    mine = ["1+1="]
    run = prepared(prompts=mine)
    mine.append("2+2=")
    assert len(run._rows.train) == 1


# ------------------------------------------------------------------------------------------------------------ rewards
def test_functions_have_names_of_their_own_in_the_metrics():
    class Judge:
        def __call__(self, **columns):
            return []

    functions = [steady, functools.partial(steady), lambda **_: [], Judge(), lambda **_: []]
    labels = [spec.label for spec in prepared(rewards=functions).config.rewards]
    assert labels == ["steady", "steady_2", "lambda", "Judge", "lambda_2"]


def test_a_time_limit_that_could_not_be_kept_is_refused():
    with pytest.raises(trimtab.ConfigError, match=r"rewards\[0\]: timeout_seconds: .* cannot be ended"):
        prepared(rewards=[{"name": steady, "timeout_seconds": 3}])
    with pytest.raises(trimtab.ConfigError, match=r"rewards\[1\]: int, expected a function"):
        prepared(rewards=[steady, 3])


def test_a_fingerprint_tells_functions_apart_by_source_and_by_what_they_are_bound_to():
    def above(limit):
        return lambda completions, **_: [float(len(c) > limit) for c in completions]

    class Weighted:
        def __init__(self, weight):
            self.weight = weight

        def __call__(self, **columns):
            return []

    same = [above(3), above(3)], [Weighted(1.0), Weighted(1.0)], [functools.partial(steady, a=1)] * 2
    for one, other in same:
        assert fingerprints.source_print(one) == fingerprints.source_print(other)
    for one, other in ((above(3), above(4)), (Weighted(1.0), Weighted(2.0)), (steady, above(3))):
        assert fingerprints.source_print(one) != fingerprints.source_print(other)
    assert fingerprints.source_print(functools.partial(steady, a=1)) != fingerprints.source_print(
        functools.partial(steady, a=2)
    )


# -------------------------------------------------------------------------------------------------------------- model
def test_a_model_that_cannot_be_trained_here_is_refused():
    import torch
    from transformers import LlamaConfig, LlamaModel

    with pytest.raises(trimtab.ModelError, match="model: Linear, expected a transformers model"):
        prepared(model=torch.nn.Linear(1, 1))
    trunk = LlamaModel(LlamaConfig(**{**builtin.CONFIG, "num_hidden_layers": 1}))
    with pytest.raises(trimtab.ModelError, match=r"LlamaModel has no output layer.*AutoModelForCausalLM"):
        prepared(model=trunk)
    with pytest.raises(trimtab.ModelError, match="was not loaded from anywhere; give its tokenizer too"):
        prepared(model=builtin.model(0))


def test_the_tokenizer_is_that_of_the_place_that_the_model_was_loaded_from(tmp_path):
    from transformers import AutoModelForCausalLM

    builtin.model(0).save_pretrained(tmp_path)
    builtin.tokenizer().save_pretrained(tmp_path)
    run = prepared(model=AutoModelForCausalLM.from_pretrained(tmp_path))
    assert run.tokenizer("47").input_ids == builtin.tokenizer()("47").input_ids
    larger = builtin.tokenizer()
    larger.add_tokens(["<new>"])
    with pytest.raises(trimtab.ModelError, match=r"tokenizer: \d+ tokens, but LlamaForCausalLM knows \d+"):
        _ = prepared(model=builtin.model(0), tokenizer=larger).model


def test_a_fingerprint_of_a_model_is_its_class_and_weights_whatever_their_precision():
    import torch

    one = fingerprints.model_print(builtin.model(0))
    assert one == fingerprints.model_print(builtin.model(0))
    assert one.startswith("LlamaForCausalLM ")
    changed = builtin.model(0)
    with torch.no_grad():
        next(iter(changed.parameters()))[0, 0] += 1e-3
    assert fingerprints.model_print(changed) != one
    half = builtin.model(0).bfloat16()
    assert fingerprints.model_print(half) == fingerprints.model_print(half.float())
