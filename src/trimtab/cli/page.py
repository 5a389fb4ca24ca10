"""Rows on a terminal, and the same for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import typer

LABEL = 9


@dataclass(slots=True)
class Page:
    """What is printed as the stages are gone through, and the same for programs."""

    is_silent: bool
    found: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        if not self.is_silent:
            typer.echo(text)

    def row(self, word: str, label: str, text: str) -> None:
        self.say(f"{word:<5} {label:<{LABEL}} {text}".rstrip())

    def more(self, text: str) -> None:
        self.row("", "", text)

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Columns as wide as what stands in them, under their heads."""
        lines = [list(head), *map(list, rows)]
        widths = [max(len(line[place]) for line in lines) for place in range(len(head))]
        self.say("")
        for line in lines:
            self.say("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())

    def fail(self, label: str, text: str) -> None:
        self.row("FAIL", label, text)
        self.problems.append(f"{label}: {text}")
