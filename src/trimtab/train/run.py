"""A run: the parts behind the ports, and the state that a checkpoint keeps of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from trimtab.ports import Checkpoints, Control, Evaluator, Guard, Models, Recorder, Snapshot, Source
from trimtab.train.learner import Learner


@dataclass(slots=True, kw_only=True)
class Run:
    """Everything that `train` needs. `assemble` builds it."""

    learner: Learner
    models: Models
    source: Source
    mixed: tuple[Source, ...] = ()
    """Of the parts that `mix` adds, in their order."""
    evaluator: Evaluator
    recorder: Recorder
    guard: Guard
    checkpoints: Checkpoints
    control: Control
    max_steps: int
    machine: Callable[[], Mapping[str, float]] = dict
    """How busy the computers are, as metrics; the same on every rank."""
    step: int = 0
    is_finished: bool = False
    """Stopped early: a completed run that has steps left."""
    version: int = 1
    """Of the configuration."""
    rollbacks: int = 0
    """By the guard, so far."""

    # the `RunState` port
    def snapshot(self, *, is_copied: bool, policy_only: bool = False) -> Snapshot:
        write_models = self.models.writer(is_copied=is_copied, policy_only=policy_only)
        if policy_only:
            self.learner.refuse_wrong_weights()
            return Snapshot(write_models=write_models, tensors={}, values={})
        tensors, values = self.tensors(), self.values()
        if is_copied:
            tensors = {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
            values = copy.deepcopy(values)
        return Snapshot(write_models=write_models, tensors=tensors, values=values)

    def read_models(self, directory: Path) -> None:
        self.models.load(directory)

    def tensors(self) -> Mapping[str, Tensor]:
        return self.learner.tensors()

    def values(self) -> Mapping[str, Any]:
        return {
            "step": self.step,
            "version": self.version,
            "rollbacks": self.rollbacks,
            "learner": self.learner.values(),
            "source": self.source.state(),
            "mixed": [source.state() for source in self.mixed],
            "guard": self.guard.state(),
        }

    def load(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        self.step = int(values["step"])
        self.rollbacks = int(values["rollbacks"])
        self.learner.load(tensors, values["learner"])
        self.source.load_state(values["source"])
        # a swap may have added one, or left it out
        for source, state in zip(self.mixed, values["mixed"], strict=False):
            source.load_state(state)
        self.guard.load_state(values["guard"])
        self.is_finished = self.guard.has_finished()

    def figures(self) -> dict[str, float]:
        """What the record of a step says of the run itself, besides what the learner and the source report."""
        return {
            "config/version": float(self.version),
            "guard/alarms": float(len(self.guard.active)),
            "guard/rollbacks": float(self.rollbacks),
            **self.checkpoints.figures(),
        }

    def record_saves(self) -> None:
        """Tell the recorder how the saves have ended that have."""
        for save in self.checkpoints.saves():
            if save.failure:
                self.recorder.event("save failed", step=save.step, reason=save.failure)
                continue
            kind = {"policy_only": True} if save.policy_only else {}
            seconds, stall = round(save.seconds, 3), round(save.stall_seconds, 3)
            self.recorder.event("saved", step=save.step, seconds=seconds, stall_seconds=stall, **kind)
