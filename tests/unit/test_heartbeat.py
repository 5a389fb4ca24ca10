"""Who is expected to give signs of life, and since when one has not."""

import threading

import pytest

from trimtab.heartbeat import ROLES, Heartbeats


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_only_a_role_at_work_gets_older():
    clock = Clock()
    beats = Heartbeats(clock)
    assert beats.ages() == dict.fromkeys(ROLES, 0.0)
    with beats.at_work("rollout"):
        clock.now = 12.0
        assert beats.ages()["rollout"] == 12.0
        beats.beat("rollout")
        clock.now = 15.0
        assert beats.ages()["rollout"] == 3.0
        assert beats.ages()["trainer"] == 0.0
    clock.now = 99.0
    assert beats.ages() == dict.fromkeys(ROLES, 0.0)


def test_a_role_whose_work_failed_has_nothing_to_do():
    clock = Clock()
    beats = Heartbeats(clock)
    with pytest.raises(OSError), beats.at_work("saving"):
        raise OSError
    clock.now = 40.0
    assert beats.ages()["saving"] == 0.0


def test_a_role_that_works_in_two_threads_is_at_work_until_both_have_ended():
    clock = Clock()
    beats = Heartbeats(clock)
    begun, ends = threading.Event(), threading.Event()

    def other():
        with beats.at_work("saving"):
            begun.set()
            ends.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    begun.wait(10)
    with beats.at_work("saving"):
        pass
    clock.now = 7.0
    assert beats.ages()["saving"] == 7.0
    ends.set()
    thread.join()
    assert beats.ages()["saving"] == 0.0
