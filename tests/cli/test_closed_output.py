"""Every command with an output whose reader has ended, and with one that is full."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import cq
from cq.cli.main import main
from cq.cli.shared import streams
from cq.feeds.feed import Feed
from cq.observers.links.outbox.state import DEFAULT_ENV as OUTBOX_ENV
from cq.observers.links.spec import table
from cq.observers.top.index import top
from cq.observers.worker.worker import Worker
from tests.cli.commands import COMMANDS, LONG, RUNS
from tests.cli.conftest import Cli, Here

pytestmark = pytest.mark.sampled(4)

ENDLESS = ["feed follow chat ann", "cloud words --follow", "status --watch", "status --watch --json"]
FORMATS = [f"items words --format {name}" for name in ("csv", "jsonl", "parquet")]
SILENT = {
    "aside list words",
    "aside show words",
    "cells rebalance",
    "link aside words",
    "feed verify chat",
    "outbox aside words",
}
"""Runs with nothing to print, as lines of JSON."""


def test_every_command_is_run() -> None:
    assert {*RUNS, *LONG} == {" ".join(path) for path in COMMANDS}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store that has everything that commands print."""
    folder = tmp_path_factory.mktemp("template")
    db: Any = cq.open(f"embedded:{folder / 'cli.db'}")
    (folder / "texts.txt").write_text("hello world hello")
    cq.configure(db, "words", observers=[top(5)], links=[table("words")])
    cq.configure(db, "hits", rollup="1m:2d,1h:60d")
    Feed("chat").configure(db)
    cq.transact(db, lambda tr: Feed("chat").append(tr, "ann", "hello"))
    cq.transact(db, lambda tr: cq.CombineQueue("words").add(tr, {"a": 2}))
    Worker(db, roles=["combine", "publish"]).drain()
    db.close()
    return folder


class Place:
    """A copy of the store, in the folder in which commands run."""

    def __init__(self, template: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._template, self._folder, self._monkeypatch = template, folder, monkeypatch
        for variable in ("CQ_REPORTING_URL", OUTBOX_ENV):
            monkeypatch.setenv(variable, f"sqlite:///{folder / 'tables.db'}")

    def run(self, output: int | str, *commands: str) -> int:
        """The exit status of the last command with this output; the former ones prepare it."""
        for file in self._folder.iterdir():
            file.unlink()
        shutil.copytree(self._template, self._folder, dirs_exist_ok=True)
        with open(os.devnull, "w") as unseen:
            for command in commands[:-1]:
                self._call(unseen, command)
        with open(output, "w", encoding="utf-8") as stream:
            try:
                return self._call(stream, commands[-1])
            finally:
                with self._monkeypatch.context() as patched:
                    patched.setattr(sys, "stdout", stream)
                    streams.discard()  # closing it would fail again

    def _call(self, stream: Any, command: str) -> int:
        with self._monkeypatch.context() as patched:
            patched.setattr(sys, "stdout", stream)
            patched.setattr(sys, "argv", ["cq", *command.split()])
            with pytest.raises(SystemExit) as ended:
                main()
        assert isinstance(ended.value.code, int), command
        return ended.value.code


@pytest.fixture
def place(here: Here, template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """In the folder and the environment of `here`."""
    return Place(template, tmp_path, monkeypatch)


@contextmanager
def unread() -> Iterator[int]:
    """The end of a pipe whose reader has ended; it is closed by the user."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing


def before(command: str) -> list[str]:
    """The commands that prepare a store for this one."""
    if command.startswith("outbox") and command != "outbox init words":
        return ["outbox init words"]
    if command.startswith(("link", "verify")) and command != "link init words":
        return ["link init words"]
    if command.startswith("cells") and " add " not in command:
        return ["cells add c1 embedded:c1.db", "cells place ada", "cells names ada login:ada"]
    return []


@pytest.mark.parametrize("command", [*(each for each in RUNS.values() if each not in ENDLESS), *FORMATS])
def test_a_reader_that_has_ended_changes_no_exit_status(
    place: Place, capfd: pytest.CaptureFixture[str], command: str
) -> None:
    first = before(command)
    expected = place.run(os.devnull, *first, command)
    usual = capfd.readouterr().err
    with unread() as pipe:
        status = place.run(pipe, *first, command)

    assert status == expected
    err = capfd.readouterr().err
    assert "Broken pipe" not in err
    assert len(err.splitlines()) == len(usual.splitlines())


@pytest.mark.parametrize("command", [*(f"{each} --json" for each in RUNS.values()), *FORMATS])
def test_a_full_output_ends_with_one_line(
    place: Place, capfd: pytest.CaptureFixture[str], command: str
) -> None:
    status = place.run("/dev/full", *before(command), command)

    err = capfd.readouterr().err
    if command.removesuffix(" --json") not in SILENT:
        assert (status, err.splitlines()[-1]) == (1, "cq: [Errno 28] No space left on device")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "command", ["items words --format csv --output", "series hits a --json --chart", "cloud words --html"]
)
def test_a_full_disk_is_named_with_the_file(
    place: Place, capfd: pytest.CaptureFixture[str], command: str
) -> None:
    hits = "configure hits --combiner sum --rollup 1h:1d"

    assert place.run(os.devnull, hits, f"{command} /dev/full") == 1
    assert capfd.readouterr().err.splitlines()[-1] == "cq: No space left on device: /dev/full"


@pytest.mark.parametrize("command", ["worker --drain --only combine --json", "demo words texts.txt"])
def test_a_command_that_runs_for_long_ends_with_its_output(
    place: Place, capfd: pytest.CaptureFixture[str], command: str
) -> None:
    assert place.run("/dev/full", command) == 1
    assert capfd.readouterr().err.splitlines()[-1] == "cq: [Errno 28] No space left on device"
    with unread() as pipe:
        assert place.run(pipe, command) == 0
    assert "Broken pipe" not in capfd.readouterr().err


def test_a_dashboard_without_room_for_its_address_ends(here: Here, cli: Cli) -> None:
    here("configure", "words", "--combiner", "sum")
    with open("/dev/full", "wb") as full:
        ended = cli.run("web", "--listen", "127.0.0.1:0", stdout=full)

    assert ended == (1, "", "cq: [Errno 28] No space left on device\n")


@pytest.mark.parametrize("command", ENDLESS)
def test_an_endless_command_ends_with_its_reader(place: Place, command: str) -> None:
    with unread() as pipe:
        assert place.run(pipe, command) == 0


@pytest.mark.parametrize("path", ["", "--version", *(f"{' '.join(path)} --help" for path in COMMANDS)])
def test_help_needs_a_reader_and_room(place: Place, capfd: pytest.CaptureFixture[str], path: str) -> None:
    words = path or "--help"
    with unread() as pipe:
        assert place.run(pipe, words) == 0
    assert capfd.readouterr().err == ""
    assert place.run("/dev/full", words) == 1
    assert capfd.readouterr().err == "cq: [Errno 28] No space left on device\n"


def test_a_pipe_gets_what_is_printed_beside_a_progress_display(here: Here, cli: Cli) -> None:
    """The display is on the terminal of standard error, and must not draw the results to it."""
    here("cells", "add", "c1", "embedded:c1.db")
    here("cells", "place", "ada", "grace")
    here("cells", "drain", "c1")
    here("cells", "add", "c2", "embedded:c2.db")
    ours, theirs = os.openpty()
    moved = cli.run("cells", "rebalance", "--json", stderr=theirs)
    os.close(theirs)
    os.close(ours)

    assert sorted(row["user"] for row in moved.rows()) == ["ada", "grace"]
