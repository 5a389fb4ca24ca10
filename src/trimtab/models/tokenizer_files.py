"""What is wrong with the files of a tokenizer, and where it does not fit the model beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trimtab.errors import Finding, shown
from trimtab.models.small_files import FaultError, object_of

VOCABULARY, CONFIG = "tokenizer.json", "tokenizer_config.json"
FILES = (VOCABULARY, "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "vocab.json", "vocab.txt")
"""Any of them makes a tokenizer."""
MAPS = (CONFIG, "special_tokens_map.json")
"""Files that name the end of a sequence."""
GENERATION = "generation_config.json"


def faults(folder: Path, config: dict[str, Any]) -> Iterator[Finding]:
    """
    Args:
        folder: with the tokenizer.
        config: of the text model beside it; empty if there is none, or it cannot be read.
    """
    if not any((folder / name).is_file() for name in FILES):
        yield Finding(
            place=str(folder),
            what=f"has no tokenizer that can be read: expected one of {', '.join(FILES)}",
            hint="save one beside the model with `tokenizer.save_pretrained`",
        )
        return
    found: dict[str, dict[str, Any]] = {}
    is_whole = True
    for name in (VOCABULARY, *MAPS, GENERATION):
        try:
            found[name] = object_of(folder / name) if (folder / name).is_file() else {}
        except FaultError as fault:
            yield fault.finding
            is_whole = False
    if is_whole:
        yield from _of_vocabulary(folder, found, config)


def _of_vocabulary(folder: Path, files: dict[str, dict[str, Any]], config: dict[str, Any]) -> Iterator[Finding]:
    at = str(folder / VOCABULARY)
    whole = files[VOCABULARY]
    words = whole.get("model", {}).get("vocab") if isinstance(whole.get("model", {}), dict) else None
    is_there = (folder / VOCABULARY).is_file()
    if is_there and not isinstance(words, dict | list):
        yield Finding(place=at, what="has no vocabulary (model.vocab)", hint="`tokenizer.save_pretrained` writes it")
        return
    ids = _ids(words) if is_there else {}
    added = {
        token["content"]: token["id"]
        for token in whole.get("added_tokens") or ()
        if isinstance(token, dict) and isinstance(token.get("content"), str) and isinstance(token.get("id"), int)
    }
    size = config.get("vocab_size")
    largest = max(ids.values(), default=-1)
    if isinstance(size, int) and largest >= size:
        what = f"has tokens up to id {largest}, but config.json says vocab_size: {size}, so some have no embedding"
        yield Finding(place=at, what=what, hint="is it the model's own? Else resize_token_embeddings and save both")
    name, end = _end(files)
    if is_there and end:
        number = {**ids, **added}.get(end)
        if number is None:
            what = f"eos_token: {shown(end)} is no token of the vocabulary"
            yield Finding(place=str(folder / name), what=what, hint="name the token that ends a sequence")
        elif isinstance(size, int) and largest < size <= number:
            what = f"eos_token: {shown(end)} has id {number}, but config.json says vocab_size: {size}"
            yield Finding(place=str(folder / name), what=what, hint="resize_token_embeddings, and save both")
    if config and end is None and all(c.get("eos_token_id") is None for c in (config, files[GENERATION])):
        what = "names no end of a sequence (eos_token), nor does config.json: every completion would run to its limit"
        yield Finding(place=str(folder / CONFIG), what=what, hint="set eos_token, or eos_token_id in config.json")


def _ids(words: dict[str, Any] | list[Any] | None) -> dict[str, int]:
    if isinstance(words, dict):
        return {word: number for word, number in words.items() if isinstance(number, int)}
    return {str(entry[0]): n for n, entry in enumerate(words or ()) if isinstance(entry, list) and entry}


def _end(files: dict[str, dict[str, Any]]) -> tuple[str, str | None]:
    """The token that ends a sequence, and the file that names it; "" if the tokenizer's class may have one of its own."""
    for name in MAPS:
        value = files[name].get("eos_token")
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str) and value:
            return name, value
    kind = files[CONFIG].get("tokenizer_class")
    has_none = kind in (None, "TokenizersBackend", "PreTrainedTokenizerFast") or "eos_token" in files[CONFIG]
    return CONFIG, None if has_none else ""
