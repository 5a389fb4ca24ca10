"""The runs that are killed: one a algorithm, as small as they can be while all that has a state has one."""

from __future__ import annotations

import json
from pathlib import Path

STEPS = 7
ROWS = 4
ROWS_A_STEP = 2
"""So an epoch is two steps, and the run ends in the fourth."""
ROLLING_EVERY = 2
"""Steps between saves."""

BASE = """
algorithm: {algorithm}
policy: {{model: {model}}}
data: {{train: rows.jsonl, validation: rows.jsonl}}
optim: {{learning_rate: 3e-3, schedule: cosine, warmup_steps: 2}}
train: {{max_steps: {steps}, prompts_per_step: {rows_a_step}}}
eval: {{every: 3, prompts: 2, early_stop: {{patience: null}}}}
checkpoint: {{every: 3, keep: 1, rolling_every: {rolling_every}, rolling_keep: 2, async: {beside}}}
observe: {{samples: {{every: 2, keep: 2}}}}
"""

ONLINE = """
rewards: [{name: regex, options: {pattern: "[0-9]"}}]
sampling: {group_size: 3, max_length: 12}
"""

MORE = {
    # A controller, a critic, two updates a step.
    "ppo": ONLINE.replace("group_size: 3", "group_size: 2")
    + "kl: {coef: 0.1, controller: adaptive, controller_target: 0.05, controller_horizon: 8}\n",
    # A second source with a cursor of its own.
    "grpo": ONLINE + "mix: [{algorithm: sft, data: shown.jsonl, weight: 0.5, rows_per_step: 1}]\n",
    # Groups that wait for the next step.
    "dapo": ONLINE,
    "gspo": ONLINE,
    "dpo": "",
    "sft": "",
}
ALGORITHMS = tuple(MORE)
WAITING = ("gspo", "dpo")
"""Train on when a save has ended; the others save beside training."""


def write(folder: Path, algorithm: str) -> Path:
    """The configuration of a run in a folder of its own, with its data beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    sums = [(f"{a}+{a + 1}=", str(2 * a + 1)) for a in range(ROWS)]
    shown = [{"prompt": prompt, "completion": answer} for prompt, answer in sums]
    pairs = [{"prompt": prompt, "chosen": answer, "rejected": "7"} for prompt, answer in sums]
    asked = [{"prompt": prompt} for prompt, _ in sums]
    _lines(folder / "rows.jsonl", {"sft": shown, "dpo": pairs}.get(algorithm, asked))
    _lines(folder / "shown.jsonl", shown)
    path = folder / "run.yaml"
    settings = {
        "model": folder.parent / "model",
        "steps": STEPS,
        "rows_a_step": ROWS_A_STEP,
        "rolling_every": ROLLING_EVERY,
    }
    settings["beside"] = str(algorithm not in WAITING).lower()
    path.write_text(BASE.format(algorithm=algorithm, **settings) + MORE[algorithm])
    return path


def _lines(path: Path, rows: list[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_model(folder: Path) -> None:
    """A Llama of 8,000 parameters over characters, always the same."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from trimtab.models import builtin

    torch.manual_seed(0)
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    LlamaForCausalLM(LlamaConfig(**{**builtin.CONFIG, **size, **heads})).save_pretrained(folder)
    builtin.tokenizer().save_pretrained(folder)
