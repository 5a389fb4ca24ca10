"""A checked configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab.algorithms.base import Algorithm
from trimtab.data.settings import Data
from trimtab.models.settings import PolicyModel, ReferenceModel, ValueModel
from trimtab.rewards.settings import RewardSpec
from trimtab.rollout.settings import Sampling
from trimtab.store.settings import Checkpoint, Observe
from trimtab.train.settings import Critic, Eval, Guard, Optim, Train
from trimtab.types import Need


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """A checked configuration. `algorithm_config` is the algorithm's own record."""

    algorithm: Algorithm
    algorithm_config: Any
    policy: PolicyModel
    value: ValueModel
    critic: Critic
    reference: ReferenceModel
    sampling: Sampling
    data: Data
    rewards: tuple[RewardSpec, ...]
    optim: Optim
    train: Train
    eval: Eval
    checkpoint: Checkpoint
    guard: Guard
    observe: Observe
    requested: Mapping[str, Any]
    """What was asked for: file, bases and command line merged, before defaults."""
    resolved: Mapping[str, Any]
    """Every key that this run reads, at its value."""
    unused: tuple[str, ...]
    """Keys asked for that the algorithm does not read."""
    aliases: tuple[str, ...]
    """What each flat name of a guide was taken for, a line each."""
    chain: tuple[str, ...]
    folder: Path
    """Where the configuration file lies: relative paths and reward modules are looked for there too."""

    @property
    def need(self) -> Need:
        return self.algorithm.needs(self.algorithm_config)
