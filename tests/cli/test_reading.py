"""Commands that read: they make no store, and read permission suffices for them."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import cq
from cq.errors import StoreError
from cq.feeds.feed import Feed
from cq.observers.top.index import top
from cq.observers.worker.worker import Worker
from cq.store.embedded import ReadOnlyDatabase
from tests.cli.commands import RUNS
from tests.cli.conftest import Cli, Here
from tests.kit.processes import Outcome, run_code
from tests.links.sqlhelpers import configure as configure_table

NOBODY = 65_534

READING = [
    *(
        RUNS[name]
        for name in ("get", "items", "status", "health", "top", "cloud", "verify", "drain", "limit")
    ),
    *(RUNS[name] for name in ("link list", "link check", "link verify", "link aside")),
    *(RUNS[name] for name in ("aside list", "aside show", "cells list")),
    *(RUNS[name] for name in ("feed list", "feed read", "feed verify")),
    "get words a --pending",
    "status words",
]
WRITING = [
    *(RUNS[name] for name in ("add", "pause", "resume", "rebucket", "purge", "delete", "aside retry")),
    *(RUNS[name] for name in ("link init", "link pause", "feed append", "cells resume")),
    "limit words --none",
    "verify words --repair",
]
ONE_AFTER_THE_OTHER = """
import contextlib, io, json, sys
from cq.cli.main import main

for command in sys.argv[1:]:
    sys.argv = ["cq", *command.split()]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            main()
        except SystemExit as ended:
            status = ended.code
    print(json.dumps([status, out.getvalue(), err.getvalue()]))
"""


@pytest.mark.parametrize("command", [*READING, *WRITING])
def test_a_mistyped_path_is_said_and_no_store_is_made(here: Here, cli: Cli, command: str) -> None:
    mistyped = cli.folder / "mistyped.db"

    ended = here(*command.split(), "--store", f"embedded:{mistyped}")

    assert (ended.status, ended.out) == (1, "")
    assert ended.err == (
        f"cq: the store {mistyped} does not exist: check the path, or create it with "
        "`cq configure QUEUE --combiner sum`, `cq feed configure FEED` or "
        "`cq cells add NAME URL` (see docs/operate/problems.md#problems-of-an-embedded-store)\n"
    )
    assert list(cli.folder.iterdir()) == []


class Reader:
    """The command as a user who may read the store and write nothing."""

    def __init__(self, cli: Cli, folder: Path) -> None:
        self.url = f"embedded:{folder / 'store.db'}"
        self.folder, self._cli = folder, cli

    def share(self) -> None:
        """Give the folder and its files to another user, and let everyone read them."""
        for path in (self.folder, *self.folder.iterdir()):
            os.chown(path, NOBODY, NOBODY)
            path.chmod(0o755 if path == self.folder else 0o644)

    def __call__(self, *commands: str) -> list[Outcome]:
        """Run commands, one after the other in one process, for which permissions hold although it is root's."""
        cli = self._cli
        cli.program, program = (sys.executable, "-c", ONE_AFTER_THE_OTHER), cli.program
        ended = cli.run(
            *(f"{command} --store {self.url}" for command in commands), preexec_fn=obey_permissions
        )
        cli.program = program
        assert (ended.status, ended.err) == (0, "")
        return [Outcome(*row) for row in ended.rows()]


def obey_permissions() -> None:
    """Drop the capabilities by which root reads and writes the files of others, from the next program on."""
    libc = ctypes.CDLL(None)
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        if libc.prctl(24, capability, 0, 0, 0):  # PR_CAPBSET_DROP
            raise OSError("the capability cannot be dropped")


@pytest.fixture
def reader(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Reader:
    if os.geteuid() != 0 or not sys.platform.startswith("linux"):
        pytest.skip("only root can give files away, and only Linux has capabilities")
    folder = cli.folder / "shared"
    folder.mkdir()
    found = Reader(cli, folder)
    db: Any = cq.open(found.url)
    cli.environment["CQ_REPORTING_URL"] = f"sqlite:///{cli.folder / 'report.db'}"
    monkeypatch.setenv("CQ_REPORTING_URL", cli.environment["CQ_REPORTING_URL"])
    configure_table(db, "words", observers=[top(5)])
    Feed("chat").configure(db)
    cq.transact(db, lambda tr: Feed("chat").append(tr, "ann", "hello"))
    cq.transact(db, lambda tr: cq.CombineQueue("words").add(tr, {"a": 2}))
    Worker(db).drain()
    db.close()
    return found


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("is_open", [False, True], ids=["closed", "open elsewhere"])
def test_read_permission_suffices(reader: Reader, is_open: bool) -> None:
    db: Any = cq.open(reader.url) if is_open else None
    if is_open:
        cq.transact(db, lambda tr: cq.CombineQueue("words").add(tr, {"later": 1}))
    reader.share()
    before = contents(reader.folder)

    commands = [each for each in READING if not (is_open and each.startswith("drain"))]  # which would wait
    ended = dict(zip(commands, reader(*commands), strict=True))

    for command, outcome in ended.items():
        assert "Traceback" not in outcome.err, command
        assert outcome.status == (1 if command == "health" else 0), (command, outcome)
    assert ended["get words a"].out == "a\t2\n"
    assert ended["feed read chat ann"].out.endswith("\thello\n")
    assert "no worker is alive" in ended["health"].out
    assert contents(reader.folder) == before
    if is_open:
        (pending,) = reader("get words later --pending")
        assert pending.out == "later\t1\n"
        db.close()


def test_commands_that_write_say_which_permission_they_lack(reader: Reader) -> None:
    reader.share()

    (ended,) = reader("add words a=1")

    assert (ended.status, ended.out) == (1, "")
    assert "cannot be written: check their permissions" in ended.err
    assert len(ended.err.splitlines()) == 1


def test_a_log_that_a_crash_left_is_named(reader: Reader) -> None:
    db: Any = cq.open(reader.url)
    cq.transact(db, lambda tr: cq.CombineQueue("words").add(tr, {"later": 1}))
    log = (reader.folder / "store.db-wal").read_bytes()
    db.close()
    (reader.folder / "store.db-wal").write_bytes(log)
    reader.share()

    (ended,) = reader("get words later")
    assert "has the log of a crashed process" in ended.err


# In this process: what permissions say is not asked for.


def test_a_reader_follows_a_store_that_is_opened_and_written_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    writer: Any = cq.open(f"embedded:{path}")
    writer.set(b"key", b"1")
    writer.close()
    reader = ReadOnlyDatabase(path)
    assert reader.get(b"key") == b"1"
    tries = 0

    def read(tr: Any) -> tuple[bytes | None, bytes | None]:
        nonlocal tries
        tries += 1
        first = bytes(tr.get(b"key"))
        if tries == 1:
            write(path, b"2")
        return first, bytes(tr.get(b"other"))

    assert reader.transact(read) == (b"2", b"2"), "nothing of before and after together"
    assert tries == 2
    reader.close()


def test_a_reader_cannot_write(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    cq.open(f"embedded:{path}").close()  # type: ignore[attr-defined]
    before = contents(tmp_path)
    reader = ReadOnlyDatabase(path)

    with pytest.raises(StoreError, match="was opened for reading only"):
        reader.set(b"key", b"1")

    reader.close()
    assert contents(tmp_path) == before


def test_watches_of_a_reader_fire(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    write(path, b"1")
    reader = ReadOnlyDatabase(path)
    _, watch = reader.get_and_watch(b"key")

    write(path, b"2")

    watch.wait()
    assert reader.get(b"key") == b"2"
    reader.close()


def write(path: Path, value: bytes) -> None:
    """Set two keys, in another process: SQLite's locks are those of processes."""
    program = (
        "import cq, sys; db = cq.open(sys.argv[1]); "
        f"db.transact(lambda tr: (tr.set(b'key', {value!r}), tr.set(b'other', {value!r}))); db.close()"
    )
    assert run_code(program, f"embedded:{path}").status == 0
