"""The reward model as a role: a trunk with one scalar head, read at a row's last token that counts.

    policy/   what transformers calls `AutoModelForSequenceClassification`, one label, head `score` without a bias

transformers reads a score at the last token that is not padding. A tokenizer that pads with its end of sequence would
lead it one token astray, so such a tokenizer gets a padding token of its own, and the embedding a row for it if there is
none to spare. Rows here are padded behind and causal, so padding cannot be seen from where the score is read.

The head is 0 at the start: all scores are equal, the loss is log 2, no seed matters. Only the head learns from the first
update; from the second on the trunk does as well. It is float32 whatever the trunk is.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.errors import ModelError
from trimtab.models import adapters, builtin, gguf, loading, recomputation, saving
from trimtab.models.loading import LoadedModel
from trimtab.models.lora import Adapter, Base
from trimtab.models.packing import states_of
from trimtab.models.precision import DTYPES, Precision
from trimtab.models.weights import faults_of, sum_of
from trimtab.types import Batch, Frozen, Need, Policy

TASK = "SEQ_CLS"
"""What peft calls an adapter of such a model; it keeps the head beside the adapter."""
PADDING = "[PAD]"


class ScoringModels:
    """The `Models` port of a run that trains a reward model: no critic, no reference, nothing to freeze."""

    def __init__(
        self,
        *,
        model: Any,
        tokenizer: Any,
        precision: Precision | None = None,
        adapter: Adapter | None = None,
        gradient_checkpointing: bool = False,
        packing: bool = False,
    ) -> None:
        """
        Args:
            model: of `load` or `prepared`, in eval mode, with the adapter in it if there is one.
            tokenizer: saved with the model.
            precision: of all passes.
            adapter: saved instead of the model, the head with it.
            gradient_checkpointing: for passes with gradient.
            packing: rows of a pass are laid end to end in fewer.
        """
        self.model = model
        self.tokenizer = tokenizer
        self.precision = precision or Precision()
        self.adapter = adapter
        self.packing = packing
        self._tokenizer_files = saving.TokenizerFiles(tokenizer)
        self._recomputed = recomputation.enable(model.base_model) if gradient_checkpointing else []

    @property
    def device(self) -> torch.device:
        found: torch.device = self.model.device
        return found

    def passes(self) -> AbstractContextManager[None]:
        return self.precision.passes(self.device)

    def forward(self, batch: Batch, need: Need) -> Policy:
        with self.passes(), recomputation.recomputing(self._recomputed if torch.is_grad_enabled() else []):
            found = scores_at(self.model, batch.tokens, last_counted(batch), batch.lengths if self.packing else None)
        return Policy(loss_mask=batch.loss_mask, scores=found)

    def freeze(self, batch: Batch, need: Need) -> Frozen:
        return Frozen(loss_mask=batch.loss_mask)

    def parameters(self) -> Mapping[str, list[nn.Parameter]]:
        return {"policy": list(self.named_parameters().values())}

    def named_parameters(self) -> dict[str, nn.Parameter]:
        return {f"policy.{name}": p for name, p in self.model.named_parameters() if p.requires_grad}

    def weights_sum(self) -> str:
        return sum_of(self.named_parameters().values())

    def writer(self, *, is_copied: bool = False, policy_only: bool = False) -> saving.Write:
        take: saving.Take = saving.copied if is_copied else saving.as_they_are
        policy = saving.policy_writer(self.model, self._tokenizer_files, self.adapter, take)

        def write(directory: Path) -> None:
            policy(directory / "policy")

        return write

    def save(self, directory: Path) -> None:
        self.writer()(directory)

    def load(self, directory: Path) -> None:
        if self.adapter is not None:
            self.adapter.load(directory / "policy")
            return
        # float32 holds every weight of two bytes, and in less the head would be rounded
        stored, told = type(self.model).from_pretrained(
            directory / "policy", dtype=torch.float32, use_safetensors=True, output_loading_info=True
        )
        if faults := faults_of(told):
            raise ValueError(f"{directory / 'policy'}: the weights do not fit the model: {faults}")
        self.model.load_state_dict(stored.state_dict())

    def close(self) -> None:
        """Nothing is held open."""


# ----------------------------------------------------------------------------------------------------------- scores
def last_counted(batch: Batch) -> Tensor:
    """[B] int64, where in `tokens` a row's last token stands that counts; of a row without one, its last token."""
    width = batch.loss_mask.shape[1]
    place = torch.arange(1, width + 1, device=batch.loss_mask.device)
    behind = (place * batch.loss_mask).amax(1) if width else batch.completion_lengths * 0
    behind = torch.where(behind > 0, behind, batch.completion_lengths)
    return (batch.prompt_lengths + behind - 1).clamp_min(0)


def scores_at(model: Any, tokens: Tensor, places: Tensor, lengths: Tensor | None = None) -> Tensor:
    """[B] float32, of rows [B, S] that are padded behind, read at `places` [B]; packed if their `lengths` are given."""
    hidden = states_of(model.base_model, tokens, lengths)
    states = hidden[torch.arange(len(tokens), device=hidden.device), places]
    with torch.autocast(hidden.device.type, enabled=False):
        found: Tensor = model.score(states.float()).squeeze(-1)
    return found


@torch.no_grad()
def scores_of(
    model: Any, rows: Sequence[Sequence[int]], *, precision: Precision | None = None, micro_batch_tokens: int = 16384
) -> list[float]:
    """The score of each row of ids, in their order. Rows of like length are computed together.

    Raises:
        ValueError: a row is empty, or longer than the model has positions.
    """
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    longest = max(map(len, rows), default=0)
    if positions is not None and longest > positions:
        raise ValueError(
            f"a prompt with its completion has {longest} tokens; the reward model has {positions} positions"
        )
    if not all(rows):
        raise ValueError("a prompt with its completion has no tokens")
    order = sorted(range(len(rows)), key=lambda row: (-len(rows[row]), tuple(rows[row])))
    found = [0.0] * len(rows)
    while order:
        width = len(rows[order[0]])
        size = max(1, micro_batch_tokens // width)
        chosen, order = order[:size], order[size:]
        tokens = torch.tensor([[*rows[row], *([0] * (width - len(rows[row])))] for row in chosen])
        ends = torch.tensor([len(rows[row]) - 1 for row in chosen])
        with (precision or Precision()).passes(model.device):
            scores = scores_at(model, tokens.to(model.device), ends.to(model.device)).tolist()
        for row, score in zip(chosen, scores, strict=True):
            found[row] = score
    return found


# ---------------------------------------------------------------------------------------------------------- loading
def is_reward_model(name: str, key: str = "policy.model") -> bool:
    """Whether a name stands for a model with a head for scores, or for an adapter of one.

    Raises:
        ModelError: nothing that could be a model is there.
    """
    place = loading.checked_name(name, key)
    if name == builtin.NAME or gguf.is_gguf(place):
        return False
    if (folder := adapters.folder_of(place, key)) is not None:
        return _is_scoring_adapter(folder)
    kinds = getattr(loading.configuration(name, key), "architectures", None) or ()
    return any(str(kind).endswith("ForSequenceClassification") for kind in kinds)


def load(name: str, *, seed: int, key: str = "policy.model") -> LoadedModel:
    """A reward model: one that was saved, with its head, or whatever causal model is named, with a new head.

    Args:
        name: what `policy.model` may be, or a directory with a reward model, or the run of one.
        seed: of the built-in model's fresh weights.
        key: the configuration key that errors name.

    Raises:
        ModelError: it is not there, gives more than one score, or transformers has no such class for its architecture.
    """
    if not is_reward_model(name, key):
        return prepared(loading.load(name, seed=seed, key=key), key)
    place = loading.checked_name(name, key)
    if (folder := adapters.folder_of(place, key)) is not None:
        base, recorded = adapters.base_of(folder, key), adapters.recorded_base(folder)
        below = load(base, seed=recorded.seed if recorded else seed, key=key)
        model = adapters.merged(below.model, folder, key)
        tokenizer = loading.load_tokenizer(str(folder), key=key) if adapters.has_tokenizer(folder) else below.tokenizer
    else:
        model, tokenizer = _read(place, key), loading.load_tokenizer(place, key=key)
    return prepared(loading.from_objects(model, tokenizer), key)


def prepared(loaded: LoadedModel, key: str = "policy.model") -> LoadedModel:
    """The model with a head for scores, and a padding token that ends no row. What is so already stays as it is.

    The trunk is that of the model given, not a copy.

    Raises:
        ModelError: transformers has no sequence-classification class for the architecture, or it is not causal.
    """
    model = loaded.model
    if type(model).__name__.endswith("ForSequenceClassification"):
        _refuse_other_heads(model, str(getattr(model, "name_or_path", "")), key)
    else:
        model = _with_head(model, key)
    tokenizer = _with_own_padding(loaded.tokenizer, loaded.eos_ids)
    known = int(model.get_input_embeddings().weight.shape[0])
    if tokenizer.pad_token_id >= known:
        _add_rows(model, tokenizer.pad_token_id + 1)
    text = model.config.get_text_config()
    text.pad_token_id = tokenizer.pad_token_id
    if len(loaded.eos_ids) > 1:  # the file with the other ends, for generation, is not part of a reward model
        text.eos_token_id = sorted(loaded.eos_ids)
    _refuse_not_causal(model, key)
    return replace(loaded, model=model, tokenizer=tokenizer)


def cast(model: Any, precision: Precision) -> Any:
    """The model in a precision, in place; its head stays float32."""
    head = model.score.weight.detach().float().clone()
    precision.cast(model)
    keep_head(model, head)
    return model


def keep_head(model: Any, head: Tensor) -> None:
    """Put float32 weights [1, d] in the place of the head's."""
    model.score.float()
    with torch.no_grad():
        model.score.weight.copy_(head)


def write_merged(directory: Path, to: Path) -> None:
    """The reward model of a checkpoint that holds an adapter, merged into its base, head and all."""
    loaded = load(str(directory), seed=0)
    to.mkdir(parents=True, exist_ok=True)
    cast(loaded.model, Precision(dtype=DTYPES[Base.of(directory).dtype])).save_pretrained(str(to))
    loaded.tokenizer.save_pretrained(str(to))


def _is_scoring_adapter(folder: Path) -> bool:
    try:
        return bool(json.loads((folder / adapters.CONFIG).read_bytes()).get("task_type") == TASK)
    except (OSError, ValueError, AttributeError):
        return False


def _read(place: str, key: str) -> Any:
    from transformers import AutoModelForSequenceClassification
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        loaded: Any = AutoModelForSequenceClassification.from_pretrained(
            place, dtype=torch.float32, use_safetensors=True, trust_remote_code=False, output_loading_info=True
        )
    except Exception as error:  # whatever a file from elsewhere sets off
        first = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise ModelError(f"{key}: cannot load the reward model {place}: {first}") from error
    model, told = loaded
    _refuse_other_heads(model, place, key)
    if told["missing_keys"]:
        names = ", ".join(sorted(told["missing_keys"])[:3])
        raise ModelError(f"{key}: {place} lacks weights of {type(model).__name__}: {names}; they would be random")
    return model


def _refuse_other_heads(model: Any, place: str, key: str) -> None:
    labels, head = int(model.config.num_labels), getattr(model, "score", None)
    what = f"{key}: {place or type(model).__name__}"
    if labels != 1:
        raise ModelError(f"{what} gives {labels} numbers a row, expected one score; a reward model has num_labels 1")
    if head is None or getattr(head, "bias", None) is not None:
        raise ModelError(f"{what} has no layer `score` without a bias, which is what a reward model's head is here")


def _with_head(causal: Any, key: str) -> Any:
    """The sequence-classification model round the trunk of a causal one."""
    from transformers import AutoModelForSequenceClassification
    from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING

    config = causal.config
    missing = ModelError(
        f"{key}: a reward model of a {config.model_type} could not be saved: transformers has no sequence-classification "
        "class with a trunk and a layer `score` for it; use another model (llama, qwen2, qwen3, gemma, mistral, gpt2, ...)"
    )
    if type(config) not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING:
        raise missing
    config.num_labels = 1
    with torch.device("meta"):
        model: Any = AutoModelForSequenceClassification.from_config(copy.deepcopy(config))
    trunk: Any = getattr(causal, model.base_model_prefix, None)
    if not isinstance(getattr(model, "score", None), nn.Linear) or type(trunk) is not type(model.base_model):
        raise missing
    setattr(model, model.base_model_prefix, trunk)
    model.config = trunk.config = config
    model.score = nn.Linear(model.score.in_features, 1, bias=False, device=causal.device)
    nn.init.zeros_(model.score.weight)
    if any(p.is_meta for p in model.parameters()):
        raise missing
    model.name_or_path = causal.name_or_path
    return model.eval().requires_grad_(True)


def _with_own_padding(tokenizer: Any, ends: frozenset[int]) -> Any:
    """A tokenizer whose padding is no token that a completion may end with."""
    if tokenizer.pad_token_id is not None and tokenizer.pad_token_id not in ends:
        return tokenizer
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.add_special_tokens({"pad_token": PADDING})
    return tokenizer


def _add_rows(model: Any, count: int) -> None:
    """An embedding with `count` rows; the new ones are 0, and nobody looks at them."""
    before = int(model.get_input_embeddings().weight.shape[0])
    with torch.random.fork_rng(devices=[]):
        model.resize_token_embeddings(count, mean_resizing=False)
    with torch.no_grad():
        model.get_input_embeddings().weight[before:] = 0.0


@torch.no_grad()
def _refuse_not_causal(model: Any, key: str) -> None:
    ids = torch.arange(4, device=model.device).unsqueeze(0) % model.config.get_text_config().vocab_size
    alone = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    padded = model.base_model(input_ids=torch.cat([ids, torch.zeros_like(ids)], 1), use_cache=False).last_hidden_state
    if not torch.allclose(alone, padded[:, :4], atol=1e-4 * max(1.0, float(alone.abs().max())), rtol=0):
        raise ModelError(
            f"{key}: a token of {type(model).__name__} depends on those behind it; a reward model here is causal"
        )
