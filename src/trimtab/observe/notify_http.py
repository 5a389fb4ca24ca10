"""One POST to a webhook: no redirect is followed, the answer is bounded, and no error repeats the address."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from trimtab import __version__, secrets
from trimtab.errors import ConfigError, Finding
from trimtab.observe.settings import is_loopback
from trimtab.secrets import Secret

MOST_BYTES = 64 << 10
"""Of an answer that are read."""
LONGEST_WAIT = 3600.0
"""Seconds that a receiver can ask to be left alone for."""
_TOKEN = 16
"""A part of an address with so many characters may be what makes it a secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int
    text: str
    retry_after: float | None = None
    """Seconds."""


class UnreachableError(Exception):
    """There was no answer; the message says why, without the address."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def address(reference: Secret, key: str) -> str:
    """The address that a reference has now; its telling parts stand in no text from here on.

    Raises:
        ConfigError: there is none, or it is no address of a web server.
    """
    url = reference.read(key).strip()
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host, parts = None, urlsplit("")
    if parts.scheme not in ("http", "https") or not host or any(c.isspace() or not c.isprintable() for c in url):
        raise ConfigError([Finding(place=key, what=f"{reference}: is no address", hint="expected https://HOST/PATH")])
    if "@" in parts.netloc:
        what = f"{reference}: the address has a user or password in it"
        raise ConfigError([Finding(place=key, what=what, hint="use `secret`, or a token in the path")])
    for part in (*parts.path.split("/"), *(value for _, value in parse_qsl(parts.query))):
        if len(part) >= _TOKEN:
            secrets.learn(part, reference)
    return url


def host_of(url: str) -> str:
    """What may be said of an address."""
    return urlsplit(url).netloc


def post(url: str, data: bytes, headers: Mapping[str, str], *, timeout_seconds: float) -> Answer:
    """Send, and give back what was answered.

    Raises:
        UnreachableError: nothing was.
    """
    told = {"User-Agent": f"trimtab/{__version__}", "Accept": "*/*", **headers}
    request = urllib.request.Request(url, data=data, headers=told, method="POST")  # noqa: S310 - of `address`
    proxies: Any = [urllib.request.ProxyHandler({})] if is_loopback(urlsplit(url).hostname or "") else []
    opener = urllib.request.build_opener(_NoRedirect, *proxies)
    until = time.monotonic() + timeout_seconds
    try:
        try:
            response: Any = opener.open(request, timeout=timeout_seconds)
        except urllib.error.HTTPError as error:
            response = error
        with response:
            text = _read(response, until).decode("utf-8", "replace")
            return Answer(status=response.status, text=text, retry_after=_wait(response.headers.get("Retry-After")))
    except urllib.error.URLError as error:
        reason = error.reason
        raise UnreachableError(str(getattr(reason, "strerror", None) or reason)) from None
    except TimeoutError:
        raise UnreachableError(f"no answer within {timeout_seconds:g} s") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise UnreachableError(
            f"{type(error).__name__}: {getattr(error, 'strerror', None) or 'no valid answer'}"
        ) from None


def _read(response: Any, until: float) -> bytes:
    """The beginning of a body, as much of it as comes in time."""
    found = b""
    while len(found) < MOST_BYTES and (piece := response.read1(MOST_BYTES - len(found))):
        found += piece
        if time.monotonic() > until:
            raise TimeoutError
    return found


def _wait(said: str | None) -> float | None:
    """Seconds that a `Retry-After` asks for."""
    if not said:
        return None
    try:
        seconds = float(said)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(said).timestamp() - time.time()
        except (TypeError, ValueError):
            return None
    return min(max(seconds, 0.0), LONGEST_WAIT) if seconds == seconds else None
