"""Two processes make the steps of one: the same prompts, once each, the same losses."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trimtab import config as configs
from trimtab.operate.start import train_in
from trimtab.store import journal
from trimtab.store.run_directory import RunDirectory

CONFIG = """
algorithm: {algorithm}
policy: {{model: builtin:tiny, clip_ratio: 0.2, entropy_coef: 0.01}}
kl: {{coef: 0.05}}
data: {{train: builtin:addition, validation: builtin:addition}}
rewards: [{{name: length, options: {{max_tokens: 3}}}}]
sampling: {{group_size: 4, max_length: 14}}
optim: {{learning_rate: 3e-4}}
train: {{max_steps: 2, prompts_per_step: 5, minibatches: 2, micro_batch_tokens: 200}}
eval: {{every: 2, prompts: 7}}
"""
ALGORITHMS = ("grpo", "ppo", "dapo")
"""The last with dynamic sampling: the ranks must agree on the groups that are kept."""
READING = ("dpo", "kto")
"""Pairs stay whole on a rank; mismatched completions come from the rows of all ranks."""


def train_by_torchrun(folder, names):
    """The journals and facts of each algorithm, trained under one torchrun with two processes."""
    for name in names:
        (folder / f"{name}.yaml").write_text(CONFIG.format(algorithm=name))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [str(Path(__file__).with_name("two_ranks.py")), *(str(folder / f"{name}.yaml") for name in names)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return {
        name: (journal.read(folder / name / "journal.jsonl"), json.loads((folder / name / "run.json").read_text()))
        for name in names
    }


@pytest.mark.soak  # two processes that the launcher starts do it in `make test`: test_local_processes
@pytest.mark.parametrize("names", [("grpo",), ("ppo", "dapo"), READING], ids="-".join)
def test_two_gloo_processes_make_the_steps_of_one(tmp_path, names):
    two_processes = train_by_torchrun(tmp_path, names)
    for algorithm in names:
        one = RunDirectory(tmp_path / f"{algorithm}-alone")
        train_in(configs.load(tmp_path / f"{algorithm}.yaml"), one, fresh=False)
        found = compare if algorithm in ALGORITHMS else compare_reading
        found(journal.read(one.journal), *two_processes[algorithm])


def compare_reading(one, two, facts):
    """The rows of a step stand in another order, and are the same."""
    assert facts["ranks"] == 2
    assert len(one.steps()) == len(two.steps()) == 2
    for a, b in zip(one.steps(), two.steps(), strict=True):
        assert sorted(a["prompt_ids"]) == sorted(b["prompt_ids"])
        assert sorted(a["completions"]) == sorted(b["completions"])
        for name in [n for n in a["metrics"] if n.startswith(("loss/", "preference/", "kto/", "grad_norm/total"))]:
            assert b["metrics"][name] == pytest.approx(a["metrics"][name], abs=1e-5), f"step {a['step']} {name}"
    assert "loss/preference" in one.steps()[0]["metrics"]
    for a, b in zip(one.evaluations(), two.evaluations(), strict=True):
        assert b["metrics"] == pytest.approx(a["metrics"], abs=1e-5)


def compare(one, two, facts):
    assert facts["ranks"] == 2
    assert len(one.steps()) == len(two.steps()) == 2
    for a, b in zip(one.steps(), two.steps(), strict=True):
        assert a["prompt_ids"] == b["prompt_ids"]
        assert a["completions"] == b["completions"]
        for name in [n for n in a["metrics"] if n.startswith(("sampling/", "data/"))]:
            assert b["metrics"][name] == a["metrics"][name], f"step {a['step']} {name}"
        for name in [n for n in a["metrics"] if n.startswith(("loss/", "grad_norm/", "entropy", "kl/"))]:
            assert b["metrics"][name] == pytest.approx(a["metrics"][name], abs=1e-5), f"step {a['step']} {name}"
        assert b["metrics"]["reward/mean"] == pytest.approx(a["metrics"]["reward/mean"], abs=1e-6)
        assert b["metrics"]["updates/count"] == 2
    assert {"loss/policy", "loss/entropy", "loss/kl", "loss/total"} <= set(one.steps()[0]["metrics"])
    ids = [i for step in two.steps() for i in step["prompt_ids"]]
    assert all(ids.count(i) == 4 for i in ids), "a prompt was used twice or left out"
    assert two.evaluations()[-1]["metrics"]["eval/count"] == 7


@pytest.mark.soak
def test_two_processes_swap_and_go_back_as_one_does(tmp_path):
    """Asked for before the first step, so that every process meets it at the same boundary."""
    from trimtab.store import requests

    def asked(directory):
        directory.create()
        requests.ask(
            directory, requests.Request(kind="swap", changes={"kl.coef": 0.2, "algorithm": "gspo"}, who="test")
        )
        return directory

    asked(RunDirectory(tmp_path / "grpo"))
    reading, facts = train_by_torchrun(tmp_path, ("grpo",))["grpo"]
    one = asked(RunDirectory(tmp_path / "alone"))
    train_in(configs.load(tmp_path / "grpo.yaml"), one, fresh=False)
    compare(journal.read(one.journal), reading, facts)
    assert [e["changes"] for e in reading.events("swapped")] == [{"kl.coef": 0.2, "algorithm": "gspo"}]
    back = [
        [(e["step"], e["was"], e["rule"]) for e in r.events("rolled back")]
        for r in (journal.read(one.journal), reading)
    ]
    assert back[0] == back[1] != []  # the steps are too large for the guard
