"""The example of a web application, really served: pages hear of newer clouds, and what users type is escaped."""

from __future__ import annotations

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "tag_app.py"
SECONDS = 20


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
    """The id of the next event, and what it shows."""
    found = dict(line.decode().rstrip().split(": ", 1) for line in iter(stream.readline, b"\n"))
    return found["id"], json.loads(found["data"])


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
        assert "red (1)" in cloud
        site.post(name="two", tags="red")
        newer, cloud = event(first)
        assert event(second) == (newer, cloud)
        assert "red (2)" in cloud
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
    assert "&lt;script&gt;alert(1)&lt;/script&gt; (1)" in cloud
    assert "new\nline (1)" in cloud
    assert cloud in site.page()


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


def test_it_ends_although_pages_are_open(tmp_path: Path) -> None:
    names = runpy.run_path(str(EXAMPLE))
    with names["serving"](names["make_app"](f"embedded:{tmp_path / 'notes.db'}")) as address:
        site = Site(address)
        site.post(name="one", tags="red")
        stream = site.events()
        event(stream)
    stream.close()


def test_an_interrupt_ends_the_server_and_its_open_pages_without_a_traceback(tmp_path: Path) -> None:
    """uvicorn waits for open streams: without the application's own handler this server would never end."""
    listening = socket.create_server(("127.0.0.1", 0))
    folder = str(EXAMPLE.parent)
    command = [sys.executable, "-m", "uvicorn", "--app-dir", folder, "--fd", str(listening.fileno())]
    environment = {**os.environ, "CQ_STORE": f"embedded:{tmp_path / 'notes.db'}"}
    with subprocess.Popen(
        [*command, "tag_app:app"],
        env=environment,
        pass_fds=[listening.fileno()],
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            site = Site(f"http://127.0.0.1:{listening.getsockname()[1]}")
            site.post(name="one", tags="red")
            with site.events() as stream:
                event(stream)
                server.send_signal(signal.SIGINT)
                _, log = server.communicate(timeout=SECONDS)
        finally:
            server.kill()
            listening.close()

    assert server.returncode == 0
    assert "Traceback" not in log
    assert "Finished server process" in log
