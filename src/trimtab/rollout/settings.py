"""The `sampling` section."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Interval

from trimtab.types import STRICT, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Dynamic:
    """Train on groups that teach something: prompts are drawn until enough groups have unlike rewards.

    Groups beyond those train in the next step. They are then one step old, which `staleness` shows, and never older:
    what waited comes first and is always less than a step's worth.
    """

    __pydantic_config__ = STRICT

    enabled: bool | None = None
    """Leave out groups whose rewards, before any punishment for length, are all equal; auto: the algorithm decides."""
    max_refills: Annotated[int, Ge(0)] = 3
    """Extra rounds of sampling a step; then the step has fewer groups, or, if no group teaches, those of round one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlong:
    """What becomes of completions that are too long, in length or by being cut."""

    __pydantic_config__ = STRICT

    buffer: Annotated[int, Ge(0)] | None = None
    """Tokens before the length limit over which a punishment grows from 0 to `factor`; 0 for none; auto: the algorithm
    decides."""
    factor: Annotated[float, Ge(0)] = 1.0
    """Reward units taken from a completion that reaches the limit."""
    filter: bool | None = None
    """Leave truncated completions out of the loss (not out of their group's baseline); auto: the algorithm decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How completions are sampled."""

    __pydantic_config__ = STRICT

    engine: Literal["in_process"] = "in_process"
    """What samples: the trainer's own model in the trainer's process."""
    group_size: Annotated[int, Ge(1)] = 8
    """Completions a prompt."""
    temperature: Annotated[float, Gt(0)] | Schedule = 1.0
    """Divides the logits, when sampling and in the loss alike."""
    top_p: Annotated[float, Interval(gt=0, le=1)] = 1.0
    """Sample from the smallest set of most likely tokens that reaches this probability."""
    top_k: Annotated[int, Ge(1)] | None = None
    """Sample from so many most likely tokens; null for all."""
    stop: tuple[str, ...] = ()
    """Strings that end a completion, beside the end-of-sequence token."""
    max_prompt_length: Annotated[int, Ge(1)] = 512
    """Tokens; what happens to a longer prompt says `long_prompts`."""
    max_length: Annotated[int, Ge(2)] = 4096
    """Tokens of prompt and completion together."""
    long_prompts: Literal["drop", "truncate", "refuse"] = "drop"
    """Leave out (counted), cut at the front (counted), or end with an error."""
    dynamic: Dynamic = field(default_factory=Dynamic)
    overlong: Overlong = field(default_factory=Overlong)
