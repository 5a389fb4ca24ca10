"""The frozen reference: a model of its own, or the policy with its adapter switched off.

Within a step its log-probs are computed once. Rows that are read are met again in the next epoch and in the next run, and
what the reference says of a row never changes, so it may be kept. For that it must not depend on what a row happens to be
computed beside: a pass over several rows rounds otherwise than one over each. On a CPU, where equal runs are equal to the
last bit, every row that is trained on has a pass of its own, whether its figures are kept or not. Rows of an evaluation
are the same every time, and are computed as the policy computes them: while it is the reference, the margin is 0. On other
devices, where equal bits are not promised and small passes are slow, rows are computed as they come. Completions that
are sampled are new in every step, and nothing of them is kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor

from trimtab.kernels.log_probs import js_divergence
from trimtab.models import policy as policies
from trimtab.models.precision import Precision
from trimtab.types import Batch


class Kept(Protocol):
    """Log-probs of rows by `keys_of`, under one set of `facts_of`."""

    def get(self, key: bytes) -> Tensor | None:
        """[n] float32 nats on the CPU, or None."""
        ...

    def put(self, key: bytes, log_probs: Tensor) -> None: ...

    def refresh(self) -> None:
        """Look for what other processes have computed meanwhile."""
        ...

    def flush(self) -> None:
        """Make what was put durable."""
        ...


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
        cache: Kept | None = None,
        packing: bool = False,
    ) -> None:
        """
        Args:
            model: in eval mode.
            precision: of its passes.
            head: of `policies.head_of`; None makes it.
            around: the context of its passes: the policy with its adapter off.
            device: where rows are; None: where the model is.
            offload: the weights are on the device from the first pass until `rest` alone.
            cache: of rows that are read; None keeps nothing.
            packing: rows of a pass are laid end to end in fewer.
        """
        self.model = model
        self.precision = precision or Precision()
        self.device: torch.device = device or model.device
        self.is_offloaded = offload and self.device.type != "cpu"
        self.cache = cache
        self.packing = packing
        self._around = around
        self._is_there = not self.is_offloaded
        self._head = head or policies.head_of(model)

    @torch.no_grad()
    def log_probs(
        self, batch: Batch, *, vocabulary: int, temperature: float, is_read: bool = False, is_evaluated: bool = False
    ) -> Tensor:
        """[B, T] float32 nats, 0 where the loss does not count.

        Args:
            is_read: the rows are of a file, not sampled: met again, and kept if there is a cache.
            is_evaluated: they are those of a pass that every evaluation makes.
        """
        if not is_read:
            return self._computed(batch, vocabulary, temperature)
        found = torch.zeros(batch.loss_mask.shape, device=batch.loss_mask.device)
        is_alone = self.device.type == "cpu" and not is_evaluated
        missing, keys = list(range(len(batch))), []
        if self.cache is not None:
            keys = keys_of(batch)
            keys = _within(keys) if is_evaluated else keys
            missing = self._put_known(found, keys, self.cache)
        if is_evaluated and missing:
            missing = list(range(len(batch)))
        for rows in [[row] for row in missing] if is_alone else [missing] if missing else []:
            index = torch.tensor(rows, device=batch.tokens.device)
            computed = self._computed(batch.rows(index), vocabulary, temperature)
            found[index, : computed.shape[1]] = computed
        if self.cache is not None:
            lengths = batch.completion_lengths.tolist()
            for row in missing:
                self.cache.put(keys[row], found[row, : lengths[row]])
        return found

    def _put_known(self, found: Tensor, keys: list[bytes], cache: Kept) -> list[int]:
        """Put into `found` [B, T] what is kept; the rows of which nothing is."""
        if any(cache.get(key) is None for key in keys):
            cache.refresh()
        missing = []
        for row, key in enumerate(keys):
            if (kept := cache.get(key)) is None:
                missing.append(row)
            else:
                found[row, : len(kept)] = kept.to(found.device)
        return missing

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
            own = policies.completion_states(self._hidden_states(batch), batch)[mask]
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

    def _hidden_states(self, batch: Batch) -> Tensor:
        return policies.hidden_states(self.model, batch.tokens, batch.lengths if self.packing else None)

    def _computed(self, batch: Batch, vocabulary: int, temperature: float) -> Tensor:
        self._fetch()
        with self._around(), self.precision.passes(self.device):
            found, _ = policies.log_probs_and_entropy(
                self._hidden_states(batch),
                self._head,
                batch,
                vocabulary=vocabulary,
                temperature=temperature,
                entropy_with_gradient=False,
            )
        return found


def keys_of(batch: Batch) -> list[bytes]:
    """A name of each row's content: its tokens, where the completion begins, and which of its tokens count.

    A row that was cut or tokenised in another way is another row.
    """
    tokens, mask = batch.tokens.cpu(), batch.loss_mask.cpu()
    found = []
    sizes = zip(batch.prompt_lengths.tolist(), batch.completion_lengths.tolist(), strict=True)
    for row, (prompt, completion) in enumerate(sizes):
        digest = hashlib.blake2b(f"{prompt} {completion} ".encode(), digest_size=16)
        digest.update(tokens[row, : prompt + completion].contiguous().numpy().tobytes())
        digest.update(mask[row, :completion].contiguous().numpy().tobytes())
        found.append(digest.digest())
    return found


def _within(keys: list[bytes]) -> list[bytes]:
    """Names of rows that are computed together, in this order."""
    whole = hashlib.blake2b(b"".join(keys), digest_size=16).digest()
    return [hashlib.blake2b(whole + key, digest_size=16).digest() for key in keys]


def facts_of(
    model: Any, weights: str, tokenizer: Any, *, precision: Precision, settings: Mapping[str, Any]
) -> dict[str, str]:
    """What the reference's figures depend on besides a row's content: name -> value, or its checksum.

    Args:
        model: that computes them.
        weights: `lora.fingerprint` of the reference.
        tokenizer: of the policy.
        precision: of the reference's passes.
        settings: keys of the configuration that make the rows, and what the machine adds.
    """
    import transformers

    backend = getattr(tokenizer, "backend_tokenizer", None)
    words = backend.to_str() if backend is not None else repr(sorted(tokenizer.get_vocab().items()))
    return {
        "weights": weights[:32],
        "precision": f"{precision.dtype}, autocast {precision.autocast}",
        "tokenizer": _checksum(words),
        "chat template": _checksum(str(getattr(tokenizer, "chat_template", None))),
        **{name: str(value) for name, value in settings.items()},
        "attention": str(getattr(model.config, "_attn_implementation", None)),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def kernel_of(device: torch.device) -> str:
    """What rounds: a device, or the instructions and threads of a CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type}, {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads"


def _checksum(words: str) -> str:
    return hashlib.sha256(words.encode()).hexdigest()[:32]
