"""The example of a web application, really served: pages hear of newer clouds, and what users type is escaped."""

from __future__ import annotations

import json
import os
import re
import runpy
import signal
import socket
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest

from tests.kit.processes import StartedProcesses, ended, wait_until

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "tag_app.py"
SECONDS = 60


class Site:
    """The application at its address."""

    def __init__(self, address: str) -> None:
        self.address = address

    def page(self) -> str:
        with urlopen(self.address, timeout=SECONDS) as answer:  # noqa: S310
            return str(answer.read().decode())

    def post(self, **fields: str) -> None:
        with urlopen(f"{self.address}/notes", urlencode(fields).encode(), timeout=SECONDS) as answer:  # noqa: S310
            assert answer.url == f"{self.address}/"

    def events(self, last: str = "") -> Any:
        headers = {"Last-Event-ID": last} if last else {}
        return urlopen(Request(f"{self.address}/events", headers=headers), timeout=SECONDS)  # noqa: S310


def event(stream: Any) -> tuple[str, str]:
    """The id of the next event, and the cloud that it shows."""
    found = dict(line.decode().rstrip().split(": ", 1) for line in iter(stream.readline, b"\n"))
    return found["id"], json.loads(found["data"])[0]


def words(cloud: str) -> list[str]:
    """The words of a cloud with their numbers, as text in HTML."""
    return [re.sub("<.*?>", "", item) for item in re.findall("<li.*?</li>", cloud, flags=re.DOTALL)]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    names = runpy.run_path(str(EXAMPLE))
    with names["serving"](names["make_app"](f"embedded:{tmp_path / 'notes.db'}")) as address:
        yield Site(address)


def test_open_pages_hear_of_newer_clouds_and_get_what_they_have_missed(site: Site) -> None:
    site.post(name="one", tags="red, blue")
    with site.events() as first, site.events() as second:
        version, cloud = event(first)
        assert event(second) == (version, cloud)
        assert "red 1" in words(cloud)
        site.post(name="two", tags="red")
        newer, cloud = event(first)
        assert event(second) == (newer, cloud)
        assert "red 2" in words(cloud)
        assert int(newer) > int(version)

    with site.events(version) as again:
        assert event(again) == (newer, cloud), "at once"
    with site.events(newer) as again:
        site.post(name="one", tags="")
        last, cloud = event(again)
        assert "blue" not in cloud
        assert int(last) > int(newer)
    with site.events("no version") as again:
        assert event(again)[0] == last


def test_what_users_type_is_escaped(site: Site) -> None:
    with site.events() as stream:
        site.post(name="one", tags="<script>alert(1)</script>, new\nline")
        _, cloud = event(stream)

    assert "<script>" not in cloud
    assert "&lt;script&gt;alert(1)&lt;/script&gt; 1" in words(cloud)
    assert "new\\u000aline 1" in words(cloud)
    assert cloud in site.page()


def test_the_notes_are_shown_with_their_tags(site: Site) -> None:
    site.post(name="<b>one</b>", text="It <i>rains</i>.", tags="wet, rain")
    page = site.page()

    assert "<dt>&lt;b&gt;one&lt;/b&gt;</dt>" in page
    assert "<dd>It &lt;i&gt;rains&lt;/i&gt;. <small>rain, wet</small></dd>" in page
    with site.events() as stream:
        found = dict(line.decode().rstrip().split(": ", 1) for line in iter(stream.readline, b"\n"))
    assert "<dt>&lt;b&gt;one&lt;/b&gt;</dt>" in json.loads(found["data"])[1]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"name": "x" * 51},
        {"name": "x", "tags": "y" * 51},
        {"name": "x", "tags": ",".join("abcdefghijklmnopqrstu")},
    ],
    ids=["no name", "long name", "long tag", "many tags"],
)
def test_a_note_that_asks_for_too_much_is_refused(site: Site, fields: dict[str, str]) -> None:
    with pytest.raises(HTTPError, match="400") as refused:
        site.post(**fields)
    refused.value.close()


def answer(site: Site, method: str, path: str, body: bytes = b"", **headers: str) -> int:
    """The status of the answer to a request with these headers."""
    connection = HTTPConnection(site.address.removeprefix("http://"), timeout=SECONDS)
    try:
        connection.request(
            method, path, body, {name.replace("_", "-"): each for name, each in headers.items()}
        )
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize(("method", "path"), [("GET", "/"), ("POST", "/notes"), ("GET", "/events")])
def test_other_hosts_and_pages_of_other_sites_are_refused(site: Site, method: str, path: str) -> None:
    own = site.address.removeprefix("http://")
    site.post(name="one", tags="red")
    done = 303 if method == "POST" else 200
    note = urlencode({"name": "two", "tags": "blue"}).encode() if method == "POST" else b""

    assert answer(site, method, path, note, Host="evil.example") == 400
    assert answer(site, method, path, note, Host="evil.example", Origin="http://evil.example") == 400
    for origin in (
        "http://evil.example",
        "null",
        "http://127.0.0.1:1",
        "",
        "http://[",
        f"http://{own}.evil.example",
    ):
        assert answer(site, method, path, note, Origin=origin) == 403, origin
    assert "blue" not in site.page()
    assert answer(site, method, path, note, Origin=site.address) == done
    assert answer(site, method, path, note) == done


def test_a_large_body_is_refused_before_it_is_read(site: Site) -> None:
    assert answer(site, "POST", "/notes", b"name=x&text=" + b"y" * 64_000) == 413
    assert answer(site, "POST", "/notes", b"name=x&text=" + b"y" * 60_000) == 303


@pytest.mark.parametrize("last", ["9" * 19, "9" * 5_000, "-1", "\u00b2"])
def test_an_event_id_of_any_length_is_no_error(site: Site, last: str) -> None:
    site.post(name="one", tags="red")
    with site.events() as stream:
        expected = event(stream)
    with site.events(last) as stream:
        assert event(stream) == expected


def test_no_more_streams_are_open_than_allowed_and_an_end_makes_room(tmp_path: Path) -> None:
    names = runpy.run_path(str(EXAMPLE))
    names["events"].__globals__["MAX_STREAMS"] = 2
    app = names["make_app"](f"embedded:{tmp_path / 'notes.db'}")
    with names["serving"](app) as address:
        site = Site(address)
        site.post(name="one", tags="red")
        with site.events() as first:
            event(first)
            second = site.events()
            event(second)
            assert answer(site, "GET", "/events") == 503
            assert answer(site, "GET", "/") == 200
            second.close()
            # The server notices by itself that the page has gone.
            wait_until(lambda: answer(site, "GET", "/events") != 503)


def test_it_ends_although_pages_are_open(tmp_path: Path) -> None:
    names = runpy.run_path(str(EXAMPLE))
    with names["serving"](names["make_app"](f"embedded:{tmp_path / 'notes.db'}")) as address:
        site = Site(address)
        site.post(name="one", tags="red")
        stream = site.events()
        event(stream)
    stream.close()


def test_an_interrupt_ends_the_server_and_its_open_pages_without_a_traceback(
    tmp_path: Path, processes: StartedProcesses
) -> None:
    """uvicorn waits for open streams: without the application's own handler this server would never end."""
    listening = socket.create_server(("127.0.0.1", 0))
    folder = str(EXAMPLE.parent)
    command = [sys.executable, "-m", "uvicorn", "--app-dir", folder, "--fd", str(listening.fileno())]
    environment = {**os.environ, "CQ_STORE": f"embedded:{tmp_path / 'notes.db'}"}
    with listening:
        server = processes.launch(
            *command, "tag_app:app", env=environment, pass_fds=[listening.fileno()], stdout=None
        )
        site = Site(f"http://127.0.0.1:{listening.getsockname()[1]}")
        site.post(name="one", tags="red")
        with site.events() as stream:
            event(stream)
            server.send_signal(signal.SIGINT)
            found = ended(server)

    assert found.status == 0
    assert "Traceback" not in found.err
    assert "Finished server process" in found.err
