"""A worker's row that is not cq's stands for nobody, and neither workers nor those who look at them fail for it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

import cq
from cq.encoding import codec
from cq.errors import CorruptData
from cq.keys import INCOMPLETE_VERSIONSTAMP
from cq.keys import membership as workerkeys
from cq.observers.monitoring.findings import remarks
from cq.observers.monitoring.health_check import health
from cq.observers.monitoring.store_overview import overview
from cq.observers.scheduling.members import Member, MemberReport, TaskId
from cq.observers.scheduling.membership import Membership
from cq.observers.worker.worker import Worker
from cq.store.transact import transact
from tests.fuzz.inputs import BOMBS, bounded, broken, searched
from tests.kit.queues import add, get, stored

pytestmark = pytest.mark.sampled(3)

FACTS = {
    "version": "1", "started": 5, "buckets": 2, "concurrency": 8, "totals": {"passes": 3},
    "queues": {"words": [1, 2, 3, 4.0, 5.0]}, "error": "an error",
}  # fmt: skip


def row_of(db: Any) -> tuple[bytes, bytes]:
    """The row of a worker that has just beaten."""
    member = Membership(db, queues=["words"])
    member.beat(MemberReport(frozenset({"a"}), frozenset({"b"}), FACTS, frozenset({"c"})))
    key = workerkeys.worker(member.id)
    return key, stored(db, (key, key + b"\x00"))[0][1]


def put(db: Any, key: bytes, content: bytes) -> None:
    """A row, with a fresh stamp."""
    transact(
        db, lambda tr: tr.set_versionstamped_value(key, bytes(10) + content + INCOMPLETE_VERSIONSTAMP[10:])
    )


def look(db: Any) -> None:
    """All that reads the rows of workers."""
    member = Membership(db)
    member.beat(MemberReport())
    member.is_mine(TaskId("combine", "words", 0))
    remarks(overview(db))
    health(db)
    member.leave(5.0)


def test_changed_rows_of_workers_disturb_nobody(db: Any, name: str) -> None:
    cq.configure(db, name)
    key, value = row_of(db)
    for rng in searched(60):
        put(db, key, broken(value[10:], rng))
        look(db)


@pytest.mark.parametrize(
    "what", ["every", "roles", "queues", "host", "pid", "lacking", "stuck", "levels", "facts"]
)
def test_a_bomb_in_the_row_of_a_worker_takes_little_time_and_memory(db: Any, what: str) -> None:
    key, value = row_of(db)
    content = codec.decode(value[10:])
    before, behind = codec.encode({**content, what: "HERE"}).split(b"\x64HERE")
    with bounded():
        for bomb in BOMBS.values():
            with suppress(CorruptData):
                Member.of_row(key, value[:10] + before + bomb + behind)
        for name in (
            "a decimal of 10**9 digits",
            "a large int",
            "many empty lists",
            "deep, but not too deep",
        ):
            put(db, key, before + BOMBS[name][:90_000] + behind)
            look(db)


def test_a_row_that_lacks_a_part_is_nobody_s(db: Any) -> None:
    key, value = row_of(db)
    content = codec.decode(value[10:])
    for what in content.keys() - {"kinds", "levels"}:  # which rows of earlier builds lack
        lacking = {each: part for each, part in content.items() if each != what}
        with pytest.raises(CorruptData):
            Member.of_row(key, value[:10] + codec.encode(lacking))


@pytest.mark.parametrize("id_", [b"", b"x", b"x" * 65, b"\xff" * 500])
def test_a_worker_of_another_kind_of_name_is_nobody(db: Any, id_: bytes) -> None:
    _, value = row_of(db)
    put(db, workerkeys.worker(id_), value[10:])

    look(db)
    with pytest.raises(CorruptData):
        Member.of_row(workerkeys.worker(id_), value)


def test_a_worker_works_beside_rows_that_are_not_of_workers(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=1)
    key, value = row_of(db)
    for number, each in enumerate((b"", b"\x00", b"\xff" * 50, value[:30])):
        put(db, key[:-1] + bytes((number,)), each)
    content = codec.decode(value[10:])
    put(db, key, codec.encode({**content, "pid": codec.decode(BOMBS["a decimal of 10**9 digits"])}))
    add(db, name, {"a": 1})

    worker = Worker(db, queues=[name])
    worker.run(lambda: worker.stop() if get(db, name, "a") == 1 else None)

    assert get(db, name, "a") == 1
