"""Dynamic loss scaling: gradients in float16 are kept above the smallest number that it can hold.

The loss is multiplied by a power of two before the backward pass and the gradients are divided by it afterwards, before
anything looks at them. Where they overflow, the update is left out and the scale halved: that is the scaler at work and
no alarm. A gradient that is not finite even at a scale of 1 is a fault of the run, not of the scale.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

GROWTH_INTERVAL = 2000
"""Good updates in a row until the scale is doubled, as in torch.amp."""
LEAST = 1.0


class LossScaler:
    """Scales losses by a number that follows the gradients; does nothing at all where it is not enabled.

    Every rank must call it with the gradients summed over ranks: then all decide alike without asking each other.
    """

    def __init__(self, *, is_enabled: bool, max_scale: float = 65536.0, growth_interval: int = GROWTH_INTERVAL) -> None:
        self.is_enabled = is_enabled
        self.max_scale = max_scale
        self.growth_interval = growth_interval
        self.factor = max_scale if is_enabled else 1.0
        self.good_updates = 0
        """Since the scale last changed."""

    def scale(self, loss: Tensor) -> Tensor:
        """The loss to call `backward` on; the figure that is logged is the loss itself."""
        return loss * self.factor if self.is_enabled else loss

    @torch.no_grad()
    def unscale(self, parameters: Iterable[nn.Parameter]) -> bool:
        """Divide the gradients by the scale, in place; whether one of them is not finite."""
        if not self.is_enabled:
            return False
        gradients = [p.grad for p in parameters if p.grad is not None]
        is_finite = all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
        for gradient in gradients:
            gradient.mul_(1.0 / self.factor)
        return not is_finite

    def update(self, found_inf: bool) -> bool:
        """Follow the gradients of one update; whether what was found is an overflow, which a smaller scale can mend."""
        if not self.is_enabled:
            return False
        if found_inf:
            was_scaled = self.factor > LEAST
            self.factor = max(self.factor / 2, LEAST)
            self.good_updates = 0
            return was_scaled
        self.good_updates += 1
        if self.good_updates >= self.growth_interval:
            self.factor = min(self.factor * 2, self.max_scale)
            self.good_updates = 0
        return False

    def state(self) -> dict[str, Any]:
        """For a checkpoint; JSON values."""
        return {"loss_scale": self.factor, "good_updates": self.good_updates}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint. One of a run without scaling leaves the scaler as it is."""
        if self.is_enabled and state:
            self.factor = min(float(state["loss_scale"]), self.max_scale)
            self.good_updates = int(state["good_updates"])
