"""Rows that are tokenised again when their turn comes give what they gave at first; only the newest stay in memory."""

import json

import pytest

from trimtab.data import formats, judged, kept, rows
from trimtab.data.prompts import Limits, demonstrations, prompts
from trimtab.models import builtin

COUNT = 40


@pytest.fixture
def tokenizer():
    return builtin.tokenizer()


def read(kind):
    made = [
        {
            "prompt": f"{n}+{n}=" + "1" * (n % 8),
            "completion": f"{2 * n}",
            "chosen": f"{2 * n}",
            "rejected": f"{2 * n + 1}" if n % 5 else f"{2 * n}",
            "label": bool(n % 3),
        }
        for n in range(COUNT)
    ]
    lines = "\n".join(map(json.dumps, made)).encode()
    return rows.parse(lines, "a.jsonl", {}, formats.REQUIRED[kind])


def made(kind, tokenizer, what):
    limits = Limits(max_prompt_length=9, max_length=16, long_prompts=what)
    if kind == "prompts":
        return prompts(read(kind), tokenizer, limits)
    if kind == "demonstrations":
        return demonstrations(read(kind), tokenizer, limits, tokenizer.eos_token_id)
    encoder = judged.Encoder(tokenizer=tokenizer, limits=limits)
    return (judged.pairs if kind == "pairs" else judged.labelled)(read(kind), encoder)


@pytest.mark.parametrize("what", ["drop", "truncate"])
@pytest.mark.parametrize("kind", formats.KINDS)
def test_what_is_made_again_is_what_was_made_at_first(tokenizer, monkeypatch, kind, what):
    at_once, left = made(kind, tokenizer, what)
    first = list(at_once)
    assert len(first) == COUNT - left.dropped
    assert left.truncated == 0 if what == "drop" else left.truncated > 0
    monkeypatch.setattr(kept, "CACHED", 2)
    again, _ = made(kind, tokenizer, what)
    assert list(again) == first
    assert again[::-1] == first[::-1]
    assert again[-1] == first[-1]
    assert len(again._newest) == 2


def test_only_so_many_rows_stay_and_those_are_not_made_again(monkeypatch):
    monkeypatch.setattr(kept, "CACHED", 2)
    asked = []
    found = kept.Kept(list("abcd"), lambda row: asked.append(row) or row.upper())
    for number in (0, 2, 3):
        found.keep(number, "abcd"[number].upper())
    assert (list(found), asked) == (["A", "C", "D"], ["d"])
    assert (found[2], found[1], found[0], asked) == ("D", "C", "A", ["d", "a"])
    assert list(found.rows()) == ["a", "c", "d"]
    with pytest.raises(IndexError):
        found[3]


def test_labels_are_counted_without_tokenising_again(tokenizer, monkeypatch):
    monkeypatch.setattr(kept, "CACHED", 0)
    found, _ = made("labels", tokenizer, "truncate")
    found._make = None
    assert judged.counts(found) == "26 desirable, 14 undesirable"
