"""One run of an arm, in a process of its own: `python -m trimtab.compare.arm COMPARISON FOLDER SEED`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from trimtab.compare import plan as plans
from trimtab.compare.budget import BudgetControl, Meter
from trimtab.compare.layout import Layout
from trimtab.errors import TrimtabError
from trimtab.secrets import guard_console, redact


def train(root: Path, folder: str, seed: int) -> None:
    """Train the arm's run with that seed, or go on with it."""
    from trimtab.operate import start
    from trimtab.store.run_directory import RunDirectory

    layout = Layout(root)
    plan = plans.read(layout.plan)
    config = plan.config_of(plan.arm(folder), seed)
    directory = RunDirectory(layout.run(folder, seed))
    meter = Meter(directory, group_size=config.sampling.group_size)
    front = replace(start.COMMAND, recorders=(meter,), control=lambda ranks: BudgetControl(ranks, plan.budget, meter))
    start.train_in(config, directory, front=front)


def main() -> int:
    guard_console()
    root, folder, seed = sys.argv[1:]
    try:
        train(Path(root), folder, int(seed))
    except TrimtabError as error:
        print(redact(f"{type(error).__name__}: {error}"), file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
