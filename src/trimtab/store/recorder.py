"""The recorder that must not fail: the journal, and the completions that are kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trimtab.errors import StorageError
from trimtab.store import writer
from trimtab.store.journal import Journal
from trimtab.store.run_directory import RunDirectory
from trimtab.store.settings import Samples
from trimtab.types import Sample, StepReport


class RunRecorder:
    """Writes every report into the journal and, by rule, its samples into `samples/`."""

    def __init__(self, directory: RunDirectory, rule: Samples) -> None:
        self.directory = directory
        self.rule = rule
        self.journal = Journal(directory.journal)

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
            metrics=dict(report.metrics),
        )
        if report.samples and report.step % self.rule.every == 0:
            self._write(f"step-{report.step:07}.jsonl", report.samples)
            for file in sorted(self.directory.samples.glob("step-*.jsonl"))[: -self.rule.keep]:
                writer.remove_file(file)

    def _write(self, name: str, samples: Sequence[Sample]) -> None:
        path = self.directory.samples / name
        try:
            write_samples(path, samples)
        except OSError as error:
            raise StorageError(f"cannot write to {path}: {error.strerror or error}") from error

    def event(self, kind: str, **facts: Any) -> None:
        self.journal.append("event", event=kind, **facts)

    def close(self) -> None:
        """Nothing is held open."""


def write_samples(path: Path, samples: Sequence[Sample]) -> None:
    """One completion a line."""
    if samples:
        lines = (json.dumps(asdict(s), ensure_ascii=False) for s in samples)
        writer.replace_bytes(path, ("\n".join(lines) + "\n").encode())


def read_samples(path: Path) -> list[Sample]:
    """The completions of a file of `write_samples`; none if it is not there."""
    if not path.is_file():
        return []
    return [Sample(**json.loads(line)) for line in path.read_bytes().splitlines()]
