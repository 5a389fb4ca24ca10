"""Evaluation by sampling: one greedy completion of each held-out prompt, judged by the run's own rewards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trimtab.ports import RolloutEngine
from trimtab.rollout.evaluation import basic_figures
from trimtab.rollout.scheduler import sample_of
from trimtab.types import Draw, Prompt, Sample, Scored, StepReport


class RolloutEvaluator:
    """Greedy, so that two evaluations of the same weights agree. Ranks share the prompts; each is judged once."""

    def __init__(
        self,
        *,
        engine: RolloutEngine,
        prompts: Sequence[Prompt],
        score: Callable[[list[Any]], list[Scored]],
        reward_labels: tuple[str, ...],
        every: int,
        rank: int = 0,
        gather: Callable[[Any], list[Any]] = lambda value: [value],
        ranks: int = 1,
    ) -> None:
        self.engine = engine
        self.prompts = prompts
        self.score = score
        self.reward_labels = reward_labels
        self.every = every
        self.rank, self.ranks = rank, ranks
        self.gather = gather

    def evaluate_if_due(self, step: int, *, last: bool = False) -> StepReport | None:
        if not self.prompts or not (last or step % self.every == 0):
            return None
        mine = [Draw(prompt=p, draw=p.id) for p in self.prompts[self.rank :: self.ranks]]
        scored = self.score(self.engine.generate(mine, group_size=1, greedy=True))
        everybody = [s for part in self.gather([_slim(s, self.reward_labels) for s in scored]) for s in part]
        everybody.sort(key=lambda pair: pair[0].prompt_id)
        samples = tuple(sample for sample, _ in everybody)
        return StepReport(step=step, metrics=_metrics(everybody, self.reward_labels), samples=samples, phase="eval")


def _slim(scored: Scored, labels: tuple[str, ...]) -> tuple[Sample, int]:
    return sample_of(scored, labels), len(scored.rollout.tokens)


def _metrics(judged: Sequence[tuple[Sample, int]], labels: tuple[str, ...]) -> dict[str, float]:
    return basic_figures(
        rewards=[s.reward for s, _ in judged if s.reward is not None],
        lengths=[size for _, size in judged],
        truncated=sum(s.is_truncated for s, _ in judged),
        parts={label: [p for s, _ in judged if (p := s.reward_parts.get(label)) is not None] for label in labels},
    )
