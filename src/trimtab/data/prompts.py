"""Rows as prompts and demonstrations.

All rows are tokenised once before training, to see which of them fit; then each again when its turn comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from trimtab.data import chat
from trimtab.data.kept import Kept
from trimtab.data.messages import Message, MessageError
from trimtab.data.rows import MAX_FINDINGS, Row
from trimtab.errors import DataError, Finding
from trimtab.types import Prompt

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    prompt: Prompt
    completion: tuple[int, ...]
    """Ids, the end-of-sequence id included."""
    text: str
    mask: tuple[bool, ...] | None = None
    """For each id of the completion whether it is trained on; None: all are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long a prompt may be, in tokens, and what happens to a longer one."""

    max_prompt_length: int
    max_length: int
    long_prompts: str
    """`drop`, `truncate` (the front is cut) or `refuse`."""

    @property
    def longest_prompt(self) -> int:
        """One token is kept for the completion."""
        return min(self.max_prompt_length, self.max_length - 1)


@dataclass(slots=True, kw_only=True)
class Left:
    """Rows that did not come through as they are."""

    dropped: int = 0
    truncated: int = 0

    def __str__(self) -> str:
        return ", ".join(
            f"{count} {what}" for what, count in (("left out", self.dropped), ("cut", self.truncated)) if count
        )


def prompts(
    rows: Sequence[Row], tokenizer: Any, limits: Limits, *, as_chat: bool = False
) -> tuple[Sequence[Prompt], Left]:
    """The prompts of the rows, and how many rows were dropped or cut for length.

    Raises:
        DataError: none is left, one is too long under `refuse`, or the chat template refuses one.
        ModelError: a row is a conversation and the tokenizer has no chat template.
    """

    def make(row: Row) -> Prompt:
        return prompt_of(row, tokenizer, as_chat=as_chat)

    def again(row: Row) -> Prompt:
        return within(make(row), limits, tokenizer)

    found, left = Kept(rows, again), Left()
    for number, (row, prompt) in enumerate(each(rows, make)):
        cut = fitting(row, prompt, limits, tokenizer, left)
        if cut is not None:
            found.keep(number, cut)
    if not found:
        raise none_left(rows, limits)
    return found, left


def demonstrations(
    rows: Sequence[Row],
    tokenizer: Any,
    limits: Limits,
    eos_id: int | None,
    *,
    end_ids: frozenset[int] = frozenset(),
    as_chat: bool = False,
    train_on: str = "all",
) -> tuple[Sequence[Demonstration], Left]:
    """Prompts with the completion to imitate, and how many rows were dropped or cut for length.

    Args:
        rows: with text in `prompt` and `completion`, or with `messages`.
        tokenizer: of the model.
        limits: longer rows are left out, cut or refused.
        eos_id: put behind a completion that does not end with it.
        end_ids: other ids that end a sampled sequence, such as the end of a turn.
        as_chat: text too is put into the chat template.
        train_on: `all` answers of a conversation, or the `last`.
    Raises:
        DataError: none is left, one is too long under `refuse`, or the chat template refuses one.
        ModelError: a row is a conversation and the tokenizer has no chat template.
    """
    ends = end_ids | ({eos_id} if eos_id is not None else frozenset())

    def make(row: Row) -> Demonstration:
        return demonstration_of(row, tokenizer, eos_id, end_ids=ends, as_chat=as_chat, train_on=train_on)

    def again(row: Row) -> Demonstration:
        made = make(row)
        return replace(made, prompt=within(made.prompt, limits, tokenizer))

    found, left, fit = Kept(rows, again), Left(), 0
    for number, (row, made) in enumerate(each(rows, make)):
        prompt = fitting(row, made.prompt, limits, tokenizer, left)
        if prompt is None:
            continue
        fit += 1
        room = limits.max_length - len(prompt.tokens)
        if len(made.completion) > room:
            if limits.long_prompts == "refuse":
                raise DataError([no_room(row, len(made.completion), room)])
            left.dropped += 1
            continue
        found.keep(number, replace(made, prompt=prompt))
    if not fit:
        raise none_left(rows, limits)
    if not found:
        what = f"no demonstration fits into sampling.max_length {limits.max_length}"
        raise DataError([Finding(place=rows[0].place, what=what)])
    return found, left


def mean_lengths(
    rows: Sequence[Row], tokenizer: Any, *, with_answers: bool, as_chat: bool = False, train_on: str = "all"
) -> tuple[float, float]:
    """Mean tokens of the prompts and of the completions to imitate (0 without answers), however long.

    Raises:
        DataError: the chat template refuses a row.
        ModelError: a row is a conversation and the tokenizer has no chat template.
    """
    eos_id = tokenizer.eos_token_id
    ends = frozenset({eos_id}) - {None}

    def sizes(row: Row) -> tuple[int, int]:
        if not with_answers:
            return len(prompt_of(row, tokenizer, as_chat=as_chat).tokens), 0
        made = demonstration_of(row, tokenizer, eos_id, end_ids=ends, as_chat=as_chat, train_on=train_on)
        return len(made.prompt.tokens), len(made.completion)

    found = [counts for _, counts in each(rows, sizes)]
    return sum(p for p, _ in found) / len(found), sum(c for _, c in found) / len(found)


def prompt_of(row: Row, tokenizer: Any, *, as_chat: bool = False) -> Prompt:
    """A row's prompt, however long.

    Raises:
        MessageError: the chat template refuses it, or it has no tokens.
    """
    turns = _turns(row, as_chat=as_chat)
    if turns is None:
        text = row.values["prompt"]
        return _prompt(row, text, _without_second_bos(tuple(tokenizer(text).input_ids), tokenizer.bos_token_id))
    return _prompt(row, chat.prompt_text(turns, tokenizer), chat.prompt_ids(turns, tokenizer), turns)


def demonstration_of(
    row: Row,
    tokenizer: Any,
    eos_id: int | None,
    *,
    end_ids: frozenset[int] = frozenset(),
    as_chat: bool = False,
    train_on: str | int = "all",
) -> Demonstration:
    """A row's prompt and what is to be imitated, however long.

    Text of prompt and completion is tokenised apart: where they meet is then the same as when a completion is sampled.

    Args:
        train_on: `all` answers of a conversation, the `last`, or the last so many.
    Raises:
        MessageError: the chat template refuses it, or it cannot be told what the assistant wrote.
    """
    turns = _turns(row, as_chat=as_chat)
    if turns is None:
        text = row.values["completion"]
        tokens = tuple(tokenizer(text, add_special_tokens=False).input_ids)
        if eos_id is not None and tokens[-1:] != (eos_id,):
            tokens += (eos_id,)
        return Demonstration(prompt=prompt_of(row, tokenizer), completion=tokens, text=text)
    whole = row.values.get("messages") if isinstance(row.values["prompt"], list) else None
    if whole is None:
        whole = [*turns, {"role": "assistant", "content": row.values["completion"]}]
    made = chat.encoded(whole, tokenizer, end_ids, train_on)
    if train_on == "last":
        turns = whole[:-1]
    text = whole[-1]["content"] if len(turns) == len(whole) - 1 else tokenizer.decode(made.completion)
    prompt = _prompt(row, chat.prompt_text(turns, tokenizer), made.prompt, turns)
    return Demonstration(prompt=prompt, completion=made.completion, text=text, mask=made.mask)


def _turns(row: Row, *, as_chat: bool) -> list[Message] | None:
    """The conversation that a row's prompt is; None for text that is taken as it stands."""
    prompt = row.values["prompt"]
    if isinstance(prompt, list):
        return prompt
    return [{"role": "user", "content": prompt}] if as_chat else None


def _prompt(row: Row, text: str, tokens: tuple[int, ...], turns: list[Message] | None = None) -> Prompt:
    if not tokens:
        raise MessageError("the prompt has no tokens")
    columns = {name: value for name, value in row.values.items() if name != "prompt"}
    if turns is not None:
        columns["messages"] = turns
    return Prompt(id=row.id, text=text, tokens=tokens, columns=columns)


def each(rows: Sequence[Row], make: Callable[[Row], Made]) -> Iterator[tuple[Row, Made]]:
    """What is made of each row; all faults at once, up to twenty, once the rows are through.

    Without a fault, what comes is in the places of the rows.
    """
    findings: list[Finding] = []
    for row in rows:
        try:
            made = make(row)
        except MessageError as fault:
            findings.append(Finding(place=row.place, what=fault.what, hint=fault.hint))
            if len(findings) == MAX_FINDINGS:
                break
            continue
        yield row, made
    if findings:
        raise DataError(findings)


def fitting(row: Row, prompt: Prompt, limits: Limits, tokenizer: Any, left: Left) -> Prompt | None:
    """The prompt within its limit; None if the row is left out."""
    size, longest = len(prompt.tokens), limits.longest_prompt
    if size <= longest:
        return prompt
    if limits.long_prompts == "refuse":
        raise DataError([_too_long(row, size, longest)])
    if limits.long_prompts == "drop":
        left.dropped += 1
        return None
    left.truncated += 1
    return within(prompt, limits, tokenizer)


def within(prompt: Prompt, limits: Limits, tokenizer: Any) -> Prompt:
    """The prompt, its front cut off if it is longer than it may be."""
    if len(prompt.tokens) <= limits.longest_prompt:
        return prompt
    tokens = _cut(prompt.tokens, limits.longest_prompt, tokenizer.bos_token_id)
    return Prompt(id=prompt.id, text=prompt.text, tokens=tokens, columns=prompt.columns)


def _cut(tokens: tuple[int, ...], longest: int, bos_id: int | None) -> tuple[int, ...]:
    """The end of a prompt; a token that begins every sequence stays in front."""
    if bos_id is not None and tokens[0] == bos_id and longest > 1:
        return (bos_id, *tokens[-(longest - 1) :])
    return tokens[-longest:]


def _without_second_bos(tokens: tuple[int, ...], bos_id: int | None) -> tuple[int, ...]:
    """A text that was put into a template before begins with the token that the tokenizer puts in front as well."""
    return tokens[1:] if bos_id is not None and tokens[:2] == (bos_id, bos_id) else tokens


def none_left(rows: Sequence[Row], limits: Limits) -> DataError:
    what = f"all {len(rows)} prompts are longer than {limits.longest_prompt} tokens"
    return DataError([Finding(place=rows[0].place, what=what, hint="raise sampling.max_prompt_length")])


def _too_long(row: Row, size: int, longest: int) -> Finding:
    return Finding(
        place=row.place,
        what=f"the prompt has {size} tokens, allowed are {longest}",
        hint="raise sampling.max_prompt_length, or set sampling.long_prompts to drop or truncate",
    )


def no_room(row: Row, size: int, room: int) -> Finding:
    return Finding(
        place=row.place,
        what=f"the completion has {size} tokens, behind its prompt there is room for {room}",
        hint="raise sampling.max_length, or set sampling.long_prompts to drop",
    )
