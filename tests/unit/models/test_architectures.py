"""Every architecture the same: what is sampled, trained on, saved and read again has the log-probs of the model itself."""

import pytest
import torch
import transformers

from tests.contracts.engine_under_test import InProcess
from trimtab.data import collate
from trimtab.errors import ModelError
from trimtab.models import builtin
from trimtab.models import policy as policies
from trimtab.models.roles import InProcessModels
from trimtab.testing import engines
from trimtab.types import Need, Prompt, Rollout, Scored

SMALL = {
    "vocab_size": builtin.CONFIG["vocab_size"],
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# The window is shorter than the completions below.
WINDOW = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
ARCHITECTURES = {
    "llama": {},
    "llama, tied": {"tie_word_embeddings": True},
    "qwen2": {},
    "qwen3": {"head_dim": 8},
    "gemma3_text": {"head_dim": 8, "query_pre_attn_scalar": 8, **WINDOW},
    "gemma3_text, capped": {"head_dim": 8, "query_pre_attn_scalar": 8, "final_logit_softcapping": 2.0, **WINDOW},
    "gemma2": {"head_dim": 8, "final_logit_softcapping": 2.0, "sliding_window": 8},
    "gpt2": {"tie_word_embeddings": True},
    "mistral": {"sliding_window": 8},
    "phi3": {},
    "olmo2": {},
    "stablelm": {},
    "gpt_neox": {},
    "falcon": {"new_decoder_architecture": True, "num_kv_heads": 2},
    "falcon, alibi": {"alibi": True, "multi_query": True, "new_decoder_architecture": False},
    "qwen3_moe": {"head_dim": 8, **EXPERTS},
    "mixtral": {"num_local_experts": 4},
    "cohere": {"logit_scale": 0.25},
    "cohere2": {"logit_scale": 0.25, "head_dim": 8, **WINDOW},
    "granite": {"logits_scaling": 4.0, "embedding_multiplier": 3.0, "residual_multiplier": 0.5},
    "smollm3": {"no_rope_layers": [1, 0]},
    "glm4": {"head_dim": 8},
    "opt": {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "bloom": {},
    "gptj": {"rotary_dim": 4},
    "exaone4": {"sliding_window_pattern": "LG", **WINDOW},
    "minicpm3": {"num_key_value_heads": 4},
    "deepseek_v3": {
        "num_key_value_heads": 4, "n_routed_experts": 4, "qk_rope_head_dim": 8, "n_group": 1, "topk_group": 1,
        "num_experts_per_tok": 2, "moe_intermediate_size": 32, "q_lora_rank": 16, "kv_lora_rank": 16,
    },
}  # fmt: skip


def configured(name):
    kind = name.split(",", 1)[0]
    torch.manual_seed(7)
    config = transformers.AutoConfig.for_model(kind, **{**SMALL, **ARCHITECTURES[name]})
    return transformers.AutoModelForCausalLM.from_config(config).eval()


@pytest.fixture(scope="module", params=ARCHITECTURES, ids=lambda name: name.replace(", ", "-"))
def place(request, tmp_path_factory):
    """A directory as it might come from anywhere."""
    folder = tmp_path_factory.mktemp("model")
    configured(request.param).save_pretrained(folder)
    builtin.tokenizer().save_pretrained(folder)
    return folder


def a_batch(widths=((3, 4), (9, 17), (1, 2), (5, 30))):
    """Rows of different lengths, padded behind."""
    generator = torch.Generator().manual_seed(3)

    def tokens(count):
        return tuple(torch.randint(4, SMALL["vocab_size"], (count,), generator=generator).tolist())

    rollouts = [
        Rollout(
            prompt=Prompt(id=i, text="", tokens=tokens(before)), draw=0, index=0, tokens=(t := tokens(behind)),
            log_probs=(0.0,) * len(t), text="", is_truncated=False, policy_version=0,
        )
        for i, (before, behind) in enumerate(widths)
    ]  # fmt: skip
    return rollouts, collate.of_rollouts(
        [Scored(rollout=r, reward=0.0, parts=(0.0,), is_scored=True) for r in rollouts]
    )


def trainer_log_probs(loaded, batch, temperature=0.7):
    models = InProcessModels(model=loaded.model, tokenizer=loaded.tokenizer, temperature=temperature)
    return models.freeze(batch, Need.OLD_LOG_PROBS).old_log_probs


@torch.no_grad()
def own_log_probs(model, rollout, temperature=0.7):
    """Of one row alone, from all logits of the model's own forward pass."""
    row = torch.tensor([rollout.prompt.tokens + rollout.tokens])
    every = torch.log_softmax(model(input_ids=row, use_cache=False).logits[0, :-1].float() / temperature, dim=-1)
    picked = every.gather(-1, row[0, 1:, None]).squeeze(-1)
    return picked[len(rollout.prompt.tokens) - 1 :]


def test_the_trainers_log_probs_are_those_of_the_model_whatever_is_padded(place):
    loaded = policies.load(str(place), seed=0)
    rollouts, batch = a_batch()
    found = trainer_log_probs(loaded, batch)
    for row, rollout in zip(found, rollouts, strict=True):
        torch.testing.assert_close(row[: len(rollout.tokens)], own_log_probs(loaded.model, rollout), atol=1e-4, rtol=0)
    assert float(found.std()) > 0.1, "all tokens are equally likely: nothing was compared"


def test_the_engines_log_probs_are_those_of_the_trainer(place):
    loaded = policies.load(str(place), seed=0)
    under_test = InProcess(loaded.model, loaded.tokenizer, loaded.eos_ids)
    under_test.tolerance = 1e-4  # the weights are large and rounding grows with them
    engines.log_probs_are_those_of_the_trainer(under_test)


def test_what_is_saved_has_the_same_log_probs_when_it_is_read_again(place, tmp_path):
    loaded = policies.load(str(place), seed=0)
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            parameter.mul_(1.1)
    InProcessModels(model=loaded.model, tokenizer=loaded.tokenizer, temperature=1.0).save_policy(tmp_path)
    again = policies.load(str(tmp_path), seed=0)
    batch = a_batch()[1]
    assert torch.equal(trainer_log_probs(loaded, batch), trainer_log_probs(again, batch))
    assert type(again.model) is type(loaded.model)


def test_gradients_reach_the_weights_through_a_head_that_is_not_a_layer():
    model = configured("granite")
    rollouts, batch = a_batch()
    models = InProcessModels(model=model, tokenizer=builtin.tokenizer(), temperature=1.0)
    models.forward(batch, Need.NONE).log_probs.sum().backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    for rollout in rollouts:
        row = torch.tensor([rollout.prompt.tokens + rollout.tokens])
        every = torch.log_softmax(model(input_ids=row, use_cache=False).logits[0, :-1], dim=-1)
        every.gather(-1, row[0, 1:, None]).squeeze(-1)[len(rollout.prompt.tokens) - 1 :].sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, atol=1e-3, rtol=1e-3)


def test_a_model_that_looks_at_what_comes_behind_is_refused():
    config = transformers.BertConfig(**{**SMALL, "is_decoder": False})
    with pytest.raises(ModelError, match="depends on those behind it; the model is not causal"):
        policies.head_of(transformers.BertLMHeadModel(config).eval())


def test_a_model_that_reads_images_is_refused(tmp_path):
    text = transformers.Gemma3TextConfig(**{**SMALL, "head_dim": 8, **WINDOW})
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1,
              "image_size": 28, "patch_size": 14}  # fmt: skip
    config = transformers.Gemma3Config(text_config=text.to_dict(), vision_config=vision, mm_tokens_per_image=4)
    transformers.Gemma3ForConditionalGeneration(config).save_pretrained(tmp_path)
    builtin.tokenizer().save_pretrained(tmp_path)
    with pytest.raises(
        ModelError, match=r"is a gemma3, which has parts beside the text model \(vision\).*\(gemma3_text\)"
    ):
        policies.load(str(tmp_path), seed=0)
