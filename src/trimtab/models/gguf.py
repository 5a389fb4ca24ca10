"""GGUF files: unpacked when they are read into a plain model, which can be trained and saved as any other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from trimtab.errors import MissingExtraError, ModelError


def is_gguf(place: str) -> bool:
    return place.lower().endswith(".gguf")


def load(place: str, key: str) -> tuple[Any, Any, Any]:
    """The model of a file, float32, what transformers tells of reading it, and the tokenizer that it carries.

    Raises:
        ModelError: it cannot be read.
        MissingExtraError: the package that reads such files is not installed.
    """
    from transformers import AutoModelForCausalLM

    with _parsed_once():
        tokenizer = load_tokenizer(place, key)
        options = {"dtype": torch.float32, "output_loading_info": True}
        model, told = _read(AutoModelForCausalLM.from_pretrained, place, key, **options)
    return _plain(model), told, tokenizer


def load_tokenizer(place: str, key: str) -> Any:
    """The tokenizer that the file carries."""
    from transformers import AutoTokenizer

    return _read(AutoTokenizer.from_pretrained, place, key)


def configuration(place: str, key: str) -> Any:
    """The transformers configuration of the file's model."""
    from transformers import AutoConfig

    return _read(AutoConfig.from_pretrained, place, key)


def _read(reader: Any, place: str, key: str, **options: Any) -> Any:
    try:
        import gguf  # noqa: F401 - transformers reads the file through it
    except ImportError as error:
        raise MissingExtraError(f"{key}: {place} needs the package gguf: pip install 'trimtab[gguf]'") from error
    path = Path(place)
    try:
        return reader(str(path.parent), gguf_file=path.name, **options)
    except Exception as error:  # whatever a file from elsewhere sets off
        first = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise ModelError(f"{key}: {place} cannot be read: {first}") from error


@contextmanager
def _parsed_once() -> Iterator[None]:
    """transformers parses a file anew for configuration, tokenizer and weights: half a minute for 262,144 tokens."""
    try:
        package: Any = import_module("gguf")
    except ImportError:  # told by `_read`
        yield
        return
    parse = package.GGUFReader
    package.GGUFReader = cache(parse)
    try:
        yield
    finally:
        package.GGUFReader = parse


def _plain(model: Any) -> Any:
    """Without the marks of where it came from: with them transformers refuses to save it, or to train it."""
    for name in ("hf_quantizer", "quantization_method", "is_quantized", "_weight_conversions"):
        model.__dict__.pop(name, None)
    model.config.__dict__.pop("quantization_config", None)
    packed = sorted(name for name, weight in model.named_parameters() if not weight.is_floating_point())
    if packed:
        raise RuntimeError(f"weights of a GGUF file were not unpacked: {packed[:3]}")
    return model
