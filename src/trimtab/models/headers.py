"""What is wrong with a model's directory, told by its small files and the headers of its weights.

No tensor is read and transformers is not loaded, so that every fault is known in a moment and before any model is. What
means harm `inspection` refuses first; here are the directories that were copied in part, cut off, or put together wrongly.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trimtab import untrusted
from trimtab.errors import Finding, ModelError, nearest, shown
from trimtab.models import architectures, tokenizer_files
from trimtab.models.small_files import FaultError, object_of

CONFIG, INDEX, WEIGHTS = "config.json", "model.safetensors.index.json", "model.safetensors"
ADAPTER, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
SIZES = ("hidden_size", "vocab_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
"""Of config.json, where it has them: whole numbers of at least 1."""
DTYPES = ("float32", "float16", "bfloat16", "float64", "auto", "float", "half", "double")
FLOATS = ("F64", "F32", "F16", "BF16")
MADE_BY = "`model.save_pretrained` writes it"
_EMBEDDINGS = re.compile(r"(^|\.)(embed_tokens|wte|word_embeddings|embed_in|tok_embeddings)\.weight$")
_LAYER = re.compile(r"^(?:model\.|transformer\.|gpt_neox\.)?(?:layers|h|blocks)\.(\d+)\.")

Tensors = dict[str, tuple[str, tuple[int, ...]]]
"""Name -> type of its numbers, shape."""


def refuse(place: str, key: str) -> None:
    """
    Args:
        place: a directory of a model or an adapter, or a GGUF file; anything else is not looked at.
        key: the configuration key that errors name.
    Raises:
        ModelError: with everything that is wrong with it.
    """
    _refuse(faults(place), key)


def refuse_configuration(place: str, key: str) -> None:
    """Of a directory, its config.json alone.

    Raises:
        ModelError: with everything that is wrong with it.
    """
    folder = Path(place)
    if (folder / CONFIG).is_file():
        _refuse(list(_configuration(folder)[1]), key)


def refuse_tokenizer(place: str, key: str) -> None:
    """Of a directory, its tokenizer alone.

    Raises:
        ModelError: with everything that is wrong with it.
    """
    folder = Path(place)
    if (folder / CONFIG).is_file() or (folder / tokenizer_files.CONFIG).is_file():
        config = _configuration(folder)[0] if (folder / CONFIG).is_file() else {}
        _refuse(list(tokenizer_files.faults(folder, of_text(config))), key)


def _refuse(found: list[Finding], key: str) -> None:
    if found:
        raise ModelError("\n".join(f"{key}: {fault}" for fault in found))


def faults(place: str) -> list[Finding]:
    """Everything that is wrong with a directory or file, each with its place; nothing for a name of the hub."""
    path = Path(place)
    if path.is_file() and place.lower().endswith(".gguf"):
        return list(_gguf(path))
    if not path.is_dir():
        return []
    if (path / ADAPTER).is_file():
        return [
            *_adapter(path),
            *(tokenizer_files.faults(path, {}) if (path / tokenizer_files.CONFIG).is_file() else ()),
        ]
    if not (path / CONFIG).is_file():
        return []
    config, found = _configuration(path)
    return [*found, *_weights(path, config), *tokenizer_files.faults(path, of_text(config))]


def of_text(config: dict[str, Any]) -> dict[str, Any]:
    """The settings of the text model, where a configuration is of several models."""
    inner = config.get("text_config")
    return {**config, **inner} if isinstance(inner, dict) else config


def _configuration(folder: Path) -> tuple[dict[str, Any], list[Finding]]:
    """config.json, empty if it cannot be read, and what is wrong with it."""
    path = folder / CONFIG
    try:
        config = object_of(path)
    except FaultError as fault:
        return {}, [fault.finding]
    return config, [Finding(place=str(path), what=what, hint=hint) for what, hint in _of_configuration(config)]


def _of_configuration(config: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield from _of_architecture(config)
    text = of_text(config)
    for name in SIZES:
        value = text.get(name, 1)
        if name == "num_key_value_heads" and value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            yield f"{name}: {shown(value)}, expected a whole number of at least 1", ""
            return
    hidden, heads = text.get("hidden_size"), text.get("num_attention_heads")
    if hidden and heads and not text.get("head_dim") and hidden % heads:
        yield f"hidden_size: {hidden} is no multiple of num_attention_heads: {heads}", ""
    if (packed := config.get("quantization_config")) is not None:
        method = packed.get("quant_method") if isinstance(packed, dict) else None
        what = f"its weights are quantised with {method or 'a method of its own'}, which cannot be trained"
        yield what, "use the model that it was made from"
    dtype = config.get("dtype", config.get("torch_dtype"))
    if isinstance(dtype, str) and dtype.removeprefix("torch.") not in DTYPES:
        near = nearest(dtype, DTYPES) or "float32"
        yield f"dtype: {shown(dtype)} is no type of trainable weights", f"did you mean {near}?"
    for name in ("eos_token_id", "bos_token_id", "pad_token_id"):
        ids = text.get(name)
        if any(
            not isinstance(i, int) or isinstance(i, bool)
            for i in (ids if isinstance(ids, list) else [ids])
            if i is not None
        ):
            yield f"{name}: {shown(ids)}, expected a whole number", ""


def _of_architecture(config: dict[str, Any]) -> Iterator[tuple[str, str]]:
    kind = config.get("model_type")
    if not isinstance(kind, str) or not kind:
        found = "no model_type" if kind is None else f"model_type: {shown(kind)}"
        yield f"{found}, expected the name of an architecture, such as `llama`", MADE_BY
        return
    known, causal = architectures.known()
    if not known or kind in known or kind in architectures.registered():
        is_scorer = any(str(a).endswith("ForSequenceClassification") for a in config.get("architectures") or ())
        if causal and kind in known and kind not in causal and not is_scorer and not _has_text_model(config, causal):
            yield f"model_type: {kind} is no causal language model", "a decoder is wanted, such as llama or qwen3"
        return
    if config.get("auto_map"):
        yield f"model_type: {kind} needs code that comes with the model, which is never run", "use a model without it"
        return
    near = nearest(kind, causal)
    hint = f"did you mean `{near}`?" if near else "a newer one may know it"
    yield (
        f"model_type: {kind} is no architecture that transformers {architectures.of_transformers()} knows",
        hint,
    )


def _has_text_model(config: dict[str, Any], causal: frozenset[str]) -> bool:
    """A model of several kinds of input; what to do about it is said by who reads it."""
    return isinstance(config.get("text_config"), dict)


# -------------------------------------------------------------------------------------------------------------- weights
def _weights(folder: Path, config: dict[str, Any]) -> Iterator[Finding]:
    index = folder / INDEX
    try:
        if (folder / WEIGHTS).is_file():
            tensors = _header(folder / WEIGHTS)
        elif index.is_file():
            tensors = _of_shards(index)
        else:
            yield _without_weights(folder)
            return
    except _FaultsError as several:
        yield from several.findings
        return
    except FaultError as fault:
        yield fault.finding
        return
    at = str(folder / WEIGHTS if (folder / WEIGHTS).is_file() else index)
    for what, hint in _misfits(tensors, config):
        yield Finding(place=at, what=what, hint=hint)


def _without_weights(folder: Path) -> Finding:
    pickled = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".ckpt"))
    if pickled:
        return Finding(
            place=str(folder),
            what="its weights are pickled (.bin), which can run code when they are read",
            hint=f"`trimtab import-weights {folder / pickled[0]} --like {folder} --to DIR` makes a directory of them",
        )
    shards = sorted(p.name for p in folder.glob("*.safetensors"))
    if shards:
        what = f"has {shards[0]}, but neither {WEIGHTS} nor {INDEX}, which says what is where"
        return Finding(place=str(folder), what=what, hint="copy the whole directory anew")
    return Finding(
        place=str(folder), what=f"has no weights: expected {WEIGHTS}, or {INDEX} and its files", hint=MADE_BY
    )


class _FaultsError(Exception):
    def __init__(self, findings: list[Finding]) -> None:
        self.findings = findings
        super().__init__("\n".join(map(str, findings)))


def _of_shards(index: Path) -> Tensors:
    """The tensors of all files that an index names.

    Raises:
        FaultError: the index is not as it should be.
        _FaultsError: files are missing or spoilt, or a tensor is not in the file that the index names.
    """
    names = object_of(index).get("weight_map")
    if not isinstance(names, dict) or not names or not all(isinstance(name, str) for name in names.values()):
        raise FaultError(str(index), "has no `weight_map` from weights to files", "copy the file anew")
    files: dict[str, Tensors] = {}
    found: list[Finding] = []
    for name in dict.fromkeys(names.values()):
        path = index.parent / name
        try:
            files[name] = _header(path)
        except FileNotFoundError:
            count = sum(file == name for file in names.values())
            what = f"names {name}, which is not there, for {count} weight{'s' if count != 1 else ''}"
            hint = "copy the file too, or download the model anew"
            found.append(Finding(place=str(index), what=what, hint=hint))
        except FaultError as fault:
            found.append(fault.finding)
    for tensor, name in names.items():
        if name in files and tensor not in files[name]:
            what = f"says that {tensor} is in {name}, but it is not"
            found.append(Finding(place=str(index), what=what, hint="are the files of one model? Download it anew"))
            break
    if found:
        raise _FaultsError(found)
    return {tensor: files[name][tensor] for tensor, name in names.items()}


def _header(path: Path) -> Tensors:
    """What a safetensors file says of its tensors.

    Raises:
        FaultError: it does not say it, or is too short for what it says.
        FileNotFoundError: there is no such file.
    """
    again = "copy the file anew"
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(8)
            if size < 8:
                raise FaultError(str(path), f"has {size} bytes, too few for a safetensors file", again)
            (length,) = struct.unpack("<Q", start)
            if length > untrusted.MAX_HEADER and length <= size - 8:
                raise FaultError(str(path), f"has a header of {length:,} bytes, which is too long", again)
            if start == b"version ":
                raise FaultError(str(path), "is a pointer of Git LFS, not the file itself", "fetch it: git lfs pull")
            if length > size - 8:
                what = f"its header should have {length:,} bytes, but the file has {size:,}"
                raise FaultError(str(path), f"is no whole safetensors file: {what}", again)
            entries = json.loads(file.read(length))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise FaultError(str(path), f"cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise FaultError(str(path), "is no safetensors file: its header is no JSON", again) from None
    try:
        found = {n: (str(e["dtype"]), tuple(map(int, e["shape"]))) for n, e in entries.items() if n != "__metadata__"}
        end = max((int(e["data_offsets"][1]) for n, e in entries.items() if n != "__metadata__"), default=0)
    except (AttributeError, TypeError, KeyError, IndexError, ValueError):
        raise FaultError(str(path), "is no safetensors file: its header does not tell of tensors", again) from None
    if 8 + length + end != size:
        is_short = size < 8 + length + end
        what = f"its header tells of {8 + length + end:,} bytes, but it has {size:,}"
        raise FaultError(str(path), f"{'is cut off' if is_short else 'goes on behind its end'}: {what}", again)
    if not found:
        raise FaultError(str(path), "has no weights in it", MADE_BY)
    return found


def _misfits(tensors: Tensors, config: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Where weights and config.json are of different models."""
    text = of_text(config)
    packed = next((n for n, (kind, _) in tensors.items() if kind not in FLOATS and n.endswith("proj.weight")), None)
    if packed is not None and "quantization_config" not in config:
        yield (
            f"{packed} has numbers of type {tensors[packed][0]}, which cannot be trained",
            "use the model it was made from",
        )
    table = next((name for name in tensors if _EMBEDDINGS.search(name)), None)
    vocabulary, hidden = text.get("vocab_size"), text.get("hidden_size")
    if table is not None and isinstance(vocabulary, int) and len(tensors[table][1]) == 2:
        rows, width = tensors[table][1]
        if rows != vocabulary:
            what = f"{table} has {rows} rows, but {CONFIG} says vocab_size: {vocabulary}"
            yield what, "are they of one model? Save both together"
        if (
            isinstance(hidden, int)
            and width != hidden
            and "embedding_size" not in text
            and "word_embed_proj_dim" not in text
        ):
            what = f"{table} is {width} wide, but {CONFIG} says hidden_size: {hidden}"
            yield what, "are they of one model? Save both together"
    layers = {int(found.group(1)) for name in tensors if (found := _LAYER.match(name))}
    wanted = text.get("num_hidden_layers")
    if layers and isinstance(wanted, int) and (lost := sorted(set(range(wanted)) - layers)):
        what = f"lacks layer {', '.join(map(str, lost[:3]))}{'...' if len(lost) > 3 else ''} of num_hidden_layers: {wanted}"
        yield what, "its weights would be random; are both of one model?"


# ------------------------------------------------------------------------------------------------------ adapters and GGUF
def _adapter(folder: Path) -> Iterator[Finding]:
    path = folder / ADAPTER
    try:
        config = object_of(path)
    except FaultError as fault:
        yield fault.finding
        return
    kind = config.get("peft_type")
    if not isinstance(kind, str) or not kind:
        found = "no peft_type" if kind is None else f"peft_type: {shown(kind)}"
        yield Finding(
            place=str(path), what=f"{found}, expected the kind of adapter, such as LORA", hint="peft writes it"
        )
    base = config.get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        what = "does not name the model that the adapter belongs to"
        yield Finding(place=str(path), what=what, hint="write its directory or hub id at base_model_name_or_path")
    rank = config.get("r", 1)
    if kind == "LORA" and (not isinstance(rank, int) or isinstance(rank, bool) or rank < 1):
        yield Finding(place=str(path), what=f"r: {shown(rank)}, expected a whole number of at least 1")
    weights = folder / ADAPTER_WEIGHTS
    if not weights.is_file():
        pickled = " (its weights are pickled, which can run code when read)" if any(folder.glob("*.bin")) else ""
        what = f"has no {ADAPTER_WEIGHTS}{pickled}"
        yield Finding(place=str(folder), what=what, hint="save the adapter with safetensors")
        return
    try:
        _header(weights)
    except FaultError as fault:
        yield fault.finding


def _gguf(path: Path) -> Iterator[Finding]:
    again = "download it anew"
    try:
        with path.open("rb") as file:
            start = file.read(24)
    except OSError as error:
        yield Finding(place=str(path), what=f"cannot be read: {error.strerror or error}")
        return
    if start[:4] != b"GGUF":
        yield Finding(place=str(path), what=f"is no GGUF file: it begins with {start[:4]!r}", hint=again)
    elif len(start) < 24:
        yield Finding(place=str(path), what=f"is cut off: it has {len(start)} bytes, and a header has 24", hint=again)
    elif (number := struct.unpack("<I", start[4:8])[0]) not in (2, 3):
        yield Finding(place=str(path), what=f"is GGUF of version {number}, expected 2 or 3", hint="convert it anew")
