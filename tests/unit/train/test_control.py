"""Signals become a wish that the loop asks for."""

import os
import signal

import pytest

from trimtab.train.control import SignalControl


class Alone:
    """One rank among others, who wish what they are given."""

    def __init__(self, *others):
        self.others = others

    def gather(self, value):
        return [value, *self.others]


@pytest.fixture(autouse=True)
def _this_process_can_be_ended():
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def send(number):
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_a_wish_to_stop_at_the_next_step(number):
    with SignalControl(Alone()) as control:
        assert control.should_stop() is None
        send(number)
        assert control.should_stop() == number.name
        assert control.should_stop() == number.name, "a wish stays"


def test_a_second_interrupt_ends_the_run_at_once():
    with SignalControl(Alone()) as control:
        send(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
        assert control.should_stop() == "SIGINT"


def test_a_second_termination_is_no_more_than_the_first():
    with SignalControl(Alone()) as control:
        send(signal.SIGTERM)
        send(signal.SIGTERM)
        assert control.should_stop() == "SIGTERM"


def test_a_second_termination_does_not_end_a_process_that_is_on_its_way_out():
    with SignalControl(Alone()):
        send(signal.SIGTERM)
    assert callable(signal.getsignal(signal.SIGTERM)), "or it would end here"
    send(signal.SIGTERM)


def test_an_interrupt_after_a_termination_ends_the_run_at_once():
    with SignalControl(Alone()):
        send(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)


def test_the_wish_of_one_rank_is_that_of_all():
    with SignalControl(Alone(None, "SIGTERM")) as control:
        assert control.should_stop() == "SIGTERM"


def test_afterwards_signals_mean_what_they_meant_before():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    control = SignalControl(Alone())
    with control:
        assert signal.getsignal(signal.SIGTERM) != before[0]
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    with pytest.raises(RuntimeError), control:
        raise RuntimeError
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
