"""Work beside the caller's, in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Value = TypeVar("Value")


def beside(work: Callable[[], Value]) -> Future[Value]:
    """Start it; whatever it raises is raised by the future's `result`. The interpreter does not end before it has.

    Where the system gives no thread (memory or processes are short) it is done here.
    """
    future: Future[Value] = Future()
    try:
        threading.Thread(target=_into, args=(future, work), name="trimtab-save").start()
    except RuntimeError:
        _into(future, work)
    return future


def here(work: Callable[[], Value]) -> Future[Value]:
    """The same in the caller's own thread: on return it has ended."""
    future: Future[Value] = Future()
    _into(future, work)
    return future


def _into(future: Future[Value], work: Callable[[], Value]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:  # none may be lost, an interrupt neither
        future.set_exception(error)
