"""Every key that a configuration accepts changes something that can be seen: each is flipped once in a real run."""

import json
import re

import pytest

from tests import online
from tests.runs import small
from trimtab import algorithms
from trimtab import config as configs
from trimtab.config import sections
from trimtab.errors import GuardError
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
ADAPTED = ["policy.lora={rank: 4}"]
HARD = ["rewards=[{name: exact_match}]", "sampling.dynamic.enabled=true"]
"""Groups without spread, so that there are refills."""
SURPLUS = [
    "sampling.dynamic.enabled=true",
    "sampling.group_size=3",
    "train.prompts_per_step=4",
    "data.train=builtin:addition",
]
"""More groups with a spread than the first step needs."""
MANY = ["checkpoint.rolling_every=1", "checkpoint.every=1", "checkpoint.rolling_keep=1", "train.max_steps=4"]
STILL = ["eval.every=1", "optim.learning_rate=0"]
PUNISHED = ["rewards=[{name: 'broken:odd', on_error: penalty}]"]
BROKEN = ["rewards=[{name: 'broken:odd', on_error: skip}]"]

ASTRAY = ["guard.rules={kl_update: {act: 0.3}}", "optim.learning_rate=2e-3"]
"""A step too far, and a way back."""
STEERED = ["kl.where=loss", "kl.controller_target=1e-9", "train.max_steps=2"]
HASTY = ["optim.learning_rate=0.05"]
APART = ["sampling.top_p=0.5"]
"""The engine samples from another distribution than the trainer has."""
CORRECTED = ["mismatch.mode=truncate", "mismatch.high=0.5", *APART]
PICKED = ["policy.cov_share=1.0", "policy.cov_low=-9.0", "policy.cov_high=9.0"]
QUICK = [
    "rewards=[{name: length, options: {max_tokens: 7}}, {name: length, options: {max_tokens: 5}}]",
    "kl.coef=0.1",
    "train.max_steps=1",
    "train.epochs_per_batch=2",
    "train.prompts_per_step=2",
    "data.train=ROWS",
    "data.validation=null",
]
"""For the algorithms that differ from the first two in few keys."""

# key, its other value, what else must be set for it to matter
FLIPS = {
    "ppo": [
        ("policy.model", "MODEL", []),
        ("policy.dtype", "bfloat16", []),
        ("policy.autocast", "bfloat16", []),
        ("policy.lora", "{rank: 4}", []),
        ("policy.lora", "{rank: 2}", ADAPTED),
        ("policy.lora", "{rank: 4, alpha: 8.0}", ADAPTED),
        ("policy.lora", "{rank: 4, target_modules: [q_proj]}", ADAPTED),
        ("reference.dtype", "bfloat16", []),
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
        ("value.warmup_steps", "1", []),
        ("reference.model", "MODEL", []),
        ("sampling.group_size", "2", []),
        ("sampling.temperature", "0.5", []),
        ("sampling.temperature", "{schedule: linear, from: 1.0, to: 0.5, steps: 2}", []),
        ("sampling.top_p", "0.5", []),
        ("sampling.top_k", "3", []),
        ("sampling.stop", "[a, b, c, d, e, f, g, h, i, j, k]", []),
        ("sampling.max_prompt_length", "6", []),
        ("sampling.max_length", "13", []),
        ("sampling.long_prompts", "truncate", LONG),
        ("sampling.dynamic.enabled", "true", []),
        ("sampling.max_staleness", "0", SURPLUS),
        ("sampling.dynamic.max_refills", "0", HARD),
        ("sampling.overlong.buffer", "4", []),
        ("sampling.overlong.factor", "2.0", ["sampling.overlong.buffer=4"]),
        ("sampling.overlong.filter", "true", []),
        ("data.train", "builtin:addition", []),
        ("data.validation", "null", []),
        ("data.columns", "{prompt: question}", []),
        ("data.as_chat", "true", ["policy.model=MODEL"]),
        ("data.shuffle", "false", []),
        ("data.seed", "1", []),
        ("optim.learning_rate", "0.01", []),
        ("optim.schedule", "linear", []),
        ("optim.warmup_steps", "2", []),
        ("optim.max_grad_norm", "0.001", []),
        ("optim.betas", "[0.5, 0.5]", []),
        ("optim.weight_decay", "0.5", []),
        ("optim.max_loss_scale", "1024", ["policy.autocast=float16"]),
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
        ("checkpoint.weights_every", "1", ["checkpoint.rolling_every=2"]),
        ("guard.probe_tokens", "5", []),
        ("guard.max_rollbacks", "0", ASTRAY),
        ("guard.learning_rate_factor", "0.9", ASTRAY),
        ("guard.kl_factor", "4.0", ASTRAY),
        ("guard.rules.kl_update.act", "1000.0", ASTRAY),
        ("guard.rules.kl_update.warn", "1000.0", []),
        ("guard.rules.kl_update.for", "3", ASTRAY),
        ("guard.rules.kl_update.then", "stop", ASTRAY),
        ("guard.rules", "{entropy: {warn: 9.0, for: 1}}", []),
        ("kl.limit.act", "1000.0", [*ASTRAY, "guard.rules={}"]),
        ("observe.language", "zh", []),
        ("observe.trackers", "[tensorboard]", []),
        ("observe.webhook", "{url: '${env:DEAD_HOOK}'}", []),
        ("train.cautious", "{steps: 2}", []),
        ("observe.samples.every", "2", []),
        ("observe.samples.keep", "1", []),
        ("observe.term_norms_every", "1", []),
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
        ("rewards", "[{model: JUDGE}]", []),
        ("rewards", "[{name: 'broken:odd', on_error: penalty}]", BROKEN),
        ("rewards", "[{name: 'broken:odd', on_error: penalty, penalty: -2.0}]", PUNISHED),
    ],
    "grpo": [
        ("advantage.baseline", "loo", []),
        ("advantage.scale_by", "none", []),
        ("advantage.ddof", "0", []),
        ("advantage.singleton", "raw", ["sampling.group_size=2", *BROKEN]),
        ("advantage.leave_out_masked", "true", ["sampling.overlong.filter=true"]),
        ("policy.count_dead_rows", "true", ["sampling.overlong.filter=true"]),
    ],
    "reinforce": [
        ("advantage.gamma", "0.5", []),
        ("advantage.whiten", "true", []),
        ("advantage.ddof", "0", ["advantage.whiten=true"]),
    ],
    "reinforce_pp_baseline": [("advantage.whiten", "false", []), ("advantage.ddof", "0", [])],
    "rloo": [
        ("advantage.combine", "normalize_then_sum", []),
        ("kl.controller", "penalty", STEERED),
        ("kl.controller_target", "9.0", ["kl.controller=penalty", *STEERED]),
        ("kl.controller_horizon", "9", ["kl.controller=adaptive", *STEERED]),
        ("kl.unit", "sequence", ["kl.controller=adaptive", *STEERED]),
        ("kl.stop_epochs", "true", HASTY),
        ("kl.limit.warn", "100.0", ["kl.stop_epochs=true", *HASTY]),
        ("mismatch.mode", "truncate", APART),
        ("mismatch.mode", "mask", CORRECTED),
        ("mismatch.mode", "geometric_mask", CORRECTED),
        ("mismatch.level", "sequence", CORRECTED),
        ("mismatch.low", "0.58", ["mismatch.mode=truncate", *APART]),
        ("mismatch.high", "0.5", ["mismatch.mode=mask", *APART]),
    ],
    "gspo": [
        ("policy.clip_low", "0.009", []),
        ("policy.clip_high", "0.009", []),
        ("policy.dual_clip", "1.0000001", ["policy.clip_low=0.009"]),
    ],
    "gspo_segment": [
        ("policy.clip_low", "0.00001", []),
        ("policy.clip_high", "0.00001", []),
        ("policy.dual_clip", "1.0000001", ["policy.clip_low=0.009"]),
        ("policy.segment", "{length: 1}", []),
        ("policy.segment", "{length: 2}", ["policy.segment={length: 1}"]),
        ("policy.segment", "{end_marks: ['1', '2', '3', '4', '5']}", []),
    ],
    "cispo": [("policy.clip_low", "0.00001", []), ("policy.clip_high", "0.00001", [])],
    "gmpo": [("policy.clip_low", "0.00001", []), ("policy.clip_high", "0.00001", [])],
    "sapo": [("policy.tau_positive", "3.0", []), ("policy.tau_negative", "3.0", [])],
    "clip_cov": [
        ("policy.clip_low", "0.00001", []),
        ("policy.clip_high", "0.00001", []),
        ("policy.cov_share", "0.5", PICKED),
        ("policy.cov_low", "0.0", PICKED),
        ("policy.cov_high", "0.0", PICKED),
    ],
    "kl_cov": [("policy.cov_share", "0.5", []), ("policy.cov_coef", "0.1", [])],
    "dpo": [
        ("preference.beta", "0.5", []),
        ("preference.label_smoothing", "0.2", []),
        ("preference.average", "true", []),
        ("preference.nll_coef", "0.5", []),
    ],
    "simpo": [("preference.margin", "0.2", [])],
    "kto": [("preference.desirable_weight", "2.0", []), ("preference.undesirable_weight", "2.0", [])],
    "sft": [
        ("policy.aggregation", "seq-mean-token-mean", []),
        ("data.train_on", "last", ["policy.model=MODEL", "data.train=TALKS", "data.validation=null"]),
    ],
}  # fmt: skip
WITHOUT_ANOTHER_VALUE = {
    "policy.lora.dropout",
    "sampling.engine",
    "reference.offload",
    "reference.cache",
    "policy.gradient_checkpointing",
    "checkpoint.async",
    "checkpoint.max_failed_saves",
    "checkpoint.store",
    "data.packing",
    "checkpoint.encrypt",
    "observe.prometheus_port",
    "observe.prometheus_address",
    "observe.prometheus_token",
    "observe.prometheus_textfile",
    "cluster.launcher",
    "cluster.processes",
}
"""One value each so far; or the same figures, to the last bit or to rounding, at another cost (runs/test_packing,
runs/test_reference_cache, unit/models, unit/store/test_saving_beside, faults/test_full_disk, runs/test_object_store,
runs/test_local_processes); or only shown to others (runs/test_exporter)."""
REFUSES = {"data.allow"}
"""Changes nothing in a run that it does not refuse."""
REFUSED = {"value.enabled": ("false", "ppo needs a critic")}
CASES = [(name, *flip) for name, flips in FLIPS.items() for flip in flips]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Rows with prompts of all lengths, a reward function that fails on some, a model directory, and runs made before."""
    folder = tmp_path_factory.mktemp("keys")
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)) + "\n")
    talk = [{"role": role, "content": f"{n}"} for n, role in enumerate(["user", "assistant"] * 2)]
    (folder / "talks.jsonl").write_text((json.dumps({"messages": talk}) + "\n") * 4)
    (folder / "broken.py").write_text(
        "def odd(prompts, completions, **_):\n"
        "    if any(len(c) % 2 for c in completions):\n        raise ValueError('odd')\n"
        "    return [float(len(c)) for c in completions]\n"
    )
    import torch

    from trimtab.models import policy as policies
    from trimtab.models import scoring

    loaded = policies.load("builtin:tiny", seed=77)
    loaded.tokenizer.chat_template = "{% for m in messages %}{{ m['content'] + '|' }}{% endfor %}"
    loaded.model.save_pretrained(folder / "model")
    loaded.tokenizer.save_pretrained(folder / "model")
    judge = scoring.load("builtin:tiny", seed=78)
    judge.model.score.weight.data.copy_(torch.linspace(-1, 1, judge.model.score.weight.numel()))
    judge.model.save_pretrained(folder / "judge")
    judge.tokenizer.save_pretrained(folder / "judge")
    return folder, {}


def seen(place, name, words):
    """Everything of a run that does not depend on the clock."""
    folder, made = place
    paths = {"ROWS": folder / "rows.jsonl", "TALKS": folder / "talks.jsonl", "MODEL": folder / "model"}
    paths["JUDGE"] = folder / "judge"
    words = [re.sub("|".join(paths), lambda name: str(paths[name.group()]), word) for word in words]
    key = (name, *words)
    if key not in made:
        number = len(made)
        directory, end = small.RunDirectory(folder / f"run-{number}"), ""
        try:
            small.train(small.write(folder, name, steps=2), directory.root, *words)
        except GuardError as error:
            end = str(error)
        reading = journal.read(directory.journal)
        said = [(e["rule"], e["level"], e["text"]) for e in reading.events("alarm") if e["rule"] != "throughput"]
        records = [
            (r["kind"], r["step"], r.get("prompt_ids"), r.get("completions"), r.get("weights"), steady(r["metrics"]))
            for r in [*reading.steps(), *reading.evaluations()]
        ]
        files = sorted(p.name for p in [*directory.checkpoints.iterdir(), *directory.samples.iterdir()])
        newest = max(directory.checkpoints.iterdir(), key=lambda p: int(p.name))
        guard = json.loads((newest / "state.json").read_text())["guard"]
        made[key] = records, files, guard, said, end, directory.facts()["numerics"], directory.facts()["data"]
    return made[key]


def steady(metrics):
    clocks = (
        "time/",
        "throughput/",
        "memory/",
        "utilisation/",
        "io/",
        "checkpoint/age",
        "checkpoint/save_",
        "checkpoint/stall_",
    )
    return {n: v for n, v in metrics.items() if not n.startswith(clocks)}


@pytest.mark.parametrize(
    ("name", "key", "value", "others"), CASES, ids=[f"{c[0]}-{c[1]}-{n}" for n, c in enumerate(CASES)]
)
def test_a_flipped_key_changes_the_run(place, monkeypatch, name, key, value, others):
    monkeypatch.setattr(finish, "write_report", lambda *_, **__: [])
    monkeypatch.setenv("DEAD_HOOK", "http://127.0.0.1:9/hook/0123")
    start = ONLINE if name in ("ppo", "grpo") else QUICK if name in online.NAMES else SFT
    base = [*start, *others]
    if name != "ppo" or key == "sampling.engine":
        base = [w for w in base if not w.startswith("value.")]
    assert seen(place, name, [*base, f"{key}={value}"]) != seen(place, name, base), f"{key}={value} changed nothing"


@pytest.mark.parametrize("name", list(FLIPS))
def test_no_key_is_left_out(tmp_path, name):
    words = ["kl.coef=0.1"] if name in online.NAMES else []
    resolved = configs.load(small.write(tmp_path, name), words).resolved
    flipped = {key for flips in FLIPS.values() for key, *_ in flips} | set(REFUSED) | WITHOUT_ANOTHER_VALUE | REFUSES
    keys = {key for key, _, _ in configs.differences({}, resolved)} - {"algorithm", ""}
    assert not {k for k in keys if k not in flipped and not any(k.startswith(f + ".") for f in flipped)}


@pytest.mark.parametrize("name", online.NAMES)
def test_a_key_is_flipped_under_an_algorithm_that_declares_it_as_this_one_does(name):
    """`policy.clip_low` of a sequence's ratio is not that of a token's, though it has the same name."""
    flipped = {
        (owner.record, key)
        for other, flips in FLIPS.items()
        for owner in sections.of_algorithm(algorithms.load(other))
        for key in owner.key_names()
        if any(f"{flip}.".startswith(f"{owner.section}.{key}.") for flip, *_ in flips)
    }
    wanted = {(o.record, key) for o in sections.of_algorithm(algorithms.load(name)) for key in o.key_names()}
    assert not wanted - flipped


def test_what_cannot_be_flipped_is_refused(tmp_path):
    for key, (value, message) in REFUSED.items():
        with pytest.raises(configs.ConfigError, match=message):
            configs.load(small.write(tmp_path, "ppo"), [f"{key}={value}"])


def test_a_file_outside_of_the_allowed_folders_is_refused_and_one_inside_is_read(place, tmp_path):
    folder, _ = place
    words = ["train.max_steps=1", f"data.train={folder / 'rows.jsonl'}", "data.validation=null"]
    path = small.write(tmp_path, "grpo")
    outside = r"data\.train: .*rows\.jsonl lies outside of the folders of data\.allow"
    with pytest.raises(configs.ConfigError, match=outside):
        small.train(path, tmp_path / "refused", *words, f"data.allow=[{tmp_path}]")
    allowed = small.train(path, tmp_path / "allowed", *words, f"data.allow=[{tmp_path}, {folder}]")
    assert [s["step"] for s in small.steps(allowed)] == [1]
