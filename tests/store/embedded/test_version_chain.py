"""Chains of read versions, on an embedded store that stands for a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest

import cq
from cq import admin, runtime
from cq.config.queue import read_config
from cq.queue import adds
from cq.store.embedded import Database, FDBError
from cq.store.transact import transact, transact_chained
from cq.store.version_chain import CHAIN_SECONDS, VersionChain
from tests.kit.clocks import Stopped


class Remote:
    """A database that is no local file, so that its transactions are chained."""

    def __init__(self, inner: Database) -> None:
        self.inner = inner

    @property
    def options(self) -> Any:
        return self.inner.options

    def create_transaction(self) -> Any:
        return self.inner.create_transaction()


@pytest.fixture
def remote(db: Database) -> Remote:
    return Remote(db)


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


def test_a_chained_transaction_begins_at_the_latest_commit_of_its_process(
    db: Database, remote: Remote
) -> None:
    first = begun(remote)
    second = begun(remote)
    other = committed(db)
    third = begun(remote)

    assert first < second < third < other
    assert begun(db) >= other, "a local store has no chain"
    assert transact(remote, lambda tr: tr.get_read_version().wait()) > other, "others are not chained"


def test_a_chain_ends_a_second_after_its_requested_version(
    db: Database, remote: Remote, clock: Stopped
) -> None:
    begun(remote)
    for _ in range(4):
        clock.now += CHAIN_SECONDS / 5
        other = committed(db)
        assert begun(remote) < other

    clock.now += CHAIN_SECONDS / 5
    assert begun(remote) >= other
    assert begun(remote) < committed(db), "and the next one begins"


def test_an_error_ends_a_chain(db: Database, remote: Remote) -> None:
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


def test_a_chained_transaction_fails_if_what_it_has_read_has_changed(db: Database, remote: Remote) -> None:
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
    until = chain.end()
    chain.extend(7, until)
    chain.extend(5, until)
    chain.extend(-1, until)  # of a transaction without writes
    versions: list[int] = []

    class Recorder:
        set_read_version = staticmethod(versions.append)

    assert chain.begin(Recorder()) == (until, True)
    assert versions == [7]


def test_a_refusal_at_an_old_version_is_not_final(db: Database, remote: Remote) -> None:
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


def test_adds_go_to_the_shape_that_is_configured_meanwhile(db: Database, remote: Remote) -> None:
    words = cq.CombineQueue[str, int]("words")
    cq.configure(db, "words", buckets=2)
    transact(remote, lambda tr: words.add(tr, {"a": 1}), write_only=True)
    admin.rebucket(db, "words", 5)
    transact(remote, lambda tr: words.add(tr, {"b": 1}), write_only=True)
    words.add_now(remote, {"a": 1})

    assert transact(db, lambda tr: words.get(tr.snapshot, "a", pending=True)) == 2
    assert transact(db, lambda tr: words.get(tr.snapshot, "b", pending=True)) == 1


def test_a_call_refused_at_an_old_version_is_checked_again(db: Database, remote: Remote) -> None:
    """Its queue takes texts now, and did not take them at the version of the chain."""

    class AtOld(Remote):
        """A database whose chained transactions read the configuration of before."""

        def create_transaction(self) -> Any:
            return Old(self.inner.create_transaction())

    class Old:
        def __init__(self, inner: Any) -> None:
            self.inner, self.is_old = inner, False

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

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
