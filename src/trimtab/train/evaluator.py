"""Evaluation on rows that are read: the loss of demonstrations that were not trained on."""

from __future__ import annotations

import math

import torch

from trimtab.ports import Models
from trimtab.train import batches
from trimtab.train.ranks import Ranks
from trimtab.types import Batch, Need, StepReport


def is_due(step: int, every: int, *, last: bool) -> bool:
    """The first step, every so many, and the last."""
    return last or step % every == 0


class DemonstrationEvaluator:
    """`eval/loss/nll`: mean over tokens of -log p of held-out demonstrations."""

    def __init__(
        self, models: Models, batch: Batch | None, *, every: int, micro_batch_tokens: int, ranks: Ranks
    ) -> None:
        self.models = models
        self.batch = batch
        self.every = every
        self.micro_batch_tokens = micro_batch_tokens
        self.ranks = ranks

    @torch.no_grad()
    def evaluate_if_due(self, step: int, *, last: bool = False) -> StepReport | None:
        if self.batch is None or not is_due(step, self.every, last=last):
            return None
        mine = torch.arange(self.ranks.rank, len(self.batch), self.ranks.size)
        sums = torch.zeros(3, dtype=torch.float64)
        for index in batches.micro_batches(self.batch.lengths[mine], self.micro_batch_tokens):
            rows = batches.on(self.batch.rows(mine[index]), self.models.device)
            policy = self.models.forward(rows, Need.NONE)
            if policy.log_probs is not None:
                found = [
                    -policy.log_probs.double().sum(),
                    rows.loss_mask.sum().double(),
                    torch.tensor(len(rows)).double(),
                ]
                sums += torch.stack([f.cpu() for f in found])
        loss, tokens, rows_seen = self.ranks.sum(sums).tolist()
        metrics = {"eval/count": rows_seen}
        if math.isfinite(loss):
            metrics["eval/loss/nll"] = loss / max(tokens, 1.0)
        return StepReport(step=step, metrics=metrics, phase="eval")
