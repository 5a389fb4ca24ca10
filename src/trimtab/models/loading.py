"""A model by its name: a Hugging Face directory or hub id, a finished run, a PEFT adapter, a GGUF file, the built-in one."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from trimtab.errors import ModelError

PICKLED = (".pt", ".bin", ".pth", ".ckpt")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    model: Any
    """A transformers `PreTrainedModel` for causal language modelling, in eval mode: no dropout in any pass."""
    tokenizer: Any
    eos_ids: frozenset[int]


# ------------------------------------------------------------------------------------------------------------ names
def directory_of(name: str, key: str = "policy.model") -> str:
    """What a name stands for: a finished run means its `final/`.

    Raises:
        ModelError: the run has not finished.
    """
    path = Path(name).expanduser()
    if (path / "run.json").is_file():
        final = path / "final"
        if not final.is_dir() and _is_encrypted(path):
            raise ModelError(
                f"{key}: the weights of {name} are encrypted; `trimtab export {name} --to DIR`, which has its key, makes a "
                "plain model directory"
            )
        if not final.is_dir():
            raise ModelError(
                f"{key}: {name} is a run that has not finished; it has no `final/` yet. "
                f"`trimtab export {name} --to DIR --checkpoint STEP` makes a model of a checkpoint"
            )
        return str(final)
    return str(path) if name.startswith("~") else name


def _is_encrypted(run: Path) -> bool:
    """Whether the checkpoint that a run's `final/` would be made of is."""
    try:
        step = json.loads((run / "run.json").read_bytes()).get("final_step")
        return "encryption" in json.loads((run / "checkpoints" / str(step) / "manifest.json").read_bytes())
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        return False


def checked_name(name: str, key: str) -> str:
    """Where the model is to be read, refused early if nothing can be there.

    Raises:
        ModelError: a pickled file, an unfinished run, a directory without a model, or no such path.
    """
    from trimtab.models import builtin

    if not name or name != name.strip():
        raise ModelError(f"{key}: {name!r} is no name; expected a directory, a hub id, a run or `{builtin.NAME}`")
    if "://" in name:
        raise ModelError(f"{key}: {name} is an address; give the hub id, such as org/name, or a directory")
    if name.startswith("builtin:") and name != builtin.NAME:
        raise ModelError(f"{key}: {name}, but the only built-in model is `{builtin.NAME}`")
    place = directory_of(name, key)
    _refuse_what_is_not_a_model(place, key)
    _refuse_what_is_spoilt(place, key)
    return place


def _refuse_what_is_spoilt(place: str, key: str) -> None:
    """What means harm, and a configuration that cannot be one.

    Raises:
        ModelError: of a directory without harm that is spoilt, everything that is wrong with it.
    """
    from trimtab.models import headers, inspection

    try:
        inspection.refuse_harm(place, key)
    except ModelError:
        if not inspection.leads_out(place):
            headers.refuse(place, key)
        raise
    headers.refuse_configuration(place, key)


def _refuse_what_is_not_a_model(place: str, key: str) -> None:
    from trimtab.models import adapters, gguf

    path = Path(place)
    if path.suffix in PICKLED:
        raise ModelError(
            f"{key}: {place} is a pickled checkpoint, which can run code when it is read; "
            f"`trimtab import-weights {place} --like HF_DIR --to DIR` makes a directory of it in a process of its own"
        )
    if gguf.is_gguf(place) and not path.is_file():
        raise ModelError(f"{key}: {place} does not exist; a GGUF file of a hub must be downloaded first")
    looks_local = place.startswith(("./", "../", "/", "~")) or place.count("/") > 1
    if path.is_file() and not gguf.is_gguf(place):
        raise ModelError(f"{key}: {place} is a file; expected a directory, a hub id or a file that ends in .gguf")
    if path.is_dir() and not (path / "config.json").is_file() and not adapters.is_adapter(place):
        inner = path / "policy"
        hint = f"; did you mean {inner}?" if (inner / "config.json").is_file() else ""
        raise ModelError(
            f"{key}: {place} has no config.json; expected a Hugging Face model directory or a finished run{hint}"
        )
    if looks_local and not path.exists():
        raise ModelError(
            f"{key}: {place} does not exist; expected a directory with a model, a hub id or a finished run"
        )


# ---------------------------------------------------------------------------------------------------------- loading
def load(name: str, *, seed: int, key: str = "policy.model") -> LoadedModel:
    """The model and tokenizer of whatever `policy.model` may name, float32, in eval mode.

    Args:
        name: a Hugging Face directory or hub id, a finished run, a PEFT directory, a GGUF file, or `builtin:tiny`.
        seed: of the built-in model's fresh weights.
        key: the configuration key that errors name.

    Raises:
        ModelError: it is not there, is no causal language model, or has no tokenizer.
        MissingExtraError: a GGUF file, but the package that reads it is not installed.
    """
    return _load(name, seed, key, ())


def _load(name: str, seed: int, key: str, above: tuple[str, ...]) -> LoadedModel:
    """`above`: the adapters on the way here, since an adapter's base may be an adapter."""
    from transformers.utils import logging

    from trimtab.models import adapters, builtin, gguf, headers

    logging.disable_progress_bar()
    place = checked_name(name, key)
    headers.refuse(place, key)
    if name == builtin.NAME:
        model, tokenizer = builtin.model(seed), builtin.tokenizer()
    elif gguf.is_gguf(place):
        model, told, tokenizer = gguf.load(place, key)
        _refuse_missing(model, told, place, key)
        tokenizer = _with_padding(tokenizer)
    elif (folder := adapters.folder_of(place, key)) is not None:
        base = adapters.base_of(folder, key, above)
        recorded = adapters.recorded_base(folder)
        below = _load(base, recorded.seed if recorded else seed, key, (*above, str(folder)))
        model = adapters.merged(below.model, folder, key)
        tokenizer = _tokenizer(str(folder), key) if adapters.has_tokenizer(folder) else below.tokenizer
    else:
        model, tokenizer = _from_pretrained(place, key), _tokenizer(place, key)
    return from_objects(model, tokenizer)


def from_objects(model: Any, tokenizer: Any) -> LoadedModel:
    """A model and tokenizer that are there already; the model becomes float32, in eval mode, trained in all its parts."""
    model = model.float().eval()
    model.requires_grad_(True)
    return LoadedModel(model=model, tokenizer=tokenizer, eos_ids=_eos_ids(model, tokenizer))


def with_tokenizer(loaded: LoadedModel, tokenizer: Any) -> LoadedModel:
    """The model with another tokenizer, whose end of sequence counts as well."""
    tokenizer = _with_padding(tokenizer)
    return replace(loaded, tokenizer=tokenizer, eos_ids=_eos_ids(loaded.model, tokenizer))


def load_tokenizer(name: str, *, key: str = "policy.model") -> Any:
    """The tokenizer alone.

    Raises:
        ModelError: there is none that can be read.
    """
    return _tokenizer_of(name, key, ())


def _tokenizer_of(name: str, key: str, above: tuple[str, ...]) -> Any:
    from trimtab.models import adapters, builtin, gguf, headers

    if name == builtin.NAME:
        return builtin.tokenizer()
    place = directory_of(name, key)
    _refuse_what_is_spoilt(place, key)
    headers.refuse_tokenizer(place, key)
    if gguf.is_gguf(place):
        return _with_padding(gguf.load_tokenizer(place, key))
    folder = adapters.folder_of(place, key)
    if folder is None:
        return _tokenizer(place, key)
    if adapters.has_tokenizer(folder):
        return _tokenizer(str(folder), key)
    return _tokenizer_of(adapters.base_of(folder, key, above), key, (*above, str(folder)))


def configuration(name: str, key: str = "policy.model") -> Any:
    """The transformers configuration; no weight is read.

    Raises:
        ModelError: nothing that could be a model is there, or its configuration cannot be read.
    """
    return _configuration_of(name, key, ())


def _configuration_of(name: str, key: str, above: tuple[str, ...]) -> Any:
    from transformers import LlamaConfig

    from trimtab.models import adapters, builtin, gguf

    place = checked_name(name, key)
    if name == builtin.NAME:
        return LlamaConfig(**builtin.CONFIG)
    if gguf.is_gguf(place):
        return gguf.configuration(place, key)
    if (folder := adapters.folder_of(place, key)) is not None:
        return _configuration_of(adapters.base_of(folder, key, above), key, (*above, str(folder)))
    return _config(place, key)


# ---------------------------------------------------------------------------- what transformers reads by itself
def _config(place: str, key: str) -> Any:
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(place, trust_remote_code=False)
    except Exception as error:  # whatever a file from elsewhere sets off
        raise ModelError(f"{key}: {place}: {_reason(error, place)}") from error
    method = getattr(config, "quantization_config", None)
    if method is not None:
        kind = method.get("quant_method") if isinstance(method, dict) else getattr(method, "quant_method", None)
        raise ModelError(
            f"{key}: {place} has weights quantised with {kind or 'a method of its own'}, which cannot be trained; "
            "use the model that it was made from"
        )
    _refuse_more_than_text(config, place, key)
    return config


def _from_pretrained(place: str, key: str) -> Any:
    from transformers import AutoModelForCausalLM

    config = _config(place, key)
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            place,
            config=config,
            dtype=torch.float32,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except Exception as error:  # whatever a file from elsewhere sets off
        raise ModelError(f"{key}: cannot load {place}: {_reason(error, place)}") from error
    model, told = loaded
    _refuse_missing(model, told, place, key)
    return model


def _refuse_missing(model: Any, told: Any, place: str, key: str) -> None:
    """Weights that a file does not have would be random.

    Raises:
        ModelError: some are missing.
    """
    if told["missing_keys"]:
        names = ", ".join(sorted(told["missing_keys"])[:3])
        raise ModelError(
            f"{key}: {place} lacks weights of {type(model).__name__}: {names}; they would be random, and not by the seed"
        )


def _refuse_more_than_text(config: Any, place: str, key: str) -> None:
    others = sorted({name.removesuffix("_config") for name in getattr(config, "sub_configs", {})} - {"text"})
    if others:
        raise ModelError(
            f"{key}: {place} is a {config.model_type}, which has parts beside the text model ({', '.join(others)}); "
            f"prompts here are text. Use its text model alone ({config.get_text_config().model_type})"
        )


def _tokenizer(place: str, key: str) -> Any:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=False)
    except Exception as error:
        raise ModelError(
            f"{key}: {place} has no tokenizer that can be read ({str(error).splitlines()[0]}); "
            "save one beside the model with `tokenizer.save_pretrained`"
        ) from error
    return _with_padding(tokenizer)


def _with_padding(tokenizer: Any) -> Any:
    """A tokenizer without a token for padding pads with its end of sequence."""
    if tokenizer.pad_token_id is None and tokenizer.eos_token_id is not None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _eos_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    found: set[int] = set()
    generation = getattr(model, "generation_config", None)
    configured = getattr(model.config, "eos_token_id", None)
    for value in (getattr(generation, "eos_token_id", None), configured, tokenizer.eos_token_id):
        if isinstance(value, int):
            found.add(value)
        elif value is not None:
            found.update(int(v) for v in value)
    return frozenset(found)


# ---------------------------------------------------------------------------------------------------------- reasons
def _reason(error: Exception, place: str) -> str:
    """Why something could not be read, in one line, and what to do."""
    text = next(iter(str(error).splitlines()), "") or type(error).__name__
    if Path(place).exists():
        if "model.safetensors" in text and any(Path(place).glob("*.bin")):
            return (
                "its weights are pickled (.bin), which can run code when they are read; "
                f"`trimtab import-weights {place}/pytorch_model.bin --like {place} --to DIR` makes a directory of them"
            )
        return text
    return _reason_of_hub(error, place) or text


def _reason_of_hub(error: BaseException, place: str) -> str | None:
    """The fault of a download, by the first cause that the hub's client names."""
    from huggingface_hub import constants, errors

    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in causes:
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__

    def caused_by(*kinds: type[BaseException]) -> bool:
        return any(isinstance(c, kinds) for c in causes)

    where = constants.ENDPOINT
    if caused_by(errors.GatedRepoError):
        return f"{where} gives it only to those who were granted access; ask on its page, then set HF_TOKEN"
    if caused_by(errors.RepositoryNotFoundError, errors.HFValidationError):
        return f"no such directory, and no such model at {where}; check the name, or set HF_TOKEN if it is private"
    if constants.HF_HUB_OFFLINE:
        return (
            f"no such directory, and not in the cache ({constants.HF_HUB_CACHE}); HF_HUB_OFFLINE is set, so nothing is "
            f"downloaded. Unset it, or run `hf download {place}` where there is a network"
        )
    if caused_by(errors.LocalEntryNotFoundError, ConnectionError) or "couldn't connect" in str(error):
        return (
            f"no such directory, not in the cache ({constants.HF_HUB_CACHE}), and {where} cannot be reached; "
            "HF_ENDPOINT names a mirror, or give a directory"
        )
    return None
