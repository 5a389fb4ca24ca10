"""A YAML file with the line of every key, its bases merged under it and the command line over it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from trimtab.errors import ConfigError, Finding

Key = tuple[str | int, ...]
MAX_NODES = 100_000
"""A file whose aliases unfold to more is refused."""


@dataclass(slots=True)
class Document:
    """Nested values, and where each stands."""

    values: dict[str, Any] = field(default_factory=dict)
    places: dict[Key, str] = field(default_factory=dict)
    chain: tuple[str, ...] = ()
    """The file and its bases, nearest first."""
    folder: Path = field(default_factory=Path)
    """Where the file lies; relative paths are looked for there too."""

    def place(self, key: Key) -> str:
        """`file:line` or `command line` of a key, or of the nearest thing around it."""
        while key and key not in self.places:
            key = key[:-1]
        return self.places.get(key, self.chain[0] if self.chain else "config")

    def put(self, key: Key, value: Any, place: str) -> None:
        """Set a value, making the mappings above it."""
        inner: dict[str | int, Any] = self.values  # type: ignore[assignment]
        for part in key[:-1]:
            if not isinstance(inner.get(part), dict):
                inner[part] = {}
            inner = inner[part]
        inner[key[-1]] = value
        for known in [k for k in self.places if k[: len(key)] == key]:
            del self.places[known]
        self.places[key] = place

    def over(self, base: Document) -> Document:
        """This document laid over another: mappings merge, everything else replaces."""
        merged = Document(values=_merged(base.values, self.values), chain=self.chain + base.chain, folder=self.folder)
        replaced = [k for k in self.places if not isinstance(_at(self.values, k), dict)]
        merged.places = {k: p for k, p in base.places.items() if not any(k[: len(r)] == r for r in replaced)}
        merged.places |= self.places
        return merged


def _merged(base: Any, over: Any) -> Any:
    if isinstance(base, dict) and isinstance(over, dict):
        return {**base, **{k: _merged(base.get(k), v) for k, v in over.items()}}
    return over


def copied(values: Any) -> Any:
    """Mappings and lists anew, what is in them as it is."""
    if isinstance(values, Mapping):
        return {k: copied(v) for k, v in values.items()}
    return [copied(v) for v in values] if isinstance(values, list) else values


def _at(values: Any, key: Key) -> Any:
    for part in key:
        values = values[part]
    return values


# ------------------------------------------------------------------------------------------------------------ files
class _Loader(yaml.SafeLoader):
    """YAML 1.2's reading of numbers and words: `1e-6` is a number, `on` and `no` are words."""


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern) for tag, pattern in found if tag not in ("tag:yaml.org,2002:float", "tag:yaml.org,2002:bool")
    ]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_FLOAT = re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)


def parse_value(text: str) -> Any:
    """A value of the command line, by YAML's rules.

    >>> parse_value("1e-6"), parse_value("[a, b]"), parse_value("null")
    (1e-06, ['a', 'b'], None)
    """
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - _Loader is a SafeLoader
    except Exception:  # PyYAML's constructors raise whatever a value that does not fit its tag leads to
        return text


def read(path: str | Path) -> Document:
    """A file and the bases it extends.

    Raises:
        ConfigError: it is not there, is no YAML mapping, repeats a key, or extends itself.
    """
    document = _read_one(Path(path))
    seen = {Path(path).resolve()}
    base = document.values.pop("extends", None)
    place = document.places.pop(("extends",), str(path))
    current = Path(path)
    while base is not None:
        if not isinstance(base, str):
            raise ConfigError(
                [Finding(place=place, what=f"extends: {base!r}", hint="expected the path of a YAML file")]
            )
        current = current.parent / base
        if current.resolve() in seen:
            raise ConfigError([Finding(place=place, what=f"extends: {base} extends itself")])
        seen.add(current.resolve())
        under = _read_one(current, asked_at=place)
        base = under.values.pop("extends", None)
        place = under.places.pop(("extends",), str(current))
        document = document.over(under)
    return document


def from_mapping(values: Mapping[str, Any], place: str = "config", folder: Path | None = None) -> Document:
    """A document from a dict."""
    document = Document(values=copied(values), chain=(place,), folder=folder or Path())
    document.places[()] = place
    return document


def _read_one(path: Path, asked_at: str = "") -> Document:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        what = f"{path}: no such file" if asked_at else "no such file"
        raise ConfigError([Finding(place=asked_at or str(path), what=what)]) from None
    except IsADirectoryError:
        raise ConfigError([Finding(place=str(path), what="is a directory, expected a YAML file")]) from None
    except OSError as error:
        raise ConfigError([Finding(place=str(path), what=f"cannot be read: {error.strerror}")]) from None
    except UnicodeDecodeError as error:
        raise ConfigError([Finding(place=str(path), what=f"not UTF-8 (byte {error.start})")]) from None
    try:
        node = yaml.compose(text, Loader=_Loader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError([_yaml_fault(path, error)]) from None
    if node is None:
        raise ConfigError([Finding(place=f"{path}:1", what="is empty", hint="expected at least `algorithm:`")])
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(
            [Finding(place=f"{path}:1", what="expected keys and values", hint="such as `algorithm: grpo`")]
        )
    reader = _NodeReader(str(path))
    try:
        values = reader.value(node, ())
    except RecursionError as error:
        raise ConfigError([_yaml_fault(path, error)]) from None
    if reader.findings:
        raise ConfigError(reader.findings)
    return Document(values=values, places=reader.places, chain=(str(path),), folder=path.parent)


def _yaml_fault(path: Path, error: Exception) -> Finding:
    mark = getattr(error, "problem_mark", None)
    place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "nested too deeply"
    return Finding(place=place, what=f"not YAML: {problem}")


class _NodeReader:
    def __init__(self, file: str) -> None:
        self.file = file
        self.places: dict[Key, str] = {}
        self.findings: list[Finding] = []
        self._constructor = _Loader("")
        self._nodes = 0

    def value(self, node: yaml.Node, key: Key) -> Any:
        self.places[key] = place = f"{self.file}:{node.start_mark.line + 1}"
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise ConfigError([Finding(place=self.file, what=f"unfolds to more than {MAX_NODES} values")])
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, key)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*key, number)) for number, item in enumerate(node.value)]
        try:
            return self._constructor.construct_object(node, deep=True)
        except yaml.YAMLError as error:
            problem = getattr(error, "problem", None) or str(error)
        except Exception:  # PyYAML's constructors raise whatever a value that does not fit its tag leads to
            problem = f"{node.value!r} does not fit {node.tag.replace('tag:yaml.org,2002:', '!!')}"
        self.findings.append(Finding(place=place, what=f"{'.'.join(map(str, key))}: {problem}"))
        return None

    def _mapping(self, node: yaml.MappingNode, key: Key) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name_node, value_node in node.value:
            name = name_node.value if isinstance(name_node, yaml.ScalarNode) else None
            place = f"{self.file}:{name_node.start_mark.line + 1}"
            if name is None:
                self.findings.append(Finding(place=place, what="a key must be a word"))
                continue
            if name in found:
                self.findings.append(Finding(place=place, what=f"key `{name}` stands twice"))
            found[name] = self.value(value_node, (*key, name))
            self.places[(*key, name)] = place
        return found


# ----------------------------------------------------------------------------------------------------- command line
def parse_overrides(words: Iterable[str]) -> list[tuple[Key, Any, str]]:
    """`a.b=value`, `--a.b value` and `--a.b=value`, in any mixture.

    Raises:
        ConfigError: a word is none of these.
    """
    found = []
    pending: str | None = None
    for word in words:
        if pending is not None:
            found.append((pending, word))
            pending = None
        elif word.startswith("--") and "=" not in word:
            pending = word[2:]
        elif "=" in word:
            name, _, text = word.removeprefix("--").partition("=")
            found.append((name, text))
        else:
            what = f"`{word}` is neither KEY=VALUE nor --KEY VALUE"
            raise ConfigError([Finding(place="command line", what=what)])
    if pending is not None:
        raise ConfigError([Finding(place="command line", what=f"--{pending} has no value")])
    return [(tuple(name.split(".")), parse_value(text), "command line") for name, text in found]
