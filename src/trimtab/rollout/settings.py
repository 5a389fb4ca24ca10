"""The `sampling` section."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Interval

from trimtab.types import STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How completions are sampled."""

    __pydantic_config__ = STRICT

    engine: Literal["in_process"] = "in_process"
    """What samples: the trainer's own model in the trainer's process."""
    group_size: Annotated[int, Ge(1)] = 8
    """Completions a prompt."""
    temperature: Annotated[float, Gt(0)] = 1.0
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
