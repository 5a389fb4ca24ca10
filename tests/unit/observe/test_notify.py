"""Webhooks are told at least once, in order, beside training; a receiver that will not listen costs nothing else."""

import json
import threading
import time

import pytest

from tests.receiver import Receiver
from trimtab import secrets
from trimtab.assemble import monitors
from trimtab.errors import ConfigError
from trimtab.observe import notify, notify_http
from trimtab.observe.notify import Courier, Notifier
from trimtab.observe.notify_messages import Editor, Subject
from trimtab.observe.settings import Webhook
from trimtab.secrets import Secret
from trimtab.store import disk
from trimtab.store.outbox import Outbox
from trimtab.types import StepReport

SUBJECT = Subject(name="run", run_id="0f", algorithm="grpo", max_steps=100)
ALARM = {"rule": "kl_update", "level": "act", "since": 1, "figure": "kl/update", "value": 0.07, "limit": 0.05}


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch):
    secrets.forget()
    monkeypatch.setattr(notify, "LONGEST_WAIT", 0.05)
    yield
    secrets.forget()


@pytest.fixture
def make(tmp_path, monkeypatch):
    """A notifier of one receiver, in this test's outbox."""

    def made(receiver, *, process="1", first_wait=0.01, at_the_end=10.0, **settings):
        monkeypatch.setenv("THE_HOOK", receiver if isinstance(receiver, str) else receiver.url)
        kind = "json" if isinstance(receiver, str) else receiver.kind
        hook = Webhook(url=Secret("${env:THE_HOOK}"), format=kind, **settings)
        courier = Courier(hook, Outbox(tmp_path / "outbox"), say=said.append, first_wait=first_wait)
        editor = Editor(SUBJECT, process=process)
        return Notifier([courier], editor, version=lambda: 1, at_the_end=at_the_end)

    said = made.said = []
    return made


def alarm(notifier, step):
    notifier.event("alarm", step=step, text=f"seen at step {step}", then="warn", **ALARM)


def until(condition, seconds=20):
    end = time.monotonic() + seconds
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < end
        pause.wait(0.01)


def steps(receiver):
    return [body["step"] for body in receiver.bodies()]


# ------------------------------------------------------------------------------------------------------------- delivery
def test_what_happens_is_told_in_order_under_a_key_in_header_and_body(make):
    with Receiver() as receiver:
        notifier = make(receiver)
        notifier.record(StepReport(step=3, metrics={"reward/mean": 0.5}))
        for step in (3, 4):
            alarm(notifier, step)
        notifier.event("rolled back", step=2, was=4, branch="b1", version=2, rule="kl_update", reason="too far")
        notifier.event("saved", step=5, seconds=1.0)
        notifier.close()
    assert [body["kind"] for body in receiver.bodies()] == ["alarm", "alarm", "rollback"]
    assert steps(receiver) == [3, 4, 2]
    for request, body in zip(receiver.got, receiver.bodies(), strict=True):
        assert request["headers"]["Idempotency-Key"] == body["key"]
        assert request["headers"]["Content-Type"].startswith("application/json")
        assert request["headers"]["User-Agent"].startswith("trimtab/")
    assert receiver.bodies()[0]["figures"] == {"reward/mean": 0.5}
    assert notifier.figures() == {"notify/sent": 3.0, "notify/failed": 0.0, "notify/waiting": 0.0}
    assert make.said == []


def test_only_what_was_asked_for_is_told(make):
    with Receiver() as receiver:
        notifier = make(receiver, on=("rollback",))
        alarm(notifier, 3)
        notifier.event("rolled back", step=2, was=4, branch="b1", version=2, rule="kl_update", reason="too far")
        notifier.close()
    assert [body["kind"] for body in receiver.bodies()] == ["rollback"]


def test_a_busy_receiver_is_tried_again_with_the_same_key(make):
    with Receiver(answers=[(503, "busy"), (500, ""), (408, ""), (429, "")]) as receiver:
        notifier = make(receiver)
        alarm(notifier, 3)
        receiver.wait(5)
        until(lambda: notifier.figures()["notify/sent"] == 1)
    assert len({body["key"] for body in receiver.bodies()}) == 1
    [said] = make.said
    assert "HTTP 503: busy; it is tried again" in said


@pytest.mark.parametrize("kind", ["dingtalk", "feishu", "wecom"])
def test_an_answer_of_200_with_a_code_is_no_delivery(make, kind):
    name = "code" if kind == "feishu" else "errcode"
    busy = {"dingtalk": 130101, "feishu": 11232, "wecom": 45009}[kind]
    answers = [(200, json.dumps({name: busy})), (200, json.dumps({name: 310000, "errmsg": "no", "msg": "no"}))]
    with Receiver(kind, answers) as receiver:
        notifier = make(receiver)
        alarm(notifier, 3)
        alarm(notifier, 4)
        receiver.wait(3)
        until(lambda: notifier.figures()["notify/waiting"] == 0)
    assert receiver.bodies()[0] == receiver.bodies()[1] or kind == "feishu"
    assert notifier.figures() == {"notify/sent": 1.0, "notify/failed": 1.0, "notify/waiting": 0.0}
    assert any("code 310000: no" in line for line in make.said)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410])
def test_a_refusal_is_not_repeated_but_counted_and_said_once(make, status):
    with Receiver(answers=[(status, "no_service")] * 2) as receiver:
        notifier = make(receiver)
        alarm(notifier, 3)
        alarm(notifier, 4)
        alarm(notifier, 5)
        notifier.close()
    assert steps(receiver) == [3, 4, 5]
    assert notifier.figures() == {"notify/sent": 1.0, "notify/failed": 2.0, "notify/waiting": 0.0}
    [said] = make.said
    assert f"HTTP {status}: no_service" in said


def test_retry_after_is_honoured(make):
    with Receiver(answers=[(429, "", {"Retry-After": "1"})]) as receiver:
        notifier = make(receiver)
        started = time.monotonic()
        alarm(notifier, 3)
        receiver.wait(2)
        assert time.monotonic() - started >= 1


@pytest.mark.parametrize(
    ("said", "seconds"),
    [("3", 3.0), ("0.5", 0.5), ("-1", 0.0), ("99999", 3600.0), ("soon", None), ("nan", None), (None, None), ("", None)],
)
def test_what_retry_after_says(said, seconds):
    assert notify_http._wait(said) == seconds


def test_retry_after_may_be_a_date():
    from email.utils import formatdate

    assert 50 < notify_http._wait(formatdate(time.time() + 60, usegmt=True)) <= 60


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(make, status):
    with Receiver() as other, Receiver(answers=[(status, "", {"Location": other.url})]) as receiver:
        notifier = make(receiver)
        alarm(notifier, 3)
        notifier.close()
        assert other.got == []
    assert notifier.figures()["notify/failed"] == 1
    assert f"HTTP {status}: it redirects to another address" in make.said[0]


def test_an_endless_answer_is_read_only_so_far(make):
    with Receiver(answers=[(200, "x" * 1_000_000)]) as receiver:
        notifier = make(receiver)
        alarm(notifier, 3)
        notifier.close()
    assert notifier.figures()["notify/sent"] == 1


def test_no_more_than_a_service_takes_are_sent_in_a_minute(make, monkeypatch):
    monkeypatch.setattr(notify, "MINUTE", 3600.0)
    with Receiver("wecom") as receiver:
        notifier = make(receiver, at_the_end=0.1)
        for step in range(22):
            alarm(notifier, step)
        receiver.wait(20)
        until(lambda: notifier.figures()["notify/sent"] == 20)
        notifier.close()
        assert len(receiver.got) == 20
        assert notifier.figures()["notify/waiting"] == 2


# -------------------------------------------------------------------------------------------------- nothing else suffers
def test_a_receiver_that_hangs_does_not_hold_the_training_thread(make):
    released = threading.Event()

    def hang(_):
        released.wait(20)
        return 204, ""

    with Receiver(answers=[hang]) as receiver:
        notifier = make(receiver, at_the_end=0.05)
        alarm(notifier, 3)
        receiver.wait(1)
        alarm(notifier, 4)  # while the first one hangs
        notifier.close()
        assert notifier.figures() == {"notify/sent": 0.0, "notify/failed": 0.0, "notify/waiting": 2.0}
        released.set()
        alarm(notifier, 5)
        receiver.wait(3)
        until(lambda: notifier.figures()["notify/waiting"] == 0)
    assert steps(receiver) == [3, 4, 5]


def test_nothing_is_sent_after_the_end_until_there_is_more_to_tell(make):
    with Receiver(answers=[(503, "", {"Retry-After": "0.2"})]) as receiver:
        notifier = make(receiver, at_the_end=0.0)
        alarm(notifier, 3)
        receiver.wait(1)
        notifier.close()
        [courier] = notifier.couriers
        until(lambda: courier._thread is None)
        assert len(receiver.got) == 1
        alarm(notifier, 4)
        receiver.wait(3)
    assert steps(receiver) == [3, 3, 4]


def test_one_that_does_not_answer_in_time_is_tried_again(make):
    released = threading.Event()
    with Receiver(answers=[lambda _: (released.wait(20), (204, ""))[1]]) as receiver:
        notifier = make(receiver, timeout_seconds=0.2)
        alarm(notifier, 3)
        receiver.wait(2)
        released.set()
        until(lambda: notifier.figures()["notify/sent"] == 1)
    assert "no answer within 0.2 s" in make.said[0]


def test_nobody_there_is_said_once_and_the_end_waits_no_longer_than_an_attempt(make):
    notifier = make("http://127.0.0.1:9/hook", at_the_end=30.0)
    alarm(notifier, 3)
    started = time.monotonic()
    notifier.close()
    assert notifier.figures()["notify/waiting"] == 1
    assert time.monotonic() - started < 15
    [said] = make.said
    assert "127.0.0.1:9: Connection refused; it is tried again" in said


def test_what_is_not_sent_is_sent_at_the_next_start_and_not_announced_again(make):
    first = make("http://127.0.0.1:9/hook")
    alarm(first, 3)
    first.close()
    with Receiver() as receiver:
        second = make(receiver, process="2")
        alarm(second, 3)  # the run was resumed, and its third step came again
        alarm(second, 4)
        second.close()
        third = make(receiver, process="3")
        alarm(third, 4)
        alarm(third, 5)
        third.close()
    assert steps(receiver) == [3, 4, 5]


def test_a_full_disk_does_not_keep_a_notification_back(make, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    with Receiver() as receiver:
        notifier = make(receiver)
        monkeypatch.setattr(disk, "write", full)
        notifier.event("save failed", step=3, reason="No space left on device")
        notifier.close()
    assert [body["kind"] for body in receiver.bodies()] == ["save_failed"]
    assert notifier.figures() == {"notify/sent": 1.0, "notify/failed": 0.0, "notify/waiting": 0.0}
    assert "cannot be written down: No space left on device; it is sent from memory" in make.said[0]


def test_a_letter_of_another_version_is_left_out_and_counted(make, tmp_path):
    Outbox(tmp_path / "outbox").put("a", {"unknown": 1})
    with Receiver() as receiver:
        notifier = make(receiver)
        alarm(notifier, 3)
        notifier.close()
    assert steps(receiver) == [3]
    assert notifier.figures()["notify/failed"] == 1


def test_it_can_be_told_more_after_it_was_closed(make):
    with Receiver() as receiver:
        notifier = make(receiver)
        notifier.close()
        alarm(notifier, 3)
        notifier.close()
        monitors.tell_finished(notifier, step=9, outcome="all steps done: reward 0.4 -> 0.9")
    assert [body["kind"] for body in receiver.bodies()] == ["alarm", "finished"]
    assert receiver.bodies()[1]["text"] == "all steps done: reward 0.4 -> 0.9"


@pytest.mark.parametrize(
    ("code", "kinds"), [(1, ["failed"]), (3, ["stop"]), (4, ["failed"]), (75, []), (130, ["failed"])]
)
def test_how_a_process_ends_is_told(make, code, kinds):
    with Receiver() as receiver:
        notifier = make(receiver)
        monitors.tell_failed(notifier, code=code, cause="StorageError: disk full", what_to_do="free space")
    assert [body["kind"] for body in receiver.bodies()] == kinds
    if kinds == ["failed"]:
        assert receiver.bodies()[0]["title"] == f"The run failed with exit code {code}"
        assert receiver.bodies()[0]["text"] == "StorageError: disk full. What to do: free space."
        assert receiver.bodies()[0]["facts"]["code"] == code


# ---------------------------------------------------------------------------------------------------------- the address
def test_the_address_is_read_at_each_use(make, monkeypatch):
    with Receiver() as old, Receiver() as new:
        notifier = make(old)
        alarm(notifier, 3)
        old.wait(1)
        monkeypatch.setenv("THE_HOOK", new.url)
        alarm(notifier, 4)
        notifier.close()
    assert (steps(old), steps(new)) == ([3], [4])


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("ftp://host/a/path", "is no address"),
        ("file:///etc/passwd", "is no address"),
        ("https:///a/path/of/01", "is no address"),
        ("https://host/a b c d", "is no address"),
        ("https://host:port/abc", "is no address"),
        ("https://me:word@host/a", "has a user or password in it"),  # pragma: allowlist secret
    ],
)
def test_what_is_no_address_is_refused_without_being_repeated(monkeypatch, value, what):
    monkeypatch.setenv("THE_HOOK", value)
    with pytest.raises(ConfigError) as caught:
        notify_http.address(Secret("${env:THE_HOOK}"), "observe.webhook.url")
    assert what in str(caught.value)
    assert value not in str(caught.value)


def test_no_part_of_the_address_is_shown_in_what_is_said(make):
    token = "a-long-token-0123456789"  # of every receiver's path
    with Receiver(answers=[(404, f"no hook /hook/{token} here")]) as receiver:
        notifier = make(receiver)
        alarm(notifier, 3)
        notifier.close()
    assert token not in secrets.redact(make.said[0])
    assert token not in secrets.redact(f"see {receiver.url}")


def test_a_secret_stands_in_no_notification(make, monkeypatch, tmp_path):
    monkeypatch.setenv("SOME_API_KEY", "never-to-be-seen-0123")
    with Receiver() as receiver:
        notifier = make(receiver)
        cause = "RewardError: the judge said 401 to never-to-be-seen-0123"
        monitors.tell_failed(notifier, code=2, cause=cause, what_to_do="mend it")
    assert b"never-to-be-seen" not in receiver.got[0]["body"]
    assert "${env:SOME_API_KEY}" in receiver.bodies()[0]["text"]


def test_two_threads_may_tell_at_once(make):
    with Receiver() as receiver:
        notifier = make(receiver)
        threads = [threading.Thread(target=alarm, args=(notifier, step)) for step in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        receiver.wait(20)
        until(lambda: notifier.figures()["notify/waiting"] == 0)
    assert sorted(steps(receiver)) == list(range(20))
