"""Rows laid end to end: fewer rows to compute, the same figures, and no row that sees another."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.models import test_architectures as architectures
from tests.unit.models.roles_under_test import EVERYTHING, disturb, gradients, roles, rows
from trimtab.errors import ModelError
from trimtab.models import builtin, packing, scoring
from trimtab.models import policy as policies
from trimtab.models.precision import Precision
from trimtab.models.reference import Reference
from trimtab.models.roles import InProcessModels
from trimtab.types import Need

WIDTHS = ((3, 4), (9, 17), (1, 2), (5, 30), (4, 20), (2, 5))
"""Prompt and completion; some rows are longer than the windows of the architectures that have one."""
PACKABLE = (
    "llama", "qwen2", "qwen3", "gpt2", "gemma3_text", "gemma2", "mistral", "falcon, alibi", "qwen3_moe", "cohere2",
    "exaone4",
)  # fmt: skip
REFUSED = {"bloom": "Bloom", "opt": "OPT", "mamba": "Mamba", "rwkv": "Rwkv"}


def seen_by(trunk, monkeypatch):
    """The shape of each pass over a trunk."""
    shapes, forward = [], trunk.forward

    def watched(*args, **more):
        shapes.append(tuple((args[0] if args else more["input_ids"]).shape))
        return forward(*args, **more)

    monkeypatch.setattr(trunk, "forward", watched)
    return shapes


@given(sizes=st.lists(st.integers(0, 12), max_size=20))
@settings(max_examples=60, deadline=None)
def test_every_row_is_laid_down_once_and_comes_back_as_it_was(sizes):
    width = max(sizes, default=0)
    tokens = torch.zeros(len(sizes), width, dtype=torch.int64)
    for row, size in enumerate(sizes):
        tokens[row, :size] = torch.arange(size) + 100 * (row + 1)
    bins = packing.bins_of(sizes, width)
    assert sorted(row for rows in bins for row in rows) == list(range(len(sizes)))
    assert all(sum(sizes[row] for row in rows) <= width for rows in bins)
    found = packing.packed(tokens, torch.tensor(sizes, dtype=torch.int64))
    if found is None:
        assert len(bins) == len(sizes) or not width
        return
    assert found.tokens.shape == found.positions.shape == (len(bins), width)
    back = found.apart(torch.stack([found.tokens, found.positions], 2))
    for row, size in enumerate(sizes):
        assert torch.equal(back[row, :size, 0], tokens[row, :size])
        assert torch.equal(back[row, :size, 1], torch.arange(size))


def test_the_padding_behind_is_a_row_of_its_own():
    found = packing.packed(torch.ones(3, 6, dtype=torch.int64), torch.tensor([6, 2, 1]))
    assert found.positions.tolist() == [[0, 1, 2, 3, 4, 5], [0, 1, 0, 0, 1, 2]]


def test_rows_that_fit_nowhere_are_left_as_they_stand():
    assert packing.packed(torch.ones(2, 4, dtype=torch.int64), torch.tensor([4, 3])) is None


@pytest.mark.parametrize("attention", ["default", "eager"])
@pytest.mark.parametrize("name", PACKABLE, ids=lambda name: name.replace(", ", "-"))
def test_log_probs_and_their_gradients_are_those_of_rows_by_themselves(name, attention, monkeypatch):
    model = architectures.configured(name)
    if attention == "eager":  # sdpa is chosen by itself where it can be
        model.set_attn_implementation(attention)
    trunk = policies.trunk_of(model)
    packing.refuse_what_mixes_rows(trunk, name)
    _, batch = architectures.a_batch(WIDTHS)
    shapes = seen_by(trunk, monkeypatch)
    found = {}
    for packs in (False, True):
        models = InProcessModels(model=model, tokenizer=builtin.tokenizer(), temperature=1.0, packing=packs)
        shapes.clear()
        policy = models.forward(batch, Need.ENTROPY)
        found[packs] = (policy, gradients_of(model, policy))
    assert shapes == [(3, 35)]
    torch.testing.assert_close(found[True][0].log_probs, found[False][0].log_probs, atol=1e-5, rtol=0)
    torch.testing.assert_close(found[True][0].entropy, found[False][0].entropy, atol=1e-5, rtol=0)
    largest = max(float(g.abs().max()) for g in found[False][1])
    for a, b in zip(found[True][1], found[False][1], strict=True):
        torch.testing.assert_close(a, b, atol=2e-6 * max(1.0, largest), rtol=0)


def gradients_of(model, policy):
    model.zero_grad()
    (policy.log_probs.sum() + policy.entropy.sum()).backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize(("name", "said"), REFUSED.items())
def test_an_architecture_that_mixes_rows_is_refused_by_name(name, said, monkeypatch):
    monkeypatch.setitem(architectures.ARCHITECTURES, "mamba", {})
    monkeypatch.setitem(architectures.ARCHITECTURES, "rwkv", {})
    trunk = policies.trunk_of(architectures.configured(name))
    with pytest.raises(ModelError, match=rf"data\.packing: true, but {said} does not keep packed rows apart: a token"):
        packing.refuse_what_mixes_rows(trunk, said)


def test_a_trunk_that_takes_no_positions_is_refused():
    class Trunk(torch.nn.Module):
        device, dtype, config = torch.device("cpu"), torch.float32, builtin.model(0).config

        def forward(self, input_ids, use_cache):
            raise AssertionError

    with pytest.raises(ModelError, match=r"it takes no positions; set it to false; llama, qwen2"):
        packing.refuse_what_mixes_rows(Trunk(), "Trunk")


@pytest.mark.parametrize(
    "precision", [Precision(), Precision(autocast=torch.bfloat16), Precision(dtype=torch.bfloat16)]
)
def test_a_model_in_two_bytes_is_judged_by_what_two_bytes_can_tell(precision):
    model = precision.cast(builtin.model(0).eval())
    with precision.passes(model.device):
        packing.refuse_what_mixes_rows(policies.trunk_of(model), "Llama")


@pytest.mark.parametrize("recomputed", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("adapter", [False, True], ids=["all weights", "adapter"])
@pytest.mark.parametrize("critic", [None, "own", "shared"])
def test_every_role_has_the_same_figures_and_gradients(critic, adapter, recomputed):
    batch = rows(count=8, width=9)
    found = []
    for packs in (False, True):
        models = roles(critic=critic, adapter=adapter, gradient_checkpointing=recomputed, packing=packs)
        if models.reference is None:
            models.reference = Reference(builtin.model(5).eval().requires_grad_(False), packing=packs)
        models.reference.packing = packs
        disturb(models)
        frozen, policy = models.freeze(batch, EVERYTHING), models.forward(batch, EVERYTHING)
        found.append((frozen, policy, models.js(batch), gradients(models, batch)))
    (frozen, policy, js, moved), (frozen_, policy_, js_, moved_) = found
    for name in ("old_log_probs", "ref_log_probs", "old_values", "bootstrap_values"):
        _same(getattr(frozen, name), getattr(frozen_, name))
    for name in ("log_probs", "entropy", "values"):
        _same(getattr(policy, name), getattr(policy_, name))
    _same(js, js_)
    assert moved.keys() == moved_.keys()
    for name, gradient in moved.items():
        assert float((gradient - moved_[name]).norm()) <= 1e-5 * max(1.0, float(gradient.norm())), name


def _same(a, b):
    assert (a is None) == (b is None)
    if a is not None:
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def test_the_scores_of_a_reward_model_are_the_same():
    loaded = scoring.load("builtin:tiny", seed=0)
    torch.nn.init.normal_(loaded.model.score.weight)
    batch = rows(count=8, width=9)
    found = [
        scoring.ScoringModels(model=loaded.model, tokenizer=loaded.tokenizer, packing=packs)
        .forward(batch, Need.SCORES)
        .scores
        for packs in (False, True)
    ]
    torch.testing.assert_close(*found, atol=1e-5, rtol=0)
    assert float(found[0].detach().std()) > 0.1


def test_a_row_alone_is_not_packed():
    batch = rows(count=1)
    assert torch.equal(*(roles(packing=packs).forward(batch, Need.NONE).log_probs for packs in (False, True)))
