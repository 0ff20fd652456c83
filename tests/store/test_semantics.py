"""FoundationDB's semantics as cq relies on them: the same tests on the embedded store and on a cluster."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import pytest

from cq.store.api import METADATA_VERSION, WANT_ALL
from cq.store.embedded import KeySelector
from cq.store.embedded.future import Future
from tests.kit.busy import in_threads
from tests.store.calls import code_of, commit_code, read_version

ONE = (1).to_bytes(8, "little")


def stamped_key(prefix: bytes, tail: bytes = b"") -> bytes:
    return prefix + bytes(10) + tail + len(prefix).to_bytes(4, "little")


def rows(reader: Any, prefix: bytes, **options: Any) -> list[tuple[bytes, bytes]]:
    return [
        (row.key[len(prefix) :], row.value) for row in reader.get_range(prefix, prefix + b"\xff", **options)
    ]


def test_a_value_is_there_after_the_commit_and_not_before(db: Any, space: bytes) -> None:
    writer, reader = db.create_transaction(), db.create_transaction()
    writer[space] = b"1"
    assert not reader.get(space).present()
    assert commit_code(writer) is None
    assert reader.get(space).value is None
    assert db[space] == b"1"


def test_own_writes_are_read(db: Any, space: bytes) -> None:
    db[space + b"a"], db[space + b"b"] = b"1", b"2"
    tr = db.create_transaction()
    del tr[space + b"a"]
    tr[space + b"c"] = b"3"
    tr.add(space + b"b", b"\x01")

    assert rows(tr, space) == [(b"b", b"3"), (b"c", b"3")]
    assert rows(tr, space, reverse=True, limit=1) == [(b"c", b"3")]
    assert rows(tr, space, streaming_mode=WANT_ALL) == rows(tr.snapshot, space)


def test_a_found_key_is_used_as_its_bytes(db: Any, space: bytes) -> None:
    db[space + b"a"] = b"1"
    tr, found = db.create_transaction(), SimpleQueue[bytes]()
    key = tr.get_key(KeySelector.first_greater_or_equal(space))
    key.on_ready(lambda future: found.put(future.value))

    assert found.get(timeout=60) == key.value == bytes(key) == space + b"a"
    assert key == space + b"a"
    assert {key: key.startswith(space)}[space + b"a"]
    assert (len(key), key[:3], key + b"!", tr[key]) == (len(space) + 1, b"cq/", space + b"a!", b"1")
    assert space < key <= tr.get_key(KeySelector.last_less_than(space + b"b"))


def test_a_read_conflicts_with_a_later_write(db: Any, space: bytes) -> None:
    tr = db.create_transaction()
    tr.get(space + b"a").wait()
    db[space + b"a"] = b"1"
    tr[space + b"b"] = b"1"
    assert commit_code(tr) == 1020


def test_a_snapshot_read_does_not(db: Any, space: bytes) -> None:
    tr = db.create_transaction()
    tr.snapshot.get(space + b"a").wait()
    assert rows(tr.snapshot, space) == []
    db[space + b"a"] = b"1"
    tr[space + b"b"] = b"1"
    assert commit_code(tr) is None


def test_a_read_only_transaction_always_commits(db: Any, space: bytes) -> None:
    tr = db.create_transaction()
    tr.get(space).wait()
    db[space] = b"1"
    assert commit_code(tr) is None
    assert tr.get_committed_version() == -1


def test_an_added_conflict_key_conflicts(db: Any, space: bytes) -> None:
    tr = db.create_transaction()
    tr.get_read_version().wait()
    tr.add_read_conflict_key(space)
    other = db.create_transaction()
    other.add_write_conflict_key(space)
    assert commit_code(other) is None
    tr[space + b"a"] = b"1"
    assert commit_code(tr) == 1020


def test_a_limited_range_conflicts_up_to_its_last_row(db: Any, space: bytes) -> None:
    db[space + b"a"], db[space + b"c"] = b"1", b"1"
    for changed, expected in [(b"a0", None), (b"0", 1020)]:
        tr = db.create_transaction()
        assert rows(tr, space, limit=1)[0][0] == b"a"
        db[space + changed] = b"1"
        tr[space + b"x"] = b"1"
        assert commit_code(tr) == expected


def test_blind_writes_never_conflict(db: Any, space: bytes) -> None:
    def work() -> None:
        for _ in range(20):
            tr = db.create_transaction()
            tr.add(space + b"n", ONE)
            tr.set_versionstamped_key(stamped_key(space + b"u/", b"x"), b"")
            assert commit_code(tr) is None

    in_threads(*[work] * 4)

    assert db[space + b"n"] == (80).to_bytes(8, "little")
    assert len(db.get_range_startswith(space + b"u/")) == 80


def test_a_range_read_conflicts_with_a_stamped_key_in_it(db: Any, space: bytes) -> None:
    for reader, expected in [(b"u/", 1020), (b"v/", None)]:
        tr = db.create_transaction()
        assert rows(tr, space + reader) == []
        adder = db.create_transaction()
        adder.set_versionstamped_key(stamped_key(space + b"u/"), b"")
        assert commit_code(adder) is None
        tr[space + b"x"] = b"1"
        assert commit_code(tr) == expected
        db.clear_range_startswith(space)


def test_a_stamp_is_the_same_in_keys_and_values_and_as_told(db: Any, space: bytes) -> None:
    tr = db.create_transaction()
    tr.set_versionstamped_key(stamped_key(space + b"k/"), b"1")
    tr.set_versionstamped_value(space + b"v", bytes(14))
    stamp = tr.get_versionstamp()
    tr.commit().wait()

    assert db[space + b"v"] == stamp.value == rows(db, space + b"k/")[0][0]
    assert int.from_bytes(stamp.value[:8], "big") == tr.get_committed_version()


def test_stamps_are_in_commit_order(db: Any, space: bytes) -> None:
    for number in range(10):
        tr = db.create_transaction()
        tr.set_versionstamped_key(stamped_key(space), b"%d" % number)
        tr.commit().wait()

    assert [value for _, value in rows(db, space)] == [b"%d" % number for number in range(10)]


def test_what_may_get_a_stamped_key_is_unreadable(db: Any, space: bytes) -> None:
    tr = db.create_transaction()
    tr.set_versionstamped_key(stamped_key(space + b"u/"), b"")
    assert code_of(lambda: rows(tr, space + b"u/")) == 1036
    assert commit_code(tr) == 1036

    tr = db.create_transaction()
    tr.get_read_version().wait()
    tr.set_versionstamped_key(stamped_key(space + b"u/"), b"")
    assert tr.get(space + b"u/\x00").value is None
    assert commit_code(tr) is None


def test_a_clear_of_what_was_read_takes_no_concurrent_row(db: Any, space: bytes) -> None:
    """How a queue is worked off: snapshot read, then a clear up to the last row read."""
    for _ in range(3):
        tr = db.create_transaction()
        tr.set_versionstamped_key(stamped_key(space), b"")
        tr.commit().wait()
    worker = db.create_transaction()
    first, *_, last = [row.key for row in worker.snapshot.get_range(space, space + b"\xff")]
    adder = db.create_transaction()
    adder.set_versionstamped_key(stamped_key(space), b"new")
    assert commit_code(adder) is None
    worker.clear_range(first, last + b"\x00")
    assert commit_code(worker) is None

    assert [value for _, value in rows(db, space)] == [b"new"]


def test_compare_and_clear_clears_only_what_is_unchanged(db: Any, space: bytes) -> None:
    db[space] = b"1"
    db.compare_and_clear(space, b"2")
    assert db[space] == b"1"
    db.compare_and_clear(space, b"1")
    assert db[space] is None


def test_the_metadata_version_comes_with_the_read_version(db: Any, space: bytes) -> None:
    tr = db.create_transaction()
    before = tr.get(METADATA_VERSION).value
    change = db.create_transaction()
    change.set_versionstamped_value(METADATA_VERSION, bytes(14))
    stamp = change.get_versionstamp()
    assert commit_code(change) is None
    tr[space] = b"1"

    assert commit_code(tr) == 1020
    # Other tests may change it again meanwhile, on a cluster that they share.
    assert before != stamp.value <= db[METADATA_VERSION]


def test_a_snapshot_read_of_the_metadata_version_conflicts_with_nothing(db: Any, space: bytes) -> None:
    tr = db.create_transaction()
    tr.snapshot.get(METADATA_VERSION).wait()
    tr.add_read_conflict_key(space + b"other")
    change = db.create_transaction()
    change.set_versionstamped_value(METADATA_VERSION, bytes(14))
    assert commit_code(change) is None
    tr[space] = b"1"

    assert commit_code(tr) is None


def test_the_metadata_version_takes_nothing_else(db: Any, space: bytes) -> None:
    tr = db.create_transaction()
    tr[METADATA_VERSION] = b"1"
    assert commit_code(tr) == 2000


def test_a_watch_fires_on_another_value(db: Any, space: bytes) -> None:
    value, watch = db.get_and_watch(space)
    assert value.value is None
    assert not value.present()
    assert not watch.is_ready()
    ready = threading.Event()
    watch.on_ready(lambda _: ready.set())
    db[space] = b"1"

    assert ready.wait(60)
    watch.wait()


def test_versions_order_reads_and_commits(db: Any, space: bytes) -> None:
    tr = db.create_transaction()
    before = tr.get_read_version().wait()
    tr[space] = b"1"
    tr.commit().wait()
    after = read_version(db)

    assert before < tr.get_committed_version() <= after


def test_a_retry_after_a_conflict_begins_anew(db: Any, space: bytes) -> None:
    tr = db.create_transaction()
    tr.get(space).wait()
    db[space] = b"1"
    tr[space + b"a"] = b"1"
    assert commit_code(tr) == 1020
    tr.on_error(1020).wait()

    assert tr.get(space).value == b"1"
    assert tr.get(space + b"a").value is None


@pytest.mark.parametrize(("size", "expected"), [(100, 2101), (90, None)])
def test_ten_megabytes_are_too_much(db: Any, space: bytes, size: int, expected: int | None) -> None:
    tr = db.create_transaction()
    for number in range(size):
        tr[space + b"%03d" % number] = bytes(100_000)
    assert commit_code(tr) == expected


def test_the_approximate_size_grows_with_writes(db: Any, space: bytes) -> None:
    tr = db.create_transaction()
    tr[space] = bytes(1000)
    assert 1000 < tr.get_approximate_size().wait() < 1400


def test_estimated_sizes_are_about_right(db: Any, space: bytes) -> None:
    tr = db.create_transaction()
    assert tr.get_estimated_range_size_bytes(space, space + b"\xff").wait() >= 0


def test_a_cancelled_transaction_says_so(db: Any, space: bytes) -> None:
    tr = db.create_transaction()
    tr.cancel()
    assert code_of(lambda: tr.get(space).value) == 1025


def test_a_call_after_the_commit_says_so(db: Any, space: bytes) -> None:
    tr = db.create_transaction()
    tr[space] = b"1"
    assert commit_code(tr) is None
    assert code_of(lambda: tr.get(space).value) == 2017


# Futures of transactions that are gone


CALLS: dict[str, Callable[[Any, bytes], Any]] = {
    "get": lambda tr, key: tr.get(key),
    "get of a snapshot": lambda tr, key: tr.snapshot.get(key),
    "get of the metadata version": lambda tr, key: tr.get(METADATA_VERSION),
    "get_key": lambda tr, key: tr.get_key(KeySelector(key, False, 1)),
    "get_read_version": lambda tr, key: tr.get_read_version(),
    "get_estimated_range_size_bytes": lambda tr, key: tr.get_estimated_range_size_bytes(key, key + b"a"),
    "get_range_split_points": lambda tr, key: tr.get_range_split_points(key, key + b"a", 1000),
    "watch": lambda tr, key: tr.watch(key),
    "get_versionstamp": lambda tr, key: tr.get_versionstamp(),
    "on_error": lambda tr, key: tr.on_error(1020),
    "commit": lambda tr, key: tr.set(key, b"2") or tr.commit(),
}
USES: dict[str, Callable[[Any], object]] = {
    "wait": lambda future: future.wait(),
    "block_until_ready": lambda future: future.block_until_ready() or future.wait(),
    "on_ready": lambda future: called(future) and future.wait(),
    "is_ready": lambda future: future.is_ready() and future.wait(),
}


def called(future: Any) -> bool:
    """Wait until the future calls back."""
    ready = threading.Event()
    future.on_ready(lambda _: ready.set())
    return ready.wait(60)


@contextmanager
def all_pending(db: Any) -> Iterator[None]:
    """Within the block no call completes, so the next call comes in time, however slow this thread is.

    A client of a cluster completes calls on one thread, which waits meanwhile in a callback. The embedded store
    completes a call when its future is waited for.
    """
    entered, leave = threading.Event(), threading.Event()

    def wait_on_the_clients_thread(_: Any) -> None:
        entered.set()
        leave.wait(60)

    if isinstance(db.create_transaction().get_read_version(), Future):  # of the embedded store
        yield
        return
    tr = db.create_transaction()
    tr.get_versionstamp().on_ready(wait_on_the_clients_thread)  # not ready before the commit is called
    commit = tr.commit()
    assert entered.wait(60)
    try:
        yield
    finally:
        leave.set()
        commit.wait()


@pytest.mark.parametrize("call", CALLS)
def test_a_future_of_a_transaction_that_was_dropped_raises_1025(db: Any, space: bytes, call: str) -> None:
    db[space] = b"1"
    tr = db.create_transaction()
    with all_pending(db):
        future = CALLS[call](tr, space)
        del tr

    assert code_of(future.wait) == 1025
    assert code_of(future.wait) == 1025


@pytest.mark.parametrize("use", USES)
def test_however_it_is_waited_for(db: Any, space: bytes, use: str) -> None:
    for call in ("get", "get_read_version", "commit"):
        with all_pending(db):
            future = CALLS[call](db.create_transaction(), space)
        if use == "is_ready":
            called(future)  # on a cluster the error takes a moment
        assert code_of(lambda: USES[use](future)) == 1025  # noqa: B023 - runs at once


ENDS: dict[str, Callable[[Any], Any]] = {
    "reset": lambda tr: tr.reset(),
    "cancel": lambda tr: tr.cancel(),
    "on_error": lambda tr: tr.on_error(2000),  # an error that must not be retried
}


@pytest.mark.parametrize("end", ENDS)
def test_the_end_of_a_try_ends_its_reads(db: Any, space: bytes, end: str) -> None:
    db[space] = b"1"
    tr = db.create_transaction()
    with all_pending(db):
        futures = [
            tr.get_read_version(),
            tr.get(space),
            tr.snapshot.get(space),
            tr.get_key(KeySelector(space, False, 1)),
        ]
        found = tr.get_range(space, space + b"a")
        ended = ENDS[end](tr)

    assert ended is None or code_of(ended.wait) == 2000
    assert [code_of(future.wait) for future in futures] == [1025] * 4
    assert code_of(lambda: list(found)) == 1025
    assert code_of(found.to_list) == 1025


@pytest.mark.parametrize("end", ["cancel", "on_error"])
def test_the_end_of_a_transaction_ends_its_watches(db: Any, space: bytes, end: str) -> None:
    tr = db.create_transaction()
    with all_pending(db):
        watch = tr.watch(space)
        ended = ENDS[end](tr)

    assert ended is None or code_of(ended.wait) == 2000
    assert called(watch)
    assert code_of(watch.wait) == 1025


@pytest.mark.parametrize("call", ["get", "get_key", "get_read_version", "commit", "watch", "on_error"])
def test_a_cancelled_future_raises_1101(db: Any, space: bytes, call: str) -> None:
    db[space] = b"1"
    tr = db.create_transaction()
    with all_pending(db):
        future = CALLS[call](tr, space)
        future.cancel()

    assert code_of(future.wait) == 1101


def test_a_future_that_is_ready_cannot_be_cancelled(db: Any, space: bytes) -> None:
    db[space] = b"1"
    tr = db.create_transaction()
    value, version = tr.get(space), tr.get_read_version()
    for future in (value, version):
        future.wait()
        future.cancel()

    assert value.value == b"1"
    assert code_of(version.wait) is None


def test_a_call_during_the_commit_ends_it(db: Any, space: bytes) -> None:
    tr = db.create_transaction()
    tr[space] = b"1"
    with all_pending(db):
        first, second = tr.commit(), tr.commit()

    assert [code_of(first.wait), code_of(second.wait)] == [2017, 2017]


@pytest.mark.parametrize(("limit", "expected"), [(-1, 2), (0, 2), (-2, 2012)])
@pytest.mark.parametrize("mode", [WANT_ALL, -1, 4])
def test_a_negative_limit_is_no_limit_or_an_error(
    db: Any, space: bytes, limit: int, expected: int, mode: int
) -> None:
    db[space + b"a"], db[space + b"b"] = b"1", b"2"
    tr = db.create_transaction()
    found = tr.get_range(space, space + b"c", limit, streaming_mode=mode)
    if expected == 2:
        assert len(list(found)) == len(found.to_list()) == 2
    else:
        assert code_of(found.to_list) == expected


def test_a_later_timeout_does_not_revive_a_transaction(db: Any, space: bytes) -> None:
    tr = db.create_transaction()
    tr.get(space).wait()
    tr.options.set_timeout(20)
    time.sleep(0.2)
    tr.options.set_timeout(0)

    assert code_of(lambda: tr.get(space).value) == 1031


def test_what_was_taken_from_a_future_stays(db: Any, space: bytes) -> None:
    db[space] = b"1"
    tr = db.create_transaction()
    value, version = tr.get(space), tr.get_read_version()
    value.wait()
    number = version.wait()
    del tr

    assert value.value == b"1"
    assert version.wait() == number


def test_a_range_and_a_snapshot_keep_their_transaction(db: Any, space: bytes) -> None:
    db[space] = b"1"
    found = db.create_transaction().get_range(space, space + b"a")
    snapshot = db.create_transaction().snapshot

    assert [row.value for row in found] == [b"1"]
    assert snapshot.get(space).value == b"1"


def test_a_commit_completes_the_reads_and_keeps_the_watches(db: Any, space: bytes) -> None:
    db[space] = b"1"
    tr = db.create_transaction()
    value, watch, stamp = tr.get(space), tr.watch(space), tr.get_versionstamp()
    tr[space + b"a"] = b"1"
    assert commit_code(tr) is None
    del tr

    assert value.value == b"1"
    assert len(stamp.value) == 10
    assert not watch.is_ready()
    db[space] = b"2"
    assert called(watch)
    watch.wait()
