"""A whole model of a few kilobytes as bytes, made without torch or transformers, and its files with something changed."""

import json
import struct

HIDDEN, INNER, HEADS, LAYERS, VOCABULARY = 16, 24, 2, 2, 12
TOKENS = ["<pad>", "<bos>", "<eos>", "<unk>", *"01234567"]
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 32,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<bos>",
    "eos_token": "<eos>",
    "pad_token": "<pad>",
    "unk_token": "<unk>",
}


def tokenizer(**changes):
    found = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": number, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
                "normalized": False, "special": True,
            }
            for number, token in enumerate(TOKENS[:4])
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": False},
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": {t: n for n, t in enumerate(TOKENS)}, "unk_token": "<unk>"},
    }  # fmt: skip
    return found | changes


def shapes():
    found = {
        "model.embed_tokens.weight": [VOCABULARY, HIDDEN],
        "model.norm.weight": [HIDDEN],
        "lm_head.weight": [VOCABULARY, HIDDEN],
    }
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        found |= {f"{at}.self_attn.{p}_proj.weight": [HIDDEN, HIDDEN] for p in "qkvo"}
        found |= {f"{at}.mlp.{p}_proj.weight": [INNER, HIDDEN] for p in ("gate", "up")}
        found |= {f"{at}.mlp.down_proj.weight": [HIDDEN, INNER]}
        found |= {f"{at}.{p}_layernorm.weight": [HIDDEN] for p in ("input", "post_attention")}
    return found


def header(wanted=None, dtype="F32", width=4):
    """Entries of a safetensors header, and how many bytes of tensors there are."""
    found, place = {}, 0
    for name, shape in (wanted or shapes()).items():
        size = width
        for side in shape:
            size *= side
        found[name] = {"dtype": dtype, "shape": shape, "data_offsets": [place, place + size]}
        place += size
    return found, place


def safetensors(entries=None, size=None):
    if entries is None:
        entries, size = header()
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text + struct.pack("<f", 0.01) * (size // 4)


def dumped(value):
    return json.dumps(value, indent=1).encode()


def whole():
    """Name -> bytes of every file."""
    return {
        "config.json": dumped(CONFIG),
        "model.safetensors": safetensors(),
        "tokenizer.json": dumped(tokenizer()),
        "tokenizer_config.json": dumped(TOKENIZER_CONFIG),
    }


def with_config(**changes):
    return {"config.json": dumped({name: value for name, value in (CONFIG | changes).items() if value is not KeyError})}
