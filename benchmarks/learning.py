#!/usr/bin/env python3
"""Does every algorithm learn? Same start, same prompts, same budget, several seeds; accuracy on sums it never saw.

    python benchmarks/learning.py --seeds 5 --workers 2

Every algorithm that samples starts from one checkpoint that imitates a careless teacher (`examples/demo/sft.yaml`, made if
it is missing) and goes on with right and wrong answers as its reward. What is measured is greedy accuracy on the 797
held-out sums of the built-in task, after the last step. A result is a line in `results.jsonl`; a line that is there for
the same settings and the same start is not measured again. The table goes to docs/algorithms/learning.md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
HELD_OUT = 797
BUDGET: dict[str, Any] = {
    "data": {"train": "builtin:addition", "validation": "builtin:addition"},
    "rewards": [{"name": "exact_match"}],
    "sampling": {"group_size": 8, "temperature": 1.0, "max_length": 16},
    "optim": {"learning_rate": 2e-4, "schedule": "linear", "warmup_steps": 2},
    "train": {"max_steps": 12, "prompts_per_step": 32, "minibatches": 2},
    "eval": {"every": 1000, "prompts": HELD_OUT, "early_stop": {"patience": None}},
    "checkpoint": {"every": 1000, "rolling_every": 1000},
}
"""What all have in common."""
OWN: dict[str, dict[str, Any]] = {"ppo": {"value.learning_rate": 1e-3}}
"""What is set beside the algorithm's defaults, by dotted key."""
LAST_STEPS = 5
T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086,
)  # fmt: skip
"""Student's t at 97.5 %, by degrees of freedom from 1."""


def online() -> list[str]:
    """The built-in algorithms that sample what they train on."""
    from trimtab import algorithms
    from trimtab.types import Need

    records = {name: algorithms.load(name) for name in algorithms.MODULES}
    return [name for name, record in records.items() if record.needs(record.config()) & Need.ROLLOUTS]


def start_of(folder: Path) -> Path:
    """The common start, a Hugging Face directory; made if it is not there."""
    final = folder / "sft" / "final"
    if not final.is_dir():
        import trimtab

        print("making the common start (examples/demo/sft.yaml)", file=sys.stderr, flush=True)
        trimtab.prepare(ROOT / "examples/demo/sft.yaml", run_dir=folder / "sft", quiet=True).train()
    return final


def fingerprint(start: Path, algorithm: str) -> str:
    """Of everything that a result depends on, but for the seed and the code."""
    weights = hashlib.sha256((start / "model.safetensors").read_bytes()).hexdigest()
    said = json.dumps([BUDGET, OWN.get(algorithm, {}), weights], sort_keys=True)
    return hashlib.sha256(said.encode()).hexdigest()[:12]


def learn(algorithm: str, seed: int, start: str) -> dict[str, Any]:
    """One run, in this process."""
    import torch

    import trimtab

    torch.set_num_threads(1)
    config = {"algorithm": algorithm, **BUDGET, "policy": {"model": start}}
    overrides = {"train.seed": seed, "data.seed": seed, **OWN.get(algorithm, {})}
    began = time.process_time()
    with (
        tempfile.TemporaryDirectory() as folder,
        trimtab.prepare(config, overrides, run_dir=Path(folder) / "run", quiet=True) as run,
    ):
        run.train()
        steps = run.metrics
    trained = [s for s in steps if "reward/mean" in s]
    return {
        "algorithm": algorithm,
        "seed": seed,
        "fingerprint": fingerprint(Path(start), algorithm),
        "before": steps[0]["eval/reward/mean"],
        "after": steps[-1]["eval/reward/mean"],
        "reward": statistics.fmean(s["reward/mean"] for s in trained[-LAST_STEPS:]),
        "prompts": trained[-1]["data/prompts"],
        "updates": sum(s["updates/count"] for s in trained),
        "clipped": statistics.fmean(
            s.get("clip_fraction/low", 0.0) + s.get("clip_fraction/high", 0.0) for s in trained
        ),
        "kl_update": statistics.fmean(s.get("kl/update", 0.0) for s in trained),
        "entropy": trained[-1].get("entropy"),
        "grad_norm": statistics.fmean(s["grad_norm/total"] for s in trained if "grad_norm/total" in s),
        "cpu_seconds": round(time.process_time() - began, 2),
    }


# -------------------------------------------------------------------------------------------------------- the results
def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def interval(values: Sequence[float]) -> float:
    """Half of the 95 % interval of the mean, from the spread over seeds; infinite for one value.

    >>> round(interval([0.5, 0.6, 0.7]), 3)
    0.248
    """
    if len(values) < 2:
        return float("inf")
    quantile = T_975[len(values) - 2] if len(values) - 2 < len(T_975) else 1.96
    return quantile * statistics.stdev(values) / len(values) ** 0.5


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """Markdown, the best first."""
    rows = []
    for name in dict.fromkeys(r["algorithm"] for r in results):
        own = [r for r in results if r["algorithm"] == name]
        after = [r["after"] for r in own]
        mean, half = statistics.fmean(after), interval(after)
        verdict = "yes" if mean - half > own[0]["before"] else "**no**"
        settings = ", ".join(f"`{k}: {_short(v)}`" for k, v in OWN.get(name, {}).items()) or "defaults"
        shown = f"{mean:.3f} ± {half:.3f}" if len(own) > 1 else f"{mean:.3f}"
        cells = (
            f"`{name}`", shown, f"{min(after):.3f} to {max(after):.3f}", str(len(own)),
            verdict if len(own) > 1 else "one seed",
            f"{_mean(own, 'clipped'):.0%}", f"{_mean(own, 'kl_update'):.4f}", f"{_mean(own, 'prompts'):.0f}",
            f"{_mean(own, 'cpu_seconds'):.0f}", settings,
        )  # fmt: skip
        rows.append((mean, "| " + " | ".join(cells) + " |"))
    head = (
        "| algorithm | accuracy after, mean ± 95 % | smallest to largest | seeds | above the start | tokens clipped | "
        "KL of a step | prompts drawn | CPU-s a run | set |"
    )
    return "\n".join(
        [head, "|---|---|---|---|---|---|---|---|---|---|", *(row for _, row in sorted(rows, reverse=True))]
    )


def _mean(results: Sequence[Mapping[str, Any]], key: str) -> float:
    return statistics.fmean(r[key] for r in results)


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def document(results: Sequence[Mapping[str, Any]]) -> str:
    train, optim, sampling = BUDGET["train"], BUDGET["optim"], BUDGET["sampling"]
    before = results[0]["before"] if results else float("nan")
    return PAGE.format(
        before=f"{before:.3f}", held_out=HELD_OUT, steps=train["max_steps"], prompts=train["prompts_per_step"],
        group=sampling["group_size"], updates=train["minibatches"], rate=f"{optim['learning_rate']:g}",
        warmup=optim["warmup_steps"], seeds=max((r["seed"] for r in results), default=0), table=table(results),
    )  # fmt: skip


PAGE = """\
# Does every algorithm learn?

Made by `make bench-learning`. Every algorithm that samples starts from one checkpoint, the first stage of the demo, which
imitates a teacher that forgets carries and gets **{before}** of {held_out} held-out sums right. Each then has the same
budget: {steps} steps of {prompts} prompts with {group} completions, {updates} updates a step, learning rate {rate}
(linear to 0, {warmup} steps of warm-up), reward 1 for the right sum and 0 otherwise, no KL term but
what an algorithm's own loss has. A seed, 1 to {seeds}, sets both the order of the prompts and what is sampled; for one seed all
algorithms meet the same prompts in the same order. Measured is greedy accuracy on the held-out sums after the last step.

{table}

**How to read it.** The interval is Student's t over seeds. *Above the start*: its lower end is above {before}. *Tokens
clipped* is the mean share of `clip_fraction/low` and `/high` over the run (0 where an algorithm has no clip), *KL of a step*
the mean of `kl/update` in nats per token. *Prompts drawn* says what dynamic sampling cost: it draws more prompts to fill a
step with groups whose rewards differ, so under it a step costs more. *Set* is what was set beside the defaults.

This is a check that each loss, as it stands here, turns rewards into skill on a small model in a minute or less. It is no
ranking of methods: the learning rate is common, the task has answers of two or three tokens, and what separates the
methods in their papers (long completions, mixtures of experts, many updates on one batch) does not occur.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these algorithms")
    parser.add_argument("--seeds", type=int, default=5, help="1 to this")
    parser.add_argument("--workers", type=int, default=2, help="processes, of one thread each")
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "runs" / "learning", help="of results.jsonl and the start"
    )
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "algorithms" / "learning.md")
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    every = online()
    if unknown := sorted(set(given.only or ()) - set(every)):
        parser.error(f"--only: {', '.join(unknown)}: no algorithm that samples; there are: {', '.join(every)}")
    given.folder.mkdir(parents=True, exist_ok=True)
    path, start = given.folder / "results.jsonl", start_of(given.folder)
    prints = {name: fingerprint(start, name) for name in every}
    done = {(r["algorithm"], r["seed"]) for r in read(path) if r["fingerprint"] == prints.get(r["algorithm"])}
    seeds = range(1, given.seeds + 1)
    left = [(name, seed) for seed in seeds for name in given.only or every if (name, seed) not in done]
    print(f"{len(left)} runs to do, {len(done)} are there", file=sys.stderr, flush=True)
    failed = _run(left, str(start), given.workers, path)
    results = [r for r in read(path) if r["fingerprint"] == prints.get(r["algorithm"]) and r["seed"] in seeds]
    if not given.only:
        given.page.write_text(document(results))
    print(table(results))
    return 1 if failed else 0


def _run(left: list[tuple[str, int]], start: str, workers: int, path: Path) -> int:
    """Append a line to the results for each run that ended well; how many did not."""
    failed = 0
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=workers, mp_context=context) as pool:
        jobs = {pool.submit(learn, name, seed, start): (name, seed) for name, seed in left}
        for job in as_completed(jobs):
            name, seed = jobs[job]
            if (error := job.exception()) is not None:
                failed += 1
                print(f"{name} seed {seed}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                continue
            with path.open("a") as file:
                file.write(f"{json.dumps(job.result())}\n")
            print(f"{name} seed {seed}: {job.result()['after']:.3f}", file=sys.stderr, flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
