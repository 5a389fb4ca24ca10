"""Fingerprints and names of objects that have none: functions, models, tokenizers."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import re
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any


def name_of(function: Any) -> str:
    """`module:name` of a function, or of an object that is called.

    >>> name_of(json.dumps), name_of(functools.partial(lambda: 0)).split(":")[1]
    ('json:dumps', 'lambda')
    """
    inner = _inner(function)
    own = getattr(function, "name", None)
    label = own if isinstance(own, str) else getattr(inner, "__name__", type(inner).__name__)
    module = getattr(inner, "__module__", None) or type(inner).__module__
    return f"{module}:{re.sub(r'[^0-9A-Za-z_]+', '_', label).strip('_') or 'reward'}"


def _inner(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def source_print(function: Any) -> str:
    """SHA-256 of a function's source and of what it is bound to, but not of what it calls."""
    said: list[str] = []
    while isinstance(function, functools.partial):
        said.append(repr((function.args, sorted(function.keywords.items()))))
        function = function.func
    is_code = inspect.isroutine(function) or inspect.isclass(function)
    said.append(_source(function if is_code else type(function)))
    if not is_code:
        said.append(repr(getattr(function, "__dict__", None) or function))
    for cell in getattr(function, "__closure__", None) or ():
        if isinstance(value := _content(cell), str | int | float | bool | tuple):
            said.append(repr(value))
    return hashlib.sha256(_ADDRESS.sub("", "\n".join(said)).encode()).hexdigest()


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is not filled yet
        return None


def _source(code: Any) -> str:
    try:
        return inspect.getsource(code)
    except (OSError, TypeError):  # typed at a prompt, or compiled
        compiled = getattr(code, "__code__", None)
        return f"{name_of(code)} {compiled.co_code.hex() if compiled else ''}"


def module_print(name: str, folders: Sequence[Path]) -> str | None:
    """SHA-256 of the file of a `module:function`, which is not imported; None if it is not found.

    Args:
        folders: where modules are looked for before `sys.path`.
    """
    places, origin = [*map(str, folders), *sys.path], None
    for part in name.partition(":")[0].split("."):
        found = PathFinder.find_spec(part, places)
        if found is None:
            return None
        places, origin = list(found.submodule_search_locations or ()), found.origin
    if origin is None or not Path(origin).is_file():
        return None
    return hashlib.sha256(Path(origin).read_bytes()).hexdigest()


def model_print(model: Any) -> str:
    """A model's class and an order-free 64-bit sum over its weights as float32."""
    import torch

    total = 0
    for parameter in model.parameters():
        bits = parameter.detach().float().contiguous().view(torch.int32)
        total += int(bits.sum(dtype=torch.int64))
    return f"{type(model).__name__} {total & ((1 << 64) - 1):016x}"


def tokenizer_print(tokenizer: Any) -> str:
    """SHA-256 of a tokenizer's vocabulary, special tokens and chat template."""
    parts = [sorted(tokenizer.get_vocab().items()), str(tokenizer.special_tokens_map)]
    text = json.dumps([*parts, str(getattr(tokenizer, "chat_template", None))])
    return hashlib.sha256(text.encode()).hexdigest()
