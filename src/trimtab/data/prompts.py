"""Rows as prompts and demonstrations, tokenised once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.data.rows import Row
from trimtab.errors import DataError, Finding
from trimtab.types import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    prompt: Prompt
    completion: tuple[int, ...]
    """Ids, the end-of-sequence id included."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long a prompt may be, in tokens, and what happens to a longer one."""

    max_prompt_length: int
    max_length: int
    long_prompts: str
    """`drop`, `truncate` (the front is cut) or `refuse`."""


@dataclass(slots=True, kw_only=True)
class Left:
    """Rows that did not come through as they are."""

    dropped: int = 0
    truncated: int = 0

    def __str__(self) -> str:
        return ", ".join(
            f"{count} {what}" for what, count in (("left out", self.dropped), ("cut", self.truncated)) if count
        )


def prompts(rows: Sequence[Row], tokenizer: Any, limits: Limits) -> tuple[list[Prompt], Left]:
    """The prompts of the rows, and how many rows were dropped or cut for length.

    Raises:
        DataError: none is left, or one is too long under `refuse`.
    """
    found, left, longest = [], Left(), min(limits.max_prompt_length, limits.max_length - 1)
    for row in rows:
        text = row.values["prompt"]
        tokens = tuple(tokenizer(text).input_ids)
        if not tokens:
            raise DataError([Finding(place=row.place, what="the prompt has no tokens")])
        if len(tokens) > longest:
            if limits.long_prompts == "refuse":
                raise DataError([_too_long(row, len(tokens), longest)])
            if limits.long_prompts == "drop":
                left.dropped += 1
                continue
            left.truncated += 1
            tokens = _cut(tokens, longest, tokenizer.bos_token_id)
        columns = {name: value for name, value in row.values.items() if name not in ("prompt", "completion")}
        found.append(Prompt(id=row.id, text=text, tokens=tokens, columns=columns))
    if not found:
        what = f"all {len(rows)} prompts are longer than {longest} tokens"
        raise DataError([Finding(place=rows[0].place, what=what, hint="raise sampling.max_prompt_length")])
    return found, left


def demonstrations(
    rows: Sequence[Row], tokenizer: Any, limits: Limits, eos_id: int | None
) -> tuple[list[Demonstration], Left]:
    """Prompts with the completion to imitate, and how many rows were dropped or cut for length.

    Prompt and completion are tokenised apart: where they meet is then the same as when a completion is sampled.
    """
    kept, left = prompts(rows, tokenizer, limits)
    by_id = {row.id: row for row in rows}
    found = []
    for prompt in kept:
        text = by_id[prompt.id].values["completion"]
        tokens = tuple(tokenizer(text, add_special_tokens=False).input_ids)
        if eos_id is not None and tokens[-1:] != (eos_id,):
            tokens += (eos_id,)
        room = limits.max_length - len(prompt.tokens)
        if len(tokens) > room:
            if limits.long_prompts == "refuse":
                raise DataError([_no_room(by_id[prompt.id], len(tokens), room)])
            left.dropped += 1
            continue
        found.append(Demonstration(prompt=prompt, completion=tokens, text=text))
    if not found:
        what = f"no demonstration fits into sampling.max_length {limits.max_length}"
        raise DataError([Finding(place=rows[0].place, what=what)])
    return found, left


def _cut(tokens: tuple[int, ...], longest: int, bos_id: int | None) -> tuple[int, ...]:
    """The end of a prompt; a token that begins every sequence stays in front."""
    if bos_id is not None and tokens[0] == bos_id and longest > 1:
        return (bos_id, *tokens[-(longest - 1) :])
    return tokens[-longest:]


def _too_long(row: Row, size: int, longest: int) -> Finding:
    return Finding(
        place=row.place,
        what=f"the prompt has {size} tokens, allowed are {longest}",
        hint="raise sampling.max_prompt_length, or set sampling.long_prompts to drop or truncate",
    )


def _no_room(row: Row, size: int, room: int) -> Finding:
    return Finding(
        place=row.place,
        what=f"the completion has {size} tokens, behind its prompt there is room for {room}",
        hint="raise sampling.max_length, or set sampling.long_prompts to drop",
    )
