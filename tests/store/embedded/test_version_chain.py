"""Chains of read versions, on an embedded store that stands for a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import pytest

import cq
from cq import admin, runtime
from cq.config.queue import read_config
from cq.queue import adds
from cq.store.api import METADATA_VERSION
from cq.store.embedded import Database, FDBError
from cq.store.transact import transact, transact_chained
from cq.store.version_chain import CHAIN_SECONDS, VersionChain
from tests.kit.clocks import Stopped
from tests.kit.faults import Passing, WrappedDatabase


class CountedReads(Passing):
    """A transaction, or its snapshot reads, that notes the keys that it reads."""

    def __init__(self, inner: Any, read: list[bytes]) -> None:
        super().__init__(inner)
        self.read = read

    @property
    def snapshot(self) -> CountedReads:
        return CountedReads(self.inner.snapshot, self.read)

    def get(self, key: bytes) -> Any:
        self.read.append(key)
        return self.inner.get(key)


@pytest.fixture
def remote(db: Database) -> WrappedDatabase:
    """A database that is no local file, so that its transactions are chained."""
    return WrappedDatabase(db)


@pytest.fixture
def words(db: Database) -> cq.CombineQueue[str, int]:
    return cq.configure(db, "words", key=str, value=int)


@pytest.fixture
def clock() -> Iterator[Stopped]:
    clock = Stopped()
    with runtime.using(clock):
        yield clock


def begun(db: Any, key: bytes = b"a") -> int:
    """The read version of a chained transaction that writes a key."""

    def write(tr: Any) -> int:
        tr.set(key, b"1")
        return int(tr.get_read_version().wait())

    return transact_chained(db, write)


def committed(db: Any) -> int:
    """The version of a commit of another process."""
    tr = db.create_transaction()
    tr[b"other"] = b"1"
    tr.commit().wait()
    return int(tr.get_committed_version())


def test_chained_transactions_begin_at_one_commit_of_their_process(
    db: Database, remote: WrappedDatabase
) -> None:
    first = begun(remote)
    second = begun(remote)
    other = committed(db)
    third = begun(remote)

    assert first < second == third < other
    assert begun(db) >= other, "a local store has no chain"
    assert transact(remote, lambda tr: tr.get_read_version().wait()) > other, "others are not chained"


def test_a_transaction_that_follows_another_one_begins_at_its_commit(
    db: Database, remote: WrappedDatabase
) -> None:
    tries: list[int] = []

    def count(tr: Any) -> None:
        tries.append(int.from_bytes(tr.get(b"count").value or b""))
        tr.set(b"count", bytes([tries[-1] + 1]))

    for _ in range(3):
        transact_chained(remote, count, is_followed=True)

    assert tries == [0, 1, 2], "no try fails"


def test_the_transactions_of_a_chain_read_the_metadata_version_once(
    db: Database, words: cq.CombineQueue[str, int]
) -> None:
    read: list[bytes] = []

    class Counted(WrappedDatabase):
        def create_transaction(self) -> Any:
            return CountedReads(self.inner.create_transaction(), read)

    counted = Counted(db)
    for _ in range(4):
        transact(counted, lambda tr: words.add(tr, {"a": 1}), write_only=True)

    assert read.count(METADATA_VERSION) == 2, "once at the requested version, and once at that of its commit"


def test_a_chain_ends_if_its_process_knows_a_later_metadata_version(
    db: Database, remote: WrappedDatabase, words: cq.CombineQueue[str, int]
) -> None:
    add: Callable[[Any], None] = lambda tr: words.add(tr, {"a": 1})  # noqa: E731
    transact(remote, add, write_only=True)
    transact(remote, add, write_only=True)
    cq.configure(db, "others")
    transact(remote, add)  # the cache of configurations is now valid for the later metadata version
    other = committed(db)

    transact(remote, add, write_only=True)  # it was at an earlier version, and its queue is unchanged
    assert begun(remote) >= other


def test_a_chain_ends_a_second_after_its_requested_version(
    db: Database, remote: WrappedDatabase, clock: Stopped
) -> None:
    begun(remote)
    for _ in range(4):
        clock.now += CHAIN_SECONDS / 5
        other = committed(db)
        assert begun(remote) < other

    clock.now += CHAIN_SECONDS / 5
    assert begun(remote) >= other
    assert begun(remote) < committed(db), "and the next one begins"


def test_an_error_ends_a_chain(db: Database, remote: WrappedDatabase) -> None:
    begun(remote)
    other = committed(db)
    versions: list[int] = []

    def fail_once(tr: Any) -> None:
        versions.append(tr.get_read_version().wait())
        if len(versions) == 1:
            raise FDBError(1020)
        tr.set(b"a", b"1")

    transact_chained(remote, fail_once)

    assert versions[0] < other <= versions[1]
    assert begun(remote) > versions[1]


def test_a_chained_transaction_fails_if_what_it_has_read_has_changed(
    db: Database, remote: WrappedDatabase
) -> None:
    begun(remote)
    db[b"read"] = b"1"
    tries: list[int] = []

    def write(tr: Any) -> None:
        tries.append(tr.get_read_version().wait())
        tr.add_read_conflict_key(b"read")
        tr.set(b"b", b"1")

    transact_chained(remote, write)
    assert len(tries) == 2


def test_the_versions_of_a_chain_do_not_go_back() -> None:
    chain = VersionChain()
    versions: list[int] = []

    class Recorder:
        cq_chained: Any = None
        set_read_version = staticmethod(versions.append)

    until = chain.end(Recorder())
    chain.start(7, until)
    chain.start(5, until)
    chain.start(-1, until)  # of a transaction without writes

    assert chain.begin(Recorder()) == (until, True)
    assert versions == [7]


def test_a_refusal_at_an_old_version_is_not_final(db: Database, remote: WrappedDatabase) -> None:
    words = cq.CombineQueue[str, int]("words")
    begun(remote)
    cq.configure(db, "words")
    words.add_now(remote, {"a": 1})
    assert transact(db, lambda tr: words.get(tr.snapshot, "a", pending=True)) == 1

    begun(remote)
    tries: list[int] = []

    def refuse(tr: Any) -> None:
        tries.append(tr.get_read_version().wait())
        raise cq.QueueFull("it is full")

    other = committed(db)
    with pytest.raises(cq.QueueFull):
        transact_chained(remote, refuse)
    assert tries[0] < other <= tries[1]
    assert len(tries) == 2


def test_adds_go_to_the_shape_that_is_configured_meanwhile(db: Database, remote: WrappedDatabase) -> None:
    words = cq.CombineQueue[str, int]("words")
    cq.configure(db, "words", buckets=2)
    transact(remote, lambda tr: words.add(tr, {"a": 1}), write_only=True)
    admin.rebucket(db, "words", 5)
    transact(remote, lambda tr: words.add(tr, {"b": 1}), write_only=True)
    words.add_now(remote, {"a": 1})

    assert transact(db, lambda tr: words.get(tr.snapshot, "a", pending=True)) == 2
    assert transact(db, lambda tr: words.get(tr.snapshot, "b", pending=True)) == 1


def test_a_call_refused_at_an_old_version_is_checked_again(db: Database, remote: WrappedDatabase) -> None:
    """Its queue takes texts now, and did not take them at the version of the chain."""

    class AtOld(WrappedDatabase):
        """A database whose chained transactions read the configuration of before."""

        def create_transaction(self) -> Any:
            return Old(self.inner.create_transaction())

    class Old(Passing):
        is_old = False

        def set_read_version(self, version: int) -> None:
            self.is_old = True

        def reset(self) -> None:
            self.is_old = False
            self.inner.reset()

    words = cq.CombineQueue[str, Any]("words")
    cq.configure(db, "words")
    before = read_config(db.create_transaction(), "words")
    admin.delete(db, "words")
    cq.configure(db, "words", value=str, combiner="last")
    old = AtOld(db)
    begun(old)

    def read(tr: Any, name: str) -> Any:
        return before if getattr(tr, "is_old", False) else read_config(tr, name)

    with patch.object(adds, "read_config", read):
        words.add_now(old, {"a": "x"})
        begun(old)
        with pytest.raises(cq.InvalidData):
            words.add_now(old, {"a": None})
    assert transact(db, lambda tr: words.get(tr.snapshot, "a", pending=True)) == "x"
