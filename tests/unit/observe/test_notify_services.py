"""What each service is sent fits its documented form and limits, is signed as it says, and its answers are understood."""

import base64
import hashlib
import hmac
import json
import time
from urllib.parse import parse_qs, urlsplit

import pytest

from trimtab.observe import notify_services as services
from trimtab.observe.notify_messages import Editor, Subject
from trimtab.observe.notify_services import SERVICES, signed

SUBJECT = Subject(name="run <@all>", run_id="0f", algorithm="grpo", max_steps=100)


def alarm(text="kl/update is 0.07 nats, over 0.05. Likely: <!channel> [x](http://a) & more", language="en"):
    editor = Editor(SUBJECT, language=language)
    editor.see(12, {"reward/mean": 0.53149, "loss/total": 0.1, "time/step": 1.0})
    facts = {"rule": "kl_update", "level": "act", "step": 12, "since": 11, "figure": "kl/update", "value": 0.07}
    return editor.notification("alarm", {**facts, "limit": 0.05, "text": text, "then": "roll_back"}, version=3)


LONG = ("数学 & <b> " * 3000)[:20_000]
TEXTS = {"short": alarm().text, "long": "x" * 50_000, "wide": LONG, "escapes": "&<>" * 4000, "empty": ""}


def note_with(text):
    import dataclasses

    return dataclasses.replace(alarm(), text=text)


def test_the_own_form_has_everything_by_name():
    body = services.json_body(alarm())
    assert body["version"] == 1
    assert body["kind"] == "alarm"
    assert body["severity"] == "critical"
    assert (body["run"], body["run_id"], body["algorithm"]) == ("run <@all>", "0f", "grpo")
    assert (body["step"], body["max_steps"], body["config_version"]) == (12, 100, 3)
    assert body["facts"]["rule"] == "kl_update"
    assert (body["facts"]["value"], body["facts"]["limit"], body["facts"]["since"]) == (0.07, 0.05, 11)
    assert body["figures"] == {"reward/mean": 0.53149, "loss/total": 0.1}
    assert len(body["key"]) == 32
    assert "The run goes back to an earlier checkpoint." in body["text"]
    json.dumps(body)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_slack(text):
    body = services.slack_body(note_with(text))
    assert set(body) == {"text", "blocks"}
    assert 0 < len(body["text"]) <= 3000
    assert len(body["blocks"]) <= 50
    head, *sections, foot = body["blocks"]
    assert head["type"] == "header"
    assert head["text"]["type"] == "plain_text"
    assert len(head["text"]["text"]) <= 150
    for section in sections:
        assert section["type"] == "section"
        assert section["text"]["type"] == "mrkdwn"
        assert 1 <= len(section["text"]["text"]) <= 3000
    assert foot["type"] == "context"
    assert foot["elements"][0]["type"] == "mrkdwn"
    shown = json.dumps(body["blocks"][1:]) + body["text"]
    assert "<" not in shown
    assert ">" not in shown
    for piece in [section["text"]["text"] for section in sections]:  # every & begins a whole escape
        assert piece.replace("&amp;", "").replace("&lt;", "").replace("&gt;", "").count("&") == 0


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_dingtalk(text):
    body = services.dingtalk_body(note_with(text))
    assert set(body) == {"msgtype", "markdown"}
    assert body["msgtype"] == "markdown"
    assert set(body["markdown"]) == {"title", "text"}
    assert body["markdown"]["title"].startswith("Trimtab: ")
    assert len(services.encoded(body)) <= 20_000
    assert "Trimtab" in body["markdown"]["text"]
    assert "<" not in body["markdown"]["text"]


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_feishu(text):
    url, data, _ = signed("feishu", "https://a/b", services.feishu_body(note_with(text)), "a secret of mine")
    assert url == "https://a/b"
    assert len(data) <= 20 << 10
    body = json.loads(data)
    assert body["msg_type"] == "interactive"
    assert body["card"]["header"]["title"]["tag"] == "plain_text"
    assert body["card"]["header"]["template"] == "red"
    *divs, note = body["card"]["elements"]
    assert all(div["tag"] == "div" and div["text"]["tag"] == "plain_text" for div in divs)
    assert note["tag"] == "note"
    assert len(divs) == bool(text)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_wecom(text):
    body = services.wecom_body(note_with(text))
    assert set(body) == {"msgtype", "markdown"}
    assert body["msgtype"] == "markdown"
    content = body["markdown"]["content"]
    assert len(content.encode()) <= 4096
    assert content.startswith('### <font color="warning">Trimtab: ')
    assert content.count("<") == 4  # two font elements, and nothing that the text has brought along
    assert "run ＜@all＞" in content


def test_as_much_of_a_long_text_is_sent_as_fits():
    assert len(services.encoded(services.dingtalk_body(note_with(LONG)))) > 19_000
    assert len(services.encoded(services.feishu_body(note_with(LONG)))) > 19_000
    assert len(services.wecom_body(note_with(LONG))["markdown"]["content"].encode()) > 4000
    slack = services.slack_body(note_with(LONG))["blocks"][1:-1]
    assert sum(len(section["text"]["text"]) for section in slack) > 12_000


def test_dingtalk_is_signed_in_the_address():
    url, data, _ = signed("dingtalk", "https://a/send?access_token=t", {"msgtype": "markdown"}, "SECabc", 1700000000.5)
    query = parse_qs(urlsplit(url).query)
    assert query["access_token"] == ["t"]
    assert query["timestamp"] == ["1700000000500"]
    wanted = hmac.new(b"SECabc", b"1700000000500\nSECabc", hashlib.sha256).digest()
    assert query["sign"] == [base64.b64encode(wanted).decode()]
    assert json.loads(data) == {"msgtype": "markdown"}


def test_feishu_is_signed_in_the_body():
    _, data, _ = signed("feishu", "https://a/b", {"msg_type": "interactive"}, "abc", 1700000000.4)
    wanted = hmac.new(b"1700000000\nabc", b"", hashlib.sha256).digest()
    assert json.loads(data) == {
        "timestamp": "1700000000",
        "sign": base64.b64encode(wanted).decode(),
        "msg_type": "interactive",
    }


def test_the_own_form_is_signed_over_time_and_body():
    _, data, headers = signed("json", "https://a/b", {"a": 1}, "abcdefgh", 1700000000.0)
    wanted = hmac.new(b"abcdefgh", b"1700000000." + data, hashlib.sha256).hexdigest()
    assert headers["X-Trimtab-Timestamp"] == "1700000000"
    assert headers["X-Trimtab-Signature"] == f"sha256={wanted}"


@pytest.mark.parametrize("name", SERVICES)
def test_without_a_secret_nothing_is_signed(name):
    url, data, headers = signed(name, "https://a/b", {"a": 1}, None)
    assert (url, json.loads(data)) == ("https://a/b", {"a": 1})
    assert set(headers) == {"Content-Type"}


ANSWERS = [
    ("json", "whatever", True, False),
    ("slack", "ok", True, False),
    ("slack", "no_text", False, True),
    ("slack", "", False, True),
    ("dingtalk", '{"errcode":0,"errmsg":"ok"}', True, False),
    ("dingtalk", '{"errcode":310000,"errmsg":"sign not match"}', False, True),
    ("dingtalk", '{"errcode":130101,"errmsg":"send too fast"}', False, False),
    ("dingtalk", "<html>a proxy</html>", False, False),
    ("dingtalk", "[1]", False, False),
    ("feishu", '{"code":0,"msg":"success"}', True, False),
    ("feishu", '{"StatusCode":0,"StatusMessage":"success"}', True, False),
    ("feishu", '{"code":19021,"msg":"sign match fail or timestamp is not within one hour"}', False, True),
    ("feishu", '{"code":11232,"msg":"frequency limited"}', False, False),
    ("wecom", '{"errcode":0,"errmsg":"ok"}', True, False),
    ("wecom", '{"errcode":93000,"errmsg":"invalid webhook url"}', False, True),
    ("wecom", '{"errcode":45009,"errmsg":"api freq out of limit"}', False, False),
]


@pytest.mark.parametrize(("name", "text", "is_taken", "is_final"), ANSWERS)
def test_an_answer_is_understood(name, text, is_taken, is_final):
    verdict = SERVICES[name].judge(text)
    assert (verdict.is_taken, verdict.is_final) == (is_taken, is_final)
    assert bool(verdict.reason) != is_taken


def test_a_chinese_run_is_spoken_of_in_chinese():
    note = alarm("单步 KL 过大", language="zh")
    assert note.title.startswith("警报：")
    assert note.text == "单步 KL 过大\n训练将回退到更早的检查点。"


def test_the_key_is_that_of_the_event_and_not_of_the_moment():
    first, second = alarm("one text"), alarm("another text")
    assert first.key == second.key
    editor = Editor(SUBJECT)
    facts = {"rule": "kl_update", "level": "act", "step": 12, "text": "", "then": "stop"}
    keys = {
        editor.notification("alarm", facts, version=3).key,
        editor.notification("alarm", {**facts, "step": 13}, version=3).key,
        editor.notification("alarm", {**facts, "level": "warn"}, version=3).key,
        editor.notification("alarm", {**facts, "rule": "entropy"}, version=3).key,
        editor.notification("alarm", facts, version=4).key,
        Editor(Subject(name="b", run_id="10", algorithm="grpo", max_steps=1))
        .notification("alarm", facts, version=3)
        .key,
    }
    assert len(keys) == 6
    assert first.key in keys


def test_a_failure_is_another_one_if_its_cause_is_and_a_process_is_interrupted_anew():
    facts = {"code": 4, "what_to_do": "free space"}
    one, other = Editor(SUBJECT, process="1"), Editor(SUBJECT, process="2")

    def key(editor, event, **more):
        return editor.notification(event, {**facts, "step": 3, **more}, version=1).key

    assert key(one, "failed", cause="disk full") == key(other, "failed", cause="disk full")
    assert key(one, "failed", cause="disk full") != key(one, "failed", cause="lost worker")
    assert key(one, "preempted", signal="SIGTERM") != key(other, "preempted", signal="SIGTERM")


def test_saves_that_fail_in_a_row_are_told_of_once():
    editor = Editor(SUBJECT)
    events = ["save failed", "save failed", "saved", "save failed", "saved", "saved"]
    told = [editor.notification(e, {"step": n, "reason": "full"}, version=1) for n, e in enumerate(events)]
    assert [note is not None for note in told] == [True, False, False, True, False, False]


def test_events_that_nobody_needs_to_be_told_of_make_no_notification():
    editor = Editor(SUBJECT)
    for event in ("saved", "finished early", "an event of a later version"):
        assert editor.notification(event, {"step": 1, "reason": "x"}, version=1) is None


def test_a_notification_survives_the_outbox():
    from trimtab.observe.notify_messages import Notification

    note = alarm()
    assert Notification.from_document(json.loads(json.dumps(note.as_document()))) == note


def test_the_time_has_an_offset():
    assert time.strptime(alarm().time, "%Y-%m-%dT%H:%M:%S%z").tm_gmtoff is not None
