"""A checked configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab.algorithms.base import Algorithm
from trimtab.config.mix import MixedPart
from trimtab.data.settings import Data, Imitation
from trimtab.models.settings import PolicyModel, ReferenceModel, ValueModel
from trimtab.observe.settings import Export, Telling
from trimtab.rewards.settings import RewardSpec
from trimtab.rollout.settings import Sampling
from trimtab.store.settings import Checkpoint, Observe
from trimtab.train.settings import Alarms, Cluster, Critic, Diagnostics, Eval, Guard, Optim, Probe, Train
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
    imitation: Imitation
    rewards: tuple[RewardSpec, ...]
    mix: tuple[MixedPart, ...]
    """Parts that are added to the loss."""
    optim: Optim
    train: Train
    eval: Eval
    checkpoint: Checkpoint
    guard: Guard
    cluster: Cluster
    probe: Probe
    observe: Observe
    diagnostics: Diagnostics
    alarms: Alarms
    telling: Telling
    export: Export
    requested: Mapping[str, Any]
    """What was asked for: file, bases and command line merged, before defaults."""
    resolved: Mapping[str, Any]
    """Every key that this run reads, at its value."""
    unused: tuple[str, ...]
    """Keys asked for that the algorithm does not read."""
    aliases: tuple[str, ...]
    """What each flat name of a guide was taken for, a line each."""
    remarks: tuple[str, ...]
    """Settings that are allowed and seldom meant, a line each."""
    chain: tuple[str, ...]
    folder: Path
    """Where the configuration file lies: relative paths and reward modules are looked for there too."""

    @property
    def need(self) -> Need:
        """What the run must have; of the parts that are mixed in, the models they look at."""
        found = self.algorithm.needs(self.algorithm_config)
        for part in self.mix:
            found |= part.need & Need.REFERENCE
        return found
