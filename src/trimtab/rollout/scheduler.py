"""The source that samples: prompts in order, completions from the engine, rewards from the scorer, one batch a step."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from trimtab.ports import RolloutEngine
from trimtab.types import Batch, Draw, Prompt, Sample, Scored


class PromptOrder(Protocol):
    """A stream of row numbers with a cursor."""

    drawn: int

    @property
    def epoch(self) -> int: ...
    def take(self, size: int) -> list[int]: ...
    def state(self) -> Mapping[str, Any]: ...
    def load_state(self, state: Mapping[str, Any]) -> None: ...


class SamplingSource:
    """Samples `group_size` completions of `prompts_per_step` prompts a step.

    On several ranks every rank moves the cursor over all prompts of the step and samples its own share, so each prompt
    is used once whatever the number of ranks.
    """

    def __init__(
        self,
        *,
        prompts: Sequence[Prompt],
        order: PromptOrder,
        engine: RolloutEngine,
        score: Callable[[list[Any]], list[Scored]],
        collate: Callable[[list[Scored]], Batch],
        prompts_per_step: int,
        group_size: int,
        reward_labels: tuple[str, ...],
        reward_errors: Callable[[], int] = lambda: 0,
        rank: int = 0,
        ranks: int = 1,
        gather: Callable[[Any], list[Any]] = lambda value: [value],
    ) -> None:
        self.prompts = prompts
        self.order = order
        self.engine = engine
        self.score = score
        self.collate = collate
        self.prompts_per_step = prompts_per_step
        self.group_size = group_size
        self.reward_labels = reward_labels
        self.reward_errors = reward_errors
        self.rank, self.ranks = rank, ranks
        self.gather = gather
        self._newest: list[Scored] = []
        self._figures: dict[str, float] = {}

    def next_batch(self) -> Batch:
        first = self.order.drawn
        taken = self.order.take(self.prompts_per_step)
        mine = range(self.rank, self.prompts_per_step, self.ranks)
        draws = [Draw(prompt=self.prompts[taken[place]], draw=first + place) for place in mine]
        started = time.perf_counter()
        rollouts = self.engine.generate(draws, group_size=self.group_size)
        sampled = time.perf_counter()
        self._newest = self.score(rollouts)
        tokens = sum(len(r.tokens) for r in rollouts)
        mine_took = (tokens, self.reward_errors(), sampled - started, time.perf_counter() - sampled)
        of_tokens, of_errors, of_sampling, of_scoring = zip(*self.gather(mine_took), strict=True)
        self._figures = {
            "throughput/rollout_tokens_per_second": sum(of_tokens) / max(*of_sampling, 1e-9),
            "reward/errors": float(sum(of_errors)),
            "time/rollout": max(of_sampling),
            "time/reward": max(of_scoring),
            "data/epoch": float(self.order.epoch),
        }
        return self.collate(self._newest)

    def samples(self) -> tuple[Sample, ...]:
        """The first completion of each of the batch's first groups."""
        shown = [s for s in self._newest if s.rollout.index == 0][:8]
        return tuple(sample_of(s, self.reward_labels) for s in shown)

    def figures(self) -> Mapping[str, float]:
        return self._figures

    def refresh(self, *, version: int) -> None:
        self.engine.refresh(version=version)

    def state(self) -> Mapping[str, Any]:
        return {"order": dict(self.order.state())}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.order.load_state(state["order"])


def sample_of(scored: Scored, labels: tuple[str, ...]) -> Sample:
    """A completion as it is shown to people."""
    rollout = scored.rollout
    answer = rollout.prompt.columns.get("answer")
    return Sample(
        prompt_id=rollout.prompt.id,
        prompt=rollout.prompt.text,
        completion=rollout.text,
        reward=scored.reward if scored.is_scored else None,
        reward_parts=dict(zip(labels, scored.parts, strict=True)),
        is_truncated=rollout.is_truncated,
        answer=None if answer is None else str(answer),
    )
