"""The punishment for length: where it begins, where it ends, whom it meets, and what it is called."""

import pytest

from trimtab.errors import UserError
from trimtab.rewards.shaping import Overlong
from trimtab.types import Prompt, Rollout, Scored

SHAPING = Overlong(max_length=12, buffer=4, factor=2.0)


def scored(size, *, prompt=2, reward=1.0, is_scored=True):
    rollout = Rollout(
        prompt=Prompt(id=0, text="p", tokens=(5,) * prompt),
        draw=0,
        index=0,
        tokens=(7,) * size,
        log_probs=(-1.0,) * size,
        text="c",
        is_truncated=False,
        policy_version=0,
    )
    return Scored(rollout=rollout, reward=reward, parts=(reward if is_scored else None,), is_scored=is_scored)


def punished(*sizes, **more):
    return [s.reward for s in SHAPING([scored(size, **more) for size in sizes])]


def test_the_punishment_grows_over_the_last_tokens_of_the_room_and_no_further():
    assert punished(0, 6, 7, 8, 9, 10, 11) == [1.0, 1.0, 0.5, 0.0, -0.5, -1.0, -1.0]


def test_the_room_is_what_the_prompt_leaves():
    assert punished(6, prompt=2) == [1.0]
    assert punished(6, prompt=6) == [-1.0]


def test_the_punishment_is_a_part_of_the_reward_beside_the_others():
    (found,) = SHAPING([scored(8)])
    assert found.parts == (1.0, -1.0)
    assert found.reward == sum(found.parts)
    assert SHAPING.labels(("exact_match",)) == ("exact_match", "overlong")


def test_a_completion_without_a_reward_has_no_punishment():
    (found,) = SHAPING([scored(10, reward=0.0, is_scored=False)])
    assert (found.reward, found.parts, found.is_scored) == (0.0, (None, None), False)


def test_nothing_to_punish_is_nothing():
    assert SHAPING([]) == []


def test_a_reward_function_of_the_same_name_is_refused():
    with pytest.raises(UserError, match=r"rewards: a reward function is called `overlong`"):
        SHAPING.labels(("overlong",))
