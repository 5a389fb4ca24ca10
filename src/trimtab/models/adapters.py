"""PEFT directories: an adapter's own weights and the name of the model that they belong to."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from trimtab.errors import ModelError
from trimtab.models import lora

CONFIG, WEIGHTS = lora.CONFIG, lora.WEIGHTS


def is_adapter(place: str | Path) -> bool:
    """Whether a directory on this machine is a PEFT adapter."""
    return (Path(place) / CONFIG).is_file()


def folder_of(place: str, key: str) -> Path | None:
    """The directory with an adapter's files, downloaded if need be; None if the place is no adapter.

    Raises:
        ModelError: an adapter without readable weights.
    """
    if Path(place).exists():
        return Path(place) if is_adapter(place) else None
    from transformers.utils.peft_utils import find_adapter_config_file

    try:
        found = find_adapter_config_file(place)
    except Exception:  # the hub's fault, if it is one, is told by whoever reads the model
        return None
    if found is None:
        return None
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(place, WEIGHTS)).parent
    except Exception as error:
        raise ModelError(f"{key}: {place} is an adapter, but its {WEIGHTS} cannot be fetched: {error}") from error


def base_of(folder: Path, key: str, above: tuple[str, ...] = ()) -> str:
    """The name of the model that an adapter belongs to. A path counts from here, else from the adapter's directory.

    Args:
        above: the adapters that led here.

    Raises:
        ModelError: none is named, it is not there, or it leads back to one of `above`.
    """
    try:
        name = json.loads((folder / CONFIG).read_bytes()).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError) as error:
        raise ModelError(f"{key}: {folder / CONFIG} cannot be read: {error}") from error
    if not isinstance(name, str) or not name:
        raise ModelError(
            f"{key}: {folder / CONFIG} does not name the model that the adapter belongs to; "
            "write its directory or hub id at base_model_name_or_path"
        )
    if not Path(name).exists() and (folder / name).exists():
        name = str(folder / name)
    if str(Path(name).resolve()) in {str(Path(p).resolve()) for p in (*above, str(folder))}:
        raise ModelError(f"{key}: {folder} is an adapter of itself: {' -> '.join([*above, str(folder), name])}")
    if name.startswith(("/", ".", "~")) and not Path(name).expanduser().exists():
        raise ModelError(
            f"{key}: {folder} is an adapter of {name}, which does not exist; put the model there or correct "
            f"base_model_name_or_path in {folder / CONFIG}"
        )
    return name


def recorded_base(folder: Path) -> lora.Base | None:
    """What an adapter that was trained here says of its base; None for one from elsewhere."""
    return lora.Base.of(folder) if lora.is_adapter(folder) else None


def has_tokenizer(folder: Path) -> bool:
    """Whether an adapter brings its own tokenizer; else its base's counts."""
    return (folder / "tokenizer_config.json").is_file()


def merged(model: Any, folder: Path, key: str) -> Any:
    """The base model with the adapter's weights added to its own, a plain model.

    Args:
        model: float32; changed in place.

    Raises:
        ModelError: the adapter's weights are not there, do not fit, or are of a kind that cannot be merged.
    """
    from trimtab.models.precision import DTYPES

    if (trained_on := recorded_base(folder)) is not None:
        model = model.to(DTYPES[trained_on.dtype])
        present = replace(trained_on, fingerprint=lora.fingerprint(model))
        lora.refuse_another_base(trained_on, present, str(folder))
        model = model.float()
    if not (folder / WEIGHTS).is_file():
        pickled = " (its weights are pickled, which can run code when read)" if any(folder.glob("*.bin")) else ""
        raise ModelError(f"{key}: {folder} has no {WEIGHTS}{pickled}; save the adapter with safetensors")
    try:
        carrier, told = _carrier(model, folder)
    except Exception as error:  # whatever a file from elsewhere sets off
        first = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise ModelError(f"{key}: the adapter {folder} cannot be merged into its base: {first}") from error
    trained = {name for name, parameter in carrier.named_parameters() if parameter.requires_grad}
    faults = {
        "has weights without a place": sorted(told.unexpected_keys),
        "lacks": sorted(trained & set(told.missing_keys)),
    }
    for what, names in faults.items():
        if names:
            raise ModelError(f"{key}: {folder} does not fit its base: it {what}: {', '.join(names[:3])}")
    plain = carrier.merge_and_unload(safe_merge=True)
    for left in ("peft_config", "active_adapter"):
        plain.__dict__.pop(left, None)
    return plain


def _carrier(model: Any, folder: Path) -> tuple[Any, Any]:
    """The model with the adapter beside its weights, and which names of the file found no place or were missing."""
    from peft import PeftConfig, get_peft_model, set_peft_model_state_dict
    from safetensors.torch import load_file

    config = PeftConfig.from_pretrained(str(folder))
    if config.is_prompt_learning:
        raise ValueError(f"it is a {getattr(config.peft_type, 'value', config.peft_type)}, not a change of weights")
    config.inference_mode = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft misses the base's name and asks transformers by an older one
        carrier = get_peft_model(model, config)
    return carrier, set_peft_model_state_dict(carrier, load_file(str(folder / WEIGHTS)))
