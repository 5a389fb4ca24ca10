"""AdamW over the roles' weights, with clipping role by role, and its state as named tensors.

A weight of two bytes has eight or eleven digits: a step of 1e-6 would be rounded away. It is trained through a float32
copy. Its gradients are added up in float32 as they come and freed, the copy takes the step, the weight is the copy rounded.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from trimtab.train import finite
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
        self.named = dict(named)
        self.max_grad_norm = optim.max_grad_norm
        self.base_rates = {role: learning_rates.get(role, optim.learning_rate) for role in roles}
        self.copies = {p: nn.Parameter(p.detach().float()) for p in self.named.values() if p.element_size() < 4}
        """The float32 copy of each weight of two bytes."""
        for parameter in self.copies:
            parameter.register_post_accumulate_grad_hook(_gradients_to(self))
        self.roles = {role: [self.copies.get(p, p) for p in parameters] for role, parameters in roles.items()}
        groups = [{"params": self.roles[role], "lr": self.base_rates[role], "role": role} for role in roles]
        self.adam = torch.optim.AdamW(groups, betas=optim.betas, eps=1e-8, weight_decay=optim.weight_decay)

    def zero_grad(self) -> None:
        """Throw every gradient away; one that a failed backward pass has left at a weight of two bytes too."""
        self.adam.zero_grad(set_to_none=True)
        for parameter in self.copies:
            parameter.grad = None

    def parameters(self) -> list[nn.Parameter]:
        """What takes the step and has the gradients: the weights, or their float32 copies."""
        return [p for parameters in self.roles.values() for p in parameters]

    def norms(self) -> dict[str, float]:
        """Gradient norm of each role, before clipping; not finite if a gradient is not."""
        return {
            role: float(torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]))
            for role, parameters in self.roles.items()
        }

    def wrong_gradients(self, norms: Mapping[str, float]) -> float:
        """How many weights have a gradient that is not finite; 1 if all are but a norm of them is not."""
        found = finite.tensors(p.grad for p in self.parameters() if p.grad is not None)
        return found or float(not all_finite([*norms.values()]))

    def leave_out(self, role: str) -> None:
        """Let the next step pass over a role's weights: neither they nor their moments change."""
        for parameter in self.roles[role]:
            parameter.grad = None

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
        self._round()

    def take_gradient(self, parameter: Tensor) -> None:
        """Move what a backward pass has left at a weight of two bytes to its copy."""
        if parameter.grad is None:
            return
        copy = self.copies[cast(nn.Parameter, parameter)]
        found, parameter.grad = parameter.grad, None
        copy.grad = found.float() if copy.grad is None else copy.grad.add_(found)

    @torch.no_grad()
    def _round(self) -> None:
        for parameter, copy in self.copies.items():
            parameter.copy_(copy)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The moments by parameter name, float32 copies, and each parameter's count of steps."""
        tensors: dict[str, Tensor] = {}
        counts: dict[str, int] = {}
        for name, parameter in self.named.items():
            stepped = self.copies.get(parameter, parameter)
            if stepped is not parameter:
                tensors[f"float32.{name}"] = stepped
            state = self.adam.state.get(stepped)
            if state:
                tensors[f"first_moment.{name}"] = state["exp_avg"]
                tensors[f"second_moment.{name}"] = state["exp_avg_sq"]
                counts[name] = int(state["step"])
        return tensors, {"counts": counts}

    def load_state(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Put a state back. Roles that were added since begin anew, those that are gone are left out."""
        self.adam.state.clear()
        for name, parameter in self.named.items():
            if parameter in self.copies:
                copied = tensors.get(f"float32.{name}")
                if copied is not None:
                    with torch.no_grad():
                        self.copies[parameter].copy_(copied)
        for name, count in values["counts"].items():
            if name not in self.named:
                continue
            stepped = self.copies.get(self.named[name], self.named[name])
            self.adam.state[stepped] = {
                "step": torch.tensor(float(count)),
                "exp_avg": tensors[f"first_moment.{name}"].to(stepped.device).clone(),
                "exp_avg_sq": tensors[f"second_moment.{name}"].to(stepped.device).clone(),
            }


def _gradients_to(optimizer: Optimizer) -> Callable[[Tensor], None]:
    """A hook that does not keep the optimiser alive: when another takes over the weights, this one's hooks go silent."""
    alive = weakref.ref(optimizer)

    def take(parameter: Tensor) -> None:
        found = alive()
        if found is not None:
            found.take_gradient(parameter)

    return take


def all_finite(numbers: list[float]) -> bool:
    return all(math.isfinite(number) for number in numbers)
