"""The doors between rooms. `assemble` chooses what stands behind each; `trimtab.testing` has a suite for some."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trimtab.types import Batch, Draw, Frozen, Need, Policy, Rollout, Sample, StepReport, Verdict

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.nn import Parameter


class RolloutEngine(Protocol):
    """Samples completions."""

    def generate(self, draws: Sequence[Draw], *, group_size: int, greedy: bool = False) -> list[Rollout]:
        """`group_size` completions of each draw, in the order of the draws; equal inputs give equal tokens.

        Greedy decoding takes the likeliest token and reports log-probs of 0.
        """
        ...

    def refresh(self, *, version: int) -> None:
        """Sample from the trainer's newest weights from now on; `version` is the step they are from."""
        ...


class Reward(Protocol):
    """Judges completions. The signature is that of TRL's reward functions."""

    name: str

    def __call__(
        self, prompts: Sequence[str], completions: Sequence[str], **columns: Sequence[Any]
    ) -> Sequence[float | None]:
        """One number a completion, or None where it cannot judge."""
        ...


class Source(Protocol):
    """Gives the batches of a run, one a step; samples them, or reads them."""

    def next_batch(self) -> Batch: ...

    def samples(self) -> tuple[Sample, ...]:
        """Rows of the newest batch, to show to people."""
        ...

    def figures(self) -> Mapping[str, float]:
        """What the source measured while it made the newest batch (seconds)."""
        ...

    def refresh(self, *, version: int) -> None:
        """The weights have changed; nothing to do for a source that reads."""
        ...

    def state(self) -> Mapping[str, Any]:
        """What a resumed run needs to go on with the next batch; JSON values."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None: ...


class Models(Protocol):
    """The roles with weights: policy, critic, reference."""

    @property
    def device(self) -> torch.device:
        """Where rows must be for `forward` and `freeze`."""
        ...

    def forward(self, batch: Batch, need: Need) -> Policy:
        """Everything that has a gradient, for the rows of one micro-batch."""
        ...

    def freeze(self, batch: Batch, need: Need) -> Frozen:
        """Everything that is computed once a step without gradient, for the rows of one micro-batch."""
        ...

    def parameters(self) -> Mapping[str, list[Parameter]]:
        """Trained parameters by role, clipped role by role: `policy`, and `value` for an own critic."""
        ...

    def named_parameters(self) -> Mapping[str, Parameter]:
        """Trained parameters by a name that is the same after a restart."""
        ...

    def weights_sum(self) -> str:
        """An order-free 64-bit sum over the trained weights, hexadecimal: cheap evidence that weights are equal."""
        ...

    def writer(self, *, is_copied: bool = False, policy_only: bool = False) -> Callable[[Path], None]:
        """What writes `policy/` (Hugging Face layout) and all else that is the models' into a directory.

        Args:
            is_copied: of the weights as they are now, from memory of their own on the CPU, in any thread and at any time
                later; else of the weights as they are when it is called.
            policy_only: `policy/` and nothing else.
        """
        ...

    def load(self, directory: Path) -> None:
        """Put the weights of such a directory in the place of the present ones."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What one checkpoint is written from."""

    write_models: Callable[[Path], object]
    """Into a directory that is there."""
    tensors: Mapping[str, Tensor]
    """The optimiser's."""
    values: Mapping[str, Any]
    """Everything else, as JSON values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """How a save has ended."""

    step: int
    seconds: float
    """Until its files were on the disk."""
    stall_seconds: float
    """Of these, and of waiting for the save before, how long training stood still."""
    policy_only: bool = False
    failure: str = ""
    """Why there is no such checkpoint; empty: there is one."""


class Checkpoints(Protocol):
    """Where the states of a run are kept. One save at most is under way beside training; whatever reads waits for it."""

    rejected: int
    """Damaged checkpoints passed over since the start."""

    def save_if_due(
        self, step: int, state: RunState, metrics: Mapping[str, float], *, last: bool = False
    ) -> float | None:
        """Save if the step is due; the seconds that training stood still, or None. The last one is there on return.

        Raises:
            StorageError: the last save has failed, or too many in a row have.
        """
        ...

    def saves(self) -> Sequence[Saved]:
        """The saves that have ended since this was last asked, in their order."""
        ...

    def wait(self) -> None:
        """Until the save that is under way has ended."""
        ...

    def figures(self) -> Mapping[str, float]:
        """Metrics of saving, for the record of a step."""
        ...

    def newest_good(self, *, before: int | None = None) -> int | None:
        """The newest step (before another one, if that is given) whose checkpoint has all that a run goes on from.

        Raises:
            StorageError: there are checkpoints, but none is good.
        """
        ...

    def values(self, step: int) -> Mapping[str, Any]:
        """What the checkpoint of a step says of its run besides tensors, as `RunState` gave it."""
        ...

    def metrics(self, step: int) -> Mapping[str, float]:
        """The figures that a checkpoint was saved with."""
        ...

    def best(self) -> int | None:
        """The step of the best evaluation among the checkpoints, else the newest."""
        ...

    def restore(self, state: RunState) -> int | None:
        """Put the newest checkpoint whose files are all as they were written into the run; its step, or None.

        Raises:
            StorageError: there are checkpoints, but none of them is good.
        """
        ...


class RunState(Protocol):
    """The parts of a run that a checkpoint holds, for writing and for reading."""

    def snapshot(self, *, is_copied: bool, policy_only: bool = False) -> Snapshot:
        """What a checkpoint is written from; copied, nothing that happens to the run afterwards changes it.

        With `policy_only` it has no tensors and no values.
        """
        ...

    def read_models(self, directory: Path) -> None: ...

    def load(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None: ...


class Recorder(Protocol):
    """Told of every step; a journal, a live view, an exporter."""

    def record(self, report: StepReport) -> None: ...

    def event(self, kind: str, **facts: Any) -> None:
        """Something that is not a step: started, resumed, saved, finished, failed."""
        ...

    def close(self) -> None: ...


class Guard(Protocol):
    """Judges every step."""

    @property
    def active(self) -> Sequence[str]:
        """Names of the rules whose alarm is raised."""
        ...

    @property
    def is_calm(self) -> bool:
        """Whether nothing that the run itself did has raised an alarm."""
        ...

    def judge(self, report: StepReport) -> Verdict: ...

    def has_finished(self) -> bool:
        """Whether the run, as it stands, has stopped early; another patience may say otherwise."""
        ...

    def state(self) -> Mapping[str, Any]: ...

    def load_state(self, state: Mapping[str, Any]) -> None: ...


class Evaluator(Protocol):
    def evaluate_if_due(self, step: int, *, last: bool = False) -> StepReport | None:
        """A report with phase `eval` if the step is due (step 0 and the last one always are), else None."""
        ...


class Control(Protocol):
    """What people, schedulers and the guard ask of a running job. A run that it gives back may be another one."""

    def should_stop(self) -> str | None:
        """Why the run is to save and end at this step boundary, or None."""
        ...

    def apply(self, run: Any) -> Any:
        """The run, with what was asked for since the last step: other coefficients or algorithm, an earlier step."""
        ...

    def roll_back(self, run: Any, verdict: Verdict) -> Any:
        """The run as it was before the first sign of an alarm, gentler.

        Raises:
            GuardError: it has gone back too often, or there is nothing to go back to.
        """
        ...
