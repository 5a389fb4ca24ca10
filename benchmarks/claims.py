#!/usr/bin/env python3
"""The guides' claims, measured: GRPO against PPO on three tasks, five seeds each; DPO's accuracy on the pipeline's pairs.

    python benchmarks/claims.py --jobs 2            all of it; goes on where it was interrupted
    python benchmarks/claims.py --only dpo

The guides say that GRPO trains 30 % fewer parameters than PPO, that the variance of its advantages is 40 % lower, and that
it is 25 % faster; and that DPO's accuracy is above 85 %. GRPO and PPO are compared by `trimtab compare`, from one start
that imitates a careless teacher, on the same prompts in the same order, for the same number of samples. A second is one of
training steps on the machine at hand, measured in turn, seed after seed. Intervals are of the mean over seeds.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.learning import start_of  # noqa: E402

TASKS = {"right": "right or wrong", "digits": "share of right digits", "brief": "right, and brief"}
SEEDS = 5


def mean_and_reach(values: list[float]) -> tuple[float, float]:
    """The mean, and half of its 95 % interval."""
    from trimtab.compare.statistics import t_quantile

    spread = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return statistics.mean(values), spread * t_quantile(0.975, len(values) - 1) if len(values) > 1 else math.nan


def steps_of(run: Path) -> list[dict[str, float]]:
    from trimtab.store import journal

    return [dict(s["metrics"]) for s in journal.read(run / "journal.jsonl").steps()]


def compared(task: str, folder: Path, start: Path, *, seeds: int, jobs: int, samples: int) -> dict[str, Any]:
    """One task's comparison, and what of GRPO is over what of PPO, seed by seed."""
    from trimtab.compare import comparison
    from trimtab.compare.layout import Layout
    from trimtab.compare.plan import Budget

    root = folder / task
    found = comparison.compare(
        ROOT / "benchmarks" / "claims" / f"{task}.yaml",
        [f"policy.model={start}"],
        ["algorithm=grpo,ppo"],
        seeds=seeds,
        root=root,
        jobs=jobs,
        budget=Budget(kind="samples", amount=samples),
        say=lambda line: print(f"{task}: {line}", file=sys.stderr, flush=True),
    )
    layout = Layout(root)
    ratios: dict[str, list[float]] = {"trained parameters": [], "advantage variance": [], "seconds a step": []}
    reached: dict[str, list[int]] = {"grpo": [], "ppo": []}
    for seed in found["seeds"]:
        runs = {name: steps_of(layout.run(name, seed)) for name in ("grpo", "ppo")}
        variance = {n: statistics.mean(s["advantage/std"] ** 2 for s in steps) for n, steps in runs.items()}
        seconds = {n: statistics.median(s["time/step"] for s in steps) for n, steps in runs.items()}
        facts = {n: json.loads((layout.run(n, seed) / "run.json").read_bytes()) for n in runs}
        parameters = {n: sum(f["parameters"].values()) for n, f in facts.items()}
        for name, values in zip(ratios, (parameters, variance, seconds), strict=True):
            ratios[name].append(values["grpo"] / values["ppo"])
        best = max(max(s["reward/mean"] for s in steps) for steps in runs.values())
        for name, steps in runs.items():
            rewards = [s["reward/mean"] for s in steps]
            goal = rewards[0] + 0.5 * (best - rewards[0])
            reached[name].append(next((n for n, r in enumerate(rewards, 1) if r >= goal), len(rewards) + 1))
    return {
        "task": TASKS[task],
        "headline": found["headline"],
        "said": found["pairs"][0]["said"],
        "scores": dict(zip(("grpo", "ppo"), found["pairs"][0]["scores"], strict=True)),
        "ratio": {name: mean_and_reach(values) for name, values in ratios.items()},
        "steps_to_half_of_the_gain": {name: statistics.mean(values) for name, values in reached.items()},
    }


def preference(folder: Path) -> dict[str, Any]:
    """DPO as the pipeline's tiny settings have it, and on the built-in pairs."""
    from trimtab.store import journal

    pipeline = ROOT / "runs" / "pipeline"
    words = [sys.executable, "examples/pipeline/run.py"]
    subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    builtin = folder / "builtin-dpo"
    config = ["examples/dpo.yaml", f"policy.model={start_of(folder)}", "--run-dir", str(builtin)]
    subprocess.run([sys.executable, "-m", "trimtab", "train", *config], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    found = {}
    for name, run in (("pipeline, tiny model", pipeline / "dpo"), ("built-in pairs (examples/dpo.yaml)", builtin)):
        last = journal.read(run / "journal.jsonl").evaluations()[-1]["metrics"]
        found[name] = {k: last[f"eval/{k}"] for k in ("preference/accuracy", "count")}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "claims")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--samples", type=int, default=3840, help="completions of a run")
    parser.add_argument("--only", choices=[*TASKS, "dpo"])
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {}
    if asked.only != "dpo":
        start = start_of(asked.folder)
        for task in [asked.only] if asked.only else TASKS:
            found[task] = compared(task, asked.folder, start, seeds=asked.seeds, jobs=asked.jobs, samples=asked.samples)
    if asked.only in (None, "dpo"):
        found["dpo"] = preference(asked.folder)
    (asked.folder / "claims.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
