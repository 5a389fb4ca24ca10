"""The order in which rows are met."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.data.order import Order


def taken(order, sizes):
    return [row for size in sizes for row in order.take(size)]


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 40), st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(0, 3), st.booleans())
def test_every_row_is_met_once_an_epoch_whatever_the_batch_size(count, sizes, seed, shuffle):
    met = taken(Order(count, seed=seed, shuffle=shuffle), sizes)
    for start in range(0, len(met) - count + 1, count):
        assert sorted(met[start : start + count]) == list(range(count))


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 20), st.lists(st.integers(1, 30), max_size=6), st.lists(st.integers(1, 30), max_size=6))
def test_the_batch_size_does_not_change_the_order(count, sizes, others):
    total = min(sum(sizes), sum(others))
    first, second = (taken(Order(count, seed=1, shuffle=True), s) for s in (sizes, others))
    assert first[:total] == second[:total]


@pytest.mark.parametrize(
    "drawn", [0, 3, 10, 13, 20], ids=["start", "mid-epoch", "boundary", "second-epoch", "second-boundary"]
)
def test_a_restored_order_goes_on_where_the_saved_one_was(drawn):
    order = Order(10, seed=5, shuffle=True)
    order.take(drawn)
    state = dict(order.state())
    expected = order.take(25)
    other = Order(10, seed=5, shuffle=True)
    other.take(7)
    other.load_state(state)
    assert other.take(25) == expected


def test_seeds_and_epochs_have_orders_of_their_own():
    first, second = Order(50, seed=0, shuffle=True), Order(50, seed=1, shuffle=True)
    epochs = [first.take(50), first.take(50), second.take(50), second.take(50)]
    assert len({tuple(epoch) for epoch in epochs}) == 4


def test_without_shuffling_the_order_is_that_of_the_file():
    assert Order(4, seed=9, shuffle=False).take(9) == [0, 1, 2, 3, 0, 1, 2, 3, 0]


def test_the_epoch_counts_the_passes_that_were_begun():
    order = Order(4, seed=0, shuffle=True)
    seen = [order.epoch]
    for size in (1, 3, 1, 4):
        order.take(size)
        seen.append(order.epoch)
    assert seen == [0, 1, 1, 2, 3]
