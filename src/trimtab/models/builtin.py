"""`builtin:tiny`: a Llama of 0.8 M parameters over characters, so that everything can be tried without a download."""

from __future__ import annotations

import string
from typing import Any

NAME = "builtin:tiny"
CHARACTERS = string.digits + string.ascii_letters + string.punctuation + " \n"
SPECIAL = ["<pad>", "<bos>", "<eos>", "<unk>"]

# Measured on sums of two-digit numbers: with an initial spread of 0.02 and a rotary base of 10,000, which are meant for
# wide models and long texts, a model of this size takes three times as many steps to find out which digits belong together.
CONFIG: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 344,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "initializer_range": 0.08,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "vocab_size": len(SPECIAL) + len(CHARACTERS),
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def tokenizer() -> Any:
    """One token a character, printable ASCII; `save_pretrained` writes a normal tokenizer directory."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *CHARACTERS])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r".|\n"), "isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        model_max_length=CONFIG["max_position_embeddings"],
        clean_up_tokenization_spaces=False,
    )


def model(seed: int) -> Any:
    """The model with fresh weights that depend on the seed alone."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed % (1 << 63))
        return LlamaForCausalLM(LlamaConfig(**CONFIG))
