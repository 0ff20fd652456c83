"""Connections of the dashboard: clients without a token keep out nobody, whatever they send or do not read."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import httpx
import pytest

from cq.cli.web import server
from tests.cli.conftest import Cli, Here
from tests.cli.web.dashboards import SECONDS, Serving, serving

COMPLETE = b"GET /static/style.css HTTP/1.1\r\nHost: localhost\r\n\r\n"
INCOMPLETE = {
    "nothing": b"",
    "a byte": b"G",
    "headers without an end": b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ",
    "half a body": b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\ntoken=",
    "half a body of a request that is refused": (
        b"POST /login HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 100\r\n\r\ntoken="
    ),
    "a request, and the next one in part": COMPLETE + b"GET /",
}


@contextmanager
def connected(url: str) -> Iterator[socket.socket]:
    """A connection to a server."""
    parts = httpx.URL(url)
    with socket.create_connection((parts.host, parts.port or 80), SECONDS) as found:
        yield found


def is_closed(connection: socket.socket) -> bool:
    """Read until the server closes the connection."""
    with suppress(ConnectionResetError):
        while connection.recv(65_536):
            pass
    return True


@pytest.mark.parametrize("what", INCOMPLETE)
def test_a_request_that_is_never_complete_is_closed(
    db: Any, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.5)
    with serving(db) as found, connected(found.server.url) as connection:
        connection.sendall(INCOMPLETE[what])
        assert is_closed(connection)


def test_a_request_that_comes_byte_by_byte_is_closed(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.5)
    with serving(db) as found, connected(found.server.url) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nX: ")
        connection.settimeout(0.05)
        with suppress(ConnectionError):
            for _ in range(400):  # far fewer bytes than the limit of a header
                with suppress(TimeoutError):
                    connection.sendall(b"x")
                    assert connection.recv(1) == b""
                    return
            pytest.fail("the connection is still open")


def keep_sending(connection: socket.socket, data: bytes) -> None:
    """Send until the server closes the connection."""
    while True:
        connection.sendall(data)


def test_an_answer_that_is_never_read_is_closed(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "STALL_SECONDS", 0.5)
    with serving(db) as found, connected(found.server.url) as connection, pytest.raises(ConnectionError):
        keep_sending(connection, COMPLETE * 100)


def test_new_connections_replace_those_that_wait_longest_but_no_request_under_way(
    db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "max_connections", lambda: 3)
    with serving(db) as found, ExitStack() as stack:
        found.client.close()
        lines = stack.enter_context(streaming(found))
        first, second = (stack.enter_context(connected(found.server.url)) for _ in range(2))
        third = stack.enter_context(connected(found.server.url))
        assert is_closed(first)
        third.sendall(COMPLETE)
        assert third.recv(8) == b"HTTP/1.1"
        second.sendall(COMPLETE)
        assert second.recv(8) == b"HTTP/1.1"
        more = [stack.enter_context(streaming(found)) for _ in range(2)]
        refused = stack.enter_context(connected(found.server.url))
        assert is_closed(refused)
        for each in (lines, *more):
            assert "part-queues" in next(line for line in each if line.startswith("data"))


@contextmanager
def streaming(found: Serving) -> Iterator[Iterator[str]]:
    """The lines of an open page, from a connection of its own."""
    with (
        httpx.Client(base_url=found.server.url, timeout=SECONDS, headers={"Cookie": found.cookie}) as client,
        client.stream("GET", "/events", params={"path": "/"}) as answer,
    ):
        lines = answer.iter_lines()
        assert next(lines).startswith("retry")
        yield lines


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs prlimit")
def test_many_connections_of_one_byte_do_not_lock_the_server(here: Here, cli: Cli) -> None:
    here("configure", "words", "--combiner", "sum")
    process = cli.start("web", "--listen", "0")
    assert process.stdout is not None
    url = httpx.URL(process.stdout.readline().decode().split()[-1])
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (256, 256))
    with ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(connected(str(url))).sendall(b"G")

        answer = httpx.get(url, follow_redirects=True, timeout=SECONDS)

        assert answer.status_code == 200
        assert "words" in answer.text
    process.terminate()
    _, errors = process.communicate(timeout=SECONDS)
    assert (process.returncode, errors) == (0, b"cq web: read-only; ^C ends it\n")
