"""The frozen reference: a model of its own, or the policy with its adapter switched off.

Within a step its log-probs are computed once. A run that reads its data meets each row again in the next epoch; what the
reference says of a row never changes, so it is kept. Completions that are sampled are new in every step, and nothing
of them is kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trimtab.errors import ModelError
from trimtab.kernels.log_probs import js_divergence
from trimtab.models import policy as policies
from trimtab.models.precision import Precision
from trimtab.types import Batch

CACHE_BYTES = 256 << 20
"""Most that is kept. Rows that find no room are computed each time they are met."""
FILE = "log_probs.safetensors"


class ReferenceCache:
    """Log-probs of rows by their content, valid for one reference only.

    The key of a row is a hash of its tokens and of which of them count, so that a row that was cut or tokenised in
    another way is another row. All else that the figures depend on is in the fingerprint.
    """

    def __init__(self, fingerprint: str, *, max_bytes: int = CACHE_BYTES) -> None:
        self.fingerprint = fingerprint
        self.max_bytes = max_bytes
        self.rows: dict[str, Tensor] = {}
        self.bytes = 0

    def check(self, fingerprint: str) -> None:
        """
        Raises:
            ModelError: what is kept was computed by another reference, or of rows made in another way.
        """
        if fingerprint != self.fingerprint:
            raise ModelError(
                f"reference.cache: fingerprint mismatch: the log-probs kept are of {self.fingerprint[:12]}, but reference "
                f"model, its precision, tokenizer, sampling.max_length or temperature are now those of {fingerprint[:12]}; "
                "put back what has changed, or start again with --fresh"
            )

    def put(self, key: str, log_probs: Tensor) -> None:
        size = log_probs.numel() * 4
        if key not in self.rows and self.bytes + size <= self.max_bytes:
            self.rows[key] = log_probs.detach().float().cpu().clone()
            self.bytes += size

    def save(self, directory: Path) -> None:
        """Part of a checkpoint: a resumed run reads the figures that an uninterrupted one would, to the last bit."""
        from safetensors.torch import save_file

        directory.mkdir(parents=True, exist_ok=True)
        sizes = torch.tensor([len(row) for row in self.rows.values()], dtype=torch.int64)
        joined = torch.cat([*self.rows.values(), torch.zeros(0)])
        keys = torch.tensor([list(bytes.fromhex(key)) for key in self.rows], dtype=torch.uint8).reshape(-1, 16)
        values = {"keys": keys, "sizes": sizes, "log_probs": joined}
        save_file(values, str(directory / FILE), metadata={"fingerprint": self.fingerprint})

    def load(self, directory: Path) -> None:
        """
        Raises:
            ModelError: it is of another reference.
        """
        from safetensors import safe_open

        self.rows, self.bytes = {}, 0
        if not (directory / FILE).is_file():
            return
        with safe_open(str(directory / FILE), "pt") as file:
            self.check(file.metadata()["fingerprint"])
            keys, sizes, joined = (file.get_tensor(name) for name in ("keys", "sizes", "log_probs"))
        for key, row in zip(keys.tolist(), joined.split(sizes.tolist()), strict=True):
            self.put(bytes(key).hex(), row)


class Reference:
    """What the `Models` port calls the reference, wherever its weights lie."""

    def __init__(
        self,
        model: Any,
        *,
        precision: Precision | None = None,
        head: policies.Head | None = None,
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
        device: torch.device | None = None,
        offload: bool = False,
        cache: ReferenceCache | None = None,
    ) -> None:
        """
        Args:
            model: in eval mode.
            precision: of its passes.
            head: of `policies.head_of`; None makes it.
            around: the context of its passes: the policy with its adapter off.
            device: where rows are; None: where the model is.
            offload: the weights are on the device from the first pass until `rest` alone.
            cache: None keeps nothing.
        """
        self.model = model
        self.precision = precision or Precision()
        self.device: torch.device = device or model.device
        self.is_offloaded = offload and self.device.type != "cpu"
        self.cache = cache
        self._around = around
        self._is_there = not self.is_offloaded
        self._head = head or policies.head_of(model)

    @torch.no_grad()
    def log_probs(self, batch: Batch, *, vocabulary: int, temperature: float) -> Tensor:
        """[B, T] float32 nats, 0 where the loss does not count."""
        if self.cache is None:
            return self._computed(batch, vocabulary, temperature)
        keys = keys_of(batch)
        missing = torch.tensor([row for row, key in enumerate(keys) if key not in self.cache.rows], dtype=torch.int64)
        found = torch.zeros(batch.loss_mask.shape, device=batch.loss_mask.device)
        lengths = batch.completion_lengths.tolist()
        if len(missing):
            missing = missing.to(batch.tokens.device)
            rows = self._computed(batch.rows(missing), vocabulary, temperature)
            found[missing, : rows.shape[1]] = rows
            for row in missing.tolist():
                self.cache.put(keys[row], found[row, : lengths[row]])
        computed = set(missing.tolist())
        for row, key in enumerate(keys):
            if row not in computed:
                kept = self.cache.rows[key]
                found[row, : len(kept)] = kept.to(found.device)
        return found

    @torch.no_grad()
    def js(self, batch: Batch, hidden: Tensor, head: policies.Head, *, vocabulary: int) -> Tensor:
        """Jensen-Shannon divergence of another model from the reference at temperature 1.

        Args:
            batch: the rows.
            hidden: [B, S, d] of the other model's trunk.
            head: hidden [n, d] -> logits [n, V] of the other model.
        Returns:
            [B, T] float32 nats, 0 where the loss does not count.
        """
        self._fetch()
        mask = batch.loss_mask

        def own_head(states: Tensor) -> Tensor:
            with self._around(), self.precision.passes(self.device):
                return self._head(states)

        with self._around(), self.precision.passes(self.device):
            own = policies.completion_states(policies.hidden_states(self.model, batch.tokens), batch)[mask]
        states = policies.completion_states(hidden, batch)[mask]
        found = js_divergence(states, head, own, own_head, vocabulary=vocabulary)
        return found.new_zeros(mask.shape).masked_scatter(mask, found)

    def rest(self) -> None:
        """The weights are not needed for a while: a policy's pass with gradient begins."""
        if self.is_offloaded and self._is_there:
            self.model.to("cpu")
            self._is_there = False

    def _fetch(self) -> None:
        if not self._is_there:
            self.model.to(self.device)
            self._is_there = True

    def _computed(self, batch: Batch, vocabulary: int, temperature: float) -> Tensor:
        self._fetch()
        with self._around(), self.precision.passes(self.device):
            found, _ = policies.log_probs_and_entropy(
                policies.hidden_states(self.model, batch.tokens),
                self._head,
                batch,
                vocabulary=vocabulary,
                temperature=temperature,
                entropy_with_gradient=False,
            )
        return found


def keys_of(batch: Batch) -> list[str]:
    """A name of each row's content: its tokens, where the completion begins, and which of its tokens count."""
    tokens, mask = batch.tokens.cpu(), batch.loss_mask.cpu()
    found = []
    sizes = zip(batch.prompt_lengths.tolist(), batch.completion_lengths.tolist(), strict=True)
    for row, (prompt, completion) in enumerate(sizes):
        digest = hashlib.blake2b(f"{prompt} {completion} ".encode(), digest_size=16)
        digest.update(tokens[row, : prompt + completion].contiguous().numpy().tobytes())
        digest.update(mask[row, :completion].contiguous().numpy().tobytes())
        found.append(digest.hexdigest())
    return found


def fingerprint_of(weights: str, tokenizer: Any, *, precision: Precision, facts: Mapping[str, Any]) -> str:
    """What the reference's figures depend on besides a row's content.

    Args:
        weights: `lora.fingerprint` of the reference.
        tokenizer: of the policy.
        precision: of the reference's passes.
        facts: length limits and temperature.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    words = backend.to_str() if backend is not None else repr(sorted(tokenizer.get_vocab().items()))
    parts = (
        weights,
        words,
        str(getattr(tokenizer, "chat_template", None)),
        repr(precision),
        repr(sorted(facts.items())),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
