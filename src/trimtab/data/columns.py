"""A column that rows lack, and which of those that they have was most likely meant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from trimtab.data.messages import MessageError
from trimtab.errors import nearest

OFTEN: Mapping[str, tuple[str, ...]] = {
    "prompt": ("question", "query", "instruction", "problem", "input", "user"),
    "completion": ("response", "output", "answer", "solution", "target"),
    "messages": ("conversations", "conversation", "dialogue", "dialog", "chat"),
    "chosen": ("accepted", "preferred", "better", "winner", "win"),
    "rejected": ("dispreferred", "worse", "loser", "lose"),
    "label": ("desirable", "is_desirable", "is_good", "good", "thumbs_up"),
    "answer": ("ground_truth", "gold", "solution", "target", "final_answer", "reference"),
}
"""Our name: what others call such a column, the likeliest first."""
MOST_SHOWN = 12


class ColumnError(MessageError):
    """A row lacks a column. It is said once of a file, with how many rows lack it."""


def likely(name: str, there: Iterable[str]) -> str | None:
    """Which of the columns was most likely meant by one of ours.

    >>> likely("prompt", ["Prompt", "gold"]), likely("answer", ["question", "gold"]), likely("label", ["text"])
    ('Prompt', 'gold', None)
    """
    free = {column.lower(): column for column in there if column not in OFTEN}
    found = nearest(name, free) or next((other for other in OFTEN.get(name, ()) if other in free), None)
    return None if found is None else free[found]


def proposal(names: Sequence[str], there: Sequence[str]) -> str:
    """The setting that names those columns: `data.columns: {prompt: question}`."""
    pairs = [f"{name}: {likely(name, there) or '...'}" for name in names]
    return f"data.columns: {{{', '.join(pairs)}}}"


def missing(names: Sequence[str], there: Sequence[str], *, called: Mapping[str, str]) -> ColumnError:
    """The fault of a row without some columns.

    Args:
        names: ours.
        there: the columns that the row has, as the file calls them.
        called: our name: the file's, as `data.columns` has it.

    >>> fault = missing(["prompt"], ["question"], called={})
    >>> print(fault.what, "|", fault.hint)
    no column `prompt`, found 'question' | name the column that holds it: data.columns: {prompt: question}
    """
    found = ", ".join(map(repr, there[:MOST_SHOWN])) or "none"
    more = f" and {len(there) - MOST_SHOWN} more" if len(there) > MOST_SHOWN else ""
    what = f"no column {' and no '.join(f'`{called.get(name, name)}`' for name in names)}, found {found}{more}"
    is_dialogue = set(names) == {"prompt", "completion"} and likely("messages", there) is not None
    wanted = ["messages"] if is_dialogue else names
    them = "columns that hold them" if len(wanted) > 1 else "column that holds it"
    return ColumnError(what, f"name the {them}: {proposal(wanted, there)}")
