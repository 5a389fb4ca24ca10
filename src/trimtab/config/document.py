"""A YAML file with the line of every key, its bases merged under it and the command line over it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from trimtab import not_json
from trimtab.config import not_yaml
from trimtab.errors import ConfigError, Finding, nearest, shown

Key = tuple[str | int, ...]
COMMAND_LINE = "command line"
"""The place of what was set there."""
MAX_NODES = 100_000
"""A file whose aliases unfold to more is refused."""
MAX_BYTES = 256 << 10
"""A larger file is refused: reading YAML takes some five seconds a MiB."""
MAX_DEPTH = 50
"""Lists and mappings in each other."""
MAX_INTEGER = (1 << 63) - 1


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
        for number, part in enumerate(key[:-1]):
            if not isinstance(inner.get(part), dict):
                inner[part] = {}
                self.places[key[: number + 1]] = place
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


def unusable_texts(document: Document) -> list[Finding]:
    """Texts with a NUL or half a surrogate pair in them, which no file's name and no message can have."""
    return list(_unusable(document, document.values, ()))


def _unusable(document: Document, value: Any, key: Key) -> Iterator[Finding]:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in inside:
        yield from _unusable(document, inner, (*key, name))
    bad = _UNUSABLE.search(value) if isinstance(value, str) and key[:2] not in _ANY_TEXT else None
    if bad is not None:
        what = f"{_dotted(key)}: {shown(value)} has the character U+{ord(bad.group()):04X}, which no text here can have"
        yield Finding(place=document.place(key), what=what, hint="take it out")


_ANY_TEXT: tuple[Key, ...] = (("sampling", "stop"),)
"""Keys of what a model may write."""
_UNUSABLE = re.compile("[\x00\ud800-\udfff]")


# ------------------------------------------------------------------------------------------------------------ files
class _Loader(yaml.SafeLoader):
    """YAML 1.2's reading of numbers and words: `1e-6` is a number, `on`, `no`, `1:30` and a date are words."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self._depth > MAX_DEPTH:
            what = f"nested more than {MAX_DEPTH} levels deep"
            raise yaml.composer.ComposerError(None, None, what, self.peek_event().start_mark)  # type: ignore[no-untyped-call]
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


_CORE = "tag:yaml.org,2002:"
_READ = ("null", "bool", "int", "float", "str")
"""Tags of values that a configuration holds."""
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag == f"{_CORE}null"]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_INTEGER = re.compile(r"^[-+]?[0-9][0-9_]*$|^0o[0-7]+$|^0x[0-9a-fA-F]+$")
_Loader.add_implicit_resolver(f"{_CORE}int", _INTEGER, list("-+0123456789"))
_FLOAT = re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)


def _integer(_: _Loader, node: yaml.ScalarNode) -> int:
    """Decimal, even with a zero in front: what YAML 1.1 takes for octal nobody means here."""
    text = node.value.replace("_", "")
    base = {"0o": 8, "0x": 16}.get(text[:2], 10)
    number = int(text[2:] if base != 10 else text, base) if len(text) < 100 else MAX_INTEGER + 1
    if abs(number) > MAX_INTEGER:
        raise yaml.constructor.ConstructorError(None, None, f"{shown(text)} does not fit into 64 bits", node.start_mark)
    return number


_Loader.add_constructor(f"{_CORE}int", _integer)


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
    seen = [Path(path).resolve()]
    base = document.values.pop("extends", None)
    place = document.places.pop(("extends",), str(path))
    current = Path(path)
    while base is not None:
        if not isinstance(base, str) or _UNUSABLE.search(base):
            raise ConfigError(
                [Finding(place=place, what=f"extends: {shown(base)}", hint="expected the path of a YAML file")]
            )
        current = current.parent / base
        if current.resolve() in seen:
            loop = [file.name for file in (*seen[seen.index(current.resolve()) :], current)]
            what = f"extends: {base} extends itself ({' -> '.join(loop)})"
            raise ConfigError([Finding(place=place, what=what, hint="take one `extends` out")])
        seen.append(current.resolve())
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
    text = _text(path, asked_at)
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        fault = not_yaml.explained(text, error)
        place = f"{path}:{fault.line}:{fault.column}"
        raise ConfigError([Finding(place=place, what=f"not YAML: {fault.what}", hint=fault.hint)]) from None
    if node is None:
        raise ConfigError([Finding(place=f"{path}:1", what="is empty", hint="expected at least `algorithm:`")])
    if not isinstance(node, yaml.MappingNode):
        found = f"text {shown(node.value)}" if isinstance(node, yaml.ScalarNode) else "a list"
        place = f"{path}:{node.start_mark.line + 1}"
        what = f"found {found}, expected keys and values"
        raise ConfigError([Finding(place=place, what=what, hint="such as `algorithm: grpo`")])
    reader = _NodeReader(str(path))
    values = reader.value(node, ())
    if reader.findings:
        raise ConfigError(reader.findings)
    return Document(values=values, places=reader.places, chain=(str(path),), folder=path.parent)


def _text(path: Path, asked_at: str) -> str:
    """
    Raises:
        ConfigError: it is not there, cannot be read, is too large, or is no UTF-8.
    """

    def refused(what: str, hint: str = "", place: str = "") -> ConfigError:
        return ConfigError([Finding(place=place or str(path), what=what, hint=hint)])

    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        near = _instead_of(path)
        what = f"{path}: no such file" if asked_at else "no such file"
        raise refused(what, f"did you mean {near}?" if near else "", asked_at) from None
    except IsADirectoryError:
        raise refused("is a directory, expected a YAML file") from None
    except (OSError, ValueError) as error:  # a name with a NUL in it is a ValueError
        raise refused(f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > MAX_BYTES:
        raise refused(f"has more than {MAX_BYTES >> 10} KiB, which is no configuration", "is it a file of data?")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise refused("is UTF-16", f"convert it: iconv -f UTF-16 -t UTF-8 {path}", f"{path}:1:1")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = 1 + error.object.count(b"\n", 0, error.start)
        raw = error.object.split(b"\n")[line - 1]
        try:
            raw.decode("utf-8-sig" if line == 1 else "utf-8")
        except UnicodeDecodeError as inner:
            raise refused(*not_json.not_utf8(raw, inner, str(path)), f"{path}:{line}") from None
        raise


def _instead_of(path: Path) -> str | None:
    """The name of a file that may be meant by one that is not there."""
    with suppress(OSError):
        names = {other.stem: other.name for other in path.parent.iterdir() if other.suffix in (".yaml", ".yml")}
        if near := nearest(path.stem, names):
            return names[near]
    return None


class _NodeReader:
    def __init__(self, file: str) -> None:
        self.file = file
        self.places: dict[Key, str] = {}
        self.findings: list[Finding] = []
        self._constructor = _Loader("")
        self._nodes = 0
        self._around: list[yaml.Node] = []
        """The nodes that the present one is in."""

    def value(self, node: yaml.Node, key: Key) -> Any:
        self.places[key] = place = f"{self.file}:{node.start_mark.line + 1}"
        self._nodes += 1
        if self._nodes > MAX_NODES:
            what = f"unfolds to more than {MAX_NODES} values"
            raise ConfigError([Finding(place=place, what=what, hint="write less by aliases (`*name`)")])
        if any(node is outer for outer in self._around):
            what = f"{_dotted(key)}: is an alias of what it stands in"
            raise ConfigError([Finding(place=place, what=what, hint="write the values out")])
        if not self._is_read(node):
            what = f"{_dotted(key)}: the tag {node.tag.replace(_CORE, '!!')} is not read"
            hint = "a configuration holds text, numbers, true, false, null, lists and keys; take the tag out"
            self.findings.append(Finding(place=place, what=what, hint=hint))
            return None
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, key, place)
        self._around.append(node)
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, key)
            return [self.value(item, (*key, number)) for number, item in enumerate(node.value)]
        finally:
            self._around.pop()

    def _is_read(self, node: yaml.Node) -> bool:
        if isinstance(node, yaml.ScalarNode):
            return node.tag in [_CORE + name for name in _READ]
        return bool(node.tag == _CORE + ("map" if isinstance(node, yaml.MappingNode) else "seq"))

    def _scalar(self, node: yaml.ScalarNode, key: Key, place: str) -> Any:
        try:
            return self._constructor.construct_object(node, deep=True)
        except yaml.YAMLError as error:
            problem = getattr(error, "problem", None) or str(error)
        except Exception:  # PyYAML's constructors raise whatever a value that does not fit its tag leads to
            problem = f"{shown(node.value)} does not fit {node.tag.replace(_CORE, '!!')}"
        self.findings.append(Finding(place=place, what=f"{_dotted(key)}: {problem}"))
        return None

    def _mapping(self, node: yaml.MappingNode, key: Key) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name_node, value_node in node.value:
            name = name_node.value if isinstance(name_node, yaml.ScalarNode) else None
            place = f"{self.file}:{name_node.start_mark.line + 1}"
            if name is None:
                what = "a key must be a word, found a list or keys"
                self.findings.append(Finding(place=place, what=what, hint="is a value with braces not in quotes?"))
                continue
            if name == "<<":
                hint = "write the keys out, or put what is common into a file that `extends` names"
                self.findings.append(Finding(place=place, what="merge keys (`<<`) are not read", hint=hint))
                continue
            if name in found:
                first = self.places[(*key, name)].removeprefix(f"{self.file}:")
                what = f"key `{_dotted((*key, name))}` stands twice"
                self.findings.append(Finding(place=place, what=what, hint=f"it is in line {first} too; keep one"))
            found[name] = self.value(value_node, (*key, name))
            self.places[(*key, name)] = place
        return found


def _dotted(key: Key) -> str:
    return ".".join(map(str, key)) or "the file"


# ----------------------------------------------------------------------------------------------------- command line
def parse_overrides(words: Iterable[str]) -> list[tuple[Key, Any, str]]:
    """`a.b=value`, `--a.b value` and `--a.b=value`, in any mixture.

    Raises:
        ConfigError: with every word that is none of these.
    """
    found: list[tuple[str, str]] = []
    findings: list[Finding] = []
    pending: str | None = None

    def refuse(what: str, hint: str = "") -> None:
        findings.append(Finding(place=COMMAND_LINE, what=what, hint=hint))

    for word in words:
        if pending is not None and word.startswith("--"):
            refuse(f"--{pending} has no value", f"write {pending}=VALUE")
            pending = None
        if pending is not None:
            found.append((pending, word))
            pending = None
        elif word.startswith("--") and "=" not in word:
            pending = word[2:]
        elif "=" in word:
            name, _, text = word.removeprefix("--").partition("=")
            found.append((name, text))
        else:
            refuse(f"`{word}` is neither KEY=VALUE nor --KEY VALUE", "such as optim.learning_rate=1e-5")
    if pending is not None:
        refuse(f"--{pending} has no value", f"write {pending}=VALUE")
    for name, text in found:
        if not all(name.split(".")):
            refuse(f"`{name}={text}` has no key, or a part of it is empty", "such as optim.learning_rate=1e-5")
    if findings:
        raise ConfigError(findings)
    return [(tuple(name.split(".")), parse_value(text), COMMAND_LINE) for name, text in found]
