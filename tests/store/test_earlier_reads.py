"""Reads that may be of some seconds ago share one read version on a cluster, and never write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import cq
from cq.store import read_earlier
from cq.store.api import is_local
from cq.testing import drain
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
