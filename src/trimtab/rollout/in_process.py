"""The rollout engine that samples from the trainer's own model, in the trainer's process.

Any Hugging Face causal model. Each prompt is run once and its cache repeated for the group; a completion that has ended
leaves the batch; a token is drawn by inverse CDF from one hashed number, so it does not depend on its neighbours.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trimtab import heartbeat
from trimtab.kernels import sampling as kernel
from trimtab.kernels.log_probs import CHUNK_ELEMENTS
from trimtab.rollout.settings import Sampling
from trimtab.types import Draw, Rollout, Schedule


@dataclass(slots=True)
class _Decoding:
    """The completions of one chunk on their way; row r of the outputs is completion r of the chunk."""

    tokens: Tensor
    log_probs: Tensor
    lengths: Tensor
    has_ended: Tensor


class InProcessEngine:
    """Samples with the live weights, so new weights take effect at once."""

    def __init__(
        self,
        *,
        model: Any,
        tokenizer: Any,
        eos_ids: frozenset[int],
        settings: Sampling,
        seed: int,
        branch: str = "main",
        rows_at_once: int = 1024,
        passes: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`passes` is the context of every pass over the model: the precision that the trainer computes log-probs in."""
        self.model = model
        self.tokenizer = tokenizer
        self.settings = settings
        self.rows_at_once = rows_at_once
        self.passes = passes
        given = settings.temperature
        self.temperature: float = given.start if isinstance(given, Schedule) else given
        """Of the coming step."""
        self.version = 0
        self._key = kernel.key(seed, branch, "rollout")
        self._eos = torch.tensor(sorted(eos_ids), dtype=torch.int64, device=model.device)
        parameters = inspect.signature(type(model).forward).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"
        self._pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0

    def refresh(self, *, version: int) -> None:
        self.version = version

    @torch.no_grad()
    def generate(self, draws: Sequence[Draw], *, group_size: int, greedy: bool = False) -> list[Rollout]:
        found: list[Rollout] = []
        for chunk in self._chunks(draws, group_size):
            with self.passes(), heartbeat.at_work("rollout"):
                found += self._generate_chunk(chunk, group_size, greedy)
        by_draw = {(r.draw, r.prompt.id, r.index): r for r in found}
        return [by_draw[d.draw, d.prompt.id, i] for d in draws for i in range(group_size)]

    def _chunks(self, draws: Sequence[Draw], group_size: int) -> Iterator[list[Draw]]:
        """Prompts of like length together, so that little is padded."""
        ordered = sorted(draws, key=lambda d: (len(d.prompt.tokens), d.draw))
        size = max(1, self.rows_at_once // group_size)
        for start in range(0, len(ordered), size):
            yield ordered[start : start + size]

    def _generate_chunk(self, draws: list[Draw], group_size: int, greedy: bool) -> list[Rollout]:
        device = self.model.device
        logits, cache, mask = self._prefill(draws)
        cache.batch_repeat_interleave(group_size)
        logits = logits.repeat_interleave(group_size, 0)
        mask = mask.repeat_interleave(group_size, 0)
        rows = [(d, i) for d in draws for i in range(group_size)]
        limits = torch.tensor([self.settings.max_length - len(d.prompt.tokens) for d, _ in rows], device=device)
        state = kernel.streams(
            self._key,
            torch.tensor([d.prompt.id for d, _ in rows], device=device),
            torch.tensor([d.draw for d, _ in rows], device=device),
            torch.tensor([i for _, i in rows], device=device),
        )
        done = self._decode(logits, cache, mask, limits, state, greedy)
        return [self._rollout(draw, index, row, done) for row, (draw, index) in enumerate(rows)]

    def _prefill(self, draws: list[Draw]) -> tuple[Tensor, Any, Tensor]:
        """Next-token logits [P, V], cache and attention mask [P, S] of prompts padded on the left."""
        from transformers import DynamicCache

        width = max(len(d.prompt.tokens) for d in draws)
        tokens = torch.full((len(draws), width), self._pad, dtype=torch.int64)
        mask = torch.zeros((len(draws), width), dtype=torch.int64)
        for row, draw in enumerate(draws):
            size = len(draw.prompt.tokens)
            tokens[row, width - size :] = torch.tensor(draw.prompt.tokens)
            mask[row, width - size :] = 1
        tokens, mask = tokens.to(self.model.device), mask.to(self.model.device)
        cache = DynamicCache(config=self.model.config)
        out = self.model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=(mask.cumsum(1) - 1).clamp_min(0),
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_argument: cache},
        )
        return out.logits[:, -1], cache, mask

    def _decode(
        self, logits: Tensor, cache: Any, mask: Tensor, limits: Tensor, state: Tensor, greedy: bool
    ) -> _Decoding:
        device, size, longest = logits.device, len(limits), int(limits.max())
        done = _Decoding(
            tokens=torch.full((size, longest), self._pad, dtype=torch.int64, device=device),
            log_probs=torch.zeros((size, longest), device=device),
            lengths=torch.zeros(size, dtype=torch.int64, device=device),
            has_ended=torch.zeros(size, dtype=torch.bool, device=device),
        )
        rows = torch.arange(size, device=device)
        """Which completion each row of the present batch is."""
        is_live = torch.ones(size, dtype=torch.bool, device=device)
        position = mask.sum(1)
        for step in range(longest):
            heartbeat.beat("rollout")
            chosen, log_probs = self._choose(logits, state, step, greedy)
            at = rows[is_live]
            done.tokens[at, step] = chosen[is_live]
            done.log_probs[at, step] = log_probs[is_live]
            done.lengths[at] += 1
            ended = torch.isin(chosen, self._eos) | self._stopped(done, rows, is_live)
            done.has_ended[rows[is_live & ended]] = True
            is_live = is_live & ~ended & (done.lengths[rows] < limits[rows])
            live = int(is_live.sum())
            if live == 0:
                break
            if len(rows) - live >= max(1, len(rows) // 8):
                keep = is_live.nonzero().squeeze(1)
                cache.batch_select_indices(keep)
                rows, state, mask, position, chosen = (x[keep] for x in (rows, state, mask, position, chosen))
                is_live = is_live[keep]
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
            out = self.model(
                input_ids=chosen.unsqueeze(1),
                attention_mask=mask,
                position_ids=position.unsqueeze(1),
                use_cache=True,
                **{self._cache_argument: cache},
            )
            logits, position = out.logits[:, -1], position + 1
        return done

    def _choose(self, logits: Tensor, state: Tensor, step: int, greedy: bool) -> tuple[Tensor, Tensor]:
        if greedy:
            chosen = logits.argmax(-1)
            return chosen, logits.new_zeros(len(chosen), dtype=torch.float32)
        # Of a large vocabulary the figures on the way to a token fill gigabytes.
        rows = max(1, CHUNK_ELEMENTS // logits.shape[-1])
        parts = [self._draw(*part, step) for part in zip(logits.split(rows), state.split(rows), strict=True)]
        return torch.cat([chosen for chosen, _ in parts]), torch.cat([log_probs for _, log_probs in parts])

    def _draw(self, logits: Tensor, state: Tensor, step: int) -> tuple[Tensor, Tensor]:
        s = self.settings
        log_probs = kernel.sampling_log_probs(logits, temperature=self.temperature, top_p=s.top_p, top_k=s.top_k)
        chosen = kernel.inverse_cdf(log_probs, kernel.uniform(state, step))
        return chosen, log_probs.gather(-1, chosen.unsqueeze(-1)).squeeze(-1)

    def _stopped(self, done: _Decoding, rows: Tensor, is_live: Tensor) -> Tensor:
        """[rows] bool: a stop string has just been completed."""
        found = torch.zeros_like(is_live)
        if not self.settings.stop:
            return found
        window = max(len(s) for s in self.settings.stop) + 4
        for place in is_live.nonzero().squeeze(1).tolist():
            row = int(rows[place])
            end = int(done.lengths[row])
            tail = self.tokenizer.decode(done.tokens[row, max(0, end - window) : end].tolist())
            found[place] = any(s in tail for s in self.settings.stop)
        return found

    def _rollout(self, draw: Draw, index: int, row: int, done: _Decoding) -> Rollout:
        size = int(done.lengths[row])
        tokens = done.tokens[row, :size].tolist()
        text = self.tokenizer.decode(tokens, skip_special_tokens=True)
        for stop in self.settings.stop:
            text = text.split(stop, 1)[0]
        return Rollout(
            prompt=draw.prompt,
            draw=draw.draw,
            index=index,
            tokens=tuple(tokens),
            log_probs=tuple(done.log_probs[row, :size].tolist()),
            text=text,
            is_truncated=not bool(done.has_ended[row]),
            policy_version=self.version,
        )
