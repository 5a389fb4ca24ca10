"""How a batch becomes updates.

A step: `Frozen` once for the batch, advantages once over all ranks' rows, then `epochs_per_batch x minibatches` updates.
An update: the weight of every row from the masks of the whole update, then forward and backward over micro-batches
whose losses simply add up, one sum over ranks, one optimiser step. So neither micro-batches nor ranks change the result.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import psutil
import torch
from torch import Tensor

from trimtab.algorithms.base import Algorithm
from trimtab.algorithms.math import kl_estimate
from trimtab.errors import NumericalError
from trimtab.ports import Models
from trimtab.train import batches, figures, schedule, update
from trimtab.train.optimizer import Optimizer, all_finite
from trimtab.train.ranks import Ranks
from trimtab.train.settings import Optim, Train
from trimtab.types import Advantages, Batch, Frozen, Need, Policy, StepReport


@dataclass(slots=True)
class _Tally:
    """Numerators and denominators of a step's metrics, and its seconds."""

    sums: dict[str, list[float]] = field(default_factory=dict)
    highest: dict[str, float] = field(default_factory=dict)
    lowest: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, total: float, count: float = 1.0) -> None:
        pair = self.sums.setdefault(name, [0.0, 0.0])
        pair[0] += total
        pair[1] += count

    def least(self, name: str, value: float) -> None:
        self.lowest[name] = min(self.lowest.get(name, float("inf")), value)

    def most(self, name: str, value: float) -> None:
        self.highest[name] = max(self.highest.get(name, -float("inf")), value)

    def since(self, name: str, started: float) -> float:
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - started
        return now


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """The batch with everything that was computed of it once; all ranks' rows and where this rank's stand in them."""

    number: int
    config: Any
    batch: Batch
    frozen: Frozen
    advantages: Advantages
    mine: range

    def rows(self, index: Tensor) -> tuple[Batch, Frozen, Advantages]:
        rows = self.batch.rows(index)
        width = rows.loss_mask.shape[1]
        return rows, self.frozen.rows(index, width), self.advantages.rows(index, width)

    def on(self, index: Tensor, device: torch.device) -> tuple[Batch, Frozen, Advantages]:
        batch, frozen, advantages = self.rows(index)
        return batches.on(batch, device), batches.on(frozen, device), batches.on(advantages, device)


class Learner:
    """Turns batches into new weights."""

    def __init__(
        self,
        *,
        models: Models,
        algorithm: Algorithm,
        config: Any,
        optim: Optim,
        train: Train,
        micro_batch_tokens: int,
        value_learning_rate: float | None = None,
        probe_tokens: int = 2048,
        reward_labels: tuple[str, ...] = (),
        ranks: Ranks | None = None,
    ) -> None:
        self.models = models
        self.algorithm = algorithm
        self.config = config
        self.optim = optim
        self.train = train
        self.micro_batch_tokens = micro_batch_tokens
        self.probe_tokens = probe_tokens
        self.reward_labels = reward_labels
        self.ranks = ranks or Ranks()
        self.step = 0
        self.applied_steps = 0
        """Steps with at least one update; the learning rate's schedule stands still in the others."""
        self.need: Need = algorithm.needs(config)
        rates = {} if value_learning_rate is None else {"value": value_learning_rate}
        self.optimizer = Optimizer(models.parameters(), models.named_parameters(), optim, rates)

    # ------------------------------------------------------------------------------------------------- one step
    def update(self, batch: Batch) -> StepReport:
        """Train on one batch. An update whose loss or gradient is not finite is not applied, only counted."""
        started = time.perf_counter()
        number = self.step + 1
        tally = _Tally()
        step = self._prepare(number, batch, tally)
        factor = schedule.learning_rate_factor(self.optim, self.applied_steps + 1, self.train.max_steps)
        applied = 0
        for epoch in range(self.train.epochs_per_batch):
            parts = batches.minibatches(
                step.batch.group_ids, self.train.minibatches, seed=self.train.seed, step=number, epoch=epoch
            )
            for rows in parts:
                applied += self._one_update(step, rows, factor, tally)
        self.step = number
        self.applied_steps += applied > 0
        tally.add("updates/count", applied)
        began = time.perf_counter()
        probe = self._probe(step) if applied else {}
        tally.since("probe", began)
        tally.since("step", started)
        return self._report(step, tally, {**probe, "learning_rate": self.optimizer.base_rates["policy"] * factor})

    def _prepare(self, number: int, batch: Batch, tally: _Tally) -> _Step:
        started = time.perf_counter()
        config = schedule.at(self.config, number)
        frozen = self._freeze(batch)
        started = tally.since("freeze", started)
        everybody = self.ranks.gather((batch, frozen))
        sizes = [len(b) for b, _ in everybody]
        before = sum(sizes[: self.ranks.rank])
        whole, whole_frozen = batches.joined([b for b, _ in everybody]), batches.joined([f for _, f in everybody])
        if self.ranks.size > 1:
            tally.since("communication", started)
        with torch.no_grad():
            advantages = _as_float32(self.algorithm.advantages(whole, whole_frozen, config))
        return _Step(
            number=number,
            config=config,
            batch=whole,
            frozen=whole_frozen,
            advantages=advantages,
            mine=range(before, before + len(batch)),
        )

    def _freeze(self, batch: Batch) -> Frozen:
        parts = []
        for index in batches.micro_batches(batch.lengths, self.micro_batch_tokens):
            parts.append((index, self.models.freeze(batches.on(batch.rows(index), self.models.device), self.need)))
        return batches.assembled(parts, batch.loss_mask)

    # ----------------------------------------------------------------------------------------------- one update
    def _one_update(self, step: _Step, rows: Tensor, factor: float, tally: _Tally) -> bool:
        """Whether the update was applied."""
        weights = update.weigh(self.algorithm, step.config, *step.rows(rows))
        if not any(bool(w.any()) for w in weights.values()):
            tally.add("updates/skipped", 1.0, 0.0)
            return False
        self.optimizer.zero_grad()
        losses = self._accumulate(step, rows, weights, tally)
        started = time.perf_counter()
        self.ranks.sum_gradients(self.optimizer.parameters())
        losses = dict(
            zip(losses, self.ranks.sum(torch.tensor(list(losses.values()), dtype=torch.float64)).tolist(), strict=True)
        )
        if self.ranks.size > 1:
            started = tally.since("communication", started)
        norms = self.optimizer.norms()
        if not all_finite([*losses.values(), *norms.values()]):
            self.optimizer.zero_grad()
            tally.add("updates/skipped", 1.0, 0.0)
            tally.add("updates/non_finite", 1.0, 0.0)
            return False
        for name, value in losses.items():
            tally.add(f"loss/{name}", value)
        tally.add("grad_norm/total", sum(n * n for n in norms.values()) ** 0.5)
        if "value" in norms:
            tally.add("grad_norm/value", norms["value"])
        self.optimizer.step(norms, factor)
        self.optimizer.zero_grad()
        tally.since("optimizer", started)
        return True

    def _accumulate(self, step: _Step, rows: Tensor, weights: Mapping[str, Tensor], tally: _Tally) -> dict[str, float]:
        """Add this rank's share of the gradient to the parameters; its share of each term and of the total."""
        losses = dict.fromkeys([*weights, "total"], 0.0)
        is_mine = (rows >= step.mine.start) & (rows < step.mine.stop)
        own = rows[is_mine]
        for index in batches.micro_batches(step.batch.lengths[own], self.micro_batch_tokens):
            started = time.perf_counter()
            batch, frozen, advantages = step.on(own[index], self.models.device)
            policy = self.models.forward(batch, self.need)
            mine = {name: w[is_mine][index] for name, w in weights.items()}
            total, parts, coefficients = update.loss_of(
                self.algorithm, step.config, batch, frozen, advantages, policy, mine
            )
            for name, part in parts.items():
                losses[name] += float(part.detach())
                tally.highest[f"coefficient/{name}"] = coefficients[name]
            losses["total"] += float(total.detach())
            started = tally.since("forward", started)
            if total.requires_grad:
                total.backward()
            started = tally.since("backward", started)
            self._observe(batch, frozen, advantages, policy, step.config, tally)
            tally.since("forward", started)
        return losses

    @torch.no_grad()
    def _observe(
        self, batch: Batch, frozen: Frozen, advantages: Advantages, policy: Policy, config: Any, tally: _Tally
    ) -> None:
        mask = batch.loss_mask
        count = float(mask.sum())
        if policy.entropy is not None:
            tally.add("entropy", float(policy.entropy.sum()), count)
        if policy.log_probs is not None and frozen.old_log_probs is not None and count:
            ratio = torch.exp((policy.log_probs - frozen.old_log_probs).clamp(-20, 20))[mask]
            tally.add("ratio/mean", float(ratio.sum()), count)
            tally.most("ratio/max", float(ratio.max()))
            tally.least("ratio/min", float(ratio.min()))
        if policy.log_probs is not None and frozen.ref_log_probs is not None:
            k3 = kl_estimate(policy.log_probs, frozen.ref_log_probs, "k3")
            tally.add("kl/reference", float(k3[mask].sum()), count)
        if self.algorithm.metrics is not None:
            for name, sums in self.algorithm.metrics(batch, frozen, advantages, policy, config).items():
                tally.add(name, float(sums.total), float(sums.count))

    # ------------------------------------------------------------------------------------------ after the updates
    @torch.no_grad()
    def _probe(self, step: _Step) -> dict[str, float]:
        """How far the whole step has moved the policy, on a fixed sample of its rows."""
        if step.frozen.old_log_probs is None:
            return {}
        sums = torch.zeros(2, dtype=torch.float64)
        highest = torch.zeros(1)
        rows = self._probe_rows(step)
        for index in batches.micro_batches(step.batch.lengths[rows], self.micro_batch_tokens):
            batch, frozen, _ = step.on(rows[index], self.models.device)
            policy = self.models.forward(batch, Need.NONE)
            if policy.log_probs is None or frozen.old_log_probs is None:
                continue
            mask = batch.loss_mask
            k3 = kl_estimate(frozen.old_log_probs, policy.log_probs, "k3")[mask]
            ratio = torch.exp((policy.log_probs - frozen.old_log_probs).clamp(-20, 20))[mask]
            sums += torch.stack([k3.double().sum(), mask.sum().double()]).cpu()
            if len(ratio):
                highest = torch.maximum(highest, ratio.max().cpu())
        sums, highest = self.ranks.sum(sums), self.ranks.max(highest)
        if not float(sums[1]):
            return {}
        return {"kl/update": float(sums[0] / sums[1]), "update/ratio_max": float(highest)}

    def _probe_rows(self, step: _Step) -> Tensor:
        """The first of this rank's rows that together have its share of `probe_tokens`."""
        share = -(-self.probe_tokens // self.ranks.size)
        lengths = step.batch.completion_lengths[step.mine.start : step.mine.stop]
        count = int((lengths.cumsum(0) - lengths < share).sum())
        return torch.arange(step.mine.start, step.mine.start + count)

    def _report(self, step: _Step, tally: _Tally, more: Mapping[str, float]) -> StepReport:
        metrics = figures.of_batch(step.batch, step.number)
        metrics |= figures.of_reward_parts(step.batch, self.reward_labels)
        metrics |= figures.of_frozen(step.batch, step.frozen, step.advantages)
        metrics |= self._reduced(tally)
        metrics |= more
        seconds = sum(metrics.get(f"time/{name}", 0.0) for name in ("forward", "backward", "optimizer"))
        trained = float(step.batch.lengths.sum()) * self.train.epochs_per_batch
        metrics["throughput/train_tokens_per_second"] = trained / max(seconds, 1e-9)
        weights_sum = self.models.weights_sum()
        if len(set(self.ranks.gather(weights_sum))) > 1:
            raise NumericalError(
                f"step {step.number}: the ranks no longer hold the same weights; start again from a checkpoint"
            )
        return StepReport(
            step=step.number,
            metrics={name: value for name, value in metrics.items() if math.isfinite(value)},
            prompt_ids=tuple(step.batch.prompt_ids.tolist()),
            completion_hashes=_completion_hashes(step.batch),
            weights_sum=weights_sum,
        )

    def _reduced(self, tally: _Tally) -> dict[str, float]:
        """Sums over ranks, then quotients. Losses, norms and counts of updates are the same on every rank already."""
        same = ("loss/", "grad_norm/", "updates/")
        counts = ("updates/count", "updates/skipped", "updates/non_finite")
        found = dict.fromkeys(counts, 0.0)
        for name, (total, count) in tally.sums.items():
            if name in counts:
                found[name] = total
            elif name.startswith(same) and count:
                found[name] = total / count
        named = sorted({n for names in self.ranks.gather([*tally.sums]) for n in names if not n.startswith(same)})
        if named:
            local = torch.tensor([tally.sums.get(n, [0.0, 0.0]) for n in named], dtype=torch.float64)
            for name, (total, count) in zip(named, self.ranks.sum(local).tolist(), strict=True):
                if count:
                    found[name] = total / count
        tally.most("memory/total", float(psutil.Process().memory_info().rss))
        for highest, lowest, seconds in self.ranks.gather((tally.highest, tally.lowest, tally.seconds)):
            for name, value in highest.items():
                found[name] = max(found.get(name, value), value)
            for name, value in lowest.items():
                found[name] = min(found.get(name, value), value)
            for name, value in seconds.items():
                found[f"time/{name}"] = max(found.get(f"time/{name}", 0.0), value)
        return found

    # ------------------------------------------------------------------------------------------------------ state
    def tensors(self) -> dict[str, Tensor]:
        return self.optimizer.state()[0]

    def values(self) -> dict[str, Any]:
        return {"step": self.step, "applied_steps": self.applied_steps, "optimizer": self.optimizer.state()[1]}

    def load(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        self.step = int(values["step"])
        self.applied_steps = int(values["applied_steps"])
        self.optimizer.load_state(tensors, values["optimizer"])


def _as_float32(advantages: Advantages) -> Advantages:
    """The precision of the loss; rewards and their statistics are float64."""
    returns = advantages.returns
    return replace(advantages, values=advantages.values.float(), returns=None if returns is None else returns.float())


def _completion_hashes(batch: Batch) -> tuple[str, ...]:
    import hashlib

    rows = zip(batch.tokens.tolist(), batch.prompt_lengths.tolist(), batch.lengths.tolist(), strict=True)
    packed = (b"".join(t.to_bytes(8, "little") for t in tokens[start:end]) for tokens, start, end in rows)
    return tuple(hashlib.blake2b(p, digest_size=8).hexdigest() for p in packed)
