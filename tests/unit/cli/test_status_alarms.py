"""Which alarms `trimtab status` shows."""

from trimtab.cli.status import _raised


def alarm(rule, level="warn", **more):
    return {"kind": "event", "event": "alarm", "time": 0.0, "rule": rule, "level": level, "text": rule.upper(), **more}


def over(rule):
    return {"kind": "event", "event": "alarm over", "time": 0.0, "rule": rule}


def test_an_alarm_is_shown_until_it_is_over():
    assert [a["rule"] for a in _raised([alarm("entropy"), alarm("length"), over("entropy")])] == ["length"]


def test_the_newest_level_of_an_alarm_counts():
    (found,) = _raised([alarm("kl_update"), alarm("kl_update", "act", since=7)])
    assert (found["level"], found["since"], found["text"]) == ("act", 7, "KL_UPDATE")
    assert "time" not in found


def test_a_rollback_has_dealt_with_the_alarms_before_it():
    events = [alarm("kl_update", "act"), {"kind": "event", "event": "rolled back", "time": 0.0}, alarm("entropy")]
    assert [a["rule"] for a in _raised(events)] == ["entropy"]
