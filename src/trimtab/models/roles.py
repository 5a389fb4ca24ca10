"""The roles of one run behind the `Models` port: policy, critic, reference, in this process."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.models import policy as policies
from trimtab.models.value import Critic, bootstrap_of, values_of
from trimtab.types import Batch, Frozen, Need, Policy


class InProcessModels:
    """Policy, and where the algorithm needs them a critic and a frozen reference.

    All forward passes, with gradient and without, run in eval mode and in one precision, so the ratio is 1 until the
    first update.
    """

    def __init__(
        self,
        *,
        model: Any,
        tokenizer: Any,
        temperature: float,
        critic: Critic | None = None,
        reference: Any | None = None,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.temperature = temperature
        self.critic = critic
        self.reference = reference
        self._head = policies.head_of(model)
        self._reference_head = policies.head_of(reference) if reference is not None else None
        self._vocabulary = int(model.config.get_text_config().vocab_size)
        if critic is not None:
            critic.eval()
        if reference is not None:
            reference.eval().requires_grad_(False)

    @property
    def device(self) -> torch.device:
        found: torch.device = self.model.device
        return found

    def forward(self, batch: Batch, need: Need) -> Policy:
        hidden = policies.hidden_states(self.model, batch.tokens)
        with_gradient = Need.ENTROPY in need
        log_probs, entropy = self._log_probs(hidden, self._head, batch, entropy_with_gradient=with_gradient)
        values = None
        if self.critic is not None and Need.VALUES in need:
            values = values_of(self.critic.hidden_states(batch.tokens, hidden), self.critic.head, batch)
        return Policy(loss_mask=batch.loss_mask, log_probs=log_probs, entropy=entropy, values=values)

    @torch.no_grad()
    def freeze(self, batch: Batch, need: Need) -> Frozen:
        old = reference = values = bootstrap = hidden = None
        shares_trunk = self.critic is not None and self.critic.trunk is None
        if Need.OLD_LOG_PROBS in need or (Need.VALUES in need and shares_trunk):
            hidden = policies.hidden_states(self.model, batch.tokens)
        if Need.OLD_LOG_PROBS in need and hidden is not None:
            old, _ = self._log_probs(hidden, self._head, batch)
        if Need.VALUES in need and self.critic is not None:
            states = self.critic.hidden_states(batch.tokens, hidden)
            values = values_of(states, self.critic.head, batch)
            bootstrap = bootstrap_of(states, self.critic.head, batch)
        if Need.REFERENCE in need and self.reference is not None and self._reference_head is not None:
            states = policies.hidden_states(self.reference, batch.tokens)
            reference, _ = self._log_probs(states, self._reference_head, batch)
        return Frozen(
            loss_mask=batch.loss_mask,
            old_log_probs=old,
            ref_log_probs=reference,
            old_values=values,
            bootstrap_values=bootstrap,
        )

    def _log_probs(
        self, hidden: Tensor, head: policies.Head, batch: Batch, *, entropy_with_gradient: bool = False
    ) -> tuple[Tensor, Tensor]:
        return policies.log_probs_and_entropy(
            hidden,
            head,
            batch,
            vocabulary=self._vocabulary,
            temperature=self.temperature,
            entropy_with_gradient=entropy_with_gradient,
        )

    def parameters(self) -> Mapping[str, list[nn.Parameter]]:
        roles = {"policy": _trained(self.model.parameters())}
        if self.critic is not None:
            roles["value"] = _trained(self.critic.parameters())
        return roles

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """Trained parameters by a name that is stable over restarts; the optimiser's state is saved under it."""
        found = {f"policy.{name}": p for name, p in self.model.named_parameters() if p.requires_grad}
        if self.critic is not None:
            found |= {f"value.{name}": p for name, p in self.critic.named_parameters() if p.requires_grad}
        return found

    def weights_sum(self) -> str:
        total = 0
        for parameter in self.named_parameters().values():
            total += int(parameter.detach().contiguous().view(torch.int32).sum(dtype=torch.int64))
        return f"{total & ((1 << 64) - 1):016x}"

    def save(self, directory: Path) -> None:
        self.save_policy(directory / "policy")
        if self.critic is not None:
            self.critic.save(directory / "value")

    def save_policy(self, directory: Path) -> None:
        """The policy as a Hugging Face directory, tokenizer and all."""
        directory.mkdir(parents=True, exist_ok=True)
        self.model.save_pretrained(str(directory))
        self.tokenizer.save_pretrained(str(directory))

    def load(self, directory: Path) -> None:
        _put(self.model, directory / "policy")
        if self.critic is not None:
            self.critic.load(directory / "value")


def frozen_copy(model: Any) -> Any:
    """The reference as the policy is now."""
    return copy.deepcopy(model).eval().requires_grad_(False)


def _trained(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    return [p for p in parameters if p.requires_grad]


def _put(model: Any, directory: Path) -> None:
    """Weights of a Hugging Face directory into a model that exists, in place.

    By `from_pretrained`, since some architectures keep weights in another form than they store them.
    """
    stored, told = type(model).from_pretrained(
        directory, dtype=model.dtype, use_safetensors=True, output_loading_info=True
    )
    faults = {kind: sorted(told[kind]) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys") if told[kind]}
    if faults:
        raise ValueError(f"{directory}: the weights do not fit the model: {faults}")
    model.load_state_dict(stored.state_dict())
