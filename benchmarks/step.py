#!/usr/bin/env python3
"""Time the phases of a GRPO step, one JSON line a phase.

    python benchmarks/step.py --model tiny --steps 5

Work: 8 prompts x 8 completions, prompts of 128 tokens, at most 128 new tokens, temperature 1, one update, KL coefficient
0.04 against a frozen copy. Models are Llamas with random weights; a few more ids than one end a completion, so that
lengths are ragged. Seconds are CPU seconds of this process with one thread, medians over the steps after one warm-up:
on a shared machine compare ratios of runs made in turn.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from trimtab import algorithms
from trimtab.algorithms.base import Kl, Shared
from trimtab.data import collate
from trimtab.models import builtin
from trimtab.models.roles import InProcessModels, frozen_copy
from trimtab.rollout.in_process import InProcessEngine
from trimtab.rollout.settings import Sampling
from trimtab.train.learner import Learner
from trimtab.train.settings import Optim, Train
from trimtab.types import Draw, Prompt, Scored

SHAPE = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
MODELS = {
    "tiny": dict(zip(SHAPE, (128, 4, 4, 344, 512), strict=True)),
    "small": dict(zip(SHAPE, (256, 8, 8, 688, 32000), strict=True)),
}
PROMPTS, GROUP, PROMPT_TOKENS, NEW_TOKENS = 8, 8, 128, 128


def build(name: str) -> tuple[InProcessEngine, Learner]:
    torch.manual_seed(0)
    config = LlamaConfig(**MODELS[name], tie_word_embeddings=False, pad_token_id=0, bos_token_id=None, eos_token_id=1)
    model = LlamaForCausalLM(config).eval()
    tokenizer = builtin.tokenizer()
    ends = frozenset({1, *range(3, 3 + config.vocab_size // 96)})
    settings = Sampling(group_size=GROUP, max_length=PROMPT_TOKENS + NEW_TOKENS)
    engine = InProcessEngine(model=model, tokenizer=tokenizer, eos_ids=ends, settings=settings, seed=0)
    models = InProcessModels(model=model, tokenizer=tokenizer, temperature=1.0, reference=frozen_copy(model))
    grpo = algorithms.load("grpo")
    learner = Learner(
        models=models,
        algorithm=grpo,
        config=grpo.config(shared=Shared(kl=Kl(coef=0.04))),
        optim=Optim(learning_rate=1e-5),
        train=Train(max_steps=1000),
        micro_batch_tokens=4096,
        probe_tokens=1,
    )
    return engine, learner


def one_step(engine: InProcessEngine, learner: Learner, step: int, vocabulary: int) -> dict[str, float]:
    random = torch.Generator().manual_seed(step)
    rows = torch.randint(3, vocabulary, (PROMPTS, PROMPT_TOKENS), generator=random).tolist()
    draws = [Draw(prompt=Prompt(id=i, text="", tokens=tuple(r)), draw=step * PROMPTS + i) for i, r in enumerate(rows)]
    started = time.process_time()
    rollouts = engine.generate(draws, group_size=GROUP)
    sampled = time.process_time()
    rewards = [sum(t % 2 == 0 for t in r.tokens) / len(r.tokens) for r in rollouts]
    scored = [Scored(rollout=r, reward=x, parts=(x,), is_scored=True) for r, x in zip(rollouts, rewards, strict=True)]
    report = learner.update(collate.of_rollouts(scored))
    ended = time.process_time()
    phases = {name: report.metrics[f"time/{name}"] for name in ("freeze", "forward", "backward", "optimizer")}
    tokens = sum(len(r.tokens) + len(r.prompt.tokens) for r in rollouts)
    return {
        "step": ended - started,
        "rollout": sampled - started,
        **phases,
        "tokens": float(tokens),
        "generated": float(sum(len(r.tokens) for r in rollouts)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="tiny")
    parser.add_argument("--steps", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    engine, learner = build(given.model)
    vocabulary = int(MODELS[given.model]["vocab_size"])
    found = [one_step(engine, learner, step, vocabulary) for step in range(given.steps + 1)][1:]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    medians = {name: statistics.median(f[name] for f in found) for name in found[0]}
    what = {"workload": "grpo", "model": given.model}
    for name in ("step", "rollout", "freeze", "forward", "backward", "optimizer"):
        print(json.dumps({**what, "phase": name, "cpu_seconds": round(medians[name], 4)}))
    rate = medians["tokens"] / medians["step"]
    print(json.dumps({**what, "tokens_per_cpu_second": round(rate), "peak_rss_mb": round(peak)}))


if __name__ == "__main__":
    main()
