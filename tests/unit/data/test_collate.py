"""Rows become tensors: shapes, padding and masks."""

import math

import torch

from trimtab.data import collate
from trimtab.data.prompts import Demonstration
from trimtab.train import batches
from trimtab.types import Prompt, Rollout, Scored


def prompt(number, *tokens):
    return Prompt(id=number, text="p", tokens=tokens)


def scored(number, draw, index, prompt_tokens, tokens, *, parts=(1.0,), token_rewards=None, version=3, **more):
    rollout = Rollout(
        prompt=prompt(number, *prompt_tokens),
        draw=draw,
        index=index,
        tokens=tokens,
        log_probs=tuple(-0.5 * (place + 1) for place in range(len(tokens))),
        text="c",
        is_truncated=more.pop("is_truncated", False),
        policy_version=version,
    )
    return Scored(
        rollout=rollout,
        reward=sum(p or 0.0 for p in parts),
        parts=parts,
        is_scored=any(p is not None for p in parts),
        token_rewards=token_rewards,
    )


def test_rows_are_padded_on_the_right_and_the_mask_covers_the_completion():
    batch = collate.of_rollouts(
        [scored(7, 4, 0, (5, 6), (8, 9, 2)), scored(7, 4, 1, (5, 6), (8,)), scored(1, 5, 0, (3,), (4, 2))]
    )
    assert batch.tokens.tolist() == [[5, 6, 8, 9, 2], [5, 6, 8, 0, 0], [3, 4, 2, 0, 0]]
    assert batch.loss_mask.tolist() == [[True, True, True], [True, False, False], [True, True, False]]
    assert batch.prompt_lengths.tolist() == [2, 2, 1]
    assert batch.completion_lengths.tolist() == [3, 1, 2]
    assert batch.rollout_log_probs.tolist() == [[-0.5, -1.0, -1.5], [-0.5, 0.0, 0.0], [-0.5, -1.0, 0.0]]


def test_completions_of_one_draw_are_a_group_and_every_row_has_its_own_name():
    batch = collate.of_rollouts([scored(7, 4, 0, (5,), (8,)), scored(7, 4, 1, (5,), (8,)), scored(7, 9, 0, (5,), (8,))])
    assert batch.group_ids.tolist() == [4, 4, 9]
    assert len(set(batch.row_ids.tolist())) == 3
    assert batch.prompt_ids.tolist() == [7, 7, 7]


def test_a_part_that_a_reward_function_left_out_is_nan_and_the_reward_of_an_unscored_row_is_zero():
    batch = collate.of_rollouts(
        [scored(0, 0, 0, (5,), (8,), parts=(1.0, None)), scored(0, 0, 1, (5,), (8,), parts=(None, None))]
    )
    assert batch.reward_parts[0, 0] == 1.0
    assert [math.isnan(value) for value in batch.reward_parts.flatten()] == [False, True, True, True]
    assert batch.is_scored.tolist() == [True, False]
    assert batch.rewards.tolist() == [1.0, 0.0]


def test_a_completion_of_no_tokens_is_a_row_without_a_place_in_the_loss():
    batch = collate.of_rollouts([scored(0, 0, 0, (5, 6), ()), scored(0, 0, 1, (5, 6), (8, 2))])
    assert batch.loss_mask.tolist() == [[False, False], [True, True]]
    assert batch.completion_lengths.tolist() == [0, 2]
    assert batch.policy_versions.tolist() == [[0, 0], [3, 3]]


def test_a_batch_of_empty_completions_is_zero_wide():
    batch = collate.of_rollouts([scored(0, 0, 0, (5, 6), ()), scored(0, 0, 1, (5, 6), ())])
    assert batch.loss_mask.shape == (2, 0)
    assert batch.tokens.tolist() == [[5, 6], [5, 6]]


def test_rewards_at_tokens_are_padded_and_absent_where_nobody_gives_them():
    given = collate.of_rollouts([scored(0, 0, 0, (5,), (8, 2), token_rewards=(0.5, 1.0)), scored(0, 0, 1, (5,), (8,))])
    assert given.token_rewards.tolist() == [[0.5, 1.0], [0.0, 0.0]]
    assert collate.of_rollouts([scored(0, 0, 0, (5,), (8, 2))]).token_rewards is None


def test_truncation_is_carried_over():
    batch = collate.of_rollouts([scored(0, 0, 0, (5,), (8,), is_truncated=True), scored(0, 0, 1, (5,), (8,))])
    assert batch.is_truncated.tolist() == [True, False]


def test_demonstrations_are_groups_of_their_own_named_by_their_place_in_the_run():
    rows = [
        Demonstration(prompt=prompt(3, 5, 6), completion=(7, 2), text="x"),
        Demonstration(prompt=prompt(1, 5), completion=(2,), text=""),
    ]
    batch = collate.of_demonstrations(rows, [40, 41])
    assert batch.tokens.tolist() == [[5, 6, 7, 2], [5, 2, 0, 0]]
    assert batch.loss_mask.tolist() == [[True, True], [True, False]]
    assert batch.group_ids.tolist() == batch.row_ids.tolist() == [40, 41]
    assert batch.prompt_ids.tolist() == [3, 1]
    assert not batch.is_scored.any()
    assert batch.tokens.dtype == torch.int64


def test_a_truncated_completion_can_be_left_out_of_the_loss_and_still_be_there():
    rows = [
        scored(0, 0, 0, (5,), (8, 8, 8), is_truncated=True, parts=(2.0,)),
        scored(0, 0, 1, (5,), (8, 2), parts=(1.0,)),
    ]
    batch = collate.of_rollouts(rows, masks_truncated=True)
    assert batch.loss_mask.tolist() == [[False] * 3, [True, True, False]]
    assert batch.completion_lengths.tolist() == [3, 2]
    assert batch.rewards.tolist() == [2.0, 1.0]
    assert batch.is_scored.tolist() == [True, True]
    assert batch.rollout_log_probs[0].tolist() == [0, 0, 0]
    assert collate.of_rollouts(rows).loss_mask.sum() == 5


def test_the_weights_of_the_reward_functions_stand_beside_their_values_in_float64():
    batch = collate.of_rollouts([scored(0, 0, i, (5,), (8,), parts=(0.1, None)) for i in range(2)], weights=(0.3, 2.0))
    assert batch.reward_weights.tolist() == [[0.3, 2.0]] * 2
    assert batch.reward_parts[:, 0].tolist() == [0.1, 0.1]
    assert collate.of_rollouts([scored(0, 0, 0, (5,), (8,))]).reward_weights is None


def test_the_empty_share_of_a_rank_is_a_batch_of_the_same_fields_without_rows():
    empty = collate.of_rollouts([], weights=(0.3, 2.0), masks_truncated=True)
    full = collate.of_rollouts([scored(0, 0, 0, (5,), (8, 2), parts=(0.1, None))], weights=(0.3, 2.0))
    together = batches.joined([empty, full])
    assert len(empty) == 0
    for name in ("tokens", "rewards", "reward_parts", "reward_weights", "policy_versions", "is_truncated"):
        assert getattr(together, name).shape == getattr(full, name).shape, name
        assert getattr(together, name).dtype == getattr(full, name).dtype, name
        assert torch.equal(getattr(together, name).nan_to_num(), getattr(full, name).nan_to_num()), name


def test_a_demonstration_can_have_holes_in_its_mask():
    rows = [
        Demonstration(prompt=prompt(0, 5), completion=(7, 8, 9, 2), text="x", mask=(True, False, False, True)),
        Demonstration(prompt=prompt(1, 5), completion=(7, 2), text="x"),
    ]
    batch = collate.of_demonstrations(rows, [0, 1])
    assert batch.loss_mask.dtype == torch.bool
    assert batch.loss_mask.tolist() == [[True, False, False, True], [True, True, False, False]]
    assert batch.completion_lengths.tolist() == [4, 2]
    assert batch.tokens.tolist() == [[5, 7, 8, 9, 2], [5, 7, 2, 0, 0]]
