"""The `data` section."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge

from trimtab.types import STRICT, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixed:
    """One entry of the `mix` list: a part that is added to the run's loss, with rows and denominators of its own.

    Beside these keys an entry takes the sections of its algorithm, such as `preference: {beta: 0.1}`.
    """

    __pydantic_config__ = STRICT

    algorithm: str
    """One that reads: dpo, ..., kto, sft."""
    data: str
    """A file of the rows that it reads."""
    weight: Annotated[float, Ge(0)] | Schedule = 1.0
    """L = L_main + sum of weight x L_mix."""
    rows_per_step: Annotated[int, Ge(1)] = 32
    """Rows (pairs) a step, over all ranks."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Our name: the file's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Where prompts and demonstrations come from."""

    __pydantic_config__ = STRICT

    train: str = "builtin:addition"
    """A file of rows (JSONL, gzip, Parquet), `hf:NAME[:SPLIT]`, or `builtin:addition`."""
    validation: str | None = None
    """Held-out rows of the same form; null switches evaluation off."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Our name: the file's name, such as `{prompt: question}`."""
    as_chat: bool = False
    """Put prompts that are text into the tokenizer's chat template, as a turn of the user; false takes them as they
    stand. Messages always go through the template."""
    packing: bool = False
    """Lay the rows of a pass end to end in fewer, none of which sees another: less padding to compute. Losses, their
    denominators and what is recorded stay as they are."""
    shuffle: bool = True
    """A new order every epoch; false keeps the file's."""
    seed: int = 0
    """Of the order."""
    allow: list[str] | None = None
    """Folders that data files must lie in, links followed; null allows any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imitation:
    """The `data` section's part that only a run reads which imitates demonstrations."""

    __pydantic_config__ = STRICT

    train_on: Literal["all", "last"] = "all"
    """Answers of a conversation that are trained on: all, or the last with everything before it as the prompt."""
