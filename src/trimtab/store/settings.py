"""The `checkpoint` section and `observe.samples`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Ge

from trimtab.secrets import Secret
from trimtab.store.location import Location
from trimtab.types import STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """When states are saved, and how many are kept."""

    __pydantic_config__ = STRICT

    every: Annotated[int, Ge(1)] = 1000
    """Steps between checkpoints that are kept; step 0 and the last step are always saved."""
    keep: Annotated[int, Ge(1)] = 5
    """So many of them, the newest; step 0 and the best one stay beside them."""
    rolling_every: Annotated[int, Ge(1)] | None = None
    """Steps between the short-lived ones that a crash goes back to; auto is 2 % of `train.max_steps`."""
    rolling_keep: Annotated[int, Ge(1)] = 3
    """So many of them, the newest."""
    weights_every: Annotated[int, Ge(1)] | None = None
    """Steps between checkpoints of the policy's weights alone, a third of the size; all stay, and no run goes on from one."""
    async_: bool = True
    """Write beside training, from a copy in memory of weights and optimiser; false: training waits, and needs no copy."""
    max_failed_saves: Annotated[int, Ge(0)] = 3
    """Saves in a row that may fail while training goes on; one more ends the run with exit code 4, and so does the last."""
    store: Location | None = None
    """Where else they are kept: `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`, `file:///DIRECTORY`; one place for one run."""
    encrypt: Secret | None = None
    """Where the key is that checkpoints are encrypted with: `${env:NAME}` or `${file:PATH}`; null leaves them plain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Which completions are kept."""

    __pydantic_config__ = STRICT

    every: Annotated[int, Ge(1)] = 10
    """Steps between the ones written down."""
    keep: Annotated[int, Ge(1)] = 100
    """Files of training samples, the newest; those of evaluations stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observe:
    """The `observe` section's part that is about files."""

    __pydantic_config__ = STRICT

    samples: Samples = field(default_factory=Samples)
