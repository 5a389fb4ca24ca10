"""A comparison from beginning to end: plan, runs, verdict, report."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trimtab.compare import plan as plans
from trimtab.compare import report, results, runner, verdict
from trimtab.compare.layout import Layout
from trimtab.compare.plan import Budget, Plan
from trimtab.errors import LockError
from trimtab.store import writer

Say = Callable[[str], None]


def compare(
    path: Path,
    words: Sequence[str],
    vary: Sequence[str],
    *,
    seeds: int,
    root: Path,
    jobs: int = 1,
    budget: Budget | None = None,
    size: float = 0.05,
    say: Say = lambda _: None,
) -> dict[str, Any]:
    """Train every arm with every seed, judge, and write the report; what is done already is not done again.

    Args:
        path, words, vary, seeds, budget: see `plan.make`.
        root: the comparison's directory.
        jobs: runs at a time.
        size: a difference that one would want to see.
    Returns:
        The result as JSON values, which lie in `result.json` too.
    Raises:
        UserError: the arms cannot be compared, or the directory holds another comparison.
        LockError: another process compares there.
        TrimtabError: a run failed for another reason than that it diverged.
    """
    layout = Layout(root)
    plan, checked = plans.make(path, words, vary, seeds=seeds, budget=budget)
    writer.make_directory(root)
    with _locked(root):
        plan = runner.settle(layout, plan, say)
        count = len(plan.arms) * len(plan.seeds)
        say(f"{report.title(plan)}: {count} runs of up to {max(c.train.max_steps for c in checked)} steps  ->  {root}")
        runner.Runner(layout, plan, max(1, jobs), say).run()
        return conclude(layout, plan, size=size)


def conclude(layout: Layout, plan: Plan, *, size: float = 0.05) -> dict[str, Any]:
    """Judge what the runs came to, and write it down."""
    arms = results.read(layout, plan)
    same = results.checks(plan, arms)
    differences = results.config_differences(plan)
    found = verdict.judge(plan, arms, same, size=size)
    values = verdict.as_values(plan, arms, found, same, differences)
    writer.replace_text(layout.result, json.dumps(values, indent=1, ensure_ascii=False) + "\n")
    writer.replace_text(layout.markdown, report.markdown(plan, arms, found, same, differences))
    writer.replace_text(layout.page, report.html(plan, arms, found, same, differences))
    return values


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    """Nobody else compares here meanwhile; the system frees the lock of a process that has died."""
    with (root / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise LockError(
                f"{root}: another process compares here; wait for it, or compare into another --to"
            ) from None
        yield
