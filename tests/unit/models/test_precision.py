"""One precision for all passes: the ratio is 1 before the first update, and log-probs are float32 whatever computes them."""

from dataclasses import replace

import pytest
import torch
import transformers

from tests.unit.models.roles_under_test import EVERYTHING, PRECISIONS, gradients, roles, rows
from trimtab.errors import ModelError, UserError
from trimtab.kernels import sampling as kernel
from trimtab.models import builtin, precision, recomputation
from trimtab.models import policy as policies
from trimtab.models.precision import Precision
from trimtab.models.reference import Reference
from trimtab.models.settings import PolicyModel, ReferenceModel
from trimtab.rollout.in_process import InProcessEngine
from trimtab.rollout.settings import Sampling
from trimtab.types import Draw, Prompt


@pytest.mark.parametrize("critic", ["own", "shared"])
@pytest.mark.parametrize("name", PRECISIONS)
def test_with_and_without_gradient_the_figures_are_the_same_bits_and_float32(name, critic):
    models, batch = roles(PRECISIONS[name], critic=critic), rows()
    models.reference = Reference(models.model, precision=models.precision)
    frozen, policy = models.freeze(batch, EVERYTHING), models.forward(batch, EVERYTHING)
    for a, b in ((frozen.old_log_probs, policy.log_probs), (frozen.old_values, policy.values)):
        assert a.dtype == b.dtype == torch.float32
        assert torch.equal(a, b)
    assert torch.equal(frozen.ref_log_probs, policy.log_probs)
    assert policy.entropy.dtype == frozen.bootstrap_values.dtype == torch.float32


def test_two_bytes_are_really_used():
    plain = roles(critic="own").forward(rows(), EVERYTHING)
    for name in ("bfloat16 autocast", "bfloat16"):
        half = roles(PRECISIONS[name], critic="own").forward(rows(), EVERYTHING)
        for a, b in ((plain.log_probs, half.log_probs), (plain.values, half.values)):
            assert 1e-4 < (a - b).abs().max() < 0.5


@pytest.mark.parametrize("name", ["float32", "bfloat16 autocast", "bfloat16"])
def test_the_engine_samples_in_the_precision_of_the_trainer(name):
    models = roles(PRECISIONS[name])

    def mismatch(passes):
        """Mean |log-probs of the engine - of the trainer| over tokens."""
        engine = InProcessEngine(
            model=models.model, tokenizer=models.tokenizer, eos_ids=frozenset({2}),
            settings=Sampling(max_length=24), seed=0, passes=passes,
        )  # fmt: skip
        prompts = [Prompt(id=i, text="", tokens=(5 + i, 17, 30), columns={}) for i in range(4)]
        rollouts = engine.generate([Draw(prompt=p, draw=i) for i, p in enumerate(prompts)], group_size=4)
        width = max(len(r.tokens) for r in rollouts)
        batch = replace(
            rows(count=len(rollouts), width=width),
            tokens=torch.tensor([[*r.prompt.tokens, *r.tokens, *[0] * (width - len(r.tokens))] for r in rollouts]),
            prompt_lengths=torch.full((len(rollouts),), 3),
            completion_lengths=torch.tensor([len(r.tokens) for r in rollouts]),
            loss_mask=torch.tensor([[i < len(r.tokens) for i in range(width)] for r in rollouts]),
        )
        old = models.freeze(batch, EVERYTHING).old_log_probs
        told = torch.tensor([[*r.log_probs, *[0.0] * (width - len(r.log_probs))] for r in rollouts])
        return float((old - told)[batch.loss_mask].abs().mean())

    ours = mismatch(models.passes)
    assert ours < {"float32": 1e-5}.get(name, 2e-2)
    if name == "bfloat16 autocast":
        from contextlib import nullcontext

        assert ours < mismatch(nullcontext)


def test_the_last_layer_of_a_critic_is_float32_under_every_precision():
    for name in ("bfloat16 autocast", "bfloat16"):
        models = roles(PRECISIONS[name], critic="own")
        assert models.critic.head.output.weight.dtype == torch.float32
        with torch.no_grad(), models.passes():
            values = models.critic.head(torch.full((1, 128), 1.0))
        assert values.dtype == torch.float32
        assert torch.equal(values, models.critic.head.output(torch.full((1, 128), 1.0)).squeeze(-1))


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_weights_of_two_bytes_are_summed_saved_and_read_bit_for_bit(tmp_path, name):
    first, second = roles(PRECISIONS[name], seed=1, critic="own"), roles(PRECISIONS[name], seed=2, critic="own")
    first.save(tmp_path)
    assert first.weights_sum() != second.weights_sum()
    second.load(tmp_path)
    assert first.weights_sum() == second.weights_sum()
    assert {p.dtype for p in second.model.parameters()} == {PRECISIONS[name].dtype}
    size = (tmp_path / "policy" / "model.safetensors").stat().st_size
    assert size < 2.1 * sum(p.numel() for p in first.model.parameters())


def test_autocast_over_weights_of_two_bytes_is_refused():
    with pytest.raises(UserError, match=r"policy\.autocast: float16, but policy\.dtype is bfloat16"):
        precision.of_policy(PolicyModel(dtype="bfloat16", autocast="float16"))


def test_the_reference_has_the_policys_precision_unless_it_has_its_own():
    policy = Precision(autocast=torch.bfloat16)
    assert precision.of_reference(ReferenceModel(), policy) is policy
    assert precision.of_reference(ReferenceModel(dtype="float32"), policy) == Precision()
    assert precision.of_reference(ReferenceModel(dtype="bfloat16"), policy) == Precision(dtype=torch.bfloat16)


def test_float16_alone_needs_a_loss_scale():
    assert {name for name, p in PRECISIONS.items() if p.needs_loss_scale} == {"float16", "float16 autocast"}


# ------------------------------------------------------------------------------------------- gradient checkpointing
def kept_bytes(models, batch):
    """Bytes that autograd keeps for the backward pass, weights left out."""
    weights = {p.untyped_storage().data_ptr() for p in models.named_parameters().values()}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        found = models.forward(batch, EVERYTHING)
    assert found.log_probs.requires_grad
    return sum(size for size, _ in kept.values())


@pytest.mark.parametrize("more", [{}, {"critic": "own"}, {"critic": "shared"}, {"adapter": True}], ids=str)
def test_layers_computed_again_give_the_same_gradients_to_the_last_bit(more):
    plain, again = (roles(gradient_checkpointing=is_on, **more) for is_on in (False, True))
    batch = rows(count=12)
    before, after = gradients(plain, batch), gradients(again, batch)
    assert before.keys() == after.keys() == plain.named_parameters().keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("more", [{}, {"critic": "own"}, {"adapter": True}], ids=str)
def test_what_is_within_layers_is_not_kept(more):
    plain, again = (roles(gradient_checkpointing=is_on, **more) for is_on in (False, True))
    batch = rows(count=32, width=20)
    assert kept_bytes(again, batch) < kept_bytes(plain, batch) / 4


def test_the_engines_cache_works_between_passes_that_compute_layers_again():
    models = roles(gradient_checkpointing=True)
    gradients(models, rows())
    assert not any(module.training for module in models.model.modules())
    cache = models.model(input_ids=torch.tensor([[5, 6, 7]]), use_cache=True).past_key_values
    assert cache.get_seq_length() == 3


def test_layers_that_drop_out_in_training_mode_are_refused():
    config = transformers.OPTConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, ffn_dim=32, word_embed_proj_dim=32,
        max_position_embeddings=64, dropout=0.1,
    )  # fmt: skip
    with pytest.raises(ModelError, match="drop out in training mode"):
        recomputation.enable(transformers.OPTForCausalLM(config).eval())
    config.dropout = 0.0
    assert recomputation.enable(transformers.OPTForCausalLM(config).eval())


def test_the_head_is_checked_in_two_bytes_too():
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**builtin.CONFIG)).eval().to(torch.bfloat16)
    hidden = policies.hidden_states(model, torch.tensor([[4, 5]]))
    assert policies.head_of(model)(hidden).dtype == torch.bfloat16
    assert kernel.sampling_log_probs(policies.head_of(model)(hidden)[0], temperature=1.0).dtype == torch.float32
