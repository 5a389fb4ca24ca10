"""Several recorders as one: the first must work, the others may fail without stopping the training."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from trimtab.ports import Recorder
from trimtab.secrets import redact
from trimtab.types import StepReport


class Recorders:
    """Tells every recorder. A monitor that fails is named once, counted, and told nothing more.

    What a monitor measures of itself, its `figures()` if it has any, stands in the record of each step.
    """

    def __init__(self, record: Recorder | None, monitors: Sequence[Recorder] = ()) -> None:
        self.essential = record
        self.monitors = list(monitors)
        self.failed = 0

    def record(self, report: StepReport) -> None:
        if report.phase != "eval" and (self.monitors or self.failed):
            report |= self._figures() | {"observe/failed_monitors": float(self.failed)}
        if self.essential is not None:
            self.essential.record(report)
        own: dict[str, float] = getattr(self.essential, "figures", dict)()
        seen = report | own if own else report
        self._tell(lambda monitor: monitor.record(seen))

    def event(self, kind: str, **facts: Any) -> None:
        if self.essential is not None:
            self.essential.event(kind, **facts)
        said = {name: redact(value) if isinstance(value, str) else value for name, value in facts.items()}
        self._tell(lambda monitor: monitor.event(kind, **said))

    def _figures(self) -> dict[str, float]:
        """What monitors measure of themselves."""
        found: dict[str, float] = {}
        self._tell(lambda monitor: found.update(monitor.figures() if hasattr(monitor, "figures") else {}))
        return found

    def close(self) -> None:
        self._tell(lambda monitor: monitor.close())
        if self.essential is not None:
            self.essential.close()

    def _tell(self, what: Any) -> None:
        for monitor in list(self.monitors):
            try:
                what(monitor)
            except Exception as error:
                self.failed += 1
                self.monitors.remove(monitor)
                name = type(monitor).__name__
                reason = redact(f"{type(error).__name__}: {error}")
                print(f"warning: {name} failed and is switched off: {reason}", file=sys.stderr)
