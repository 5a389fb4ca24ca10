"""The KL coefficient from step to step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import isfinite
from typing import Any

from trimtab.algorithms import math
from trimtab.algorithms.base import Kl, number


class KlController:
    """Sets `kl.coef` of a step from the KL of the steps before, as `kl.controller` says.

    It moves once a step, and not in a step none of whose updates was applied.
    """

    def __init__(self, config: Any) -> None:
        """
        Args:
            config: an algorithm's; the controller is off if it has no `shared.kl`, or one with a fixed coefficient.
        """
        kl = getattr(getattr(config, "shared", None), "kl", None)
        self.kl: Kl | None = kl if kl is not None and kl.controller != "fixed" else None
        self.start: float | None = None if self.kl is None else number(self.kl.coef)
        self.coef = self.start

    def applied_to(self, config: Any) -> Any:
        """The config with the coefficient of the coming step."""
        if self.coef is None:
            return config
        shared = config.shared
        return replace(config, shared=replace(shared, kl=replace(shared.kl, coef=self.coef)))

    def advance(self, observed: float | None, *, samples: int) -> None:
        """Go on after a step.

        Args:
            observed: nats, per `kl.unit`; None if nothing was seen. That changes nothing, and no more does a number
                that is not finite: a coefficient made of one would never recover.
            samples: completions of the step.
        """
        if self.kl is None or self.coef is None or observed is None or not isfinite(observed):
            return
        target = self.kl.controller_target or 1.0
        if self.kl.controller == "adaptive":
            horizon = self.kl.controller_horizon
            self.coef = math.adaptive_kl(self.coef, observed, target=target, samples=samples, horizon=horizon)
        else:
            self.coef = math.penalty_kl(self.coef, observed, target=target)

    def state(self) -> dict[str, Any]:
        return {} if self.coef is None or self.start is None else {"coef": self.coef.hex(), "start": self.start.hex()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """A coefficient that a configuration has set anew since is where it begins; else it goes on."""
        if self.start is not None and state.get("start") == self.start.hex():
            self.coef = float.fromhex(state["coef"])
