#!/usr/bin/env python3
"""Does a run come back? Faults on the demo's task, with the guard and without: reward at the end, time to recover.

    python benchmarks/faults.py                       every fault, with and without the guard
    python benchmarks/faults.py --faults rate nan --seeds 3
    python benchmarks/faults.py --healthy 20          runs without a fault: which alarms rang

Every run starts from the checkpoint of `examples/demo/sft.yaml` (made if it is missing), as the demo does, with fewer
prompts a step. A fault begins behind step 20:

    rate      the learning rate is multiplied by 100, by a swap while the run trains
    reward    the reward is noise for 15 steps
    sign      the policy loss has the other sign for 5 steps
    nan       one update has a gradient that is not finite

A run has recovered at the first evaluation within 0.05 of the undisturbed run's last one, from which on it stays there.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.learning import start_of

FAULTS = ("none", "rate", "reward", "sign", "nan")
BEGINS = 20
"""The last healthy step."""
NEAR = 0.05
SETTINGS: dict[str, Any] = {
    "algorithm": "grpo",
    "data": {"train": "builtin:addition", "validation": "builtin:addition"},
    "rewards": [{"name": "exact_match"}],
    "sampling": {"group_size": 8, "temperature": 1.0, "max_length": 16},
    "optim": {"learning_rate": 1e-4, "warmup_steps": 5},
    "train": {"max_steps": 80, "prompts_per_step": 24, "minibatches": 2},
    "eval": {"every": 5, "prompts": 200, "early_stop": {"patience": None}},
    "checkpoint": {"every": 1000, "rolling_every": 5, "rolling_keep": 6},
}
OFF = {"then": "off"}


def settings(start: Path, *, seed: int, is_guarded: bool, **own: Any) -> dict[str, Any]:
    """A run's configuration."""
    found = json.loads(json.dumps(SETTINGS | own))
    found["policy"] = {"model": str(start)}
    found["train"] |= {"seed": seed}
    found["data"] |= {"seed": seed}
    if not is_guarded:
        from trimtab.rules import NO_IMPROVEMENT, RULES

        found["guard"] = {"rules": {rule.name: OFF for rule in RULES if rule is not NO_IMPROVEMENT}}
    return found


@contextmanager
def fault(name: str, directory: Path) -> Iterator[None]:
    """Let a fault happen to the run that trains meanwhile in the directory, in this process."""
    import pytest

    with pytest.MonkeyPatch.context() as patch:
        if name == "rate":
            _ask_behind(patch, directory, {"optim.learning_rate": SETTINGS["optim"]["learning_rate"] * 100})
        elif name == "reward":
            _noisy(patch)
        elif name == "sign":
            _turned(patch)
        elif name == "nan":
            _broken(patch)
        yield


def _ask_behind(patch: Any, directory: Path, changes: Mapping[str, Any]) -> None:
    """A swap, asked for from outside when the last healthy step is saved."""
    from trimtab.store import requests
    from trimtab.store.run_directory import RunDirectory
    from trimtab.train import loop

    save, asked = loop._save, []

    def saved(run: Any, report: Any, *, last: bool) -> None:
        save(run, report, last=last)
        if report.step == BEGINS and not asked:
            asked.append(True)
            requests.ask(RunDirectory(directory), requests.Request(kind="swap", changes=changes))

    patch.setattr(loop, "_save", saved)


def _noisy(patch: Any) -> None:
    """The reward of 15 steps says nothing: a coin, for completions and evaluations alike."""
    from dataclasses import replace

    from trimtab.rewards.scorer import Scorer
    from trimtab.train.learner import Learner

    score, update, coin, count = Scorer.score, Learner.update, random.Random(0), [0]

    def counted(self: Any, *args: Any, **more: Any) -> Any:
        count[0] += 1
        return update(self, *args, **more)

    def scored(self: Any, rollouts: Any) -> Any:
        found = score(self, rollouts)
        if BEGINS <= count[0] < BEGINS + 15:
            return [replace(s, reward=float(coin.random() < 0.5)) for s in found]
        return found

    patch.setattr(Learner, "update", counted)
    patch.setattr(Scorer, "score", scored)


def _turned(patch: Any) -> None:
    """The policy's advantages have the other sign for 5 batches."""
    _advantages(patch, 5, lambda values: -values)


def _broken(patch: Any) -> None:
    """One batch has an advantage that is no number."""
    _advantages(patch, 1, lambda values: values * float("nan"))


def _advantages(patch: Any, steps: int, changed: Callable[[Any], Any]) -> None:
    from dataclasses import replace

    from trimtab.algorithms import grpo

    record, calls = grpo.ALGORITHM, [0]

    def advantages(batch: Any, frozen: Any, config: Any) -> Any:
        calls[0] += 1
        found = record.advantages(batch, frozen, config)
        if BEGINS < calls[0] <= BEGINS + steps:
            return replace(found, values=changed(found.values))
        return found

    patch.setattr(grpo, "ALGORITHM", replace(record, advantages=advantages))


def measured(name: str, start: Path, *, seed: int, is_guarded: bool, folder: Path, **own: Any) -> dict[str, Any]:
    """One run, with what became of it."""
    from trimtab import config as configs
    from trimtab.errors import TrimtabError
    from trimtab.operate.start import Front, silently, train_in
    from trimtab.store import journal
    from trimtab.store.run_directory import RunDirectory

    directory = RunDirectory(folder / f"{name}-{seed}-{'with' if is_guarded else 'without'}")
    began, code, cause = time.perf_counter(), 0, ""
    with fault(name, directory.root):
        config = configs.from_mapping(settings(start, seed=seed, is_guarded=is_guarded, **own))
        try:
            train_in(config, directory, front=Front(say=silently, is_shown=False))
        except TrimtabError as error:
            code, cause = error.exit_code, str(error)
    reading = journal.read(directory.journal)
    return {
        "fault": name,
        "seed": seed,
        "guard": is_guarded,
        "code": code,
        "cause": cause,
        "evaluations": [(e["step"], e["metrics"]["eval/reward/mean"], e["time"]) for e in reading.evaluations()],
        "rollbacks": [(e["was"], e["step"], e["rule"]) for e in reading.events("rolled back")],
        "acting": sorted({e["rule"] for e in reading.events("alarm") if e["level"] == "act"}),
        "warnings": sorted({e["rule"] for e in reading.events("alarm") if e["level"] == "warn"}),
        "kl_update_max": max((s["metrics"].get("kl/update", 0.0) for s in reading.steps()), default=0.0),
        "began_at": next((s["time"] for s in reading.steps() if s["step"] == BEGINS + 1), None),
        "seconds": time.perf_counter() - began,
    }


def recovered_after(run: Mapping[str, Any], level: float) -> tuple[int, float] | None:
    """(steps, seconds) from the fault to the first evaluation from which on the run is within NEAR of a level."""
    later = [e for e in run["evaluations"] if e[0] > BEGINS]
    good = None
    for step, value, when in reversed(later):
        if value < level - NEAR:
            break
        good = (step - BEGINS, when - (run["began_at"] or when))
    return good


def line(run: Mapping[str, Any], level: float) -> str:
    values = [value for _, value, _ in run["evaluations"]]
    lowest = min(value for step, value, _ in run["evaluations"] if step >= BEGINS) if values else float("nan")
    back = recovered_after(run, level)
    words = ", ".join(f"{was}->{to} {rule}" for was, to, rule in run["rollbacks"]) or "none"
    return (
        f"| {run['fault']} | {run['seed']} | {'on' if run['guard'] else 'off'} | {lowest:.3f} | {values[-1]:.3f} | "
        f"{'-' if back is None else f'{back[0]} steps, {back[1]:.0f} s'} | {words} | {run['code']} |"
    )


HEAD = "| fault | seed | guard | lowest | at the end | recovered after | rollbacks | exit code |\n" + "|---" * 8 + "|"


def compare(start: Path, faults: Sequence[str], seeds: Sequence[int], folder: Path) -> list[dict[str, Any]]:
    """Every fault with and without the guard, printed as it goes."""
    print(HEAD, flush=True)
    found = []
    for seed in seeds:
        base = measured("none", start, seed=seed, is_guarded=True, folder=folder)
        level = base["evaluations"][-1][1]
        print(line(base, level), flush=True)
        found.append(base)
        for name in faults:
            for is_guarded in (True, False) if name != "none" else ():
                run = measured(name, start, seed=seed, is_guarded=is_guarded, folder=folder)
                print(line(run, level), flush=True)
                found.append(run)
    return found


def healthy(start: Path, count: int, folder: Path) -> list[dict[str, Any]]:
    """Runs without a fault: algorithms and seeds in turn."""
    algorithms = ("grpo", "ppo", "dapo", "gspo", "rloo")
    found = []
    for number in range(count):
        own = {"algorithm": algorithms[number % len(algorithms)], "train": SETTINGS["train"] | {"max_steps": 40}}
        run = measured("none", start, seed=number, is_guarded=True, folder=folder / own["algorithm"], **own)
        found.append(run)
        print(
            f"{own['algorithm']:<6} seed {number:<3} kl/update up to {run['kl_update_max']:.4f}  end "
            f"{run['evaluations'][-1][1]:.3f}  acting: {run['acting'] or 'none'}  warnings: {run['warnings'] or 'none'}",
            flush=True,
        )
    acting = [run for run in found if run["acting"]]
    warnings = statistics.mean(len(run["warnings"]) for run in found)
    print(f"{len(acting)} of {count} healthy runs raised an alarm that acts; {warnings:.1f} kinds of warnings a run")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=list(FAULTS[1:]))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--healthy", type=int, metavar="N", help="only runs without a fault")
    parser.add_argument("--out", type=Path, help="every run's figures, as JSON")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        start = start_of(Path(__file__).resolve().parent.parent / "runs")
        if options.healthy:
            found = healthy(start, options.healthy, folder)
        else:
            found = compare(start, options.faults, range(options.seeds), folder)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
