"""GSM8K's marked solutions -> problems and preference pairs.

    python pairs.py train.jsonl validation.jsonl

Beside each file come `problems.FILE` (prompt, completion: a human's solution, answer) and `pairs.FILE` (prompt, chosen: a
right solution, rejected: a wrong one), every right one with every wrong one. A problem without one of both has no pairs.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def problem(row: dict[str, Any]) -> dict[str, str]:
    return {"prompt": prompt(row), "completion": row["ground_truth"], "answer": row["ground_truth"]}


def pairs(row: dict[str, Any]) -> Iterator[dict[str, str]]:
    marked = [value for value in row.values() if isinstance(value, dict)]  # one of each model
    right, wrong = ({m["solution"]: None for m in marked if m["is_correct"] is mark} for mark in (True, False))
    for chosen in right:
        for rejected in wrong:
            yield {"prompt": prompt(row), "chosen": chosen, "rejected": rejected}


def prompt(row: dict[str, Any]) -> str:
    return f"{row['question'].strip()}\n"


def write(source: Path) -> None:
    rows = [json.loads(line) for line in source.read_text().splitlines()]
    _put(source.with_name(f"problems.{source.name}"), [problem(row) for row in rows])
    _put(source.with_name(f"pairs.{source.name}"), [pair for row in rows for pair in pairs(row)])


def _put(target: Path, rows: list[dict[str, str]]) -> None:
    scratch = target.with_suffix(".new")
    scratch.write_text("".join(json.dumps(row) + "\n" for row in rows))
    scratch.replace(target)  # whole or not there
    print(f"wrote {target}: {len(rows)} rows")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        write(Path(name))
