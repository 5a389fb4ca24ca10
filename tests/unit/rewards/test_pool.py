"""Real worker processes: what a user's function may do without harm to the run."""

import os
import signal
from dataclasses import replace

import pytest

from trimtab.errors import RewardError
from trimtab.rewards import pool as pools
from trimtab.rewards.pool import Call, Pool
from trimtab.rewards.scorer import Scorer
from trimtab.rewards.settings import RewardSpec
from trimtab.rules import HEARTBEAT
from trimtab.types import Prompt, Rollout

MODULE = """
import os, signal, sys, time

def length(prompts, completions, **columns):
    return [float(len(text)) for text in completions]

def trl(prompts, completions, answer, completion_ids, **columns):
    return [float(text == a) + 10 * len(ids) for text, a, ids in zip(completions, answer, completion_ids)]

def raises(**_):
    raise RuntimeError("out of cheese")

def hangs(**_):
    while True:
        time.sleep(60)

def leaves(**_):
    sys.exit(3)

def dies(**_):
    os.kill(os.getpid(), signal.SIGKILL)

def talks(prompts, completions, **_):
    print("x" * 1_000_000)
    os.write(1, b"y" * 100_000)
    return [1.0] * len(completions)

def whoami(prompts, completions, **_):
    return [float(os.getpid())] * len(completions)

def long_answer(prompts, completions, **_):
    return [0.123456789] * len(completions)

def stops_once(prompts, completions, folder, **_):
    mark = os.path.join(folder[0], "stopped")
    if not os.path.exists(mark):
        open(mark, "w").close()
        os.kill(os.getpid(), signal.SIGSTOP)
    return [7.0] * len(completions)

def stops(**_):
    os.kill(os.getpid(), signal.SIGSTOP)

def dies_at_bad(prompts, completions, **_):
    if "bad" in completions:
        os._exit(9)
    return [1.0] * len(completions)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rewards")
    (folder / "judges.py").write_text(MODULE)
    (folder / "broken.py").write_text("import no_such_library\n")
    (folder / "leaving.py").write_text("import sys\nsys.exit(4)\n")
    return folder


@pytest.fixture
def pool(folder):
    pool = Pool(2, paths=[str(folder)])
    yield pool
    pool.close()


def call(function, *completions, timeout=20.0, module="judges", **more):
    return Call(
        name=f"{module}:{function}",
        options=more.pop("options", {}),
        timeout_seconds=timeout,
        prompts=["p"] * len(completions),
        completions=list(completions),
        columns=more,
    )


def works(pool):
    return pool.run([call("length", "a", "bb")])[0].values == [1.0, 2.0]


def test_the_outcomes_are_in_the_order_of_the_calls(pool):
    found = pool.run([call("length", "x" * size) for size in range(5)])
    assert [outcome.values for outcome in found] == [[0.0], [1.0], [2.0], [3.0], [4.0]]


def test_a_function_of_trl_s_signature_gets_the_columns(pool):
    found = pool.run([call("trl", "a", "b", answer=["a", "x"], completion_ids=[[1, 2], [3]], level=[1, 2])])
    assert found[0].values == [21.0, 10.0]


@pytest.mark.parametrize(
    ("function", "error"),
    [
        ("raises", "RuntimeError: out of cheese"),
        ("leaves", "ended with exit code 3 and took its process"),
        ("dies", "ended with signal 9 and took its process"),
    ],
)
def test_a_function_that_fails_is_named_with_how_and_the_pool_goes_on(pool, function, error):
    found = pool.run([call(function, "a"), call("length", "bb"), call(function, "a")])
    assert [outcome.error for outcome in found] == [error, None, error]
    assert works(pool)


def test_a_function_that_hangs_is_killed_and_the_pool_keeps_its_size(pool):
    for number in (1, 2):
        found = pool.run([call("hangs", "a", timeout=0.2), call("hangs", "a", timeout=0.2), call("length", "bb")])
        error = "took longer than 0.2 s and was killed"
        assert [outcome.error for outcome in found] == [error, error, None]
        assert found[2].values == [2.0]
        assert pool.kills == 2 * number
    assert len(pool._idle) <= pool.size == 2
    assert works(pool)


def test_a_worker_that_somebody_stops_is_replaced_and_its_call_is_made_again(pool, tmp_path):
    (found,) = pool.run([call("stops_once", "a", timeout=1.0, folder=[str(tmp_path)])])
    assert (found.values, found.error) == ([7.0], None)
    assert (pool.restarts, pool.kills) == (1, 0)


def test_a_worker_that_is_stopped_again_and_again_is_an_error_that_says_so(pool):
    (found,) = pool.run([call("stops", "a", timeout=0.2)])
    assert found.error == "its process was stopped from outside 4 times"
    assert works(pool)


def test_a_worker_that_is_silent_for_longer_than_a_heartbeat_may_be_is_not_waited_for(pool, tmp_path, monkeypatch):
    monkeypatch.setattr(pools, "HEARTBEAT", replace(HEARTBEAT, act=0.3))
    monkeypatch.setattr(pools, "LOOK_SECONDS", 0.1)
    (found,) = pool.run([call("stops_once", "a", timeout=3600.0, folder=[str(tmp_path)])])
    assert found.values == [7.0]


def test_what_a_function_prints_does_not_disturb_its_answer(pool):
    assert pool.run([call("talks", "a", "b")])[0].values == [1.0, 1.0]


def test_an_answer_longer_than_a_pipe_arrives_whole(pool):
    assert pool.run([call("long_answer", *["x" * 20] * 20_000)])[0].values == [0.123456789] * 20_000


def test_a_worker_is_kept_and_used_again(folder):
    pool = Pool(1, paths=[str(folder)])
    first, second = (pool.run([call("whoami", "a")])[0].values for _ in range(2))
    pool.close()
    assert first == second


def test_a_worker_that_died_while_idle_is_replaced(folder):
    pool = Pool(1, paths=[str(folder)])
    pool.run([call("length", "a")])
    process = pool._idle[0].process
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert works(pool)
    pool.close()


def test_an_interrupt_from_the_keyboard_leaves_the_workers_alive(folder):
    pool = Pool(1, paths=[str(folder)])
    pool.run([call("length", "a")])
    process = pool._idle[0].process
    process.send_signal(signal.SIGINT)
    assert works(pool)
    assert pool._idle[0].process is process
    assert process.poll() is None
    pool.close()


def test_closing_ends_every_worker(folder):
    pool = Pool(2, paths=[str(folder)])
    pool.run([call("length", "a"), call("length", "b")])
    processes = [worker.process for worker in pool._idle]
    pool.close()
    assert processes
    assert all(process.poll() is not None for process in processes)


def test_a_rule_with_two_patterns_gives_each_its_own_values():
    pool = Pool(1)
    calls = [
        Call(name="regex", options={"pattern": p}, timeout_seconds=20, prompts=[""], completions=["a"], columns={})
        for p in "ab"
    ]
    found = pool.run([*calls, *calls])
    pool.close()
    assert [outcome.values for outcome in found] == [[1.0], [0.0], [1.0], [0.0]]


def test_a_pattern_that_backtracks_without_end_is_killed():
    pool = Pool(1)
    text = "a" * 60 + "b"
    endless = Call(
        name="regex", options={"pattern": "(a+)+$"}, timeout_seconds=0.3, prompts=[""], completions=[text], columns={}
    )
    found = pool.run([endless])
    pool.close()
    assert found[0].error == "took longer than 0.3 s and was killed"


# ------------------------------------------------------------------------------------------------- through the scorer
def rollouts(*texts):
    return [
        Rollout(prompt=Prompt(id=0, text="p", tokens=(1,)), draw=0, index=i, tokens=(1,), log_probs=(0.0,), text=text,
                is_truncated=False, policy_version=0)
        for i, text in enumerate(texts)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere:f", "rewards: nowhere:f: ModuleNotFoundError: No module named 'nowhere'"),
        ("broken:f", "rewards: broken:f: ModuleNotFoundError: No module named 'no_such_library'"),
        ("judges:f", "rewards: judges:f: AttributeError: module 'judges' has no attribute 'f'"),
        ("judges:MODULE", "rewards: judges:MODULE: AttributeError"),
        ("leaving:f", "rewards: leaving:f: ended with exit code 4 and took its process"),
    ],
)
def test_a_function_that_cannot_be_imported_is_refused_before_anything_is_sampled(pool, name, message):
    with pytest.raises(RewardError) as error:
        Scorer([RewardSpec(name="exact_match"), RewardSpec(name=name)], pool=pool).load()
    assert str(error.value).startswith(message)


def test_a_function_that_can_be_imported_is_loaded_without_a_call(pool):
    Scorer([RewardSpec(name="judges:dies"), RewardSpec(name="exact_match")], pool=pool).load()
    assert len(pool._idle) == 1


def test_a_completion_that_kills_the_function_spoils_only_itself(pool):
    scorer = Scorer(
        [RewardSpec(name="judges:dies_at_bad", on_error="skip"), RewardSpec(name="judges:length")], pool=pool
    )
    found = scorer.score(rollouts("ok", "bad", "ok"))
    assert [(s.reward, s.is_scored) for s in found] == [(3.0, True), (0.0, False), (3.0, True)]
    assert scorer.errors == 2


def test_closing_the_scorer_ends_its_workers(pool):
    scorer = Scorer([RewardSpec(name="judges:whoami")], pool=pool)
    pid = int(scorer.score(rollouts("a"))[0].reward)
    scorer.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
