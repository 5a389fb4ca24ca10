#!/usr/bin/env python3
"""Time the phases of Trimtab's steps on a fixed load and check the work; one JSON line a phase.

    python benchmarks/workloads.py --workload grpo --model tiny --steps 5 --dtype fp32

The run is one of `trimtab.prepare(...).train()`: the loop, engine, scorer and learner of `trimtab train`, timed where one
calls the other. A step is 8 prompts of 128 tokens with 8 completions of at most 128 new tokens, temperature 1; a Llama
with random weights (tiny: 0.9 M parameters, vocabulary 512; small: 22.7 M, 32000); reward the share of even words; AdamW
at 1e-5; KL coefficient 0.04 against a frozen copy; four micro-batches of 16 rows. ppo has a critic with a trunk of its
own and takes the KL from the rewards. dpo and rm read 32 pairs a step, each side of 32 to 512 tokens with the prompt that
they share and an end of sequence; beta 0.1; micro-batches of as many tokens as 8 of the longest pairs.

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

WORKLOADS = ("grpo", "ppo", "dpo", "rm")
NEVER = 1_000_000
TOLERANCE = {"fp32": 1e-5, "bf16": 2e-2, "bf16-pure": 3e-2}
"""Nats, of the mean difference: rounding in other orders of summation."""


@dataclass(slots=True)
class Seen:
    """What the first step's passes gave, before the first update; by row of the batch."""

    batch: Any = None
    passes: list[tuple[str, Any, Any]] = field(default_factory=list)
    """Which, the rows, and their log-probs [n, T] or scores [n]."""
    has_updated: bool = False

    def add(self, name: str, batch: Any, values: Any) -> None:
        if not self.has_updated and values is not None:
            self.passes.append((name, batch, values.detach().float().clone()))


def config_of(work: Work) -> dict[str, Any]:
    """The run's configuration."""
    precision = {"fp32": {}, "bf16": {"autocast": "bfloat16"}, "bf16-pure": {"dtype": "bfloat16"}}[work.dtype]
    if work.reads:
        return _reading_config(work, precision)
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


def _reading_config(work: Work, precision: dict[str, str]) -> dict[str, Any]:
    length = work.longest + 1  # the end of sequence
    return {
        "algorithm": load.READ[work.workload],
        "policy": precision,
        "data": {"shuffle": False},
        **(
            {"preference": {"beta": 0.1}, "reference": {"cache": work.precompute_ref}} if work.workload == "dpo" else {}
        ),
        "sampling": {"max_prompt_length": work.longest, "max_length": length},
        "optim": {"learning_rate": load.LEARNING_RATE},
        "train": {
            "max_steps": work.steps + 1,
            "prompts_per_step": work.pairs,
            "epochs_per_batch": work.mu,
            "micro_batch_tokens": work.micro_rows * length,
            "seed": work.seed,
        },
        "checkpoint": {"every": NEVER, "rolling_every": NEVER},
    }


@contextmanager
def watched(phases: Phases, seen: Seen, *, ask_ahead: int = 0) -> Iterator[None]:
    """Time what the parts of a run do for each other, and keep the first step's log-probs.

    Args:
        phases: is charged.
        seen: is filled.
        ask_ahead: have the first step ask the reference about the rows of all steps, so many at once; 0: about its own.
    """
    import torch

    from trimtab.data.sources import ReadingSource
    from trimtab.models.roles import InProcessModels
    from trimtab.models.scoring import ScoringModels
    from trimtab.rewards.scorer import Scorer
    from trimtab.rollout.in_process import InProcessEngine
    from trimtab.rollout.scheduler import SamplingSource
    from trimtab.train import update
    from trimtab.train.optimizer import Optimizer

    freeze, step = InProcessModels.freeze, Optimizer.step
    every: list[Any] = []
    """The rows of the steps to come, until the reference has been asked about them."""

    def drawn(source: type[Any]) -> Any:
        next_batch = source.next_batch

        def call(self: Any) -> Any:
            if ask_ahead and phases.setup is None:
                places = range(self.rows_per_step, len(self.rows))
                every.append(self.kind.collated([self.rows[place] for place in places], places))
            phases.begin()
            batch = next_batch(self)
            seen.batch = batch if phases.is_first else seen.batch
            phases.count("tokens", int(batch.lengths.sum()))
            phases.count("generated", int(batch.completion_lengths.sum()))
            phases.count("rows", len(batch))
            return batch

        return call

    def frozen(self: Any, batch: Any, need: Any) -> Any:
        with phases.phase("logps"):
            found = freeze(self, batch, need)
            for ahead in [every.pop()] if every else []:
                for index in torch.arange(len(ahead)).split(ask_ahead):
                    freeze(self, ahead.rows(index), need)
        if phases.is_first:
            seen.add("logps", batch, found.old_log_probs if found.old_log_probs is not None else found.ref_log_probs)
        return found

    def passed(models: type[Any]) -> Any:
        forward = models.forward

        def call(self: Any, batch: Any, need: Any) -> Any:
            trains = torch.is_grad_enabled()
            with phases.phase("forward" if trains else "probe"):
                found = forward(self, batch, need)
            if trains:
                phases.count("passed", int(batch.lengths.sum()))
                phases.count("padded", batch.tokens.numel())
                if phases.is_first:
                    seen.add("forward", batch, found.scores if found.log_probs is None else found.log_probs)
            return found

        return call

    def stepped(self: Any, *args: Any) -> None:
        seen.has_updated = True
        with phases.phase("optimizer"):
            step(self, *args)

    with ExitStack() as stack:
        for owner, name, replacement in (
            (SamplingSource, "next_batch", drawn(SamplingSource)),
            (ReadingSource, "next_batch", drawn(ReadingSource)),
            (InProcessModels, "freeze", frozen),
            (InProcessModels, "forward", passed(InProcessModels)),
            (ScoringModels, "forward", passed(ScoringModels)),
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
    around = torch.autocast("cpu", torch.bfloat16) if work.dtype == "bf16" else nullcontext()
    with torch.no_grad(), around:
        every = _scores(model, batch) if work.workload == "rm" else _log_probs(model, batch)
    place = {number: row for row, number in enumerate(batch.row_ids.tolist())}
    sampled = [] if batch.rollout_log_probs is None else [("rollout", batch, batch.rollout_log_probs.float())]
    gaps: dict[str, list[Any]] = {}
    for name, rows, values in [*sampled, *seen.passes]:
        index = [place[number] for number in rows.row_ids.tolist()]
        gap = every[index] - values if every.ndim == 1 else _on(rows.loss_mask, every[index], values)
        gaps.setdefault(name, []).append(gap.abs())
    joined = {name: torch.cat(several) for name, several in gaps.items()}
    means = {name: float(gap.mean()) for name, gap in joined.items()}
    return {
        "max_difference": {name: float(f"{float(gap.max()):.3g}") for name, gap in joined.items()},
        "mean_difference": {name: float(f"{mean:.3g}") for name, mean in means.items()},
        "tokens": int(batch.loss_mask.sum()),
        "is_right": bool(means) and all(mean <= TOLERANCE[work.dtype] for mean in means.values()),
    }


def _on(mask: Any, expected: Any, found: Any) -> Any:
    return (expected[:, : mask.shape[1]] - found)[mask]


def _scores(model: Any, batch: Any) -> Any:
    """[B], as transformers reads them off a padded row."""
    import torch

    found = []
    for rows, lengths in zip(batch.tokens.split(4), batch.lengths.split(4), strict=True):
        is_token = torch.arange(rows.shape[1]) < lengths[:, None]
        found.append(model(input_ids=rows, attention_mask=is_token.long()).logits.squeeze(-1).float())
    return torch.cat(found)


def _log_probs(model: Any, batch: Any) -> Any:
    """[B, T], from the full logits of padded rows."""
    import torch

    every = torch.zeros(batch.loss_mask.shape)
    for row, (size, start) in enumerate(zip(batch.lengths.tolist(), batch.prompt_lengths.tolist(), strict=True)):
        if row % 4 == 0:
            rows = batch.tokens[row : row + 4]
            is_token = torch.arange(rows.shape[1]) < batch.lengths[row : row + 4, None]
            logits = model(input_ids=rows, attention_mask=is_token.long(), use_cache=False).logits
        found = logits[row % 4, start - 1 : size - 1].float().log_softmax(-1)
        every[row, : size - start] = found.gather(1, batch.tokens[row, start:size, None]).squeeze(1)
    return every


def measure(work: Work) -> list[dict[str, Any]]:
    """The lines of one measurement, in this process."""
    import torch
    import transformers

    import trimtab

    torch.set_num_threads(work.threads)
    phases, seen = Phases(), Seen()
    model = load.model(work)
    with (
        tempfile.TemporaryDirectory() as folder,
        watched(phases, seen, ask_ahead=work.micro_rows * work.precompute_ref),
    ):
        start = model
        if work.workload == "rm":  # a model with a head is named, not handed over
            start = Path(folder) / "start"
            for part in (model, load.tokenizer(work)):
                part.save_pretrained(start)
        trimtab.prepare(
            config_of(work),
            model=start,
            tokenizer=load.tokenizer(work),
            prompts=load.pairs(work) if work.reads else load.prompts(work),
            rewards=None if work.reads else [load.even_words],
            run_dir=Path(folder) / "run",
            recorders=[_EndOfStep(phases)],
            quiet=True,
        ).train()
    head = {
        "workload": work.workload, "model": work.model, "dtype": work.dtype, "seed": work.seed,
        "threads": torch.get_num_threads(), "mu": work.mu, "beta": work.beta, "stop": work.stops,
        "precompute_ref": work.precompute_ref,
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
