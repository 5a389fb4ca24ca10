"""Loading, saving, heads, and what is refused."""

import pytest
import torch
import transformers

from trimtab.errors import ModelError
from trimtab.models import builtin, memory
from trimtab.models import policy as policies
from trimtab.models.roles import InProcessModels
from trimtab.models.value import Critic


def roles(seed=0, critic=None):
    loaded = policies.load("builtin:tiny", seed=seed)
    made = {"own": Critic.own, "shared": Critic.shared}[critic](loaded.model) if critic else None
    return InProcessModels(model=loaded.model, tokenizer=loaded.tokenizer, temperature=1.0, critic=made)


def test_the_built_in_model_is_a_small_llama_that_depends_on_its_seed():
    a, b, c = roles(1), roles(1), roles(2)
    assert 500_000 < sum(p.numel() for p in a.model.parameters()) < 1_500_000
    assert a.weights_sum() == b.weights_sum() != c.weights_sum()
    assert a.model.config.model_type == "llama"


def test_the_built_in_tokenizer_gives_back_every_printable_text(tmp_path):
    text = "".join(builtin.CHARACTERS)
    tokenizer = builtin.tokenizer()
    ids = tokenizer(text).input_ids
    assert len(ids) == len(text)
    tokenizer.save_pretrained(tmp_path)
    again = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert again(text).input_ids == ids
    assert again.decode(ids) == tokenizer.decode(ids) == text
    assert (again.eos_token_id, again.pad_token_id) == (2, 0)


@pytest.mark.parametrize("critic", [None, "own", "shared"])
def test_saved_weights_come_back_bit_for_bit(tmp_path, critic):
    first, second = roles(1, critic), roles(2, critic)
    if critic:
        torch.nn.init.normal_(first.critic.head.output.weight)
    first.save(tmp_path)
    assert first.weights_sum() != second.weights_sum()
    second.load(tmp_path)
    assert first.weights_sum() == second.weights_sum()
    for name, parameter in first.named_parameters().items():
        assert torch.equal(parameter, second.named_parameters()[name])


def test_a_model_with_tied_weights_is_saved_and_read(tmp_path):
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=100, n_embd=16, n_layer=1, n_head=2, n_positions=32)
    models = InProcessModels(
        model=transformers.GPT2LMHeadModel(config).eval(), tokenizer=builtin.tokenizer(), temperature=1.0
    )
    models.save(tmp_path)
    before = models.weights_sum()
    with torch.no_grad():
        next(models.model.parameters()).zero_()
    models.load(tmp_path)
    assert models.weights_sum() == before
    assert models.model.lm_head.weight is models.model.transformer.wte.weight


def test_weights_that_do_not_fit_are_refused(tmp_path):
    models = roles(0)
    models.save(tmp_path)
    from safetensors.torch import load_file, save_file

    file = tmp_path / "policy" / "model.safetensors"
    weights = load_file(file)
    weights.pop("lm_head.weight")
    save_file(weights, file)
    with pytest.raises(ValueError, match=r"lm_head\.weight"):
        models.load(tmp_path)


def test_the_sum_of_weights_changes_with_one_weight():
    models = roles(0)
    before = models.weights_sum()
    with torch.no_grad():
        next(models.model.parameters()).view(-1)[7] += 1e-3
    assert models.weights_sum() != before


def test_a_head_that_would_miss_what_the_model_does_is_refused():
    model = policies.load("builtin:tiny", seed=0).model
    forward = model.forward

    def told_by_the_token(input_ids, **kwargs):
        out = forward(input_ids=input_ids, **kwargs)
        out.logits = out.logits + input_ids.unsqueeze(-1)
        return out

    model.forward = told_by_the_token
    with pytest.raises(ModelError, match="logits"):
        policies.head_of(model)


def test_logit_soft_capping_is_known():
    torch.manual_seed(0)
    config = transformers.Gemma2Config(
        vocab_size=100, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, final_logit_softcapping=5.0, max_position_embeddings=64,
    )  # fmt: skip
    model = transformers.Gemma2ForCausalLM(config).eval()
    assert float(policies.head_of(model)(torch.full((1, 32), 1e3)).abs().max()) <= 5.0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("builtin:huge", "the only built-in model is `builtin:tiny`"),
        ("./nowhere/at/all", "does not exist"),
        ("weights.pt", "trimtab import-weights weights.pt --like HF_DIR --to DIR"),
    ],
)
def test_what_is_no_model_is_refused_with_the_way_out(name, message):
    with pytest.raises(ModelError, match=message):
        policies.load(name, seed=0)


def test_a_directory_without_a_configuration_is_refused(tmp_path):
    with pytest.raises(ModelError, match=r"no config\.json"):
        policies.load(str(tmp_path), seed=0)


def test_a_model_directory_without_a_tokenizer_is_refused(tmp_path):
    policies.load("builtin:tiny", seed=0).model.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"tokenizer.*save_pretrained"):
        policies.load(str(tmp_path), seed=0)


def test_an_unfinished_run_is_no_model(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ModelError, match="has not finished"):
        policies.load(str(tmp_path), seed=0)


def test_the_estimate_counts_a_critic_as_much_again():
    sizes = memory.sizes("builtin:tiny")
    assert sizes["parameters"] == sum(p.numel() for p in policies.load("builtin:tiny", seed=0).model.parameters())
    lean = sum(memory.estimate(parameters=sizes["parameters"], has_own_critic=False, has_reference=False).values())
    both = sum(memory.estimate(parameters=sizes["parameters"], has_own_critic=True, has_reference=False).values())
    assert both == 2 * lean


def test_a_mixture_of_experts_is_saved_and_read(tmp_path):
    torch.manual_seed(0)
    config = transformers.MixtralConfig(
        vocab_size=100, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, num_local_experts=2, max_position_embeddings=32,
    )  # fmt: skip
    models = InProcessModels(
        model=transformers.MixtralForCausalLM(config).eval(), tokenizer=builtin.tokenizer(), temperature=1.0
    )
    models.save(tmp_path)
    before = models.weights_sum()
    with torch.no_grad():
        for parameter in models.model.parameters():
            parameter.zero_()
    models.load(tmp_path)
    assert models.weights_sum() == before


def test_a_directory_that_lacks_weights_is_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    roles(0).save(tmp_path)
    file = tmp_path / "policy" / "model.safetensors"
    weights = load_file(file)
    weights.pop("lm_head.weight")
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lacks weights of LlamaForCausalLM: lm_head\.weight"):
        policies.load(str(tmp_path / "policy"), seed=0)
