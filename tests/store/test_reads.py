"""Transactions that only read, at a version of some seconds ago, and those that only write, at one of their process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import cq
from cq.feeds import Feed
from cq.intake import Documents
from cq.store import Space, read_earlier
from cq.store.api import is_local
from cq.store.transact import transact, transact_chained, transactional
from cq.testing import drain
from cq.windows import Window
from tests.kit.queues import add
from tests.kit.trips import VERSION, TripsDatabase


def put(db: Any, value: bytes) -> None:
    cq.transact(db, lambda tr: tr.set(b"cq/test", value))


def get(tr: Any) -> Any:
    return tr.get(b"cq/test").value


def test_a_read_is_at_most_that_old(db: Any) -> None:
    put(db, b"1")
    assert read_earlier(db, get, max_age=4) == b"1"
    put(db, b"2")
    assert read_earlier(db, get, max_age=4) in ((b"2",) if is_local(db) else (b"1", b"2"))
    assert read_earlier(db, get, max_age=0) == b"2"


def test_reads_share_a_request_for_a_version(db: Any) -> None:
    counting = TripsDatabase(db)
    for _ in range(3):
        read_earlier(counting, get, max_age=4)

    assert counting.trips == [VERSION, ["get"], ["get"], ["get"]]


def test_a_version_that_is_too_old_is_replaced(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    put(db, b"1")
    monkeypatch.setattr("cq.store.reads._versions", {db: (1, float("inf"))})
    assert read_earlier(db, get, max_age=1) == b"1"


WRITES: list[Callable[[Any], Any]] = [
    lambda tr: tr.set(b"cq/test", b""),
    lambda tr: tr.clear(b"cq/test"),
    lambda tr: tr.clear_range(b"cq/test", b"cq/u"),
    lambda tr: tr.clear_range_startswith(b"cq/test"),
    lambda tr: tr.add(b"cq/test", b"\x01"),
    lambda tr: tr.max(b"cq/test", b"\x01"),
    lambda tr: tr.byte_min(b"cq/test", b"\x01"),
    lambda tr: tr.bit_or(b"cq/test", b"\x01"),
    lambda tr: tr.set_versionstamped_key(b"cq/test", b""),
    lambda tr: tr.watch(b"cq/test"),
    lambda tr: tr.commit(),
    lambda tr: tr.__setitem__(b"cq/test", b""),
    lambda tr: tr.__delitem__(b"cq/test"),
    lambda tr: cq.CombineQueue("words").add(tr, {"a": 1}),
]


def test_writes_are_refused(db: Any) -> None:
    cq.configure(db, "words")
    for write in WRITES:
        with pytest.raises(TypeError, match="an earlier version cannot write"):
            read_earlier(db, write, max_age=1)
    with pytest.raises(cq.errors.InvalidConfiguration, match="0 to 4 seconds"):
        read_earlier(db, get, max_age=5)
    with pytest.raises(TypeError):
        read_earlier(None, get, max_age=1)  # type: ignore[arg-type]


def test_queues_are_read(db: Any, name: str) -> None:
    cq.configure(db, name)
    add(db, name, {"a": 1})
    drain(db, name)
    queue = cq.CombineQueue(name)
    read_earlier(db, get, max_age=0)
    assert read_earlier(db, lambda tr: (queue.get(tr, "a"), tr[b"cq/test"]), max_age=0)[0] == 1


# Write-only transactions


def test_on_a_cluster_a_transaction_begins_at_the_commit_before_it(db: Any) -> None:
    def write(tr: Any) -> tuple[int, Any]:
        tr.set(b"cq/a", b"1")
        return tr.get_read_version().wait(), tr.get_versionstamp()

    _, stamp = transact_chained(db, write)
    committed = int.from_bytes(stamp.wait()[:8], "big")
    transact(db, lambda tr: tr.set(b"cq/other", b"1"))
    version, _ = transact_chained(db, write)
    assert version > committed if is_local(db) else version == committed


READS: dict[str, Callable[[Any], object]] = {
    "get": lambda tr: tr.get(b"a"),
    "item": lambda tr: tr[b"a"],
    "get_key": lambda tr: tr.get_key(None),
    "get_range": lambda tr: tr.get_range(b"a", b"b"),
    "get_range_startswith": lambda tr: tr.get_range_startswith(b"a"),
    "get_range_split_points": lambda tr: tr.get_range_split_points(b"a", b"b", 1),
    "get_estimated_range_size_bytes": lambda tr: tr.get_estimated_range_size_bytes(b"a", b"b"),
    "get_read_version": lambda tr: tr.get_read_version(),
    "value": lambda tr: cq.CombineQueue("words").get(tr, "a"),
    "counts": lambda tr: Documents(cq.CombineQueue("words")).counts(tr, b"a"),
    "statistics": lambda tr: Window("hits").statistics(tr),
    "message": lambda tr: Feed[str]("news").latest(tr, "anne"),
    "value in a space": lambda tr: cq.CombineQueue("words").get(Space("there").transaction(tr), "a"),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("of_snapshot", [False, True])
def test_a_write_only_transaction_refuses_reads(
    db: Any, read: Callable[[Any], object], of_snapshot: bool
) -> None:
    cq.configure(db, "words")
    cq.configure(db, "hits", window="600/10")
    cq.configure(Space("there").database(db), "words")
    Feed[str]("news").configure(db)

    def write(tr: Any) -> None:
        tr.set(b"cq/a", b"1")
        read(tr.snapshot if of_snapshot else tr)

    with pytest.raises(TypeError, match="leave out `write_only`"):
        transact(db, write, write_only=True)
    assert db[b"cq/a"] is None


def test_a_write_only_transaction_refuses_watches(db: Any) -> None:
    with pytest.raises(TypeError, match="write-only"):
        transact(db, lambda tr: tr.watch(b"a"), write_only=True)


@pytest.mark.parametrize(
    "begin", [lambda tr: tr.reset(), lambda tr: tr.on_error(1020), lambda tr: tr.set_read_version(1)]
)
def test_a_write_only_transaction_keeps_its_version(db: Any, begin: Callable[[Any], object]) -> None:
    """At another version, an add would take the configuration of the former one, and not fail after a change of it."""
    with pytest.raises(TypeError, match="keeps the version"):
        transact(db, begin, write_only=True)


def test_a_write_only_transaction_writes_as_any_other(db: Any, name: str) -> None:
    words, prefix = cq.CombineQueue[str, int]("words"), name.encode()
    cq.configure(db, "words")

    @transactional(write_only=True)
    def write(tr: Any, value: bytes) -> bytes:
        tr[prefix + b"a"] = value
        tr.set(prefix + b"b", value)
        tr.add(prefix + b"c", b"\1\0")
        del tr[prefix + b"b"]
        tr.options.set_timeout(5_000)
        words.add(tr, {"x": 1}, once="first")
        return value

    assert write(db, b"1") == b"1"
    assert [db[prefix + key] for key in (b"a", b"b", b"c")] == [b"1", None, b"\1\0"]
    assert transact(db, lambda tr: words.get(tr.snapshot, "x", pending=True)) == 1


def test_a_function_that_reads_before_it_writes_is_refused(db: Any) -> None:
    documents = Documents(cq.configure(db, "words", key=str, value=int, combiner="sum"))
    with pytest.raises(TypeError, match="leave out `write_only`"):
        transact(db, lambda tr: documents.set(tr, b"a", {"x": 1}), write_only=True)
    assert transact(db, lambda tr: documents.counts(tr, b"a")) is None


def test_a_view_of_a_write_only_transaction_takes_adds(db: Any, name: str) -> None:
    space, words = Space(f"there-{name}"), cq.CombineQueue[str, int]("words")
    there = space.database(db)
    cq.configure(there, "words")

    transact(db, lambda tr: words.add(space.transaction(tr), {"a": 1}), write_only=True)
    transact(there, lambda tr: words.add(space.transaction(tr), {"a": 1}), write_only=True)
    there.transact(lambda tr: words.add(tr, {"a": 1}), write_only=True)

    assert transact(there, lambda tr: words.get(tr.snapshot, "a", pending=True)) == 3


def test_a_database_runs_a_write_only_transaction(db: Any) -> None:
    db.transact(lambda tr: tr.set(b"cq/a", b"1"), write_only=True)
    assert db[b"cq/a"] == b"1"
    with pytest.raises(TypeError, match="leave out `write_only`"):
        db.transact(lambda tr: tr.get(b"a"), write_only=True)
