"""Conversations as token ids, by the tokenizer's chat template, and which of them the assistant wrote.

Ids come from the template alone: nothing is added to them but one end-of-sequence id where the template gives none, and
text is never cut and tokenised again. Which tokens are the assistant's is known

* from `{% generation %}` tags, if the template has them;
* else from its beginnings: the ids of the turns before an answer, and of those up to its end, must begin the ids of the
  whole conversation. A template that rewrites earlier turns (leaves out their thoughts, say) fails that, and the row is
  refused instead of trained on the wrong tokens.

The token that ends the assistant's turn is the assistant's; what the template puts between it and the next turn is not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.data.messages import Message, MessageError
from trimtab.errors import ModelError

Ids = tuple[int, ...]
Span = tuple[int, int]
_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """A conversation in ids."""

    prompt: Ids
    """Up to the first token that is trained on."""
    completion: Ids
    """All behind it, up to the last token that is trained on."""
    mask: tuple[bool, ...]
    """For each id of the completion, whether the assistant wrote it."""


def prompt_ids(turns: Sequence[Message], tokenizer: Any) -> Ids:
    """The turns and what the template puts before an answer.

    Raises:
        ModelError: the tokenizer has no chat template.
        MessageError: the template refuses the turns.
    """
    return tuple(_apply(turns, tokenizer, add_generation_prompt=True)["input_ids"])


def prompt_text(turns: Sequence[Message], tokenizer: Any) -> str:
    """The text of `prompt_ids`, for people and reward functions."""
    return str(_rendered(turns, tokenizer, tokenize=False, add_generation_prompt=True))


def encoded(turns: Sequence[Message], tokenizer: Any, end_ids: frozenset[int], train_on: str | int) -> Encoded:
    """A conversation that ends with an answer.

    Args:
        turns: checked messages, the last one the assistant's.
        tokenizer: with a chat template.
        end_ids: that end a sampled sequence; the last id is one of them.
        train_on: `all` answers, the `last`, or the last so many.
    Raises:
        ModelError: the tokenizer has no chat template.
        MessageError: the template refuses the turns, or it cannot be told what of its output is the assistant's.
    """
    first = {"all": 0, "last": -1}[train_on] if isinstance(train_on, str) else -train_on
    if _GENERATION.search(str(_template(tokenizer))):
        found = _apply(turns, tokenizer, return_assistant_tokens_mask=True)
        ids, spans = found["input_ids"], _runs(found["assistant_masks"])
        if not spans:
            raise MessageError("the chat template's {% generation %} tags enclose nothing of this conversation")
        spans = spans[first:]
    else:
        ids = _apply(turns, tokenizer)["input_ids"]
        answers = [number for number, turn in enumerate(turns) if turn["role"] == "assistant"]
        spans = _by_beginnings(turns, ids, answers[first:], tokenizer, end_ids)
    closing = end_ids | set(tokenizer.all_special_ids)
    spans = [_closed(span, ids, closing, end_ids, tokenizer) for span in spans]
    start, stop = spans[0][0], spans[-1][1]
    kept = ids[start:stop]
    trained = {place for first, last in spans for place in range(first - start, last - start)}
    if tokenizer.eos_token_id is not None and kept[-1:] and kept[-1] not in end_ids | {tokenizer.eos_token_id}:
        trained.add(len(kept))
        kept += (tokenizer.eos_token_id,)
    return Encoded(prompt=ids[:start], completion=kept, mask=tuple(place in trained for place in range(len(kept))))


def _by_beginnings(
    turns: Sequence[Message], ids: Ids, answers: Sequence[int], tokenizer: Any, end_ids: frozenset[int]
) -> list[Span]:
    """Where each answer lies in the ids of the whole, checked against the ids of its beginnings."""
    found = []
    for number in answers:
        before = prompt_ids(turns[:number], tokenizer)
        if not _begins(ids, before):
            raise _unstable(number, is_last=number == len(turns) - 1)
        if number == len(turns) - 1:
            found.append((len(before), len(ids)))
            continue
        until = _apply(turns[: number + 1], tokenizer)["input_ids"]
        if not _begins(ids, until) and until[-1:] and until[-1] in end_ids | {tokenizer.eos_token_id}:
            until = until[:-1]  # an end of sequence that stands at the very end only
        if not _begins(ids, until) or len(until) < len(before):
            raise _unstable(number, is_last=False)
        found.append((len(before), len(until)))
    return found


def _unstable(number: int, *, is_last: bool) -> MessageError:
    if is_last:
        what = "does not begin the answer as it announces it (add_generation_prompt)"
        hint = "mark the answers in the template with {% generation %}"
    else:
        what = f"rewrites earlier turns: messages[{number}] reads otherwise once more turns follow"
        hint = "set data.train_on: last, or mark the answers in the template with {% generation %}"
    return MessageError(f"the chat template {what}, so it cannot be told which tokens to train on", hint)


def _closed(span: Span, ids: Ids, closing: set[int] | frozenset[int], end_ids: frozenset[int], tokenizer: Any) -> Span:
    """The span up to and with the token that ends the turn, without the space that the template puts behind it."""
    start, stop = span
    last = next((place for place in reversed(range(start, stop)) if ids[place] in closing), None)
    if last is not None and not tokenizer.decode(ids[last + 1 : stop]).strip():
        stop = last + 1
    elif stop < len(ids) and ids[stop] in end_ids:
        stop += 1
    while stop - start > 1 and ids[stop - 1] in end_ids and ids[stop - 2] in end_ids:
        stop -= 1  # the answer's text had one already
    return start, stop


def _runs(mask: Iterable[int]) -> list[Span]:
    """
    >>> _runs([0, 1, 1, 0, 1])
    [(1, 3), (4, 5)]
    """
    found: list[Span] = []
    start, place = None, 0
    for place, is_on in enumerate([*mask, 0]):
        if is_on and start is None:
            start = place
        elif not is_on and start is not None:
            found.append((start, place))
            start = None
    return found


def _begins(ids: Ids, beginning: Ids) -> bool:
    return ids[: len(beginning)] == beginning


def _template(tokenizer: Any) -> Any:
    if tokenizer.chat_template is None:
        raise ModelError(
            "policy.model: its tokenizer has no chat template, but the data has conversations (or data.as_chat is set); "
            "use a model that was made for chat, set tokenizer.chat_template and save it beside the model, "
            "or write prompts as text"
        )
    return tokenizer.get_chat_template()


def _apply(turns: Sequence[Message], tokenizer: Any, **options: Any) -> dict[str, Any]:
    found = _rendered(turns, tokenizer, tokenize=True, return_dict=True, **options)
    return {**found, "input_ids": tuple(found["input_ids"])}


OF_TEMPLATES = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError, MemoryError)
"""What a template sets off that computes what cannot be; it comes with a model, and anybody may have written it."""


def _rendered(turns: Sequence[Message], tokenizer: Any, **options: Any) -> Any:
    from jinja2.exceptions import TemplateError

    _template(tokenizer)
    try:
        return tokenizer.apply_chat_template(list(turns), **options)
    except (TemplateError, *OF_TEMPLATES) as error:
        what = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise MessageError(f"the chat template refuses the conversation: {what}") from error
