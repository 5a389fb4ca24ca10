"""The roles of one run behind the `Models` port: policy, critic, reference, in this process."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.models import policy as policies
from trimtab.models import recomputation, saving
from trimtab.models.lora import Adapter
from trimtab.models.precision import Precision
from trimtab.models.reference import Reference
from trimtab.models.value import Critic, bootstrap_of, values_of
from trimtab.models.weights import faults_of, sum_of
from trimtab.types import Batch, Frozen, Need, Policy

READ = Need.DEMONSTRATIONS | Need.PAIRS | Need.LABELS
"""Needs of an algorithm whose rows were read, not sampled."""


class InProcessModels:
    """Policy, and where the algorithm needs them a critic and a frozen reference.

    All forward passes, with gradient and without, run in eval mode and in one precision, so the ratio is 1 until the
    first update. An engine that samples from the policy has `passes` for that.
    """

    def __init__(
        self,
        *,
        model: Any,
        tokenizer: Any,
        temperature: float,
        critic: Critic | None = None,
        reference: Any | None = None,
        precision: Precision | None = None,
        adapter: Adapter | None = None,
        gradient_checkpointing: bool = False,
        packing: bool = False,
    ) -> None:
        """
        Args:
            model: in eval mode, with the adapter in it if there is one.
            tokenizer: saved with the policy.
            temperature: that completions are sampled at and their log-probs are of; rows that are read have 1.
            critic: with a trunk of its own or none.
            reference: a `Reference`, or a model of its own in float32.
            precision: of all passes of policy and critic.
            adapter: saved instead of the model.
            gradient_checkpointing: for passes with gradient.
            packing: rows of a pass are laid end to end in fewer.
        """
        self.model = model
        self.tokenizer = tokenizer
        self.temperature = temperature
        self.critic = critic
        self.precision = precision or Precision()
        self.adapter = adapter
        self.packing = packing
        self._tokenizer_files = saving.TokenizerFiles(tokenizer)
        self._head = policies.head_of(model)
        self.reference = _as_reference(reference)
        self._recomputed: list[nn.Module] = []
        if gradient_checkpointing:
            self._recomputed += recomputation.enable(model)
            if critic is not None and critic.trunk is not None:
                self._recomputed += recomputation.enable(critic.trunk)
        self._vocabulary = int(model.config.get_text_config().vocab_size)
        if critic is not None:
            critic.eval()

    @property
    def device(self) -> torch.device:
        found: torch.device = self.model.device
        return found

    def passes(self) -> AbstractContextManager[None]:
        """What passes over the policy run in, here and in an engine that samples from it."""
        return self.precision.passes(self.device)

    def forward(self, batch: Batch, need: Need) -> Policy:
        if self.reference is not None:
            self.reference.rest()
        with self.passes(), recomputation.recomputing(self._recomputed if torch.is_grad_enabled() else []):
            return self._forward(batch, need)

    def _lengths(self, batch: Batch) -> Tensor | None:
        """What rows are packed by, if they are."""
        return batch.lengths if self.packing else None

    def _temperature(self, need: Need) -> float:
        """Rows that were not sampled are judged by the distribution as it is."""
        return 1.0 if need & READ else self.temperature

    def _forward(self, batch: Batch, need: Need) -> Policy:
        hidden = policies.hidden_states(self.model, batch.tokens, self._lengths(batch))
        with_gradient = Need.ENTROPY in need
        log_probs, entropy = self._log_probs(
            hidden, batch, self._temperature(need), entropy_with_gradient=with_gradient
        )
        values = None
        if self.critic is not None and Need.VALUES in need:
            states = self.critic.hidden_states(batch.tokens, hidden, self._lengths(batch))
            values = values_of(states, self.critic.head, batch)
        return Policy(loss_mask=batch.loss_mask, log_probs=log_probs, entropy=entropy, values=values)

    @torch.no_grad()
    def freeze(self, batch: Batch, need: Need, *, is_evaluated: bool = False) -> Frozen:
        """As the port says.

        Args:
            is_evaluated: the rows are a pass that every evaluation makes, and the reference is asked as the policy is.
        """
        reference = None
        if Need.REFERENCE in need and self.reference is not None:
            reference = self.reference.log_probs(
                batch,
                vocabulary=self._vocabulary,
                temperature=self._temperature(need),
                is_read=bool(need & READ),
                is_evaluated=is_evaluated,
            )
        with self.passes():
            return self._freeze(batch, need, reference)

    def _freeze(self, batch: Batch, need: Need, reference: Tensor | None) -> Frozen:
        old = values = bootstrap = hidden = None
        shares_trunk = self.critic is not None and self.critic.trunk is None
        if Need.OLD_LOG_PROBS in need or (Need.VALUES in need and shares_trunk):
            hidden = policies.hidden_states(self.model, batch.tokens, self._lengths(batch))
        if Need.OLD_LOG_PROBS in need and hidden is not None:
            old, _ = self._log_probs(hidden, batch, self._temperature(need))
        if Need.VALUES in need and self.critic is not None:
            states = self.critic.hidden_states(batch.tokens, hidden, self._lengths(batch))
            values = values_of(states, self.critic.head, batch)
            bootstrap = bootstrap_of(states, self.critic.head, batch)
        return Frozen(
            loss_mask=batch.loss_mask,
            old_log_probs=old,
            ref_log_probs=reference,
            old_values=values,
            bootstrap_values=bootstrap,
        )

    def _log_probs(
        self, hidden: Tensor, batch: Batch, temperature: float, *, entropy_with_gradient: bool = False
    ) -> tuple[Tensor, Tensor]:
        return policies.log_probs_and_entropy(
            hidden,
            self._head,
            batch,
            vocabulary=self._vocabulary,
            temperature=temperature,
            entropy_with_gradient=entropy_with_gradient,
        )

    @torch.no_grad()
    def js(self, batch: Batch) -> Tensor:
        """[B, T] nats: Jensen-Shannon divergence of the policy from the reference, exact over the vocabulary.

        Raises:
            ValueError: there is no reference.
        """
        if self.reference is None:
            raise ValueError("there is no reference to compare the policy with")

        def head(hidden: Tensor) -> Tensor:
            with self.passes():
                return self._head(hidden)

        with self.passes():
            hidden = policies.hidden_states(self.model, batch.tokens, self._lengths(batch))
        return self.reference.js(batch, hidden, head, vocabulary=self._vocabulary)

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
        return sum_of(self.named_parameters().values())

    def writer(self, *, is_copied: bool = False, policy_only: bool = False) -> saving.Write:
        take: saving.Take = saving.copied if is_copied else saving.as_they_are
        parts = {"policy": saving.policy_writer(self.model, self._tokenizer_files, self.adapter, take)}
        if self.critic is not None and not policy_only:
            parts["value"] = self.critic.writer(take)

        def write(directory: Path) -> None:
            for name, part in parts.items():
                part(directory / name)

        return write

    def save(self, directory: Path) -> None:
        self.writer()(directory)

    def save_policy(self, directory: Path) -> None:
        """The policy as a Hugging Face directory, tokenizer and all; of one with an adapter, the adapter alone."""
        saving.policy_writer(self.model, self._tokenizer_files, self.adapter, saving.as_they_are)(directory)

    def load(self, directory: Path) -> None:
        if self.adapter is not None:
            self.adapter.load(directory / "policy")
        else:
            _put(self.model, directory / "policy")
        if self.critic is not None and (directory / "value").is_dir():  # there is none of a run without a critic
            self.critic.load(directory / "value")

    def close(self) -> None:
        """What was computed of the reference is made durable, for other runs."""
        if self.reference is not None and self.reference.cache is not None:
            self.reference.cache.flush()


def frozen_copy(model: Any) -> Any:
    """The reference as the policy is now."""
    return copy.deepcopy(model).eval().requires_grad_(False)


def _as_reference(given: Any | None) -> Reference | None:
    if given is None or isinstance(given, Reference):
        return given
    return Reference(given.eval().requires_grad_(False))


def _trained(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    return [p for p in parameters if p.requires_grad]


def _put(model: Any, directory: Path) -> None:
    """Weights of a Hugging Face directory into a model that exists, in place.

    By `from_pretrained`, since some architectures keep weights in another form than they store them.
    """
    stored, told = type(model).from_pretrained(
        directory, dtype=model.dtype, use_safetensors=True, output_loading_info=True
    )
    if faults := faults_of(told):
        raise ValueError(f"{directory}: the weights do not fit the model: {faults}")
    model.load_state_dict(stored.state_dict())
