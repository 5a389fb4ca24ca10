"""Rollouts become scored ones: every reward function over the whole batch, then the weighted sum."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trimtab.errors import RewardError, TrimtabError
from trimtab.rewards import rules
from trimtab.rewards.pool import Call, Outcome, Pool
from trimtab.rewards.settings import RewardSpec
from trimtab.rewards.worker import plain_values
from trimtab.types import Rollout, Scored


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One reward function's values over a batch."""

    values: list[float | None]
    failed: list[bool]
    """The function failed on the row, so its value is not an abstention."""
    errors: int
    reason: str = ""
    """Of the first error."""


class Scorer:
    """Calls the reward functions of a run. Rules and reward models run here; functions of users run in the pool, all at
    the same time.

    A function's None is an abstention: the other functions decide, and a row on which all abstain has no reward.
    """

    def __init__(
        self, specs: Sequence[RewardSpec], *, pool: Pool | None = None, functions: Mapping[str, Any] | None = None
    ) -> None:
        self.specs = tuple(specs)
        self.pool = pool
        self.errors = 0
        """Calls that failed in the newest batch."""
        self._rules = {
            place: rules.make(spec.name, spec.options)
            for place, spec in enumerate(specs)
            if spec.model is None and spec.name in rules.RULES and spec.name not in rules.RUNS_ELSEWHERE
        }
        self.models: dict[int, Callable[[Sequence[Rollout]], list[float]]] = {}
        """Of each spec with a `model`, by its place; put in once the run's device is known."""
        self._functions = dict(functions or {})
        """Objects given from Python, by the spec's name; they run in this process."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the reward functions in metrics, in order; two of one name are told apart by a number."""
        names = [spec.label for spec in self.specs]
        return tuple(
            name if names.count(name) == 1 else f"{name}_{names[: place + 1].count(name)}"
            for place, name in enumerate(names)
        )

    @property
    def weights(self) -> tuple[float, ...]:
        """What each function's value is multiplied by, in order."""
        return tuple(spec.weight for spec in self.specs)

    def load(self) -> None:
        """Import every function of a user before anything is sampled.

        Raises:
            RewardError: one cannot be imported.
        """
        calls = [self._call(p, [], [], {}, load_only=True) for p in range(len(self.specs)) if not self._is_local(p)]
        for call, outcome in zip(calls, self._pool().run(calls) if calls else [], strict=True):
            if outcome.error:
                raise RewardError(f"rewards: {call.name}: {outcome.error}")

    def score(self, rollouts: Sequence[Rollout]) -> list[Scored]:
        """Every rollout with its reward, in order.

        Raises:
            RewardError: a function failed and its `on_error` is `stop`.
        """
        if not rollouts:
            return []
        judged = self.judge(rollouts)
        self.errors = sum(j.errors for j in judged)
        return [self.combine(rollout, row, judged) for row, rollout in enumerate(rollouts)]

    def judge(self, rollouts: Sequence[Rollout]) -> list[Judged]:
        """Each function's values, in the order of the functions.

        Raises:
            RewardError: a function failed and its `on_error` is `stop`.
        """
        prompts = [r.prompt.text for r in rollouts]
        completions = [r.text for r in rollouts]
        columns = _columns(rollouts)
        elsewhere = [p for p in range(len(self.specs)) if not self._is_local(p)]
        calls = [self._call(p, prompts, completions, columns) for p in elsewhere]
        outcomes = dict(zip(elsewhere, self._pool().run(calls) if calls else [], strict=True))
        found = []
        for place, spec in enumerate(self.specs):
            outcome = outcomes.get(place) or self._call_here(place, rollouts, prompts, completions, columns)
            if outcome.values is not None:
                found.append(Judged(values=list(outcome.values), failed=[False] * len(prompts), errors=0))
            elif spec.on_error == "stop":
                raise RewardError(
                    f"rewards: {spec.model or spec.name}: {outcome.error} (batch of {len(prompts)} completions); "
                    f"mend the {'model' if spec.model else 'function'}, or set on_error to skip or penalty"
                ) from outcome.cause
            else:
                alone = self._one_by_one(place, rollouts, prompts, completions, columns)
                found.append(replace(alone, reason=outcome.error or ""))
        return found

    def _one_by_one(
        self,
        place: int,
        rollouts: Sequence[Rollout],
        prompts: list[str],
        completions: list[str],
        columns: dict[str, list[Any]],
    ) -> Judged:
        """After a failed batch: each completion alone, so that one bad completion spoils only itself."""
        spec = self.specs[place]
        single = [
            (prompts[i : i + 1], completions[i : i + 1], {name: v[i : i + 1] for name, v in columns.items()})
            for i in range(len(prompts))
        ]
        if self._is_local(place):
            outcomes = [self._call_here(place, rollouts[i : i + 1], *one) for i, one in enumerate(single)]
        else:
            outcomes = self._pool().run([self._call(place, *one) for one in single])
        values = [o.values[0] if o.values is not None else None for o in outcomes]
        failed = [o.values is None for o in outcomes]
        if spec.on_error == "penalty":
            values = [spec.penalty if bad else value for bad, value in zip(failed, values, strict=True)]
            return Judged(values=values, failed=[False] * len(values), errors=1 + sum(failed))
        return Judged(values=values, failed=failed, errors=1 + sum(failed))

    def combine(self, rollout: Rollout, row: int, judged: Sequence[Judged]) -> Scored:
        """The weighted sum of what the functions said of one row."""
        parts = tuple(j.values[row] for j in judged)
        given = [(spec.weight, part) for spec, part in zip(self.specs, parts, strict=True) if part is not None]
        is_scored = bool(given) and not any(j.failed[row] for j in judged)
        reward = sum(weight * part for weight, part in given) if is_scored else 0.0
        return Scored(rollout=rollout, reward=reward, parts=parts, is_scored=is_scored)

    def _is_local(self, place: int) -> bool:
        spec = self.specs[place]
        return spec.model is not None or place in self._rules or spec.name in self._functions

    def _call_here(
        self,
        place: int,
        rollouts: Sequence[Rollout],
        prompts: list[str],
        completions: list[str],
        columns: dict[str, list[Any]],
    ) -> Outcome:
        if self.specs[place].model is not None:
            return self._ask_model(place, rollouts)
        function = self._rules.get(place)
        if function is None:  # it may alter what it is given, which in a worker would be a copy too
            function = self._functions[self.specs[place].name]
            prompts, columns = list(prompts), copy.deepcopy(columns)
        try:
            found = function(prompts=prompts, completions=list(completions), **columns)
            return Outcome(values=plain_values(found, len(completions)))
        except Exception as error:
            return Outcome(error=f"{type(error).__name__}: {error}", cause=error)

    def _ask_model(self, place: int, rollouts: Sequence[Rollout]) -> Outcome:
        try:
            return Outcome(values=plain_values(self.models[place](rollouts), len(rollouts)))
        except Exception as error:
            said = str(error) if isinstance(error, ValueError | TrimtabError) else f"{type(error).__name__}: {error}"
            return Outcome(error=said, cause=error)

    def _call(
        self,
        place: int,
        prompts: list[str],
        completions: list[str],
        columns: dict[str, list[Any]],
        *,
        load_only: bool = False,
    ) -> Call:
        spec = self.specs[place]
        return Call(
            name=spec.name,
            options=spec.options,
            timeout_seconds=spec.timeout_seconds,
            prompts=prompts,
            completions=completions,
            columns=columns,
            load_only=load_only,
        )

    def _pool(self) -> Pool:
        if self.pool is None:
            raise RewardError("rewards: a function of a user needs a pool of worker processes")
        return self.pool

    def close(self) -> None:
        if self.pool is not None:
            self.pool.close()


def _columns(rollouts: Sequence[Rollout]) -> dict[str, list[Any]]:
    """The data's columns as lists, None where a row has none, and TRL's `completion_ids`."""
    names = dict.fromkeys(name for r in rollouts for name in r.prompt.columns)
    columns: dict[str, list[Any]] = {name: [r.prompt.columns.get(name) for r in rollouts] for name in names}
    columns["completion_ids"] = [list(r.tokens) for r in rollouts]
    return columns
