"""Run directories as training leaves them, made in a moment: small files, real manifests, a real journal."""

import json
import os
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from trimtab.store import registry_schema
from trimtab.store.checkpoints import CheckpointStore
from trimtab.store.journal import Journal
from trimtab.store.registry import Registry
from trimtab.store.registry_names import Root
from trimtab.store.run_directory import RunDirectory
from trimtab.store.settings import Checkpoint

RESOLVED = {
    "algorithm": "grpo",
    "policy": {"model": "builtin:tiny", "clip_ratio": 0.2, "lora": None},
    "optim": {"learning_rate": 1e-5},
    "rewards": [{"name": "length", "model": None}],
    "train": {"max_steps": 40, "cautious": False},
    "checkpoint": {"every": 20},
    "eval": {"early_stop": {"metric": "auto"}},
}


def merged(values, changes):
    """A nested dict with dotted keys set."""
    found = json.loads(json.dumps(values))
    for key, value in changes.items():
        *above, last = key.split(".")
        place = found
        for part in above:
            place = place.setdefault(part, {})
        place[last] = value
    return found


def make(root, name, *, steps=(), rewards=(), ended="all steps done", config=None, started="2026-05-01T10:00:00+0200"):
    """A run.

    Args:
        steps: of its checkpoints.
        rewards: eval/reward/mean at steps 0, 10, 20, ...
        ended: None: it did not come to its end.
        config: dotted keys over RESOLVED.
    """
    directory = RunDirectory(Path(root) / name)
    directory.create()
    resolved = merged(RESOLVED, config or {})
    directory.add_config({"algorithm": resolved["algorithm"]}, resolved, folder=Path(root), why="started", who="ada")
    journal = Journal(directory.journal)
    values = dict(zip(range(0, 1000, 10), rewards, strict=False))
    for step, value in values.items():
        journal.append("eval", step=step, metrics={"eval/reward/mean": value, "eval/count": 8.0})
        if step:
            journal.append("step", step=step, prompt_ids=[1], metrics={"reward/mean": value / 2, "loss/total": 1.0})
    for step in steps:
        checkpoint(directory, step, {} if step not in values else {"eval/reward/mean": values[step]})
    done = {} if ended is None else {"ended": "2026-05-01T11:00:00+0200", "outcome": ended}
    directory.describe(
        id=name,
        started=started,
        algorithm=resolved["algorithm"],
        model=resolved["policy"]["model"],
        data={"train": "rows.jsonl", "validation": None},
        data_fingerprints={"train": "ab" * 32},
        versions={"trimtab": "0.1.0"},
        seeds={"train": 0},
        **done,
    )
    return directory


def checkpoint(directory, step, metrics=None, *, policy_only=False, weight=None):
    """A whole one, with a weight that says which step it is of."""
    store = CheckpointStore(directory.checkpoints, Checkpoint(), max_steps=1)
    scratch = directory.checkpoints / f".{step}.new"
    (scratch / "policy").mkdir(parents=True)
    save_file({"w": torch.full((64,), float(step if weight is None else weight))}, scratch / "policy/model.safetensors")
    (scratch / "policy/config.json").write_text("{}")
    if not policy_only:
        save_file({"m": torch.zeros(64)}, scratch / "optimizer.safetensors")
        (scratch / "state.json").write_text("{}")
    store._seal(scratch, step, metrics or {}, saved=time.time(), policy_only=policy_only, entry=None)


def fail(directory, code, cause="it broke"):
    directory.failure.write_text(json.dumps({"code": code, "cause": cause}))


def samples(directory, name, *, days):
    """A file of completions that is so old."""
    path = directory.samples / name
    path.write_text('{"text": "a"}\n')
    then = time.time() - days * 86400
    os.utime(path, (then, then))
    return path


def opened(root, said=None):
    return Registry(Root(Path(root)), (said if said is not None else []).append)


def database(root):
    return Path(root) / registry_schema.FILE
