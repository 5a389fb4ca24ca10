"""A web server on this machine that stands for Slack, DingTalk, Feishu, WeCom or somebody's own receiver."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

OK = {
    "json": (204, ""),
    "slack": (200, "ok"),
    "dingtalk": (200, '{"errcode":0,"errmsg":"ok"}'),
    "feishu": (200, '{"StatusCode":0,"StatusMessage":"success","code":0,"data":{},"msg":"success"}'),
    "wecom": (200, '{"errcode":0,"errmsg":"ok"}'),
}


class Receiver:
    """Remembers what it is sent; answers from `answers` in turn, and by `OK` when there is none left.

    An answer is (status, text) or (status, text, headers); a callable is called with the request's number first.
    """

    def __init__(self, kind="json", answers=()):
        self.kind = kind
        self.answers = list(answers)
        self.got = []
        self._changed = threading.Condition()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):  # the name that the library looks for
                body = self.rfile.read(int(self.headers["Content-Length"]))
                parts = urlsplit(self.path)
                receiver.take(dict(self.headers), parts.path, parse_qs(parts.query), body, self)

            def do_GET(self):
                receiver.take(dict(self.headers), self.path, {}, b"GET", self)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server.server_port}/hook/a-long-token-0123456789"

    def take(self, headers, path, query, body, handler):
        with self._changed:
            self.got.append({"headers": headers, "path": path, "query": query, "body": body})
            answer = self.answers.pop(0) if self.answers else OK[self.kind]
            self._changed.notify_all()
        if callable(answer):
            answer = answer(self)
        status, text, *rest = answer
        handler.send_response(status)
        for name, value in (rest[0] if rest else {}).items():
            handler.send_header(name, value)
        data = text.encode()
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    def wait(self, count, seconds=20):
        """Until so many requests have come."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.got) >= count, seconds), f"{len(self.got)} of {count} came"
        return self.got

    def bodies(self):
        return [json.loads(request["body"]) for request in self.got]

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
