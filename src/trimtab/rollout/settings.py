"""The `sampling` section."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Interval

from trimtab.types import STRICT, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Dynamic:
    """Train on groups that teach something: prompts are drawn until enough groups have unlike rewards.

    Groups beyond those train in the next step, unless `sampling.max_staleness` is 0. They are then one step old, which
    `staleness` shows, and never older: what waited comes first and is always less than a step's worth.
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
    max_staleness: Annotated[int, Ge(0)] | None = None
    """Largest age, in steps, of the weights that sampled a completion which a step trains on; auto: 1 with dynamic
    sampling, whose surplus groups train in the next step, else 0. 0 leaves those groups out. More than 1 is like 1: the
    surplus is less than a step's worth, so none of it waits longer."""
    dynamic: Dynamic = field(default_factory=Dynamic)
    overlong: Overlong = field(default_factory=Overlong)

    def with_staleness(self) -> Sampling:
        """With `max_staleness` as a number, once `dynamic.enabled` is decided.

        >>> Sampling().with_staleness().max_staleness, Sampling(dynamic=Dynamic(enabled=True)).with_staleness().max_staleness
        (0, 1)
        """
        return self if self.max_staleness is not None else replace(self, max_staleness=int(bool(self.dynamic.enabled)))
