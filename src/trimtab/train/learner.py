"""How a batch becomes updates.

A step: `Frozen` once for the batch, advantages once over all ranks' rows, then `epochs_per_batch x minibatches` updates.
An update: the weight of every row from the masks of the whole update, then forward and backward over micro-batches
whose losses simply add up, one sum over ranks, one optimiser step. So neither micro-batches nor ranks change the result.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import psutil
import torch
from torch import Tensor

from trimtab import heartbeat
from trimtab.algorithms.base import Algorithm, number
from trimtab.algorithms.math import kl_estimate
from trimtab.errors import NumericalError
from trimtab.ports import Models
from trimtab.train import batches, figures, finite, mismatched, schedule, update
from trimtab.train.caution import Caution
from trimtab.train.controller import KlController
from trimtab.train.observation import observe
from trimtab.train.optimizer import Optimizer, all_finite
from trimtab.train.passes import Passes
from trimtab.train.probes import Probes
from trimtab.train.ranks import Ranks
from trimtab.train.scaler import LossScaler
from trimtab.train.settings import Optim, Train
from trimtab.train.step import Objective, Step
from trimtab.train.tally import Tally
from trimtab.types import Advantages, Batch, Frozen, Need, Policy, StepReport

MIXED = "mix/"
"""Before the names of terms that a mixed part adds."""
APPLIED, SKIPPED, STOPPED = "applied", "skipped", "stopped"
"""What became of an update; after a stopped one the step makes no more."""


@dataclass(slots=True, kw_only=True)
class _Sums:
    """This rank's shares of what an update adds up over micro-batches and ranks."""

    losses: dict[str, float]
    """By term and `total`."""
    moved: list[float]
    """How far the policy has moved since it sampled, k3: the sum over tokens and their count."""
    wrong: dict[str, float]
    """How many numbers that they are made of are not finite, by `finite.NAMES`."""

    @classmethod
    def of(cls, terms: Sequence[str]) -> _Sums:
        """Nothing yet of these terms."""
        return cls(
            losses=dict.fromkeys(["total", *terms], 0.0), moved=[0.0, 0.0], wrong=dict.fromkeys(finite.NAMES, 0.0)
        )

    def over(self, ranks: Ranks) -> _Sums:
        own = [*self.losses.values(), *self.moved, *self.wrong.values()]
        found = iter(ranks.sum(torch.tensor(own, dtype=torch.float64)).tolist())
        losses = {name: next(found) for name in self.losses}
        return _Sums(losses=losses, moved=[next(found), next(found)], wrong={name: next(found) for name in self.wrong})

    def has_wrong(self, counts: Mapping[str, float]) -> bool:
        """Add counts of what is not finite; whether there are any."""
        for name, count in counts.items():
            self.wrong[name] += count
        return bool(counts)


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
        told_of_smaller_passes: Callable[[int], None] = lambda _: None,
    ) -> None:
        """
        Args:
            micro_batch_tokens: of a pass over the models, at most; halved where memory does not suffice.
            told_of_smaller_passes: called with the tokens of a pass at the end of a step in which they became fewer.
        """
        self.models = models
        self.main = Objective(algorithm=algorithm, config=config)
        self.mixed = tuple(replace(part, prefix=f"{MIXED}{part.algorithm.name}/") for part in mixed)
        self.optim = optim
        self.train = train
        self.value_warmup_steps = value_warmup_steps
        self.critic_since: int | None = 0 if "value" in models.parameters() else None
        """The step at which the critic came in; its warm-up counts from there."""
        self.term_norms_every = term_norms_every
        self.reward_labels = reward_labels
        self.ranks = ranks or Ranks()
        self.passes = Passes(micro_batch_tokens, self.ranks, lambda: models.device)
        self.told_of_smaller_passes = told_of_smaller_passes
        self.step = 0
        self.applied_steps = 0
        """Steps with at least one update; the learning rate's schedule stands still in the others."""
        rates = {} if value_learning_rate is None else {"value": value_learning_rate}
        self.optimizer = Optimizer(models.parameters(), models.named_parameters(), optim, rates)
        self.controller = KlController(config)
        self.caution = Caution(train.cautious)
        self.scaler = scaler or LossScaler(is_enabled=False)
        self.probes = Probes(
            models=models,
            passes=self.passes,
            optimizer=self.optimizer,
            scaler=self.scaler,
            ranks=self.ranks,
            tokens=probe_tokens,
        )

    # ------------------------------------------------------------------------------------------------- one step
    def update(self, batch: Batch, beside: Sequence[Batch] = ()) -> StepReport:
        """Train on one batch. An update of which anything is not finite is not applied, only counted.

        Args:
            batch: this rank's rows of the step; a step without a row on any rank is skipped and counted.
            beside: likewise of each part that `mix` adds.

        Raises:
            OutOfMemoryError: not even a pass over one row (or pair) fits.
            NumericalError: the ranks do not hold the same weights any more.
        """
        with heartbeat.at_work("trainer"):
            return self._update(batch, beside)

    def _update(self, batch: Batch, beside: Sequence[Batch]) -> StepReport:
        started = time.perf_counter()
        now = self.step + 1
        tally = Tally()
        halvings, tokens = self.passes.halvings, self.passes.tokens
        step = self._prepare(self.main, now, batch, tally)
        others = [self._prepare(part, now, own, tally) for part, own in zip(self.mixed, beside, strict=True)]
        factor = schedule.learning_rate_factor(self.optim, self.applied_steps + 1, self.train.max_steps)
        factor *= self.caution.learning_rate_factor
        outcomes: list[str] = []
        planned = self._planned(step)
        plans = [planned, *(self._planned(other, updates=len(planned)) for other in others)]
        for parts in zip(*plans, strict=True):
            if outcomes[-1:] == [STOPPED]:
                break
            given = [(s, rows) for s, rows in zip([step, *others], parts, strict=True) if len(rows) or s is step]
            has_moved = APPLIED in outcomes
            update_of = [(self._with_statistics(s, rows, has_moved=has_moved), rows) for s, rows in given]
            if not outcomes and self.term_norms_every and (now - 1) % self.term_norms_every == 0:
                self.probes.term_norms(*update_of[0], tally)
            outcomes.append(self._one_update(update_of, factor, tally))
        applied = outcomes.count(APPLIED)
        self.step = now
        self.applied_steps += applied > 0
        if applied and (broken := finite.tensors(self.models.named_parameters().values())):
            tally.add("non_finite/weights", broken)
        tally.add("updates/count", applied)
        tally.add("updates/stopped", len(planned) - len(outcomes) + outcomes.count(STOPPED))
        began = time.perf_counter()
        probe = self.probes.moved(step) if applied else {}
        tally.since("probe", began)
        tally.since("step", started)
        tally.most("memory/total", float(psutil.Process().memory_info().rss))
        tally.most("memory/halvings", self.passes.halvings - halvings)
        tally.least("memory/micro_batch_tokens", self.passes.tokens)
        metrics = tally.figures(self.ranks) | probe
        self.passes.tokens = int(metrics["memory/micro_batch_tokens"])  # on all ranks that of the narrowest
        if self.passes.tokens < tokens:
            self.told_of_smaller_passes(self.passes.tokens)
        if self.scaler.is_enabled:
            metrics["loss_scale"] = self.scaler.factor
        if applied and not self._only_critic(now):  # until then the policy has not moved
            self.controller.advance(metrics.get("kl/controlled"), samples=len(step.batch))
        return self._report(step, {**metrics, "learning_rate": self.optimizer.base_rates["policy"] * factor})

    def _only_critic(self, step: int) -> bool:
        """Whether the critic's warm-up is not over at a step."""
        return self.critic_since is not None and step - self.critic_since <= self.value_warmup_steps

    def _planned(self, step: Step, *, updates: int | None = None) -> list[Tensor]:
        """Rows of each update of the step; of a mixed part exactly `updates`, some of them empty if it has few rows."""
        found = []
        for epoch in range(self.train.epochs_per_batch):
            parts = batches.minibatches(
                step.batch.group_ids, self.train.minibatches, seed=self.train.seed, step=step.number, epoch=epoch
            )
            wanted = len(parts) if updates is None else updates // self.train.epochs_per_batch
            found += [*parts, *[torch.zeros(0, dtype=torch.int64)] * (wanted - len(parts))][:wanted]
        return found

    def _prepare(self, objective: Objective, now: int, batch: Batch, tally: Tally) -> Step:
        started = time.perf_counter()
        config = schedule.at(objective.config, now)
        config = self.caution.applied_to(self.controller.applied_to(config)) if objective is self.main else config
        frozen = self._freeze(batch, objective.need)
        started = tally.since("freeze", started)
        everybody = self.ranks.gather((batch, frozen))
        ends = list(accumulate((len(b) for b, _ in everybody), initial=0))
        ranges = tuple(range(start, end) for start, end in pairwise(ends))
        whole, whole_frozen = batches.joined([b for b, _ in everybody]), batches.joined([f for _, f in everybody])
        if self.ranks.size > 1:
            tally.since("communication", started)
        advantages = Advantages(loss_mask=whole.loss_mask, values=torch.zeros(whole.loss_mask.shape))
        if len(whole):
            with torch.no_grad():
                advantages = _as_float32(objective.algorithm.advantages(whole, whole_frozen, config))
        return Step(
            number=now,
            objective=replace(objective, config=config, weight=schedule.number_at(objective.weight, now)),
            batch=whole,
            frozen=whole_frozen,
            advantages=advantages,
            ranges=ranges,
            mine=ranges[self.ranks.rank],
        )

    def _freeze(self, batch: Batch, need: Need) -> Frozen:
        def parts() -> list[tuple[Tensor, Frozen]]:
            return [
                (index, self.models.freeze(batches.on(batch.rows(index), self.models.device), need))
                for index in self.passes.micro_batches(batch.lengths)
            ]

        return batches.assembled(self.passes.done(parts), batch.loss_mask)

    # ----------------------------------------------------------------------------------------------- one update
    def _with_statistics(self, step: Step, rows: Tensor, *, has_moved: bool) -> Step:
        """The step with what the algorithm computes over all rows of the update, if it does.

        Until the first update of a step is applied the log-probs are the old ones, and no pass is made for them.
        """
        if step.algorithm.statistics is None or not len(rows):
            return step
        batch, frozen, advantages = step.rows(rows)
        if Need.MISMATCHED in step.objective.need:
            own = step.own(rows).nonzero().squeeze(1)
            ratios = self.passes.done(lambda: mismatched.log_ratios(self.models, batch, own, self.passes.tokens))
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
    def _current_log_probs(self, step: Step, rows: Tensor) -> Tensor:
        """[n, T] of the rows of an update, of all ranks, under the weights as they are."""
        own = rows[step.own(rows)]
        width = int(step.rows(rows)[0].loss_mask.shape[1])

        def own_log_probs() -> Tensor:
            found = torch.zeros(len(own), width)
            for index in step.passes(own, self.passes):
                batch, _, _ = step.on(own[index], self.models.device)
                log_probs = self.models.forward(batch, Need.NONE).log_probs
                if log_probs is not None:
                    found[index, : log_probs.shape[1]] = log_probs.float().cpu()
            return found

        return torch.cat(self.ranks.gather(self.passes.done(own_log_probs)))

    def _one_update(self, parts: Sequence[tuple[Step, Tensor]], factor: float, tally: Tally) -> str:
        """What became of the update.

        Args:
            parts: the step's own rows, then those of every part that is mixed in.
        """
        step = parts[0][0]
        only_value = self._only_critic(step.number)
        weights = [update.weigh(s.algorithm, s.config, *s.rows(rows)) if len(rows) else {} for s, rows in parts]
        if only_value:
            weights = [{name: w for name, w in found.items() if name == "value"} for found in weights]
        if not any(bool(w.any()) for found in weights for w in found.values()):
            tally.add("updates/skipped", 1.0)
            return SKIPPED
        mark = tally.mark()

        def discard() -> None:
            self.optimizer.zero_grad()
            tally.back(mark)

        def gradient() -> _Sums:
            """Of this rank's rows, added up in the parameters."""
            names = [s.objective.prefix + name for (s, _), found in zip(parts, weights, strict=True) for name in found]
            sums = _Sums.of(names)
            for (s, rows), own in zip(parts, weights, strict=True):
                self._accumulate(s, rows, own, sums, tally)
            return sums

        self.optimizer.zero_grad()
        sums = self.passes.done(gradient, discard=discard)
        started = time.perf_counter()
        sums = sums.over(self.ranks)
        if any(sums.wrong.values()):
            return self._left_out(sums.wrong, tally, mark)
        self.ranks.sum_gradients(self.optimizer.parameters())
        if self.ranks.size > 1:
            started = tally.since("communication", started)
        if step.kl is not None and step.kl.stop_epochs and sums.moved[0] > step.kl.limit.warn * max(sums.moved[1], 1.0):
            self.optimizer.zero_grad()
            return STOPPED
        if only_value:
            self.optimizer.leave_out("policy")
        losses = sums.losses
        found_inf = self.scaler.unscale(self.optimizer.parameters())
        if found_inf and all_finite([*losses.values()]) and self.scaler.update(found_inf):
            self.optimizer.zero_grad()
            tally.add("updates/skipped", 1.0)
            tally.add("updates/overflow", 1.0)
            return SKIPPED
        norms = self.optimizer.norms()
        if not all_finite([*losses.values(), *norms.values()]):
            wrong_terms = sum(not math.isfinite(value) for value in losses.values())
            named = {"loss": float(wrong_terms), "gradient": self.optimizer.wrong_gradients(norms)}
            return self._left_out(named, tally, mark)
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

    def _left_out(self, wrong: Mapping[str, float], tally: Tally, mark: Tally) -> str:
        """An update of which something is not finite: no weight and no figure has anything of it.

        Args:
            wrong: how many numbers of what.
            mark: of the tally, before the update.
        """
        self.optimizer.zero_grad()
        tally.back(mark)
        tally.add("updates/skipped", 1.0)
        tally.add("updates/non_finite", 1.0)
        for name, count in wrong.items():
            if count:
                tally.add(f"non_finite/{name}", count)
        return SKIPPED

    def _accumulate(self, step: Step, rows: Tensor, weights: Mapping[str, Tensor], sums: _Sums, tally: Tally) -> None:
        """Add this rank's share of the gradient to the parameters, and what it saw to the sums.

        Once a number is found that is not finite the rest is left out: the update will not be applied.

        Args:
            weights: of `update.weigh`, for `rows`.
        """
        objective = step.objective
        share = number(objective.weight)
        is_mine = step.own(rows)
        own = rows[is_mine]
        if sums.has_wrong(finite.of_rows(*step.rows(own))):
            return
        for index in step.passes(own, self.passes):
            started = time.perf_counter()
            batch, frozen, advantages = step.on(own[index], self.models.device)
            policy = self.models.forward(batch, objective.need)
            if sums.has_wrong(finite.of_policy(policy)):
                return
            mine = {name: w[is_mine][index] for name, w in weights.items()}
            total, parts, coefficients = update.loss_of(
                step.algorithm, step.config, batch, frozen, advantages, policy, mine
            )
            for name, part in parts.items():
                sums.losses[objective.prefix + name] += float(part.detach())
                tally.highest[f"coefficient/{objective.prefix}{name}"] = share * coefficients[name]
            sums.losses["total"] += share * float(total.detach())
            started = tally.since("forward", started)
            if total.requires_grad:
                self.scaler.scale(share * total).backward()
            started = tally.since("backward", started)
            observe(batch, frozen, advantages, policy, step, tally)
            if policy.log_probs is not None and frozen.old_log_probs is not None:
                k3 = kl_estimate(frozen.old_log_probs, policy.log_probs.detach(), "k3")
                sums.moved[0] += float(k3[batch.loss_mask].double().sum())
                sums.moved[1] += float(batch.loss_mask.sum())
            tally.since("forward", started)

    # ------------------------------------------------------------------------------------------ after the updates
    def _report(self, step: Step, measured: Mapping[str, float]) -> StepReport:
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
        """What a checkpoint keeps of the optimiser.

        Raises:
            NumericalError: a number in it, or in a trained weight, is not finite; nothing of the kind is ever saved.
        """
        self.refuse_wrong_weights()
        found = self.optimizer.state()[0]
        finite.refuse(found, f"step {self.step}")
        return found

    def refuse_wrong_weights(self) -> None:
        """
        Raises:
            NumericalError: a trained weight is not finite.
        """
        finite.refuse(self.models.named_parameters(), f"step {self.step}")

    def values(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "applied_steps": self.applied_steps,
            "optimizer": self.optimizer.state()[1],
            "controller": self.controller.state(),
            "caution": self.caution.state(),
            "critic_since": self.critic_since,
            "scaler": self.scaler.state(),
        }

    def load(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        self.step = int(values["step"])
        self.applied_steps = int(values["applied_steps"])
        self.optimizer.load_state(tensors, values["optimizer"])
        self.controller.load_state(values["controller"])
        self.caution.load_state(values["caution"])
        if self.critic_since is not None:
            since = values["critic_since"]
            self.critic_since = self.step if since is None else int(since)
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
