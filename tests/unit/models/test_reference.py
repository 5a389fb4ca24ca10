"""The frozen reference: its own precision, where its weights lie, and what is kept of it."""

import pytest
import torch

from tests.unit.models.roles_under_test import EVERYTHING, disturb, roles, rows
from trimtab.models import builtin
from trimtab.models import policy as policies
from trimtab.models.precision import Precision
from trimtab.models.reference import Reference, facts_of, keys_of
from trimtab.types import Need

READ = EVERYTHING | Need.PAIRS


class Kept(dict):
    """What is kept, in memory; how often others were asked is counted."""

    asked = flushed = 0

    def put(self, key, figures):
        self[key] = figures.clone()

    def refresh(self):
        self.asked += 1

    def flush(self):
        self.flushed += 1


def reference(**more):
    return Reference(policies.load("builtin:tiny", seed=0).model, **more)


def log_probs(found, batch, **more):
    return found.log_probs(batch, vocabulary=99, temperature=1.0, **more)


def counting(found):
    """How many rows each pass had, as passes are made."""
    seen, computed = [], found._computed

    def counted(batch, *rest):
        seen.append(len(batch))
        return computed(batch, *rest)

    found._computed = counted
    return seen


def test_a_reference_in_bfloat16_is_close_to_one_in_float32_and_half_as_large():
    model = policies.load("builtin:tiny", seed=0).model
    full, half = Reference(model), reference(precision=Precision(dtype=torch.bfloat16))
    half.model.to(torch.bfloat16)
    batch = rows(count=32)
    difference = (log_probs(full, batch) - log_probs(half, batch))[batch.loss_mask].abs()
    assert 0 < difference.mean() < 0.02
    assert log_probs(half, batch).dtype == torch.float32


def test_rows_met_again_are_not_computed_again_and_give_the_same_bits():
    found = reference(cache=Kept())
    seen = counting(found)
    batch = rows(count=6)
    first = log_probs(found, batch, is_read=True)
    assert torch.equal(first, log_probs(found, batch, is_read=True))
    shuffled = torch.tensor([4, 1, 0])
    some = batch.rows(shuffled)
    assert torch.equal(log_probs(found, some, is_read=True), first[shuffled, : some.loss_mask.shape[1]])
    assert seen == [1] * 6
    assert found.cache.asked == 1  # of rows that are all known nobody else is asked


def test_of_a_batch_with_new_rows_only_the_new_ones_are_computed():
    found = reference(cache=Kept())
    seen = counting(found)
    batch = rows(count=6)
    log_probs(found, batch.rows(torch.tensor([0, 2])), is_read=True)
    whole = log_probs(found, batch, is_read=True)
    assert seen == [1] * 6
    assert torch.allclose(whole, log_probs(reference(), batch), atol=1e-5)


@pytest.mark.parametrize("cache", [None, Kept()], ids=["without", "with"])
def test_the_figures_of_a_row_that_is_read_do_not_depend_on_what_it_is_computed_beside(cache):
    batch = rows(count=16, width=40)
    whole = log_probs(reference(cache=cache), batch, is_read=True)
    for row in range(len(batch)):
        alone = batch.rows(torch.tensor([row]))
        found = log_probs(reference(), alone, is_read=True)
        assert torch.equal(found[0], whole[row, : found.shape[1]])


def test_a_pass_of_an_evaluation_is_computed_as_it_stands_and_is_another_thing_than_its_rows():
    found = reference(cache=Kept())
    seen = counting(found)
    batch = rows(count=6, width=30)
    first = log_probs(found, batch, is_read=True, is_evaluated=True)
    assert torch.equal(first, log_probs(reference(), batch))
    assert torch.equal(first, log_probs(found, batch, is_read=True, is_evaluated=True))
    assert seen == [6]
    log_probs(found, batch.rows(torch.tensor([0, 1, 2])), is_read=True, is_evaluated=True)
    log_probs(found, batch, is_read=True)
    assert seen == [6, 3, *[1] * 6]


def test_sampled_rows_are_computed_together_and_not_kept():
    found = reference(cache=Kept())
    seen = counting(found)
    log_probs(found, rows(count=6))
    assert seen == [6]
    assert not found.cache


def test_on_a_device_that_promises_no_equal_bits_rows_that_are_read_are_computed_together(monkeypatch):
    found = reference(cache=Kept())
    seen = counting(found)
    monkeypatch.setattr(found, "device", torch.device("meta"))
    first = log_probs(found, rows(count=6), is_read=True)
    assert seen == [6]
    assert torch.equal(first, log_probs(found, rows(count=6), is_read=True))
    assert seen == [6]


def test_without_a_cache_rows_are_computed_each_time():
    found = reference()
    seen = counting(found)
    log_probs(found, rows(), is_read=True), log_probs(found, rows(), is_read=True)
    assert len(seen) == 2 * len(rows())


@pytest.mark.parametrize("change", ["token", "prompt length", "mask"])
def test_a_row_that_was_made_in_another_way_is_another_row(change):
    a, b = rows(), rows()
    if change == "token":
        b.tokens[0, 0] += 1
    elif change == "prompt length":
        b.prompt_lengths[0] += 1
    else:
        b.loss_mask[0, 0] = False
    first, second = keys_of(a), keys_of(b)
    assert first[0] != second[0]
    assert first[1:] == second[1:]


def test_what_a_row_is_named_does_not_depend_on_its_padding():
    batch = rows()
    assert keys_of(batch) == [keys_of(batch.rows(torch.tensor([row])))[0] for row in range(len(batch))]


def test_the_facts_see_weights_tokenizer_template_precision_and_settings():
    model, tokenizer = builtin.model(0), builtin.tokenizer()
    base = {"precision": Precision(), "settings": {"sampling.max_length": 64, "temperature": 1.0}}
    template, words = builtin.tokenizer(), builtin.tokenizer()
    template.chat_template = "{{ messages }}"
    words.add_tokens(["word"])
    other = builtin.model(0)
    other.config._attn_implementation = "eager"
    found = {
        "none": facts_of(model, "w", tokenizer, **base),
        "weights": facts_of(model, "v", tokenizer, **base),
        "chat template": facts_of(model, "w", template, **base),
        "tokenizer": facts_of(model, "w", words, **base),
        "precision": facts_of(model, "w", tokenizer, **{**base, "precision": Precision(dtype=torch.bfloat16)}),
        "temperature": facts_of(
            model, "w", tokenizer, **{**base, "settings": {**base["settings"], "temperature": 0.9}}
        ),
        "attention": facts_of(other, "w", tokenizer, **base),
    }
    for name, facts in found.items():
        assert [key for key in facts if facts[key] != found["none"][key]] == ([] if name == "none" else [name])
    assert found["none"] == facts_of(builtin.model(0), "w", builtin.tokenizer(), **base)


def test_no_checkpoint_holds_what_is_kept_and_at_the_end_it_is_made_durable(tmp_path):
    model = policies.load("builtin:tiny", seed=4).model
    models = roles(reference=Reference(model.requires_grad_(False), cache=Kept()))
    before = models.freeze(rows(), READ).ref_log_probs
    disturb(models)
    models.save(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["policy"]
    assert torch.equal(models.freeze(rows(), READ).ref_log_probs, before)
    models.close()
    assert models.reference.cache.flushed == 1


def test_offloaded_weights_come_for_a_pass_and_go_when_the_policy_is_trained(monkeypatch):
    found = reference()
    moves = []
    monkeypatch.setattr(found.model, "to", lambda place: moves.append(str(place)))
    found.device, found.is_offloaded, found._is_there = torch.device("meta"), True, False
    monkeypatch.setattr(found.precision.__class__, "passes", lambda *_: __import__("contextlib").nullcontext())
    batch = rows()
    log_probs(found, batch), log_probs(found, batch)
    assert moves == ["meta"]
    found.rest(), found.rest()
    assert moves == ["meta", "cpu"]
    models = roles(reference=found)
    log_probs(found, batch)
    models.forward(batch, EVERYTHING)
    assert moves == ["meta", "cpu", "meta", "cpu"]


def test_on_a_cpu_nothing_is_moved():
    found = reference(offload=True)
    assert not found.is_offloaded
    found.rest()
    assert log_probs(found, rows()).any()
