"""Which keys of a configuration may name a secret, and that no other place holds one.

A key is one that may if its field's type is `Secret`, in whatever record of whatever room; nothing else has to be told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, get_args, get_type_hints
from urllib.parse import urlsplit

from trimtab import secrets
from trimtab.config import sections
from trimtab.config.document import Document, Key
from trimtab.config.records import key_of
from trimtab.errors import Finding
from trimtab.rewards.settings import RewardSpec
from trimtab.secrets import HINT, MARKS, REFERENCE, Secret

WHY = "the configuration is copied into the run's directory, and the command line into the shell's history"


@cache
def keys() -> frozenset[tuple[str, ...]]:
    """The keys that may name a secret, `*` for a place in a list."""
    found: set[tuple[str, ...]] = set()
    for owner in sections.ROOMS:
        found.update((owner.section, *inner) for inner in of_record(owner.record))
    found.update(("rewards", "*", *inner) for inner in of_record(RewardSpec))
    return frozenset(found)


def of_record(record: type[Any]) -> Iterator[tuple[str, ...]]:
    """The fields of a record, and of those in it, that may name a secret."""
    hints = get_type_hints(record)
    for spec in fields(record):
        kinds = {hints[spec.name], *get_args(hints[spec.name])}
        if Secret in kinds:
            yield (key_of(spec.name),)
        for kind in kinds:
            if isinstance(kind, type) and is_dataclass(kind):
                yield from ((key_of(spec.name), *inner) for inner in of_record(kind))
            for entry in get_args(kind):  # of a list of records, where one may stand alone
                if isinstance(entry, type) and is_dataclass(entry):
                    for inner in of_record(entry):
                        yield key_of(spec.name), *inner
                        yield key_of(spec.name), "*", *inner


def faults(document: Document) -> list[Finding]:
    """Every secret in a place where none may be, and everything in a secret's place that is no reference.

    What is at fault is taken out of the document, and what may be a secret is not shown from here on. A path in a
    reference becomes absolute; the values of all of them are kept out of what is written and shown.
    """
    found: list[Finding] = []
    for key, value in list(_leaves(document.values, ())):
        may = _plain(key) in keys()
        if may and value not in (None, "auto"):
            found += _reference(document, key, value)
        elif isinstance(value, str):
            found += _elsewhere(document, key, value)
    return found


def _reference(document: Document, key: Key, value: Any) -> Iterator[Finding]:
    """A secret's key: a reference, or a fault."""
    name = _dotted(key)
    if isinstance(value, str) and REFERENCE.fullmatch(value):
        secret = Secret(value).below(document.folder)
        secrets.watch(secret)
        _put(document, key, str(secret))
        return
    place = document.place(key)
    _hide(value)
    _put(document, key, "${env:HIDDEN}")  # the run is refused for it; that it is missing too need not be said
    if isinstance(value, str) and value.startswith("${"):
        yield Finding(place=place, what=f"{name}: is no reference to a secret", hint=HINT)
    else:
        yield Finding(place=place, what=f"{name}: holds a secret itself", hint=f"{HINT}: {WHY}")


def _elsewhere(document: Document, key: Key, value: str) -> Iterator[Finding]:
    """Any other key: neither a reference nor a password in a URL."""
    name, place = _dotted(key), document.place(key)
    if any(mark in value for mark in MARKS):
        _drop(document, key)
        allowed = ", ".join(".".join(k) for k in sorted(keys()))
        yield Finding(place=place, what=f"{name}: no secret may be named here", hint=f"only in {allowed}")
    elif "://" in value and _has_password(value):
        _hide(value)
        _drop(document, key)
        what = f"{name}: the URL has a user or password in it"
        yield Finding(place=place, what=what, hint=f"leave them out: {WHY}")
    elif key and isinstance(key[-1], str) and key[-1] in {k[-1] for k in keys()}:
        _hide(value)  # a secret's name at a wrong place; some other message will quote what stands there


def _has_password(url: str) -> bool:
    try:
        return "@" in urlsplit(url.strip()).netloc
    except ValueError:
        return "@" in url


def _hide(value: Any) -> None:
    for _, text in _leaves(value, ()):
        if isinstance(text, str) and not REFERENCE.fullmatch(text):
            secrets.learn(text)


def _leaves(values: Any, key: Key) -> Iterator[tuple[Key, Any]]:
    if _plain(key) in keys():
        yield key, values
    elif isinstance(values, Mapping):
        for name, value in values.items():
            yield from _leaves(value, (*key, name))
    elif isinstance(values, list | tuple):
        for number, value in enumerate(values):
            yield from _leaves(value, (*key, number))
    else:
        yield key, values


def _plain(key: Key) -> tuple[str, ...]:
    """A key as `keys` has it: without the algorithm that it is an override of, places in lists as `*`."""
    inner = key[2:] if key[:1] == ("overrides",) else key
    return tuple("*" if isinstance(part, int) else str(part) for part in inner)


def _put(document: Document, key: Key, value: Any) -> None:
    """Change a value where it is; its place in the file stays."""
    _around(document, key)[key[-1]] = value


def _drop(document: Document, key: Key) -> None:
    """Take a value out; in a list, where the others must keep their places, null takes its."""
    around = _around(document, key)
    if isinstance(around, dict):
        del around[key[-1]]
    else:
        around[key[-1]] = None


def _around(document: Document, key: Key) -> Any:
    inner: Any = document.values
    for part in key[:-1]:
        inner = inner[part]
    return inner


def _dotted(key: Key) -> str:
    return ".".join(str(part) for part in key)
