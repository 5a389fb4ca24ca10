"""What a look at a run's files found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from trimtab.errors import Finding

DAMAGE = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError)
"""What reading files sets off that are not as they were written."""


@dataclass(slots=True, kw_only=True)
class Verdict:
    """What was looked at, and what is wrong."""

    lines: list[tuple[str, str]] = field(default_factory=list)
    """(part, what was found to be good)."""
    notes: list[Finding] = field(default_factory=list)
    """Worth knowing, and no fault."""
    findings: dict[str, list[Finding]] = field(default_factory=dict)
    """Faults, by part."""
    is_storage_damaged: bool = False
    """A checkpoint is damaged, or none is there to go on from."""
    newest_good: int | None = None
    """The step that the run would go on from."""

    @property
    def exit_code(self) -> int:
        return 4 if self.is_storage_damaged else 1 if self.findings else 0

    @property
    def advice(self) -> str:
        """What the findings mean for who wants to go on."""
        if self.newest_good is None:
            return "the run cannot go on: start over with --fresh, which keeps it under another name"
        return f"the same `trimtab train` would go on from checkpoint {self.newest_good}"

    def fault(self, part: str, place: object, what: str, hint: str = "") -> None:
        self.findings.setdefault(part, []).append(Finding(place=str(place), what=what, hint=hint))

    def note(self, place: object, what: str, hint: str = "") -> None:
        self.notes.append(Finding(place=str(place), what=what, hint=hint))

    def good(self, part: str, text: str) -> None:
        self.lines.append((part, text))


@contextmanager
def readable(verdict: Verdict, part: str, place: object, prefix: str = "") -> Iterator[None]:
    """What is read within may be anything; what cannot be made sense of is a finding."""
    try:
        yield
    except DAMAGE as error:
        verdict.fault(part, place, f"{prefix}not as Trimtab writes it ({type(error).__name__}: {reason(error)})")


def reason(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
