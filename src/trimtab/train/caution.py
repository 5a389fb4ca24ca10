"""A careful start: a tenth of the learning rate and twice the KL coefficient, raised and lowered to what is set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trimtab.train.settings import Cautious
from trimtab.types import Schedule

LEARNING_RATE, KL = 0.1, 2.0
"""What the set values are multiplied by in the first step."""


class Caution:
    """How far a run is on the way from careful to as set. It gets on only in steps after which no alarm is raised.

    >>> caution = Caution(Cautious(steps=2))
    >>> caution.advance(is_calm=True); caution.learning_rate_factor, caution.kl_factor
    (0.55, 1.5)
    """

    def __init__(self, settings: Cautious | None) -> None:
        self.steps = 0 if settings is None else settings.steps
        self.calm_steps = 0

    @property
    def share(self) -> float:
        """Of the way, from 0 to 1."""
        return min(self.calm_steps / self.steps, 1.0) if self.steps else 1.0

    @property
    def learning_rate_factor(self) -> float:
        return LEARNING_RATE + (1.0 - LEARNING_RATE) * self.share

    @property
    def kl_factor(self) -> float:
        return KL + (1.0 - KL) * self.share

    def applied_to(self, config: Any) -> Any:
        """The algorithm's config with the KL coefficient of the coming step."""
        shared: Any = getattr(config, "shared", None)
        kl: Any = getattr(shared, "kl", None)
        if self.share == 1.0 or kl is None or isinstance(kl.coef, Schedule):
            return config
        return replace(config, shared=replace(shared, kl=replace(kl, coef=kl.coef * self.kl_factor)))

    def advance(self, *, is_calm: bool) -> None:
        """Go on after a step."""
        if is_calm and self.calm_steps < self.steps:
            self.calm_steps += 1

    def state(self) -> Mapping[str, Any]:
        return {"calm_steps": self.calm_steps}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.calm_steps = int(state["calm_steps"])
