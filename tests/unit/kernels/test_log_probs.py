"""Log-probs in chunks are those of the whole logits."""

import pytest
import torch

from trimtab.kernels import log_probs as kernel


@pytest.mark.parametrize("with_gradient", [True, False])
def test_chunks_change_neither_values_nor_gradients(monkeypatch, with_gradient):
    torch.manual_seed(0)
    head = torch.nn.Linear(8, 50)
    hidden, targets = torch.randn(37, 8), torch.randint(0, 50, (37,))

    def run(limit):
        monkeypatch.setattr(kernel, "CHUNK_ELEMENTS", limit)
        states = hidden.clone().requires_grad_(True)
        head.zero_grad()
        found, entropy = kernel.token_log_probs(
            states, head, targets, vocabulary=50, temperature=0.7, entropy_with_gradient=with_gradient
        )
        (found.sum() + (entropy.sum() if with_gradient else 0)).backward()
        return found.detach(), entropy.detach(), states.grad, head.weight.grad.clone()

    for whole, cut in zip(run(1 << 20), run(200), strict=True):
        assert torch.allclose(whole, cut, atol=1e-6)


def test_entropy_lies_between_zero_and_the_logarithm_of_the_vocabulary():
    hidden = torch.randn(100, 8) * 20
    _, entropy = kernel.token_log_probs(
        hidden, torch.nn.Linear(8, 50), torch.zeros(100, dtype=torch.int64), vocabulary=50, temperature=1.0
    )
    assert float(entropy.min()) >= 0
    assert float(entropy.max()) <= torch.log(torch.tensor(50.0)) + 1e-5


def test_the_temperature_is_that_of_sampling():
    hidden, head, targets = torch.randn(5, 8), torch.nn.Linear(8, 20), torch.randint(0, 20, (5,))
    found, _ = kernel.token_log_probs(hidden, head, targets, vocabulary=20, temperature=0.6)
    expected = torch.log_softmax(head(hidden) / 0.6, -1).gather(1, targets[:, None]).squeeze(1)
    assert torch.allclose(found, expected, atol=1e-6)
