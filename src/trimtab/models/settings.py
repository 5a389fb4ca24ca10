"""The keys of `policy`, `value` and `reference` that say which models take part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, MinLen

from trimtab.types import STRICT

Precision = Literal["float32", "bfloat16", "float16"]
Half = Literal["bfloat16", "float16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """Low-rank adapters on linear layers of the policy; everything else of it stays as it is."""

    __pydantic_config__ = STRICT

    rank: Annotated[int, Ge(1)] = 16
    """Of each adapter: trained numbers per layer are rank x (inputs + outputs)."""
    alpha: Annotated[float, Gt(0)] = 32.0
    """What an adapter adds is multiplied by alpha / rank."""
    dropout: Annotated[float, Ge(0), Le(0)] = 0.0
    """0 only: with dropout the ratio of new to old log-probs would not be 1 before the first update."""
    target_modules: Literal["auto"] | Annotated[tuple[str, ...], MinLen(1)] = "auto"
    """auto: every linear layer but the output layer; or the last parts of layers' names, as [q_proj, v_proj]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyModel:
    """The `policy` section's part that names the model."""

    __pydantic_config__ = STRICT

    model: str = "builtin:tiny"
    """A Hugging Face directory or hub id, a finished run, a PEFT directory, a .gguf file, or `builtin:tiny`."""
    dtype: Precision = "float32"
    """Of the weights in all passes. Weights of two bytes are trained through a float32 copy that the optimiser keeps."""
    autocast: Half | None = None
    """What matrix products of float32 weights are computed in, in every pass; log-probs and losses stay float32."""
    lora: Lora | None = None
    """null: all weights are trained; else {rank, alpha, target_modules}: adapters alone are."""
    gradient_checkpointing: bool = False
    """Keep only the inputs of layers for the backward pass and compute the rest again: less memory, more time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueModel:
    """The `value` section's part that names the critic."""

    __pydantic_config__ = STRICT

    enabled: bool | None = None
    """auto: as the algorithm needs; false is refused under one that needs a critic."""
    model: str | None = None
    """null: an own copy of the policy's trunk; `shared`: a head on the policy's trunk; or a directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceModel:
    """The `reference` section."""

    __pydantic_config__ = STRICT

    model: str | None = None
    """null: the policy as it was at step 0; or a directory, hub id or finished run."""
    dtype: Precision | None = None
    """Of the reference's weights and passes; null: the precision of the policy."""
    offload: bool = False
    """Keep the weights in the computer's memory and on the device only while they are read. No effect without one."""
    cache: bool | Annotated[str, MinLen(1)] = True
    """Keep the log-probs of rows that are read for later epochs and runs: true, in the user's cache; or a directory."""
