"""The examples of the page about changelogs: really followed, by its service and by its page in a browser."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import expect, sync_playwright

import cq
from cq.admin.configure import rebuild_observer
from cq.feeds.feed import Feed
from cq.observers.feeds.observer import feed_spec
from cq.store import Space
from cq.testing import drain
from tests.cli.web.dashboards import SECONDS, TOKEN, serving
from tests.docs.pages import DOCS, file_named, steps
from tests.kit.processes import StartedProcesses, ended, free_ports

PAGE: Final = DOCS / "connect" / "changes.md"
CHROMIUM: Final = shutil.which("chromium")


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Any]:
    """A store with the queue of the page."""
    with cq.store.embedded.Database(tmp_path / "store.db", power_safe=False) as database:
        found = Space("cq").database(database)
        Feed[Any]("changes").configure(found, keep="7d")
        cq.configure(found, "words", key=str, value=int, observers=[feed_spec("changes")])
        yield found


def add(db: Any, **updates: int) -> None:
    cq.CombineQueue[str, int]("words").add_now(db, updates)
    drain(db, "words")


@contextmanager
def running(folder: Path, url: str, *command: str) -> Iterator[Iterator[str]]:
    """The lines that a program prints, which ends with ^C."""
    environment = {"CQ_WEB_TOKEN": TOKEN, "CHANGELOG_URL": f"{url}/changelog/words"}
    with StartedProcesses(folder, environment) as processes:
        process = processes.python(*command, stderr=subprocess.STDOUT)
        assert process.stdout is not None
        yield map(bytes.decode, process.stdout)
        process.send_signal(signal.SIGINT)
        ended(process)


def saved(folder: Path, name: str) -> None:
    """Save a file of the page."""
    (text,) = (block for paragraph, _, block in steps(PAGE) if file_named(paragraph) == name)
    (folder / name).write_text(text)


def test_the_service_keeps_a_copy_over_restarts_and_resets(db: Any, tmp_path: Path) -> None:
    saved(tmp_path, "follow.py")
    add(db, hello=1, world=2)

    def copied() -> dict[str, int]:
        with closing(sqlite3.connect(tmp_path / "copy.db")) as copy:
            return dict(copy.execute("SELECT word, number FROM words"))

    with serving(db) as found:
        with running(tmp_path, found.server.url, "follow.py") as lines:
            assert [next(lines).partition(" ")[0] for _ in range(3)] == ["start", "change", "change"]
        assert copied() == {"hello": 1, "world": 2}
        add(db, hello=2, world=-2, more=1)
        with running(tmp_path, found.server.url, "follow.py") as lines:
            assert [next(lines).partition(" ")[0] for _ in range(4)] == ["start", *["change"] * 3]
            assert copied() == {"hello": 3, "more": 1}

            Feed[Any]("changes").delete(db)
            Feed[Any]("changes").configure(db)
            add(db, later=1)
            assert any("cq configure words --rebuild feed" in line for line in lines)
            while '"later"' not in (line := next(lines)).replace("'", '"'):
                assert line
            assert copied() == {"later": 1}
            rebuild_observer(db, "words", "feed")
            drain(db, "words")
            while not all(word in copied() for word in ("hello", "more")):
                assert next(lines)
            assert copied() == {"hello": 3, "more": 1, "later": 1}


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium in $PATH")
def test_the_page_shows_changes_and_resumes_after_a_restart_of_the_server(db: Any, tmp_path: Path) -> None:
    saved(tmp_path, "page.py")
    add(db, hello=1)
    port = free_ports(2)
    web = port + 1
    server = ["-m", "uvicorn", "page:app", "--port", str(port)]
    with sync_playwright() as playwright, running(tmp_path, f"http://127.0.0.1:{web}", *server) as lines:
        assert any("running on" in line for line in lines)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        for life in range(2):
            with serving(db, port=web):
                if life == 0:
                    page.goto(f"http://127.0.0.1:{port}/")
                expect(page.locator("#words")).to_have_text(
                    ["hello 1", "hello 1 a<b> 2"][life], timeout=SECONDS * 1000
                )
            cq.CombineQueue[str, int]("words").add_now(db, {"a<b>": 2})
            drain(db, "words")
        browser.close()
