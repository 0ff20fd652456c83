"""A reader without write permission beside processes that open, close and leave the store at that moment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from cq.errors import StoreError
from cq.store.embedded import Database, ReadOnlyDatabase
from tests.kit.processes import another_process
from tests.store.calls import code_of

HOLD = """
import sys
from cq.store.embedded import Database
with Database(sys.argv[1]) as db:
    db[b"key"] = b"2"
    print("open", flush=True)
    sys.stdin.read()
"""
HEADERS = 96  # bytes of the index: SQLite writes both copies when the first process opens the store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "store.db"
    with Database(path) as db:
        db[b"key"] = b"1"
    return path


def log_of(path: Path) -> bytes:
    """The content of a log that belongs to the store."""
    with Database(path) as db:
        db[b"key"] = b"1"
        return path.with_name("store.db-wal").read_bytes()


def on_first_pause(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Call `act` when a reader waits, as if another process did it at that moment."""
    left = [act]
    clock = SimpleNamespace(sleep=lambda seconds: left.pop()() if left else None)
    monkeypatch.setattr("cq.store.embedded.read_only.time", clock)


@pytest.mark.parametrize("is_open", [False, True], ids=["opening", "reading"])
def test_a_reader_waits_for_a_process_that_closes_the_store(
    path: Path, monkeypatch: pytest.MonkeyPatch, is_open: bool
) -> None:
    """The last process with the store open removes the index first, and then the log."""
    log, content = path.with_name("store.db-wal"), log_of(path)
    reader = ReadOnlyDatabase(path) if is_open else None
    log.write_bytes(content)
    on_first_pause(monkeypatch, log.unlink)

    reader = reader or ReadOnlyDatabase(path)

    assert reader[b"key"] == b"1"
    reader.close()


@pytest.mark.parametrize("is_open", [False, True], ids=["opening", "reading"])
def test_a_reader_waits_for_a_process_that_opens_the_store(
    path: Path, monkeypatch: pytest.MonkeyPatch, is_open: bool
) -> None:
    """The first process with the store open makes the index before it fills it."""
    with another_process(HOLD, path), path.with_name("store.db-shm").open("r+b", buffering=0) as index:
        reader = ReadOnlyDatabase(path) if is_open else None
        assert reader is None or reader[b"key"] == b"2"
        content = index.read(HEADERS)

        def fill() -> None:
            index.seek(0)
            index.write(content)

        on_first_pause(monkeypatch, fill)
        index.seek(0)
        index.write(bytes(HEADERS))

        reader = reader or ReadOnlyDatabase(path)

        assert reader[b"key"] == b"2"
        reader.close()


def test_a_reader_goes_on_after_a_time_in_which_it_could_not_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cq.store.embedded.snapshots._OPEN_SNAPSHOTS", 2)
    log, content = path.with_name("store.db-wal"), log_of(path)
    reader = ReadOnlyDatabase(path)
    watch = reader.transact(lambda tr: tr.watch(b"key"))
    log.write_bytes(content)
    for _ in range(3):
        with pytest.raises(StoreError, match="has the log of a crashed process"):
            reader.get(b"key")
    assert code_of(watch.wait) == 1510
    log.unlink()

    assert reader[b"key"] == b"1"
    watch = reader.transact(lambda tr: tr.watch(b"key"))
    with another_process(HOLD, path):
        watch.wait()
    reader.close()


def test_a_reader_reads_the_store_that_was_restored_and_misses_one_that_is_gone(path: Path) -> None:
    backup = path.read_bytes()
    reader = ReadOnlyDatabase(path)
    with another_process(HOLD, path):
        assert reader[b"key"] == b"2"
        for each in path.parent.glob("store.db*"):
            each.unlink()
        with pytest.raises(StoreError, match="does not exist any more"):
            reader.get(b"key")
        path.write_bytes(backup)

        assert reader[b"key"] == b"1"
    reader.close()
