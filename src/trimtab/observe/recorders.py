"""Several recorders as one: the first must work, the others may fail without stopping the training."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from trimtab.ports import Recorder
from trimtab.secrets import redact
from trimtab.types import StepReport


class Recorders:
    """Tells every recorder. A monitor that fails is named once, counted, and told nothing more."""

    def __init__(self, record: Recorder | None, monitors: Sequence[Recorder] = ()) -> None:
        self.essential = record
        self.monitors = list(monitors)
        self.failed = 0

    def record(self, report: StepReport) -> None:
        if self.essential is not None:
            self.essential.record(report)
        self._tell(lambda monitor: monitor.record(report))

    def event(self, kind: str, **facts: Any) -> None:
        if self.essential is not None:
            self.essential.event(kind, **facts)
        said = {name: redact(value) if isinstance(value, str) else value for name, value in facts.items()}
        self._tell(lambda monitor: monitor.event(kind, **said))

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
