"""Which completion each row takes for KTO's estimate of how far the policy has moved, and what comes of it."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from trimtab.train import mismatched
from trimtab.types import Batch, Frozen, Policy


def batch(prompt_ids, lengths=None, row_ids=None):
    count = len(prompt_ids)
    lengths = torch.tensor(lengths or [2] * count)
    width = int(lengths.max())
    tokens = torch.zeros(count, 1 + width, dtype=torch.int64)
    for row in range(count):
        tokens[row, 0] = 100 + prompt_ids[row]
        tokens[row, 1 : 1 + lengths[row]] = 10 * (row + 1) + torch.arange(int(lengths[row]))
    return Batch(
        tokens=tokens,
        prompt_lengths=torch.ones(count, dtype=torch.int64),
        completion_lengths=lengths,
        loss_mask=torch.arange(width)[None, :] < lengths[:, None],
        group_ids=torch.arange(count),
        row_ids=torch.tensor(row_ids or range(count)),
        prompt_ids=torch.tensor(prompt_ids),
        rewards=torch.zeros(count),
        is_scored=torch.zeros(count, dtype=torch.bool),
        is_truncated=torch.zeros(count, dtype=torch.bool),
        is_chosen=torch.ones(count, dtype=torch.bool),
    )


def test_each_row_takes_the_completion_of_the_next_and_the_last_that_of_the_first():
    assert mismatched.partners(batch([1, 2, 3])).tolist() == [1, 2, 0]


def test_the_shift_grows_until_no_row_meets_its_own_prompt():
    assert mismatched.partners(batch([1, 1, 2, 2])).tolist() == [2, 3, 0, 1]


def test_rows_that_no_shift_serves_are_left_out():
    assert mismatched.partners(batch([1, 1, 1, 2])).tolist() == [-1, -1, 3, 0]
    assert mismatched.partners(batch([1])).tolist() == [-1]


@given(st.lists(st.integers(0, 4), min_size=2, max_size=9), st.randoms())
def test_who_takes_what_does_not_depend_on_the_order_of_rows(prompt_ids, random):
    order = list(range(len(prompt_ids)))
    random.shuffle(order)
    plain = mismatched.partners(batch(prompt_ids)).tolist()
    moved = mismatched.partners(batch([prompt_ids[i] for i in order], row_ids=order)).tolist()
    assert {order[row]: order[p] if p >= 0 else -1 for row, p in enumerate(moved)} == dict(enumerate(plain))


def test_a_prompt_stands_before_the_other_rows_completion_with_its_mask():
    rows = batch([1, 2], lengths=[1, 3])
    found = mismatched.with_completions_of(rows, torch.tensor([0, 1]), torch.tensor([1, 0]))
    assert found.tokens.tolist() == [[101, 20, 21, 22], [102, 10, 0, 0]]
    assert found.loss_mask.tolist() == [[True, True, True], [True, False, False]]
    assert found.completion_lengths.tolist() == [3, 1]


class Counting:
    """Log-probs that are a tenth of the token's id under the policy, 0 under the reference."""

    device = torch.device("cpu")

    def forward(self, rows, need):
        width = rows.loss_mask.shape[1]
        place = rows.prompt_lengths[:, None] + torch.arange(width)
        tokens = rows.tokens.gather(1, place.clamp(max=rows.tokens.shape[1] - 1))
        return Policy(loss_mask=rows.loss_mask, log_probs=tokens / 10)

    def freeze(self, rows, need):
        return Frozen(loss_mask=rows.loss_mask, ref_log_probs=torch.zeros(rows.loss_mask.shape))


def test_log_ratios_are_sums_over_the_other_completion_for_any_micro_batches():
    rows = batch([1, 2, 3], lengths=[1, 3, 2])
    everybody = torch.arange(3)
    wanted = [2.0 + 2.1 + 2.2, 3.0 + 3.1, 1.0]
    for budget in (1, 8, 1000):
        found = mismatched.log_ratios(Counting(), rows, everybody, budget)
        torch.testing.assert_close(found, torch.tensor(wanted))
    one = mismatched.log_ratios(Counting(), rows, torch.tensor([1]), 1000)
    torch.testing.assert_close(one, torch.tensor([wanted[1]]))


def test_a_row_whose_partner_is_empty_counts_for_nothing():
    found = mismatched.log_ratios(Counting(), batch([1, 2, 3], lengths=[1, 0, 2]), torch.arange(3), 1000)
    assert found.isnan().tolist() == [True, False, False]
