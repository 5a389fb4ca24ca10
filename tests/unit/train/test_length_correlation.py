"""Whether a step's rewards go with the length of completions."""

import pytest
import torch

from trimtab.train import figures
from trimtab.types import Batch


def batch(rewards, lengths, is_scored=None):
    count, width = len(rewards), max(lengths)
    return Batch(
        tokens=torch.zeros(count, width + 1, dtype=torch.int64),
        prompt_lengths=torch.ones(count, dtype=torch.int64),
        completion_lengths=torch.tensor(lengths),
        loss_mask=torch.arange(width)[None, :] < torch.tensor(lengths)[:, None],
        group_ids=torch.arange(count),
        row_ids=torch.arange(count),
        prompt_ids=torch.arange(count),
        rewards=torch.tensor(rewards, dtype=torch.float64),
        is_scored=torch.tensor(is_scored or [True] * count),
        is_truncated=torch.zeros(count, dtype=torch.bool),
    )


@pytest.mark.parametrize(
    ("rewards", "lengths", "is_scored", "wanted"),
    [
        ([1.0, 2.0, 3.0], [2, 4, 6], None, 1.0),
        ([3.0, 2.0, 1.0], [2, 4, 6], None, -1.0),
        ([0.0, 1.0, 0.0], [1, 2, 3], None, 0.0),
        ([1.0, 2.0, 9.0], [2, 4, 1], [True, True, False], 1.0),
        ([1.0, 1.0], [2, 4], None, None),
        ([1.0, 2.0], [3, 3], None, None),
        ([1.0], [3], None, None),
    ],
)
def test_reward_and_length_of_the_scored_completions_are_correlated(rewards, lengths, is_scored, wanted):
    found = figures.of_batch(batch(rewards, lengths, is_scored), 1).get("reward/length_correlation")
    assert found == (None if wanted is None else pytest.approx(wanted, abs=1e-12))
