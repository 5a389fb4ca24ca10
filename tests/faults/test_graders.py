"""Reward functions that hang, raise, set alarms or leave values out: nothing becomes a quiet 0."""

import time

import psutil
import pytest

from tests.runs import small
from trimtab.data import collate
from trimtab.rewards import rules
from trimtab.rewards.pool import Call, Pool
from trimtab.rewards.scorer import Scorer
from trimtab.rewards.settings import RewardSpec
from trimtab.rollout.evaluator import RolloutEvaluator
from trimtab.train import figures
from trimtab.types import Prompt, Rollout

MODULE = """
import signal

def alarmed(prompts, completions, **_):
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.alarm(5)
    try:
        return [1.0 for _ in completions]
    finally:
        signal.alarm(0)

def powers(prompts, completions, **_):
    return [float(eval(text.replace("^", "**").replace("{", "(").replace("}", ")"))) for text in completions]

def never(prompts, completions, **_):
    raise ValueError("signal only works in main thread of the main interpreter")
"""
TOWER = "5^{5^{5^{5^5}}}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("graders")
    (folder / "judges.py").write_text(MODULE)
    return folder


def run(folder, function, *completions, timeout=20.0):
    call = Call(
        name=f"judges:{function}", options={}, timeout_seconds=timeout, prompts=[""] * len(completions),
        completions=completions, columns={},
    )  # fmt: skip
    pool = Pool(1, paths=[str(folder)])
    try:
        pool.run([Call(**{**{n: getattr(call, n) for n in Call.__dataclass_fields__}, "load_only": True})])
        started = time.monotonic()
        return pool.run([call])[0], time.monotonic() - started
    finally:
        pool.close()


def test_a_grader_may_set_an_alarm(folder):
    outcome, _ = run(folder, "alarmed", "a", "b")
    assert (outcome.values, outcome.error) == ([1.0, 1.0], None)


def test_a_grader_that_is_lost_in_a_tower_of_powers_is_killed_in_time(folder):
    before = psutil.Process().memory_info().rss
    outcome, seconds = run(folder, "powers", TOWER, timeout=0.3)
    assert outcome.error == "took longer than 0.3 s and was killed"
    assert seconds < 2.3
    assert psutil.Process().memory_info().rss - before < 50e6


@pytest.mark.parametrize(
    "text", [TOWER, "9" * 100_000, "1e999999999", "1," * 50_000, "-" * 100_000, "1" + "." * 99_999]
)
def test_the_rule_for_numbers_reads_any_text_at_once(text):
    started = time.monotonic()
    assert rules.make("numeric", {})(prompts=[""], completions=[text], answer=["3"]) == [0.0]
    assert time.monotonic() - started < 5.0


def test_a_grader_that_always_fails_is_counted_and_gives_no_reward(folder):
    path = small.write(folder, steps=1)
    words = ["rewards=[{name: 'judges:never', on_error: skip}]", "data.validation=null", "train.prompts_per_step=2"]
    directory = small.train(path, folder / "never", *words)
    metrics = small.steps(directory)[0]["metrics"]
    assert metrics["reward/unscored"] == 1.0
    assert metrics["reward/errors"] == 9, "the batch, and each of its eight completions alone"
    assert "reward/mean" not in metrics
    assert metrics["grad_norm/total"] == 0.0


def test_a_value_that_a_function_leaves_out_is_in_no_mean():
    def extra(prompts, completions, **_):
        return [2.0 if len(text) % 2 else None for text in completions]

    def rollout(number):
        return Rollout(
            prompt=Prompt(id=number, text="", tokens=(1,)), draw=number, index=0, tokens=(1,), log_probs=(0.0,),
            text="x" * number, is_truncated=False, policy_version=0,
        )  # fmt: skip

    class Engine:
        def generate(self, draws, **_):
            return [rollout(d.prompt.id) for d in draws]

    scorer = Scorer([RewardSpec(name="extra")], functions={"extra": extra})
    batch = collate.of_rollouts(scorer.score([rollout(number) for number in range(4)]))
    found = figures.of_batch(batch, 1) | figures.of_reward_parts(batch, scorer.labels)
    assert (found["reward/mean"], found["reward/extra"], found["reward/unscored"]) == (2.0, 2.0, 0.5)
    evaluator = RolloutEvaluator(
        engine=Engine(), prompts=[rollout(n).prompt for n in range(4)], score=scorer.score, reward_labels=scorer.labels,
        every=1,
    )  # fmt: skip
    metrics = evaluator.evaluate_if_due(1).metrics
    assert (metrics["eval/reward/mean"], metrics["eval/reward/extra"], metrics["eval/count"]) == (2.0, 2.0, 2.0)
