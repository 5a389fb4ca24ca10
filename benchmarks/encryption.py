"""What `checkpoint.encrypt` costs: the time of a save and of a restore, plain and encrypted, of the same bytes.

    python benchmarks/encryption.py [--mib 768] [--repeats 5] [--folder DIR]

One third of the bytes are weights, two thirds moments, as in a run. Plain and encrypted saves take turns, so that a busy
machine is as busy for both. The figures are medians: seconds on the clock, and of the processor, which other work on the
machine changes less; the ratios are those of the medians.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from trimtab.ports import Snapshot
from trimtab.secrets import Secret
from trimtab.store.checkpoints import CheckpointStore
from trimtab.store.settings import Checkpoint


class State:
    """Weights and moments of a given size."""

    def __init__(self, mib: int) -> None:
        count = (mib << 20) // 12
        self.weights = {"w": torch.randn(count)}
        self.moments = {"first_moment.w": torch.randn(count), "second_moment.w": torch.randn(count)}

    def snapshot(self, *, is_copied: bool, policy_only: bool = False) -> Snapshot:
        return Snapshot(write_models=self._write, tensors=self.moments, values={"step": 1})

    def _write(self, directory: Path) -> None:
        (directory / "policy").mkdir()
        save_file(self.weights, directory / "policy" / "model.safetensors")

    def read_models(self, directory: Path) -> None:
        self.weights = load_file(directory / "policy" / "model.safetensors")

    def load(self, tensors: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        self.moments = {name: tensor.clone() for name, tensor in tensors.items()}


NAMES = ("save_seconds", "save_cpu_seconds", "restore_seconds", "restore_cpu_seconds")


def times(folder: Path, state: State, settings: Checkpoint) -> tuple[float, ...]:
    """Of one save in place and of one restore, as in `NAMES`."""
    store = CheckpointStore(folder, settings, max_steps=9)
    found = [(time.perf_counter(), time.process_time())]
    store.save_if_due(1, state, {}, last=True)
    found.append((time.perf_counter(), time.process_time()))
    CheckpointStore(folder, settings, max_steps=9).restore(state)
    found.append((time.perf_counter(), time.process_time()))
    shutil.rmtree(folder)
    return tuple(after - before for a, b in pairwise(found) for before, after in zip(a, b, strict=True))


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--mib", type=int, default=768)
    words.add_argument("--repeats", type=int, default=5)
    words.add_argument("--folder", type=Path, default=None)
    asked = words.parse_args()
    os.environ["BENCHMARK_KEY"] = os.urandom(32).hex()
    kinds = {"plain": Checkpoint(), "encrypted": Checkpoint(encrypt=Secret("${env:BENCHMARK_KEY}"))}
    state = State(asked.mib)
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in kinds}
    with tempfile.TemporaryDirectory(dir=asked.folder) as place:
        for repeat in range(asked.repeats + 1):
            for name, settings in kinds.items():
                measured = times(Path(place) / "checkpoints", state, settings)
                if repeat:  # the first ones load libraries
                    found[name].append(measured)
    report: dict[str, Any] = {"mib": asked.mib, "repeats": asked.repeats, "cores": os.cpu_count()}
    for place_in_row, name in enumerate(NAMES):
        both = {kind: round(statistics.median(row[place_in_row] for row in rows), 3) for kind, rows in found.items()}
        report[name] = {**both, "ratio": round(both["encrypted"] / both["plain"], 3)}
    report["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
