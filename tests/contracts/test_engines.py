"""The in-process engine through the engine suite, over several architectures."""

import pytest
import torch
import transformers

from tests.contracts.engine_under_test import InProcess, tiny
from trimtab.models import builtin
from trimtab.testing import engines as suite

SMALL = {
    "vocab_size": builtin.CONFIG["vocab_size"],
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.1,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def small(kind):
    torch.manual_seed(0)
    if kind == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=SMALL["vocab_size"], n_embd=32, n_layer=2, n_head=4, n_positions=128, initializer_range=0.1,
            bos_token_id=1, eos_token_id=2,
        )  # fmt: skip
        model = transformers.GPT2LMHeadModel(config)
    else:
        model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SMALL))
    return InProcess(model.eval(), builtin.tokenizer(), frozenset({2, 7, 20, 33, 61, 80}))


MAKERS = {
    "llama": tiny,
    "qwen2, grouped queries": lambda: small("qwen2"),
    "gpt2, learned positions": lambda: small("gpt2"),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("check", suite.CHECKS, ids=lambda check: check.__name__)
def test_contract(make, check):
    check(make())
