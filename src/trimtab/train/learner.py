"""How a batch becomes updates.

A step: `Frozen` once for the batch, advantages once over all ranks' rows, then `epochs_per_batch x minibatches` updates.
An update: the weight of every row from the masks of the whole update, then forward and backward over micro-batches
whose losses simply add up, one sum over ranks, one optimiser step. So neither micro-batches nor ranks change the result.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import psutil
import torch
from torch import Tensor

from trimtab.algorithms.base import Algorithm, Coefficient, Kl, number
from trimtab.algorithms.math import kl_estimate
from trimtab.errors import NumericalError
from trimtab.ports import Models
from trimtab.train import batches, figures, mismatched, schedule, update
from trimtab.train.controller import KlController
from trimtab.train.optimizer import Optimizer, all_finite
from trimtab.train.ranks import Ranks
from trimtab.train.scaler import LossScaler
from trimtab.train.settings import Optim, Train
from trimtab.train.tally import Tally
from trimtab.types import Advantages, Batch, Frozen, Need, Policy, StepReport

MIXED = "mix/"
"""Before the names of terms that a mixed part adds."""
APPLIED, SKIPPED, STOPPED = "applied", "skipped", "stopped"
"""What became of an update; after a stopped one the step makes no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """An algorithm with its settings; the first of a run, or one that `mix` adds with a weight."""

    algorithm: Algorithm
    config: Any
    weight: Coefficient = 1.0
    """Of its whole loss. Its batch and its denominators are its own."""
    prefix: str = ""
    """Before the names of its terms."""

    @property
    def need(self) -> Need:
        return self.algorithm.needs(self.config)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """The batch with everything that was computed of it once; all ranks' rows and where this rank's stand in them."""

    number: int
    objective: Objective
    """With the numbers of this step in the place of schedules."""
    batch: Batch
    frozen: Frozen
    advantages: Advantages
    ranges: tuple[range, ...]
    """Where each rank's rows stand in the batch."""
    mine: range

    @property
    def algorithm(self) -> Algorithm:
        return self.objective.algorithm

    @property
    def config(self) -> Any:
        return self.objective.config

    @property
    def kl(self) -> Kl | None:
        """The algorithm's `kl` section at this step, if it has one."""
        return getattr(getattr(self.config, "shared", None), "kl", None)

    def own(self, rows: Tensor) -> Tensor:
        """[n] bool, which of these rows are this rank's."""
        return (rows >= self.mine.start) & (rows < self.mine.stop)

    def micro_batches(self, rows: Tensor, budget: int) -> list[Tensor]:
        """Places in `rows` of each forward pass; the rows of a pair stay together."""
        pairs = self.batch.pair_ids
        return batches.micro_batches(self.batch.lengths[rows], budget, None if pairs is None else pairs[rows])

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
        value_warmup_steps: int = 0,
        probe_tokens: int = 2048,
        term_norms_every: int | None = None,
        reward_labels: tuple[str, ...] = (),
        ranks: Ranks | None = None,
        scaler: LossScaler | None = None,
        mixed: Sequence[Objective] = (),
    ) -> None:
        self.models = models
        self.main = Objective(algorithm=algorithm, config=config)
        self.mixed = tuple(replace(part, prefix=f"{MIXED}{part.algorithm.name}/") for part in mixed)
        self.optim = optim
        self.train = train
        self.micro_batch_tokens = micro_batch_tokens
        self.value_warmup_steps = value_warmup_steps
        self.probe_tokens = probe_tokens
        self.term_norms_every = term_norms_every
        self.reward_labels = reward_labels
        self.ranks = ranks or Ranks()
        self.step = 0
        self.applied_steps = 0
        """Steps with at least one update; the learning rate's schedule stands still in the others."""
        rates = {} if value_learning_rate is None else {"value": value_learning_rate}
        self.optimizer = Optimizer(models.parameters(), models.named_parameters(), optim, rates)
        self.controller = KlController(config)
        self.scaler = scaler or LossScaler(is_enabled=False)

    # ------------------------------------------------------------------------------------------------- one step
    def update(self, batch: Batch, beside: Sequence[Batch] = ()) -> StepReport:
        """Train on one batch. An update whose loss or gradient is not finite is not applied, only counted.

        Args:
            batch: this rank's rows of the step.
            beside: likewise of each part that `mix` adds.
        """
        started = time.perf_counter()
        now = self.step + 1
        tally = Tally()
        step = self._prepare(self.main, now, batch, tally)
        others = [self._prepare(part, now, own, tally) for part, own in zip(self.mixed, beside, strict=True)]
        factor = schedule.learning_rate_factor(self.optim, self.applied_steps + 1, self.train.max_steps)
        outcomes: list[str] = []
        planned = self._planned(step)
        plans = [planned, *(self._planned(other, updates=len(planned)) for other in others)]
        for parts in zip(*plans, strict=True):
            if outcomes[-1:] == [STOPPED]:
                break
            has_moved = APPLIED in outcomes
            update_of = [
                (self._with_statistics(s, rows, has_moved=has_moved), rows)
                for s, rows in zip([step, *others], parts, strict=True)
                if len(rows) or s is step
            ]
            if not outcomes and self.term_norms_every and (now - 1) % self.term_norms_every == 0:
                self._observe_term_norms(*update_of[0], tally)
            outcomes.append(self._one_update(update_of, factor, tally))
        applied = outcomes.count(APPLIED)
        self.step = now
        self.applied_steps += applied > 0
        tally.add("updates/count", applied)
        tally.add("updates/stopped", len(planned) - len(outcomes) + outcomes.count(STOPPED))
        began = time.perf_counter()
        probe = self._probe(step) if applied else {}
        tally.since("probe", began)
        tally.since("step", started)
        tally.most("memory/total", float(psutil.Process().memory_info().rss))
        metrics = tally.figures(self.ranks) | probe
        if self.scaler.is_enabled:
            metrics["loss_scale"] = self.scaler.factor
        if applied and now > self.value_warmup_steps:  # until then the policy has not moved
            self.controller.advance(metrics.get("kl/controlled"), samples=len(step.batch))
        return self._report(step, {**metrics, "learning_rate": self.optimizer.base_rates["policy"] * factor})

    def _planned(self, step: _Step, *, updates: int | None = None) -> list[Tensor]:
        """Rows of each update of the step; of a mixed part exactly `updates`, some of them empty if it has few rows."""
        found = []
        for epoch in range(self.train.epochs_per_batch):
            parts = batches.minibatches(
                step.batch.group_ids, self.train.minibatches, seed=self.train.seed, step=step.number, epoch=epoch
            )
            wanted = len(parts) if updates is None else updates // self.train.epochs_per_batch
            found += [*parts, *[torch.zeros(0, dtype=torch.int64)] * (wanted - len(parts))][:wanted]
        return found

    def _prepare(self, objective: Objective, now: int, batch: Batch, tally: Tally) -> _Step:
        started = time.perf_counter()
        config = schedule.at(objective.config, now)
        config = self.controller.applied_to(config) if objective is self.main else config
        frozen = self._freeze(batch, objective.need)
        started = tally.since("freeze", started)
        everybody = self.ranks.gather((batch, frozen))
        ends = list(accumulate((len(b) for b, _ in everybody), initial=0))
        ranges = tuple(range(start, end) for start, end in pairwise(ends))
        whole, whole_frozen = batches.joined([b for b, _ in everybody]), batches.joined([f for _, f in everybody])
        if self.ranks.size > 1:
            tally.since("communication", started)
        with torch.no_grad():
            advantages = _as_float32(objective.algorithm.advantages(whole, whole_frozen, config))
        return _Step(
            number=now,
            objective=replace(objective, config=config, weight=schedule.number_at(objective.weight, now)),
            batch=whole,
            frozen=whole_frozen,
            advantages=advantages,
            ranges=ranges,
            mine=ranges[self.ranks.rank],
        )

    def _freeze(self, batch: Batch, need: Need) -> Frozen:
        parts = []
        for index in batches.micro_batches(batch.lengths, self.micro_batch_tokens):
            parts.append((index, self.models.freeze(batches.on(batch.rows(index), self.models.device), need)))
        return batches.assembled(parts, batch.loss_mask)

    # ----------------------------------------------------------------------------------------------- one update
    def _with_statistics(self, step: _Step, rows: Tensor, *, has_moved: bool) -> _Step:
        """The step with what the algorithm computes over all rows of the update, if it does.

        Until the first update of a step is applied the log-probs are the old ones, and no pass is made for them.
        """
        if step.algorithm.statistics is None:
            return step
        batch, frozen, advantages = step.rows(rows)
        if Need.MISMATCHED in step.objective.need:
            own = step.own(rows).nonzero().squeeze(1)
            ratios = mismatched.log_ratios(self.models, batch, own, self.micro_batch_tokens)
            frozen = replace(frozen, mismatched_log_ratios=torch.cat(self.ranks.gather(ratios)))
        log_probs = self._current_log_probs(step, rows) if has_moved else frozen.old_log_probs
        found = update.with_statistics(
            step.algorithm,
            step.config,
            batch,
            frozen,
            advantages,
            Policy(loss_mask=batch.loss_mask, log_probs=log_probs),
            seed=self.train.seed,
            step=step.number,
        )
        whole = step.frozen
        if found.picked is not None:
            picked = torch.zeros(step.batch.loss_mask.shape, dtype=torch.bool)
            picked[rows, : found.picked.shape[1]] = found.picked
            whole = replace(whole, picked=picked)
        if found.shift is not None:
            whole = replace(whole, shift=torch.zeros(len(step.batch)).index_put((rows,), found.shift.float()))
        return replace(step, frozen=whole)

    @torch.no_grad()
    def _current_log_probs(self, step: _Step, rows: Tensor) -> Tensor:
        """[n, T] of the rows of an update, of all ranks, under the weights as they are."""
        own = rows[step.own(rows)]
        width = int(step.rows(rows)[0].loss_mask.shape[1])
        found = torch.zeros(len(own), width)
        for index in step.micro_batches(own, self.micro_batch_tokens):
            batch, _, _ = step.on(own[index], self.models.device)
            log_probs = self.models.forward(batch, Need.NONE).log_probs
            if log_probs is not None:
                found[index, : log_probs.shape[1]] = log_probs.float().cpu()
        return torch.cat(self.ranks.gather(found))

    def _one_update(self, parts: Sequence[tuple[_Step, Tensor]], factor: float, tally: Tally) -> str:
        """What became of the update.

        Args:
            parts: the step's own rows, then those of every part that is mixed in.
        """
        step = parts[0][0]
        only_value = step.number <= self.value_warmup_steps
        weights = [update.weigh(s.algorithm, s.config, *s.rows(rows)) for s, rows in parts]
        if only_value:
            weights = [{name: w for name, w in found.items() if name == "value"} for found in weights]
        if not any(bool(w.any()) for found in weights for w in found.values()):
            tally.add("updates/skipped", 1.0)
            return SKIPPED
        self.optimizer.zero_grad()
        losses, moved = {"total": 0.0}, [0.0, 0.0]
        for (s, rows), own in zip(parts, weights, strict=True):
            self._accumulate(s, rows, own, losses, moved, tally)
        started = time.perf_counter()
        self.ranks.sum_gradients(self.optimizer.parameters())
        summed = self.ranks.sum(torch.tensor([*losses.values(), *moved], dtype=torch.float64)).tolist()
        losses = dict(zip(losses, summed[:-2], strict=True))
        if self.ranks.size > 1:
            started = tally.since("communication", started)
        if step.kl is not None and step.kl.stop_epochs and summed[-2] > step.kl.limit.warn * max(summed[-1], 1.0):
            self.optimizer.zero_grad()
            return STOPPED
        if only_value:
            self.optimizer.leave_out("policy")
        found_inf = self.scaler.unscale(self.optimizer.parameters())
        if found_inf and all_finite([*losses.values()]) and self.scaler.update(found_inf):
            self.optimizer.zero_grad()
            tally.add("updates/skipped", 1.0)
            tally.add("updates/overflow", 1.0)
            return SKIPPED
        norms = self.optimizer.norms()
        if not all_finite([*losses.values(), *norms.values()]):
            self.optimizer.zero_grad()
            tally.add("updates/skipped", 1.0)
            tally.add("updates/non_finite", 1.0)
            return SKIPPED
        for name, value in losses.items():
            tally.add(f"loss/{name}", value)
        tally.add("grad_norm/total", sum(n * n for n in norms.values()) ** 0.5)
        if "value" in norms:
            tally.add("grad_norm/critic", norms["value"])
        self.optimizer.step(norms, factor)
        self.optimizer.zero_grad()
        self.scaler.update(False)
        tally.since("optimizer", started)
        return APPLIED

    def _accumulate(
        self,
        step: _Step,
        rows: Tensor,
        weights: Mapping[str, Tensor],
        losses: dict[str, float],
        moved: list[float],
        tally: Tally,
    ) -> None:
        """Add this rank's share of the gradient to the parameters, and what it saw to the sums.

        Args:
            weights: of `update.weigh`, for `rows`.
            losses: by term and `total`, this rank's shares.
            moved: how far the policy has moved since it sampled, k3: the sum over tokens and their count.
        """
        objective = step.objective
        share = number(objective.weight)
        for name in weights:
            losses.setdefault(objective.prefix + name, 0.0)
        is_mine = step.own(rows)
        own = rows[is_mine]
        for index in step.micro_batches(own, self.micro_batch_tokens):
            started = time.perf_counter()
            batch, frozen, advantages = step.on(own[index], self.models.device)
            policy = self.models.forward(batch, objective.need)
            mine = {name: w[is_mine][index] for name, w in weights.items()}
            total, parts, coefficients = update.loss_of(
                step.algorithm, step.config, batch, frozen, advantages, policy, mine
            )
            for name, part in parts.items():
                losses[objective.prefix + name] += float(part.detach())
                tally.highest[f"coefficient/{objective.prefix}{name}"] = share * coefficients[name]
            losses["total"] += share * float(total.detach())
            started = tally.since("forward", started)
            if total.requires_grad:
                self.scaler.scale(share * total).backward()
            started = tally.since("backward", started)
            self._observe(batch, frozen, advantages, policy, step, tally)
            if policy.log_probs is not None and frozen.old_log_probs is not None:
                k3 = kl_estimate(frozen.old_log_probs, policy.log_probs.detach(), "k3")
                moved[0] += float(k3[batch.loss_mask].double().sum())
                moved[1] += float(batch.loss_mask.sum())
            tally.since("forward", started)

    def _observe_term_norms(self, step: _Step, rows: Tensor, tally: Tally) -> None:
        """The gradient norm of each term by itself, coefficient included, on a bounded sample of the update's tokens.

        The sample stands for an update of its own; the gradients are thrown away.
        """
        started = time.perf_counter()
        sample = self._sample(step, rows)
        weights = update.weigh(step.algorithm, step.config, *step.rows(sample))
        is_mine = step.own(sample)
        own = sample[is_mine]
        for name, weight in weights.items():
            self.optimizer.zero_grad()
            for index in step.micro_batches(own, self.micro_batch_tokens):
                batch, frozen, advantages = step.on(own[index], self.models.device)
                policy = self.models.forward(batch, step.objective.need)
                share, _, _ = update.loss_of(
                    step.algorithm, step.config, batch, frozen, advantages, policy, {name: weight[is_mine][index]}
                )
                if share.requires_grad:
                    self.scaler.scale(share).backward()
            self.ranks.sum_gradients(self.optimizer.parameters())
            self.scaler.unscale(self.optimizer.parameters())
            norms = self.optimizer.norms()
            tally.add(f"grad_norm/{name}", sum(n * n for n in norms.values()) ** 0.5)
        self.optimizer.zero_grad()
        tally.since("term_norms", started)

    def _sample(self, step: _Step, rows: Tensor) -> Tensor:
        """The first of each rank's rows that together have its share of `probe_tokens`."""
        share = -(-self.probe_tokens // self.ranks.size)
        found = []
        for place in step.ranges:
            own = rows[(rows >= place.start) & (rows < place.stop)]
            lengths = step.batch.completion_lengths[own]
            count = int((lengths.cumsum(0) - lengths < share).sum())
            if (pairs := step.batch.pair_ids) is not None:  # a pair is whole
                own = own[torch.isin(pairs[own], pairs[own[:count]])]
                count = len(own)
            found.append(own[:count])
        return torch.cat(found)

    @torch.no_grad()
    def _observe(
        self, batch: Batch, frozen: Frozen, advantages: Advantages, policy: Policy, step: _Step, tally: Tally
    ) -> None:
        mask, config = batch.loss_mask, step.config
        count = float(mask.sum())
        if policy.entropy is not None and not step.objective.prefix:
            tally.add("entropy", float(policy.entropy.sum()), count)
        if policy.log_probs is not None and frozen.old_log_probs is not None and count:
            if step.algorithm.ratio is not None:
                ratio = step.algorithm.ratio(batch, frozen, policy, config)[mask]
            else:
                ratio = torch.exp((policy.log_probs - frozen.old_log_probs).clamp(-20, 20))[mask]
            tally.add("ratio/mean", float(ratio.sum()), count)
            tally.most("ratio/max", float(ratio.max()))
            tally.least("ratio/min", float(ratio.min()))
        is_sampled = batch.rollout_log_probs is not None  # of rows that are read, k3 says nothing of the policy
        if is_sampled and policy.log_probs is not None and frozen.ref_log_probs is not None:
            k3 = kl_estimate(policy.log_probs, frozen.ref_log_probs, "k3")
            tally.add("kl/reference", float(k3[mask].sum()), count)
            self._observe_controlled_kl(step.kl, policy.log_probs, frozen, mask, tally)
        if step.algorithm.metrics is not None:
            for name, sums in step.algorithm.metrics(batch, frozen, advantages, policy, config).items():
                tally.add(name, float(sums.total), float(sums.count))

    def _observe_controlled_kl(
        self, kl: Kl | None, log_probs: Tensor, frozen: Frozen, mask: Tensor, tally: Tally
    ) -> None:
        """What a controller steers by: the KL to the reference, of the policy in the loss or of the old one in the reward."""
        if kl is None or kl.controller == "fixed" or kl.target == "old_policy" or frozen.ref_log_probs is None:
            return
        policy, estimator = log_probs, "k3"
        if kl.where == "reward" and frozen.old_log_probs is not None:
            policy, estimator = frozen.old_log_probs, "k1"
        estimator = estimator if kl.estimator == "auto" else kl.estimator
        total = kl_estimate(policy, frozen.ref_log_probs, estimator)[mask].double().sum()
        count = mask.sum() if kl.unit == "token" else mask.any(1).sum()
        tally.add("kl/controlled", float(total), float(count))

    # ------------------------------------------------------------------------------------------ after the updates
    @torch.no_grad()
    def _probe(self, step: _Step) -> dict[str, float]:
        """How far the whole step has moved the policy, on a fixed sample of its rows."""
        if step.frozen.old_log_probs is None:
            return {}
        sums = torch.zeros(3, dtype=torch.float64)
        highest = torch.zeros(1)
        sample = self._sample(step, torch.arange(len(step.batch)))
        rows = sample[step.own(sample)]
        for index in step.micro_batches(rows, self.micro_batch_tokens):
            batch, frozen, _ = step.on(rows[index], self.models.device)
            policy = self.models.forward(batch, Need.NONE)
            if policy.log_probs is None or frozen.old_log_probs is None:
                continue
            mask = batch.loss_mask
            k3 = kl_estimate(frozen.old_log_probs, policy.log_probs, "k3")[mask]
            ratio = torch.exp((policy.log_probs - frozen.old_log_probs).clamp(-20, 20))[mask]
            sums += torch.stack([k3.double().sum(), mask.sum().double(), mask.any(1).sum().double()]).cpu()
            if len(ratio):
                highest = torch.maximum(highest, ratio.max().cpu())
        sums, highest = self.ranks.sum(sums), self.ranks.max(highest)
        if not float(sums[1]):
            return {}
        found = {"kl/update": float(sums[0] / sums[1]), "update/ratio_max": float(highest)}
        if step.kl is not None and step.kl.controller != "fixed" and step.kl.target == "old_policy":
            found["kl/controlled"] = float(sums[0] / (sums[1] if step.kl.unit == "token" else sums[2]))
        return found

    def _report(self, step: _Step, measured: Mapping[str, float]) -> StepReport:
        metrics = figures.of_batch(step.batch, step.number)
        metrics |= figures.of_reward_parts(step.batch, self.reward_labels)
        metrics |= figures.of_frozen(step.batch, step.frozen, step.advantages)
        metrics |= figures.of_mismatch(step.batch, step.frozen, step.config)
        metrics |= measured
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

    # ------------------------------------------------------------------------------------------------------ state
    def tensors(self) -> dict[str, Tensor]:
        return self.optimizer.state()[0]

    def values(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "applied_steps": self.applied_steps,
            "optimizer": self.optimizer.state()[1],
            "controller": self.controller.state(),
            "scaler": self.scaler.state(),
        }

    def load(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        self.step = int(values["step"])
        self.applied_steps = int(values["applied_steps"])
        self.optimizer.load_state(tensors, values["optimizer"])
        self.controller.load_state(values["controller"])
        self.scaler.load_state(values["scaler"])


def _as_float32(advantages: Advantages) -> Advantages:
    """The precision of the loss; rewards and their statistics are float64."""
    returns = advantages.returns
    return replace(advantages, values=advantages.values.float(), returns=None if returns is None else returns.float())


def _completion_hashes(batch: Batch) -> tuple[str, ...]:
    import hashlib

    rows = zip(batch.tokens.tolist(), batch.prompt_lengths.tolist(), batch.lengths.tolist(), strict=True)
    packed = (b"".join(t.to_bytes(8, "little") for t in tokens[start:end]) for tokens, start, end in rows)
    return tuple(hashlib.blake2b(p, digest_size=8).hexdigest() for p in packed)
