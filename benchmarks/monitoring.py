#!/usr/bin/env python3
"""What watching a run costs: the share of its steps that metrics, guard, live view and exporter take.

    python benchmarks/monitoring.py --model small --steps 4
    python benchmarks/monitoring.py --model tiny --steps 40

The load is that of `workloads.py`, GRPO. While it trains, a scraper asks for `/metrics` every second, fifteen times as
often as Prometheus does by default. Timed from inside, in the same run: the guard's judgement, the figures of the
computer, the journal's record, the monitors (live view, exporter), and the scrapes, which share the interpreter with the
steps. Their sum by the time of the steps is the cost; the median step is left to `workloads.py`.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)

import work as load  # noqa: E402
from workloads import config_of  # noqa: E402

SCRAPE_SECONDS = 1.0


class Clock:
    """Seconds by name."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self.count: dict[str, int] = {}

    def around(self, owner: Any, name: str, label: str) -> Any:
        """A patch that times a method."""
        inner = getattr(owner, name)

        def timed(*args: Any, **more: Any) -> Any:
            began = time.perf_counter()
            try:
                return inner(*args, **more)
            finally:
                self.spent[label] = self.spent.get(label, 0.0) + time.perf_counter() - began
                self.count[label] = self.count.get(label, 0) + 1

        return mock.patch.object(owner, name, timed)


@contextmanager
def scraping(url: Callable[[], str | None]) -> Iterator[None]:
    """A scraper at work."""
    ends = threading.Event()

    def scrape() -> None:
        while not ends.wait(SCRAPE_SECONDS):
            if (place := url()) is not None:
                with urllib.request.urlopen(place, timeout=10) as answer:
                    answer.read()

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


def measure(work: load.Work) -> dict[str, Any]:
    from rich.console import Console

    import trimtab
    from trimtab.observe.live import LiveView
    from trimtab.observe.metrics_server import _Handler
    from trimtab.observe.prometheus import Exporter
    from trimtab.observe.resources import Resources
    from trimtab.store import journal
    from trimtab.store.recorder import RunRecorder
    from trimtab.store.run_directory import RunDirectory
    from trimtab.train.guard import StepGuard

    clock, screen = Clock(), Console(file=io.StringIO(), force_terminal=True, width=120)
    parts = [
        (StepGuard, "judge", "guard"),
        (Resources, "figures", "computer"),
        (RunRecorder, "record", "journal"),
        (LiveView, "record", "live view"),
        (Exporter, "record", "exporter"),
        (_Handler, "_answer_metrics", "scrapes"),
    ]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        directory = RunDirectory(Path(folder) / "run")
        for part in parts:
            stack.enter_context(clock.around(*part))
        stack.enter_context(scraping(lambda: directory.facts().get("metrics") if directory.exists else None))
        trimtab.prepare(
            config_of(work),
            {"observe.prometheus_port": 0},
            model=load.model(work),
            tokenizer=load.tokenizer(work),
            prompts=load.prompts(work),
            rewards=[load.even_words],
            run_dir=directory.root,
            recorders=[LiveView(name="run", algorithm="grpo", max_steps=work.steps, console=screen)],
            quiet=True,
        ).train()
        steps = [s["metrics"]["time/step"] for s in journal.read(directory.journal).steps()][1:]
    whole = sum(steps) * (len(steps) + 1) / len(steps)
    return {
        "workload": work.workload,
        "model": work.model,
        "steps": len(steps) + 1,
        "seconds_a_step": round(sum(steps) / len(steps), 4),
        "scrapes": clock.count.get("scrapes", 0),
        "share": {name: round(seconds / whole, 6) for name, seconds in clock.spent.items()},
        "share_of_all": round(sum(clock.spent.values()) / whole, 5),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["tiny", "small"], default="small")
    parser.add_argument("--steps", type=int, default=4)
    asked = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    print(json.dumps(measure(load.Work(workload="grpo", model=asked.model, steps=asked.steps)), indent=1))


if __name__ == "__main__":
    main()
