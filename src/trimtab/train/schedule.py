"""Numbers that change over the steps: coefficients and the learning rate."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass, replace
from typing import Any

from trimtab.train.settings import Optim
from trimtab.types import Schedule


def value_at(schedule: Schedule, step: int) -> float:
    """The schedule's number at a step, from 1.

    >>> value_at(Schedule(kind="linear", start=1.0, end=0.0, steps=5), 3)
    0.5
    """
    if schedule.kind == "constant":
        return schedule.start
    done = min(max((step - 1) / max(schedule.steps - 1, 1), 0.0), 1.0)
    if schedule.kind == "cosine":
        done = 0.5 - 0.5 * math.cos(math.pi * done)
    return schedule.start + (schedule.end - schedule.start) * done


def number_at(coefficient: float | Schedule, step: int) -> float:
    """A coefficient at a step, whether it is a number or a schedule."""
    return value_at(coefficient, step) if isinstance(coefficient, Schedule) else coefficient


def at(config: Any, step: int) -> Any:
    """A config record with the numbers of one step in the place of its schedules."""
    changed: dict[str, Any] = {}
    for spec in fields(config):
        value = getattr(config, spec.name)
        if isinstance(value, Schedule):
            changed[spec.name] = value_at(value, step)
        elif is_dataclass(value):
            inner = at(value, step)
            if inner is not value:
                changed[spec.name] = inner
    return replace(config, **changed) if changed else config


def learning_rate_factor(optim: Optim, step: int, max_steps: int) -> float:
    """What the learning rate is multiplied by at a step, from 1: a linear rise, then the schedule's fall.

    The last step still moves the weights; the step behind it would be at 0.

    >>> learning_rate_factor(Optim(warmup_steps=4), 1, 100), learning_rate_factor(Optim(), 1, 100)
    (0.25, 1.0)
    """
    if step <= optim.warmup_steps:
        return step / optim.warmup_steps
    if optim.schedule == "constant":
        return 1.0
    left = max(max_steps - step + 1, 0) / max(max_steps - optim.warmup_steps, 1)
    return left if optim.schedule == "linear" else 0.5 - 0.5 * math.cos(math.pi * left)
