"""Whatever becomes of any row that cq keeps: each call works or says in one of cq's errors what is wrong.

What is about all queues works in any case, and the other queues go on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import cq
from cq.admin.queue_status import status
from cq.config.queue import Named, QueueConfig
from cq.config.store_id import ensure_store_id
from cq.encoding import codec
from cq.encoding.codec import KeyType, ValueType
from cq.intake.documents import Documents
from cq.keys import INCOMPLETE_VERSIONSTAMP, ROOT, STORE_ID, QueueKeys, queue_entry
from cq.keys.link import LinkKeys
from cq.observers.links.state import entries_aside
from cq.observers.monitoring.findings import remarks
from cq.observers.monitoring.health_check import health
from cq.observers.monitoring.link_status import link_status
from cq.observers.monitoring.store_overview import overview
from cq.store.api import METADATA_VERSION
from cq.store.transact import transact
from tests.fuzz import stores
from tests.fuzz.inputs import BOMBS, bounded, searched
from tests.kit.queues import add, get
from tests.links.linkhelpers import OWN, tasks


@pytest.fixture
def rows(db: Any) -> dict[bytes, bytes]:
    """All that a store has with something of everything."""
    stores.make(db)
    return stores.contents(db)


def test_whatever_is_broken_all_that_looks_at_it_says_so(db: Any, rows: dict[bytes, bytes]) -> None:
    for rng in searched(25):
        key, changed = stores.break_one(rows, rng)
        stores.put(db, changed)
        name = stores.queue_of(key, rng)
        for what, look in stores.looks(db, name):
            note = f"{what} of queue {name!r}, with {key!r} broken: {changed[key][:60]!r}"
            with stores.clear_errors(note, is_sure=what in stores.SURE):
                look()
        if not key.startswith(QueueKeys("other").prefix):
            before = get(db, "other", "safe")
            add(db, "other", {"safe": 1})
            stores.combine(db, "other")
            assert get(db, "other", "safe") == before + 1


def test_bombs_in_any_place_take_little_time_and_memory(db: Any, rows: dict[bytes, bytes]) -> None:
    for rng in searched(10):
        key, bomb = rng.choice(sorted(rows)), rng.choice(sorted(BOMBS))
        stores.put(db, {**rows, key: BOMBS[bomb][:99_000]})
        with bounded():
            for _, look in stores.looks(db, stores.queue_of(key, rng)):
                with stores.clear_errors(f"{bomb} in {key!r}"):
                    look()


BROKEN: dict[str, Callable[[QueueKeys], tuple[bytes, bytes]]] = {
    "config": lambda keys: (keys.config, b"\xff"),
    "an endless number of buckets": lambda keys: (keys.config, with_buckets(10**12)),
    "flags": lambda keys: (keys.flags, codec.encode({"paused": []})),
    "the mark of a full queue": lambda keys: (keys.full, b"\x05"),
}  # fmt: skip


def with_buckets(number: int) -> bytes:
    """A configuration of so many buckets."""
    config = QueueConfig(
        "",
        key=KeyType.parse(str),
        value=ValueType.parse(int),
        combiner=Named("sum", 1),
        observers=(),
        buckets=16,
    )
    return codec.encode({**codec.decode(config.to_bytes()), "buckets": number})


@pytest.mark.parametrize("what", BROKEN)
def test_a_queue_that_cannot_be_read_is_named_beside_the_others(db: Any, what: str) -> None:
    cq.configure(db, "good", buckets=1)
    cq.configure(db, "bad", buckets=1)
    add(db, "good", {"a": 1})

    def change(tr: Any) -> None:
        tr.set(*BROKEN[what](QueueKeys("bad")))
        tr.set_versionstamped_value(METADATA_VERSION, INCOMPLETE_VERSIONSTAMP)

    transact(db, change)

    bad, good = status(db)
    assert (good.rows, good.problem) == (1, "")
    assert (bad.name, bad.rows) == ("bad", 0)
    assert bad.problem
    said = remarks(overview(db))
    assert any(line.startswith("queue 'bad': cannot be read: ") for line in said)
    assert not any("nobody combines it" in line and "'bad'" in line for line in said)
    if what == "flags":
        assert any(line.startswith("queue 'bad': cannot be read: ") for line in health(db))


def test_entries_of_queues_that_there_are_not_are_passed_over(db: Any) -> None:
    cq.configure(db, "good")

    def litter(tr: Any) -> None:
        for name in (b"", b"\xff\xfe", b"a/b", b"x" * 500, b"-"):
            tr.set(queue_entry("") + name, b"")
            tr.set(ROOT + b"q/" + name + b"/e", b"")
        tr.set(queue_entry("nothing"), b"")

    transact(db, litter)

    assert [each.name for each in status(db)] == ["good", "nothing"]
    assert link_status(db) == []


def test_exports_that_cannot_be_read_are_named_beside_the_others(db: Any, rows: dict[bytes, bytes]) -> None:
    stores.put(db, {**rows, LinkKeys("words", "export").control: b"\xff"})

    (found,) = link_status(db)
    assert (found.name, found.state) == ("words export", "unreadable")
    assert "CBOR" in found.error


def test_what_was_set_aside_of_an_export_is_listed_although_some_cannot_be_read(db: Any) -> None:
    keys = LinkKeys("words", OWN)

    def litter(tr: Any) -> None:
        tr.set(keys.aside_piece(1, bytes(22), 0), codec.encode(["an error", b"aa", 5]))
        tr.set(keys.aside_piece(1, bytes(21) + b"\x01", 0), codec.encode([1, 2]))
        tr.set(keys.aside_piece(2, bytes(22), 7), b"\xff")
        tr.set(keys.aside()[0] + b"short", b"")

    transact(db, litter)

    found = list(entries_aside(db, keys))
    assert [each.encoded_key for each in found] == [b"aa", None, None]
    assert found[1].value == codec.encode([1, 2])


def test_a_row_of_a_link_of_too_many_sequences_is_set_aside(db: Any) -> None:
    keys, seen = LinkKeys("words", OWN), list[Any]()
    sequence = b"\x00\x00\x00\x01" + bytes(10) + b"\xff" * 8
    for number, row in enumerate((codec.encode([b"aa", 1, b"ab", 2]), codec.encode(["a", 1]), b"\xff")):
        key = keys.row(1, sequence[:13] + bytes((number,)) + sequence[14:])
        transact(db, lambda tr, key=key, row=row: tr.set(key, b"\x00" + row))  # type: ignore[misc]
    good = keys.row(1, b"\x00\x00\x00\x01" + bytes(9) + b"\x09" + bytes(8))
    transact(db, lambda tr: tr.set(good, b"\x00" + codec.encode([b"ac", 3])))

    task = tasks(db, "words", lambda changes: seen.extend(entry.key for entry in changes))[1]
    stores.run_task(task)

    assert (seen, task.problem) == (["c"], "")
    assert len(list(entries_aside(db, keys))) == 3


@pytest.mark.parametrize("header", list(map(codec.encode, (0, -1, 2**63, 10**12, "1", [], None))))
def test_documents_of_endless_parts_are_refused(db: Any, header: bytes) -> None:
    cq.configure(db, "words")
    documents = Documents(cq.CombineQueue("words"))
    transact(db, lambda tr: tr.set(QueueKeys("words").document(b"doc"), header))

    with pytest.raises(cq.errors.CorruptData, match="parts of document"):
        documents.put(db, b"doc", {"a": 1})
    with pytest.raises(cq.errors.CorruptData, match="parts of document"):
        documents.remove(db, b"doc")


def test_a_store_id_of_another_kind_is_refused(db: Any) -> None:
    transact(db, lambda tr: tr.set(STORE_ID, b"x"))
    with pytest.raises(cq.errors.CorruptData, match="id of the store"):
        ensure_store_id(db)
