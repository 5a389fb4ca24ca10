"""The source that samples: prompts in order, completions from the engine, rewards from the scorer, one batch a step."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from trimtab.algorithms.credit import groups_with_spread
from trimtab.ports import RolloutEngine
from trimtab.rollout import surplus
from trimtab.rollout.surplus import Group
from trimtab.types import Batch, Draw, Prompt, Sample, Scored


class PromptOrder(Protocol):
    """A stream of row numbers with a cursor."""

    drawn: int

    @property
    def epoch(self) -> int: ...
    def take(self, size: int) -> list[int]: ...
    def state(self) -> Mapping[str, Any]: ...
    def load_state(self, state: Mapping[str, Any]) -> None: ...


@dataclass(slots=True)
class _Spent:
    """What a step's sampling has cost this rank, over all rounds."""

    tokens: int = 0
    errors: int = 0
    sampling_seconds: float = 0.0
    scoring_seconds: float = 0.0


class SamplingSource:
    """Samples `group_size` completions of `prompts_per_step` prompts a step.

    On several ranks every rank moves the cursor over all prompts of the step and samples its own share, so each prompt
    is used once whatever the number of ranks. Shares are contiguous: rank after rank, the groups stand in the order in
    which their prompts were drawn.

    With `max_refills` the step's groups are those whose rewards have a spread (dynamic sampling, DAPO
    arXiv:2503.14476, section 3.2). Rounds of sampling follow each other until there are `prompts_per_step` of them:

    * A round draws as many prompts as are missing, divided by the share that has been accepted so far, and at most
      `prompts_per_step`; after `max_refills` rounds beyond the first the step makes do with what there is.
    * A step in which no group has a spread trains on the groups of its first round, as it would without dynamic
      sampling, and `sampling/kept` is 0.
    * Groups beyond `prompts_per_step` come first in the next step, with the log-probs and the version of the policy
      that sampled them. They are fewer than `prompts_per_step`, so all are used there and none gets older than one
      step: a `max_staleness` above 1 is like 1. Those that are older than it, or from weights that a rollback has
      undone, are left out and counted; with a `max_staleness` of 0 that is all of them.
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
        restarts: Callable[[], int] = lambda: 0,
        shape: Callable[[list[Scored]], list[Scored]] = lambda scored: scored,
        max_refills: int | None = None,
        max_staleness: int = 1,
        at_step: Callable[[int], None] = lambda step: None,
        rank: int = 0,
        ranks: int = 1,
        gather: Callable[[Any], list[Any]] = lambda value: [value],
    ) -> None:
        """
        Args:
            reward_labels: names of the parts of a reward, after `shape`.
            shape: changes the rewards of the step's completions; which groups have a spread is found before.
            max_refills: rounds of sampling beyond the first, for dynamic sampling; None keeps every group.
            max_staleness: steps that the weights may be old which have sampled a group.
            reward_errors: of the newest call of `score`.
            restarts: processes of rewards that were started again, since the start.
            at_step: is told the step that is sampled for next.
            gather: every rank's value, by rank, on every rank.
        """
        self.prompts = prompts
        self.order = order
        self.engine = engine
        self.score = score
        self.collate = collate
        self.prompts_per_step = prompts_per_step
        self.group_size = group_size
        self.reward_labels = reward_labels
        self.reward_errors = reward_errors
        self.restarts = restarts
        self.shape = shape
        self.max_refills = max_refills
        self.max_staleness = max_staleness
        self.at_step = at_step
        self.rank, self.ranks = rank, ranks
        self.gather = gather
        self._version = 0
        self._surplus: list[Group] = []
        """Groups with a spread of the newest step that it did not need; the same on every rank."""
        self._newest: list[Scored] = []
        self._figures: dict[str, float] = {}

    def next_batch(self) -> Batch:
        spent = _Spent()
        chosen: dict[str, float] = {}
        if self.max_refills is None:
            groups = self._sample(self.prompts_per_step, spent)
        else:
            groups, chosen = self._groups_with_spread(self.max_refills, spent)
        self._newest = self.shape([scored for group in groups for scored in group])
        everybody: list[_Spent] = self.gather(spent)
        seconds = max(s.sampling_seconds for s in everybody)
        self._figures = {
            "throughput/rollout_tokens_per_second": sum(s.tokens for s in everybody) / max(seconds, 1e-9),
            "reward/errors": float(sum(s.errors for s in everybody)),
            "role/restarts": float(sum(self.gather(self.restarts()))),
            "time/rollout": seconds,
            "time/reward": max(s.scoring_seconds for s in everybody),
            "data/epoch": float(self.order.epoch),
            "data/prompts": float(self.order.drawn),
            **chosen,
        }
        return self.collate(self._newest)

    def _share(self, count: int) -> range:
        """Which of `count` things in a row are this rank's."""
        return range(self.rank * count // self.ranks, (self.rank + 1) * count // self.ranks)

    def _sample(self, count: int, spent: _Spent) -> list[Group]:
        """The groups of this rank's share of the next `count` prompts."""
        first = self.order.drawn
        taken = self.order.take(count)
        draws = [Draw(prompt=self.prompts[taken[place]], draw=first + place) for place in self._share(count)]
        if not draws:
            return []
        started = time.perf_counter()
        rollouts = self.engine.generate(draws, group_size=self.group_size)
        sampled = time.perf_counter()
        scored = self.score(rollouts)
        spent.tokens += sum(len(r.tokens) for r in rollouts)
        spent.errors += self.reward_errors()
        spent.sampling_seconds += sampled - started
        spent.scoring_seconds += time.perf_counter() - sampled
        return [scored[place : place + self.group_size] for place in range(0, len(scored), self.group_size)]

    def _groups_with_spread(self, max_refills: int, spent: _Spent) -> tuple[list[Group], dict[str, float]]:
        """This rank's share of the step's groups, and the figures of the choice."""
        kept = [group for group in self._surplus if 0 <= self._age(group) <= self.max_staleness]
        stale, sampled, accepted, rounds = len(self._surplus) - len(kept), 0, 0, 0
        of_first_round: list[Group] = []
        while len(kept) < self.prompts_per_step and rounds <= max_refills:
            size = _round_size(self.prompts_per_step - len(kept), accepted, sampled, self.prompts_per_step)
            mine = self._sample(size, spent)
            of_first_round = mine if rounds == 0 else of_first_round
            found = [group for part in self.gather(_with_spread(mine)) for group in part]
            kept += found
            sampled, accepted, rounds = sampled + size, accepted + len(found), rounds + 1
        step, self._surplus = kept[: self.prompts_per_step], kept[self.prompts_per_step :]
        figures = {
            "sampling/accepted": accepted / sampled if sampled else 1.0,
            "sampling/refills": float(max(0, rounds - 1)),
            "sampling/kept": float(len(step)),
            "sampling/surplus": float(len(self._surplus)),
            "sampling/stale": float(stale),
        }
        # nothing was carried if nothing is kept, so round one was a whole step's and this rank's share of it is one too
        return ([step[place] for place in self._share(len(step))] if step else of_first_round), figures

    def _age(self, group: Group) -> int:
        """Steps between the weights that have sampled it and those that sample now; below 0 if they were undone."""
        return self._version - group[0].rollout.policy_version

    def samples(self) -> tuple[Sample, ...]:
        """The first completion of each of the batch's first groups."""
        shown = [s for s in self._newest if s.rollout.index == 0][:8]
        return tuple(sample_of(s, self.reward_labels) for s in shown)

    def figures(self) -> Mapping[str, float]:
        return self._figures

    def refresh(self, *, version: int) -> None:
        self._version = version
        self.engine.refresh(version=version)
        self.at_step(version + 1)

    def state(self) -> Mapping[str, Any]:
        return {"order": dict(self.order.state()), "surplus": surplus.to_values(self._surplus)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.order.load_state(state["order"])
        wanted = {row["prompt"] for group in state["surplus"] for row in group}
        known = {prompt.id: prompt for prompt in self.prompts if prompt.id in wanted} if wanted else {}
        self._surplus = surplus.from_values(state["surplus"], known)


def _round_size(missing: int, accepted: int, sampled: int, most: int) -> int:
    """How many prompts to draw so that about `missing` groups of them have a spread.

    >>> _round_size(8, 0, 0, 8), _round_size(2, 6, 24, 32), _round_size(6, 2, 8, 8)
    (8, 8, 8)
    """
    if not sampled:
        return missing
    return min(most, -(-missing * sampled // accepted)) if accepted else most


def _with_spread(groups: Sequence[Group]) -> list[Group]:
    """The groups whose scored completions do not all have the same reward."""
    rows = [(place, s) for place, group in enumerate(groups) for s in group if s.is_scored]
    rewards = torch.tensor([s.reward + sum(s.token_rewards or ()) for _, s in rows], dtype=torch.float64)
    has_spread = groups_with_spread(rewards, torch.tensor([place for place, _ in rows], dtype=torch.int64))
    found = {place for (place, _), spread in zip(rows, has_spread.tolist(), strict=True) if spread}
    return [group for place, group in enumerate(groups) if place in found]


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
