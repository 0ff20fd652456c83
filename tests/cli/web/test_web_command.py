"""`cq web` as a process: what it prints and needs, and its end while a page is open."""

from __future__ import annotations

import json
import re
import signal
import socket
import sys
from typing import Any

import httpx
import pytest

import cq
from cq.feeds.feed import Feed
from cq.observers.feeds.observer import feed_spec
from cq.store import Space
from tests.cli.conftest import Cli, Here
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


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "cq.cli.web.server", raising=False)
    monkeypatch.delattr("cq.cli.web.server", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    ended = here("web")

    assert ended.status == 2
    assert ended.err == (
        "cq: the dashboard needs packages that are not installed: run `pip install 'combine-queue[web]'`\n"
    )


def test_a_store_that_does_not_exist_is_one_line(here: Here) -> None:
    ended = here("web", "--listen", "0")

    assert ended.status == 1
    assert len(ended.err.splitlines()) == 1
