"""Wall and CPU time of the phases of a step, and the lines that are printed of them."""

from __future__ import annotations

import functools
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ORDER = ("rollout", "reward", "logps", "forward", "backward", "optimizer", "probe")
UNCOUNTED = ("reward", "optimizer", "probe")
"""Phases for which a rate of tokens says nothing."""


@dataclass(slots=True, kw_only=True)
class Seconds:
    wall: float = 0.0
    cpu: float = 0.0
    """Of all threads of the process."""

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(wall=self.wall + other.wall, cpu=self.cpu + other.cpu)

    def __sub__(self, other: Seconds) -> Seconds:
        return Seconds(wall=self.wall - other.wall, cpu=self.cpu - other.cpu)

    def __truediv__(self, number: int) -> Seconds:
        return Seconds(wall=self.wall / number, cpu=self.cpu / number)


def now() -> Seconds:
    return Seconds(wall=time.perf_counter(), cpu=time.process_time())


def age() -> Seconds:
    """Of this process, from when the kernel started it."""
    ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19]) / os.sysconf("SC_CLK_TCK")
    return Seconds(wall=float(Path("/proc/uptime").read_text().split()[0]) - ticks, cpu=time.process_time())


def memory_mb(name: str) -> float:
    """`VmRSS`, now; `VmHWM`, the most since the start."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return round(next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) / 1024, 1)


@dataclass(slots=True)
class Step:
    whole: Seconds = field(default_factory=Seconds)
    parts: dict[str, Seconds] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)


class Phases:
    """Charges time to phases, step by step. A phase inside another is charged to itself alone."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.setup: Seconds | None = None
        self.rss_before_mb = 0.0
        self.peak_rss_mb = 0.0
        self._step: Step | None = None
        self._began = Seconds()
        self._open: list[str] = []
        self._since = Seconds()

    @property
    def is_first(self) -> bool:
        return not self.steps

    def begin(self) -> None:
        if self.setup is None:
            self.setup, self.rss_before_mb = age(), memory_mb("VmRSS")
        self._step, self._began = Step(), now()

    def end(self) -> None:
        if self._step is not None:
            self._step.whole = now() - self._began
            self.steps.append(self._step)
            self.peak_rss_mb = memory_mb("VmHWM")
        self._step = None

    def count(self, name: str, number: int) -> None:
        if self._step is not None:
            self._step.counts[name] = self._step.counts.get(name, 0) + number

    def _charge(self) -> None:
        moment = now()
        if self._open and self._step is not None:
            name = self._open[-1]
            self._step.parts[name] = self._step.parts.get(name, Seconds()) + (moment - self._since)
        self._since = moment

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self._charge()
        self._open.append(name)
        try:
            yield
        finally:
            self._charge()
            self._open.pop()

    def timed(self, function: Callable[..., Any], name: str | Callable[[], str]) -> Callable[..., Any]:
        """The function, charged to a phase."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with self.phase(name if isinstance(name, str) else name()):
                return function(*args, **kwargs)

        return call

    # ------------------------------------------------------------------------------------------------------- the lines
    def lines(self, head: Mapping[str, Any], updates: int = 1) -> list[dict[str, Any]]:
        """One record a phase: medians over the measured steps, for one optimiser step.

        Args:
            head: keys of every line.
            updates: optimiser steps in each step.
        """
        setup, (warm_up, *measured) = self.setup or Seconds(), self.steps
        common = {"peak_rss_mb": self.peak_rss_mb, "rss_before_mb": self.rss_before_mb}

        def line(phase: str, seconds: Seconds, tokens: float | None = None, **more: Any) -> dict[str, Any]:
            return {
                **head, "phase": phase, "seconds": round(seconds.wall, 4), "cpu_seconds": round(seconds.cpu, 4),
                "tokens_per_s": round(tokens / seconds.wall, 1) if tokens and seconds.wall else None,
                "tokens_per_cpu_s": round(tokens / seconds.cpu, 1) if tokens and seconds.cpu else None,
                **common, **more,
            }  # fmt: skip

        counted = {
            name: sum(s.counts.get(name, 0) for s in measured) / len(measured)
            for name in ("tokens", "generated", "rows", "passed", "padded")
        }
        whole = [s.whole / updates for s in measured]
        spent = sum(s.whole.cpu for s in measured)
        found = [line("setup", setup), line("first_step", warm_up.whole / updates)]
        found.append(
            line(
                "step", middle(whole), counted["tokens"], steps=len(measured) * updates,
                seconds_min=round(min(s.wall for s in whole), 4), seconds_max=round(max(s.wall for s in whole), 4),
                rows_per_step=counted["rows"], real_tokens_per_step=round(counted["tokens"], 1),
                padding_share=round(1 - counted["passed"] / counted["padded"], 4) if counted["padded"] else None,
            )
        )  # fmt: skip
        for name in [n for n in ORDER if any(n in s.parts for s in measured)]:
            parts = [s.parts.get(name, Seconds()) for s in measured]
            tokens = counted["generated"] / updates if name == "rollout" else counted["tokens"]
            share = round(sum(p.cpu for p in parts) / spent, 4)
            seconds = middle([p / updates for p in parts])
            found.append(line(name, seconds, None if name in UNCOUNTED else tokens, cpu_share=share))
        rest = [(s.whole - sum(s.parts.values(), Seconds())) / updates for s in measured]
        return [*found, line("other", middle(rest))]


def middle(several: list[Seconds]) -> Seconds:
    return Seconds(wall=statistics.median(s.wall for s in several), cpu=statistics.median(s.cpu for s in several))


def show(lines: list[dict[str, Any]]) -> None:
    for line in lines:
        print(json.dumps(line), flush=True)
