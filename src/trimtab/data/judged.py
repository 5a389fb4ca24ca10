"""Pairs and labelled completions, tokenised once by the same rules as demonstrations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from trimtab.data.kept import Kept
from trimtab.data.messages import MessageError
from trimtab.data.prompts import Demonstration, Left, Limits, demonstration_of, each, fitting, no_room, within
from trimtab.data.rows import Row
from trimtab.errors import DataError, Finding
from trimtab.types import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two completions of one prompt."""

    chosen: Demonstration
    rejected: Demonstration
    margin: float | None
    """By how much the chosen one should be ahead, reward units; None where the row says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """A completion that was judged by itself."""

    row: Demonstration
    is_desirable: bool


@dataclass(slots=True, kw_only=True)
class LeftOut(Left):
    """`dropped` are all rows that are left out."""

    identical: int = 0
    empty: int = 0

    def __str__(self) -> str:
        too_long = self.dropped - self.identical - self.empty
        why = ((self.identical, "with equal sides"), (self.empty, "without an answer"), (too_long, "too long"))
        said = [f"{self.dropped:,} left out: " + ", ".join(f"{count:,} {what}" for count, what in why if count)]
        return "; ".join((said if self.dropped else []) + ([f"{self.truncated:,} cut"] if self.truncated else []))


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """How rows become ids: what `prompts.demonstration_of` wants to know."""

    tokenizer: Any
    limits: Limits
    end_ids: frozenset[int] = frozenset()
    """Ids that end a sampled sequence."""
    as_chat: bool = False

    def side(self, row: Row, name: str) -> Demonstration | None:
        """A row's prompt with the completion of that name; None if it is empty.

        Raises:
            MessageError: the chat template refuses it.
        """
        given = row.values[name]
        if isinstance(given, list):
            if not any(turn["content"] or turn.get("tool_calls") for turn in given):
                return None
            turns = [*row.values["prompt"], *given]
            answers = sum(turn["role"] == "assistant" for turn in given)
            return self.encoded(replace(row, values={**row.values, "messages": turns}), answers)
        return self.encoded(replace(row, values={**row.values, "completion": given}), "last") if given else None

    def encoded(self, row: Row, train_on: str | int) -> Demonstration:
        eos_id = self.tokenizer.eos_token_id
        ends = self.end_ids | ({eos_id} if eos_id is not None else frozenset())
        return demonstration_of(row, self.tokenizer, eos_id, end_ids=ends, as_chat=self.as_chat, train_on=train_on)

    def pair(self, row: Row) -> Pair | None:
        """A row's pair, however long; None if a side is empty.

        Raises:
            MessageError: the chat template refuses it, or does not begin both sides with the same prompt.
        """
        sides = self.side(row, "chosen"), self.side(row, "rejected")
        if sides[0] is None or sides[1] is None or not (sides[0].completion and sides[1].completion):
            return None
        if sides[0].prompt.tokens != sides[1].prompt.tokens:
            raise MessageError("the chat template begins `chosen` and `rejected` with different prompts")
        return Pair(chosen=sides[0], rejected=sides[1], margin=row.values.get("margin"))

    def labelled(self, row: Row) -> Labelled | None:
        """A row's completion with its label, however long; None if it is empty. Of a conversation the last answer."""
        is_text = "messages" not in row.values or "completion" in row.values
        if not (row.values["completion"] if is_text else row.values["messages"][-1]["content"]):
            return None
        found = self.encoded(row, "last")
        return Labelled(row=found, is_desirable=row.values["label"]) if found.completion else None


def pairs(rows: Sequence[Row], encoder: Encoder) -> tuple[Sequence[Pair], LeftOut]:
    """The pairs of the rows, and how many were left out or cut.

    Both sides of a pair share its fate: a prompt that is cut is cut for both, and a pair of which one side has no room
    is left out.

    Args:
        rows: in the form of `preferences.arranged_pair`.
        encoder: of the model.
    Raises:
        DataError: none is left, one is too long under `refuse`, or the chat template refuses one.
        ModelError: a row is a conversation and the tokenizer has no chat template.
    """

    def again(row: Row) -> Pair:
        pair = encoder.pair(row)
        assert pair is not None  # such a row is not kept
        return _with_prompt(pair, within(pair.chosen.prompt, encoder.limits, encoder.tokenizer))

    found, left = Kept(rows, again), LeftOut()
    for number, (row, pair) in enumerate(each(rows, encoder.pair)):
        if pair is None:
            left.empty, left.dropped = left.empty + 1, left.dropped + 1
        elif pair.chosen.completion == pair.rejected.completion:
            left.identical, left.dropped = left.identical + 1, left.dropped + 1
        else:
            longest = max(len(pair.chosen.completion), len(pair.rejected.completion))
            prompt = _with_room(row, pair.chosen, longest, encoder, left)
            if prompt is not None:
                found.keep(number, _with_prompt(pair, prompt))
    if not found:
        raise _nothing(rows, left, encoder)
    return found, left


def labelled(rows: Sequence[Row], encoder: Encoder) -> tuple[Sequence[Labelled], LeftOut]:
    """The judged completions of the rows, and how many were left out or cut.

    Args:
        rows: in the form of `preferences.arranged_label`.
        encoder: of the model.
    Raises:
        DataError, ModelError: as `pairs`.
    """

    def again(row: Row) -> Labelled:
        made = encoder.labelled(row)
        assert made is not None  # such a row is not kept
        return replace(made, row=replace(made.row, prompt=within(made.row.prompt, encoder.limits, encoder.tokenizer)))

    found, left = Kept(rows, again), LeftOut()
    for number, (row, made) in enumerate(each(rows, encoder.labelled)):
        if made is None:
            left.empty, left.dropped = left.empty + 1, left.dropped + 1
            continue
        prompt = _with_room(row, made.row, len(made.row.completion), encoder, left)
        if prompt is not None:
            found.keep(number, replace(made, row=replace(made.row, prompt=prompt)))
    if not found:
        raise _nothing(rows, left, encoder)
    return found, left


def mean_lengths(rows: Sequence[Row], tokenizer: Any, *, as_chat: bool = False) -> tuple[float, float]:
    """Mean tokens of the prompts and of the completions, however long; of empty ones none.

    Raises:
        DataError: the chat template refuses a row.
    """
    encoder = Encoder(
        tokenizer=tokenizer, limits=Limits(max_prompt_length=1, max_length=2, long_prompts="drop"), as_chat=as_chat
    )

    def sides(row: Row) -> list[Demonstration]:
        if "chosen" in row.values:
            found = [encoder.side(row, "chosen"), encoder.side(row, "rejected")]
        else:
            made = encoder.labelled(row)
            found = [made.row if made else None]
        return [side for side in found if side is not None]

    every = [side for _, made in each(rows, sides) for side in made]
    count = max(1, len(every))
    return sum(len(s.prompt.tokens) for s in every) / count, sum(len(s.completion) for s in every) / count


def counts(rows: Sequence[Labelled]) -> str:
    """How many rows have each label, for people.

    >>> counts([])
    '0 desirable, 0 undesirable'
    """
    labels = (r.values["label"] for r in rows.rows()) if isinstance(rows, Kept) else (r.is_desirable for r in rows)
    good = sum(labels)
    return f"{good:,} desirable, {len(rows) - good:,} undesirable"


def _with_prompt(pair: Pair, prompt: Prompt) -> Pair:
    chosen, rejected = replace(pair.chosen, prompt=prompt), replace(pair.rejected, prompt=prompt)
    return replace(pair, chosen=chosen, rejected=rejected)


def _with_room(row: Row, made: Demonstration, longest: int, encoder: Encoder, left: LeftOut) -> Any:
    """The prompt, cut if need be, if the longest completion fits behind it; None if the row is left out."""
    limits = encoder.limits
    prompt = fitting(row, made.prompt, limits, encoder.tokenizer, left)
    if prompt is None:
        return None
    room = limits.max_length - len(prompt.tokens)
    if longest > room:
        if limits.long_prompts == "refuse":
            raise DataError([no_room(row, longest, room)])
        left.dropped += 1
        return None
    return prompt


def _nothing(rows: Sequence[Row], left: LeftOut, encoder: Encoder) -> DataError:
    limits = encoder.limits
    hint = f"sampling.max_length is {limits.max_length}, sampling.max_prompt_length {limits.max_prompt_length}"
    is_length = left.dropped > left.identical + left.empty
    return DataError([Finding(place=rows[0].place, what=f"no row is left; {left}", hint=hint if is_length else "")])
