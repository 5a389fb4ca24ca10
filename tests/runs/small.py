"""Small real runs: the built-in model and task, a few prompts, a few steps."""

import json
from pathlib import Path

from trimtab import config as configs
from trimtab.operate.start import train_in
from trimtab.store import journal
from trimtab.store.run_directory import RunDirectory
from trimtab.train import loop

BASE = """
algorithm: {algorithm}
policy: {{model: builtin:tiny}}
data: {{train: builtin:addition, validation: builtin:addition}}
rewards: [{{name: length, options: {{max_tokens: 4}}}}]
sampling: {{group_size: 4, max_length: 14}}
optim: {{learning_rate: 1e-3}}
train: {{max_steps: {steps}, prompts_per_step: 4, minibatches: 2}}
eval: {{every: 2, prompts: 6, early_stop: {{patience: null}}}}
checkpoint: {{rolling_every: 1, rolling_keep: 10}}
guard: {{rules: {{kl_update: {{then: warn}}}}}}
"""
"""The learning rate is high, so that four steps do something; a guard that acts on that has tests of its own."""


def write(folder, algorithm="grpo", steps=4, more=""):
    path = Path(folder) / f"{algorithm}.yaml"
    path.write_text(BASE.format(algorithm=algorithm, steps=steps) + more)
    return path


def train(path, directory, *words, fresh=False):
    directory = RunDirectory(Path(directory))
    train_in(configs.load(path, words), directory, fresh=fresh)
    return directory


def steps(directory):
    return journal.read(directory.journal).steps()


def evidence(directory):
    """What must be the same in two runs that did the same, step by step."""
    return [
        (
            s["step"],
            s["prompt_ids"],
            s["completions"],
            s["weights"],
            {
                n: v
                for n, v in s["metrics"].items()
                if n.startswith(("loss/", "kl/", "reward/", "grad_norm/", "advantage/"))
            },
        )
        for s in steps(directory)
    ]


def failure(directory):
    return json.loads(directory.failure.read_text())


class Interrupted(Exception):
    """Stands for the end of the process."""


def interrupt_after(monkeypatch, step):
    """Raise behind the save of a step, as a process that dies there would end."""
    save = loop._save

    def saved(run, report, *, last):
        save(run, report, last=last)
        if report.step == step:
            raise Interrupted

    monkeypatch.setattr(loop, "_save", saved)
