"""The length limit of a run and its punishment for length, from its configuration and the room that its model leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from trimtab.config import RunConfig
from trimtab.errors import UserError
from trimtab.rewards.shaping import Overlong
from trimtab.rollout.settings import Sampling
from trimtab.types import Need


def shaping_of(config: RunConfig) -> Overlong | None:
    """What is added to rewards, or None.

    Raises:
        UserError: the punishment would begin before the first token.
    """
    s = config.sampling
    if not config.need & Need.ROLLOUTS or not s.overlong.buffer or not s.overlong.factor:
        return None
    if s.overlong.buffer >= s.max_length:
        raise UserError(
            f"sampling.overlong.buffer: {s.overlong.buffer}, but sampling.max_length is {s.max_length}, so every "
            f"completion would be punished; use less, such as {max(1, s.max_length // 5)}, or 0 for no punishment"
        )
    return Overlong(max_length=s.max_length, buffer=s.overlong.buffer, factor=s.overlong.factor)


def with_max_length(config: RunConfig, max_length: int) -> Sampling:
    """The sampling settings with another length limit; a buffer that was chosen from the limit shrinks with it."""
    s, overlong = config.sampling, config.sampling.overlong
    section = config.requested.get("sampling") or {}
    asked = (section.get("overlong") or {}).get("buffer", "auto")
    if overlong.buffer and asked in (None, "auto"):
        overlong = replace(overlong, buffer=max(1, overlong.buffer * max_length // s.max_length))
    return replace(s, max_length=max_length, overlong=overlong)


def fit_to_model(config: RunConfig, model: Any, notice: Callable[[str], None]) -> RunConfig:
    """No completion may be longer than the model has positions."""
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if positions is None or config.sampling.max_length <= positions:
        return config
    notice(
        f"sampling.max_length: {config.sampling.max_length}, but the model has {positions} positions; {positions} is used"
    )
    return replace(config, sampling=with_max_length(config, positions))
