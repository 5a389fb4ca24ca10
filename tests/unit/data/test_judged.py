"""Pairs and labelled rows as ids: the same rules as demonstrations, both sides of a pair treated alike."""

import json

import pytest
import torch

from tests.unit.data import templates
from trimtab.data import collate, judged, preferences, rows, sources
from trimtab.data.order import Order
from trimtab.data.prompts import Limits
from trimtab.errors import DataError
from trimtab.models.builtin import tokenizer

ASK = {"role": "user", "content": "hi"}


def limits(**changed):
    return Limits(**{"max_prompt_length": 20, "max_length": 40, "long_prompts": "drop", **changed})


def encoder(limit=None, of=None, **options):
    return judged.Encoder(tokenizer=of or tokenizer(), limits=limit or limits(), **options)


def read(required, *made):
    return rows.parse("\n".join(map(json.dumps, made)).encode(), "a.jsonl", {}, required)


def pairs(*made, limit=None, of=None):
    found = [{"prompt": p, "chosen": c, "rejected": r, **more} for p, c, r, more in made]
    return judged.pairs(read(preferences.PAIR, *found), encoder(limit, of))


def test_a_side_is_tokenised_apart_and_ends_once():
    found, left = pairs(("2+2=", "4", "5", {}))
    ids = tokenizer()
    assert found[0].chosen.completion == (*ids("4").input_ids, ids.eos_token_id)
    assert found[0].rejected.completion == (*ids("5").input_ids, ids.eos_token_id)
    assert found[0].chosen.prompt.tokens == found[0].rejected.prompt.tokens == tuple(ids("2+2=").input_ids)
    assert str(left) == ""


def test_pairs_that_teach_nothing_are_left_out_and_counted():
    found, left = pairs(
        ("a=", "1", "2", {}), ("b=", "3", "3", {}), ("c=", "", "2", {}), ("d=", "1", "", {}), ("e=", "1", "2" * 60, {})
    )
    assert [pair.chosen.prompt.id for pair in found] == [0]
    assert str(left) == "4 left out: 1 with equal sides, 2 without an answer, 1 too long"


def test_an_answer_is_never_cut_and_a_prompt_is_cut_for_both_sides():
    tight = limits(max_prompt_length=8, max_length=16, long_prompts="truncate")
    found, left = pairs(("x" * 30, "1" * 7, "2", {}), ("y" * 30, "1", "2" * 8, {}), limit=tight)
    assert len(found) == 1
    assert len(found[0].chosen.prompt.tokens) == 8
    assert found[0].chosen.prompt.tokens == found[0].rejected.prompt.tokens
    assert (len(found[0].chosen.completion), len(found[0].rejected.completion)) == (8, 2)
    assert str(left) == "1 left out: 1 too long; 2 cut"


def test_a_side_without_room_is_refused_if_asked_so():
    with pytest.raises(DataError, match=r"a.jsonl:1: the completion has 61 tokens"):
        pairs(("e=", "1", "2" * 60, {}), limit=limits(long_prompts="refuse"))


def test_no_pair_left_says_why():
    with pytest.raises(DataError, match=r"a.jsonl:1: no row is left; 2 left out: 2 with equal sides"):
        pairs(("b=", "3", "3", {}), ("c=", "4", "4", {}))


def test_of_a_conversation_only_what_follows_the_common_prompt_is_trained_on():
    chat = templates.tokenizer(templates.CHATML)
    answers = [{"role": "assistant", "content": text} for text in ("yo", "a", "b")]
    made = {
        "chosen": [ASK, answers[0], ASK, answers[1]],
        "rejected": [ASK, answers[0], ASK, answers[2], ASK, answers[1]],
    }
    ends = frozenset({chat.convert_tokens_to_ids("<|im_end|>")})
    found, _ = judged.pairs(
        read(preferences.PAIR, made), encoder(limits(max_prompt_length=200, max_length=400), chat, end_ids=ends)
    )
    sides = found[0].chosen, found[0].rejected
    trained = [chat.decode([t for t, on in zip(s.completion, s.mask, strict=True) if on]) for s in sides]
    assert "yo" in chat.decode(sides[0].prompt.tokens)
    assert [text.replace("<|im_end|>", "|") for text in trained] == ["a|", "b|a|"]
    assert sides[0].prompt.tokens == sides[1].prompt.tokens


def test_a_batch_has_chosen_and_rejected_rows_in_turn():
    found, _ = pairs(("a=", "1", "22", {"margin": 2}), ("b=", "3", "4", {}))
    batch = collate.of_pairs(found, [7, 3])
    assert batch.pair_ids.tolist() == batch.group_ids.tolist() == [7, 7, 3, 3]
    assert batch.row_ids.tolist() == [7 << 16, (7 << 16) + 1, 3 << 16, (3 << 16) + 1]
    assert batch.prompt_ids.tolist() == [0, 0, 1, 1]
    assert batch.is_chosen.tolist() == [True, False, True, False]
    assert (batch.margins.dtype, batch.margins.tolist()) == (torch.float64, [2.0, 2.0, 0.0, 0.0])
    assert batch.completion_lengths.tolist() == [2, 3, 2, 2]


def test_without_margins_in_the_data_there_are_none():
    assert collate.of_pairs(pairs(("a=", "1", "2", {}))[0], [0]).margins is None


def test_labelled_rows_stand_by_themselves():
    made = [{"prompt": "a=", "completion": text, "label": text == "1"} for text in ("1", "2", "")]
    found, left = judged.labelled(read(preferences.LABELLED, *made), encoder())
    batch = collate.of_labelled(found, [4, 5])
    assert batch.is_chosen.tolist() == [True, False]
    assert (batch.group_ids.tolist(), batch.row_ids.tolist()) == ([4, 5], [4 << 16, 5 << 16])
    assert batch.pair_ids is None
    assert str(left) == "1 left out: 1 without an answer"
    assert judged.counts(found) == "1 desirable, 1 undesirable"


def test_a_source_shows_both_sides_of_a_pair_and_ranks_share_pairs():
    found, _ = pairs(*[(f"{n}=", "1", "2", {}) for n in range(8)])
    ranks = [
        sources.ReadingSource(found, Order(8, seed=0, shuffle=True), sources.PAIRS, rows_per_step=4, rank=r, ranks=2)
        for r in range(2)
    ]
    alone = sources.ReadingSource(found, Order(8, seed=0, shuffle=True), sources.PAIRS, rows_per_step=4)
    ids = [source.next_batch().prompt_ids.tolist() for source in ranks]
    assert all(part[::2] == part[1::2] for part in ids)
    assert sorted(ids[0] + ids[1]) == sorted(alone.next_batch().prompt_ids.tolist())
    assert [sample.label for sample in alone.samples()] == ["chosen", "rejected"] * 4
