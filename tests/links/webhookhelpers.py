"""The receiver of the page about webhooks, in this process or behind HTTP, and what it has received."""

from __future__ import annotations

import json
import re
import sqlite3
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import StreamRequestHandler
from typing import Any

from standardwebhooks import Webhook

from cq.observers.links.targets.receiver import Answer

PAGE = Path(__file__).parents[2] / "docs" / "connect" / "webhooks.md"
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # noqa: S105 - the example of Standard Webhooks
HISTORY = """
CREATE TABLE IF NOT EXISTS history (number INTEGER PRIMARY KEY, key TEXT, value TEXT);
CREATE TRIGGER IF NOT EXISTS applied AFTER INSERT ON word_counts
BEGIN INSERT INTO history (key, value) VALUES (new.key, new.value); END;
"""


def documented() -> dict[str, Any]:
    """The names in the program `receiver.py` of the page."""
    names: dict[str, Any] = {"__name__": "receiver"}
    (program,) = re.findall(
        r"as `receiver\.py`:\n\n```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE
    )
    exec(program, names)  # noqa: S102 - the page's own program
    return names


class Kept:
    """The receiver of the page: its file, and its function that applies a message.

    Attributes:
        messages: all messages that it was sent, with their ids.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        names = documented()
        self.receive: Callable[[Any, Any], tuple[int, Any]] = names["receive"]
        self.messages: list[tuple[str, Any]] = []
        with self.opened() as db:
            db.executescript(names["TABLES"] + HISTORY)

    @contextmanager
    def opened(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path, timeout=60)) as db:
            db.execute("PRAGMA synchronous = OFF")  # no test ends this machine
            yield db

    def check(self) -> str:
        return "here"

    def post(self, message: str, body: bytes) -> Answer:
        content = json.loads(body)
        self.messages.append((message, content))
        with self.opened() as db:
            status, answer = self.receive(db, content)
        return Answer(status, json.dumps(answer))

    def close(self) -> None:
        pass

    @property
    def sent(self) -> list[Any]:
        """The data of messages with entries."""
        return [content["data"] for _, content in self.messages if content["data"].get("entries")]

    def values(self) -> dict[Any, Any]:
        """{key: value} that it keeps."""
        return {json.loads(key): json.loads(value) for key, value in self._rows("word_counts")}

    def history(self) -> dict[Any, list[Any]]:
        """{key: all values that it has stored, in order}."""
        found: dict[Any, list[Any]] = {}
        for key, value in self._rows("history ORDER BY number"):
            found.setdefault(json.loads(key), []).append(json.loads(value))
        return found

    def positions(self) -> dict[str, str]:
        """{bucket: position}."""
        with self.opened() as db:
            return dict(db.execute("SELECT bucket, position FROM positions"))

    def _rows(self, of: str) -> list[Any]:
        with self.opened() as db:
            return db.execute(f"SELECT key, value FROM {of}").fetchall()  # noqa: S608


class Server(ThreadingHTTPServer):
    """A server that is silent about connections that clients end, and does not wait for open ones at its end."""

    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore the error."""


@contextmanager
def serving(
    answer: Callable[[BaseHTTPRequestHandler, bytes], tuple[int, bytes]],
    tls: ssl.SSLContext | None = None,
    headers: Callable[[], dict[str, str]] = dict,
) -> Iterator[str]:
    """Serve HTTP by this function of a request and its body until the block ends; yields the URL.

    `headers` returns further headers of the answer.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else the content waits for an acknowledgement of the headers

        def do_POST(self) -> None:
            status, content = answer(self, self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", "/elsewhere")
            for name, text in headers().items():
                self.send_header(name, text)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST  # noqa: N815 - the name in http.server

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in http.server
            pass

    with _served(Handler, tls) as address:
        yield f"{address}/words?token=hidden"


@contextmanager
def _served(handler: type[StreamRequestHandler], tls: ssl.SSLContext | None) -> Iterator[str]:
    """A server with this handler until the block ends; yields its address."""
    server = Server(("127.0.0.1", 0), handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def dripping(begin: bytes, tls: ssl.SSLContext | None = None) -> Iterator[tuple[str, threading.Semaphore]]:
    """A receiver that answers each request with these bytes, and then for minutes with a byte now and then.

    Yields its URL, and a semaphore that is released for each request before the first of these bytes.
    """
    ended, begun = threading.Event(), threading.Semaphore(0)

    class Handler(StreamRequestHandler):
        def handle(self) -> None:
            size = 0
            while (line := self.rfile.readline()).strip():
                if line.lower().startswith(b"content-length:"):
                    size = int(line.split(b":")[1])
            self.rfile.read(size)
            self.wfile.write(begin)
            begun.release()
            for _ in range(6_000):
                if ended.wait(0.05):
                    return
                self.wfile.write(b"x")

    with _served(Handler, tls) as address:
        try:
            yield f"{address}/words", begun
        finally:
            ended.set()


@contextmanager
def serving_kept(kept: Kept) -> Iterator[str]:
    """Serve the receiver of the page, which verifies signatures; yields the URL."""

    def answer(request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, bytes]:
        Webhook(SECRET).verify(body, dict(request.headers))
        found = kept.post(request.headers["webhook-id"], body)
        return found.status, found.text.encode()

    with serving(answer) as url:
        yield url
