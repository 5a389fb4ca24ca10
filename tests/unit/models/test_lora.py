"""Adapters: what is trained, what is saved, and that with them off the policy is the one of step 0."""

import json
from dataclasses import replace

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file

from tests.unit.models.roles_under_test import EVERYTHING, PRECISIONS, adapted, disturb, gradients, roles, rows
from trimtab.errors import ModelError
from trimtab.models import lora
from trimtab.models import policy as policies
from trimtab.models.settings import Lora


def test_the_policy_is_its_base_until_the_first_update():
    plain, with_adapter = roles(), roles(adapter=True)
    batch = rows()
    assert torch.equal(plain.forward(batch, EVERYTHING).log_probs, with_adapter.forward(batch, EVERYTHING).log_probs)


def test_adapters_depend_on_the_seed_alone_and_leave_other_random_numbers_as_they_are():
    def made(seed):
        torch.manual_seed(5)
        found = adapted(policies.load("builtin:tiny", seed=0).model, seed)
        return found.peft.state_dict(), torch.rand(1)

    (first, after), (second, _), (other, _) = made(1), made(1), made(2)
    torch.manual_seed(5)
    policies.load("builtin:tiny", seed=0)
    assert torch.equal(after, torch.rand(1))
    drawn = [name for name in first if "lora_A" in name]
    assert drawn
    assert all(torch.equal(first[n], second[n]) and not torch.equal(first[n], other[n]) for n in drawn)
    assert not any(first[name].any() for name in first if "lora_B" in name)


@pytest.mark.parametrize("critic", [None, "own", "shared"])
def test_only_the_adapter_and_the_critic_are_trained(critic):
    models = roles(adapter=True, critic=critic)
    names = set(models.named_parameters())
    assert {n for n in names if n.startswith("policy.")} == {n for n in names if "lora_" in n}
    assert set(gradients(models, rows())) == names
    values = [p for n, p in models.named_parameters().items() if n.startswith("value.")]
    whole = sum(p.numel() for p in models.model.model.parameters() if not p.requires_grad)
    assert sum(p.numel() for p in values) == {None: 0, "own": whole + 129, "shared": 129}[critic]
    assert sum(map(len, models.parameters().values())) == len(names)


@pytest.mark.parametrize("name", PRECISIONS)
def test_switched_off_it_is_the_reference_of_step_0_and_there_is_no_second_model(name):
    models, batch = roles(PRECISIONS[name], adapter=True), rows()
    before = models.freeze(batch, EVERYTHING)
    disturb(models)
    after = models.freeze(batch, EVERYTHING)
    assert torch.equal(before.ref_log_probs, before.old_log_probs)
    assert torch.equal(after.ref_log_probs, before.ref_log_probs)
    assert not torch.equal(after.old_log_probs, before.old_log_probs)
    assert torch.equal(models.forward(batch, EVERYTHING).log_probs, after.old_log_probs)
    assert models.reference.model is models.model
    assert all(p.requires_grad for p in models.named_parameters().values())


def test_a_checkpoint_holds_the_adapter_alone_and_it_comes_back_bit_for_bit(tmp_path):
    first, second = roles(adapter=True), roles(adapter=True)
    disturb(first)
    first.save(tmp_path)
    second.load(tmp_path)
    assert first.weights_sum() == second.weights_sum() != roles(adapter=True).weights_sum()
    assert torch.equal(first.forward(rows(), EVERYTHING).log_probs, second.forward(rows(), EVERYTHING).log_probs)
    there = {p.name for p in (tmp_path / "policy").iterdir()}
    assert {lora.WEIGHTS, lora.CONFIG, lora.BASE} <= there
    assert not any(name.startswith("model") for name in there)
    saved = load_file(tmp_path / "policy" / lora.WEIGHTS)
    assert sum(t.numel() for t in saved.values()) == sum(p.numel() for p in first.named_parameters().values())


def test_peft_itself_reads_what_is_saved(tmp_path):
    models = roles(adapter=True)
    disturb(models)
    models.save(tmp_path)
    base = policies.load("builtin:tiny", seed=0).model
    theirs = peft.PeftModel.from_pretrained(base, str(tmp_path / "policy")).eval()
    tokens = rows().tokens
    assert torch.equal(theirs(input_ids=tokens).logits, models.model(input_ids=tokens).logits)
    assert json.loads((tmp_path / "policy" / lora.CONFIG).read_text())["base_model_name_or_path"] == "builtin:tiny"


def test_equal_adapters_are_equal_files(tmp_path):
    for place in ("a", "b"):
        roles(adapter=True).save(tmp_path / place)
    for name in (lora.WEIGHTS, lora.CONFIG, lora.BASE):
        assert (tmp_path / "a" / "policy" / name).read_bytes() == (tmp_path / "b" / "policy" / name).read_bytes()


def test_an_adapter_on_a_base_with_other_weights_is_refused(tmp_path):
    models = roles(adapter=True)
    models.save(tmp_path)
    with pytest.raises(ModelError, match=r"policy\.model: builtin:tiny has other weights .*--fresh"):
        roles(adapter=True, seed=9).load(tmp_path)
    file = tmp_path / "policy" / lora.BASE
    file.write_text(json.dumps({**json.loads(file.read_text()), "seed": 9}))
    with pytest.raises(ModelError, match="other weights"):
        lora.write_merged(tmp_path / "policy", tmp_path / "merged")


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_merged_it_is_a_plain_directory_that_computes_the_same(tmp_path, name):
    models = roles(PRECISIONS[name], adapter=True)
    models.adapter.base = replace(models.adapter.base, dtype=name)
    disturb(models)
    models.save(tmp_path)
    lora.write_merged(tmp_path / "policy", tmp_path / "merged")
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    assert plain.dtype == PRECISIONS[name].dtype
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "merged").pad_token_id == 0
    assert not (tmp_path / "merged" / lora.CONFIG).exists()
    tokens = rows().tokens
    close = {"float32": 1e-4, "bfloat16": 0.3}[name]
    assert torch.allclose(plain(input_ids=tokens).logits, models.model(input_ids=tokens).logits, atol=close, rtol=close)


def test_auto_is_every_linear_layer_but_the_output_layer_and_a_list_is_taken_as_it_is():
    auto = {n.split(".")[-4] for n in roles(adapter=True).named_parameters()}
    assert auto == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    model = policies.load("builtin:tiny", seed=0).model
    adapted(model, target_modules=("q_proj", "v_proj"), rank=3)
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    assert {n.split(".")[-4] for n in trained} == {"q_proj", "v_proj"}
    assert sum(p.numel() for p in trained.values()) == 4 * 2 * 3 * (128 + 128)


def test_a_layer_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(ModelError, match=r"no layer is named qproj; there are .*q_proj"):
        adapted(policies.load("builtin:tiny", seed=0).model, target_modules=("q_proj", "qproj"))


def test_alpha_by_rank_is_how_much_an_adapter_counts():
    models = {alpha: roles() for alpha in (4.0, 8.0)}
    found = {}
    for alpha, made in models.items():
        made.adapter = adapted(made.model, alpha=alpha)
        disturb(made)
        layer = made.model.model.layers[0].self_attn.q_proj
        found[alpha] = layer.get_delta_weight(lora.ADAPTER)
    assert torch.allclose(2 * found[4.0], found[8.0])


def test_the_fingerprint_sees_one_weight_its_place_and_its_type():
    model = policies.load("builtin:tiny", seed=0).model
    before = lora.fingerprint(model)
    assert before == lora.fingerprint(policies.load("builtin:tiny", seed=0).model)
    weight = model.model.layers[0].self_attn.q_proj.weight
    other = model.model.layers[0].self_attn.k_proj.weight
    with torch.no_grad():
        kept, swapped = weight.clone(), other.clone()
        weight.copy_(swapped), other.copy_(kept)
        assert lora.fingerprint(model) != before
        weight.copy_(kept), other.copy_(swapped)
        assert lora.fingerprint(model) == before
        weight[0, 0] += 1e-6
    assert lora.fingerprint(model) != before
    assert lora.fingerprint(model.bfloat16()) != before


def test_the_defaults_are_in_reach_of_what_is_usual():
    assert (Lora().rank, Lora().alpha, Lora().dropout, Lora().target_modules) == (16, 32.0, 0.0, "auto")
