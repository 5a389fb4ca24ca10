"""A run holds after many steps what it held after a few: memory, descriptors, threads, and its own objects."""

import gc
from collections import Counter
from dataclasses import replace
from statistics import linear_regression

import psutil
import pytest

from tests.runs import small
from trimtab import config as configs
from trimtab.models import builtin
from trimtab.models import policy as policies
from trimtab.operate import finish
from trimtab.operate.start import COMMAND, silently, train_in
from trimtab.store.run_directory import RunDirectory

ACTING = ("no_signal", "no_spread", "reward_fall", "loss_divergence", "kl_reference")
"""Rules that a run which is not to learn anything would meet."""
RULES = ", ".join(f"{name}: {{then: 'off'}}" for name in ACTING)
WORDS = (
    *("train.prompts_per_step=1", "train.minibatches=1", "optim.learning_rate=1e-7", f"guard.rules={{{RULES}}}"),
    *("eval.every=40", "eval.prompts=1", "checkpoint.rolling_every=40", "checkpoint.rolling_keep=2"),
    *("observe.samples.every=10", "observe.samples.keep=3", "sampling.max_length=12"),
)
SAMPLED = (
    *("sampling.group_size=2", "sampling.max_prompt_length=8", "kl.coef=0.01"),
    "rewards=[{name: length, options: {max_tokens: 4}}]",
)
MIB = 2.0**20


class Watch:
    """A recorder that looks at the process after every step, and at what the collector knows after some."""

    def __init__(self, looks):
        self.process = psutil.Process()
        self.looks = looks
        """Steps after which objects are counted."""
        self.memory, self.descriptors, self.threads, self.objects = {}, {}, {}, {}

    def record(self, report):
        if report.phase != "train":
            return
        with self.process.oneshot():
            self.memory[report.step] = self.process.memory_info().rss / MIB
            self.threads[report.step] = self.process.num_threads()
        self.descriptors[report.step] = self.process.num_fds()
        if report.step in self.looks:
            gc.collect()
            kinds = map(type, gc.get_objects())
            self.objects[report.step] = Counter(k.__name__ for k in kinds if str(k.__module__).startswith("trimtab"))

    def event(self, kind, **facts):
        pass

    def close(self):
        pass


def small_model(folder):
    """Of one narrow layer: what it computes is not what is looked at."""
    from transformers import LlamaConfig, LlamaForCausalLM

    policies.load("builtin:tiny", seed=0).tokenizer.save_pretrained(folder)
    narrow = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(**{**builtin.CONFIG, **narrow, "num_key_value_heads": 2})).save_pretrained(folder)
    return folder


def watched(tmp_path, monkeypatch, algorithm, steps, looks, *words):
    monkeypatch.setattr(finish, "write_report", lambda *_, **__: [])
    watch = Watch(looks)
    model = f"policy.model={small_model(tmp_path / 'model')}"
    config = configs.load(small.write(tmp_path, algorithm, steps=steps), [*WORDS, model, *words])
    front = replace(COMMAND, say=silently, is_shown=False, recorders=[watch])
    train_in(config, RunDirectory(tmp_path / "run"), front=front)
    assert len(watch.memory) == steps
    return watch


def least(counts, steps):
    """Of some steps: a save that is under way beside training has a thread and files of its own."""
    return min(counts[step] for step in steps)


def test_after_two_hundred_steps_there_are_no_more_descriptors_threads_and_objects(tmp_path, monkeypatch):
    watch = watched(tmp_path, monkeypatch, "grpo", 200, (75, 115, 195), *SAMPLED)
    for counts in (watch.descriptors, watch.threads):
        assert least(counts, range(161, 201)) == least(counts, range(41, 81))
    assert watch.objects[75]["Learner"] == 1
    assert watch.objects[195] == watch.objects[115] == watch.objects[75]


@pytest.mark.soak
@pytest.mark.parametrize("algorithm", ["grpo", "ppo", "dpo"])
def test_memory_does_not_rise_over_two_thousand_steps(tmp_path, monkeypatch, algorithm):
    words = () if algorithm == "dpo" else SAMPLED
    watch = watched(tmp_path, monkeypatch, algorithm, 2000, (495, 1995), *words)
    steps = range(500, 2001)
    slope = linear_regression(steps, [watch.memory[step] for step in steps]).slope * 100
    first, last = watch.memory[500], watch.memory[2000]
    print(
        f"\n{algorithm}: {slope:+.3f} MiB per 100 steps from step 500 on, {first:.1f} MiB there, {last:.1f} MiB at 2000"
    )
    assert slope < 1.0
    assert watch.objects[1995] == watch.objects[495]
    for counts in (watch.descriptors, watch.threads):
        assert least(counts, range(1901, 2001)) == least(counts, range(401, 501))
