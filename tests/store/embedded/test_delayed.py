"""Futures that become ready after some time: a read at a future version fails as late as on a cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cq import runtime
from cq.store.embedded import Database, FDBError, KeySelector, Transaction
from tests.kit.clocks import Stopped
from tests.store.calls import code_of

HOUR = 3_600_000_000
READS: dict[str, Callable[[Transaction], Any]] = {
    "get": lambda tr: tr.get(b"a"),
    "snapshot": lambda tr: tr.snapshot.get(b"a"),
    "get_key": lambda tr: tr.get_key(KeySelector.first_greater_than(b"a")),
    "watch": lambda tr: tr.watch(b"a"),
}


@pytest.fixture
def clock(db: Database) -> Iterator[Stopped]:
    """The clock of the test, whose store is open."""
    clock = Stopped()
    with runtime.using(clock):
        yield clock


def at_future_version(db: Database) -> Transaction:
    """A transaction whose read version no commit will have within the hour."""
    version = db.transact(lambda tr: tr.get_read_version().wait())
    tr = db.create_transaction()
    tr.set_read_version(version + HOUR)
    return tr


@pytest.mark.parametrize("name", READS)
def test_a_read_at_a_future_version_fails_after_a_second(db: Database, clock: Stopped, name: str) -> None:
    tr = at_future_version(db)
    future = READS[name](tr)
    assert not future.is_ready()
    db[b"a"] = b"1"  # others go on meanwhile
    clock.now += 1.0

    assert future.is_ready()
    assert code_of(future.wait) == 1009
    assert tr.get_read_version().is_ready()


def test_a_range_at_a_future_version_fails_after_a_second(db: Database, clock: Stopped) -> None:
    begun = clock.now
    assert code_of(lambda: at_future_version(db).get_range(b"", b"\xff").to_list()) == 1009
    assert clock.now == begun + 1.0


def test_reads_at_a_future_version_wait_side_by_side(db: Database, clock: Stopped) -> None:
    tr = at_future_version(db)
    threads = threading.active_count()
    futures = [tr.get(b"%d" % number) for number in range(1_000)]
    assert threading.active_count() < threads + 10
    clock.now += 1.0

    assert all(future.is_ready() for future in futures)


def test_a_commit_waits_for_a_read_at_a_future_version(db: Database, clock: Stopped) -> None:
    tr = at_future_version(db)
    tr.get(b"a")
    clock.now += 0.25
    commit = tr.commit()
    assert not commit.is_ready()
    clock.now += 0.75

    assert commit.is_ready()
    assert code_of(commit.wait) == 1009


def test_a_commit_at_a_future_version_ends_at_the_timeout(db: Database, clock: Stopped) -> None:
    """An error of a commit does not begin the time of the transaction again."""
    tr = at_future_version(db)
    tr.options.set_timeout(1500)
    tr.get(b"a")
    assert code_of(tr.commit().wait) == 1009
    tr.on_error(FDBError(1009)).wait()
    tr.options.set_timeout(1500)
    tr.set_read_version(2**62)
    tr.get(b"a")

    assert code_of(tr.commit().wait) == 1031


def test_a_callback_of_a_read_at_a_future_version_is_called(db: Database) -> None:
    tr = at_future_version(db)
    future, called = tr.get(b"a"), threading.Event()
    future.on_ready(lambda _: called.set())

    assert called.wait(60)
    assert code_of(future.wait) == 1009


def test_a_commit_after_a_read_at_a_future_version_fails_and_is_retried(db: Database, clock: Stopped) -> None:
    tr = at_future_version(db)
    tr.get(b"a")
    tr[b"b"] = b"1"
    assert code_of(lambda: tr.commit().wait()) == 1009
    tr.on_error(FDBError(1009)).wait()

    assert tr.get(b"b").value is None


def test_a_read_at_a_future_version_ends_with_its_transaction(db: Database, clock: Stopped) -> None:
    """With the timeout of the transaction, and when it is reset."""
    tr = at_future_version(db)
    future = tr.get(b"a")
    tr.reset()
    assert code_of(future.wait) == 1025

    tr = at_future_version(db)
    tr.options.set_timeout(50)
    assert code_of(lambda: tr.get(b"a").value) == 1031
