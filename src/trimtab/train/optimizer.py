"""AdamW over the roles' weights, with clipping role by role, and its state as named tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.train.settings import Optim


class Optimizer:
    """One AdamW; each role (`policy`, `value`) is a parameter group with its own learning rate and norm."""

    def __init__(
        self,
        roles: Mapping[str, list[nn.Parameter]],
        named: Mapping[str, nn.Parameter],
        optim: Optim,
        learning_rates: Mapping[str, float],
    ) -> None:
        self.roles = dict(roles)
        self.named = dict(named)
        self.max_grad_norm = optim.max_grad_norm
        self.base_rates = {role: learning_rates.get(role, optim.learning_rate) for role in roles}
        groups = [{"params": roles[role], "lr": self.base_rates[role], "role": role} for role in roles]
        self.adam = torch.optim.AdamW(groups, betas=optim.betas, eps=1e-8, weight_decay=optim.weight_decay)

    def zero_grad(self) -> None:
        self.adam.zero_grad(set_to_none=True)

    def parameters(self) -> list[nn.Parameter]:
        return [p for parameters in self.roles.values() for p in parameters]

    def norms(self) -> dict[str, float]:
        """Gradient norm of each role, before clipping; not finite if a gradient is not."""
        return {
            role: float(torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]))
            for role, parameters in self.roles.items()
        }

    def step(self, norms: Mapping[str, float], factor: float) -> None:
        """Clip each role's gradient to the largest norm allowed and take one step at `factor` times the learning rate."""
        for group in self.adam.param_groups:
            role = group["role"]
            group["lr"] = self.base_rates[role] * factor
            if self.max_grad_norm is not None and norms[role] > self.max_grad_norm:
                scale = self.max_grad_norm / (norms[role] + 1e-6)
                for parameter in self.roles[role]:
                    if parameter.grad is not None:
                        parameter.grad.mul_(scale)
        self.adam.step()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The moments by parameter name, and each parameter's count of steps."""
        tensors: dict[str, Tensor] = {}
        counts: dict[str, int] = {}
        for name, parameter in self.named.items():
            state = self.adam.state.get(parameter)
            if state:
                tensors[f"first_moment.{name}"] = state["exp_avg"]
                tensors[f"second_moment.{name}"] = state["exp_avg_sq"]
                counts[name] = int(state["step"])
        return tensors, {"counts": counts}

    def load_state(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        self.adam.state.clear()
        for name, count in values["counts"].items():
            parameter = self.named[name]
            self.adam.state[parameter] = {
                "step": torch.tensor(float(count)),
                "exp_avg": tensors[f"first_moment.{name}"].to(parameter.device).clone(),
                "exp_avg_sq": tensors[f"second_moment.{name}"].to(parameter.device).clone(),
            }


def all_finite(numbers: list[float]) -> bool:
    return all(math.isfinite(number) for number in numbers)
