"""A pickled checkpoint made into a Hugging Face directory: read in another process, checked against a model of its kind."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from trimtab.errors import ModelError, UserError, WorkerError
from trimtab.operate.export import refuse_what_is_there, save, written_whole

PREFIXES = ("module.", "model.", "_orig_mod.", "_forward_module.", "policy.", "actor.", "base_model.", "transformer.")
"""What wrappers put before the names of a model's weights: DDP, Lightning, torch.compile, DeepSpeed, trainers."""
SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    architecture: str
    weights: int
    dtype: str
    path: tuple[str, ...]
    """The keys under which the weights were."""
    prefix: str
    """That was taken from their names."""
    beside: tuple[str, ...]
    """What else was in the file, and was left out."""


def import_weights(file: Path, like: str, to: Path) -> Imported:
    """Write the weights of a pickled file as a Hugging Face directory.

    Args:
        file: what `torch.save` wrote: weights by name, or a trainer's checkpoint with such under a known key.
        like: the Hugging Face directory whose configuration and tokenizer go with them.
        to: a directory that is new or empty.

    Raises:
        ModelError: the file is not there, would run code, or its weights are not those of the model.
        UserError: the directory has something in it.
        WorkerError: the process that read the file was killed.
        StorageError: the disk takes no more.
    """
    from trimtab.models import loading

    refuse_what_is_there(to)
    if not file.is_file():
        raise ModelError(f"{file} does not exist")
    tokenizer = loading.load_tokenizer(like, key="--like")
    config = loading.configuration(like, "--like")
    with tempfile.TemporaryDirectory(dir=_existing_parent(to), prefix=".import-") as folder:
        told = _read_elsewhere(file, Path(folder) / "read.safetensors")
        prefix, count, dtype = _renamed(Path(folder), config)
        config.save_pretrained(folder)
        _copy_generation_config(like, Path(folder))
        model = _checked(folder, file, config, dtype)
        with written_whole(to) as scratch:
            save(model, tokenizer, scratch)
    return Imported(
        architecture=type(model).__name__,
        weights=count,
        dtype=str(dtype).removeprefix("torch."),
        path=tuple(told["path"]),
        prefix=prefix,
        beside=tuple(told["beside"]),
    )


def _existing_parent(to: Path) -> Path:
    """Where the weights lie meanwhile: on the disk that they go to."""
    found = to.resolve().parent
    while not found.exists():
        found = found.parent
    return found


def _read_elsewhere(file: Path, out: Path) -> Mapping[str, Any]:
    words = [sys.executable, "-P", "-m", "trimtab.models.pickled", str(file.resolve()), str(out)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode < 0:
        raise WorkerError(f"{file}: the process that read it was killed by signal {-done.returncode}; is it too large?")
    try:
        told: Mapping[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError) as error:
        last = next(iter(done.stderr.splitlines()[-1:]), "it said nothing")
        raise ModelError(f"{file} cannot be read: {last}") from error
    if "error" in told:
        raise ModelError(f"{file} {told['error']}")
    return told


def _renamed(folder: Path, config: Any) -> tuple[str, int, Any]:
    """The weights under the names that the model has for them; (the prefix taken away, how many, their dtype)."""
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForCausalLM

    weights = load_file(str(folder / "read.safetensors"))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    prefix = best_prefix(weights, model.state_dict())
    renamed = {name.removeprefix(prefix): tensor for name, tensor in weights.items()}
    save_file(renamed, str(folder / "model.safetensors"), metadata={"format": "pt"})
    (folder / "read.safetensors").unlink()
    numbers: dict[Any, int] = {}
    for tensor in weights.values():
        if tensor.is_floating_point():
            numbers[tensor.dtype] = numbers.get(tensor.dtype, 0) + tensor.numel()
    return prefix, len(weights), max(numbers, key=lambda kind: numbers[kind], default=torch.float32)


def best_prefix(names: Collection[str], expected: Collection[str]) -> str:
    """What to take from the front of the names so that most of them are expected; the shortest of equals.

    >>> best_prefix(["module.model.a", "module.lm_head"], ["model.a", "lm_head"])
    'module.'
    >>> best_prefix(["model.a", "lm_head"], ["model.a", "lm_head"])
    ''
    """
    expected = set(expected)
    candidates = ["", *("".join(parts) for depth in (1, 2, 3) for parts in product(PREFIXES, repeat=depth))]
    present = [p for p in candidates if any(name.startswith(p) for name in names)]
    return max(present, key=lambda p: (sum(name.removeprefix(p) in expected for name in names), -len(p)), default="")


def _copy_generation_config(like: str, folder: Path) -> None:
    file = Path(like) / "generation_config.json"
    if file.is_file():
        shutil.copyfile(file, folder / file.name)


def _checked(folder: str, file: Path, config: Any, dtype: Any) -> Any:
    """The model with these weights and no others.

    Raises:
        ModelError: names or shapes differ.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    level = logging.get_verbosity()
    logging.set_verbosity_error()  # what does not fit is told below, once
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except Exception as error:  # whatever a file from elsewhere sets off
        raise ModelError(f"{file}: {next(iter(str(error).splitlines()), '') or type(error).__name__}") from error
    finally:
        logging.set_verbosity(level)
    model, told = loaded
    faults = [
        *_fault("lacks", sorted(told["missing_keys"])),
        *_fault("has weights that the model has no place for:", sorted(told["unexpected_keys"])),
        *_fault("has other shapes:", [_shapes(*found) for found in sorted(told["mismatched_keys"])]),
    ]
    if faults:
        raise ModelError(f"{file} does not fit {type(model).__name__} of --like: it " + "; it ".join(faults))
    return model


def _fault(what: str, names: list[str]) -> list[str]:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return [f"{what} {', '.join(names[:SHOWN])}{more}"] if names else []


def _shapes(name: str, found: Any, expected: Any) -> str:
    return f"{name} {tuple(found)}, expected {tuple(expected)}"


def refuse_safe_file(file: Path) -> None:
    """
    Raises:
        UserError: the file needs no conversion.
    """
    if file.suffix == ".safetensors":
        raise UserError(
            f"{file} is safe to read as it is: put it into a directory as model.safetensors, beside config.json"
        )
