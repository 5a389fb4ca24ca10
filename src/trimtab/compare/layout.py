"""Where the files of a comparison lie."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Layout:
    """
    comparison.json     what is compared, and what is locked
    arms/ARM/seed-N/    a run directory each; beside it seed-N.log, what it said, and seed-N.json, what it cost
    result.json  report.md  report.html
    lock
    """

    root: Path

    @property
    def plan(self) -> Path:
        return self.root / "comparison.json"

    @property
    def result(self) -> Path:
        return self.root / "result.json"

    @property
    def markdown(self) -> Path:
        return self.root / "report.md"

    @property
    def page(self) -> Path:
        return self.root / "report.html"

    def run(self, arm: str, seed: int) -> Path:
        return self.root / "arms" / arm / f"seed-{seed}"

    def log(self, arm: str, seed: int) -> Path:
        return self.run(arm, seed).with_suffix(".log")

    def cost(self, arm: str, seed: int) -> Path:
        return self.run(arm, seed).with_suffix(".json")
