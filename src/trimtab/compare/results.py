"""What the runs of a comparison came to: scores by seed and prompt, curves, costs, and whether they were comparable."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trimtab import config as configs
from trimtab.compare.layout import Layout
from trimtab.compare.plan import Arm, Plan
from trimtab.compare.runner import cost_of, failure_of, state_of
from trimtab.observe.record import Points, curve
from trimtab.store import journal
from trimtab.store.recorder import read_samples
from trimtab.store.run_directory import RunDirectory

if TYPE_CHECKING:
    from numpy.typing import NDArray

CURVES = ("reward/mean", "loss/total", "kl/reference", "kl/update", "entropy", "length/mean")
"""Drawn beside the evaluation."""
PER_PROMPT = "eval/reward/mean"
"""The evaluation of which every prompt's part is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One run of an arm."""

    seed: int
    state: str
    """`done` or `diverged`."""
    cause: str
    """Why it diverged."""
    step: int
    """The last one that was evaluated."""
    score: float | None
    """The metric at that step."""
    prompts: Mapping[int, float]
    """Reward of each evaluation prompt there, by its id; empty where the metric is not made of prompts."""
    curves: Mapping[str, Points]
    steps: int
    samples: int
    tokens: int
    seconds: float
    """Of training steps."""
    cost: Mapping[str, float]
    on_gpu: bool
    rollbacks: int
    alarms: int
    parameters: Mapping[str, int]
    order: tuple[tuple[int, ...], ...]
    """Prompt ids of each step."""
    weights: str
    """Before the first step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmResult:
    arm: Arm
    runs: tuple[Result, ...]

    @property
    def scores(self) -> list[float]:
        return [run.score for run in self.runs if run.score is not None]

    @property
    def diverged(self) -> int:
        return sum(run.state == "diverged" for run in self.runs)

    def mean(self, what: str) -> float:
        """Of a cost or count over the runs; not a number if there are none."""
        values = [float(run.cost.get(what, getattr(run, what, math.nan))) for run in self.runs]
        return sum(values) / len(values) if values else math.nan


def read(layout: Layout, plan: Plan) -> list[ArmResult]:
    """Of every arm the runs that have ended."""
    metric = str(plan.locked["evaluation"]["metric"])
    found = []
    for arm in plan.arms:
        runs = []
        for seed in plan.seeds:
            directory = RunDirectory(layout.run(arm.folder, seed))
            if state_of(directory) in ("done", "diverged"):
                runs.append(_result(directory, seed, metric, cost_of(layout.cost(arm.folder, seed))))
        found.append(ArmResult(arm=arm, runs=tuple(runs)))
    return found


def _result(directory: RunDirectory, seed: int, metric: str, cost: Mapping[str, float]) -> Result:
    reading, facts = journal.read(directory.journal), directory.facts()
    steps, evaluations = reading.steps(), reading.evaluations()
    judged = [(int(e["step"]), float(e["metrics"][metric])) for e in evaluations if metric in e["metrics"]]
    step, score = judged[-1] if judged else (0, None)
    samples = read_samples(directory.samples / f"eval-{step:07}.jsonl") if metric == PER_PROMPT else []
    state = state_of(directory)
    every = [r for r in reading.records if r["kind"] == "step"]
    tokens = sum(r["metrics"].get("length/mean", 0.0) * len(r.get("completions") or ()) for r in every)
    return Result(
        seed=seed,
        state=state,
        cause=str(failure_of(directory).get("cause", "")) if state == "diverged" else "",
        step=step,
        score=score,
        prompts={s.prompt_id: float(s.reward) for s in samples if s.reward is not None},
        curves={name: points for name in (metric, *CURVES) if (points := curve([*steps, *evaluations], name))},
        steps=len(every),
        samples=sum(len(r.get("completions") or ()) for r in every),
        tokens=round(tokens),
        seconds=sum(r["metrics"].get("time/step", 0.0) for r in every),
        cost=cost,
        on_gpu=facts.get("numerics", {}).get("device") == "cuda",
        rollbacks=len(reading.events("rolled back")),
        alarms=len(reading.events("alarm")),
        parameters=facts.get("parameters", {}),
        order=tuple(tuple(r.get("prompt_ids") or ()) for r in steps),
        weights=_weights_before(directory),
    )


def _weights_before(directory: RunDirectory) -> str:
    """SHA-256 of the policy's files in the checkpoint of step 0."""
    try:
        manifest = json.loads((directory.checkpoints / "0" / "manifest.json").read_bytes())
        files = manifest["files"]
        return ",".join(
            str(facts["sha256"])
            for name, facts in sorted(files.items())
            if name.startswith("policy/") and "safetensors" in name
        )
    except (OSError, ValueError, KeyError, TypeError):
        return ""


# ------------------------------------------------------------------------------------------------------------- pairing
def paired(one: ArmResult, other: ArmResult) -> tuple[NDArray[Any], NDArray[Any], tuple[int, ...]] | None:
    """Scores [S, P] of the seeds that both have and the prompts that both have answered in all of them, and the seeds.

    Where a metric is not made of prompts P is 1. None if they have no seed in common.
    """
    import numpy as np

    first, second = ({r.seed: r for r in arm.runs if r.score is not None} for arm in (one, other))
    seeds = tuple(sorted(first.keys() & second.keys()))
    if not seeds:
        return None
    runs = [(first[seed], second[seed]) for seed in seeds]
    common = set.intersection(*(set(run.prompts) for pair in runs for run in pair))
    if not common:
        return (
            np.array([[a.score] for a, _ in runs], dtype=np.float64),
            np.array([[b.score] for _, b in runs], dtype=np.float64),
            seeds,
        )
    order = sorted(common)
    tables = [np.array([[pair[side].prompts[p] for p in order] for pair in runs], dtype=np.float64) for side in (0, 1)]
    return tables[0], tables[1], seeds


# ----------------------------------------------------------------------------------------------------------- the proof
@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDifference:
    """A setting that is not the same in all arms."""

    key: str
    values: tuple[Any, ...]
    """By arm; None where the arm does not read it."""
    why: str
    """`varied`, or that the arms' algorithms have their own values of it."""


def config_differences(plan: Plan) -> list[ConfigDifference]:
    """Every resolved setting in which the arms differ, and why."""
    seed = plan.seeds[0]
    resolved = [dict(_flat(plan.config_of(arm, seed).resolved)) for arm in plan.arms]
    keys = sorted({key for values in resolved for key in values})
    found = []
    for key in keys:
        values = tuple(config.get(key) for config in resolved)
        if all(value == values[0] for value in values[1:]):
            continue
        is_varied = any(key == name or key.startswith(name + ".") for name in plan.varied)
        is_algorithm = "algorithm" in plan.varied
        why = "varied" if is_varied else "each algorithm's own" if is_algorithm else "follows from what is varied"
        found.append(ConfigDifference(key=key, values=values, why=why))
    return found


def _flat(values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(key, value) for key, _, value in configs.differences({}, values)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Something that had to be the same, and whether it was."""

    name: str
    is_same: bool
    said: str


def checks(plan: Plan, arms: Sequence[ArmResult]) -> list[Check]:
    """Whether the runs had in common what a comparison needs, seed by seed, from what they wrote down."""
    return [_same_start(plan, arms), _same_order(plan, arms), _same_prompts(arms)]


def _of_a_seed(plan: Plan, arms: Sequence[ArmResult]) -> list[tuple[int, list[tuple[str, Result]]]]:
    return [(seed, [(a.arm.label, r) for a in arms for r in a.runs if r.seed == seed]) for seed in plan.seeds]


def _same_start(plan: Plan, arms: Sequence[ArmResult]) -> Check:
    bad = [seed for seed, runs in _of_a_seed(plan, arms) if len({r.weights for _, r in runs if r.weights}) > 1]
    varied = [name for name in plan.varied if name.startswith(("policy.model", "train.seed", "policy.lora"))]
    said = "the policy's weights before the first step are equal bit for bit in all arms, seed by seed"
    if bad:
        because = f"; {', '.join(varied)} is varied" if varied else ""
        said = f"the policy's weights before the first step differ between arms in seed {_listed(bad)}{because}"
    return Check(name="start", is_same=not bad, said=said)


def _same_order(plan: Plan, arms: Sequence[ArmResult]) -> Check:
    first: dict[int, int] = {}
    for seed, runs in _of_a_seed(plan, arms):
        orders = [run.order for _, run in runs]
        length = min(map(len, orders), default=0)
        differs = next((n for n in range(length) if len({order[n] for order in orders}) > 1), None)
        if differs is not None:
            first[seed] = differs + 1
    if not first:
        return Check(name="order", is_same=True, said="every step had the same prompts in all arms, in the same order")
    step = min(first.values())
    why = (
        f"{', '.join(n for n in plan.varied if n == 'data.seed')} is varied"
        if "data.seed" in plan.varied
        else "arms that draw more prompts (dynamic sampling), make larger steps or went back are further in the same order"
    )
    return Check(name="order", is_same=False, said=f"from step {step} on the steps had other prompts; {why}")


def _same_prompts(arms: Sequence[ArmResult]) -> Check:
    asked = {frozenset(run.prompts) for arm in arms for run in arm.runs}
    if len(asked) <= 1:
        count = len(next(iter(asked), frozenset()))
        said = (
            f"every run was evaluated on the same {count:,} prompts" if count else "every run had the same evaluation"
        )
        return Check(name="evaluation", is_same=True, said=said)
    return Check(
        name="evaluation",
        is_same=False,
        said="not every run answered every evaluation prompt; those that all did count",
    )


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
