"""The work of the timed workloads: models, words, rows, reward. Every system under comparison does the same."""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass
from typing import Any

SHAPE = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
MODELS: dict[str, dict[str, Any]] = {
    "tiny": dict(zip(SHAPE, (128, 4, 4, 344, 512), strict=True)),
    "small": dict(zip(SHAPE, (256, 8, 8, 688, 32000), strict=True)),
}
DTYPES = ("fp32", "bf16", "bf16-pure")
PAD, EOS, UNK, FIRST = 0, 1, 2, 3
"""Ids from FIRST on are ordinary words, written `w3`, `w4`, ..."""
LEARNING_RATE = 1e-5
READ = {"dpo": "dpo", "rm": "reward_model"}
"""Workloads that read pairs -> the algorithm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One measurement. Lengths are in tokens."""

    workload: str = "grpo"
    model: str = "tiny"
    steps: int = 5
    """Measured ones; one more, the first, warms up."""
    dtype: str = "fp32"
    threads: int = 1
    mu: int = 1
    """Update epochs on each rollout. All figures are for one optimiser step, of which each rollout then serves `mu`."""
    beta: float = 0.04
    """KL coefficient; 0 drops the reference model."""
    stops: bool = True
    """Whether some ids end a completion; otherwise each has `new_tokens`."""
    seed: int = 0
    prompts: int = 8
    group: int = 8
    prompt_tokens: int = 128
    new_tokens: int = 128
    micro_rows: int = 16
    pairs: int = 32
    """Of a workload that reads: pairs a step."""
    shortest: int = 32
    longest: int = 512
    """Tokens of a prompt with one side, before the end of sequence."""
    precompute_ref: bool = False
    """dpo: the reference's log-probs of all rows are computed in the first step, which warms up."""

    @property
    def reads(self) -> bool:
        return self.workload in READ

    @property
    def vocabulary(self) -> int:
        return int(MODELS[self.model]["vocab_size"])

    @property
    def stop_ids(self) -> list[int]:
        """A model with random weights hardly ever draws the one end of sequence, and all lengths would be the limit.

        With one id in 96 ending a completion lengths are near-geometric, some 70 of at most 128 tokens.
        """
        return [EOS, *range(FIRST, FIRST + self.vocabulary // 96)] if self.stops else []


def parse(description: str | None, workloads: tuple[str, ...]) -> Work:
    """The measurement that the command line asks for."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=workloads, default=workloads[0])
    parser.add_argument("--model", choices=MODELS, default="tiny")
    parser.add_argument("--steps", type=int, default=5, help="measured steps; one more warms up")
    parser.add_argument("--dtype", choices=DTYPES, default="fp32", help="bf16 is autocast over float32 weights")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--mu", type=int, default=1, help="update epochs on each rollout")
    parser.add_argument("--beta", type=float, default=0.04, help="KL coefficient; 0: no reference model")
    parser.add_argument("--no-stop", dest="stops", action="store_false", help="every completion at the length limit")
    parser.add_argument("--precompute-ref", action="store_true", help="dpo: the reference once, untimed")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.precompute_ref and given.workload != "dpo":
        parser.error(f"--precompute-ref: {given.workload} does not keep what a reference says; it is for dpo")
    for name in ("steps", "threads", "mu"):
        if getattr(given, name) < 1:
            parser.error(f"--{name}: {getattr(given, name)}, expected 1 or more")
    return Work(**vars(given))


def tokenizer(work: Work) -> Any:
    """One word a token; nothing is added at either end."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": PAD, "<eos>": EOS, "<unk>": UNK} | {f"w{i}": i for i in range(FIRST, work.vocabulary)}
    inner = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    ending = {"eos_token": "<eos>"} if work.stops else {}
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", unk_token="<unk>", **ending)


def model(work: Work) -> Any:
    """A Llama with weights of N(0, 0.02) that depend on the seed alone, float32; of `rm` with a head that scores."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

    torch.manual_seed(work.seed)
    config = LlamaConfig(
        **MODELS[work.model],
        num_key_value_heads=MODELS[work.model]["num_attention_heads"],
        max_position_embeddings=2048,
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=EOS if work.stops else None,
        pad_token_id=PAD,
        attn_implementation="sdpa",
    )
    if work.workload == "rm":
        config.num_labels = 1
        return LlamaForSequenceClassification(config)
    made = LlamaForCausalLM(config)
    made.generation_config.eos_token_id = work.stop_ids or None
    made.generation_config.pad_token_id = PAD
    return made


def prompts(work: Work) -> list[dict[str, str]]:
    """Rows for every step, all different, each of `prompt_tokens` words that end nothing."""
    draw, first = random.Random(work.seed), FIRST + work.vocabulary // 96
    return [
        {"prompt": " ".join(f"w{draw.randrange(first, work.vocabulary)}" for _ in range(work.prompt_tokens))}
        for _ in range(work.prompts * (work.steps + 1))
    ]


def pairs(work: Work) -> list[dict[str, str]]:
    """Rows for every step: both sides with their prompt of `shortest` to `longest` words, drawn each for itself.

    They share a prompt of a quarter of the shorter one, at least 8 words.
    """
    draw, first, rows = random.Random(work.seed), FIRST + work.vocabulary // 96, []
    for _ in range(work.pairs * (work.steps + 1)):
        sizes = [draw.randint(work.shortest, work.longest) for _ in ("chosen", "rejected")]
        shared = max(8, min(sizes) // 4)
        texts = [
            " ".join(f"w{draw.randrange(first, work.vocabulary)}" for _ in range(size))
            for size in (shared, *(size - shared for size in sizes))
        ]
        # The blank keeps the border between prompt and answer.
        rows.append({"prompt": texts[0], "chosen": f" {texts[1]}", "rejected": f" {texts[2]}"})
    return rows


def even_words(completions: list[str], **_: Any) -> list[float]:
    """The share of a completion's words whose id is even."""
    found = []
    for text in completions:
        ids = [int(word[1:]) for word in text.split() if word[0] == "w"]
        found.append(sum(i % 2 == 0 for i in ids) / max(1, len(ids)))
    return found
