"""The loss scale: what it does to gradients, when it falls and rises, and that it is the same after a restart."""

import pytest
import torch
from torch import nn

from trimtab.train.scaler import LossScaler


def parameter(gradient):
    found = nn.Parameter(torch.zeros(len(gradient)))
    found.grad = torch.tensor(gradient)
    return found


def test_a_small_gradient_survives_float16_only_with_a_scale():
    weight = nn.Parameter(torch.tensor([1e-4], dtype=torch.float16))
    values = torch.tensor([1e-4], dtype=torch.float16)

    def gradient(scaler):
        weight.grad = None
        scaler.scale((weight * values).float().sum() * 1e-4).backward()
        master = nn.Parameter(weight.detach().float())
        master.grad = weight.grad.float()
        assert not scaler.unscale([master])
        return float(master.grad)

    assert gradient(LossScaler(is_enabled=False)) == 0.0
    assert gradient(LossScaler(is_enabled=True)) == pytest.approx(1e-8, rel=1e-2)


def test_gradients_come_back_to_their_own_size_before_anything_looks_at_them():
    scaler = LossScaler(is_enabled=True)
    weight = nn.Parameter(torch.tensor([3.0]))
    scaler.scale((weight**2).sum()).backward()
    assert weight.grad.item() == 6.0 * 65536
    assert scaler.unscale([weight]) is False
    assert weight.grad.item() == 6.0


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_an_overflow_in_any_parameter_is_found_and_halves_the_scale(bad):
    scaler = LossScaler(is_enabled=True)
    found = scaler.unscale([parameter([1.0, 2.0]), parameter([0.0, bad])])
    assert found
    assert scaler.update(found) is True
    assert scaler.factor == 32768


def test_the_scale_is_doubled_after_so_many_good_updates_in_a_row_but_never_above_the_cap():
    scaler = LossScaler(is_enabled=True, max_scale=8.0, growth_interval=3)
    scaler.update(True)
    scaler.update(True)
    seen = []
    for found_inf in (False, False, True, False, False, False, False, False, False, False, False, False):
        scaler.update(found_inf)
        seen.append(scaler.factor)
    assert seen == [2, 2, 1, 1, 1, 2, 2, 2, 4, 4, 4, 8]
    for _ in range(3):
        scaler.update(False)
    assert scaler.factor == 8.0


def test_the_default_interval_and_cap_are_those_of_torch():
    scaler = LossScaler(is_enabled=True)
    assert scaler.factor == torch.amp.GradScaler("cpu").get_scale() == 2.0**16
    scaler.update(True)
    for _ in range(1999):
        scaler.update(False)
    assert scaler.factor == 2.0**15
    scaler.update(False)
    assert scaler.factor == 2.0**16


def test_what_is_not_finite_at_a_scale_of_one_is_no_overflow():
    scaler = LossScaler(is_enabled=True, max_scale=2.0)
    assert scaler.update(True) is True
    assert scaler.update(True) is False
    assert scaler.factor == 1.0


def test_a_restored_scaler_goes_on_as_the_other_would_have():
    first, second = (LossScaler(is_enabled=True, max_scale=16.0, growth_interval=3) for _ in range(2))
    for found_inf in (True, True, False, False):
        first.update(found_inf)
    second.load_state(first.state())
    for scaler in (first, second):
        scaler.update(False)
    assert first.state() == second.state() == {"loss_scale": 8.0, "good_updates": 0}


def test_without_float16_nothing_is_touched():
    scaler = LossScaler(is_enabled=False)
    loss, weight = torch.tensor(2.0), parameter([float("inf")])
    assert scaler.scale(loss) is loss
    assert scaler.unscale([weight]) is False
    assert scaler.update(True) is False
    assert weight.grad.isinf().all()
    assert scaler.factor == 1.0
    scaler.load_state({"loss_scale": 4.0, "good_updates": 1})
    assert scaler.factor == 1.0
