"""The process that calls reward functions. Speaks JSON, a line a message, over the pipes that its parent holds.

Started as `python -m trimtab.rewards.worker`. What a reward function prints goes to stderr, not into the answers.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from trimtab import secrets
from trimtab.rewards import rules


def resolve(name: str, options: dict[str, Any]) -> Callable[..., Any]:
    """A built-in rule, or the function behind `module:function`."""
    if name in rules.RULES:
        rule: Callable[..., Any] = rules.make(name, options)
        return rule
    module_name, _, function_name = name.partition(":")
    function = getattr(importlib.import_module(module_name), function_name)
    if not callable(function):
        raise TypeError(f"{name} is not callable")
    return function  # type: ignore[no-any-return]


def plain_values(values: Any, count: int) -> list[float | None]:
    """What a reward function returned, as numbers and None.

    Raises:
        ValueError: not one finite number or None for each of `count` completions.
    """
    if (
        isinstance(values, str | bytes | dict | set | frozenset)
        or not hasattr(values, "__len__")
        or not hasattr(values, "__iter__")
    ):
        raise ValueError(f"returned {type(values).__name__}, expected a list of {count} numbers")
    if len(values) != count:
        raise ValueError(f"returned {len(values)} values for {count} completions")
    return [_plain(value, place) for place, value in enumerate(values)]


MAX_REWARD = 3.4e38
"""Rewards become float32."""


def _plain(value: Any, place: int) -> float | None:
    if (hasattr(value, "item") and getattr(value, "size", 1) in (1, ())) or hasattr(value, "numel"):
        value = value.item()
    if value is None:
        return None
    if not isinstance(value, int | float):
        raise ValueError(f"value {place} is {type(value).__name__} {str(value)[:40]!r}, expected a number or None")  # noqa: TRY004
    if not math.isfinite(value):
        raise ValueError(f"value {place} is {value}, expected a finite number or None")
    if abs(value) > MAX_REWARD:
        raise ValueError(f"value {place} is {float(value):g}, expected a number of at most {MAX_REWARD:g} or None")
    return float(value)


def serve(requests: Any, answers: Any) -> None:
    """Answer requests until the pipe closes."""
    functions: dict[str, Callable[..., Any]] = {}
    for line in requests:
        request = json.loads(line)
        try:
            name = json.dumps([request["name"], request["options"]], sort_keys=True)
            if name not in functions:
                functions[name] = resolve(request["name"], request["options"])
            if request.get("load_only"):
                answer: dict[str, Any] = {"values": []}
            else:
                found = functions[name](
                    prompts=request["prompts"], completions=request["completions"], **request["columns"]
                )
                answer = {"values": plain_values(found, len(request["completions"]))}
        except Exception as error:
            answer = {"error": secrets.redact(f"{type(error).__name__}: {error}")[:2000]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the run at the next step; until then it needs rewards
    sys.path[:0] = json.loads(sys.argv[1])
    for reference in json.loads(sys.argv[2]):
        secrets.watch(secrets.Secret(reference))
    secrets.guard_console()
    serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
