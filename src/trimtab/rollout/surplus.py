"""Groups that were sampled for one step and train in the next, as JSON values and back.

Everything comes back exactly: a float is written as the shortest decimal that reads as the same float. Token ids and
log-probs are one string each, since a list of them would take a line a number in `state.json`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trimtab.errors import StorageError
from trimtab.types import Prompt, Rollout, Scored

Group = list[Scored]
"""The completions of one draw, in their order."""


def to_values(groups: Sequence[Group]) -> list[list[dict[str, Any]]]:
    """JSON values; a prompt by its number only."""
    return [[_row(s) for s in group] for group in groups]


def from_values(values: Sequence[Sequence[Mapping[str, Any]]], prompts: Mapping[int, Prompt]) -> list[Group]:
    """The groups again.

    Args:
        prompts: by their numbers.
    Raises:
        StorageError: a prompt is not there.
    """
    return [[_scored(row, prompts) for row in group] for group in values]


def _row(scored: Scored) -> dict[str, Any]:
    rollout = scored.rollout
    return {
        "prompt": rollout.prompt.id,
        "draw": rollout.draw,
        "index": rollout.index,
        "tokens": " ".join(map(str, rollout.tokens)),
        "log_probs": _line(rollout.log_probs),
        "text": rollout.text,
        "is_truncated": rollout.is_truncated,
        "policy_version": rollout.policy_version,
        "reward": scored.reward,
        "parts": list(scored.parts),
        "is_scored": scored.is_scored,
        "token_rewards": None if scored.token_rewards is None else _line(scored.token_rewards),
    }


def _scored(row: Mapping[str, Any], prompts: Mapping[int, Prompt]) -> Scored:
    if row["prompt"] not in prompts:
        raise StorageError(
            f"state.json: a group of prompt {row['prompt']} waits for its step, but the data has no such prompt; "
            "start over with --fresh, which keeps this run under another name"
        )
    rollout = Rollout(
        prompt=prompts[row["prompt"]],
        draw=row["draw"],
        index=row["index"],
        tokens=tuple(map(int, row["tokens"].split())),
        log_probs=tuple(map(float, row["log_probs"].split())),
        text=row["text"],
        is_truncated=row["is_truncated"],
        policy_version=row["policy_version"],
    )
    given = row["token_rewards"]
    return Scored(
        rollout=rollout,
        reward=row["reward"],
        parts=tuple(row["parts"]),
        is_scored=row["is_scored"],
        token_rewards=None if given is None else tuple(map(float, given.split())),
    )


def _line(numbers: Sequence[float]) -> str:
    return " ".join(repr(float(number)) for number in numbers)
