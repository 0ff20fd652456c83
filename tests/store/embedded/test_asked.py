"""Reads show what their snapshot shows, whenever the program waits for them."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from cq.store.embedded import Database, FDBError
from cq.store.embedded.engine import snapshots
from tests.store.calls import code_of


def keys(number: int) -> list[bytes]:
    return [b"%05d" % place for place in range(number)]


def fill(db: Database, number: int) -> None:
    @db.transact
    def _(tr: Any) -> None:
        for key in keys(number):
            tr[key] = key[::-1]


def test_a_read_shows_what_was_there_when_it_was_issued(db: Database) -> None:
    fill(db, 3)
    tr = db.create_transaction()
    before = tr.get(b"00000"), tr.snapshot.get(b"00001"), tr.get(b"absent")
    tr.clear_range(b"", b"\xff")
    tr[b"00000"] = b"mine"
    between = tr.get(b"00001")
    db[b"00002"] = b"theirs"
    after = tr.get(b"00000"), tr.snapshot.get(b"00002")

    assert [future.value for future in before] == [b"00000", b"10000", None]
    assert not between.present()
    assert [future.value for future in after] == [b"mine", None]


@pytest.mark.parametrize("end", ["commit", "close"])
def test_a_read_outlives_its_transaction(db: Database, end: str) -> None:
    fill(db, 1)
    tr: Any = db.create_transaction()
    future = tr.snapshot.get(b"00000")
    if end == "close":
        db.close()
    else:
        tr[b"other"] = b""
        tr.commit().wait()
        del tr

    assert future.value == b"00000"


def test_a_read_in_time_is_answered_when_its_snapshot_is_too_old(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(db, 1)
    tr = db.create_transaction()
    future = tr.snapshot.get(b"00000")
    monkeypatch.setattr(snapshots, "LIFETIME_SECONDS", -1.0)

    with pytest.raises(FDBError, match="1007"):
        tr.snapshot.get(b"00000").wait()
    assert future.value == b"00000"


def test_whatever_looks_at_a_read_finds_it_answered(db: Database) -> None:
    fill(db, 1)
    tr = db.create_transaction()
    seen: list[bytes | None] = []
    tr.snapshot.get(b"00000").on_ready(lambda future: seen.append(future.value))
    cancelled = tr.snapshot.get(b"00000")
    cancelled.cancel()

    assert seen == [b"00000"]
    assert tr.snapshot.get(b"00000").is_ready()
    assert code_of(cancelled.wait) == 1101
    assert cancelled.wait_for_any(tr.snapshot.get(b"00000")) == 0


def test_a_read_that_fails_makes_the_commit_fail_though_nobody_has_waited_for_it(
    db: Database, path: Path
) -> None:
    fill(db, 1)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE kv SET v = 5")
    connection.close()
    tr = db.create_transaction()
    future = tr.get(b"00000")
    tr[b"other"] = b""

    with pytest.raises(FDBError, match="not made of bytes"):
        tr.commit().wait()
    with pytest.raises(FDBError, match="not made of bytes"):
        future.wait()
    assert db[b"other"] is None


def test_a_read_is_one_even_if_nobody_waits_for_it(db: Database) -> None:
    """Whoever has read has chosen to see own writes, or not to."""
    tr = db.create_transaction()
    tr.get_read_version().wait()
    tr.snapshot.get(b"a")
    tr.options.set_read_your_writes_disable()

    with pytest.raises(FDBError, match="2000"):
        tr.get(b"a").wait()
