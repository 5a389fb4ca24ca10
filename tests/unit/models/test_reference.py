"""The frozen reference: its own precision, where its weights lie, and what is kept of it."""

import pytest
import torch

from tests.unit.models.roles_under_test import EVERYTHING, disturb, roles, rows
from trimtab.errors import ModelError
from trimtab.models import builtin
from trimtab.models import policy as policies
from trimtab.models.precision import Precision
from trimtab.models.reference import Reference, ReferenceCache, fingerprint_of, keys_of


def reference(**more):
    return Reference(policies.load("builtin:tiny", seed=0).model, **more)


def log_probs(found, batch):
    return found.log_probs(batch, vocabulary=99, temperature=1.0)


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
    found = reference(cache=ReferenceCache("f"))
    seen = counting(found)
    batch = rows(count=6)
    first = log_probs(found, batch)
    assert torch.equal(first, log_probs(found, batch))
    shuffled = torch.tensor([4, 1, 0])
    some = batch.rows(shuffled)
    assert torch.equal(log_probs(found, some), first[shuffled, : some.loss_mask.shape[1]])
    assert seen == [6]


def test_of_a_batch_with_new_rows_only_the_new_ones_are_computed():
    found = reference(cache=ReferenceCache("f"))
    seen = counting(found)
    batch = rows(count=6)
    log_probs(found, batch.rows(torch.tensor([0, 2])))
    whole = log_probs(found, batch)
    assert seen == [2, 4]
    assert torch.allclose(whole, log_probs(reference(), batch), atol=1e-5)


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


def test_what_is_kept_is_bounded_and_the_rest_computed_each_time():
    batch = rows(count=6)
    sizes = [4 * n for n in batch.completion_lengths.tolist()]
    found = reference(cache=ReferenceCache("f", max_bytes=sum(sizes[:3])))
    seen = counting(found)
    first = log_probs(found, batch)
    again = log_probs(found, batch)
    assert found.cache.bytes <= found.cache.max_bytes
    assert seen[0] == 6
    assert 0 < seen[1] <= 3
    assert torch.allclose(first, again, atol=1e-5)


def test_a_restored_cache_gives_the_same_bits_without_a_pass(tmp_path):
    first, second = reference(cache=ReferenceCache("f")), reference(cache=ReferenceCache("f"))
    batch = rows(count=6)
    figures = log_probs(first, batch)
    first.cache.save(tmp_path)
    second.cache.load(tmp_path)
    seen = counting(second)
    assert torch.equal(log_probs(second, batch), figures)
    assert seen == []
    assert second.cache.bytes == first.cache.bytes


def test_an_empty_cache_is_saved_and_read(tmp_path):
    ReferenceCache("f").save(tmp_path)
    cache = ReferenceCache("f")
    cache.put("00" * 16, torch.ones(2))
    cache.load(tmp_path)
    assert (cache.rows, cache.bytes) == ({}, 0)


def test_a_cache_of_another_reference_is_refused(tmp_path):
    cache = ReferenceCache("a" * 64)
    cache.put("00" * 16, torch.ones(2))
    cache.save(tmp_path)
    with pytest.raises(ModelError, match=r"reference\.cache: fingerprint mismatch"):
        ReferenceCache("b" * 64).load(tmp_path)


def test_the_fingerprint_sees_weights_tokenizer_precision_lengths_and_temperature():
    tokenizer = builtin.tokenizer()
    base = {"precision": Precision(), "facts": {"max_length": 64, "temperature": 1.0}}
    other = builtin.tokenizer()
    other.chat_template = "{{ messages }}"
    found = [
        fingerprint_of("w", tokenizer, **base),
        fingerprint_of("v", tokenizer, **base),
        fingerprint_of("w", other, **base),
        fingerprint_of("w", tokenizer, **{**base, "precision": Precision(dtype=torch.bfloat16)}),
        fingerprint_of("w", tokenizer, **{**base, "facts": {"max_length": 65, "temperature": 1.0}}),
        fingerprint_of("w", tokenizer, **{**base, "facts": {"max_length": 64, "temperature": 0.9}}),
    ]
    assert len(set(found)) == len(found)
    assert found[0] == fingerprint_of("w", builtin.tokenizer(), **base)


def test_the_cache_is_part_of_a_checkpoint(tmp_path):
    def made():
        model = policies.load("builtin:tiny", seed=4).model
        return roles(reference=Reference(model.requires_grad_(False), cache=ReferenceCache("f")))

    first, second = made(), made()
    before = first.freeze(rows(), EVERYTHING)
    disturb(first)
    first.save(tmp_path)
    second.load(tmp_path)
    assert len(second.reference.cache.rows) == len(rows())
    assert torch.equal(second.freeze(rows(), EVERYTHING).ref_log_probs, before.ref_log_probs)


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
