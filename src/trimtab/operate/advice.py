"""What can be said of a run before it starts: how long a step takes, and what the guides' figures say to its settings."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trimtab.assemble import Numerics
from trimtab.config import RunConfig
from trimtab.models.memory import TRAINED, Demand, Sizes, cache_bytes, with_settings
from trimtab.store.retention import most_kept
from trimtab.types import Need, Schedule

MEASURED_SECONDS = 0.4
"""For each of the measurements; there are three."""
WIDEST = 2048
"""Wider layers than this run at the same speed, so none is measured wider."""
CALLS = 4.0
"""How many times more operations a layer of transformers starts for a token than the layer that is measured here."""


# ------------------------------------------------------------------------------------------------------------- speed
@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """What this machine does on layers of the model's shape."""

    train_flops: float
    """A second, forward and backward over a micro-batch."""
    read_flops: float
    """A second, forward alone."""
    decode_flops: float
    """A second, one token of every row."""
    call_seconds: float
    """To start a layer's operations, however little they do."""
    copied_bytes: float
    """A second, from memory to memory."""


def measure(model: Sizes, *, tokens: int, width: int, rows: int) -> Speed:
    """Time one layer of the model's shape in this process, for about a second in all.

    Args:
        tokens: of a micro-batch.
        width: of a row.
        rows: decoded together.
    """
    import torch

    hidden, inner = min(model["hidden"], WIDEST), min(model["inner"], 4 * WIDEST)
    heads = max(1, hidden // model["head_size"])
    layer = _Layer(hidden, inner, heads, model["head_size"])
    budget = 4e9 / (6 * layer.parameters)  # operations of one pass: a slow core does them in a fifth of a second
    width = max(1, min(width, 512))
    batch = max(1, min(tokens, int(budget)) // width)
    states = torch.randn(batch, width, hidden)
    size = states.shape[0] * states.shape[1]
    trained = _seconds(lambda: layer(states).sum().backward())
    with torch.no_grad():
        read = _seconds(lambda: layer(states))
        few = max(1, min(rows or 1, int(3 * budget)))
        decoded = _seconds(lambda: layer(torch.randn(few, 1, hidden)))
        called = _seconds(lambda: layer(torch.zeros(1, 1, hidden)), least=0.05)
        block = torch.zeros(1 << 22)
        copied = _seconds(block.clone, least=0.05)
    return Speed(
        train_flops=6 * layer.parameters * size / trained,
        read_flops=2 * layer.parameters * size / read,
        decode_flops=2 * layer.parameters * few / decoded,
        call_seconds=called * CALLS,
        copied_bytes=2 * 4 * block.numel() / copied,
    )


class _Layer:
    """A layer of the Llama family in plain operations: what a model does to a token, without its bookkeeping."""

    def __init__(self, hidden: int, inner: int, heads: int, head_size: int) -> None:
        import torch

        self.heads, self.head_size = heads, head_size
        shapes = [(3 * heads * head_size, hidden), (hidden, heads * head_size), (2 * inner, hidden), (hidden, inner)]
        self.weights = [torch.full(shape, 1e-3, requires_grad=True) for shape in shapes]
        self.parameters = sum(w.numel() for w in self.weights)

    def __call__(self, states: Any) -> Any:
        import torch.nn.functional as F

        attend, out, up, down = self.weights
        rows, width, hidden = states.shape
        queries, keys, values = (
            part.view(rows, width, self.heads, self.head_size).transpose(1, 2)
            for part in F.linear(F.rms_norm(states, (hidden,)), attend).chunk(3, dim=-1)
        )
        queries, keys = queries + _turned(queries), keys + _turned(keys)
        seen = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        states = states + F.linear(seen.transpose(1, 2).reshape(rows, width, -1), out)
        gate, raised = F.linear(F.rms_norm(states, (hidden,)), up).chunk(2, dim=-1)
        return states + F.linear(F.silu(gate) * raised, down)


def _turned(states: Any) -> Any:
    """As much work as a rotary embedding."""
    import torch

    first, second = states.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1) * 0.5


def _seconds(what: Callable[[], Any], *, least: float = MEASURED_SECONDS) -> float:
    """The median of the calls that fit into the time, the first one not counted."""
    what()
    found: list[float] = []
    started = time.perf_counter()
    while not found or time.perf_counter() - started < least:
        began = time.perf_counter()
        what()
        found.append(time.perf_counter() - began)
    return statistics.median(found)


# -------------------------------------------------------------------------------------------------------------- time
@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a step works on. Lengths are means, in tokens."""

    policy: Sizes
    critic: Sizes | None
    """With a trunk of its own."""
    reference: Sizes | None
    prompts: int
    """Of a step."""
    rows: int
    """Completions of a step."""
    evaluated: int
    """Prompts of an evaluation."""
    rows_at_once: int
    """Completions decoded together; 0 where nothing is sampled."""
    prompt_length: float
    completion_length: float
    epochs: int
    minibatches: int
    freezes: bool
    """The log-probs before the step are computed once more."""
    micro_batch_tokens: int
    probe_tokens: int


def step_seconds(work: Work, speed: Speed) -> dict[str, float]:
    """Seconds of a step's phases; rewards and checkpoints are not in it."""
    length = work.prompt_length + work.completion_length
    tokens, completions = work.rows * length, work.rows * work.completion_length
    passes = max(1.0, tokens / work.micro_batch_tokens)
    trunks = [work.policy] + ([work.critic] if work.critic else [])
    frozen = ([work.policy] if work.freezes else []) + [m for m in (work.critic, work.reference) if m is not None]
    probed = min(tokens, work.probe_tokens / max(work.completion_length, 1) * length) if work.freezes else 0.0

    def read(models: list[Sizes], count: float, predicted: float) -> float:
        operations = sum(2 * m["matrix_parameters"] * count for m in models) + 2 * _head(work.policy) * predicted
        layers = sum(m["layers"] for m in models)
        return operations / speed.read_flops + layers * speed.call_seconds * max(1.0, count / work.micro_batch_tokens)

    found = {"rollout": _sampling_seconds(work, speed, work.prompts, work.rows)} if work.rows_at_once else {}
    if frozen:
        found["freeze"] = read(frozen, tokens, completions)
    trained = sum(6 * m["matrix_parameters"] * tokens for m in trunks) + 6 * _head(work.policy) * completions
    started = 3 * sum(m["layers"] for m in trunks) * speed.call_seconds * passes
    found["update"] = work.epochs * (trained / speed.train_flops + started)
    moments = 2 * TRAINED * sum(m["parameters"] for m in trunks)  # weights, gradients and moments, read and written
    found["optimizer"] = work.epochs * work.minibatches * moments / speed.copied_bytes
    if probed:
        found["probe"] = read([work.policy], probed, probed * work.completion_length / length)
    return found


def evaluation_seconds(work: Work, speed: Speed) -> float:
    """One evaluation: a greedy completion of each held-out prompt, or a forward pass over held-out demonstrations."""
    if work.rows_at_once:
        return _sampling_seconds(work, speed, work.evaluated, work.evaluated)
    tokens = work.evaluated * (work.prompt_length + work.completion_length)
    operations = 2 * work.policy["matrix_parameters"] * tokens
    return (operations + 2 * _head(work.policy) * work.evaluated * work.completion_length) / speed.read_flops


def _sampling_seconds(work: Work, speed: Speed, prompts: int, rows: int) -> float:
    model = work.policy
    operations = 2 * model["matrix_parameters"] * prompts * work.prompt_length
    decoded = 2 * (model["matrix_parameters"] + _head(model)) * rows * work.completion_length
    waves = -(-rows // work.rows_at_once) if rows else 0
    calls = waves * (1 + work.completion_length) * model["layers"] * speed.call_seconds
    half = cache_bytes(model, int(rows * (work.prompt_length + work.completion_length / 2)))
    moved = 3 * half * work.completion_length  # at each token the cache is read, and copied to a longer one
    return operations / speed.read_flops + decoded / speed.decode_flops + calls + moved / speed.copied_bytes


def _head(model: Sizes) -> int:
    return model["vocabulary"] * model["hidden"]


# --------------------------------------------------------------------------------------------------- from a config
JUDGE = "rewards["
"""How the roles of reward models begin."""


def models_of(config: RunConfig) -> dict[str, tuple[str, str]]:
    """By role that has weights of its own: the key that names its model, and the model."""
    found = {"policy": ("policy.model", config.policy.model)}
    if config.need & Need.VALUES and config.value.model != "shared":
        found["critic"] = ("value.model", config.value.model or config.policy.model)
    if config.need & Need.REFERENCE:
        found["reference"] = ("reference.model", config.reference.model or config.policy.model)
    for place, spec in enumerate(config.rewards if config.need & Need.ROLLOUTS else ()):
        if spec.model is not None:
            found[f"{JUDGE}{place}]"] = (f"{JUDGE}{place}].model", spec.model)
    return found


def demand_of(config: RunConfig, models: Mapping[str, Sizes], numerics: Numerics, *, longest: int) -> Demand:
    """What a configuration wants to hold; `models` are those of the roles that have weights of their own."""
    samples = bool(config.need & Need.ROLLOUTS)
    group = config.sampling.group_size if samples else _completions_read(config)
    rows = config.train.prompts_per_step * group
    prompts = -(-config.train.prompts_per_step // config.train.minibatches)
    plain = Demand(
        policy=models["policy"],
        critic=models.get("critic"),
        reference=models.get("reference"),
        judges=sum(m["trunk_parameters"] + m["hidden"] for role, m in models.items() if role.startswith(JUDGE)),
        longest=longest,
        rows=prompts * group,
        rows_at_once=min(max(1, numerics.rollout_rows // group) * group, rows) if samples else 0,
        micro_batch_tokens=numerics.micro_batch_tokens,
    )
    device, is_beside = numerics.device, config.checkpoint.async_
    return with_settings(plain, config.policy, config.reference, device=device, is_saved_beside=is_beside)


def _completions_read(config: RunConfig) -> int:
    """Completions of a prompt where rows are read: a pair has two."""
    return 2 if config.need & Need.PAIRS else 1


def checkpoints_kept(config: RunConfig) -> tuple[int, int]:
    """How many checkpoints a run has at its end, at most: all of them, and those of the policy's weights alone."""
    is_evaluated = config.data.validation is not None
    return most_kept(config.checkpoint, config.train.max_steps, is_evaluated=is_evaluated)


def time_of(
    config: RunConfig,
    demand: Demand,
    speed: Speed,
    *,
    prompt_length: float,
    completion_length: float,
    every: int,
) -> tuple[dict[str, float], float]:
    """Seconds of a step's phases, and of all steps with their evaluations, one in `every` steps."""
    samples = bool(config.need & Need.ROLLOUTS)
    completions = config.sampling.group_size if samples else _completions_read(config)
    work = Work(
        policy=demand.policy,
        critic=demand.critic,
        reference=demand.reference,
        prompts=config.train.prompts_per_step,
        rows=config.train.prompts_per_step * completions,
        evaluated=config.eval.prompts * (1 if samples else completions) if config.data.validation is not None else 0,
        rows_at_once=demand.rows_at_once,
        prompt_length=prompt_length,
        completion_length=completion_length,
        epochs=config.train.epochs_per_batch,
        minibatches=config.train.minibatches,
        freezes=bool(config.need & Need.OLD_LOG_PROBS),
        micro_batch_tokens=demand.micro_batch,
        probe_tokens=config.probe.probe_tokens,
    )
    phases = step_seconds(work, speed)
    steps = config.train.max_steps
    evaluations = 2 + (steps - 1) // every if work.evaluated else 0
    return phases, steps * sum(phases.values()) + evaluations * evaluation_seconds(work, speed)


# ------------------------------------------------------------------------------------------------------------ guides
@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A setting beside the guides' figure for it. A note says that they differ, and what that means."""

    setting: str
    yours: str
    guides: str
    note: str = ""


def advice(config: RunConfig, rows: int | None = None) -> list[Advice]:
    """What the guides' figures say to a configuration. Nothing here is a fault.

    Args:
        rows: of the training data, if they have been read.
    """
    found: list[Advice] = []
    resolved = config.resolved
    if config.need & Need.ROLLOUTS:
        found += _sampling(config)
    if config.need & (Need.PAIRS | Need.LABELS):
        found += _preference(config, rows)
    if "kl" in resolved:
        found.append(_kl(resolved["kl"]["coef"], bool(config.need & Need.REFERENCE)))
    if "gamma" in resolved.get("advantage", {}):
        found.append(_gamma(float(resolved["advantage"]["gamma"]), config.sampling.max_length))
    found.append(_gradient(config.optim.max_grad_norm))
    early = config.eval.early_stop.patience
    found.append(
        Advice(
            setting="eval.early_stop.patience",
            yours="never" if early is None else str(early),
            guides="3",
            note="" if early == 3 else "evaluations without a better value before the run ends",
        )
    )
    return found


def _sampling(config: RunConfig) -> list[Advice]:
    size, rows = config.sampling.group_size, config.sampling.group_size * config.train.prompts_per_step
    is_grouped = bool(config.need & Need.GROUPS)
    low, high = (8, 16) if is_grouped else (16, 32)
    low_note = "few: noisy comparisons within a prompt" if is_grouped else "few candidates a prompt"
    note = low_note if size < low else "many: fewer prompts for the same time" if size > high else ""
    least = 512 if is_grouped else 256
    return [
        Advice(setting="sampling.group_size", yours=str(size), guides=f"{low} to {high}", note=note),
        Advice(
            setting="completions a step",
            yours=f"{rows:,}",
            guides=f"{least} or more",
            note="" if rows >= least else f"noisy gradients; train.prompts_per_step={-(-least // size)} gives it",
        ),
    ]


ACCURACY = 0.85
"""Of the implicit rewards on pairs that were not trained on."""
SUMMED = ("dpo", "cdpo", "robust_dpo", "hinge", "kto")
"""Algorithms whose beta multiplies a sum of log-ratios, which is what the guides' figure is for."""


def _preference(config: RunConfig, rows: int | None) -> list[Advice]:
    what = "pairs" if config.need & Need.PAIRS else "judged rows"
    found = []
    if rows is not None:
        note = "" if rows >= 100_000 else "few: the validation accuracy tells whether they are enough"
        found.append(Advice(setting=what, yours=f"{rows:,}", guides="100,000 or more", note=note))
    beta = config.resolved.get("preference", {}).get("beta")
    if beta is not None and config.algorithm.name in SUMMED:
        note = (
            "" if 0.05 <= beta <= 0.3 else "weak hold on the reference" if beta < 0.05 else "strong hold: learns little"
        )
        found.append(Advice(setting="preference.beta", yours=f"{beta:g}", guides="0.05 to 0.3", note=note))
    figure = "eval/reward_model/auc" if config.need & Need.SCORES else "eval/preference/accuracy"
    least = 0.9 if config.need & Need.SCORES else ACCURACY
    note = "" if config.data.validation is not None else "data.validation is not set, so it will not be known"
    found.append(Advice(setting=figure, yours="after training", guides=f"more than {least:g}", note=note))
    if config.need & Need.REFERENCE:
        found.append(Advice(setting="eval/preference/js", yours="after training", guides="less than 0.05", note=note))
    return found


def _kl(coefficient: Any, has_reference: bool) -> Advice:
    row = {"setting": "kl.coef", "guides": "0.01 to 0.02"}
    if isinstance(coefficient, dict | Schedule):
        return Advice(**row, yours="a schedule")
    if not has_reference:
        return Advice(
            **row, yours=f"{coefficient:g}", note="no reference is kept; watch kl/update, which should stay < 0.03"
        )
    note = "" if 0.01 <= coefficient <= 0.02 else "weak hold on the reference" if coefficient < 0.01 else "strong hold"
    return Advice(**row, yours=f"{coefficient:g}", note=note)


def _gamma(gamma: float, longest: int) -> Advice:
    note = ""
    if longest * (1 - gamma) > 5 + 1e-9:  # more than five times as far as the discount reaches
        share = gamma**longest
        note = f"over {longest:,} tokens the reward at the end counts {share:.2g} at the first; use 1.0"
    return Advice(setting="advantage.gamma", yours=f"{gamma:g}", guides="0.99, or 1 if long", note=note)


def _gradient(norm: float | None) -> Advice:
    note = "" if norm == 1.0 else "no limit: one bad batch can undo many" if norm is None else ""
    return Advice(setting="optim.max_grad_norm", yours="none" if norm is None else f"{norm:g}", guides="1.0", note=note)
