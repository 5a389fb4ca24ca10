"""The sections `optim`, `train`, `eval`, `guard` and `cluster`, and parts of `value` and `observe`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Interval, Le

from trimtab.types import STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class Optim:
    """AdamW and its schedule. Counts are in steps."""

    __pydantic_config__ = STRICT

    learning_rate: Annotated[float, Ge(0)] = 1e-6
    """Of the policy, at its highest."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """After the warm-up: stay, or fall to 0 at `train.max_steps`."""
    warmup_steps: Annotated[int, Ge(0)] = 0
    """Steps over which the learning rate rises from 0."""
    max_grad_norm: Annotated[float, Gt(0)] | None = 1.0
    """Gradients are scaled down to this norm, policy and critic apart; null for no limit."""
    betas: tuple[Annotated[float, Interval(ge=0, lt=1)], Annotated[float, Interval(ge=0, lt=1)]] = (0.9, 0.999)
    """Decay of the two running moments."""
    weight_decay: Annotated[float, Ge(0)] = 0.0
    """Decoupled, per unit of learning rate."""
    max_loss_scale: Annotated[float, Ge(1)] = 65536.0
    """In float16 the loss is multiplied by this before the backward pass; halved while gradients overflow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Critic:
    """The `value` section's part that trains the critic."""

    __pydantic_config__ = STRICT

    learning_rate: Annotated[float, Ge(0)] | None = None
    """Of the critic's own weights; null: the policy's."""
    warmup_steps: Annotated[int, Ge(0)] = 0
    """Steps at the start in which the critic alone is trained, so that the policy first meets advantages that mean
    something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cautious:
    """A careful start."""

    __pydantic_config__ = STRICT

    steps: Annotated[int, Ge(1)]
    """Steps without an alarm over which the learning rate rises from a tenth, and `kl.coef` falls from twice, to what is
    set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Train:
    """How long, and how a batch is cut into updates."""

    __pydantic_config__ = STRICT

    max_steps: Annotated[int, Ge(1)] = 1000
    """Batches."""
    prompts_per_step: Annotated[int, Ge(1)] = 32
    """Prompts (or rows that are read) in a batch, over all ranks."""
    epochs_per_batch: Annotated[int, Ge(1)] = 1
    """Passes over a batch."""
    minibatches: Annotated[int, Ge(1)] = 1
    """Updates a pass; each has whole prompts."""
    micro_batch_tokens: Annotated[int, Ge(1)] | None = None
    """Tokens of a forward pass, padding included; auto from the model. Changes memory and speed, not the result."""
    seed: int = 0
    """Of weights, samples and mini-batches."""
    cautious: Cautious | None = None
    """Start with a tenth of the learning rate and twice `kl.coef`: `{steps: 100}`; null: at what is set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyStop:
    __pydantic_config__ = STRICT

    metric: str | None = None
    """`eval/...`; auto is eval/reward/mean where completions are sampled, eval/preference/accuracy of pairs and labels,
    eval/reward_model/auc of a reward model, eval/loss/nll of demonstrations."""
    patience: Annotated[int, Ge(1)] | None = 3
    """Evaluations without a better value before the run ends, completed; null: never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Eval:
    """Evaluation on `data.validation`: greedy completions, or the algorithm's own figures where rows are read."""

    __pydantic_config__ = STRICT

    every: Annotated[int, Ge(1)] | Literal["epoch"] = 50
    """Steps between evaluations, or `epoch`: as many as the training rows last for. The first and the last step are
    always evaluated."""
    prompts: Annotated[int, Ge(1)] = 256
    """The first so many validation rows; a pair is one."""
    early_stop: EarlyStop = field(default_factory=EarlyStop)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleLimits:
    """Other limits of one rule; what is null is as the table of rules says."""

    __pydantic_config__ = STRICT

    warn: float | None = None
    """Beyond it a warning is raised. Of `entropy` it is in nats per token; without it half of the start counts."""
    act: float | None = None
    """Beyond it `then` follows."""
    for_: Annotated[int, Ge(1)] | None = None
    """Steps (of `reward_fall` evaluations) in a row."""
    then: Literal["off", "warn", "roll_back", "stop"] | None = None
    """What follows: nothing at all, a warning, the checkpoint before the first sign of it, the end with exit code 3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardRules:
    """Other limits, by the name of the rule."""

    __pydantic_config__ = STRICT

    non_finite: RuleLimits = field(default_factory=RuleLimits)
    """No loss and gradient of a step was finite: updates/non_finite."""
    broken_weights: RuleLimits = field(default_factory=RuleLimits)
    """Weights are not finite: non_finite/weights, non_finite/probe."""
    kl_update: RuleLimits = field(default_factory=RuleLimits)
    """One step moves the policy too far: kl/update."""
    kl_reference: RuleLimits = field(default_factory=RuleLimits)
    """The policy is far from the reference: kl/reference."""
    loss_divergence: RuleLimits = field(default_factory=RuleLimits)
    """Loss divergence: loss/total, loss/value, grad_norm/total."""
    reward_fall: RuleLimits = field(default_factory=RuleLimits)
    """Reward collapse, or a policy that gets worse: eval/reward/mean, reward/mean."""
    no_signal: RuleLimits = field(default_factory=RuleLimits)
    """The rewards give no signal: reward/zero_spread_groups."""
    no_spread: RuleLimits = field(default_factory=RuleLimits)
    """Dynamic sampling finds no signal: no group with a spread in a whole step."""
    role_heartbeat: RuleLimits = field(default_factory=RuleLimits)
    """A role does not answer: role/heartbeat_age."""
    ratio_max: RuleLimits = field(default_factory=RuleLimits)
    """Ratio out of range: update/ratio_max."""
    clip_fraction: RuleLimits = field(default_factory=RuleLimits)
    """Most tokens are clipped: clip_fraction/low, clip_fraction/high."""
    entropy: RuleLimits = field(default_factory=RuleLimits)
    """Entropy collapse: entropy."""
    group_spread: RuleLimits = field(default_factory=RuleLimits)
    """Degenerate sampling: groups without a spread: reward/zero_spread_groups."""
    distinct_share: RuleLimits = field(default_factory=RuleLimits)
    """Degenerate sampling: copies: rollout/distinct_share."""
    truncated: RuleLimits = field(default_factory=RuleLimits)
    """Most completions are cut off: length/truncated."""
    length: RuleLimits = field(default_factory=RuleLimits)
    """Lengths drift: length/p50."""
    staleness: RuleLimits = field(default_factory=RuleLimits)
    """Samples are stale: staleness."""
    reward_model_auc: RuleLimits = field(default_factory=RuleLimits)
    """A weak reward model: eval/reward_model/auc, reward_model/auc."""
    preference_accuracy: RuleLimits = field(default_factory=RuleLimits)
    """Preferences are not learned: final/preference/accuracy."""
    preference_js: RuleLimits = field(default_factory=RuleLimits)
    """The policy leaves the reference in preference training: eval/preference/js."""
    accelerator_idle: RuleLimits = field(default_factory=RuleLimits)
    """The accelerator is idle: utilisation/accelerator."""
    accelerator_memory: RuleLimits = field(default_factory=RuleLimits)
    """Memory is nearly full: utilisation/accelerator_memory."""
    disk: RuleLimits = field(default_factory=RuleLimits)
    """The disk is nearly full: utilisation/disk."""
    throughput: RuleLimits = field(default_factory=RuleLimits)
    """Throughput drops: throughput/train_tokens_per_second, throughput/rollout_tokens_per_second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """What is done about a run that goes wrong."""

    __pydantic_config__ = STRICT

    max_rollbacks: Annotated[int, Ge(0)] = 3
    """So often a run goes back to an earlier checkpoint by itself; the next alarm ends it with exit code 3."""
    learning_rate_factor: Annotated[float, Gt(0), Le(1)] = 0.5
    """What a rollback multiplies the learning rate by."""
    kl_factor: Annotated[float, Ge(1)] = 2.0
    """What a rollback multiplies `kl.coef` by."""
    rules: GuardRules = field(default_factory=GuardRules)
    """Other limits than those of the table of rules: `{kl_reference: {warn: 0.5}, entropy: {then: "off"}}`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The processes that train together, each on a share of every step's prompts."""

    __pydantic_config__ = STRICT

    launcher: Literal["local", "torchrun"] = "local"
    """What starts them: `trimtab train` itself, all on this machine, or torchrun, on any number of machines."""
    processes: Annotated[int, Ge(1)] = 1
    """How many; 1: as many as torchrun has started, else one. On GPUs each has one of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """The `guard` section's part that is measured with the old policy's log-probs."""

    __pydantic_config__ = STRICT

    probe_tokens: Annotated[int, Ge(1)] = 2048
    """Tokens of the batch on which `kl/update` and `update/ratio_max` are measured after the last update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarms:
    """The `observe` section's part that is about what people are told."""

    __pydantic_config__ = STRICT

    language: Literal["auto", "en", "zh"] = "auto"
    """Of alarms and remedies; auto is TRIMTAB_LANG, else the locale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostics:
    """The `observe` section's part that is measured in training."""

    __pydantic_config__ = STRICT

    term_norms_every: Annotated[int, Ge(1)] | None = 10
    """Steps between measurements of each loss term's own gradient norm, on `guard.probe_tokens` tokens; null: never."""
