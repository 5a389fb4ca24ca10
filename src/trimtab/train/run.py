"""A run: the parts behind the ports, and the state that a checkpoint keeps of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from trimtab.ports import Checkpoints, Control, Evaluator, Guard, Models, Recorder, Source
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
    step: int = 0
    is_finished: bool = False
    """Stopped early: a completed run that has steps left."""

    # the `RunState` port
    def write_models(self, directory: Path) -> None:
        self.models.save(directory)

    def read_models(self, directory: Path) -> None:
        self.models.load(directory)

    def tensors(self) -> Mapping[str, Tensor]:
        return self.learner.tensors()

    def values(self) -> Mapping[str, Any]:
        return {
            "step": self.step,
            "learner": self.learner.values(),
            "source": self.source.state(),
            "mixed": [source.state() for source in self.mixed],
            "guard": self.guard.state(),
        }

    def load(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        self.step = int(values["step"])
        self.learner.load(tensors, values["learner"])
        self.source.load_state(values["source"])
        for source, state in zip(self.mixed, values["mixed"], strict=True):
            source.load_state(state)
        self.guard.load_state(values["guard"])
        self.is_finished = self.guard.has_finished()
