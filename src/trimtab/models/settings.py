"""The keys of `policy`, `value` and `reference` that say which models take part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trimtab.types import STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyModel:
    """The `policy` section's part that names the model."""

    __pydantic_config__ = STRICT

    model: str = "builtin:tiny"
    """A Hugging Face directory or hub id, a finished run, or `builtin:tiny`."""
    dtype: Literal["float32"] = "float32"
    """Of the weights being trained."""


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
