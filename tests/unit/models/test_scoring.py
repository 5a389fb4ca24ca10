"""The reward model as a role: its scores are those of the transformers class that it is saved as."""

import json

import pytest
import torch
import transformers

from tests.unit.models.roles_under_test import disturb, rows
from trimtab.algorithms import reward_model
from trimtab.errors import ModelError
from trimtab.models import adapters, builtin, lora, scoring
from trimtab.models import policy as policies
from trimtab.models.precision import Precision
from trimtab.models.settings import Lora
from trimtab.types import Need

SMALL = {
    "vocab_size": builtin.CONFIG["vocab_size"], "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "initializer_range": 0.2,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
WINDOW = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
ARCHITECTURES = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"head_dim": 8},
    "gpt2": {"tie_word_embeddings": True},
    "gemma3_text": {"head_dim": 8, "query_pre_attn_scalar": 8, **WINDOW},
    "opt": {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "granite": {},
    "bert": {"is_decoder": True},
}
NEED = Need.PAIRS | Need.SCORES


def place_of(folder, kind="llama", tokenizer=None):
    torch.manual_seed(7)
    config = transformers.AutoConfig.for_model(kind, **{**SMALL, **ARCHITECTURES[kind]})
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    (tokenizer or builtin.tokenizer()).save_pretrained(folder)
    return str(folder)


def roles(name="builtin:tiny", precision=None, *, settings=None, **more):
    loaded = scoring.load(name, seed=0)
    head = loaded.model.score.weight.detach().clone()
    scoring.cast(loaded.model, precision or Precision())
    adapter = None
    if settings is not None:
        base = lora.Base(model=name, seed=0, dtype="float32", fingerprint=lora.fingerprint(loaded.model))
        adapter = lora.Adapter(loaded.model, settings, base=base, seed=1, task=scoring.TASK)
    assert torch.equal(head, loaded.model.score.weight)
    return scoring.ScoringModels(
        model=loaded.model, tokenizer=loaded.tokenizer, precision=precision, adapter=adapter, **more
    )


def scores(models, batch=None):
    with torch.no_grad():
        return models.forward(rows() if batch is None else batch, NEED).scores


def ids_of(batch):
    return [t[:n] for t, n in zip(batch.tokens.tolist(), batch.lengths.tolist(), strict=True)]


@torch.no_grad()
def of_transformers(folder, every, side):
    """Scores of the class as anybody would load and call it."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, padding_side=side)
    padded = tokenizer.pad({"input_ids": every}, return_tensors="pt")
    assert (padded.attention_mask == 0).any()
    positions = padded.attention_mask.cumsum(1).sub(1).clamp_min(0)  # gpt2 counts padding in front otherwise
    return model(**padded, position_ids=positions).logits.squeeze(-1)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "gpt2", "gemma3_text", "opt"])
def test_scores_are_those_of_transformers_on_either_side_of_padding(tmp_path, kind, side):
    models = roles(place_of(tmp_path / "model", kind))
    disturb(models, size=0.1)
    models.save(tmp_path)
    found, batch = scores(models), rows()
    assert found.dtype == torch.float32
    assert float(found.std()) > 0.1, "all rows have one score: nothing was compared"
    torch.testing.assert_close(found, of_transformers(tmp_path / "policy", ids_of(batch), side), atol=2e-5, rtol=2e-5)


def ends_with_padding(tokenizer):
    tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def without_padding(tokenizer):
    tokenizer._special_tokens_map["pad_token"] = None
    return tokenizer


@pytest.mark.parametrize("made", [ends_with_padding, without_padding])
def test_a_tokenizer_that_pads_with_its_end_gets_a_token_of_its_own_and_the_model_a_row_for_it(tmp_path, made):
    name = place_of(tmp_path / "model", tokenizer=made(builtin.tokenizer()))
    models = roles(name)
    assert not models.model.get_input_embeddings().weight[-1].any(), "a new row that no seed decides"
    disturb(models, size=0.1)
    models.save(tmp_path)
    batch = rows()
    last = scoring.last_counted(batch)
    batch.tokens[torch.arange(len(batch)), last] = 2  # every row ends with the end of sequence
    found = scores(models, batch)
    config = json.loads((tmp_path / "policy" / "config.json").read_text())
    assert config["pad_token_id"] == SMALL["vocab_size"] == config["vocab_size"] - 1
    torch.testing.assert_close(found, of_transformers(tmp_path / "policy", ids_of(batch), "right"), atol=2e-5, rtol=0)
    again = scoring.load(str(tmp_path / "policy"), seed=0)
    assert again.model.get_input_embeddings().weight.shape[0] == config["vocab_size"], "it grew once more"
    assert torch.equal(scores(scoring.ScoringModels(model=again.model, tokenizer=again.tokenizer), batch), found)


def test_a_row_of_the_embedding_that_is_to_spare_is_used_for_padding(tmp_path):
    tokenizer = ends_with_padding(builtin.tokenizer())
    config = transformers.LlamaConfig(**{**SMALL, "vocab_size": SMALL["vocab_size"] + 5})
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model = scoring.load(str(tmp_path), seed=0).model
    assert model.config.pad_token_id == SMALL["vocab_size"]
    assert model.get_input_embeddings().weight.shape[0] == SMALL["vocab_size"] + 5


def test_a_tokenizer_that_was_given_is_not_changed():
    tokenizer = ends_with_padding(builtin.tokenizer())
    loaded = policies.load("builtin:tiny", seed=0)
    made = scoring.prepared(policies.with_tokenizer(loaded, tokenizer))
    assert (made.tokenizer.pad_token, tokenizer.pad_token) == ("[PAD]", "<eos>")


@pytest.mark.parametrize("kind", ["granite", "bert"])
def test_an_architecture_that_could_not_be_saved_as_a_reward_model_is_refused(tmp_path, kind):
    with pytest.raises(ModelError, match=f"policy.model: a reward model of a {kind} could not be saved"):
        scoring.load(place_of(tmp_path, kind), seed=0)


def test_a_model_with_several_labels_is_refused(tmp_path):
    config = transformers.LlamaConfig(**SMALL, num_labels=3)
    transformers.LlamaForSequenceClassification(config).save_pretrained(tmp_path)
    builtin.tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="gives 3 numbers a row, expected one score"):
        scoring.load(str(tmp_path), seed=0)


def test_the_score_is_read_at_the_last_token_that_counts():
    models = roles()
    disturb(models)
    batch = rows()
    counted = batch.loss_mask.clone()
    counted[0, 0], counted[1] = True, False
    counted[0, 1:] = False
    object.__setattr__(batch, "loss_mask", counted)
    found = scores(models, batch)
    shorter = [ids[: int(batch.prompt_lengths[0]) + 1] if n == 0 else ids for n, ids in enumerate(ids_of(batch))]
    expected = torch.tensor(scoring.scores_of(models.model, shorter))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert abs(found[0] - scores(models)[0]) > 1e-3


def test_before_the_first_update_all_scores_are_0_and_only_the_head_has_a_gradient():
    models = roles()
    found = models.forward(rows(), NEED).scores
    assert not found.any()
    found[0].sub(found[1]).neg().sigmoid().log().neg().backward()
    moved = {name for name, p in models.named_parameters().items() if p.grad is not None and p.grad.any()}
    assert moved == {"policy.score.weight"}


@pytest.mark.parametrize(
    "precision", [Precision(), Precision(dtype=torch.bfloat16), Precision(autocast=torch.bfloat16)], ids=str
)
def test_saved_weights_come_back_bit_for_bit_and_the_head_is_never_rounded(tmp_path, precision):
    models = roles(precision=precision)
    disturb(models)
    models.save(tmp_path)
    assert models.model.score.weight.dtype == torch.float32
    again = roles(precision=precision)
    assert again.weights_sum() != models.weights_sum()
    again.load(tmp_path)
    assert again.weights_sum() == models.weights_sum()
    assert torch.equal(scores(again), scores(models))
    started = roles(str(tmp_path / "policy"), precision)
    assert torch.equal(scores(started), scores(models)), "a warm start lost the head"


def test_weights_that_do_not_fit_are_refused(tmp_path):
    roles(place_of(tmp_path / "model")).save(tmp_path)
    with pytest.raises((ValueError, RuntimeError), match=r"fit|size mismatch"):
        roles().load(tmp_path)


def test_an_adapter_is_saved_with_the_head_and_merged_into_a_plain_reward_model(tmp_path):
    settings = Lora(rank=4)
    models = roles(settings=settings)
    assert {n.rsplit(".", 2)[-2] for n in models.named_parameters() if "lora_" not in n} == {"default"}
    disturb(models)
    models.save(tmp_path)
    again = roles(settings=settings)
    again.load(tmp_path)
    assert torch.equal(scores(again), scores(models))
    assert adapters.is_adapter(tmp_path / "policy")
    scoring.write_merged(tmp_path / "policy", tmp_path / "final")
    batch = rows()
    torch.testing.assert_close(
        of_transformers(tmp_path / "final", ids_of(batch), "right"), scores(models), atol=1e-4, rtol=1e-4
    )
    assert float(scores(models).std()) > 0.01


def test_layers_that_are_computed_again_give_the_same_gradients():
    found = []
    for again in (False, True):
        models = roles(gradient_checkpointing=again)
        disturb(models)
        models.forward(rows(), NEED).scores.square().sum().backward()
        found.append({name: p.grad for name, p in models.named_parameters().items() if p.grad is not None})
    assert len(found[0]) > 10
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient)


def test_scores_of_rows_do_not_depend_on_how_they_are_split():
    models = roles()
    disturb(models)
    every = ids_of(rows())
    whole = scoring.scores_of(models.model, every)
    torch.testing.assert_close(torch.tensor(scoring.scores_of(models.model, every, micro_batch_tokens=1)),
                               torch.tensor(whole))  # fmt: skip
    torch.testing.assert_close(torch.tensor(whole), scores(models))


def test_a_row_that_the_model_has_no_positions_for_is_refused():
    with pytest.raises(ValueError, match="600 tokens; the reward model has 512 positions"):
        scoring.scores_of(roles().model, [[5] * 600])


def test_the_learner_trains_it_on_pairs():
    from trimtab.train.learner import Learner
    from trimtab.train.settings import Optim, Train

    models = roles()
    batch = rows(count=8)
    pair = torch.arange(8) // 2
    for name, value in {"group_ids": pair, "pair_ids": pair, "is_chosen": torch.arange(8) % 2 == 0}.items():
        object.__setattr__(batch, name, value)
    trained = Learner(
        models=models, algorithm=reward_model.ALGORITHM, config=reward_model.RewardModelConfig(),
        optim=Optim(learning_rate=1e-3), train=Train(max_steps=8), micro_batch_tokens=64,
    )  # fmt: skip
    reports = [trained.update(batch).metrics for _ in range(8)]
    assert reports[0]["loss/preference"] == pytest.approx(0.6931, abs=1e-4)
    assert reports[0]["reward_model/accuracy"] == 0.5
    assert reports[-1]["loss/preference"] < 0.3
    assert reports[-1]["reward_model/accuracy"] == 1.0
    assert "kl/update" not in reports[-1]
