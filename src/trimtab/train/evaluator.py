"""Evaluation on rows that are read: the algorithm itself, without gradient, on rows that were not trained on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from trimtab import heartbeat
from trimtab.algorithms import pairs as paired
from trimtab.algorithms.base import Algorithm
from trimtab.ports import Models
from trimtab.train import batches, mismatched, schedule, update
from trimtab.train.ranks import Ranks
from trimtab.types import Advantages, Batch, Frozen, Need, Policy, StepReport

Tallied = dict[str, list[float]]
"""By the metric's name: a sum and what it is divided by; 0 where the sum is the figure, made of weighted shares."""


def is_due(step: int, every: int, *, last: bool) -> bool:
    """The first step, every so many, and the last."""
    return last or step % every == 0


class ReadingEvaluator:
    """`eval/loss/<term>`, `eval/loss/total` and `eval/<metric>` as the algorithm defines them.

    All rows are one update: terms are averaged and statistics taken over the whole. Of demonstrations it is
    `eval/loss/nll`, the mean over tokens of -log p, however the training averages.
    """

    def __init__(
        self,
        *,
        models: Models,
        batch: Batch | None,
        algorithm: Algorithm,
        config: Any,
        every: int,
        micro_batch_tokens: int,
        ranks: Ranks,
        tell: Callable[[str], None] | None = None,
        js: Callable[[Batch], Tensor] | None = None,
        freeze: Callable[[Batch, Need], Frozen] | None = None,
    ) -> None:
        """
        Args:
            models, algorithm, config: as the learner has them.
            batch: the rows, the same on every rank; None switches the evaluation off.
            every: steps.
            micro_batch_tokens: of a forward pass.
            ranks: which share the rows.
            js: of rows the Jensen-Shannon divergence of policy and reference, [B, T]; None where it is not looked at.
            freeze: of a pass that is the same in every evaluation; None: that of the models.
            tell: is told, at step 0, how far the policy is from a reference that it did not start as.
        """
        self.models = models
        self.algorithm = algorithm
        self.config = config
        self.need: Need = algorithm.needs(config)
        self.every = every
        self.micro_batch_tokens = micro_batch_tokens
        self.ranks = ranks
        self.tell = tell
        self.js = js
        self.freeze = freeze or models.freeze
        self.batch: Batch | None = None
        if batch is not None:
            shares = _shares(batch.group_ids, ranks.size)
            self.batch = batch.rows(torch.cat(shares))
            start = sum(len(share) for share in shares[: ranks.rank])
            self.mine = torch.arange(start, start + len(shares[ranks.rank]))

    @torch.no_grad()
    def evaluate_if_due(self, step: int, *, last: bool = False) -> StepReport | None:
        if self.batch is None or not is_due(step, self.every, last=last):
            return None
        with heartbeat.at_work("trainer"):
            tallied, scores = self._tallied(self.batch, schedule.at(self.config, max(step, 1)))
        found = {name: total / count if count else total for name, (total, count) in tallied.items()}
        found |= self._auc(scores)
        found["eval/count"] = float(len(set(self.batch.group_ids.tolist())))
        margin = found.get("eval/preference/margin")
        if step == 0 and self.tell is not None and margin is not None:
            self.tell(f"mean margin of the implicit rewards before training: {margin:+.4g} (0 if policy = reference)")
        metrics = {name: value for name, value in found.items() if math.isfinite(value)}
        return StepReport(step=step, metrics=metrics, phase="eval")

    def _tallied(self, batch: Batch, config: Any) -> tuple[Tallied, list[tuple[Tensor, Tensor]]]:
        """Every figure over all ranks' rows, and the scores of chosen and rejected rows of each pass of this rank."""
        frozen, advantages, weights = self._prepared(batch, config)
        tallied: Tallied = {}
        scores: list[tuple[Tensor, Tensor]] = []
        for index in self._micro_batches(batch):
            heartbeat.beat("trainer")
            rows = batch.rows(index)
            width = rows.loss_mask.shape[1]
            rows = batches.on(rows, self.models.device)
            own = batches.on(frozen.rows(index, width), self.models.device)
            gains = batches.on(advantages.rows(index, width), self.models.device)
            policy = self.models.forward(rows, self.need)
            if Need.DEMONSTRATIONS in self.need:
                _add(tallied, _nll(rows, policy))
            mine = {name: weight[index] for name, weight in weights.items()}
            total, parts, _ = update.loss_of(self.algorithm, config, rows, own, gains, policy, mine)
            shares = parts | ({"total": total} if parts else {})
            _add(tallied, {f"eval/loss/{name}": (float(share), 0.0) for name, share in shares.items()})
            if self.algorithm.metrics is not None:
                sums = self.algorithm.metrics(rows, own, gains, policy, config)
                _add(tallied, {f"eval/{n}": (float(s.total), float(s.count)) for n, s in sums.items() if s.count})
            if self.js is not None:
                divergence = float(self.js(rows).double().sum()), float(rows.loss_mask.sum())
                _add(tallied, {"eval/preference/js": divergence})
            if policy.scores is not None and rows.pair_ids is not None:
                pairs = paired.pairs_of(rows)
                both = pairs.chosen[pairs.is_valid], pairs.rejected[pairs.is_valid]
                scores.append((policy.scores[both[0]].cpu(), policy.scores[both[1]].cpu()))
        whole: Tallied = {}
        for part in self.ranks.gather(tallied):
            _add(whole, part)
        return whole, scores

    def _prepared(self, batch: Batch, config: Any) -> tuple[Frozen, Advantages, Mapping[str, Tensor]]:
        """What is computed of all rows before the passes: `Frozen`, advantages, and the weight of each row in each term."""
        parts = []
        for index in self._micro_batches(batch):
            heartbeat.beat("trainer")
            rows = batches.on(batch.rows(index), self.models.device)
            parts.append((index - int(self.mine[0]), self.freeze(rows, self.need)))
        own = batches.assembled(parts, batch.loss_mask[self.mine])
        frozen = batches.joined(self.ranks.gather(own))
        advantages = self.algorithm.advantages(batch, frozen, config)
        if self.algorithm.statistics is not None:
            if Need.MISMATCHED in self.need:
                ratios = mismatched.log_ratios(self.models, batch, self.mine, self.micro_batch_tokens)
                frozen = replace(frozen, mismatched_log_ratios=torch.cat(self.ranks.gather(ratios)))
            nothing = Policy(loss_mask=batch.loss_mask)
            frozen = update.with_statistics(self.algorithm, config, batch, frozen, advantages, nothing)
        is_imitated = Need.DEMONSTRATIONS in self.need
        weights = {} if is_imitated else update.weigh(self.algorithm, config, batch, frozen, advantages)
        return frozen, advantages, weights

    def _micro_batches(self, batch: Batch) -> list[Tensor]:
        """Row numbers of each pass of this rank; the rows of a pair stay together."""
        together = None if batch.pair_ids is None else batch.pair_ids[self.mine]
        return [
            self.mine[i] for i in batches.micro_batches(batch.lengths[self.mine], self.micro_batch_tokens, together)
        ]

    def _auc(self, own: list[tuple[Tensor, Tensor]]) -> dict[str, float]:
        """Of a model that scores: over all pairs of a chosen and a rejected score, whichever prompts they are of."""
        if Need.SCORES not in self.need:
            return {}
        every = [pair for part in self.ranks.gather(own) for pair in part]
        chosen, rejected = (torch.cat([pair[side] for pair in every]) for side in (0, 1))
        return {"eval/reward_model/auc": paired.auc(chosen, rejected)} if len(chosen) else {}


def _shares(group_ids: Tensor, ranks: int) -> list[Tensor]:
    """Row numbers of each rank: whole groups in turn, in the order in which they are met."""
    place: dict[int, int] = {}
    rank_of = torch.tensor([place.setdefault(group, len(place)) % ranks for group in group_ids.tolist()])
    return [(rank_of == rank).nonzero().squeeze(1) for rank in range(ranks)]


def _nll(rows: Batch, policy: Policy) -> dict[str, tuple[float, float]]:
    if policy.log_probs is None:
        return {}
    return {"eval/loss/nll": (float(-policy.log_probs.double().sum()), float(rows.loss_mask.sum()))}


def _add(tallied: Tallied, found: Mapping[str, tuple[float, float] | list[float]]) -> None:
    for name, (total, count) in found.items():
        so_far = tallied.setdefault(name, [0.0, 0.0])
        so_far[0] += total
        so_far[1] += count
