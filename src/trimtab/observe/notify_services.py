"""What each service wants to be told, and what it says when it has taken a message.

A service is a function from a notification to a JSON body within its limits, and a function from an answer to a verdict:
DingTalk, Feishu and WeCom answer 200 with a code in the body, Slack 200 with `ok`. What they are shown is plain text in
their markup, with the characters escaped that would mention people or make links.

Sources: Slack "Sending messages using incoming webhooks" and "Block Kit: blocks"; DingTalk "Custom robot access";
Feishu "Custom bot guide"; WeCom "Group robot configuration".
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit, urlunsplit

from trimtab.observe.notify_messages import Notification

HEADER_CHARACTERS = 150
"""Of a Slack header block."""
BLOCK_CHARACTERS = 3000
"""Of the text of a Slack section block."""
MOST_BLOCKS = 5
"""Of text in a message to Slack, which takes 50 but shows few."""
DINGTALK_BYTES = 20_000
FEISHU_BYTES = 20 << 10
WECOM_BYTES = 4096
"""Of the markdown's content, UTF-8."""
COLOURS = {"critical": "red", "warning": "orange", "good": "green", "info": "blue"}
"""Templates of a Feishu card's header."""
WECOM_COLOURS = {"critical": "warning", "warning": "warning", "good": "info", "info": "comment"}
MARKS = {"critical": "🔴", "warning": "🟠", "good": "🟢", "info": "🔵"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What an answer means."""

    is_taken: bool
    is_final: bool = False
    """Of a message that was not taken: sending it again would not help."""
    reason: str = ""


TAKEN = Verdict(is_taken=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """How one kind of receiver is spoken to."""

    body: Callable[[Notification], dict[str, Any]]
    judge: Callable[[str], Verdict]
    """Of the text of an answer with a status of 200 to 299."""
    a_minute: int | None = None
    """Messages that it takes in a minute from one robot; more would close it for a while."""
    sign: Callable[[str, dict[str, Any], str, float], tuple[str, dict[str, Any]]] | None = None
    """Address and body with a signature: address, body, secret, unix time."""


# -------------------------------------------------------------------------------------------------------------- bodies
def json_body(note: Notification) -> dict[str, Any]:
    return {"version": 1, **note.as_document()}


def slack_body(note: Notification) -> dict[str, Any]:
    title = cut_characters(f"{MARKS[note.severity]} {note.title}", HEADER_CHARACTERS)
    pieces = _pieces(note.text, BLOCK_CHARACTERS)
    blocks: list[dict[str, Any]] = [{"type": "header", "text": {"type": "plain_text", "text": title, "emoji": True}}]
    blocks += [{"type": "section", "text": {"type": "mrkdwn", "text": piece}} for piece in pieces]
    footer = cut_characters(slack_text(note.footer), BLOCK_CHARACTERS)
    blocks.append({"type": "context", "elements": [{"type": "mrkdwn", "text": footer}]})
    return {"text": cut_characters(slack_text(f"{note.title} ({note.run})"), BLOCK_CHARACTERS), "blocks": blocks}


def dingtalk_body(note: Notification) -> dict[str, Any]:
    title = f"Trimtab: {note.title}"
    head = f"### {MARKS[note.severity]} {markdown_text(title)}\n\n"
    foot = f"\n\n> {markdown_text(note.footer)}"
    text = markdown_text(note.text).replace("\n", "\n\n")

    def body(words: str) -> dict[str, Any]:
        return {"msgtype": "markdown", "markdown": {"title": cut_characters(title, 100), "text": head + words + foot}}

    return _fitted(body, text, DINGTALK_BYTES)


def feishu_body(note: Notification) -> dict[str, Any]:
    def body(words: str) -> dict[str, Any]:
        elements: list[dict[str, Any]] = (
            [{"tag": "div", "text": {"tag": "plain_text", "content": words}}] if words else []
        )
        footer = {"tag": "note", "elements": [{"tag": "plain_text", "content": note.footer}]}
        title = {"tag": "plain_text", "content": cut_characters(f"Trimtab: {note.title}", HEADER_CHARACTERS)}
        header = {"title": title, "template": COLOURS[note.severity]}
        card = {"config": {"wide_screen_mode": True}, "header": header, "elements": [*elements, footer]}
        return {"msg_type": "interactive", "card": card}

    return _fitted(body, note.text, FEISHU_BYTES - 200)  # what is left is for timestamp and signature


def wecom_body(note: Notification) -> dict[str, Any]:
    title = cut_characters(markdown_text(f"Trimtab: {note.title}"), HEADER_CHARACTERS)
    head = f'### <font color="{WECOM_COLOURS[note.severity]}">{title}</font>\n'
    foot = f'\n> <font color="comment">{cut_bytes(markdown_text(note.footer), 500)}</font>'
    room = WECOM_BYTES - len((head + foot).encode())
    content = head + cut_bytes(markdown_text(note.text), room) + foot
    return {"msgtype": "markdown", "markdown": {"content": content}}


def slack_text(text: str) -> str:
    """Slack's three escapes, without which a text could mention a channel or be a link.

    >>> slack_text("a < b & <!channel>")
    'a &lt; b &amp; &lt;!channel&gt;'
    """
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def markdown_text(text: str) -> str:
    """Without the characters that would mention people, make links or pictures; they become ones that look alike.

    >>> markdown_text("<@all> ![x](http://a)")
    '＜@all＞ !［x］(http://a)'
    """
    return text.translate(_ALIKE)


_ALIKE = str.maketrans({"<": "＜", ">": "＞", "[": "［", "]": "］"})


def cut_characters(text: str, most: int) -> str:
    """At most so many characters; of a text that was escaped no escape is cut in two.

    >>> cut_characters("abcdef", 4), cut_characters("a&amp;b", 5)
    ('abc…', 'a…')
    """
    if len(text) <= most:
        return text
    kept = text[: most - 1]
    start = kept.rfind("&", max(0, len(kept) - 5))
    if start >= 0 and ";" not in kept[start:]:
        kept = kept[:start]
    return kept + "…"


def cut_bytes(text: str, most: int) -> str:
    """At most so many bytes of UTF-8, no character of it cut in two.

    >>> cut_bytes("数学", 6), cut_bytes("数学家", 8)
    ('数学', '数…')
    """
    data = text.encode()
    if len(data) <= most:
        return text
    mark = "…".encode()
    return data[: max(0, most - len(mark))].decode(errors="ignore") + "…"


def _pieces(text: str, most: int) -> list[str]:
    """The beginning of a text in escaped pieces that fit into Slack's blocks, cut where a line or a sentence ends."""
    pieces: list[str] = []
    while text and len(pieces) < MOST_BLOCKS:
        room = _room(text, most)
        if room < len(text):
            end = max(text.rfind(mark, room // 2, room) for mark in ("\n", "; ", "；"))
            room = end + 1 if end >= 0 else room
        pieces.append(slack_text(text[:room]))
        text = text[room:]
    return pieces


def _room(text: str, most: int) -> int:
    """How many characters of a text make at most so many when they are escaped."""
    size = 0
    for number, character in enumerate(text):
        size += len(slack_text(character))
        if size > most:
            return number
    return len(text)


def _fitted(body: Callable[[str], dict[str, Any]], text: str, most: int) -> dict[str, Any]:
    """The body with as much of the text as fits into so many bytes of JSON."""
    room = len(text.encode())
    while (over := len(encoded(body(cut_bytes(text, room)))) - most) > 0 and room > 0:
        room = max(0, room - over)
    return body(cut_bytes(text, room))


def encoded(body: Mapping[str, Any]) -> bytes:
    """As it is sent."""
    return json.dumps(body, ensure_ascii=False).encode()


# ----------------------------------------------------------------------------------------------------------- signatures
def dingtalk_sign(url: str, body: dict[str, Any], secret: str, now: float) -> tuple[str, dict[str, Any]]:
    """`timestamp` in milliseconds and `sign` in the address: HMAC-SHA256 under the secret of time, line end, secret."""
    stamp = str(round(now * 1000))
    digest = hmac.new(secret.encode(), f"{stamp}\n{secret}".encode(), hashlib.sha256).digest()
    return with_query(url, timestamp=stamp, sign=base64.b64encode(digest).decode()), body


def feishu_sign(url: str, body: dict[str, Any], secret: str, now: float) -> tuple[str, dict[str, Any]]:
    """`timestamp` in seconds and `sign` in the body: HMAC-SHA256 of nothing under time, line end, secret."""
    stamp = str(round(now))
    digest = hmac.new(f"{stamp}\n{secret}".encode(), b"", hashlib.sha256).digest()
    return url, {"timestamp": stamp, "sign": base64.b64encode(digest).decode(), **body}


def json_signature(secret: str, stamp: str, data: bytes) -> str:
    """What `X-Trimtab-Signature` has: HMAC-SHA256 under the secret of time, full stop, body; hexadecimal.

    >>> json_signature("a secret of mine", "1700000000", b"{}")[:12]
    'sha256=1a68b'
    """
    return f"sha256={hmac.new(secret.encode(), stamp.encode() + b'.' + data, hashlib.sha256).hexdigest()}"


def with_query(url: str, **values: str) -> str:
    """The address with more in its query.

    >>> with_query("https://a/send?access_token=1", sign="a+b=")
    'https://a/send?access_token=1&sign=a%2Bb%3D'
    """
    parts = urlsplit(url)
    query = "&".join(part for part in (parts.query, urlencode(values)) if part)
    return urlunsplit(parts._replace(query=query))


# --------------------------------------------------------------------------------------------------------------- answers
def any_answer(_: str) -> Verdict:
    return TAKEN


def slack_answer(text: str) -> Verdict:
    if text.strip() == "ok":
        return TAKEN
    return Verdict(is_taken=False, is_final=True, reason=text.strip()[:200] or "an empty answer, expected `ok`")


def _coded(
    code_names: tuple[str, ...], message_names: tuple[str, ...], later: frozenset[int]
) -> Callable[[str], Verdict]:
    """A judge of answers that have a code in them: 0 is taken, some codes mean that it may be tried later."""

    def judge(text: str) -> Verdict:
        try:
            answer = json.loads(text)
        except ValueError:
            answer = None
        found = [answer[name] for name in code_names if name in answer] if isinstance(answer, dict) else []
        if not found or not isinstance(found[0], int):
            return Verdict(
                is_taken=False, reason="the answer is not the service's; a proxy or another server may have spoken"
            )
        if found[0] == 0:
            return TAKEN
        message = next((str(answer[name]) for name in message_names if answer.get(name)), "")
        return Verdict(is_taken=False, is_final=found[0] not in later, reason=f"code {found[0]}: {message}"[:300])

    return judge


SERVICES: Mapping[str, Service] = {
    "json": Service(body=json_body, judge=any_answer),
    "slack": Service(body=slack_body, judge=slack_answer, a_minute=60),
    "dingtalk": Service(
        body=dingtalk_body,
        judge=_coded(("errcode",), ("errmsg",), frozenset({-1, 130101, 410100})),  # busy; 20 a minute, twice
        a_minute=20,
        sign=dingtalk_sign,
    ),
    "feishu": Service(
        body=feishu_body,
        judge=_coded(
            ("code", "StatusCode"), ("msg", "StatusMessage"), frozenset({11232, 11233, 99991400})
        ),  # too often
        a_minute=100,
        sign=feishu_sign,
    ),
    "wecom": Service(
        body=wecom_body,
        judge=_coded(("errcode",), ("errmsg",), frozenset({-1, 45009, 45033})),  # busy, too often, too many at once
        a_minute=20,
    ),
}


def signed(
    name: str, url: str, body: dict[str, Any], secret: str | None, now: float | None = None
) -> tuple[str, bytes, dict[str, str]]:
    """Address, bytes and headers of a message to a service, signed if there is a secret."""
    now = time.time() if now is None else now
    service, headers = SERVICES[name], {"Content-Type": "application/json; charset=utf-8"}
    if secret is not None and service.sign is not None:
        url, body = service.sign(url, body, secret, now)
    data = encoded(body)
    if secret is not None and name == "json":
        stamp = str(round(now))
        headers |= {"X-Trimtab-Timestamp": stamp, "X-Trimtab-Signature": json_signature(secret, stamp, data)}
    return url, data, headers
