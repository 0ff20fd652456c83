"""Dashboards of tests: a real server on a free port, with a client that has the token."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from html.parser import HTMLParser
from typing import Any, NamedTuple

import httpx

from cq.cli.web.command import WebOptions
from cq.cli.web.server import Server
from cq.observers.telemetry.metrics import Address
from tests.kit.faults import TIMED_OUT, WrappedDatabase

TOKEN = "the-token-of-all-tests"  # noqa: S105
SECONDS = 60.0


class Serving(NamedTuple):
    """A running server, and a client with its cookie."""

    server: Server
    client: httpx.Client

    def page(self, path: str, status: int = 200, until: str = "") -> str:
        """The HTML of a page, once it has this text: a page waits at most 10 seconds for the store or for checks."""
        deadline = time.monotonic() + SECONDS
        while True:
            answer = self.client.get(path)
            assert answer.status_code == status, answer.text
            if until in answer.text:
                return answer.text
            assert time.monotonic() < deadline, answer.text
            time.sleep(0.1)

    @property
    def cookie(self) -> str:
        """The `Cookie` header of the client."""
        return "; ".join(f"{name}={value}" for name, value in self.client.cookies.items())


@contextmanager
def serving(db: Any, *, operates: bool = False, store: str | None = None, port: int = 0) -> Iterator[Serving]:
    """Serve a store, and stop at the end."""
    with serving_with(db, WebOptions(store, operate=operates, host=["dashboard.test"]), port) as found:
        yield found


@contextmanager
def serving_with(db: Any, options: WebOptions, port: int = 0) -> Iterator[Serving]:
    """As `serving`, with options."""
    server = Server(db, Address("127.0.0.1", port), TOKEN, options)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        with httpx.Client(base_url=server.url, timeout=SECONDS) as client:
            answer = client.get("/", params={"token": TOKEN}, follow_redirects=False)
            assert answer.status_code == 303
            yield Serving(server, client)
    finally:
        server.stop()
        thread.join(SECONDS)
        assert not thread.is_alive()


@asynccontextmanager
async def stream(found: Serving, path: str) -> AsyncIterator[asyncio.StreamReader]:
    """The open stream of a page, without its headers."""
    async with stream_of(found, f"/events?path={path}") as reader:
        yield reader


@asynccontextmanager
async def stream_of(found: Serving, target: str) -> AsyncIterator[asyncio.StreamReader]:
    """The open stream at an address, without its headers."""
    url = httpx.URL(found.server.url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    request = f"GET {target} HTTP/1.1\r\nHost: {url.host}:{url.port}\r\nCookie: {found.cookie}\r\n\r\n"
    writer.write(request.encode())
    try:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), SECONDS)
        assert b" 200 " in head.split(b"\r\n")[0], head
        yield reader
    finally:
        writer.close()


async def events(reader: asyncio.StreamReader, number: int) -> list[str]:
    """The data of the next events of a stream."""
    found: list[str] = []
    while len(found) < number:
        line = await asyncio.wait_for(reader.readline(), SECONDS)
        assert line, "the server has closed the stream"
        if line.startswith(b"data: "):
            found.append(line.removeprefix(b"data: ").decode().strip())
    return found


class CountedReads(WrappedDatabase):
    """A database that counts its transactions, and fails them while it is down."""

    transactions = 0
    is_down = False

    def create_transaction(self) -> Any:
        self.transactions += 1
        if self.is_down:
            raise self.error(TIMED_OUT)
        return super().create_transaction()


class Outline(HTMLParser):
    """What a page consists of, as far as tests of its structure need it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.headings: list[int] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if len(tag) == 2 and tag[0] == "h" and tag[1].isdigit():
            self.headings.append(int(tag[1]))

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        """The attributes of all elements of a tag."""
        return [attributes for each, attributes in self.tags if each == tag]
