#!/usr/bin/env python3
"""What saving costs training: a run in which every other save is written beside training and the others in their place.

    python benchmarks/saving.py                    the demo's GRPO, a save after each step (2 % of its 45 steps)
    python benchmarks/saving.py --model middle     a Llama of 50 M parameters with random weights

One JSON line for each way, then `ratio`. `stall_seconds` is how long training stood still for a save, `save_seconds` how
long it took until the files were on the disk, `step_seconds` a step that began just behind such a save: beside training,
a thread hashes and writes meanwhile, and shares the processor with it. All three are medians. `share` is what saving
takes of training at the default interval of a run of `--of` steps: the stall, and what the next step lost to the thread,
each against the time between two saves. Alternating in one run, both ways meet the same machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

SIZES = {"hidden_size": 640, "num_hidden_layers": 10, "num_attention_heads": 10, "intermediate_size": 1728}
"""Of `middle`; its vocabulary is that of the built-in tokenizer."""
CONFIG = """
algorithm: grpo
policy: {{model: {model}, clip_ratio: 0.2}}
data: {{train: builtin:addition}}
rewards: [{{name: length, options: {{max_tokens: 4}}}}]
sampling: {{group_size: 8, max_length: 16}}
optim: {{learning_rate: 1e-6}}
train: {{max_steps: {steps}, prompts_per_step: {prompts}, minibatches: 4}}
eval: {{early_stop: {{patience: null}}}}
checkpoint: {{rolling_every: 1}}
guard: {{rules: {{kl_update: {{then: warn}}}}}}
"""


def middle(folder: Path) -> Path:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    from trimtab.models import builtin

    logging.disable_progress_bar()
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**{**builtin.CONFIG, **SIZES, "num_key_value_heads": 10}))
    model.save_pretrained(folder)
    builtin.tokenizer().save_pretrained(folder)
    return folder


def train(model: str, steps: int, prompts: int, folder: Path) -> Path:
    """A run with a save after each step, in turn beside training and in its place."""
    from trimtab import config as configs
    from trimtab.operate import finish
    from trimtab.operate.start import Front, train_in
    from trimtab.store.checkpoints import CheckpointStore
    from trimtab.store.run_directory import RunDirectory

    save_if_due = CheckpointStore.save_if_due

    def alternating(self: Any, step: int, *rest: Any, **more: Any) -> float | None:
        self.wait()  # no save is charged with the one before
        self.settings = replace(self.settings, async_=step % 2 == 0)
        return save_if_due(self, step, *rest, **more)

    path = folder / "grpo.yaml"
    path.write_text(CONFIG.format(model=model, steps=steps, prompts=prompts))
    quiet = Front(say=lambda _: None, is_shown=False)
    with (
        mock.patch.object(CheckpointStore, "save_if_due", alternating),
        mock.patch.object(finish, "write_report", return_value=[]),  # not what is measured, and slow to import
    ):
        train_in(configs.load(path, []), RunDirectory(folder / "run"), front=quiet)
    return folder / "run"


def measured(run: Path, steps: int) -> dict[str, dict[str, float]]:
    from trimtab.store import journal

    reading = journal.read(run / "journal.jsonl")
    took = {record["step"]: float(record["metrics"]["time/step"]) for record in reading.steps()}
    found = {}
    for way, remainder in (("beside training", 0), ("in its place", 1)):
        saves = [e for e in reading.events("saved") if e["step"] % 2 == remainder and 2 <= e["step"] < steps]
        found[way] = {
            "saves": len(saves),
            "stall_seconds": statistics.median(e["stall_seconds"] for e in saves),
            "save_seconds": statistics.median(e["seconds"] for e in saves),
            "step_seconds": statistics.median(took[e["step"] + 1] for e in saves),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["tiny", "middle"], default="tiny")
    parser.add_argument("--steps", type=int, default=24, help="that are measured, two at least of each way")
    parser.add_argument("--prompts", type=int, default=64, help="a step, eight completions each")
    parser.add_argument("--of", type=int, default=45, help="steps of the run whose default interval `share` is for")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        model = "builtin:tiny" if options.model == "tiny" else str(middle(folder / "model"))
        run = train(model, options.steps, options.prompts, folder)
        found = measured(run, options.steps)
        size = sum(p.stat().st_size for p in (run / "checkpoints" / str(options.steps)).rglob("*") if p.is_file())
    interval = max(1, options.of // 50)
    plain = found["in its place"]["step_seconds"]
    for way, figures in found.items():
        lost = figures["stall_seconds"] + max(0.0, figures["step_seconds"] - plain)
        shares = {"stall_share": figures["stall_seconds"] / (interval * plain), "share": lost / (interval * plain)}
        line = {"way": way, "model": options.model, "checkpoint_mib": size / 2**20, **figures, **shares}
        print(json.dumps({name: round(v, 4) if isinstance(v, float) else v for name, v in line.items()}))
    both = [found[way]["stall_seconds"] for way in ("beside training", "in its place")]
    print(json.dumps({"ratio": round(both[0] / both[1], 4), "interval": interval}))


if __name__ == "__main__":
    main()
