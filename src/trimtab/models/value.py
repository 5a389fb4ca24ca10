"""The critic: a scalar head on a trunk of its own, or on the policy's."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.models import policy as policies
from trimtab.models.packing import states_of
from trimtab.types import Batch


class ValueHead(nn.Module):
    """A linear layer to one number, zero at the start: the first estimates are 0 and move no advantage.

    float32 whatever the trunk is: two bytes would round a value of 100 to the nearest half.
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.output = nn.Linear(hidden_size, 1)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        with torch.autocast(hidden.device.type, enabled=False):
            found: Tensor = self.output(hidden.float()).squeeze(-1)
        return found


class Critic(nn.Module):
    """A head, and a trunk of its own unless it looks at the policy's hidden states."""

    def __init__(self, hidden_size: int, trunk: Any | None) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = ValueHead(hidden_size)

    @classmethod
    def own(cls, policy: Any) -> Critic:
        """A copy of a causal model's trunk; the output layer takes no part."""
        return cls(policy.config.get_text_config().hidden_size, copy.deepcopy(policy.base_model))

    @classmethod
    def shared(cls, policy: Any) -> Critic:
        """A head on the policy's own trunk."""
        return cls(policy.config.get_text_config().hidden_size, None)

    def hidden_states(self, tokens: Tensor, policy_hidden: Tensor | None, lengths: Tensor | None = None) -> Tensor:
        if self.trunk is None:
            if policy_hidden is None:
                raise ValueError("a shared critic needs the policy's hidden states")
            return policy_hidden
        return states_of(self.trunk, tokens, lengths)

    def writer(self, take: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]) -> Callable[[Path], None]:
        """What writes it into a directory, from what `take` makes of its weights."""
        from safetensors.torch import save_file

        weights = take(self.state_dict())

        def write(directory: Path) -> None:
            directory.mkdir(parents=True, exist_ok=True)
            flat = {name: tensor.detach().contiguous() for name, tensor in weights.items()}
            save_file(flat, str(directory / "model.safetensors"), metadata={"format": "pt"})
            if self.trunk is not None:
                self.trunk.config.save_pretrained(str(directory))

        return write

    def load(self, directory: Path) -> None:
        from safetensors.torch import load_file

        self.load_state_dict(load_file(str(directory / "model.safetensors")))


def values_of(hidden: Tensor, head: ValueHead, batch: Batch) -> Tensor:
    """[B, T] reward units: the estimate before each completion token."""
    found: Tensor = head(policies.completion_states(hidden, batch))
    return found


def bootstrap_of(hidden: Tensor, head: ValueHead, batch: Batch) -> Tensor:
    """[B] reward units: the estimate after the last token of rows cut by the length limit, 0 for the others."""
    last = (batch.lengths - 1).clamp_min(0)
    states = hidden[torch.arange(len(batch), device=hidden.device), last]
    return torch.where(batch.is_truncated, head(states), hidden.new_zeros(()))
