"""`cq web` as a process: what it prints and needs, its end while a page is open, and its limits of connections."""

from __future__ import annotations

import json
import re
import resource
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import httpx
import pytest

import cq
from cq.cli.web import server
from cq.feeds.feed import Feed
from cq.observers.feeds.observer import feed_spec
from cq.store import Space
from tests.cli.conftest import Cli, Here
from tests.cli.web.dashboards import Serving, serving
from tests.kit.processes import SECONDS


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_on_a_signal_while_a_page_and_a_changelog_are_open(cli: Cli, number: int) -> None:
    with cq.store.embedded.Database(cli.folder / "cli.db") as db:
        in_space = Space("cq").database(db)
        Feed[Any]("changes").configure(in_space)
        cq.configure(in_space, "words", observers=[feed_spec("changes")])
    process = cli.start("web", "--listen", "0")
    assert process.stdout is not None
    line = process.stdout.readline().decode()
    found = re.fullmatch(r"cq web: open (http://127\.0\.0\.1:\d+)/\?token=(\S{20,})\n", line)
    assert found is not None, line
    with httpx.Client(base_url=found[1], timeout=SECONDS) as browser:
        browser.get("/", params={"token": found[2]})
        with browser.stream("GET", "/events", params={"path": "/"}) as stream:
            lines = stream.iter_lines()
            while "part-queues" not in next(lines):
                pass
            with browser.stream("GET", "/changelog/words") as changelog:
                changes = changelog.iter_lines()
                while next(changes) != "event: start":
                    pass
                process.send_signal(number)
                for _ in (*lines, *changes):  # until the server has ended the streams
                    pass
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0
    assert (out, err) == (b"", b"cq web: read-only; ^C ends it\n")


def test_another_address_than_the_loopback_gets_a_warning_and_a_used_port_an_error(
    here: Here, cli: Cli
) -> None:
    here("configure", "words", "--combiner", "sum")
    with socket.create_server(("0.0.0.0", 0)) as used:  # noqa: S104 - nobody connects to it
        ended = cli.run("web", "--listen", f"0.0.0.0:{used.getsockname()[1]}")

    assert ended.status == 2
    assert "warning: 0.0.0.0 can be reached from other machines" in ended.err
    assert "choose another port with --listen" in ended.err
    assert ended.out == ""


def test_the_token_of_the_environment_is_used_and_checked(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    for token in ("short", "with space and length", "\N{SNOWFLAKE}" * 20):
        monkeypatch.setenv("CQ_WEB_TOKEN", token)
        ended = here("web", "--listen", "0")
        assert ended.status == 2
        assert "expected $CQ_WEB_TOKEN to have at least 16 letters, digits, '-' or '_'" in ended.err
        assert token not in ended.err


def test_a_token_of_the_environment_is_not_printed(here: Here, cli: Cli) -> None:
    here("configure", "words", "--combiner", "sum")
    token = "known-to-the-operator"  # noqa: S105
    process = cli.start(
        "web", "--listen", "0", "--json", "--log", "json", env={**cli.environment, "CQ_WEB_TOKEN": token}
    )
    assert process.stdout is not None
    printed = json.loads(process.stdout.readline())
    assert printed["operates"] is False
    with httpx.Client(base_url=printed["url"], timeout=SECONDS) as browser:
        assert browser.get("/").status_code == 401
        assert browser.get("/", params={"token": token}).status_code == 303
        assert "words" in browser.get("/").text
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=SECONDS)

    assert (process.returncode, err) == (0, b"")
    assert token not in f"{printed}{out!r}{err!r}"


@pytest.mark.parametrize("package", ["uvicorn", "h11"])
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    here: Here, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.delitem(sys.modules, "cq.cli.web.server", raising=False)
    monkeypatch.delattr("cq.cli.web.server", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    ended = here("web")

    assert ended.status == 2
    assert ended.err == (
        "cq: the dashboard needs packages that are not installed: run `pip install 'combine-queue[web]'`\n"
    )


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
