"""What is measured on a bounded sample of a step's rows, beside its updates: terms one by one, and how far it moved."""

from __future__ import annotations

import time
from functools import partial

import torch
from torch import Tensor

from trimtab.algorithms.math import kl_estimate
from trimtab.ports import Models
from trimtab.train import update
from trimtab.train.optimizer import Optimizer
from trimtab.train.passes import Passes
from trimtab.train.ranks import Ranks
from trimtab.train.scaler import LossScaler
from trimtab.train.step import Step
from trimtab.train.tally import Tally
from trimtab.types import Need


class Probes:
    """Passes over the first rows that together have `tokens` completion tokens, over all ranks."""

    def __init__(
        self, *, models: Models, passes: Passes, optimizer: Optimizer, scaler: LossScaler, ranks: Ranks, tokens: int
    ) -> None:
        self.models = models
        self.passes = passes
        self.optimizer = optimizer
        self.scaler = scaler
        self.ranks = ranks
        self.tokens = tokens

    def term_norms(self, step: Step, rows: Tensor, tally: Tally) -> None:
        """The gradient norm of each term by itself, coefficient included, on a bounded sample of the update's tokens.

        The sample stands for an update of its own; the gradients are thrown away.
        """
        if not len(rows):
            return
        started = time.perf_counter()
        sample = step.sample(rows, self.tokens)
        weights = update.weigh(step.algorithm, step.config, *step.rows(sample))
        for name, weight in weights.items():
            self.optimizer.zero_grad()
            gradient = partial(self._gradient_of_term, step, sample, name, weight)
            self.passes.done(gradient, discard=self.optimizer.zero_grad)
            self.ranks.sum_gradients(self.optimizer.parameters())
            self.scaler.unscale(self.optimizer.parameters())
            norms = self.optimizer.norms()
            tally.add(f"grad_norm/{name}", sum(n * n for n in norms.values()) ** 0.5)
        self.optimizer.zero_grad()
        tally.since("term_norms", started)

    def _gradient_of_term(self, step: Step, rows: Tensor, name: str, weight: Tensor) -> None:
        """Of this rank's part of the rows, added up in the parameters."""
        is_mine = step.own(rows)
        own = rows[is_mine]
        for index in step.passes(own, self.passes):
            batch, frozen, advantages = step.on(own[index], self.models.device)
            policy = self.models.forward(batch, step.objective.need)
            share, _, _ = update.loss_of(
                step.algorithm, step.config, batch, frozen, advantages, policy, {name: weight[is_mine][index]}
            )
            if share.requires_grad:
                self.scaler.scale(share).backward()

    @torch.no_grad()
    def moved(self, step: Step) -> dict[str, float]:
        """How far the whole step has moved the policy, on a fixed sample of its rows.

        Where it ended is no policy any more if its log-probs are not finite.
        """
        if step.frozen.old_log_probs is None:
            return {}
        sample = step.sample(torch.arange(len(step.batch)), self.tokens)
        sums, highest = self.passes.done(lambda: self._sums_of(step, sample[step.own(sample)]))
        sums, highest = self.ranks.sum(sums), self.ranks.max(highest)
        if not float(sums[1]):
            return {}
        if not bool(sums[0].isfinite()):  # the figures would only be missing; this says why
            return {"non_finite/probe": 1.0}
        found = {"kl/update": float(sums[0] / sums[1]), "update/ratio_max": float(highest)}
        if step.kl is not None and step.kl.controller != "fixed" and step.kl.target == "old_policy":
            found["kl/controlled"] = float(sums[0] / (sums[1] if step.kl.unit == "token" else sums[2]))
        return found

    def _sums_of(self, step: Step, rows: Tensor) -> tuple[Tensor, Tensor]:
        """[3] sum of k3 from the old policy, tokens and rows that count; [1] the largest ratio."""
        sums = torch.zeros(3, dtype=torch.float64)
        highest = torch.zeros(1)
        for index in step.passes(rows, self.passes):
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
        return sums, highest
