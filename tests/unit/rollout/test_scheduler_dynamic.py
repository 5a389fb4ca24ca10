"""Dynamic sampling: which groups a step gets, what waits for the next, on how many ranks, and after a restart."""

import json
import threading
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.data import collate
from trimtab.data.order import Order
from trimtab.errors import StorageError
from trimtab.rollout.scheduler import SamplingSource
from trimtab.types import Prompt, Rollout, Scored

GROUP = 3
PROMPTS = [Prompt(id=2 * i, text=f"p{i}", tokens=(5,) * (1 + i % 3)) for i in range(11)]


class Engine:
    """Completions whose tokens name the draw; remembers what it was asked for, call by call."""

    def __init__(self):
        self.version = 0
        self.asked = []

    def refresh(self, *, version):
        self.version = version

    def generate(self, draws, *, group_size, greedy=False):
        self.asked.append([d.draw for d in draws])
        return [
            Rollout(
                prompt=d.prompt, draw=d.draw, index=i, tokens=(d.draw, i), log_probs=(-0.1 * (1 + d.draw), -1 / 3),
                text=f"{d.draw}", is_truncated=False, policy_version=self.version,
            )
            for d in draws
            for i in range(group_size)
        ]  # fmt: skip


def scorer(teaches):
    """The rewards 0.1, 0.1, 0.1 of a draw that does not teach; 0.1, 0.1, 1.1 of one that does."""

    def score(rollouts):
        values = [0.1 + float(teaches(r.draw) and r.index == GROUP - 1) for r in rollouts]
        return [Scored(rollout=r, reward=v, parts=(v,), is_scored=True) for r, v in zip(rollouts, values, strict=True)]

    return score


def source(teaches, *, per_step=4, max_refills=3, **more):
    return SamplingSource(
        prompts=PROMPTS,
        order=Order(len(PROMPTS), seed=0, shuffle=True),
        engine=Engine(),
        score=more.pop("score", scorer(teaches)),
        collate=collate.of_rollouts,
        prompts_per_step=per_step,
        group_size=GROUP,
        reward_labels=("x",),
        max_refills=max_refills,
        **more,
    )


def steps(it, count, first=0):
    """So many steps: draws that each trained on, in order, and its figures."""
    found = []
    for number in range(first, first + count):
        it.refresh(version=number)
        batch = it.next_batch()
        assert batch.group_ids.tolist() == [g for g in batch.group_ids.tolist()[::GROUP] for _ in range(GROUP)]
        found.append((batch.group_ids.tolist()[::GROUP], steady(it.figures()), batch))
    return found


def steady(figures):
    return {name: v for name, v in figures.items() if not name.startswith(("time/", "throughput/"))}


def draws_of(found):
    return [draws for draws, _, _ in found]


# --------------------------------------------------------------------------------------------------- which are kept
def test_groups_without_spread_are_left_out_and_prompts_are_drawn_until_the_step_is_full():
    it = source(lambda draw: draw % 2 == 0)
    assert draws_of(steps(it, 2)) == [[0, 2, 4, 6], [8, 10, 12, 14]]
    assert steady(it.figures())["data/prompts"] == it.order.drawn == 16


def test_float_noise_is_no_spread():
    """0.1 + 0.2 is not 0.3, but teaches no more than it."""

    def score(rollouts):
        values = [0.1 + 0.2 if r.index == 0 else 0.3 for r in rollouts]
        return [Scored(rollout=r, reward=v, parts=(v,), is_scored=True) for r, v in zip(rollouts, values, strict=True)]

    it = source(None, score=score)
    it.next_batch()
    assert it.figures()["sampling/kept"] == 0


def test_a_completion_without_a_reward_makes_no_spread():
    def score(rollouts):
        return [
            Scored(rollout=r, reward=0.0 if r.index == 0 else 0.7, parts=(0.7,), is_scored=r.index > 0)
            for r in rollouts
        ]

    it = source(None, score=score)
    it.next_batch()
    assert it.figures()["sampling/accepted"] == 0


def test_what_shapes_the_reward_makes_no_spread_and_reaches_the_batch():
    def shape(scored):
        return [replace(s, reward=s.reward - s.rollout.index) for s in scored]

    it = source(lambda draw: draw % 2 == 0, shape=shape)
    batch = it.next_batch()
    assert batch.group_ids.tolist()[::GROUP] == [0, 2, 4, 6]
    assert batch.rewards.tolist()[:GROUP] == pytest.approx([0.1, -0.9, -0.9])


def test_when_the_refills_do_not_suffice_the_step_is_smaller_and_says_so():
    it = source(lambda draw: draw % 5 == 0, max_refills=1)
    draws, figures, _ = steps(it, 1)[0]
    assert draws == [0, 5]
    assert {n: figures[n] for n in ("sampling/accepted", "sampling/refills", "sampling/kept", "sampling/surplus")} == {
        "sampling/accepted": 2 / 8,
        "sampling/refills": 1,
        "sampling/kept": 2,
        "sampling/surplus": 0,
    }


def test_without_any_spread_the_step_is_the_first_round_and_says_that_it_taught_nothing():
    it = source(lambda draw: False, max_refills=2)
    found = steps(it, 2)
    assert draws_of(found) == [[0, 1, 2, 3], [12, 13, 14, 15]]
    assert [len(call) for call in it.engine.asked] == [4] * 6
    for _, figures, batch in found:
        assert (figures["sampling/accepted"], figures["sampling/kept"], figures["sampling/refills"]) == (0, 0, 2)
        assert set(batch.rewards.tolist()) == {0.1}


def test_a_refill_draws_what_is_missing_by_the_share_accepted_so_far():
    it = source(lambda draw: draw not in (1, 2), per_step=6)
    it.next_batch()
    assert [len(call) for call in it.engine.asked] == [6, 3]


# -------------------------------------------------------------------------------------------------------- what waits
def test_surplus_groups_come_first_in_the_next_step_as_they_were_sampled():
    it = source(lambda draw: draw >= 3)
    first, second = steps(it, 2)
    assert first[0] == [3, 4, 5, 6]
    assert first[1]["sampling/surplus"] == 1
    assert second[0][:2] == [7, 8]
    _, _, batch = second
    assert batch.policy_versions[:GROUP].unique().tolist() == [0]
    assert batch.policy_versions[GROUP:].unique().tolist() == [1]
    assert batch.rollout_log_probs[0].tolist() == pytest.approx([-0.8, -1 / 3])


@pytest.mark.parametrize("version", [5, 9], ids=["undone", "older than a step"])
def test_surplus_of_weights_that_were_undone_or_are_old_is_left_out_and_counted(version):
    it = source(lambda draw: draw >= 3)
    it.refresh(version=7)
    it.next_batch()
    it.refresh(version=version)
    batch = it.next_batch()
    assert batch.group_ids.tolist()[::GROUP] == [8, 9, 10, 11]
    assert it.figures()["sampling/stale"] == 1


def test_with_a_staleness_of_0_what_waits_is_left_out_and_counted():
    it = source(lambda draw: draw >= 3, max_staleness=0)
    first, second = steps(it, 2)
    assert (first[0], first[1]["sampling/surplus"]) == ([3, 4, 5, 6], 1)
    assert second[0] == [8, 9, 10, 11]
    assert second[1]["sampling/stale"] == 1
    other = source(lambda draw: draw >= 3, max_staleness=0)
    steps(other, 1)
    again = source(lambda draw: draw >= 3, max_staleness=0)
    again.load_state(json.loads(json.dumps(other.state())))
    assert steps(again, 1, 1)[0][:2] == second[:2], "a restart counts them too"


@given(
    pattern=st.lists(st.booleans(), min_size=1, max_size=40),
    per_step=st.integers(1, 6),
    max_refills=st.integers(0, 4),
    versions=st.lists(st.integers(0, 6), min_size=1, max_size=8),
    allowed=st.integers(0, 4),
)
@settings(max_examples=150, deadline=None)
def test_no_completion_is_older_than_allowed_and_what_is_left_out_is_counted(
    pattern, per_step, max_refills, versions, allowed
):
    """At any order of versions: a rollback goes back, a run that reads them out of turn jumps."""
    it = source(
        lambda draw: pattern[draw % len(pattern)], per_step=per_step, max_refills=max_refills, max_staleness=allowed
    )
    for version in versions:
        waiting = {row[0]["draw"]: row[0]["policy_version"] for row in it.state()["surplus"]}
        it.refresh(version=version)
        batch = it.next_batch()
        ages = version - batch.policy_versions[batch.loss_mask]
        assert 0 <= int(ages.min()) <= int(ages.max()) <= allowed
        fresh = {draw for draw, sampled in waiting.items() if 0 <= version - sampled <= allowed}
        assert it.figures()["sampling/stale"] == len(waiting) - len(fresh)
        assert fresh <= set(batch.group_ids.tolist()), "what waits and is fresh enough is all used in the next step"


@given(
    pattern=st.lists(st.booleans(), min_size=1, max_size=40),
    per_step=st.integers(1, 6),
    allowed=st.integers(2, 5),
)
@settings(max_examples=60, deadline=None)
def test_more_than_1_is_like_1(pattern, per_step, allowed):
    def teaches(draw):
        return pattern[draw % len(pattern)]

    found = [steps(source(teaches, per_step=per_step, max_staleness=m), 4) for m in (1, allowed)]
    assert [s[:2] for s in found[0]] == [s[:2] for s in found[1]]


@given(
    pattern=st.lists(st.booleans(), min_size=1, max_size=40),
    per_step=st.integers(1, 6),
    max_refills=st.integers(0, 4),
    cut=st.integers(0, 5),
)
@settings(max_examples=150, deadline=None)
def test_every_draw_is_met_once_and_a_restart_changes_nothing(pattern, per_step, max_refills, cut):
    def teaches(draw):
        return pattern[draw % len(pattern)]

    whole = source(teaches, per_step=per_step, max_refills=max_refills)
    found, calls = [], []
    for number in range(6):
        before = len(whole.engine.asked)
        found += steps(whole, 1, number)
        calls.append(whole.engine.asked[before:])
        assert 1 <= len(calls[-1]) <= max_refills + 1
        assert all(1 <= len(call) <= per_step for call in calls[-1])
        assert 1 <= len(found[-1][0]) <= per_step
        assert found[-1][1]["sampling/surplus"] < per_step

    asked = [draw for call in whole.engine.asked for draw in call]
    assert asked == list(range(whole.order.drawn))
    trained = [draw for draws, figures, _ in found if figures["sampling/kept"] for draw in draws]
    waiting = [row[0]["draw"] for row in whole.state()["surplus"]]
    rejected = [draw for draw in asked if not teaches(draw)]
    assert sorted(trained + waiting + rejected) == asked
    assert trained + waiting == sorted(trained + waiting)

    first = source(teaches, per_step=per_step, max_refills=max_refills)
    steps(first, cut)
    second = source(teaches, per_step=per_step, max_refills=max_refills)
    second.load_state(json.loads(json.dumps(first.state(), allow_nan=False)))
    for (a, figures_a, batch_a), (b, figures_b, batch_b) in zip(found[cut:], steps(second, 6 - cut, cut), strict=True):
        assert (a, figures_a) == (b, figures_b)
        for name in ("tokens", "rewards", "rollout_log_probs", "policy_versions", "prompt_ids", "row_ids"):
            assert torch.equal(getattr(batch_a, name), getattr(batch_b, name)), name


def test_what_waits_is_stored_to_the_last_bit():
    def score(rollouts):
        return [
            Scored(
                rollout=replace(r, text='"\n\u2028é', log_probs=(-1e-300, -(2.0**-1074)), is_truncated=True),
                reward=0.1 + 0.2 + r.index, parts=(1 / 3, None), is_scored=True, token_rewards=(0.1 + 0.7, 5e-324),
            )
            for r in rollouts
            if r.draw >= 0
        ]  # fmt: skip

    it = source(None, score=score)
    it._surplus = [it.score(it.engine.generate([_draw(3)], group_size=GROUP))]
    other = source(None)
    other.load_state(json.loads(json.dumps(it.state(), allow_nan=False)))
    assert other._surplus == it._surplus


def _draw(number):
    from trimtab.types import Draw

    return Draw(prompt=PROMPTS[number], draw=number)


def test_a_group_that_waits_for_a_prompt_that_is_gone_is_a_damaged_state():
    it = source(lambda draw: draw >= 3)
    it.next_batch()
    state = json.loads(json.dumps(it.state()))
    state["surplus"][0][0]["prompt"] = 999
    with pytest.raises(StorageError, match="a group of prompt 999 waits for its step, but the data has no such prompt"):
        source(None).load_state(state)


# --------------------------------------------------------------------------------------------------- on several ranks
class Together:
    """The gather of ranks that are threads: returns when every rank has given its value."""

    def __init__(self, ranks):
        self.barrier = threading.Barrier(ranks, timeout=20)
        self.values = [None] * ranks

    def of(self, rank):
        def gather(value):
            self.values[rank] = value
            self.barrier.wait()
            found = list(self.values)
            self.barrier.wait()
            return found

        return gather


def steps_on(ranks, teaches, count, **more):
    """What each rank had of each step."""
    together, found = Together(ranks), [None] * ranks

    def work(rank):
        it = source(teaches, rank=rank, ranks=ranks, gather=together.of(rank), **more)
        try:
            found[rank] = (steps(it, count), it)
        except BaseException:
            together.barrier.abort()
            raise

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert None not in found
    return found


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("every", [1, 2, 3, 7, 1000])
def test_ranks_have_together_and_in_order_what_one_has_alone(ranks, every):
    def teaches(draw):
        return draw % every == every - 1 or draw % 5 == 4 < every < 1000

    alone = source(teaches)
    wanted = steps(alone, 4)
    shared = steps_on(ranks, teaches, 4)
    for number, (draws, figures, batch) in enumerate(wanted):
        shares = [found[number] for found, _ in shared]
        assert [draw for share in shares for draw in share[0]] == draws
        assert all(share[1] == figures for share in shares)
        assert torch.cat([share[2].rewards for share in shares]).tolist() == batch.rewards.tolist()
    assert all(it.state() == alone.state() for _, it in shared)


def test_a_rank_without_a_share_has_an_empty_batch():
    shared = steps_on(3, lambda draw: draw == 1, 1, max_refills=0)
    assert [draws for found, _ in shared for draws, _, _ in found] == [[], [], [1]]
    empty = shared[0][0][0][2]
    assert (len(empty), empty.tokens.shape, empty.policy_versions.dtype) == (0, (0, 0), torch.int64)
