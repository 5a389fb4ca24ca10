"""The `data` section."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trimtab.types import STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Where prompts and demonstrations come from."""

    __pydantic_config__ = STRICT

    train: str = "builtin:addition"
    """A JSONL file with a prompt a line, or `builtin:addition`."""
    validation: str | None = None
    """Held-out rows of the same form; null switches evaluation off."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Our name: the file's name, such as `{prompt: question}`."""
    shuffle: bool = True
    """A new order every epoch; false keeps the file's."""
    seed: int = 0
    """Of the order."""
