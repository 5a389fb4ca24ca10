"""Whole runs that go wrong, and come back by themselves; healthy ones, which are left alone."""

from dataclasses import replace

import pytest

from tests.runs import small
from trimtab.algorithms import grpo
from trimtab.errors import GuardError
from trimtab.rewards.scorer import Scorer
from trimtab.store import branches, journal, requests
from trimtab.train import loop
from trimtab.train.learner import Learner

BEGINS = 14
"""The last healthy step."""
TASK = """
algorithm: {algorithm}
policy: {{model: "builtin:tiny"}}
data: {{train: "builtin:addition", validation: "builtin:addition"}}
rewards: [{{name: length, options: {{max_tokens: 4}}}}]
sampling: {{group_size: 4, max_length: 14}}
optim: {{learning_rate: 1.5e-4, warmup_steps: 4}}
train: {{max_steps: 28, prompts_per_step: 6}}
eval: {{every: 4, prompts: 8, early_stop: {{patience: null}}}}
checkpoint: {{rolling_every: 7, rolling_keep: 10}}
"""
"""Short completions are paid for: learned from nothing in some twenty steps, none of which moves the policy far."""
OFF = ", ".join(
    f"{name}: {{then: off}}" for name in ("kl_update", "kl_reference", "loss_divergence", "reward_fall", "non_finite")
)


def write(folder, algorithm="grpo"):
    path = folder / f"{algorithm}.yaml"
    path.write_text(TASK.format(algorithm=algorithm))
    return path


def run(folder, *words, algorithm="grpo"):
    return small.train(write(folder, algorithm), folder / "run", *words)


def last_reward(directory):
    return journal.read(directory.journal).evaluations()[-1]["metrics"]["eval/reward/mean"]


def rollbacks(directory):
    return [(e["was"], e["step"], e["rule"]) for e in journal.read(directory.journal).events("rolled back")]


def acting(directory):
    return {e["rule"] for e in journal.read(directory.journal).events("alarm") if e["level"] == "act"}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return run(tmp_path_factory.mktemp("undisturbed"))


def ask_behind(monkeypatch, directory, step, changes):
    save, asked = loop._save, []

    def saved(trained, report, *, last):
        save(trained, report, last=last)
        if report.step == step and not asked:
            asked.append(True)
            requests.ask(small.RunDirectory(directory), requests.Request(kind="swap", changes=changes))

    monkeypatch.setattr(loop, "_save", saved)


def turned(monkeypatch, steps, changed):
    """Advantages of some batches, changed."""
    record, calls = grpo.ALGORITHM, [0]

    def advantages(batch, frozen, config):
        calls[0] += 1
        found = record.advantages(batch, frozen, config)
        is_wrong = BEGINS < calls[0] <= BEGINS + steps
        return replace(found, values=changed(found.values)) if is_wrong else found

    monkeypatch.setattr(grpo, "ALGORITHM", replace(record, advantages=advantages))


def noisy(monkeypatch, steps):
    """Rewards of some steps, their evaluations included, say nothing."""
    score, update, count = Scorer.score, Learner.update, [0]

    def counted(self, *args, **more):
        count[0] += 1
        return update(self, *args, **more)

    def scored(self, rollouts):
        found = score(self, rollouts)
        if BEGINS <= count[0] < BEGINS + steps:
            return [
                replace(s, reward=float((len(s.rollout.text) + s.rollout.draw + n) % 2)) for n, s in enumerate(found)
            ]
        return found

    monkeypatch.setattr(Learner, "update", counted)
    monkeypatch.setattr(Scorer, "score", scored)


# ------------------------------------------------------------------------------------------------------- it comes back
def test_a_learning_rate_a_hundred_times_too_high_is_undone(undisturbed, tmp_path, monkeypatch):
    ask_behind(monkeypatch, tmp_path / "run", BEGINS, {"optim.learning_rate": 2e-2})
    directory = run(tmp_path)
    assert rollbacks(directory) == [(BEGINS + 1, BEGINS, "kl_update")]
    assert last_reward(directory) > last_reward(undisturbed) - 0.05
    rates = {s["step"]: s["metrics"]["learning_rate"] for s in small.steps(directory)}
    assert (rates[BEGINS], rates[BEGINS + 1]) == (
        1.5e-4,
        0.75e-4,
    )  # that of the checkpoint, halved, not that of the swap
    assert (branches.folder(directory) / "0001" / "checkpoints" / str(BEGINS)).is_dir()
    assert [s["step"] for s in small.steps(directory)] == list(range(1, 29))


def test_without_the_guard_it_is_not(tmp_path, monkeypatch):
    ask_behind(monkeypatch, tmp_path / "run", BEGINS, {"optim.learning_rate": 2e-2})
    directory = run(tmp_path, f"guard.rules={{{OFF}}}", "train.max_steps=16")
    assert rollbacks(directory) == []
    assert small.steps(directory)[-1]["metrics"]["learning_rate"] == 2e-2
    assert small.steps(directory)[BEGINS]["metrics"]["kl/update"] > 0.05


def test_a_reward_that_is_noise_for_a_while_is_overcome(undisturbed, tmp_path, monkeypatch):
    noisy(monkeypatch, 15)
    directory = run(tmp_path, "train.max_steps=40")
    assert {rule for *_, rule in rollbacks(directory)} <= {"reward_fall"}
    assert last_reward(directory) > last_reward(undisturbed) - 0.05


def test_a_gradient_of_the_wrong_sign_for_some_steps_is_overcome(undisturbed, tmp_path, monkeypatch):
    turned(monkeypatch, 5, lambda values: -values)
    assert last_reward(run(tmp_path, "train.max_steps=34")) > last_reward(undisturbed) - 0.05


def test_one_update_that_is_not_finite_is_left_out(undisturbed, tmp_path, monkeypatch):
    turned(monkeypatch, 1, lambda values: values * float("nan"))
    directory = run(tmp_path)
    assert rollbacks(directory) == []
    assert small.steps(directory)[BEGINS]["weights"] == small.steps(directory)[BEGINS - 1]["weights"]
    assert last_reward(directory) > last_reward(undisturbed) - 0.05


def test_three_steps_that_are_not_finite_lead_back_and_their_batches_are_not_met_again(tmp_path, monkeypatch):
    turned(monkeypatch, 3, lambda values: values * float("nan"))
    directory = run(tmp_path)
    assert rollbacks(directory) == [(BEGINS + 3, BEGINS, "non_finite")]
    reading = journal.read(directory.journal)
    every = [tuple(r["prompt_ids"]) for r in reading.records if r["kind"] == "step"]
    assert len(set(every)) == len(every) == 28 + 3
    rates = [s["metrics"]["learning_rate"] for s in reading.steps()]
    assert (rates[BEGINS - 1], rates[BEGINS]) == (1.5e-4, 0.75e-4)


# ------------------------------------------------------------------------------------------------------- it ends the run
def test_a_learning_rate_too_high_from_the_start_ends_with_the_cause_named(tmp_path):
    with pytest.raises(GuardError) as raised:
        run(tmp_path, "optim.learning_rate=2e-2", "optim.warmup_steps=0")
    directory = small.RunDirectory(tmp_path / "run")
    assert (raised.value.exit_code, small.failure(directory)["code"]) == (3, 3)
    assert rollbacks(directory) == [(1, 0, "kl_update")] * 3
    cause = small.failure(directory)["cause"]
    assert "kl/update: one step moved the policy by" in cause
    assert "lower optim.learning_rate from 0.0025" in cause  # halved three times
    assert "has gone back 3 times" in cause
    assert journal.read(directory.journal).events("rolled back")[-1]["version"] == 4


def test_a_reward_that_stays_broken_ends_with_the_cause_named(tmp_path, monkeypatch):
    noisy(monkeypatch, 10**6)
    with pytest.raises(GuardError):
        run(tmp_path, "train.max_steps=200", "guard.max_rollbacks=1", "eval.every=1")
    directory = small.RunDirectory(tmp_path / "run")
    assert "reward/mean" in small.failure(directory)["cause"]
    assert "the reward measures something else than before, or returns noise" in small.failure(directory)["cause"]


def test_rewards_without_any_signal_end_the_run(tmp_path):
    with pytest.raises(GuardError, match=r"in no group of 20 steps do the rewards differ"):
        run(tmp_path, "rewards=[{name: exact_match}]", "eval.prompts=2", "train.prompts_per_step=2")
    assert len(small.steps(small.RunDirectory(tmp_path / "run"))) == 20


def test_where_there_is_no_kl_coefficient_the_line_says_so(tmp_path, capsys):
    run(tmp_path, "guard.rules={kl_update: {act: 0.008}}", "train.max_steps=5", "guard.max_rollbacks=9")
    said = capsys.readouterr().out
    assert "kl.coef is 0, so only the learning rate is changed" in said


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["kl.coef=0.05"], 0.1),
        (["kl.coef={schedule: linear, from: 0.05, to: 0.01, steps: 20}"], {"from": 0.1, "to": 0.02}),
        (["kl.coef=0.05", "guard.kl_factor=3.0"], 0.15),
    ],
)
def test_the_kl_coefficient_is_raised(tmp_path, words, expected):
    directory = run(
        tmp_path, "guard.rules={kl_update: {act: 0.008}}", "train.max_steps=5", "guard.max_rollbacks=9", *words
    )
    assert rollbacks(directory)
    coef = directory.config_of(2)["resolved"]["kl"]["coef"]
    if isinstance(expected, dict):
        assert {end: coef[end] for end in expected} == pytest.approx(expected)
    else:
        assert coef == pytest.approx(expected)


# ------------------------------------------------------------------------------------------------------- it does nothing
@pytest.mark.parametrize(("algorithm", "seed"), [("grpo", 1), ("ppo", 2), ("gspo", 3)])
def test_a_healthy_run_raises_no_alarm_that_acts(tmp_path, algorithm, seed):
    directory = run(tmp_path, f"train.seed={seed}", f"data.seed={seed}", algorithm=algorithm)
    assert acting(directory) == set()
    assert rollbacks(directory) == []


@pytest.mark.soak
@pytest.mark.parametrize("number", range(20))
def test_twenty_healthy_runs_raise_no_alarm_that_acts(tmp_path, number):
    algorithm = ("grpo", "ppo", "gspo", "dapo", "rloo")[number % 5]
    assert acting(run(tmp_path, f"train.seed={number}", f"data.seed={number}", algorithm=algorithm)) == set()
