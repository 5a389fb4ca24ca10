#!/usr/bin/env python3
"""Set two measurements side by side: CPU seconds of each phase, their ratio, tokens for a CPU second, memory.

    python benchmarks/compare.py A.jsonl B.jsonl
    python benchmarks/compare.py --run 'COMMAND A' 'COMMAND B' --rounds 3

A file holds lines as `workloads.py` prints them, of one run or of several, one run after the other; of several the
median counts. With `--run` the two commands are run in turn, A B A B, with one thread of mathematics that does not spin.
`B per A, a token` sets the CPU seconds for each token against each other, since two systems do not sample the same
lengths: above 1, A is faster by that factor. For `rollout` a token is one that was generated.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

Lines = list[dict[str, Any]]
SAME = ("workload", "model", "dtype", "threads", "mu", "stop", "params")


def read(path: Path) -> Lines:
    """The lines with a phase; anything else that a command prints is passed over."""
    try:
        return _lines(path.read_text())
    except (OSError, ValueError) as error:
        sys.exit(f"{path}: {error}")


def _lines(text: str) -> Lines:
    records = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return [record for record in records if "phase" in record]


def run_in_turn(commands: list[str], rounds: int) -> list[Lines]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GOMP_SPINCOUNT": "0"}
    found: list[Lines] = [[] for _ in commands]
    for number in range(rounds):
        for place, command in enumerate(commands):
            print(f"round {number + 1} of {rounds}: {command}", file=sys.stderr, flush=True)
            said = subprocess.run(shlex.split(command), env=environment, capture_output=True, text=True, check=False)
            if said.returncode:
                sys.exit(f"{command}: exit code {said.returncode}\n{said.stderr[-2000:]}")
            found[place] += _lines(said.stdout)
    return found


def median_of(lines: Lines, phase: str, key: str) -> float | None:
    values = [line[key] for line in lines if line["phase"] == phase and line.get(key) is not None]
    return statistics.median(values) if values else None


def range_of(lines: Lines) -> str:
    """Smallest and largest CPU seconds of a step over the runs."""
    values = [line["cpu_seconds"] for line in lines if line["phase"] == "step"]
    return f"{min(values):.2f} to {max(values):.2f} CPU-s a step in {len(values)} runs"


def table(a: Lines, b: Lines, names: tuple[str, str] = ("A", "B")) -> str:
    """Markdown."""
    phases = list(dict.fromkeys(line["phase"] for line in [*a, *b] if line["phase"] != "check"))
    head = f"| phase | {names[0]}, CPU-s | {names[1]}, CPU-s | {names[1]} / {names[0]} | {names[1]} per {names[0]}, a token |"
    rows = [head, "|---|---|---|---|---|"]
    for phase in phases:
        one, two = (median_of(lines, phase, "cpu_seconds") for lines in (a, b))
        rates = [median_of(lines, phase, "tokens_per_cpu_s") for lines in (a, b)]
        cells = [_number(one), _number(two), _ratio(two, one), _ratio(rates[0], rates[1])]
        rows.append(f"| {phase} | " + " | ".join(cells) + " |")
    used = [_working_set(lines) for lines in (a, b)]
    if None not in used:
        rows.append(f"| memory of the steps, MB | {used[0]:.0f} | {used[1]:.0f} | {_ratio(used[1], used[0])} | |")
    return "\n".join(rows)


def _working_set(lines: Lines) -> float | None:
    """Peak less what the process had before its first step."""
    peak, before = median_of(lines, "setup", "peak_rss_mb"), median_of(lines, "setup", "rss_before_mb")
    return None if peak is None or before is None else peak - before


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _ratio(above: float | None, below: float | None) -> str:
    return f"{above / below:.2f}" if above is not None and below else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="two files of lines")
    parser.add_argument("--run", nargs=2, metavar=("A", "B"), help="two commands, run in turn")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--names", nargs=2, default=("A", "B"), metavar=("A", "B"))
    parser.add_argument("--keep", type=Path, metavar="DIR", help="with --run: write a.jsonl and b.jsonl there")
    given = parser.parse_args()
    if (len(given.files) == 2) == bool(given.run):
        parser.error("give two files, or --run with two commands")
    a, b = run_in_turn(given.run, given.rounds) if given.run else [read(path) for path in given.files]
    if given.keep:
        given.keep.mkdir(parents=True, exist_ok=True)
        for name, lines in (("a", a), ("b", b)):
            (given.keep / f"{name}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    for name, lines in zip(given.names, (a, b), strict=True):
        if not any(line["phase"] == "step" for line in lines):
            sys.exit(f'{name}: there is no line with "phase": "step"')
    for key in SAME:
        seen = [{line[key] for line in lines if key in line} for lines in (a, b)]
        if all(seen) and seen[0] != seen[1]:
            print(f"not the same work: {key} is {seen[0]} and {seen[1]}", file=sys.stderr)
    print(table(a, b, tuple(given.names)))
    for name, lines in zip(given.names, (a, b), strict=True):
        print(f"\n{name}: {range_of(lines)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
