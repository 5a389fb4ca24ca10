#!/usr/bin/env python3
"""Peak memory and time of an update, each way in a process of its own, one JSON line a way.

    python benchmarks/memory.py --model middle --tokens 4096

Work: forward and backward of a policy-gradient loss over one micro-batch of 256-token completions, AdamW afterwards, on
a Llama with random weights. `peak` is the largest resident memory of the process less what it had before the model was
made; seconds are CPU seconds of one thread, the median of `--repeats` after one that warms up. On a shared machine
compare ratios of runs made in turn.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time

WAYS = {
    "float32": {},
    "checkpointing": {"gradient_checkpointing": True},
    "autocast": {"autocast": "bfloat16"},
    "autocast+checkpointing": {"autocast": "bfloat16", "gradient_checkpointing": True},
    "bfloat16": {"dtype": "bfloat16"},
    "lora": {"lora": True},
    "lora+bfloat16": {"lora": True, "dtype": "bfloat16"},
    "lora+bfloat16+checkpointing": {"lora": True, "dtype": "bfloat16", "gradient_checkpointing": True},
}
MODELS = {
    "small": {"hidden_size": 256, "num_hidden_layers": 8, "num_attention_heads": 8, "intermediate_size": 688},
    "middle": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 2048},
}
LENGTH = 256


def measure(way: str, model_name: str, tokens: int, repeats: int) -> dict[str, float]:
    import resource
    import statistics

    import psutil
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from trimtab.models import builtin, lora
    from trimtab.models.precision import of_policy
    from trimtab.models.roles import InProcessModels
    from trimtab.models.settings import Lora, PolicyModel
    from trimtab.train.optimizer import Optimizer
    from trimtab.train.settings import Optim
    from trimtab.types import Batch, Need

    torch.set_num_threads(1)
    chosen = dict(WAYS[way])
    settings = PolicyModel(**{**chosen, "lora": Lora(rank=16) if chosen.get("lora") else None})
    config = LlamaConfig(**MODELS[model_name], vocab_size=8192, max_position_embeddings=512)
    torch.manual_seed(0)
    before = psutil.Process().memory_info().rss
    precision = of_policy(settings)
    torch.set_default_dtype(precision.dtype)
    model = LlamaForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)
    adapter = None
    if settings.lora is not None:
        base = lora.Base(model="random", seed=0, dtype=settings.dtype, fingerprint="")
        adapter = lora.Adapter(model, settings.lora, base=base, seed=0)
    models = InProcessModels(
        model=model, tokenizer=builtin.tokenizer(), temperature=1.0, precision=precision, adapter=adapter,
        gradient_checkpointing=settings.gradient_checkpointing,
    )  # fmt: skip
    optimizer = Optimizer(models.parameters(), models.named_parameters(), Optim(), {})
    rows = tokens // LENGTH
    batch = Batch(
        tokens=torch.randint(3, 8192, (rows, LENGTH)), prompt_lengths=torch.ones(rows, dtype=torch.int64),
        completion_lengths=torch.full((rows,), LENGTH - 1), loss_mask=torch.ones(rows, LENGTH - 1, dtype=torch.bool),
        group_ids=torch.arange(rows), row_ids=torch.arange(rows), prompt_ids=torch.arange(rows),
        rewards=torch.zeros(rows), is_scored=torch.ones(rows, dtype=torch.bool),
        is_truncated=torch.zeros(rows, dtype=torch.bool),
    )  # fmt: skip
    seconds = []
    for _ in range(repeats + 1):
        started = time.process_time()
        found = models.forward(batch, Need.NONE)
        assert found.log_probs is not None
        (-found.log_probs.mean()).backward()
        seconds.append(time.process_time() - started)
        optimizer.step(optimizer.norms(), 1.0)
        optimizer.zero_grad()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    held = 1.0 * psutil.Process().memory_info().rss - before
    return {
        "peak_mib": round(peak / 2**20), "held_mib": round(held / 2**20),
        "parameters": sum(p.numel() for p in model.parameters()),
        "seconds": round(statistics.median(seconds[1:]), 2),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="middle")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=list(WAYS))
    parser.add_argument("--one", choices=WAYS, help="measure in this process")
    options = parser.parse_args()
    if options.one:
        print(json.dumps({"way": options.one, **measure(options.one, options.model, options.tokens, options.repeats)}))
        return
    for way in options.ways:
        command = [sys.executable, __file__, "--one", way, "--model", options.model, "--tokens", str(options.tokens)]
        subprocess.run([*command, "--repeats", str(options.repeats)], check=True)


if __name__ == "__main__":
    main()
