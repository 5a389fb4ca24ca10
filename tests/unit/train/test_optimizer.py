"""Weights of two bytes: small steps are not lost, gradients add up in float32, and a restart changes nothing."""

import pytest
import torch
from torch import nn

from trimtab.train.optimizer import Optimizer
from trimtab.train.settings import Optim


def optimizer(*parameters, rate=1e-6, **more):
    named = {f"policy.{n}": p for n, p in enumerate(parameters)}
    return Optimizer({"policy": list(parameters)}, named, Optim(learning_rate=rate, **more), {})


def weight(dtype, value=0.5, size=4):
    return nn.Parameter(torch.full((size,), value).to(dtype))


def train(made, parameter, steps, gradient=1.0):
    for _ in range(steps):
        made.zero_grad()
        (parameter.float() * gradient).sum().backward()
        made.step(made.norms(), 1.0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_many_steps_that_are_each_too_small_to_be_seen_move_a_weight_of_two_bytes(dtype):
    half, full = weight(dtype), weight(torch.float32)
    train(optimizer(half), half, 1)
    assert torch.equal(half, weight(dtype))
    half = weight(dtype)
    train(optimizer(half, rate=1e-4), half, 100)
    train(optimizer(full, rate=1e-4), full, 100)
    assert torch.equal(half, full.to(dtype))
    assert half[0].item() < 0.495


def test_gradients_of_micro_batches_add_up_in_float32():
    """256 + 1 is 256 in bfloat16; the sum must not depend on how an update is cut."""
    parameter = weight(torch.bfloat16)
    made = optimizer(parameter)
    for size in (256.0, 1.0, 1.0):
        (parameter * size).sum().backward()
    assert parameter.grad is None
    assert [p.grad.tolist() for p in made.parameters()] == [[258.0] * 4]
    assert made.norms()["policy"] == pytest.approx(516.0)


def test_weights_of_four_bytes_have_no_copy():
    parameter = weight(torch.float32)
    made = optimizer(parameter)
    assert made.parameters()[0] is parameter
    assert not made.copies
    assert not any(name.startswith("float32.") for name in made.state()[0])


def test_a_restored_optimiser_goes_on_to_the_last_bit():
    first = weight(torch.bfloat16)
    before = optimizer(first, rate=1e-4)
    train(before, first, 3)
    tensors, values = before.state()
    tensors = {name: t.detach().clone() for name, t in tensors.items()}
    second = nn.Parameter(first.detach().clone())
    after = optimizer(second, rate=1e-4)
    after.load_state(tensors, values)
    for made, parameter in ((before, first), (after, second)):
        train(made, parameter, 30)
    assert torch.equal(first, second)
    assert torch.equal(before.parameters()[0], after.parameters()[0])
    assert {p.split(".", 1)[0] for p in tensors} == {"float32", "first_moment", "second_moment"}


def test_a_fresh_optimiser_can_be_saved_and_restored_before_any_step():
    parameter = weight(torch.bfloat16)
    tensors, values = optimizer(parameter).state()
    other = weight(torch.bfloat16, value=0.25)
    made = optimizer(other)
    made.load_state(tensors, values)
    assert made.parameters()[0].tolist() == [0.5] * 4


def test_an_optimiser_that_has_been_replaced_takes_no_more_gradients():
    parameter = weight(torch.bfloat16)
    optimizer(parameter)
    made = optimizer(parameter)
    (parameter * 2.0).sum().backward()
    assert made.norms()["policy"] == pytest.approx(4.0)
