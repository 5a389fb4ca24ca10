"""How rows are cut into updates and forward passes, and put together again."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.train import batches
from trimtab.types import Batch, Frozen

GROUPS = st.lists(st.integers(0, 9), min_size=1, max_size=30)
LENGTHS = st.lists(st.integers(1, 50), min_size=1, max_size=30)


def cut(groups, count, *, seed=0, step=1, epoch=0):
    return batches.minibatches(torch.tensor(groups), count, seed=seed, step=step, epoch=epoch)


@settings(max_examples=150, deadline=None)
@given(GROUPS, st.integers(1, 6), st.integers(0, 3))
def test_mini_batches_have_every_row_once_and_whole_prompts(groups, count, seed):
    parts = cut(groups, count, seed=seed)
    assert sorted(row for part in parts for row in part.tolist()) == list(range(len(groups)))
    owners = [{groups[row] for row in part.tolist()} for part in parts]
    assert sum(len(owner) for owner in owners) == len(set(groups)), "no prompt is in two of them"
    assert len(parts) == min(count, len(set(groups)))
    assert all(part.tolist() == sorted(part.tolist()) for part in parts)
    if count > 1:
        sizes = [len(owner) for owner in owners]
        assert max(sizes) - min(sizes) <= 1


def test_the_cut_depends_on_seed_step_and_epoch_alone():
    groups = [g for g in range(16) for _ in range(2)]
    first = [part.tolist() for part in cut(groups, 4)]
    assert first == [part.tolist() for part in cut(groups, 4)]
    others = [cut(groups, 4, seed=1), cut(groups, 4, step=2), cut(groups, 4, epoch=1)]
    assert all([part.tolist() for part in other] != first for other in others)


def test_the_cut_does_not_depend_on_the_order_of_the_rows():
    groups = [g for g in range(6) for _ in range(2)]
    first = [{groups[row] for row in part.tolist()} for part in cut(groups, 3)]
    backwards = groups[::-1]
    assert first == [{backwards[row] for row in part.tolist()} for part in cut(backwards, 3)]


@settings(max_examples=150, deadline=None)
@given(LENGTHS, st.integers(1, 200))
def test_a_forward_pass_has_no_more_tokens_than_the_budget_padding_included(lengths, budget):
    parts = batches.micro_batches(torch.tensor(lengths), budget)
    assert sorted(row for part in parts for row in part.tolist()) == list(range(len(lengths)))
    for part in parts:
        longest = max(lengths[row] for row in part.tolist())
        assert len(part) == 1 or len(part) * longest <= budget


def test_rows_of_like_length_are_passed_together():
    parts = batches.micro_batches(torch.tensor([1, 100, 2, 99, 3]), 200)
    assert [part.tolist() for part in parts] == [[1, 3], [4, 2, 0]]


def frozen(rows, width, base=0.0):
    mask = torch.ones(rows, width, dtype=torch.bool)
    values = base + torch.arange(rows * width, dtype=torch.float32).reshape(rows, width)
    return Frozen(loss_mask=mask, old_log_probs=values, bootstrap_values=values[:, 0].clone())


@settings(max_examples=50, deadline=None)
@given(LENGTHS.filter(lambda lengths: len(lengths) < 12), st.integers(1, 120))
def test_what_was_cut_into_forward_passes_is_put_together_again(lengths, budget):
    mask = torch.arange(max(lengths))[None, :] < torch.tensor(lengths)[:, None]
    whole = Frozen(loss_mask=mask, old_log_probs=torch.randn(mask.shape), bootstrap_values=torch.randn(len(lengths)))
    parts = []
    for index in batches.micro_batches(torch.tensor(lengths), budget):
        width = max(lengths[row] for row in index.tolist())
        parts.append((index, whole.rows(index, width)))
    found = batches.assembled(parts, mask)
    assert torch.equal(found.old_log_probs, whole.old_log_probs)
    assert torch.equal(found.bootstrap_values, whole.bootstrap_values)
    assert found.ref_log_probs is None


def test_records_of_several_widths_are_joined_one_below_the_other():
    found = batches.joined([frozen(1, 3, 10.0), frozen(2, 2)])
    assert found.old_log_probs.tolist() == [[10.0, 11.0, 12.0], [0.0, 1.0, 0.0], [2.0, 3.0, 0.0]]
    assert found.loss_mask.tolist() == [[True] * 3, [True, True, False], [True, True, False]]
    assert found.bootstrap_values.tolist() == [10.0, 0.0, 2.0]
    assert found.old_values is None


def test_one_record_is_joined_to_nothing():
    record = frozen(2, 3)
    assert batches.joined([record]) is record


def test_batches_are_joined_with_all_of_their_fields():
    def batch(tokens, draw):
        width = len(tokens) - 1
        one = torch.tensor([1])
        return Batch(
            tokens=torch.tensor([tokens]), prompt_lengths=one, completion_lengths=torch.tensor([width]),
            loss_mask=torch.ones(1, width, dtype=torch.bool), group_ids=one * draw, row_ids=one * draw, prompt_ids=one,
            rewards=torch.tensor([0.5]), is_scored=one.bool(), is_truncated=one.bool(),
        )  # fmt: skip

    found = batches.joined([batch([1, 2, 3], 4), batch([5, 6], 7)])
    assert found.tokens.tolist() == [[1, 2, 3], [5, 6, 0]]
    assert found.loss_mask.tolist() == [[True, True], [True, False]]
    assert found.group_ids.tolist() == [4, 7]
    assert len(found) == 2


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu")])
def test_a_record_that_is_on_the_device_stays_the_same_object(device):
    record = frozen(2, 2)
    assert batches.on(record, device) is record
    assert batches.on(record, "meta").old_log_probs.device.type == "meta"
