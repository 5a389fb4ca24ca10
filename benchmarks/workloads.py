#!/usr/bin/env python3
"""Time the phases of Trimtab's steps on a fixed load and check the work; one JSON line a phase.

    python benchmarks/workloads.py --workload grpo --model tiny --steps 5 --dtype fp32

The run is one of `trimtab.prepare(...).train()`: the loop, engine, scorer and learner of `trimtab train`, timed where one
calls the other. A step is 8 prompts of 128 tokens with 8 completions of at most 128 new tokens, temperature 1; a Llama
with random weights (tiny: 0.9 M parameters, vocabulary 512; small: 22.7 M, 32000); reward the share of even words; AdamW
at 1e-5; KL coefficient 0.04 against a frozen copy; four micro-batches of 16 rows. ppo has a critic with a trunk of its
own and takes the KL from the rewards.

Phases: setup (start of the process to the first step, imports included), first_step (warms up), step, rollout, reward,
logps (old and reference log-probs, old values), forward, backward, optimizer, probe (how far the step moved the policy),
other (collation, statistics, journal). The line `check` has the largest and the mean difference, in nats, between the
log-probs of the first step's rows and a padded forward pass with full logits of the same rows: those that the engine
reported (`rollout`), those before the update (`logps`) and those of the loss (`forward`). A mean above the tolerance ends
with exit code 1.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)

import work as load  # noqa: E402
from phases import Phases, show  # noqa: E402
from work import Work  # noqa: E402

WORKLOADS = ("grpo", "ppo")
NEVER = 1_000_000
TOLERANCE = {"fp32": 1e-5, "bf16": 2e-2, "bf16-pure": 3e-2}
"""Nats, of the mean difference: rounding in other orders of summation."""


@dataclass(slots=True)
class Seen:
    """What the first step's passes gave, before the first update; by row of the batch."""

    batch: Any = None
    passes: list[tuple[str, Any, Any]] = field(default_factory=list)
    """Which, the rows, and their log-probs [n, T]."""
    has_updated: bool = False

    def add(self, name: str, batch: Any, log_probs: Any) -> None:
        if not self.has_updated and log_probs is not None:
            self.passes.append((name, batch, log_probs.detach().float().clone()))


def config_of(work: Work) -> dict[str, Any]:
    """The run's configuration."""
    precision = {"fp32": {}, "bf16": {"autocast": "bfloat16"}, "bf16-pure": {"dtype": "bfloat16"}}[work.dtype]
    length = work.prompt_tokens + work.new_tokens
    kl = {"coef": work.beta, **({"where": "reward"} if work.workload == "ppo" else {})}
    return {
        "algorithm": work.workload,
        "policy": precision,
        "kl": kl,
        "data": {"shuffle": False},
        "sampling": {"group_size": work.group, "max_length": length, "max_prompt_length": work.prompt_tokens},
        "optim": {"learning_rate": load.LEARNING_RATE},
        "train": {
            "max_steps": work.steps + 1,
            "prompts_per_step": work.prompts,
            "epochs_per_batch": work.mu,
            "micro_batch_tokens": work.micro_rows * length,
            "seed": work.seed,
        },
        "checkpoint": {"every": NEVER, "rolling_every": NEVER},
    }


@contextmanager
def watched(phases: Phases, seen: Seen) -> Iterator[None]:
    """Time what the parts of a run do for each other, and keep the first step's log-probs."""
    import torch

    from trimtab.models.roles import InProcessModels
    from trimtab.rewards.scorer import Scorer
    from trimtab.rollout.in_process import InProcessEngine
    from trimtab.rollout.scheduler import SamplingSource
    from trimtab.train import update
    from trimtab.train.optimizer import Optimizer

    next_batch, freeze, forward = SamplingSource.next_batch, InProcessModels.freeze, InProcessModels.forward
    step = Optimizer.step

    def sampled(self: Any) -> Any:
        phases.begin()
        batch = next_batch(self)
        seen.batch = batch if phases.is_first else seen.batch
        phases.count("tokens", int(batch.lengths.sum()))
        phases.count("generated", int(batch.completion_lengths.sum()))
        phases.count("rows", len(batch))
        return batch

    def frozen(self: Any, batch: Any, need: Any) -> Any:
        with phases.phase("logps"):
            found = freeze(self, batch, need)
        if phases.is_first:
            seen.add("logps", batch, found.old_log_probs)
        return found

    def passed(self: Any, batch: Any, need: Any) -> Any:
        trains = torch.is_grad_enabled()
        with phases.phase("forward" if trains else "probe"):
            found = forward(self, batch, need)
        if trains:
            phases.count("passed", int(batch.lengths.sum()))
            phases.count("padded", batch.tokens.numel())
            if phases.is_first:
                seen.add("forward", batch, found.log_probs)
        return found

    def stepped(self: Any, *args: Any) -> None:
        seen.has_updated = True
        with phases.phase("optimizer"):
            step(self, *args)

    with ExitStack() as stack:
        for owner, name, replacement in (
            (SamplingSource, "next_batch", sampled),
            (InProcessModels, "freeze", frozen),
            (InProcessModels, "forward", passed),
            (Optimizer, "step", stepped),
            (InProcessEngine, "generate", phases.timed(InProcessEngine.generate, "rollout")),
            (Scorer, "score", phases.timed(Scorer.score, "reward")),
            (update, "loss_of", phases.timed(update.loss_of, "forward")),
            (torch.Tensor, "backward", phases.timed(torch.Tensor.backward, "backward")),
        ):
            stack.enter_context(mock.patch.object(owner, name, replacement))
        yield


class _EndOfStep:
    """A recorder: it is told of a step when the step is over and written down, before a checkpoint is made."""

    def __init__(self, phases: Phases) -> None:
        self._phases = phases

    def record(self, report: Any) -> None:
        self._phases.end()

    def event(self, kind: str, **facts: Any) -> None: ...

    def close(self) -> None: ...


def differences(work: Work, seen: Seen) -> dict[str, Any]:
    """Log-probs of the first step against those of the same rows in a padded pass of the model as it was."""
    import torch

    model = load.model(work).to(torch.bfloat16 if work.dtype == "bf16-pure" else torch.float32).eval()
    batch = seen.batch
    every = torch.zeros(batch.loss_mask.shape)
    around = torch.autocast("cpu", torch.bfloat16) if work.dtype == "bf16" else nullcontext()
    with torch.no_grad(), around:
        for row, (size, start) in enumerate(zip(batch.lengths.tolist(), batch.prompt_lengths.tolist(), strict=True)):
            if row % 4 == 0:
                rows = batch.tokens[row : row + 4]
                is_token = torch.arange(rows.shape[1]) < batch.lengths[row : row + 4, None]
                logits = model(input_ids=rows, attention_mask=is_token.long(), use_cache=False).logits
            found = logits[row % 4, start - 1 : size - 1].float().log_softmax(-1)
            every[row, : size - start] = found.gather(1, batch.tokens[row, start:size, None]).squeeze(1)
    place = {number: row for row, number in enumerate(batch.row_ids.tolist())}
    passes = [("rollout", batch, batch.rollout_log_probs.float()), *seen.passes]
    gaps: dict[str, list[Any]] = {}
    for name, rows, log_probs in passes:
        index = [place[number] for number in rows.row_ids.tolist()]
        mask = rows.loss_mask
        gaps.setdefault(name, []).append((every[index, : mask.shape[1]] - log_probs)[mask].abs())
    joined = {name: torch.cat(several) for name, several in gaps.items()}
    means = {name: float(gap.mean()) for name, gap in joined.items()}
    return {
        "max_difference": {name: float(f"{float(gap.max()):.3g}") for name, gap in joined.items()},
        "mean_difference": {name: float(f"{mean:.3g}") for name, mean in means.items()},
        "tokens": int(batch.loss_mask.sum()),
        "is_right": all(mean <= TOLERANCE[work.dtype] for mean in means.values()),
    }


def measure(work: Work) -> list[dict[str, Any]]:
    """The lines of one measurement, in this process."""
    import torch
    import transformers

    import trimtab

    torch.set_num_threads(work.threads)
    phases, seen = Phases(), Seen()
    model = load.model(work)
    with tempfile.TemporaryDirectory() as folder, watched(phases, seen):
        trimtab.prepare(
            config_of(work),
            model=model,
            tokenizer=load.tokenizer(work),
            prompts=load.prompts(work),
            rewards=[load.even_words],
            run_dir=Path(folder) / "run",
            recorders=[_EndOfStep(phases)],
            quiet=True,
        ).train()
    head = {
        "workload": work.workload, "model": work.model, "dtype": work.dtype, "seed": work.seed,
        "threads": torch.get_num_threads(), "mu": work.mu, "beta": work.beta, "stop": work.stops,
        "params": sum(p.numel() for p in model.parameters()),
        "trimtab": trimtab.__version__, "transformers": transformers.__version__, "torch": torch.__version__,
    }  # fmt: skip
    return [*phases.lines(head, updates=work.mu), {**head, "phase": "check", **differences(work, seen)}]


def main() -> int:
    work = load.parse(__doc__, WORKLOADS)
    os.environ["OMP_NUM_THREADS"] = str(work.threads)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    warnings.filterwarnings("ignore", module="transformers|torch")
    lines = measure(work)
    show(lines)
    return 0 if lines[-1]["is_right"] else 1


if __name__ == "__main__":
    sys.exit(main())
