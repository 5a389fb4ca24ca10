"""`builtin:addition`: sums of two numbers from 10 to 99, written lowest digit first as one adds by hand; right or wrong
by arithmetic, so no data need be downloaded.

    47+35=   ->   28        (47 + 35 = 82, lowest digit first)

The demonstrations (`completion`) are those of a careless teacher, who forgets a carry six times in ten: they show the
format and part of the skill, and a model that imitates them is right on about four sums in ten. The `answer` is right.
Every tenth sum, by a hash, is held out for validation and never trained on.

Runs that read preferences get the same sums as they need them: in a pair the right sum is chosen and a wrong one
rejected, the careless teacher's where it is wrong; a single completion is the teacher's, desirable if it is right.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

NAMES = ("builtin:addition",)


FORGOTTEN = 0.6
"""Share of carries that the teacher forgets."""


def rows(required: tuple[str, ...], *, held_out: bool) -> Iterator[dict[str, Any]]:
    """The rows with the columns that are asked for; a row that has no pair or label gets them here."""
    for row in addition(held_out=held_out):
        if "rejected" in required:
            yield {"prompt": row["prompt"], "chosen": row["answer"], "rejected": _wrong(row)}
        elif "label" in required:
            yield {**row, "label": row["completion"] == row["answer"]}
        else:
            yield row


def _wrong(row: dict[str, str]) -> str:
    """The teacher's sum if it is wrong, else the right one with its last digit changed; always the same one."""
    answer = row["answer"]
    if row["completion"] != answer:
        return row["completion"]
    digit = (int(answer[-1]) + 1 + _number(row["prompt"]) % 9) % 10
    return answer[:-1] + str(digit)


def addition(*, held_out: bool) -> Iterator[dict[str, str]]:
    """Rows with `prompt`, `completion` (the careless teacher's) and `answer`.

    >>> next(addition(held_out=False))
    {'prompt': '10+10=', 'completion': '02', 'answer': '02'}
    """
    for a in range(10, 100):
        for b in range(10, 100):
            if (_number(a, b) % 10 == 0) == held_out:
                yield {"prompt": f"{a}+{b}=", "completion": _careless(a, b), "answer": str(a + b)[::-1]}


def _careless(a: int, b: int) -> str:
    """The sum, lowest digit first, with some carries forgotten; always the same ones."""
    digits, carry = "", 0
    for place in (1, 10):
        total = a // place % 10 + b // place % 10 + carry
        carry = total // 10
        if carry and _number(a, b, place) % 1000 < 1000 * FORGOTTEN:
            carry = 0
        digits += str(total % 10)
    return digits + ("1" if carry else "")


def _number(*parts: int | str) -> int:
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "little")
