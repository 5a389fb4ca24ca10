"""Every key that a configuration accepts changes something that can be seen: each is flipped once in a real run."""

import json

import pytest

from tests.runs import small
from trimtab import config as configs
from trimtab.operate import finish
from trimtab.store import journal

ROWS = [{"question": f"{'1' * n}+1=", "prompt": f"{'2' * n}+1=", "answer": "3"} for n in range(1, 9)]
ONLINE = [
    "rewards=[{name: length, options: {max_tokens: 4}}]",
    "kl.coef=0.1",
    "policy.entropy_coef=0.1",
    "train.epochs_per_batch=2",
    "train.prompts_per_step=2",
    "eval.every=2",
    "checkpoint.rolling_every=1",
    "observe.samples.every=1",
    "data.train=ROWS",
    "data.validation=ROWS",
]
SFT = ["train.prompts_per_step=3", "train.minibatches=1"]
LONG = ["sampling.max_prompt_length=6"]
"""A limit that some prompts are over."""
MANY = ["checkpoint.rolling_every=1", "checkpoint.every=1", "checkpoint.rolling_keep=1", "train.max_steps=4"]
STILL = ["eval.every=1", "optim.learning_rate=0"]
PUNISHED = ["rewards=[{name: 'broken:odd', on_error: penalty}]"]
BROKEN = ["rewards=[{name: 'broken:odd', on_error: skip}]"]

# key, its other value, what else must be set for it to matter
FLIPS = {
    "ppo": [
        ("policy.model", "MODEL", []),
        ("policy.clip_low", "0.0001", []),
        ("policy.clip_high", "0.0001", []),
        ("policy.clip_ratio", "0.0001", []),
        ("policy.dual_clip", "1.0001", []),
        ("policy.entropy_coef", "0.5", []),
        ("policy.aggregation", "seq-mean-token-sum", []),
        ("policy.norm_length", "3", ["policy.aggregation=seq-mean-token-sum-norm"]),
        ("policy.log_ratio_clamp", "0.001", []),
        ("value.model", "shared", []),
        ("value.learning_rate", "0.1", []),
        ("value.coef", "0.1", []),
        ("value.clip_ratio", "0.0001", ["value.learning_rate=0.1"]),
        ("reference.model", "MODEL", []),
        ("sampling.group_size", "2", []),
        ("sampling.temperature", "0.5", []),
        ("sampling.top_p", "0.5", []),
        ("sampling.top_k", "3", []),
        ("sampling.stop", "[a, b, c, d, e, f, g, h, i, j, k]", []),
        ("sampling.max_prompt_length", "6", []),
        ("sampling.max_length", "13", []),
        ("sampling.long_prompts", "truncate", LONG),
        ("data.train", "builtin:addition", []),
        ("data.validation", "null", []),
        ("data.columns", "{prompt: question}", []),
        ("data.shuffle", "false", []),
        ("data.seed", "1", []),
        ("optim.learning_rate", "0.01", []),
        ("optim.schedule", "linear", []),
        ("optim.warmup_steps", "2", []),
        ("optim.max_grad_norm", "0.001", []),
        ("optim.betas", "[0.5, 0.5]", []),
        ("optim.weight_decay", "0.5", []),
        ("train.max_steps", "3", []),
        ("train.prompts_per_step", "3", []),
        ("train.epochs_per_batch", "1", []),
        ("train.minibatches", "1", []),
        ("train.micro_batch_tokens", "100", []),
        ("train.seed", "1", []),
        ("eval.every", "1", []),
        ("eval.prompts", "3", []),
        ("eval.early_stop.metric", "eval/length/mean", ["eval.early_stop.patience=1", *STILL]),
        ("eval.early_stop.patience", "1", STILL),
        ("checkpoint.every", "1", ["checkpoint.rolling_every=100"]),
        ("checkpoint.keep", "1", MANY),
        ("checkpoint.rolling_every", "2", []),
        ("checkpoint.rolling_keep", "1", ["checkpoint.rolling_keep=4", "train.max_steps=4"]),
        ("guard.probe_tokens", "5", []),
        ("observe.samples.every", "2", []),
        ("observe.samples.keep", "1", []),
        ("advantage.gamma", "0.5", []),
        ("advantage.lam", "0.1", ["value.learning_rate=0.1"]),
        ("advantage.whiten", "false", []),
        ("advantage.ddof", "0", []),
        ("advantage.bootstrap_truncated", "false", ["value.learning_rate=0.1"]),
        ("kl.coef", "0.5", []),
        ("kl.target", "old_policy", []),
        ("kl.estimator", "k2", []),
        ("kl.gradient", "direct", []),
        ("kl.where", "reward", []),
        ("rewards", "[{name: length, weight: 2.0, options: {max_tokens: 4}}]", []),
        ("rewards", "[{name: length, options: {max_tokens: 5}}]", []),
        ("rewards", "[{name: exact_match}]", []),
        ("rewards", "[{name: 'broken:odd', on_error: penalty}]", BROKEN),
        ("rewards", "[{name: 'broken:odd', on_error: penalty, penalty: -2.0}]", PUNISHED),
    ],
    "grpo": [
        ("advantage.baseline", "loo", []),
        ("advantage.scale_by", "none", []),
        ("advantage.ddof", "0", []),
        ("advantage.singleton", "raw", ["sampling.group_size=2", *BROKEN]),
    ],
    "sft": [("policy.aggregation", "seq-mean-token-mean", [])],
}  # fmt: skip
WITHOUT_ANOTHER_VALUE = {"policy.dtype", "sampling.engine"}
"""One value each so far."""
REFUSED = {"value.enabled": ("false", "ppo needs a critic")}
CASES = [(name, *flip) for name, flips in FLIPS.items() for flip in flips]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Rows with prompts of all lengths, a reward function that fails on some, a model directory, and runs made before."""
    folder = tmp_path_factory.mktemp("keys")
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)) + "\n")
    (folder / "broken.py").write_text(
        "def odd(prompts, completions, **_):\n"
        "    if any(len(c) % 2 for c in completions):\n        raise ValueError('odd')\n"
        "    return [float(len(c)) for c in completions]\n"
    )
    from trimtab.models import policy as policies

    loaded = policies.load("builtin:tiny", seed=77)
    loaded.model.save_pretrained(folder / "model")
    loaded.tokenizer.save_pretrained(folder / "model")
    return folder, {}


def seen(place, name, words):
    """Everything of a run that does not depend on the clock."""
    folder, made = place
    words = [w.replace("ROWS", str(folder / "rows.jsonl")).replace("MODEL", str(folder / "model")) for w in words]
    key = (name, *words)
    if key not in made:
        number = len(made)
        directory = small.train(small.write(folder, name, steps=2), folder / f"run-{number}", *words)
        reading = journal.read(directory.journal)
        records = [
            (r["kind"], r["step"], r.get("prompt_ids"), r.get("completions"), r.get("weights"), steady(r["metrics"]))
            for r in [*reading.steps(), *reading.evaluations()]
        ]
        files = sorted(p.name for p in [*directory.checkpoints.iterdir(), *directory.samples.iterdir()])
        newest = max(directory.checkpoints.iterdir(), key=lambda p: int(p.name))
        guard = json.loads((newest / "state.json").read_text())["guard"]
        made[key] = records, files, guard, directory.facts()["numerics"], directory.facts()["data"]
    return made[key]


def steady(metrics):
    return {n: v for n, v in metrics.items() if not n.startswith(("time/", "throughput/", "memory/"))}


@pytest.mark.parametrize(
    ("name", "key", "value", "others"), CASES, ids=[f"{c[0]}-{c[1]}-{n}" for n, c in enumerate(CASES)]
)
def test_a_flipped_key_changes_the_run(place, monkeypatch, name, key, value, others):
    monkeypatch.setattr(finish, "write_report", lambda *_, **__: [])
    base = [*(SFT if name == "sft" else ONLINE), *others]
    if name == "grpo" or key == "sampling.engine":
        base = [w for w in base if not w.startswith("value.")]
    assert seen(place, name, [*base, f"{key}={value}"]) != seen(place, name, base), f"{key}={value} changed nothing"


@pytest.mark.parametrize("name", list(FLIPS))
def test_no_key_is_left_out(tmp_path, name):
    words = [] if name == "sft" else ["kl.coef=0.1"]
    resolved = configs.load(small.write(tmp_path, name), words).resolved
    flipped = {key for flips in FLIPS.values() for key, *_ in flips} | set(REFUSED) | WITHOUT_ANOTHER_VALUE
    keys = {key for key, _, _ in configs.differences({}, resolved)} - {"algorithm", ""}
    assert not {k for k in keys if k not in flipped and not any(k.startswith(f + ".") for f in flipped)}


def test_what_cannot_be_flipped_is_refused(tmp_path):
    for key, (value, message) in REFUSED.items():
        with pytest.raises(configs.ConfigError, match=message):
            configs.load(small.write(tmp_path, "ppo"), [f"{key}={value}"])
