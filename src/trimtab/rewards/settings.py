"""One entry of the `rewards` list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from annotated_types import Gt

from trimtab.types import STRICT

MODEL_LABEL = "reward_model"
"""A reward model's name in metrics unless it has one: the same whichever directory it is in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardSpec:
    """A reward function or model, its weight, and what its failure means."""

    __pydantic_config__ = STRICT

    name: str = ""
    """`exact_match`, `numeric`, `regex`, `length`, or `module:function`; beside `model` only its name in metrics."""
    model: str | None = None
    """A reward model in the place of a function: its run, or its directory. Its score is the value."""
    allow_weak: bool = False
    """Use a reward model although its AUC on its own validation is under 0.85."""
    weight: float = 1.0
    """The reward of a completion is the sum of weight times value."""
    timeout_seconds: Annotated[float, Gt(0)] = 10.0
    """A call of a user's function that takes longer is killed."""
    on_error: Literal["stop", "skip", "penalty"] = "stop"
    """End the run, leave the completion out of every statistic, or give it `penalty`."""
    penalty: float = -1.0
    """The value under `on_error: penalty`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of a built-in rule, such as `{pattern: ...}` of `regex`."""

    @property
    def label(self) -> str:
        """The reward's name in metrics."""
        if self.model is not None:
            return self.name or MODEL_LABEL
        return self.name.rsplit(":", 1)[-1]
