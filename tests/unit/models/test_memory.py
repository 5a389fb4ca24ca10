"""What is said of a model and of a run's memory before anything is loaded, against models that are really built."""

from dataclasses import replace

import pytest
import torch
import transformers

from tests.unit.models import roles_under_test as roles
from trimtab.errors import ModelError
from trimtab.models import builtin, memory
from trimtab.models import policy as policies
from trimtab.models.settings import Lora, PolicyModel, ReferenceModel
from trimtab.models.value import Critic

TIED = transformers.Qwen2Config(
    vocab_size=300, hidden_size=64, intermediate_size=160, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, tie_word_embeddings=True, max_position_embeddings=128,
)  # fmt: skip
ABSOLUTE = transformers.GPT2Config(
    vocab_size=200, n_embd=48, n_layer=2, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=0
)
CONFIGS = {"llama": transformers.LlamaConfig(**builtin.CONFIG), "tied qwen": TIED, "gpt2": ABSOLUTE}


def sizes_of(config, folder):
    """From a directory that holds config.json and nothing else."""
    config.save_pretrained(folder)
    return memory.sizes(str(folder))


def built(config):
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def count(module):
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_are_counted_exactly_from_config_json_alone(tmp_path, name):
    found, model = sizes_of(CONFIGS[name], tmp_path), built(CONFIGS[name])
    assert [p.name for p in tmp_path.iterdir() if "safetensors" in p.name] == []
    assert found["parameters"] == count(model)
    assert found["trunk_parameters"] + found["hidden"] + 1 == count(Critic.own(model))
    assert found["architecture"] == type(model).__name__
    assert found["vocabulary"] == model.get_output_embeddings().weight.shape[0]


@pytest.mark.parametrize("name", CONFIGS)
def test_the_cache_is_as_large_as_the_one_that_a_model_fills(tmp_path, name):
    found, model = sizes_of(CONFIGS[name], tmp_path), built(CONFIGS[name])
    cache = model(input_ids=torch.zeros(2, 5, dtype=torch.int64), use_cache=True).past_key_values
    filled = sum(t.numel() * t.element_size() for layer in cache.layers for t in (layer.keys, layer.values))
    assert memory.cache_bytes(found, 10) == filled


@pytest.mark.parametrize("name", CONFIGS)
def test_activations_are_right_within_a_factor_of_three(tmp_path, name):
    """Against the bytes that autograd keeps for the backward pass: deterministic, unlike a process's peak."""
    found, model = sizes_of(CONFIGS[name], tmp_path), built(CONFIGS[name])
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden = policies.hidden_states(model, torch.zeros(8, 32, dtype=torch.int64))
    assert hidden.requires_grad
    measured = sum(size for size, _ in kept.values())
    assert measured / 3 < memory.activation_bytes(found, 8 * 32) < measured * 3


def test_what_is_no_causal_model_is_refused_in_one_line(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    with pytest.raises(ModelError, match=r"^value\.model: ") as caught:
        memory.sizes(str(tmp_path), "value.model")
    first, *others = str(caught.value).splitlines()
    assert "config.json" in first
    assert all(line.startswith("policy.model: ") for line in others)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"model_type": "no such thing"}', "\x00", "{" * 9999])
def test_a_damaged_config_json_is_refused_a_line_a_fault(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=r"^policy\.model: ") as caught:
        memory.sizes(str(tmp_path))
    first, *others = str(caught.value).splitlines()
    assert "config.json" in first
    assert all(line.startswith("policy.model: ") for line in others)


# ------------------------------------------------------------------------------------------------------------- demand
@pytest.fixture(scope="module")
def demand():
    tiny = memory.sizes("builtin:tiny")
    return memory.Demand(
        policy=tiny, critic=tiny, reference=tiny, longest=64, rows=512, rows_at_once=512, micro_batch_tokens=16384
    )


def test_a_trained_model_takes_sixteen_bytes_a_parameter_and_a_frozen_one_four(demand):
    held = demand.held()
    assert held["policy"] == 16 * demand.policy["parameters"]
    assert held["critic"] == 16 * (demand.policy["trunk_parameters"] + 128 + 1)
    assert held["reference"] == 4 * demand.policy["parameters"]
    assert set(replace(demand, critic=None, reference=None).held()) == {"policy"}


def test_a_checkpoint_holds_weights_and_two_moments(demand):
    assert memory.checkpoint_bytes(replace(demand, critic=None)) == 12 * demand.policy["parameters"]


def test_of_the_phases_of_a_step_only_the_largest_counts(demand):
    assert demand.peak() == sum(demand.held().values()) + max(demand.passing().values())
    assert "rollout" not in replace(demand, rows_at_once=0).passing()


def test_a_forward_pass_has_one_row_at_least_and_no_more_than_there_are(demand):
    assert replace(demand, micro_batch_tokens=1).micro_batch == 64
    assert replace(demand, rows=2).micro_batch == 128


def test_the_mildest_change_that_fits_is_named(demand):
    def change(room, **other):
        return memory.smallest_change(replace(demand, **other), room, group_size=8)

    room = demand.peak() * 0.7
    assert change(room).startswith("set train.micro_batch_tokens=8192, which changes speed and memory but not")
    assert change(room, rows_at_once=100_000) == "set train.prompts_per_step=390 train.micro_batch_tokens=8192"
    one = replace(demand, critic=None, reference=None, rows=1, rows_at_once=0, longest=8192)
    assert memory.smallest_change(one, one.peak() * 0.9, group_size=8).startswith(
        "set policy.gradient_checkpointing=true, which changes speed and memory but not the result"
    )
    one = demand.peak() / 8
    long = {"longest": 8192, "rows_at_once": 8}
    assert "sampling.max_length" in change(one, **long)
    assert change(sum(demand.held().values()) - 1).startswith("set value.model=shared")
    assert "the model alone takes" in change(1e6)


def test_weights_of_two_bytes_are_trained_through_float32_copies(demand):
    half = replace(demand, weight_bytes=2, reference_bytes=2)
    parameters = demand.policy["parameters"]
    assert half.held()["policy"] == 18 * parameters
    assert half.held()["reference"] == 2 * parameters
    assert memory.checkpoint_bytes(replace(half, critic=None)) == 14 * parameters
    assert half.passing()["update"] < demand.passing()["update"]
    assert half.passing()["rollout"] < demand.passing()["rollout"]


def test_a_save_beside_training_holds_a_copy_of_what_is_saved_and_is_given_up_first(demand):
    beside = memory.with_settings(demand, PolicyModel(), ReferenceModel(), device="cpu", is_saved_beside=True)
    assert beside.held() == {**demand.held(), "saving": memory.checkpoint_bytes(demand)}
    assert beside.peak() == demand.peak() + memory.checkpoint_bytes(demand)
    on_device = memory.with_settings(demand, PolicyModel(), ReferenceModel(), device="cuda", is_saved_beside=True)
    assert on_device.held() == demand.held(), "the copy is not on the device"
    short = replace(beside, rows=1, rows_at_once=0)
    assert memory.smallest_change(short, short.peak() - 1, group_size=8) == (
        "set checkpoint.async=false, which changes speed and memory but not the result"
    )
    assert "checkpoint.async" not in memory.smallest_change(beside, beside.peak() * 0.9, group_size=8)


def test_an_adapter_leaves_the_base_without_gradients_and_moments(demand):
    settings = {"policy": PolicyModel(lora=Lora(rank=8)), "reference": ReferenceModel(), "device": "cpu"}
    small = memory.with_settings(replace(demand, critic=None), **settings)
    model = policies.load("builtin:tiny", seed=0).model
    trained = sum(p.numel() for p in roles.adapted(model, rank=8).peft.parameters() if p.requires_grad)
    assert small.adapter == trained
    assert small.held() == {"policy": 4.0 * demand.policy["parameters"], "adapter": 16.0 * trained}
    assert memory.checkpoint_bytes(small) == 12 * trained
    some = Lora(rank=8, target_modules=("q_proj", "v_proj"))
    assert memory.adapter_parameters(demand.policy, some) == 4 * 2 * 8 * (128 + 128)
    model_ = {**settings, "reference": ReferenceModel(model="builtin:tiny", dtype="bfloat16")}
    assert memory.with_settings(demand, **model_).held()["reference"] == 2 * demand.policy["parameters"]


@pytest.mark.parametrize("name", CONFIGS)
def test_adapters_are_counted_exactly_on_every_architecture(tmp_path, name):
    found, model = sizes_of(CONFIGS[name], tmp_path), built(CONFIGS[name])
    adapter = roles.adapted(model, rank=3)
    trained = sum(p.numel() for p in adapter.peft.parameters() if p.requires_grad)
    assert memory.adapter_parameters(found, Lora(rank=3)) == trained


def test_layers_computed_again_keep_a_fraction(demand):
    kept = replace(demand, is_recomputed=True)._activations(demand.policy)
    assert kept < demand._activations(demand.policy) / 3
    assert kept > memory.FLOAT * demand.micro_batch * 4 * 128


def test_an_offloaded_reference_takes_memory_only_while_it_is_read(demand):
    settings = {"policy": PolicyModel(), "reference": ReferenceModel(offload=True)}
    on_device = memory.with_settings(demand, **settings, device="cuda")
    assert "reference" not in on_device.held()
    assert on_device.passing()["reference"] == demand.held()["reference"]
    assert memory.with_settings(demand, **settings, device="cpu") == demand


@pytest.mark.parametrize("share", [0.9, 0.5, 0.3, 0.1])
def test_what_is_proposed_fits(demand, share):
    """Whatever the room, the settings that are named bring the run into it, or another model is asked for."""
    room = demand.peak() * share
    words = memory.smallest_change(demand, room, group_size=8)
    if words.startswith("set"):
        given = dict(word.rstrip(",").split("=") for word in words.split()[1:] if "=" in word)
        prompts = int(given.get("train.prompts_per_step", 64))
        changed = replace(
            demand,
            critic=None if "value.model" in given else demand.critic,
            reference=None if "kl.coef" in given else demand.reference,
            reference_bytes=2 if "reference.dtype" in given else 4,
            is_recomputed="policy.gradient_checkpointing" in given,
            longest=int(given.get("sampling.max_length", demand.longest)),
            micro_batch_tokens=int(given.get("train.micro_batch_tokens", demand.micro_batch_tokens)),
            rows=min(demand.rows, prompts * 8),
            rows_at_once=prompts * 8,
        )
        assert changed.peak() <= room
    else:
        assert "the model alone takes" in words


def test_the_memory_that_is_free_is_less_than_what_there_is():
    free, total = memory.available_bytes("cpu")
    assert 0 < free < total
