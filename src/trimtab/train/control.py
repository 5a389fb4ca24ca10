"""SIGTERM and SIGINT end a run at the next step boundary, saved; a second SIGINT ends it at once."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from types import FrameType
from typing import Any

from trimtab.errors import GuardError
from trimtab.train.ranks import Ranks
from trimtab.types import Verdict


class NoControl:
    """Nobody asks anything: for a look at a run that is not trained."""

    def should_stop(self) -> str | None:
        return None

    def apply(self, run: Any) -> Any:
        return run

    def roll_back(self, run: Any, verdict: Verdict) -> Any:
        raise GuardError(verdict.reason)


class SignalControl(NoControl):
    """Turns signals into a wish that the loop asks for. Use as a context manager, in the main thread.

    On several ranks the wish of one is everybody's, so that all leave the loop at the same step.
    """

    def __init__(self, ranks: Ranks, numbers: Sequence[int] = (signal.SIGTERM, signal.SIGINT)) -> None:
        self._ranks = ranks
        self._numbers = numbers
        self._wish: str | None = None
        self._previous: dict[int, object] = {}

    def should_stop(self) -> str | None:
        return next((wish for wish in self._ranks.gather(self._wish) if wish), None)

    def __enter__(self) -> SignalControl:
        for number in self._numbers:
            self._previous[number] = signal.signal(number, self._notice)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            # Who has asked is heard; asking again must not end the process before it has said why it ends.
            is_heard = number == signal.SIGTERM and self._wish == "SIGTERM"
            signal.signal(number, _heard if is_heard else handler)  # type: ignore[arg-type]

    def _notice(self, number: int, _: FrameType | None) -> None:
        if self._wish is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._wish = signal.Signals(number).name


def _heard(_: int, __: FrameType | None) -> None:
    """Nothing; and not `SIG_IGN`, which a program that this process starts would take over."""
