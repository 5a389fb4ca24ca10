"""The error tree. Each class carries its exit code, a stable contract for job controllers.

TrimtabError                     1   internal fault, or a check that ran and failed
├── UserError                    2   never retry
│   ├── ConfigError                  the configuration; carries every finding of one pass
│   ├── DataError                    a file of prompts or demonstrations
│   ├── ModelError                   a model or tokenizer directory
│   ├── RewardError                  a reward function that failed under `on_error: stop`
│   ├── MissingExtraError            an optional library; names the extra to install
│   ├── OutOfMemoryError             of the computer or a device, even in the smallest pieces of work
│   └── UnmetNeedError               an algorithm was not given a part that it needs
├── NumericalError               3   do not retry blindly
│   └── GuardError                   the guard ended the run
├── StorageError                 4   no good checkpoint, disk full
├── WorkerError                  5   a lost process; retryable
├── RewardUnavailableError       6   retryable
└── Preempted                   75   SIGTERM or SIGINT; state is saved; retry is free
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

LONGEST = 60
"""Characters of a value that a message shows."""


class TrimtabError(Exception):
    """Everything that Trimtab raises on purpose."""

    exit_code: ClassVar[int] = 1


class UserError(TrimtabError):
    exit_code = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fault, as it is shown: `place: what; hint`."""

    place: str
    """`file:line`, `file:line:column`, or the dotted key of a command-line override."""
    what: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.place}: {self.what}" + (f"; {self.hint}" if self.hint else "")


class _FindingsError(UserError):
    """A user error that reports all faults of one pass at once."""

    def __init__(self, findings: list[Finding]) -> None:
        self.findings = findings
        super().__init__("\n".join(str(finding) for finding in findings))


class ConfigError(_FindingsError):
    pass


class DataError(_FindingsError):
    pass


class ModelError(UserError):
    pass


class RewardError(UserError):
    pass


class LockError(UserError):
    pass


class MissingExtraError(UserError):
    pass


class OutOfMemoryError(UserError):
    def __init__(self, message: str, *, asked: float | None = None, tokens: int | None = None) -> None:
        """
        Args:
            message: what did not fit.
            asked: bytes that were asked for in one piece, if that is known.
            tokens: that a pass was allowed when it did not fit, if it was one.
        """
        super().__init__(message)
        self.asked = asked
        self.tokens = tokens


class UnmetNeedError(UserError):
    pass


class NumericalError(TrimtabError):
    exit_code = 3


class GuardError(NumericalError):
    pass


class StorageError(TrimtabError):
    exit_code = 4


class WorkerError(TrimtabError):
    exit_code = 5


class RewardUnavailableError(TrimtabError):
    exit_code = 6


class Preempted(TrimtabError):  # noqa: N818 - it is a state, not a fault
    exit_code = 75


def shown(value: object) -> str:
    """A value as a message shows it: in the words of YAML and JSON, and not all of it if it is long.

    >>> shown(None), shown(True), shown("a"), shown([1] * 40)
    ('null', 'true', "'a'", '[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,...')
    """
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def nearest(word: str, candidates: Iterable[str]) -> str | None:
    """What was probably meant: the candidate of the same letters in another order, else the one that looks most alike.

    >>> nearest("gpro", ["gspo", "grpo"]), nearest("kl.ceof", ["kl.coef"]), nearest("zzz", ["kl"]), nearest("KL", ["kl"])
    ('grpo', 'kl.coef', None, 'kl')
    """
    known = {name.lower(): name for name in candidates}
    word = word.lower()
    swapped = [name for name in known if sorted(name) == sorted(word)]
    found = next(iter(swapped or difflib.get_close_matches(word, known, n=1)), None)
    return None if found is None else known[found]
