"""The sections `optim`, `train`, `eval`, `checkpoint` (its times) and `guard`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Interval

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
class Guard:
    """What ends a run that has gone wrong."""

    __pydantic_config__ = STRICT

    probe_tokens: Annotated[int, Ge(1)] = 2048
    """Tokens of the batch on which `kl/update` and `update/ratio_max` are measured after the last update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostics:
    """The `observe` section's part that is measured in training."""

    __pydantic_config__ = STRICT

    term_norms_every: Annotated[int, Ge(1)] | None = 10
    """Steps between measurements of each loss term's own gradient norm, on `guard.probe_tokens` tokens; null: never."""
