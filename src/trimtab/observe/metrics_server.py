"""The small web server behind `/metrics`, `/healthz` and `/readyz`. It reads and never writes."""

from __future__ import annotations

import hmac
import itertools
import json
import math
import socket
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from trimtab.errors import TrimtabError
from trimtab.observe.settings import is_loopback

REQUEST_SECONDS = 10.0
"""A client that says nothing for so long is left."""


class MetricsServer:
    """Answers from threads of its own until it is closed."""

    def __init__(
        self,
        registry: CollectorRegistry,
        health: Callable[[], Mapping[str, Any]],
        *,
        address: str,
        port: int,
        token: Callable[[], str] | None = None,
    ) -> None:
        """
        Args:
            token: what the header `Authorization: Bearer` must bring for `/metrics`, asked for at each request.

        Raises:
            OSError: the address cannot be listened at.
        """
        outer = self
        self._scraped = threading.Condition()
        self._scrapes: list[float] = []
        """When the newest three came."""
        self._answered = -math.inf
        """When the newest one came that has been answered."""
        self.registry, self.health, self.token = registry, health, token
        self.is_loopback = is_loopback(address)

        class Handler(_Handler):
            server_of = outer

        self._server = _Server((address, port), Handler)
        host = f"[{address}]" if ":" in address else address
        self.url = f"http://{host}:{self._server.server_address[1]}/metrics"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="trimtab-metrics", daemon=True
        )
        self._thread.start()

    def note_scrape(self) -> float:
        """One has come; the time."""
        with self._scraped:
            self._scrapes = [*self._scrapes, time.monotonic()][-3:]
            return self._scrapes[-1]

    def note_answer(self, came: float) -> None:
        """The scrape that came at this time has been answered."""
        with self._scraped:
            self._answered = max(self._answered, came)
            self._scraped.notify_all()

    @property
    def interval(self) -> float | None:
        """Seconds between scrapes; None if there were not two."""
        with self._scraped:
            gaps = [b - a for a, b in itertools.pairwise(self._scrapes)]
        return max(gaps, default=None)

    def wait_for_scrape(self, seconds: float) -> bool:
        """Until a scrape that comes from now on has been answered, at most so long; whether there was one."""
        now = time.monotonic()
        with self._scraped:
            return self._scraped.wait_for(lambda: self._answered >= now, seconds)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)

    def handle_error(self, *_: Any) -> None:
        """A client that hangs up is nobody's concern."""


class _Handler(BaseHTTPRequestHandler):
    server_of: MetricsServer
    timeout = REQUEST_SECONDS
    server_version = "trimtab"
    sys_version = ""
    protocol_version = "HTTP/1.0"
    """A connection a request: one that stays open would be answered for a run that has ended."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if not self._is_meant_for_us():
            self._answer(403, "text/plain", b"this host name is not ours\n")
        elif path == "/metrics":
            self._answer_metrics()
        elif path in ("/healthz", "/readyz"):
            found = self.server_of.health()
            is_well = not found["stalled"] if path == "/healthz" else found["state"] == "training"
            self._answer(200 if is_well else 503, "application/json", json.dumps(found).encode() + b"\n")
        else:
            self._answer(404, "text/plain", b"/metrics, /healthz, /readyz\n")

    do_HEAD = do_GET  # noqa: N815

    def _is_meant_for_us(self) -> bool:
        """A page in a browser can send requests to this computer under a name of its own; only our names are answered."""
        if not self.server_of.is_loopback:
            return True  # the token says who may
        host = self.headers.get("Host", "localhost")
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        return is_loopback(name)

    def _answer_metrics(self) -> None:
        if self.server_of.token is not None:
            try:
                expected = f"Bearer {self.server_of.token()}".encode()
            except TrimtabError:
                self._answer(503, "text/plain", b"the token cannot be read\n")
                return
            if not hmac.compare_digest(self.headers.get("Authorization", "").encode(), expected):
                self._answer(401, "text/plain", b"a token is needed\n", {"WWW-Authenticate": "Bearer"})
                return
        came = self.server_of.note_scrape()
        encode, kind = choose_encoder(self.headers.get("Accept", ""))
        self._answer(200, kind, encode(self.server_of.registry))
        self.wfile.flush()
        self.server_of.note_answer(came)

    def _answer(self, status: int, kind: str, body: bytes, more: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        said = {"Content-Type": kind, "Content-Length": str(len(body)), "X-Content-Type-Options": "nosniff"}
        for name, value in {**said, **(more or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Scrapes are not told of."""
