"""Write-only transactions: which version they begin at, and that they refuse to read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import cq
from cq.store.api import is_local
from cq.store.transact import transact, transact_chained, transactional


def test_on_a_cluster_a_transaction_begins_at_the_commit_before_it(db: Any) -> None:
    def write(tr: Any) -> tuple[int, Any]:
        tr.set(b"a", b"1")
        return tr.get_read_version().wait(), tr.get_versionstamp()

    _, stamp = transact_chained(db, write)
    committed = int.from_bytes(stamp.wait()[:8], "big")
    transact(db, lambda tr: tr.set(b"other", b"1"))
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
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("of_snapshot", [False, True])
def test_a_write_only_transaction_refuses_reads(
    db: Any, read: Callable[[Any], object], of_snapshot: bool
) -> None:
    cq.configure(db, "words")

    def write(tr: Any) -> None:
        tr.set(b"a", b"1")
        read(tr.snapshot if of_snapshot else tr)

    with pytest.raises(TypeError, match="write-only"):
        transact(db, write, write_only=True)
    assert db[b"a"] is None


def test_a_write_only_transaction_refuses_watches(db: Any) -> None:
    with pytest.raises(TypeError, match="write-only"):
        transact(db, lambda tr: tr.watch(b"a"), write_only=True)


def test_a_write_only_transaction_writes_as_any_other(db: Any) -> None:
    words = cq.CombineQueue[str, int]("words")
    cq.configure(db, "words")

    @transactional(write_only=True)
    def write(tr: Any, value: bytes) -> bytes:
        tr[b"a"] = value
        tr.set(b"b", value)
        tr.add(b"c", b"\1\0")
        del tr[b"b"]
        tr.options.set_timeout(5_000)
        words.add(tr, {"x": 1}, once="first")
        return value

    assert write(db, b"1") == b"1"
    assert (db[b"a"], db[b"b"], db[b"c"]) == (b"1", None, b"\1\0")
    assert transact(db, lambda tr: words.get(tr.snapshot, "x", pending=True)) == 1
