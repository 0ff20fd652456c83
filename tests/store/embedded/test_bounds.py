"""What must stay small stays small: SQLite's log, the log of commits, and the memory of both."""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from cq.store.api import NOT_COMMITTED, TRANSACTION_TOO_OLD
from cq.store.embedded import Database, conflict_log, wal
from cq.store.embedded.conflict_log import CommittedGroup, ConflictLog
from cq.store.embedded.writes import ReadSet
from tests.store.calls import commit_code


def log_bytes(path: Path) -> int:
    return path.with_name(f"{path.name}-wal").stat().st_size


def test_the_write_ahead_log_starts_anew(db: Database, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal, "CHECKPOINT_PAGES", 50)
    for number in range(200):
        db[b"%d" % (number % 10)] = bytes(20_000)
    assert log_bytes(path) < 200 * 20_000 / 4


def test_the_write_ahead_log_is_bounded_if_each_writer_writes_little(
    db: Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another process keeps the store open, the end of a writer is no checkpoint."""
    monkeypatch.setattr(wal, "CHECKPOINT_PAGES", 50)
    db[b"a"] = b"1"
    for _ in range(20):
        with Database(path, power_safe=False) as writer:
            for number in range(4):
                writer[b"%d" % number] = bytes(20_000)

    assert log_bytes(path) < 20 * 80_000 / 4


def test_the_write_ahead_log_is_bounded_under_overlapping_readers(
    db: Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is always a reader open, each on a newer snapshot; without a pause the log would never start anew."""
    monkeypatch.setattr(wal, "CHECKPOINT_PAGES", 50)
    monkeypatch.setattr(wal, "LIMIT_PAGES", 500)
    monkeypatch.setattr(wal, "_STEP_PAGES", 250)
    db._engine.committer._checkpointer._limit = 500
    stop = threading.Event()

    def read() -> None:
        older = db.create_transaction()
        older.get(b"a").wait()
        while not stop.is_set():
            newer = db.create_transaction()
            newer.get(b"a").wait()
            stop.wait(0.01)
            older = newer
        older.cancel()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        largest = 0
        for number in range(500):
            db[b"%d" % (number % 10)] = bytes(80_000)
            largest = max(largest, log_bytes(path))
    finally:
        stop.set()
        reader.join()

    # It is 2 MB where nothing else runs; on a busy machine the reader may have to wait for a core.
    assert largest < 20_000_000 < 500 * 80_000


def test_commits_seldom_wait_for_a_copy_of_the_store(
    db: Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit, pages in {"CHECKPOINT_PAGES": 50, "LIMIT_PAGES": 500, "_STEP_PAGES": 100}.items():
        monkeypatch.setattr(wal, limit, pages)
    monkeypatch.setattr(wal, "_LAST_WAIT_MS", 1)
    checkpointer, waits = db._engine.committer._checkpointer, list[str]()
    checkpoint = checkpointer._checkpoint

    def counted(mode: str) -> int:
        waits.extend([mode] * (mode == "TRUNCATE"))
        return checkpoint(mode)

    monkeypatch.setattr(checkpointer, "_checkpoint", counted)
    checkpointer._limit, checkpointer._wait_ms = 500, 1
    db[b"a"] = b"1"
    with closing(apsw.Connection(str(path))) as copying:
        copying.execute("BEGIN")
        copying.execute("SELECT count(*) FROM kv").fetchone()
        for number in range(300):
            db[b"%d" % (number % 10)] = bytes(80_000)

    assert 2 <= len(waits) <= 5  # about 6,000 pages: at 500, 1,000, 2,000 and 4,000
    for _ in range(60):
        db[b"a"] = bytes(20_000)
    assert checkpointer._limit == 500


def stored_rows(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        rows: int = connection.execute("SELECT count(*) FROM commits").fetchone()[0]
    return rows


def test_the_log_of_commits_is_trimmed_by_age(
    db: Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conflict_log, "KEPT_VERSIONS", 20_000)
    monkeypatch.setattr("cq.store.embedded.committer._TRIM_SECONDS", 0)
    old = db.create_transaction()
    old.get(b"a").wait()
    for _ in range(50):
        db[b"b"] = b"1"
    time.sleep(0.03)
    db[b"b"] = b"1"
    db[b"b"] = b"1"

    assert stored_rows(path) < 10
    old[b"c"] = b"1"
    assert commit_code(old) == 1007


def test_an_idle_store_still_knows_its_last_version(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conflict_log, "KEPT_VERSIONS", 1_000)
    monkeypatch.setattr("cq.store.embedded.committer._TRIM_SECONDS", 0)
    db[b"a"] = b"1"
    time.sleep(0.01)
    tr = db.create_transaction()
    tr.get(b"a").wait()
    db[b"b"] = b"1"
    tr[b"c"] = b"1"
    tr.commit().wait()


def test_the_log_of_commits_is_trimmed_by_size(
    db: Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conflict_log, "KEPT_KEYS", 100)
    monkeypatch.setattr("cq.store.embedded.committer._TRIM_SECONDS", 0)
    for number in range(500):
        db[b"%d" % number] = b"1"
    assert stored_rows(path) <= 102
    assert len(db._engine.committer._log._groups) <= 102


def reads(*keys: bytes, ranges: tuple[tuple[bytes, bytes], ...] = ()) -> ReadSet:
    made = ReadSet()
    for key in keys:
        made.add_key(key, None)
    for begin, end in ranges:
        made.add_range(begin, end, None)
    return made


@pytest.mark.parametrize(
    ("read", "conflict"),
    [
        (reads(b"k"), True),
        (reads(b"l"), False),
        (reads(b"ra"), True),
        (reads(b"rz"), False),
        (reads(ranges=((b"j", b"k\x00"),)), True),
        (reads(ranges=((b"j", b"k"),)), False),
        (reads(ranges=((b"q", b"ra"),)), False),
        (reads(ranges=((b"q", b"rb"),)), True),
        (reads(ranges=((b"rz", b"s"),)), False),
    ],
)
def test_reads_conflict_with_later_writes_of_the_same_keys(read: ReadSet, conflict: bool) -> None:
    log = ConflictLog()
    log.append(CommittedGroup(10, {b"l"}, [], 1))
    log.append(CommittedGroup(20, {b"k"}, [(b"ra", b"rz")], 1))

    assert log.check(10, read) == (NOT_COMMITTED if conflict else 0)
    assert log.check(20, read) == 0
    assert log.check(9, read) == TRANSACTION_TOO_OLD


def test_a_gap_in_the_log_makes_older_transactions_too_old(db: Database, path: Path) -> None:
    """Another process may trim rows that this one has not seen."""
    db[b"0"] = b"1"
    tr = db.create_transaction()
    tr.get(b"a").wait()
    tr[b"c"] = b"1"
    with Database(path, power_safe=False) as other:
        other[b"a"] = b"1"
        for _ in range(10):
            other[b"b"] = b"1"
        other._engine.committer._connection.execute(
            "DELETE FROM commits WHERE version < (SELECT max(version) FROM commits)"
        )
    assert commit_code(tr) == 1007


def test_idle_connections_are_bounded(db: Database) -> None:
    transactions = [db.create_transaction() for _ in range(60)]
    for tr in transactions:
        tr.get(b"a").wait()
    transactions.clear()
    del tr
    db[b"a"]
    assert db._engine._pool._count <= 17
