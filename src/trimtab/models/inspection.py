"""A model's directory looked at before transformers reads it, since anybody may have made it.

What is refused: links that lead out of it, an index that names files of other places, files of settings that are too
large or nested too deeply, and safetensors files whose header does not fit their bytes. A directory of the hub's cache
is made of links into that cache, and may be.
"""

from __future__ import annotations

from pathlib import Path

from trimtab import untrusted
from trimtab.errors import ModelError
from trimtab.untrusted import HarmError

SETTINGS = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "adapter_config.json",
)
MAX_SETTINGS = 16 << 20
MAX_VOCABULARY = 256 << 20
"""Bytes of any other JSON file: a vocabulary, an index."""


def refuse_harm(place: str, key: str) -> None:
    """
    Raises:
        ModelError: something in the directory is not what a model's directory has.
    """
    folder = Path(place)
    if not folder.is_dir():
        return
    at = folder
    try:
        for path, real in untrusted.links_out(folder, _roots(folder)):
            hint = "put the file itself there, or download the model anew"
            raise ModelError(f"{key}: {path} leads out of the directory, to {real}; {hint}")
        for at in sorted(folder.glob("*.json")):
            if at.name in SETTINGS:
                untrusted.json_of(at, MAX_SETTINGS)
            elif at.name.endswith(".index.json"):
                _refuse_index(untrusted.json_of(at, MAX_VOCABULARY))
            else:
                untrusted.refuse_size(at, MAX_VOCABULARY)
        for at in sorted(folder.glob("*.safetensors")):
            untrusted.refuse_header(at)
    except HarmError as error:
        raise ModelError(f"{key}: {at} {error}") from None
    except OSError as error:
        raise ModelError(f"{key}: {at} cannot be read: {error.strerror or error}") from None


def leads_out(place: str) -> bool:
    """Whether a link in the directory leads to somewhere else than to it or to the hub's cache."""
    folder = Path(place)
    return folder.is_dir() and next(untrusted.links_out(folder, _roots(folder)), None) is not None


def _roots(folder: Path) -> tuple[Path, ...]:
    """Where links of a directory may lead; the hub's client is asked for its cache only if there are links."""
    own = (folder.resolve(),)
    return own if next(untrusted.links_out(folder, own), None) is None else (*own, *_of_cache(folder.resolve()))


def _refuse_index(index: object) -> None:
    names = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(names, dict):
        raise HarmError("has no `weight_map` from weights to files")
    for name in dict.fromkeys(map(_text, names.values())):
        untrusted.refuse_name(name)


def _text(name: object) -> str:
    if not isinstance(name, str):
        raise HarmError("has a `weight_map` with a name of a file that is no text")
    return name


def _of_cache(folder: Path) -> list[Path]:
    """Where links of a directory of the hub's cache may lead."""
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE).resolve()
    return [cache, *([folder.parent.parent] if folder.parent.name == "snapshots" else [])]
