"""The recorder that must not fail: the journal. And the completions that are kept, without which a run goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trimtab.store import writer
from trimtab.store.journal import Journal
from trimtab.store.run_directory import RunDirectory
from trimtab.store.settings import Samples
from trimtab.types import Sample, StepReport


class RunRecorder:
    """Writes every report into the journal and, by rule, its samples into `samples/`.

    A run cannot be continued or checked without its journal, so it ends if that cannot be written. Samples are for
    people to look at: a file of them that cannot be written is counted and said, and training goes on.
    """

    def __init__(self, directory: RunDirectory, rule: Samples, *, warn: Callable[[str], None] = lambda _: None) -> None:
        """
        Raises:
            StorageError: the journal cannot be written.
        """
        self.directory = directory
        self.rule = rule
        self.warn = warn
        self.journal = Journal(directory.journal)
        self.failed = 0
        """Files of samples that could not be written."""
        self._is_failing = False

    def record(self, report: StepReport) -> None:
        if report.phase == "eval":
            self.journal.append("eval", step=report.step, metrics=dict(report.metrics))
            self._write(f"eval-{report.step:07}.jsonl", report.samples)
            return
        self.journal.append(
            "step",
            step=report.step,
            prompt_ids=report.prompt_ids,
            completions=report.completion_hashes,
            weights=report.weights_sum,
            metrics={**report.metrics, **self.figures()},
        )
        if report.samples and report.step % self.rule.every == 0:
            self._write(f"step-{report.step:07}.jsonl", report.samples)

    def figures(self) -> dict[str, float]:
        """Metrics of what it writes."""
        return {"samples/failed": float(self.failed)}

    def _write(self, name: str, samples: Sequence[Sample]) -> None:
        path = self.directory.samples / name
        try:
            write_samples(path, samples)
            for file in sorted(self.directory.samples.glob("step-*.jsonl"))[: -self.rule.keep]:
                writer.remove_file(file)
        except OSError as error:
            self.failed += 1
            with suppress(OSError):
                writer.remove_file(writer.scratch_of(path))
            if not self._is_failing:
                what = f"{path}: the samples cannot be written: {error.strerror or error}"
                self.warn(f"{what}; training goes on, and samples/failed counts such files")
                self.event("samples failed", file=name, reason=error.strerror or str(error))
            self._is_failing = True
        else:
            self._is_failing = False

    def event(self, kind: str, **facts: Any) -> None:
        self.journal.append("event", event=kind, **facts)

    def close(self) -> None:
        """Nothing is held open; what is missing is said once more."""
        if self.failed:
            files = "file" if self.failed == 1 else "files"
            self.warn(f"{self.failed} {files} of samples could not be written to {self.directory.samples}")
            self.failed = 0


def write_samples(path: Path, samples: Sequence[Sample]) -> None:
    """One completion a line."""
    if samples:
        lines = (json.dumps(asdict(s), ensure_ascii=False) for s in samples)
        writer.replace_text(path, "\n".join(lines) + "\n")


def read_samples(path: Path) -> list[Sample]:
    """The completions of a file of `write_samples`; none if it is not there."""
    if not path.is_file():
        return []
    return [Sample(**json.loads(line)) for line in path.read_bytes().splitlines()]
