"""How good a data file is: what stands in it twice, contradicts itself, is empty, cut off, or lopsided.

One pass over the rows, which keeps hashes and lengths, about 300 bytes a row, and no text.
"""

from __future__ import annotations

import hashlib
import statistics
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trimtab.data import near
from trimtab.data.annotators import Kappa, kappa
from trimtab.data.preferences import OTHER_NAMES, SIDES
from trimtab.data.rows import Row

EXAMPLES = 3
"""Places that are named for each finding."""
BYTES_PER_TOKEN = 4.0
"""Of UTF-8, in the estimate of tokens."""
MOST_VALUES = 20
"""A column with more values is no scene and no label."""
LONG = 200
"""Characters; a shorter text without a closing mark is not called cut off."""
OWN = frozenset({"prompt", "completion", "messages", "margin", *SIDES, *OTHER_NAMES.values()})
"""Columns that are no scene."""


@dataclass(slots=True, kw_only=True)
class Found:
    """How often something was met, and where at first."""

    count: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, example: str) -> None:
        self.count += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(example)


@dataclass(slots=True, kw_only=True)
class Quality:
    """What was found in a file."""

    kind: str
    rows: int = 0
    prompts: int = 0
    """Distinct ones."""
    tokens: int = 0
    """An estimate of all tokens: bytes / 4."""
    duplicates: Found = field(default_factory=Found)
    """Rows that stand in the file before, word for word (by the same annotator, if that is said)."""
    near: Found | None = None
    """Other rows that nearly stand in it before; None: not looked for."""
    contradictions: Found = field(default_factory=Found)
    """The same pair the other way round, or the same completion with the other label."""
    equal: Found = field(default_factory=Found)
    """Pairs of which both sides are the same."""
    empty: Found = field(default_factory=Found)
    """Rows with a side of which nothing is there but white space."""
    cut_off: Found = field(default_factory=Found)
    """Rows with a long side that ends within a word: a guess."""
    leaked: Found | None = None
    """Rows whose prompt is in the other file; None: there is none."""
    lengths: dict[str, array[int]] = field(default_factory=dict)
    """Characters of each row's prompt, completion, chosen, rejected."""
    shares: dict[str, Counter[str]] = field(default_factory=dict)
    """Of each column with few values, how often each is met."""
    agreement: Kappa | None = None
    """None unless rows say who judged, and two judged the same."""

    def length_bias(self) -> tuple[float, float] | None:
        """Of pairs with sides of different lengths, the share whose chosen side is the longer one; and by how many
        characters it is longer, on average over all pairs. None without any."""
        if self.kind != "pairs":
            return None
        differences = [c - r for c, r in zip(self.lengths["chosen"], self.lengths["rejected"], strict=True)]
        unequal = [difference for difference in differences if difference]
        if not unequal:
            return None
        return sum(difference > 0 for difference in unequal) / len(unequal), statistics.fmean(differences)


def quality(
    rows: Sequence[Row],
    kind: str,
    *,
    against: Iterable[Row] | None = None,
    looks_near: bool = False,
    annotator: str = "annotator",
) -> Quality:
    """What is to be said about rows that were read as that kind (`formats.KINDS`).

    Args:
        rows: checked.
        kind: what they were read as.
        against: rows of another file, of which no prompt should be in this one.
        looks_near: look for near duplicates too, which takes several times as long.
        annotator: the column that says who judged.
    """
    sides = {"prompts": (), "pairs": SIDES}.get(kind, ("completion",))
    found = Quality(kind=kind, lengths={name: array("I") for name in ("prompt", *sides)})
    found.leaked = None if against is None else Found()
    look = _Look(
        found=found,
        rows=rows,
        annotator=annotator,
        elsewhere=frozenset(digest(normalised(text_of(row.values["prompt"]))) for row in against or ()),
        signatures=near.Signatures() if looks_near else None,
    )
    found.near = Found() if looks_near else None
    for number, row in enumerate(rows):
        look.at(number, row)
    found.rows, found.prompts, found.tokens = len(rows), len(look.prompts), round(look.size / BYTES_PER_TOKEN)
    found.agreement = kappa(list(look.votes.values()))
    found.shares = {name: counts for name, counts in sorted(found.shares.items()) if len(counts) <= MOST_VALUES}
    return found


def text_of(value: Any) -> str:
    """Text as it is, messages as one text."""
    if isinstance(value, list):
        return "\n".join(f"{turn['role']}: {turn['content']}" for turn in value)
    return str(value)


def sides_of(values: Mapping[str, Any], kind: str) -> dict[str, str]:
    """Name of a row's answer -> its text; of a conversation everything behind the prompt."""
    if kind == "pairs":
        return {side: _answer(values[side]) for side in SIDES}
    if kind == "prompts":
        return {}
    is_whole = "messages" in values and "completion" not in values
    return {"completion": _answer(values["messages"][len(values["prompt"]) :] if is_whole else values["completion"])}


def _answer(value: Any) -> str:
    """Without the role, if it is one turn."""
    return str(value[0]["content"]) if isinstance(value, list) and len(value) == 1 else text_of(value)


def digest(*texts: str) -> int:
    """64 bits; equal only for the same texts in the same order, for all that is likely."""
    found = hashlib.blake2b(digest_size=8)
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        found.update(b"%d:" % len(data))
        found.update(data)
    return int.from_bytes(found.digest(), "little")


def normalised(text: str) -> str:
    """Without regard to capitals and white space: prompts that are equal so ask the same."""
    return " ".join(text.casefold().split())


def looks_cut_off(text: str) -> bool:
    """
    >>> looks_cut_off("word " * 50 + "and th"), looks_cut_off("word " * 50 + "end."), looks_cut_off("short")
    (True, False, False)
    """
    return len(text) > LONG and (text[-1].isalpha() or text[-1] in ",，、")


@dataclass(slots=True, kw_only=True)
class _Look:
    """What one pass remembers."""

    found: Quality
    rows: Sequence[Row]
    annotator: str
    elsewhere: frozenset[int]
    signatures: near.Signatures | None
    size: int = 0
    """Of all texts, in bytes."""
    prompts: set[int] = field(default_factory=set)
    first: dict[int, int] = field(default_factory=dict)
    """What a row says -> the first row that says it."""
    texts: set[int] = field(default_factory=set)
    """Rows' texts, if near duplicates are looked for."""
    judged: dict[int, int] = field(default_factory=dict)
    """What was judged and how -> the first row that says so."""
    votes: dict[int, dict[str, str]] = field(default_factory=dict)
    """What was judged -> who -> the judgement."""

    def at(self, number: int, row: Row) -> None:
        found, values = self.found, row.values
        prompt, sides = text_of(values["prompt"]), sides_of(values, self.found.kind)
        who, label = values.get(self.annotator), values.get("label")
        for name, text in {"prompt": prompt, **sides}.items():
            found.lengths[name].append(len(text))
            self.size += len(text) if text.isascii() else len(text.encode())
        key = digest(normalised(prompt))
        self.prompts.add(key)
        if found.leaked is not None and key in self.elsewhere:
            found.leaked.add(row.place)
        said = digest(prompt, *sides.values())
        earlier = self.first.setdefault(digest(f"{said} {label!r} {who!r}"), number)
        if earlier != number:
            found.duplicates.add(f"{row.place} repeats {self.rows[earlier].place}")
        self._sides(row, sides)
        self._judgement(number, row, prompt, sides, who)
        self._shares(values)
        if self.signatures is not None and found.near is not None:
            like = self.signatures.add("\n".join((prompt, *sides.values())))
            if like is not None and said not in self.texts:
                found.near.add(f"{row.place} is nearly {self.rows[like].place}")
            self.texts.add(said)

    def _sides(self, row: Row, sides: Mapping[str, str]) -> None:
        found = self.found
        empty = [name for name, text in sides.items() if not text.strip()]
        cut = [name for name, text in sides.items() if looks_cut_off(text)]
        if empty:
            found.empty.add(f"{row.place} {' and '.join(empty)}")
        if cut:
            found.cut_off.add(f"{row.place} {' and '.join(cut)}: ...{sides[cut[0]][-20:]!r}")
        if found.kind == "pairs" and sides["chosen"] == sides["rejected"]:
            found.equal.add(row.place)

    def _judgement(self, number: int, row: Row, prompt: str, sides: Mapping[str, str], who: Any) -> None:
        if self.found.kind == "pairs":
            both = sorted(sides.values())
            key, judgement = digest(prompt, *both), both[0] == sides["chosen"]
            if both[0] == both[1]:
                return
        elif self.found.kind == "labels":
            key, judgement = digest(prompt, sides["completion"]), row.values["label"]
        else:
            return
        self.judged.setdefault(2 * key + judgement, number)
        other = self.judged.get(2 * key + (not judgement))
        if other is not None:
            self.found.contradictions.add(f"{row.place} against {self.rows[other].place}")
        if who is not None:
            self.votes.setdefault(key, {})[str(who)] = str(judgement)

    def _shares(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            if name in OWN or not isinstance(value, str | int | bool):
                continue
            counts = self.found.shares.setdefault(name, Counter())
            if len(counts) <= MOST_VALUES:  # else the column has too many values, and stays as it is
                counts[str(value)[:60].encode("utf-8", "replace").decode()] += 1
