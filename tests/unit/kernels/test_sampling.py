"""Numbers that are hashes behave as random numbers and depend on nothing else."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.kernels import sampling


def test_numbers_are_uniform_and_uncorrelated_over_every_coordinate():
    n = 50_000
    zero = torch.zeros(n, dtype=torch.int64)
    counting = torch.arange(n)
    for coordinate in range(4):
        parts = [zero, zero, zero]
        if coordinate < 3:
            parts[coordinate] = counting
            numbers = sampling.uniform(sampling.streams(7, *parts), 0)
        else:
            numbers = sampling.uniform(sampling.streams(7, *parts), counting)
        assert abs(float(numbers.mean()) - 0.5) < 0.01
        assert abs(float(numbers.var()) - 1 / 12) < 0.005
        assert len(torch.unique(numbers)) == n
        neighbours = torch.corrcoef(torch.stack([numbers[:-1], numbers[1:]]))[0, 1]
        assert abs(float(neighbours)) < 0.02
        counts = torch.histc(numbers.float(), bins=20, min=0, max=1)
        assert float(((counts - n / 20) ** 2 / (n / 20)).sum()) < 50  # chi-square, 19 degrees of freedom


def test_a_number_does_not_depend_on_the_batch_it_is_made_in():
    ids = torch.tensor([5, 9, 11])
    together = sampling.uniform(sampling.streams(1, ids, ids, ids), 4)
    alone = torch.cat([sampling.uniform(sampling.streams(1, i[None], i[None], i[None]), 4) for i in ids])
    assert torch.equal(together, alone)


def test_draws_follow_the_distribution():
    log_probs = torch.tensor([[0.1, 0.2, 0.0, 0.7]]).log().expand(40_000, 4)
    numbers = sampling.uniform(torch.arange(40_000), 0)
    shares = torch.bincount(sampling.inverse_cdf(log_probs, numbers), minlength=4) / 40_000
    assert shares.tolist() == pytest.approx([0.1, 0.2, 0.0, 0.7], abs=0.01)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([1.0, 0.9, 0.5, 0.01]), st.sampled_from([None, 1, 3, 50]))
def test_a_token_of_probability_zero_is_never_drawn(seed, top_p, top_k):
    logits = torch.randn(64, 20, generator=torch.Generator().manual_seed(seed)) * 5
    log_probs = sampling.sampling_log_probs(logits, temperature=0.7, top_p=top_p, top_k=top_k)
    assert torch.allclose(log_probs.exp().sum(-1), torch.ones(64), atol=1e-5)
    for number in (0.0, 0.5, 1.0 - 2.0**-53):
        drawn = sampling.inverse_cdf(log_probs, torch.full((64,), number, dtype=torch.float64))
        assert bool(log_probs.gather(1, drawn[:, None]).isfinite().all())


def test_top_p_keeps_the_smallest_set_that_reaches_it():
    log_probs = sampling.sampling_log_probs(torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log(), temperature=1.0, top_p=0.7)
    assert log_probs.exp()[0].tolist() == pytest.approx([0.625, 0.375, 0.0, 0.0])


def test_top_k_keeps_the_likeliest():
    log_probs = sampling.sampling_log_probs(torch.tensor([[0.1, 0.6, 0.3]]).log(), temperature=1.0, top_k=2)
    assert log_probs.exp()[0].tolist() == pytest.approx([0.0, 2 / 3, 1 / 3])


def test_temperature_divides_the_logits():
    logits = torch.tensor([[1.0, 2.0, 0.0]])
    expected = torch.log_softmax(logits / 0.5, -1)
    assert torch.allclose(sampling.sampling_log_probs(logits, temperature=0.5), expected)
