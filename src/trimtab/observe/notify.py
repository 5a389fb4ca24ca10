"""Tells webhooks of what happens to a run: at least once each, in order, beside training.

A notification is written to the outbox before anybody tries to send it, and removed when the receiver has said that it
has it. Each webhook has a thread of its own, so a slow one delays nobody. Nothing here stops training or makes it wait:
the training thread writes a small file, and at the end of a run waits for a few seconds.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from trimtab.errors import ConfigError
from trimtab.observe import notify_http
from trimtab.observe.notify_http import UnreachableError
from trimtab.observe.notify_messages import Editor, Notification
from trimtab.observe.notify_services import SERVICES, Verdict, signed
from trimtab.observe.settings import Webhook
from trimtab.secrets import redact
from trimtab.types import StepReport

FIRST_WAIT = 1.0
LONGEST_WAIT = 300.0
"""Seconds between attempts: the first pause, doubled at each failure up to this one, each a little longer or shorter."""
AT_THE_END = 5.0
"""Seconds that the end of a run waits for what has not been sent."""
MINUTE = 60.0


class Outbox(Protocol):
    """Letters to one receiver that wait to be sent, in their order."""

    dropped: int

    def __len__(self) -> int: ...

    def put(self, key: str, letter: Mapping[str, Any]) -> bool: ...

    def first(self) -> tuple[str, Mapping[str, Any]] | None: ...

    def settle(self, key: str) -> None: ...


def warn(text: str) -> None:
    print(redact(f"warning: {text}"), file=sys.stderr, flush=True)


def attempt(hook: Webhook, note: Notification, place: str) -> tuple[Verdict, float | None]:
    """Send once; what came of it, and the seconds that the receiver wants to be left alone for."""
    service = SERVICES[hook.format]
    try:
        url = notify_http.address(hook.url, f"{place}.url")
        secret = None if hook.secret is None else hook.secret.read(f"{place}.secret")
        url, data, headers = signed(hook.format, url, service.body(note), secret)
        headers["Idempotency-Key"] = note.key
        answer = notify_http.post(url, data, headers, timeout_seconds=hook.timeout_seconds)
    except ConfigError as error:
        return Verdict(is_taken=False, reason=str(error)), None
    except UnreachableError as error:
        return Verdict(is_taken=False, reason=f"{notify_http.host_of(url)}: {error}"), None
    if 200 <= answer.status < 300:
        return service.judge(answer.text), answer.retry_after
    said = " ".join(answer.text.split())[:200]
    is_final = 300 <= answer.status < 500 and answer.status not in (408, 425, 429)
    what = "it redirects to another address; give that one" if answer.status < 400 else said
    reason = f"{notify_http.host_of(url)}: HTTP {answer.status}{': ' if what else ''}{what}"
    return Verdict(is_taken=False, is_final=is_final, reason=reason), answer.retry_after


class Courier:
    """Takes the notifications for one webhook there, in a thread of its own that lives while there are some."""

    def __init__(
        self,
        hook: Webhook,
        outbox: Outbox,
        *,
        place: str = "observe.webhook",
        say: Callable[[str], None] = warn,
        first_wait: float = FIRST_WAIT,
    ) -> None:
        """
        Args:
            place: the configuration key that messages name.
            say: is told once of each trouble.
            first_wait: seconds before the second attempt.
        """
        self.hook = hook
        self.outbox = outbox
        self.place = place
        self.say = say
        self.first_wait = first_wait
        self.sent = 0
        self.refused = 0
        """Notifications that the receiver will not take, however often."""
        self.unwritten: deque[Notification] = deque(maxlen=100)
        """Those that could not be written down, and are sent from memory."""
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._failures = 0
        self._not_before = 0.0
        self._asked_to_wait = False
        self._is_hurried = False
        self._is_resting = False
        self._sent_at: deque[float] = deque()
        self._said: set[str] = set()

    @property
    def waiting(self) -> int:
        return len(self.outbox) + len(self.unwritten)

    @property
    def failed(self) -> int:
        return self.refused + self.outbox.dropped

    def put(self, note: Notification) -> None:
        """Write it down, and see that it is sent. One whose key is known is not sent again."""
        with self._changed:
            try:
                if not self.outbox.put(note.key, note.as_document()):
                    return
            except OSError as error:  # a full disk is what people most want to be told of
                self._complain(
                    f"a notification cannot be written down: {error.strerror or error}; it is sent from memory"
                )
                self.unwritten.append(note)
            self._wake()

    def start(self) -> None:
        """See to what an earlier process has left."""
        with self._changed:
            if self.waiting:
                self._wake()

    def hurry(self) -> None:
        """Try at once what waits for another attempt; once, and not against the receiver's word."""
        with self._changed:
            self._is_hurried = True
            if not self._asked_to_wait:
                self._not_before = 0.0
            if self.waiting:
                self._wake()

    def rest(self) -> None:
        """Leave what waits where it is, until there is more to send."""
        with self._changed:
            self._is_resting = True
            self._changed.notify_all()

    def wait(self, until: float) -> None:
        """Until nothing waits, nothing can be sent in time, or a moment of the monotonic clock."""

        def is_over() -> bool:
            return self.waiting == 0 or not self._is_hurried or max(self._not_before, self._when_free()) >= until

        with self._changed:
            self._changed.wait_for(is_over, timeout=max(0.0, until - time.monotonic()))
            self._is_hurried = False

    # ------------------------------------------------------------------------------------------------------ the thread
    def _wake(self) -> None:
        self._is_resting = False
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=f"trimtab-{self.place}", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _work(self) -> None:
        while (note := self._next()) is not None:
            try:
                verdict, wait = attempt(self.hook, note, self.place)
            except Exception as error:  # a fault here must not end with a notification that is stuck for ever
                verdict, wait = Verdict(is_taken=False, is_final=True, reason=f"{type(error).__name__}: {error}"), None
            with self._changed:
                self._settle(note, verdict, wait)
                self._changed.notify_all()

    def _next(self) -> Notification | None:
        """The next one to send, when its time has come; None if there is none, and the thread ends."""
        with self._changed:
            while True:
                note = None if self._is_resting else self._first()
                if note is None:
                    self._thread = None
                    self._changed.notify_all()
                    return None
                pause = max(self._not_before, self._when_free()) - time.monotonic()
                if pause <= 0:
                    return note
                self._changed.wait(pause)

    def _first(self) -> Notification | None:
        while (found := self.outbox.first()) is not None:
            key, letter = found
            try:
                return Notification.from_document(letter)
            except TypeError:  # of another version
                self.refused += 1
                self._complain("a notification of another version is left out")
                self._settle_at(key)
        return self.unwritten[0] if self.unwritten else None

    def _when_free(self) -> float:
        """The moment from which on the service takes another message of this minute."""
        most = SERVICES[self.hook.format].a_minute
        while self._sent_at and self._sent_at[0] <= time.monotonic() - MINUTE:
            self._sent_at.popleft()
        return self._sent_at[0] + MINUTE if most is not None and len(self._sent_at) >= most else 0.0

    def _settle(self, note: Notification, verdict: Verdict, wait: float | None) -> None:
        self._sent_at.append(time.monotonic())
        if verdict.is_taken or verdict.is_final:
            self._failures, self._not_before, self._asked_to_wait = 0, 0.0, False
            if verdict.is_taken:
                self.sent += 1
                self._said.discard("unreachable")
            else:
                self.refused += 1
                self._complain(f"a notification was refused and is left out: {verdict.reason}")
            if self.unwritten and self.unwritten[0] is note:
                self.unwritten.popleft()
            else:
                self._settle_at(note.key)
            return
        pause = min(LONGEST_WAIT, self.first_wait * 2**self._failures) * random.uniform(0.75, 1.25)
        self._failures = min(self._failures + 1, 20)
        self._asked_to_wait, self._is_hurried = wait is not None, False
        self._not_before = time.monotonic() + (pause if wait is None else wait)
        self._complain(f"a notification is not sent yet: {verdict.reason}; it is tried again", once="unreachable")

    def _settle_at(self, key: str) -> None:
        try:
            self.outbox.settle(key)
        except OSError as error:
            self._complain(f"that a notification was sent cannot be written down: {error.strerror or error}")

    def _complain(self, text: str, *, once: str = "") -> None:
        if (once or text) not in self._said:
            self._said.add(once or text)
            self.say(f"{self.place} ({self.hook.url}): {text}")


class Notifier:
    """Tells the webhooks of a run's events; a `ports.Recorder`. It can be told more after it was closed."""

    def __init__(
        self, couriers: Sequence[Courier], editor: Editor, *, version: Callable[[], int], at_the_end: float = AT_THE_END
    ) -> None:
        """
        Args:
            version: of the configuration in force.
            at_the_end: seconds that `close` waits for what is not sent.
        """
        self.couriers = list(couriers)
        self.editor = editor
        self.version = version
        self.at_the_end = at_the_end
        for courier in self.couriers:
            courier.start()

    def record(self, report: StepReport) -> None:
        self.editor.see(report.step, report.metrics)

    def event(self, kind: str, **facts: Any) -> None:
        note = self.editor.notification(kind, facts, version=self.version())
        if note is None:
            return
        for courier in self.couriers:
            if note.kind in courier.hook.on:
                courier.put(note)

    def figures(self) -> dict[str, float]:
        """Metrics of sending, for the record of a step."""
        return {
            "notify/sent": float(sum(courier.sent for courier in self.couriers)),
            "notify/failed": float(sum(courier.failed for courier in self.couriers)),
            "notify/waiting": float(sum(courier.waiting for courier in self.couriers)),
        }

    def close(self) -> None:
        """Wait a few seconds for what is not sent; the rest stays in the outbox until there is more to tell."""
        until = time.monotonic() + self.at_the_end
        for courier in self.couriers:
            courier.hurry()
        for courier in self.couriers:
            courier.wait(until)
            courier.rest()
