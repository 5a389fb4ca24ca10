"""Several recorders as one: the training record must work, a monitor may fail."""

import pytest

from trimtab.observe.recorders import Recorders
from trimtab.types import StepReport


class Notes:
    """Writes down what it is told, and fails from a given call on."""

    def __init__(self, fails_at=None):
        self.told = []
        self.fails_at = fails_at

    def _tell(self, *what):
        self.told.append(what)
        if len(self.told) == self.fails_at:
            raise OSError("the server is gone")

    def record(self, report):
        self._tell("record", report.step)

    def event(self, kind, **facts):
        self._tell("event", kind, facts)

    def close(self):
        self._tell("close")


def run(recorders):
    recorders.event("started", step=0)
    for step in (1, 2):
        recorders.record(StepReport(step=step, metrics={}))
    recorders.close()


EVERYTHING = [("event", "started", {"step": 0}), ("record", 1), ("record", 2), ("close",)]


def test_everybody_is_told_everything_in_order():
    record, monitors = Notes(), [Notes(), Notes()]
    run(Recorders(record, monitors))
    assert [n.told for n in (record, *monitors)] == [EVERYTHING] * 3


@pytest.mark.parametrize("call", [1, 2, 3, 4])
def test_a_monitor_that_fails_is_switched_off_named_and_counted_and_the_others_go_on(call, capsys):
    record, failing, other = Notes(), Notes(fails_at=call), Notes()
    recorders = Recorders(record, [failing, other])
    run(recorders)
    assert record.told == other.told == EVERYTHING
    assert failing.told == EVERYTHING[:call]
    assert recorders.failed == 1
    assert capsys.readouterr().err == "warning: Notes failed and is switched off: OSError: the server is gone\n"


def test_two_monitors_can_fail_at_the_same_moment():
    record = Notes()
    recorders = Recorders(record, [Notes(fails_at=2), Notes(fails_at=2)])
    run(recorders)
    assert (recorders.failed, recorders.monitors, record.told) == (2, [], EVERYTHING)


def test_the_training_record_must_not_fail():
    with pytest.raises(OSError, match="the server is gone"):
        run(Recorders(Notes(fails_at=2), [Notes()]))


def test_a_rank_without_a_record_tells_nobody():
    run(Recorders(None))


def test_the_list_of_monitors_that_was_given_is_left_alone():
    given = [Notes(fails_at=1)]
    run(Recorders(None, given))
    assert len(given) == 1
