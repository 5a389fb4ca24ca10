"""Runs from Python: `trimtab.prepare` and what it returns."""

import json
import os
import signal
import subprocess
import sys

import pytest

import trimtab
from tests.runs import small
from trimtab.models import builtin
from trimtab.store.run_directory import RunDirectory

ROWS = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(1, 5) for b in range(1, 4)]
CONFIG = {
    "algorithm": "grpo",
    "sampling": {"group_size": 4, "max_length": 12},
    "optim": {"learning_rate": 1e-3},
    "guard": {"rules": {"kl_update": {"then": "warn"}}},
    "train": {"max_steps": 2, "prompts_per_step": 4},
    "eval": {"every": 2, "early_stop": {"patience": None}},
    "checkpoint": {"rolling_every": 1, "rolling_keep": 10},
    "observe": {"samples": {"every": 1}},
}
JUDGE = """
def digits(prompts, completions, answer, **columns):
    return [sum(c.isdigit() for c in text) / (1 + len(text)) for text in completions]
"""


def digits(prompts, completions, answer, **columns):
    return [sum(c.isdigit() for c in text) / (1 + len(text)) for text in completions]


def prepared(folder, *, overrides=(), rewards=digits, prompts=ROWS, name="run", **more):
    more = {"quiet": True, "validation": ROWS[:3], **more}
    return trimtab.prepare(CONFIG, overrides, prompts=prompts, rewards=rewards, run_dir=folder / name, **more)


def evidence(run):
    return small.evidence(RunDirectory(run.directory))


def test_a_run_from_objects_is_the_run_from_files_to_the_last_bit(tmp_path):
    (tmp_path / "judge.py").write_text(JUDGE)
    for name, rows in (("rows", ROWS), ("held", ROWS[:3])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    file = tmp_path / "run.yaml"
    named = {"data": {"train": "rows.jsonl", "validation": "held.jsonl"}, "rewards": [{"name": "judge:digits"}]}
    file.write_text(json.dumps({**CONFIG, **named}))
    from_files = small.train(file, tmp_path / "files")
    from_objects = prepared(tmp_path, model=builtin.model(0), tokenizer=builtin.tokenizer()).train()
    assert [s["step"] for s in small.steps(from_files)] == [1, 2]
    first, second = small.evidence(from_files), evidence(prepared(tmp_path, name="named").train())
    assert first == second
    # a model that is given need not be the one that the seed makes
    assert evidence(from_objects)[0][1] == first[0][1]
    assert evidence(from_objects)[0][3] != first[0][3]


def test_what_a_run_shows(tmp_path, capsys):
    with prepared(tmp_path, quiet=False) as run:
        assert run.state == "not started"
        assert "grpo builtin:tiny" in repr(run)
        assert run.metrics == run.samples == []
        before = run.evaluate()
        assert run.train() is run
        metrics = run.metrics
        assert [m["step"] for m in metrics] == [0, 1, 2]
        assert metrics[0]["eval/reward/mean"] == before["eval/reward/mean"]
        assert metrics[2]["eval/reward/mean"] == run.evaluate()["eval/reward/mean"]
        assert "loss/policy" in metrics[1]
        assert {(s["step"], s["phase"]) for s in run.samples} >= {(0, "eval"), (1, "step"), (2, "step"), (2, "eval")}
        assert run.samples[0]["completion"]
        assert run.tokenizer.decode(run.tokenizer("1+1=").input_ids) == "1+1="
        assert run.model.num_parameters() > 1000
        assert run.config.resolved["data"]["train"] == "python:prompts"
        path = run.report()
        assert path == tmp_path / "run" / "report.html"
        assert "reward/digits" in path.read_text()
        assert "all steps done" in run._repr_html_()
        assert "reward/mean" in run._repr_html_()
    said = capsys.readouterr().out
    assert "step  2/2" in said
    assert "run.report()" in said
    assert "--" not in said


def test_a_quiet_run_prints_nothing(tmp_path, capsys):
    prepared(tmp_path, overrides={"train.max_steps": 1}).train()
    assert capsys.readouterr() == ("", "")


def test_before_training_there_is_nothing_to_report_and_without_rows_nothing_to_evaluate(tmp_path):
    run = prepared(tmp_path, validation=None)
    with pytest.raises(trimtab.UserError, match="nothing has been trained yet"):
        run.report()
    with pytest.raises(trimtab.UserError, match=r"data\.validation is not set.*validation="):
        run.evaluate()
    assert not run.directory.exists()


def test_a_model_that_is_given_is_trained_in_place_and_ends_as_the_last_step_left_it(tmp_path):
    import torch
    from safetensors.torch import load_file

    model = builtin.model(0)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    run = prepared(tmp_path, model=model, tokenizer=builtin.tokenizer()).train()
    assert run.model is model
    assert any(not torch.equal(p, before[name]) for name, p in model.named_parameters())
    saved = load_file(run.directory / "checkpoints" / "2" / "policy" / "model.safetensors")
    assert all(torch.equal(p, saved[name]) for name, p in model.named_parameters())
    again = prepared(tmp_path, model=builtin.model(0), tokenizer=builtin.tokenizer())
    assert all(torch.equal(p, saved[name]) for name, p in again.model.named_parameters())
    assert again.evaluate()["eval/reward/mean"] == run.metrics[-1]["eval/reward/mean"]


def interrupting(what):
    calls = []

    def digits(prompts, completions, answer, **columns):
        calls.append(len(calls))
        if len(calls) == 4:  # the evaluation of step 0, steps 1 and 2: that of step 2 follows
            what()
        return [sum(c.isdigit() for c in text) / (1 + len(text)) for text in completions]

    return digits


def test_an_interrupt_ends_the_step_saves_and_the_next_call_goes_on(tmp_path):
    three = {"train.max_steps": 3}
    whole = evidence(prepared(tmp_path, name="whole", overrides=three).train())
    run = prepared(tmp_path, overrides=three, rewards=interrupting(lambda: signal.raise_signal(signal.SIGINT)))
    with pytest.raises(trimtab.Preempted, match=r"saved at step 2; call train\(\) again") as caught:
        run.train()
    assert caught.value.exit_code == 75
    assert run.state == "at step 2 of 3"
    assert "at step 2 of 3" in run.report().read_text()
    run.train()
    assert evidence(run) == whole
    assert run.state == "all steps done"


def test_an_interrupt_within_a_step_goes_on_from_the_newest_checkpoint(tmp_path):
    whole = prepared(tmp_path, name="whole", model=builtin.model(0), tokenizer=builtin.tokenizer()).train()

    def stop():
        raise KeyboardInterrupt

    run = prepared(tmp_path, rewards=interrupting(stop), model=builtin.model(0), tokenizer=builtin.tokenizer())
    with pytest.raises(trimtab.Preempted, match=r"within a step; call train\(\) again to go on from step 1"):
        run.train()
    assert evidence(run.train()) == evidence(whole)


def test_only_ctrl_c_is_listened_to_and_only_while_a_run_trains(tmp_path):
    seen = []

    def look(completions, **columns):
        seen.append((signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)))
        return [0.0] * len(completions)

    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    prepared(tmp_path, rewards=look, overrides={"train.max_steps": 1}).train()
    assert seen[0][0] == before[0]
    assert seen[0][1] != before[1]
    assert before == (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT))

    def mine(*_):
        """Somebody else's."""

    seen.clear()
    old = signal.signal(signal.SIGINT, mine)
    try:
        prepared(tmp_path, rewards=look, overrides={"train.max_steps": 1}, name="other").train()
    finally:
        signal.signal(signal.SIGINT, old)
    assert {found for _, found in seen} == {mine}


def test_a_run_goes_on_only_with_what_it_was_started_with(tmp_path):
    model, tokenizer = builtin.model(0), builtin.tokenizer()
    one = {"train.max_steps": 1}
    prepared(tmp_path, overrides=one, model=model, tokenizer=tokenizer).train()
    again = {"overrides": {"train.max_steps": 2}, "model": model, "tokenizer": tokenizer}

    def other(prompts, completions, answer, **columns):
        return [1.0 * len(text) for text in completions]

    other.__name__ = "digits"
    for changed, told in (
        ({"prompts": ROWS[1:]}, "prompts: the rows are not those that this run was started with"),
        ({"rewards": other}, r"reward .*test_python:digits: it is not what this run was started with"),
        ({"model": builtin.model(1)}, "model: it is not what this run was started with"),
        ({"model": None, "tokenizer": None}, r"policy\.model: the run has 'python:LlamaForCausalLM'"),
    ):
        with pytest.raises(trimtab.ConfigError, match=told) as caught:
            prepared(tmp_path, **{**again, **changed}).train()
        assert "another run_dir" in str(caught.value)
        assert "fresh=True" in str(caught.value)
    run = prepared(tmp_path, **again).train()  # the model as the run has left it
    assert [s[0] for s in evidence(run)] == [1, 2]


def test_fresh_starts_over_once(tmp_path):
    prepared(tmp_path, overrides={"train.max_steps": 1}).train()
    run = prepared(tmp_path, overrides={"train.max_steps": 2, "optim.learning_rate": 1e-4}, fresh=True)
    assert run.state == "not started"
    run.evaluate()  # of a model without the old run's steps
    run.train()
    assert (tmp_path / "run.old-1" / "run.json").is_file()
    run.train()
    assert not (tmp_path / "run.old-2").exists()
    assert [s[0] for s in evidence(run)] == [1, 2]


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (lambda completions, **_: [0.0], r"ValueError: returned 1 values for 16 completions"),
        (lambda completions, **_: 1.0, "returned float, expected a list of"),
        (lambda completions, **_: [float("nan")] * len(completions), "value 0 is nan, expected a finite number"),
        (lambda completions, **_: ["good"] * len(completions), "value 0 is str 'good'"),
        (lambda completions, **_: 1 / 0, "ZeroDivisionError: division by zero"),
    ],
)
def test_a_function_in_this_process_is_held_to_the_same_rules(tmp_path, function, told):
    with pytest.raises(trimtab.RewardError, match=told) as caught:
        prepared(tmp_path, rewards=function, validation=None).train()
    assert "rewards: tests.runs.test_python:lambda:" in str(caught.value)
    assert "(batch of 16 completions); mend the function" in str(caught.value)
    assert caught.value.__cause__ is not None


def test_a_failing_function_is_skipped_if_asked_and_none_is_an_abstention(tmp_path):
    def picky(completions, **_):
        if len(completions) > 1:
            raise ValueError("one at a time, please")
        return [None]

    rewards = [digits, {"name": picky, "weight": 0.5, "on_error": "skip"}]
    run = prepared(tmp_path, rewards=rewards, overrides={"train.max_steps": 1}, validation=None).train()
    assert run.metrics[-1]["reward/errors"] == 1
    assert "reward/digits" in run.metrics[-1]
    assert "reward/picky" not in run.metrics[-1]


def test_a_function_that_alters_what_it_is_given_alters_nothing(tmp_path):
    def rude(prompts, completions, answer, tests, **columns):
        found = [float(len(t)) for t in tests]
        for values in (prompts, completions, answer, *tests):
            values.clear()
        return found

    rows = [{**row, "tests": ["a", "b"]} for row in ROWS]
    overrides = {"train": {"max_steps": 3, "prompts_per_step": 4}}
    run = prepared(tmp_path, rewards=[rude, digits], prompts=rows, validation=None, overrides=overrides).train()
    assert [m["reward/rude"] for m in run.metrics] == [2.0] * 3
    plain = prepared(tmp_path, name="plain", prompts=rows, validation=None, overrides=overrides, rewards=digits).train()
    assert run.metrics[0]["reward/digits"] == plain.metrics[0]["reward/digits"]


def test_recorders_are_told_of_every_step_and_closed(tmp_path):
    class Notes:
        def __init__(self):
            self.steps, self.events, self.closed = [], [], 0

        def record(self, report):
            self.steps.append((report.phase, report.step))

        def event(self, kind, **facts):
            self.events.append(kind)

        def close(self):
            self.closed += 1

    notes = Notes()
    prepared(tmp_path, recorders=[notes], overrides={"train.max_steps": 1}).train()
    assert notes.steps == [("eval", 0), ("eval", 1), ("train", 1)]
    assert notes.events[0] == "started"
    assert notes.closed == 1
    with pytest.raises(trimtab.UserError, match=r"recorders\[0\]: int has no record and no event and no close"):
        prepared(tmp_path, recorders=[3])


def test_the_command_line_says_what_a_run_from_python_lacks(tmp_path):
    run = prepared(tmp_path, overrides={"train.max_steps": 1}).train()
    command = [sys.executable, "-m", "trimtab", "eval", str(run.directory)]
    ended = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert ended.returncode == 2
    assert "data.train: python:prompts was an object in Python" in ended.stderr


def test_prompts_may_be_conversations(tmp_path):
    told = [[{"role": "user", "content": f"say {n}"}] for n in range(4)]
    tokenizer = builtin.tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'][0] }}:{{ m['content'] }} {% endfor %}"
    run = prepared(
        tmp_path,
        prompts=told,
        validation=None,
        rewards=lambda completions, **_: [float(len(c)) for c in completions],
        model=builtin.model(0),
        tokenizer=tokenizer,
        overrides={"train.max_steps": 1, "sampling.max_length": 30},
    ).train()
    assert run.samples[0]["prompt"].startswith("u:say")
