#!/usr/bin/env python3
"""PPO with transformers alone, as tutorials write it, on the load of `workloads.py`; the same JSON lines.

    python benchmarks/ppo_transformers.py --model tiny --steps 5 --dtype fp32

`generate` on padded prompts, padded forward passes with full logits, a critic with a trunk of its own, KL to a frozen
copy in the rewards, GAE, clipped losses, four micro-batches of 16 rows. Nothing of Trimtab is used, so its time is a
reference for Trimtab's. Needs torch and transformers.
"""

from __future__ import annotations

import copy
import os
import sys
import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import work as load
from phases import Phases, show
from work import Work

CLIP, GAMMA, LAM = 0.2, 1.0, 0.95


@dataclass(slots=True, kw_only=True)
class Rollouts:
    """[N, P+C] tokens; [N, C] the rest: the mask of completion tokens, and what was known before the update."""

    tokens: Any
    mask: Any
    rewards: Any
    old_log_probs: Any = None
    old_values: Any = None
    advantages: Any = None
    returns: Any = None


class Loop:
    def __init__(self, work: Work) -> None:
        import torch
        from torch import nn

        self.work, self.torch = work, torch
        kind = torch.bfloat16 if work.dtype == "bf16-pure" else torch.float32
        self.tokenizer = load.tokenizer(work)
        self.policy = load.model(work).to(kind).eval()
        self.reference = copy.deepcopy(self.policy).requires_grad_(False) if work.beta else None
        self.trunk = copy.deepcopy(self.policy.model)
        self.head = nn.Linear(self.trunk.config.hidden_size, 1, dtype=kind)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.roles = [[*self.policy.parameters()], [*self.trunk.parameters(), *self.head.parameters()]]
        self.adam = torch.optim.AdamW([p for role in self.roles for p in role], lr=load.LEARNING_RATE, weight_decay=0.0)

    def precision(self) -> AbstractContextManager[Any]:
        return self.torch.autocast("cpu", self.torch.bfloat16) if self.work.dtype == "bf16" else nullcontext()

    # ------------------------------------------------------------------------------------------------------ the passes
    def log_probs(self, model: Any, rows: Rollouts, part: slice) -> Any:
        """[n, C] of the completion tokens, by way of the logits of every place."""
        tokens, width = rows.tokens[part], self.work.prompt_tokens
        logits = model(input_ids=tokens, attention_mask=self.attention(rows, part)).logits
        every = logits[:, width - 1 : -1].float().log_softmax(-1)
        return every.gather(2, tokens[:, width:, None]).squeeze(2)

    def values(self, rows: Rollouts, part: slice) -> Any:
        """[n, C]: the critic's estimate before each completion token."""
        mask = self.attention(rows, part)
        states = self.trunk(input_ids=rows.tokens[part], attention_mask=mask).last_hidden_state
        return self.head(states[:, self.work.prompt_tokens - 1 : -1]).squeeze(2).float()

    def attention(self, rows: Rollouts, part: slice) -> Any:
        mask = rows.mask[part].long()
        return self.torch.cat([mask.new_ones(len(mask), self.work.prompt_tokens), mask], dim=1)

    def parts(self, rows: Rollouts) -> list[slice]:
        size = self.work.micro_rows
        return [slice(start, start + size) for start in range(0, len(rows.tokens), size)]

    # -------------------------------------------------------------------------------------------------------- one step
    def sample(self, prompts: Any) -> Rollouts:
        """A group of completions of each prompt. A completion ends with its first stop id."""
        torch, work = self.torch, self.work
        tokens = prompts.repeat_interleave(work.group, 0)
        with torch.no_grad(), self.precision():
            tokens = self.policy.generate(
                input_ids=tokens, attention_mask=torch.ones_like(tokens), do_sample=True, temperature=1.0, top_k=0,
                max_new_tokens=work.new_tokens,
            )  # fmt: skip
        new = tokens[:, work.prompt_tokens :]
        ended = torch.isin(new, torch.tensor(work.stop_ids, dtype=torch.int64)).long()
        return Rollouts(tokens=tokens, mask=(ended.cumsum(1) - ended) == 0, rewards=None)

    def score(self, rows: Rollouts) -> Any:
        new = rows.tokens[:, self.work.prompt_tokens :]
        kept = [tokens[mask].tolist() for tokens, mask in zip(new, rows.mask, strict=True)]
        texts = self.tokenizer.batch_decode(kept, skip_special_tokens=True)
        return self.torch.tensor(load.even_words(texts))

    def freeze(self, rows: Rollouts) -> Any:
        """Old log-probs and values into the rows; the reference's log-probs, [N, C] or None."""
        torch, old, values, reference = self.torch, [], [], []
        with torch.no_grad(), self.precision():
            for part in self.parts(rows):
                old.append(self.log_probs(self.policy, rows, part))
                values.append(self.values(rows, part))
                if self.reference is not None:
                    reference.append(self.log_probs(self.reference, rows, part))
        rows.old_log_probs, rows.old_values = torch.cat(old), torch.cat(values) * rows.mask
        return torch.cat(reference) if reference else None

    def estimate(self, rows: Rollouts, reference: Any) -> None:
        """Generalised advantage estimates, whitened; the KL is taken from the rewards."""
        torch, mask = self.torch, rows.mask.float()
        rewards = torch.zeros_like(rows.old_values)
        if reference is not None:
            rewards -= self.work.beta * (rows.old_log_probs - reference) * mask
        last = rows.mask.sum(1) - 1
        rewards[torch.arange(len(last)), last] += rows.rewards
        found, running = torch.zeros_like(rewards), torch.zeros(len(rewards))
        following = torch.zeros(len(rewards))
        for place in reversed(range(rewards.shape[1])):
            delta = rewards[:, place] + GAMMA * following - rows.old_values[:, place]
            running = (delta + GAMMA * LAM * running) * mask[:, place]
            following = rows.old_values[:, place] * mask[:, place]
            found[:, place] = running
        rows.returns = found + rows.old_values
        mean = (found * mask).sum() / mask.sum()
        deviation = (((found - mean) ** 2 * mask).sum() / (mask.sum() - 1)).sqrt()
        rows.advantages = (found - mean) / (deviation + 1e-8) * mask

    def loss(self, rows: Rollouts, part: slice) -> Any:
        """This micro-batch's share of the mean over the tokens of all of them."""
        torch, mask = self.torch, rows.mask[part]
        with self.precision():
            log_probs, values = self.log_probs(self.policy, rows, part), self.values(rows, part)
        ratio = (log_probs - rows.old_log_probs[part]).exp()
        advantages, old = rows.advantages[part], rows.old_values[part]
        policy = -torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
        near = old + (values - old).clamp(-CLIP, CLIP)
        returns = rows.returns[part]
        value = 0.5 * torch.maximum((values - returns) ** 2, (near - returns) ** 2)
        return (policy + value)[mask].sum() / rows.mask.sum()

    def step(self, prompts: Any, phases: Phases) -> None:
        with phases.phase("rollout"):
            rows = self.sample(prompts)
        with phases.phase("reward"):
            rows.rewards = self.score(rows)
        with phases.phase("logps"):
            reference = self.freeze(rows)
        self.estimate(rows, reference)
        new, count = int(rows.mask.sum()), len(rows.tokens)
        phases.count("generated", new)
        phases.count("tokens", new + count * self.work.prompt_tokens)
        phases.count("rows", count)
        for _ in range(self.work.mu):
            self.adam.zero_grad()
            for part in self.parts(rows):
                with phases.phase("forward"):
                    loss = self.loss(rows, part)
                with phases.phase("backward"):
                    loss.backward()
                phases.count("passed", int(self.attention(rows, part).sum()))
                phases.count("padded", rows.tokens[part].numel())
            for role in self.roles:
                self.torch.nn.utils.clip_grad_norm_(role, 1.0)
            with phases.phase("optimizer"):
                self.adam.step()


def measure(work: Work) -> list[dict[str, Any]]:
    """The lines of one measurement, in this process."""
    import torch
    import transformers

    torch.set_num_threads(work.threads)
    phases, loop = Phases(), Loop(work)
    every = loop.tokenizer([row["prompt"] for row in load.prompts(work)], return_tensors="pt").input_ids
    for prompts in every.split(work.prompts):
        phases.begin()
        loop.step(prompts, phases)
        phases.end()
    head = {
        "workload": "ppo", "model": work.model, "dtype": work.dtype, "seed": work.seed,
        "threads": torch.get_num_threads(), "mu": work.mu, "beta": work.beta, "stop": work.stops,
        "params": sum(p.numel() for p in loop.policy.parameters()),
        "transformers": transformers.__version__, "torch": torch.__version__,
    }  # fmt: skip
    return phases.lines(head, updates=work.mu)


def main() -> int:
    work = load.parse(__doc__, ("ppo",))
    os.environ["OMP_NUM_THREADS"] = str(work.threads)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    warnings.filterwarnings("ignore", module="transformers|torch")
    show(measure(work))
    return 0


if __name__ == "__main__":
    sys.exit(main())
