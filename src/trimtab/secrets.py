"""Secrets: a configuration names them, they are read where they are used, and nothing that is written or shown has them.

    checkpoint: {encrypt: "${env:RUN_KEY}"}      an environment variable
    checkpoint: {encrypt: "${file:run.key}"}     a file, without the end of its last line

`Secret` is the reference and never the value, so a configuration that is printed, compared or stored shows the name. A
field whose type is `Secret` may hold a reference; no other field may.

`redact` takes out of a text what must not be in it: the value of every secret that a configuration of this process
names, in the spellings that texts give it; the user and password of a URL; what an `Authorization` header says; and
values of environment variables whose name says that they are secret. The journal, the small files of a run, the lines
on the console and what monitors are told go through it.
"""

from __future__ import annotations

import base64
import html
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import quote, quote_plus

from trimtab.errors import ConfigError, Finding

REFERENCE = re.compile(r"\$\{(env|file):([^}\"\\\x00-\x1f]+)\}")
MARKS = ("${env:", "${file:")
HINT = "write ${env:NAME} or ${file:PATH}"
MIN_CHARACTERS = 8
"""A shorter value is no secret, and taking it out of texts would take words out of them."""
MAX_BYTES = 64 << 10
HIDDEN = "***"


class Secret(str):
    """`${env:NAME}` or `${file:PATH}`: where a secret is. The value is read at each use and never kept here."""

    __slots__ = ()

    def __new__(cls, reference: str) -> Secret:
        """
        Raises:
            ValueError: it is no reference; the message does not repeat it.
        """
        if not REFERENCE.fullmatch(reference):
            raise ValueError(f"expected a reference, not the secret itself: {HINT}")
        return super().__new__(cls, reference)

    def read(self, key: str) -> str:
        """The value as it is now, so that it can be changed while a run goes on.

        Args:
            key: the configuration key that errors name.

        Raises:
            ConfigError: there is none, it cannot be read, or it is too short to be a secret.
        """
        kind, name = self._parts()
        try:
            value = os.environ[name] if kind == "env" else _file(name)
        except KeyError:
            raise _fault(key, self, "the environment variable is not set") from None
        except OSError as error:
            raise _fault(key, self, f"the file cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise _fault(key, self, str(error)) from None
        if len(value) < MIN_CHARACTERS:
            raise _fault(key, self, f"has {len(value)} characters, expected {MIN_CHARACTERS} or more")
        if _is_word(value):
            raise _fault(key, self, "is a word, which can be guessed; `openssl rand -hex 32` makes a secret")
        learn(value, self)
        return value

    def below(self, folder: Path) -> Secret:
        """The same, with a path as it is named from here, else from `folder`, made absolute."""
        kind, name = self._parts()
        if kind == "env" or Path(name).is_absolute():
            return self
        path = Path(name).expanduser()
        beside = folder / path
        found = beside if not path.exists() and beside.exists() else path
        return Secret(f"${{file:{found.absolute()}}}")

    @property
    def environment_name(self) -> str | None:
        """The environment variable that it is in, or None."""
        kind, name = self._parts()
        return name if kind == "env" else None

    def _parts(self) -> tuple[str, str]:
        found = REFERENCE.fullmatch(self)
        assert found is not None
        return found[1], found[2]

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        text = core_schema.str_schema(pattern=f"^{REFERENCE.pattern}$")
        return core_schema.no_info_after_validator_function(cls, text)


def _file(name: str) -> str:
    with Path(name).expanduser().open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"the file has more than {MAX_BYTES >> 10} KiB, which is no secret")
    try:
        return data.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise ValueError("the file is not UTF-8; write a key as text, such as `openssl rand -hex 32` gives") from None


def _fault(key: str, secret: Secret, what: str) -> ConfigError:
    return ConfigError([Finding(place=key, what=f"{secret}: {what}")])


# ------------------------------------------------------------------------------------------------------------ redaction
_values: dict[str, str] = {}
"""Every spelling of every value that was met, and what stands in its place."""
_watched: dict[Secret, Any] = {}
"""References whose values are looked at again before each redaction, and what says whether they have changed."""
_URL = re.compile(r"(?<![A-Za-z0-9+.-])([A-Za-z][A-Za-z0-9+.-]*://)[^/?#\s\"'<>`\\]+@")
_HEADER = re.compile(
    r"(?i)\b((?:proxy-)?authorization|x-api-key|api-key|x-auth-token|x-amz-security-token)"
    r"(\\?[\"']?\s*[:=]\s*(?:b?\\?[\"'])?|\\?[\"']\s*,\s*b?\\?[\"'])"
    r"((?:bearer|basic|token|digest|negotiate)\s+)?[^\s\"'\\,;)}\]]+"
)
_SAYS_SECRET = re.compile(r"(?i)(^|_)(token|secret|password|passwd|passphrase|api_?key|access_?key|private_?key)$")
_LINE = 16
"""A line of a value with several, and the beginning of one that was cut, are taken out if they are at least so long."""


def watch(secret: Secret) -> None:
    """From now on the value of this secret stands in no text that `redact` has seen, whatever it is by then."""
    _watched.setdefault(secret, None)


def watched() -> list[Secret]:
    """Every secret that a configuration of this process has named."""
    return list(_watched)


def learn(value: str, name: str = HIDDEN) -> None:
    """From now on this value stands in no text that `redact` has seen, unless it is short or a word."""
    if len(value.strip()) < MIN_CHARACTERS or _is_word(value):
        return
    lines = [line for line in value.splitlines() if len(line) >= _LINE]
    for text in (value, *(lines if len(lines) > 1 else ())):
        for spelling in _spellings(text):
            _values.setdefault(spelling, str(name))


def _is_word(value: str) -> bool:
    """Whether it may be a word of any text, a key or a name of a file: what is without it would be another text."""
    return len(value) < 2 * MIN_CHARACTERS and re.fullmatch(r"[A-Za-z_./:-]*", value.strip()) is not None


def _spellings(value: str) -> Iterator[str]:
    """A value as JSON, Python, URLs, HTML, shells and HTTP headers write it."""
    yield value
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    yield json.dumps(json.dumps(value)[1:-1])[1:-1]  # an error of a worker is JSON in a message, and that in a file
    yield repr(value)[1:-1]
    yield quote(value)
    yield quote(value, safe="")
    yield quote_plus(value)
    yield html.escape(value)
    yield shlex.quote(value)
    data = value.encode("utf-8", "surrogatepass")
    yield base64.b64encode(data).decode().rstrip("=")
    yield base64.urlsafe_b64encode(data).decode().rstrip("=")


def redact(text: str) -> str:
    """The text without secrets. Each stands as the reference that names it, or as `***`.

    >>> redact("cannot reach https://me:hunter2@example.org/x")  # pragma: allowlist secret
    'cannot reach https://***@example.org/x'
    >>> redact("headers: {'Authorization': 'Bearer abc.def'}")
    "headers: {'Authorization': 'Bearer ***'}"
    """
    _look_again()
    known = sorted(_values, key=len, reverse=True)
    for value in known:
        if value in text:
            text = _without(text, value, _values[value], len(value))
    for value in known:  # what is left may be the beginning of one that a message has cut
        if len(value) >= 2 * _LINE and value[:_LINE] in text:
            text = _without(text, value, _values[value], max(_LINE, len(value) // 4))
    if "://" in text:
        text = _URL.sub(rf"\1{HIDDEN}@", text)
    return _HEADER.sub(rf"\1\2\3{HIDDEN}", text)


def _without(text: str, value: str, name: str, least: int) -> str:
    """The text without a value, or without beginnings of it that are at least so long.

    What is taken out does not begin or end within an escape, so that JSON stays JSON.
    """
    found, place = [], 0
    while (start := text.find(value[:least], place)) >= 0:
        end = start + least
        while end < len(text) and end - start < len(value) and text[end] == value[end - start]:
            end += 1
        start -= _backslashes(text[place:start]) % 2
        end += _backslashes(text[start:end]) % 2
        found += [text[place:start], name]
        place = end
    return "".join([*found, text[place:]])


def _backslashes(text: str) -> int:
    """How many it ends with."""
    return len(text) - len(text.rstrip("\\"))


def _look_again() -> None:
    """Learn the present values of what is watched, and of what the environment calls secret."""
    for secret, before in list(_watched.items()):
        kind, name = secret._parts()
        try:
            if kind == "env":
                signature: Any = os.environ[name]
            else:
                status = os.stat(name)  # noqa: PTH116 - at every line that is shown
                signature = (status.st_mtime_ns, status.st_size, status.st_ino)
            if signature != before:
                _watched[secret] = signature
                learn(signature if kind == "env" else _file(name), secret)
        except (KeyError, OSError, ValueError):
            continue  # whoever needs it says so
    for name, value in os.environ.items():
        is_path = value.startswith("/")
        if len(value) >= MIN_CHARACTERS and not is_path and value not in _values and _SAYS_SECRET.search(name):
            learn(value, f"${{env:{name}}}")


class RedactingStream:
    """A text stream that redacts what is written to it; all else is the stream's own, but for its bytes: a way past."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(redact(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":
            raise AttributeError(name)
        return getattr(self._stream, name)


def forget() -> None:
    """Of all secrets of this process, for a process that stands for several (tests)."""
    _values.clear()
    _watched.clear()


def guard_console() -> None:
    """What this process prints goes through `redact`."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, RedactingStream):
            setattr(sys, name, RedactingStream(stream))
