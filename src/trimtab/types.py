"""The values that one step is made of, in the order in which they arise.

    Prompt -> Rollout -> Scored -> Batch -> Frozen, Advantages -> Policy -> Term -> StepReport

Shapes: B rows (completions), T the longest completion, S the longest prompt + completion, R reward functions.
Everything is frozen. `Batch`, `Frozen` and `Policy` put 0 into every masked place of a [B, T] field when they are
built, so nothing behind them can meet a NaN that stands where no token counts (0 x NaN is NaN; `where` is not).
"""

from __future__ import annotations

import enum
import importlib
import types
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from annotated_types import Ge

if TYPE_CHECKING:
    import torch as torch
    from torch import Tensor
else:

    class _LazyModule(types.ModuleType):
        """Imports the module at the first look into it.

        `importlib.util.LazyLoader` would do the same but put the name into `sys.modules` at once, where other
        libraries look to see whether torch is there.
        """

        def __getattr__(self, name: str) -> Any:
            module = importlib.import_module(self.__name__)
            self.__dict__.update({k: v for k, v in vars(module).items() if not k.startswith("__")})
            return getattr(module, name)

    torch = _LazyModule("torch")


Record = TypeVar("Record")


class Need(enum.Flag):
    """Parts that a run must have."""

    NONE = 0
    ROLLOUTS = enum.auto()
    """Sampled completions with rewards."""
    GROUPS = enum.auto()
    """At least two completions of a prompt."""
    DEMONSTRATIONS = enum.auto()
    """Rows with a completion to imitate."""
    OLD_LOG_PROBS = enum.auto()
    REFERENCE = enum.auto()
    VALUES = enum.auto()
    """A critic."""
    ENTROPY = enum.auto()
    """The entropy with its gradient (as a figure without one it is always there)."""
    PAIRS = enum.auto()
    """Rows in pairs: for one prompt a completion that was chosen and one that was rejected."""
    LABELS = enum.auto()
    """Rows with a completion that was judged desirable or not, each by itself."""
    MISMATCHED = enum.auto()
    """Log-ratios of each prompt with another row's completion, made anew for every update."""
    SCORES = enum.auto()
    """A model that gives a row one number, in the place of the policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One row of the data, ready to be sampled from."""

    id: int
    """The row's number in its file, from 0. Identifies the prompt in the journal and in every hash."""
    text: str
    tokens: tuple[int, ...]
    columns: Mapping[str, Any] = field(default_factory=dict)
    """The row's other columns (`answer`, ...), handed to reward functions by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """A prompt at its place in the run: the same prompt drawn again gets new random numbers."""

    prompt: Prompt
    draw: int
    """How many prompts the source had drawn before this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One sampled completion. Its token ids are what the loss sees: text is never tokenised again."""

    prompt: Prompt
    draw: int
    index: int
    """Place in the group, from 0."""
    tokens: tuple[int, ...]
    """Completion ids, the end-of-sequence id included."""
    log_probs: tuple[float, ...]
    """Of the sampling distribution (temperature and truncation applied), one a token, nats."""
    text: str
    """Completion without special tokens and without the stop string that ended it."""
    is_truncated: bool
    """Cut by the length limit."""
    policy_version: int
    """The step whose weights sampled it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    rollout: Rollout
    reward: float
    """Weighted sum of the parts; 0 where not `is_scored`."""
    parts: tuple[float | None, ...]
    """One a reward function; None where it gave no value."""
    is_scored: bool
    token_rewards: tuple[float, ...] | None = None


def _neutralise(record: Any, mask: Tensor) -> None:
    """Put 0 into the masked places of every [B, T] tensor field of a frozen record."""
    for spec in fields(record):
        value = getattr(record, spec.name)
        if value is None or not spec.metadata.get("per_token"):
            continue
        if value.shape != mask.shape:
            shapes = f"{tuple(value.shape)}, loss_mask {tuple(mask.shape)}"
            raise ValueError(f"{type(record).__name__}.{spec.name} has shape {shapes}")
        object.__setattr__(record, spec.name, torch.where(mask, value, torch.zeros((), dtype=value.dtype)))


PER_TOKEN = {"per_token": True}
"""Marks the [B, T] fields of a record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The rows of one step, whatever they came from. Completion position t of row i is token
    `tokens[i, prompt_lengths[i] + t]`; every [B, T] field is indexed by completion position."""

    tokens: Tensor
    """[B, S] int64, prompt then completion, padded on the right."""
    prompt_lengths: Tensor
    """[B] int64."""
    completion_lengths: Tensor
    """[B] int64, tokens generated or read, whether they count in the loss or not."""
    loss_mask: Tensor
    """[B, T] bool, True where the loss counts."""
    group_ids: Tensor
    """[B] int64, equal for the completions of one prompt. Never inferred from text or shape."""
    row_ids: Tensor
    """[B] int64, unique within the run: a row's name in hashes and ties, whatever the order of the rows."""
    prompt_ids: Tensor
    """[B] int64, the row of the data that the prompt is."""
    rewards: Tensor
    """[B] float64, 0 where not `is_scored`: rounded to float32, equal sums of parts could differ."""
    is_scored: Tensor
    """[B] bool."""
    is_truncated: Tensor
    """[B] bool, cut by the length limit."""
    reward_parts: Tensor | None = None
    """[B, R] float64, NaN where a reward function gave no value."""
    reward_weights: Tensor | None = None
    """[B, R] float64, what each part is multiplied by in `rewards`; the same in every row."""
    token_rewards: Tensor | None = field(default=None, metadata=PER_TOKEN)
    """[B, T] float, rewards that arise at tokens, beside `rewards`."""
    pair_ids: Tensor | None = None
    """[B] int64, equal for the two rows of a pair."""
    is_chosen: Tensor | None = None
    """[B] bool, True for the better row of a pair, or for a row that was judged desirable."""
    margins: Tensor | None = None
    """[B] float, by how much the chosen row of the pair should be ahead, reward units; 0 where nothing was said."""
    rollout_log_probs: Tensor | None = field(default=None, metadata=PER_TOKEN)
    """[B, T] float, as the engine reported them, nats."""
    policy_versions: Tensor | None = field(default=None, metadata=PER_TOKEN)
    """[B, T] int64, the step whose weights sampled the token."""

    def __post_init__(self) -> None:
        _neutralise(self, self.loss_mask)
        rewards = self.rewards
        if not rewards.is_floating_point() or rewards.element_size() < 4:  # truth values, counts, two bytes
            rewards = rewards.double()
        nothing = torch.zeros((), dtype=rewards.dtype)
        object.__setattr__(self, "rewards", torch.where(self.is_scored, rewards, nothing))

    def __len__(self) -> int:
        return int(self.loss_mask.shape[0])

    @property
    def lengths(self) -> Tensor:
        """[B] int64, tokens of prompt and completion."""
        return self.prompt_lengths + self.completion_lengths

    def rows(self, index: Tensor) -> Batch:
        """The rows of `index` [n] int64, with the padding that only longer rows needed cut off."""
        sizes = {"T": self._longest(self.completion_lengths[index], self.loss_mask.shape[1])}
        sizes["S"] = self._longest(self.lengths[index], self.tokens.shape[1])
        return _select(self, index, sizes["T"], tokens=self.tokens[index, : sizes["S"]])

    @staticmethod
    def _longest(lengths: Tensor, width: int) -> int:
        return min(int(lengths.max()) if len(lengths) else 0, width)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """What is computed once a batch without gradient; each field only if somebody needs it."""

    loss_mask: Tensor
    """[B, T] bool."""
    old_log_probs: Tensor | None = field(default=None, metadata=PER_TOKEN)
    """[B, T], under the policy before the first update on this batch, nats."""
    ref_log_probs: Tensor | None = field(default=None, metadata=PER_TOKEN)
    """[B, T], under the frozen reference, nats."""
    old_values: Tensor | None = field(default=None, metadata=PER_TOKEN)
    """[B, T], reward units, the critic's estimate before each token."""
    bootstrap_values: Tensor | None = None
    """[B], reward units, the critic's estimate after the last token; 0 for a row that ended by itself."""
    mismatched_log_ratios: Tensor | None = None
    """[B], log of policy over reference of the row's prompt with another row's completion, summed over its tokens, nats;
    NaN where there is no such completion. Of one update."""
    shift: Tensor | None = None
    """[B], the same number in each row: what the algorithm's `statistics` measures rows from."""
    picked: Tensor | None = field(default=None, metadata=PER_TOKEN)
    """[B, T] bool, tokens that the algorithm's `statistics` chose over the whole update."""

    def __post_init__(self) -> None:
        _neutralise(self, self.loss_mask)

    def rows(self, index: Tensor, width: int) -> Frozen:
        """The rows of `index` [n] int64, cut to `width` completion positions."""
        return _select(self, index, width)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advantages:
    """What the algorithm made of the rewards, once a step, no gradient."""

    loss_mask: Tensor
    values: Tensor = field(metadata=PER_TOKEN)
    """[B, T], reward units or standard deviations."""
    returns: Tensor | None = field(default=None, metadata=PER_TOKEN)
    """[B, T], reward units, the critic's target."""

    def __post_init__(self) -> None:
        _neutralise(self, self.loss_mask)

    def rows(self, index: Tensor, width: int) -> Advantages:
        return _select(self, index, width)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What has a gradient. An algorithm takes what it needs by `algorithms.base.require`."""

    loss_mask: Tensor
    log_probs: Tensor | None = field(default=None, metadata=PER_TOKEN)
    """[B, T], of the sampled tokens under the weights being trained, nats."""
    entropy: Tensor | None = field(default=None, metadata=PER_TOKEN)
    """[B, T], of the next-token distribution at the sampling temperature, nats."""
    values: Tensor | None = field(default=None, metadata=PER_TOKEN)
    """[B, T], reward units, the critic's estimate before each token."""
    scores: Tensor | None = None
    """[B], a reward model's score of the row."""

    def __post_init__(self) -> None:
        _neutralise(self, self.loss_mask)


def _select(record: Record, index: Tensor, width: int, **given: Tensor) -> Record:
    """A record's rows; [B, T] fields are cut to `width`, [B] and [B, R] fields are not."""
    picked = dict(given)
    for spec in fields(record):  # type: ignore[arg-type]
        value = getattr(record, spec.name)
        if value is None or spec.name in given:
            continue
        rows = value[index]
        is_wide = spec.name == "loss_mask" or spec.metadata.get("per_token")
        picked[spec.name] = rows[:, :width] if is_wide else rows
    return replace(record, **picked)  # type: ignore[type-var]


STRICT = {"extra": "forbid", "use_attribute_docstrings": True, "allow_inf_nan": False}
"""`__pydantic_config__` of every config record: a misspelt key is refused, a docstring is the key's help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A number that changes over the steps: `{schedule: linear, from: 0.02, to: 0.0, steps: 500}`."""

    __pydantic_config__ = STRICT

    kind: Literal["linear", "cosine", "constant"]
    start: Annotated[float, Ge(0)]
    end: Annotated[float, Ge(0)]
    steps: Annotated[int, Ge(1)]
    """From step 1 to this step; `end` after it."""


Coefficient = float | Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One part of the loss, unreduced: the learner averages it over the whole update, logs it, and weights it."""

    values: Tensor
    """[B, T], or [B] for rows and scores; minimised if the coefficient is positive."""
    aggregation: str
    """One of the modes of `algorithms.math.AGGREGATIONS`."""
    over: Tensor | None = None
    """Which places count, of the shape of `values`; None is `loss_mask`. May depend on the batch, not on the policy."""
    coefficient: float = 1.0
    norm_length: int | None = None
    """The constant length of `seq-mean-token-sum-norm`."""
    count_dead_rows: bool = False
    """Count rows without a counted place in the means over rows."""


Terms = dict[str, Term]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """A statistic or metric on its way to becoming a mean: add both over micro-batches and ranks, then divide."""

    total: Tensor
    """[] or [n], the numerator."""
    count: Tensor
    """[], the denominator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A completion shown to people."""

    prompt_id: int
    prompt: str
    completion: str
    reward: float | None
    reward_parts: Mapping[str, float | None]
    is_truncated: bool
    answer: str | None = None
    label: str | None = None
    """What the data says of a completion that was read: chosen, rejected, desirable, undesirable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What one step did; equal on every rank."""

    step: int
    metrics: Mapping[str, float]
    """By the names of `catalogue.METRICS`; a figure that is not finite is absent."""
    prompt_ids: tuple[int, ...] = ()
    completion_hashes: tuple[str, ...] = ()
    weights_sum: str = ""
    """Order-free 64-bit sum over the trained weights, hexadecimal."""
    samples: tuple[Sample, ...] = ()
    phase: str = "train"
    """`train`, or `eval` for the records of an evaluation."""
    standings: tuple[Standing, ...] = ()
    """How the guard's rules stand after the step, for whoever watches; not in the journal."""

    def __or__(self, metrics: Mapping[str, float]) -> StepReport:
        """The report with more metrics."""
        return replace(self, metrics={**self.metrics, **metrics})


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A figure of one of the guard's rules against one of its limits."""

    rule: str
    """A name of `rules.RULES`."""
    level: str
    """`warn` or `act`: which limit."""
    figure: str
    limit: float | None
    """In the figure's own unit; None while too little has been seen to say it."""
    breach: float
    """Steps (seconds) in a row that the rule is over this limit, by how many it takes: from 1 on it is broken."""
    raised: str = ""
    """The level of the rule's alarm; empty: none is raised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """What the guard has raised, with its evidence."""

    rule: str
    """A name of `rules.RULES`."""
    level: str
    """`warn` or `act`."""
    step: int
    since: int
    """The step of the first record that the alarm rests on."""
    figure: str
    value: float
    limit: float
    text: str
    """What was seen, likely causes and remedies, in the run's language."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the guard thinks of a step."""

    action: str
    """`continue`, `finish` (early stop: a completed run), `roll_back` or `stop` (exit 3)."""
    reason: str = ""
    cause: Alarm | None = None
    """What the action follows from."""
    raised: tuple[Alarm, ...] = ()
    """Alarms that this step raised, or whose level it has changed."""
    cleared: tuple[str, ...] = ()
    """Names of rules whose alarm is over."""
    standings: tuple[Standing, ...] = ()
    """Of the rules that have seen their figures."""

    @property
    def stops(self) -> bool:
        return self.action == "stop"

    @property
    def rolls_back(self) -> bool:
        return self.action == "roll_back"

    @property
    def finishes(self) -> bool:
        return self.action == "finish"

    @property
    def ends(self) -> bool:
        return self.stops or self.finishes
