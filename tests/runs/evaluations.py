"""Evaluations of small models, for tests in this process and in others."""

import json
from pathlib import Path

from trimtab import assemble
from trimtab import config as configs
from trimtab.operate import evaluate as operate
from trimtab.operate.evaluation_document import Asked
from trimtab.operate.subject import Subject
from trimtab.train.ranks import Ranks

CONFIG = """
algorithm: grpo
policy: {model: builtin:tiny}
data: {train: rows.jsonl, validation: rows.jsonl}
rewards: [{name: "judge:first", weight: 0.5}, {name: regex, weight: 0.5, options: {pattern: "([a-zA-Z])", column: answer}}]
sampling: {group_size: 4, max_length: 14}
train: {max_steps: 1, prompts_per_step: 4}
"""
JUDGE = """
def first(prompts, completions, **columns):
    return [float(text[:1].isalpha()) for text in completions]
"""
"""Of a model that was never trained about half of the completions begin with a letter."""


def write(folder, prompts=20):
    rows = [
        {"prompt": f"{n}+{n}=", "answer": "abcXYZ"[n % 6]} | ({} if n % 4 == 3 else {"scene": f"s{n % 4}"})
        for n in range(prompts)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "judge.py").write_text(JUDGE)
    (folder / "config.yaml").write_text(CONFIG)
    return folder / "config.yaml"


def evaluated(path, to, *, words=(), say=lambda _: None, **asked):
    config = configs.load(path, words)
    wanted = Asked(**asked)
    wanted.check()
    subject = Subject(config=config, name=config.policy.model, step=None)
    return operate.evaluate(subject, assemble.read_rows(config), wanted, lambda _: Path(to), Ranks(), say)


def by_ranks(name, rank, size):
    """For `rank_pool`: the evaluation of a configuration by `size` processes, three prompts a chunk."""
    operate.CHUNK_PROMPTS = 3
    path = Path(name)
    evaluated(path, path.parent / f"by-{size}", samples=5, ks=(1, 2, 5), by="scene")
    return {"rank": rank}
