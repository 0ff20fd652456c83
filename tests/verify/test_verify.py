"""`cq.verify.queue`: each kind of damage is found and named, what can be derived is mended, what is in order never
named."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

import cq
from cq import admin, keys
from cq.config.queue import read_config
from cq.encoding import codec, hashing
from cq.errors import CodeMismatch, QueueNotConfigured
from cq.failure import KeyFailure
from cq.keys import QueueKeys
from cq.keys import membership as workerkeys
from cq.keys import queue as key_layout
from cq.keys.link import LinkKeys, received
from cq.passes.combine_pass import Pass
from cq.passes.plan import PassPlan
from cq.queue.bucket_state import BucketState
from cq.store.embedded import Database as Embedded
from cq.store.transact import transact
from cq.testing import assert_values, drain
from cq.verify.kinds import KINDS
from cq.verify.piece import Difference
from cq.verify.queue import CHECKS, PARTS, verify
from cq.verify.verification import Verification
from tests.kit.faults import FaultyDatabase
from tests.kit.observing import Seen, app_with
from tests.kit.queues import Writes, add, aside, put, stored, values

BUCKETS = 4
NOW = {f"k{number}": 2 for number in range(40)}
"""The values of the queue under test once all that waits is combined: a half of each waits."""
NEW = "a key that the queue has not"
FAR = (1 << 62).to_bytes(8, "big")
"""A version that no store reaches."""


@dataclass
class Damage:
    """Damage, and what comes of it.

    Attributes:
        kind: the only difference that is to be found.
        writes: what it writes, given the queue's keys and the key of a row that waits.
        values: what the queue holds after a repair and a drain in addition to, or instead of, `NOW`.
        aside: the key and the last of the updates of each piece that the repair sets aside; None for no key.
    """

    kind: str
    writes: Callable[[QueueKeys, bytes], Writes]
    values: dict[str, int] = field(default_factory=dict)
    aside: list[tuple[str | None, Any]] = field(default_factory=list)


@pytest.fixture
def queue(db: Any, name: str) -> QueueKeys:
    """The keys of a queue of forty values, with an update for each that waits."""
    cq.configure(db, name, buckets=BUCKETS)
    add(db, name, dict.fromkeys(NOW, 1))
    drain(db, name)
    add(db, name, dict.fromkeys(NOW, 1), once="an operation")
    return QueueKeys(name)


def found_in(db: Any, queue: QueueKeys, **settings: Any) -> list[Difference]:
    """The differences of a queue; not those that another test has made of another queue of a cluster."""
    name = queue.prefix.split(b"/")[-2]
    return [each for each in verify(db, name.decode(), **settings) if name in each.where]


def other(queue: QueueKeys) -> str:
    """The name of a queue that there is not."""
    return queue.prefix.split(b"/")[-2].decode() + "-other"


def entry_of(queue: QueueKeys) -> bytes:
    return keys.queue_entry(queue.prefix.split(b"/")[-2].decode())


def encoded(key: object) -> bytes:
    return codec.encode(key)


def bucket_of(key: object) -> int:
    return hashing.bucket_of(encoded(key), BUCKETS)


def bucket_of_row(key: bytes) -> int:
    return int.from_bytes(key[-22:-18], "big")


def behind(bucket: int) -> int:
    return (bucket + 1) % BUCKETS


def astray(place: bytes, key: str) -> bytes:
    """The key of a value or of staged updates with another hash than the key's."""
    at = len(place) - len(encoded(key)) - 1
    return place[:at] + bytes([place[at] ^ 1]) + place[at + 1 :]


def row_in(key: bytes, bucket: int) -> bytes:
    """The key of a row as if it had been added to another bucket."""
    return key[:-22] + bucket.to_bytes(4, "big") + key[-18:]


def old(key: bytes, bucket: int) -> bytes:
    """The key of a row as if it had been added to a bucket long ago."""
    return row_in(key[:-18] + (1).to_bytes(8, "big") + key[-10:], bucket)


def row(key: object, update: object) -> bytes:
    return codec.encode([None, encoded(key), update])


def aside_astray(queue: QueueKeys) -> bytes:
    prefix, own = queue.aside()[0], queue.aside(encoded(NEW))[0]
    return prefix + bytes(4) + own[len(prefix) + 4 :] + bytes(14)


DAMAGES = {
    "a row that is no CBOR": Damage(
        "row-unreadable", lambda q, key: {old(key, 0): b"\xff\xff"}, aside=[(None, b"\xff\xff")]
    ),
    "a row of an even number of parts": Damage(
        "row-unreadable", lambda q, key: {old(key, 0): encoded([1, 2])}, aside=[(None, encoded([1, 2]))]
    ),
    "a row under a key too short": Damage(
        "row-unreadable", lambda q, key: {key[:-3]: b"abc"}, aside=[(None, b"abc")]
    ),
    "a row from the future": Damage(
        "row-future", lambda q, key: {key[:-18] + FAR + key[-10:]: row(NEW, 7)}, aside=[(NEW, 7)]
    ),
    "an answer to nobody": Damage("answer", lambda q, key: {q.prefix + b"Aa" + bytes(20): bytes(10)}),
    "a row of a generation that there is not": Damage(
        "row-lost", lambda q, key: {key[:-26] + FAR[:4] + key[-22:]: row(NEW, 7)}, aside=[(NEW, 7)]
    ),
    "a row of a bucket that there is not": Damage(
        "row-lost", lambda q, key: {row_in(key, BUCKETS): row(NEW, 7)}, aside=[(NEW, 7)]
    ),
    "a row that was moved to another bucket": Damage(
        "row-update", lambda q, key: {old(key, behind(bucket_of(NEW))): row(NEW, 7)}, aside=[(NEW, 7)]
    ),
    "a row with an update that belongs there and one that does not": Damage(
        "row-update",
        lambda q, key: {old(key, bucket_of(NEW)): codec.encode([None, encoded(NEW), 5, encoded(5), 7])},
        values={NEW: 5},
        aside=[(None, 7)],
    ),
    "a row with an update of another type": Damage(
        "row-update", lambda q, key: {old(key, bucket_of(NEW)): row(NEW, "seven")}, aside=[(NEW, "seven")]
    ),
    "a row with a key of another type": Damage(
        "row-update", lambda q, key: {old(key, bucket_of(5)): row(5, 7)}, aside=[(None, 7)]
    ),
    "rows without a notification": Damage(
        "notification-missing", lambda q, key: {q.notification(1, bucket_of_row(key)): None}
    ),
    "a notification of a bucket that there is not": Damage(
        "notification", lambda q, key: {q.notification(1, BUCKETS): bytes(10)}
    ),
    "a notification under a key too long": Damage(
        "notification", lambda q, key: {q.notification(1, 0) + b"x": bytes(10)}
    ),
    "a notification that is no versionstamp": Damage(
        "notification", lambda q, key: {q.notification(1, 0): b"x"}
    ),
    "a marker that is too short": Damage("marker", lambda q, key: {q.markers(b"other")[0]: b""}),
    "a number of late updates that is none": Damage("refused", lambda q, key: {q.late: b"many"}),
    "a marker from the future": Damage(
        "marker", lambda q, key: {q.markers(b"other")[0] + FAR + bytes(2): b""}
    ),
    "an emitter whose id is too short": Damage("emitter", lambda q, key: {q.emitter(b"x"): bytes(18)}),
    "an emitter without a number": Damage("emitter", lambda q, key: {q.emitter(bytes(10)): bytes(10)}),
    "an emitter from the future": Damage(
        "emitter", lambda q, key: {q.emitter(bytes(10)): FAR + bytes(2) + bytes(8)}
    ),
    "a value that is no CBOR": Damage("value-unreadable", lambda q, key: {q.value(encoded(NEW)): b"\xff"}),
    "a value of another type": Damage(
        "value-unreadable", lambda q, key: {q.value(encoded(NEW)): encoded("seven")}
    ),
    "a value that stands for none": Damage("value-empty", lambda q, key: {q.value(encoded(NEW)): encoded(0)}),
    "a value under another hash": Damage(
        "value-key",
        lambda q, key: {astray(q.value(encoded(NEW)), NEW): encoded(7)},
        aside=[(NEW, 7)],
    ),
    "a value of a key of another type": Damage(
        "value-key", lambda q, key: {q.value(encoded(5)): encoded(7)}, aside=[(None, encoded(7))]
    ),
    "a value under a key too short": Damage(
        "value-key", lambda q, key: {q.values()[0] + b"x": encoded(7)}, aside=[(None, encoded(7))]
    ),
    "staged updates that are no CBOR": Damage(
        "staged-unreadable", lambda q, key: {q.staged(encoded("k0")): b"\xff"}, aside=[("k0", b"\xff")]
    ),
    "staged updates under another hash": Damage(
        "staged-key", lambda q, key: {astray(q.staged(encoded(NEW)), NEW): encoded(7)}, aside=[(NEW, 7)]
    ),
    "staged updates of a key of another type": Damage(
        "staged-key", lambda q, key: {q.staged(encoded(5)): encoded(7)}, aside=[(None, encoded(7))]
    ),
    "staged updates that no pass knows of": Damage(
        "staged-unseen", lambda q, key: {q.staged(encoded("k0")): encoded(5)}, values={"k0": 7}
    ),
    "a missed report of an observer that there is not": Damage(
        "missed-key", lambda q, key: {q.prefix + b"mg" + bytes([0, 0, 0, 9]) + keys.place(encoded("k0")): b""}
    ),
    "a missed report under a key too short": Damage("missed-key", lambda q, key: {q.prefix + b"mg": b""}),
    "a retry of a missed report under another hash": Damage(
        "missed-key", lambda q, key: {q.prefix + b"mr" + bytes(4) + encoded("k0"): b""}
    ),
    "a state that is no CBOR": Damage("state-unreadable", lambda q, key: {q.state(1, 1): b"\xff"}),
    "a state of other parts": Damage(
        "state-unreadable", lambda q, key: {q.state(1, 1): encoded([b"", False])}
    ),
    "a state that is missing": Damage("state-missing", lambda q, key: {q.state(1, 1): None}),
    "a state of a bucket that there is not": Damage(
        "state-lost", lambda q, key: {q.state(2, 0): BucketState().to_bytes()}
    ),
    "a note of an attempt that is no CBOR": Damage(
        "attempt", lambda q, key: {q.attempt(1, 0, bytes(8)): b"x"}
    ),
    "a note of an attempt by nobody": Damage(
        "attempt", lambda q, key: {q.attempt(1, 0, b""): bytes(10) + encoded([])}
    ),
    "a piece set aside that cannot be read": Damage(
        "aside-unreadable",
        lambda q, key: {q.aside(encoded(NEW))[0] + bytes(14): b"\xff"},
        aside=[(None, b"\xff")],
    ),
    "a piece set aside under another hash": Damage(
        "aside-unreadable",
        lambda q, key: {aside_astray(q): encoded([KeyFailure("an error").to_stored(), 7])},
        aside=[(None, encoded([KeyFailure("an error").to_stored(), 7]))],
    ),
    "a document of no number of parts": Damage("document", lambda q, key: {q.document(b"d"): encoded("one")}),
    "counts of no document": Damage(
        "document", lambda q, key: {q.document_piece(b"d", 0, 0): encoded(["a", 1])}
    ),
    "counts that are none": Damage(
        "document",
        lambda q, key: {
            q.document(b"d"): encoded(1),
            q.document_piece(b"d", 0, 0): encoded(["a", "b"]),
        },
    ),
    "a position in a file that cannot be read": Damage(
        "load", lambda q, key: {q.load(b"file"): encoded([1, 2])}
    ),
    "a fence of a forward that cannot be read": Damage(
        "received",
        lambda q, key: {received(q, bytes(16), 1, LinkKeys("visits", "forward")): b"sequence"},
    ),
    "data of a generation that there is not": Damage(
        "observer-data", lambda q, key: {q.observer_data(3) + b"i": b"", q.observer_data(3) + b"c": b""}
    ),
    "data of an observer that there is not": Damage(
        "observer-current", lambda q, key: {q.observer_current("top"): encoded(1)}
    ),
    "what an observer that there is not publishes": Damage(
        "observer-published", lambda q, key: {q.observer_published("top") + b"h": b""}
    ),
    "flags that cannot be read": Damage("flags", lambda q, key: {q.flags: b"\xff"}),
    "a mark of a full queue that cannot be read": Damage("full", lambda q, key: {q.full: encoded("full")}),
    "a mark of a purge that cannot be read": Damage("purge", lambda q, key: {q.purge: b"x"}),
    "a key of no part of the layout": Damage("unknown-key", lambda q, key: {q.prefix + b"~junk": b""}),
    "a key of no part of the store": Damage("unknown-key", lambda q, key: {b"cq/junk/" + q.prefix: b""}),
    "a key of a queue of no name": Damage("unknown-key", lambda q, key: {b"cq/q/#" + q.prefix: b""}),
    "keys of a queue that is not configured": Damage(
        "unknown-queue", lambda q, key: {q.prefix[:-1] + b"-other/d": b"", q.prefix[:-1] + b"-other/n": b""}
    ),
    "a queue that is not listed": Damage("listing", lambda q, key: {entry_of(q): None}),
    "a queue that is listed and not configured": Damage(
        "listing", lambda q, key: {keys.queue_entry(other(q)): b""}
    ),
}


@pytest.mark.parametrize("done", DAMAGES.values(), ids=DAMAGES)
def test_damage_is_named_and_mended(db: Any, name: str, queue: QueueKeys, done: Damage) -> None:
    """Nothing is changed before a repair is asked for, and a second repair finds nothing more to do."""
    writes = done.writes(queue, stored(db, queue.all_rows())[0][0])
    put(db, writes)

    found = found_in(db, queue)

    assert [each.kind for each in found] == [done.kind]
    assert found_in(db, queue) == found
    mended = found_in(db, queue, repair=True)
    assert mended == [replace(each, repaired=each.repairable) for each in found]
    assert bool(KINDS[done.kind][1]) == found[0].repairable
    left = found_in(db, queue, repair=True)
    assert left == [each for each in found if not each.repairable]
    if left:
        put(db, dict.fromkeys(writes))
    admin.resume(db, name)
    drain(db, name)
    assert found_in(db, queue) == []
    assert_values(db, name, {**NOW, **done.values})
    pieces = [
        (each.encoded_key and codec.decode(each.encoded_key), each.updates[-1]) for each in aside(db, name)
    ]
    assert [(key or None, update) for key, update in pieces] == done.aside


def test_an_audit_that_is_not_balanced_is_named(db: Any, name: str) -> None:
    cq.configure(db, name, audit=True, buckets=2)
    add(db, name, {"a": 5, "b": 2})
    drain(db, name)
    assert list(verify(db, name)) == []
    put(db, {QueueKeys(name).value(encoded("a")): codec.encode(7)})
    (difference,) = verify(db, name)
    assert (difference.kind, difference.repairable) == ("audit", False)
    assert "2 too much" in difference.what


def test_a_queue_in_order_has_no_differences(db: Any, name: str, queue: QueueKeys) -> None:
    assert found_in(db, queue) == []
    drain(db, name)
    assert found_in(db, queue) == []
    assert_values(db, name, NOW)


def test_staged_updates_are_mended_in_a_queue_that_is_being_rebucketed(
    db: Any, name: str, queue: QueueKeys
) -> None:
    """What is staged in either shape is in order; what is in none is given to the buckets there are now."""
    admin.rebucket(db, name, 7)
    assert found_in(db, queue) == []
    bucket = bucket_of("k1")
    put(
        db,
        {
            queue.staged(encoded("k1")): encoded(10),
            queue.state(1, bucket): BucketState(staged=True).to_bytes(),
        },
    )
    assert found_in(db, queue) == []
    put(db, {queue.state(1, bucket): BucketState().to_bytes()})

    (found,) = found_in(db, queue, repair=True)

    assert (found.kind, found.key, found.repaired) == ("staged-unseen", "k1", True)
    assert found_in(db, queue) == []
    drain(db, name)
    assert_values(db, name, {**NOW, "k1": 12})
    assert found_in(db, queue) == []


@pytest.mark.parametrize("waits", ["rebucket", "purge", "observer", "staged", "backlog"])
def test_a_bucket_with_anything_to_do_needs_a_notification(
    db: Any, name: str, queue: QueueKeys, waits: str
) -> None:
    """Rows or no rows."""
    if waits != "rebucket":
        drain(db, name)
    if waits == "rebucket":
        admin.rebucket(db, name, 7)
    elif waits == "purge":
        admin.purge(db, name)
    elif waits == "observer":
        app_with(db, name, Seen().observer)
    else:
        state = BucketState(staged=waits == "staged", unfinished_since=int(waits == "backlog"))
        put(db, {queue.state(1, 2): state.to_bytes(), queue.notification(1, 2): bytes(10)})
    assert found_in(db, queue) == []
    put(db, {queue.notification(1, 2): None})

    (found,) = found_in(db, queue)

    assert (found.kind, found.where, found.repairable) == (
        "notification-missing",
        queue.notification(1, 2),
        True,
    )
    assert [each.repaired for each in found_in(db, queue, repair=True)] == [True]
    assert found_in(db, queue) == []


def test_a_bucket_that_has_lost_its_state_reports_and_purges_nothing_again(db: Any, name: str) -> None:
    seen = Seen()
    seen.app(name).configure(db, name, buckets=1)
    add(db, name, {"old": 1})
    drain(db, name, app=seen.app(name))
    admin.purge(db, name)
    drain(db, name, app=seen.app(name))
    add(db, name, {"a": 1, "b": 2})
    drain(db, name, app=seen.app(name))
    queue, received = QueueKeys(name), len(seen.changes)
    put(db, {queue.state(1, 0): None})

    (found,) = found_in(db, queue, repair=True)
    assert found.kind == "state-missing"
    assert "again" not in found.what  # no backfill is in progress

    drain(db, name, app=seen.app(name))
    assert len(seen.changes) == received
    assert values(db, name) == {"a": 1, "b": 2}
    assert found_in(db, queue) == []


def test_an_observer_that_was_being_told_is_told_anew_when_its_state_is_lost(
    db: Any, name: str, queue: QueueKeys
) -> None:
    seen = Seen()
    drain(db, name)
    app = app_with(db, name, seen.observer)
    put(db, {queue.state(1, bucket): b"\xff" for bucket in (1, 2)})

    found = found_in(db, queue, repair=True)

    assert [each.kind for each in found] == ["state-unreadable"] * 2
    assert all("; a repair reports all values to " in each.what for each in found)
    assert found_in(db, queue) == []
    drain(db, name, app=app)
    assert seen.values == NOW
    assert found_in(db, queue) == []


def test_a_backfill_begins_again_with_the_repair_of_a_state_even_if_the_repair_ends_there(
    db: Any, name: str, queue: QueueKeys
) -> None:
    """Else the observer would get values of the bucket a second time, as if they were new."""
    seen = Seen()
    drain(db, name)
    app = app_with(db, name, seen.observer)
    bucket = bucket_of("k1")
    code = app.code(transact(db, lambda tr: read_config(tr, name)))
    assert (
        transact(
            db, lambda tr: Pass(tr, code, bucket, PassPlan(max_report=0, max_backfill=3)).run()
        ).backfilled
        == 3
    )
    assert len(seen.changes) == 3
    seen.values.clear()
    put(db, {queue.state(1, bucket): b"\xff"})

    found = verify(db, name, repair=True)
    assert next(found).kind == "state-unreadable"
    del found  # the process dies

    (observer,) = transact(db, lambda tr: read_config(tr, name)).observers
    assert observer.generation == 2
    drain(db, name, app=app)
    assert seen.values == NOW
    assert len(seen.changes) == 3 + len(NOW)
    assert found_in(db, queue) == []


def test_updates_that_cannot_be_kept_as_such_are_kept_as_bytes(db: Any, name: str) -> None:
    """A value may be larger than an update."""
    cq.configure(db, name, value=str, combiner="last", buckets=1)
    queue = QueueKeys(name)
    put(db, {astray(queue.value(encoded("k1")), "k1"): encoded("x" * 95_000)})

    assert [each.repaired for each in found_in(db, queue, repair=True)] == [True]

    pieces = aside(db, name)
    assert {each.encoded_key for each in pieces} == {b""}
    assert sum(len(update) for each in pieces for update in each.updates) > 95_000
    assert found_in(db, queue) == []


def test_a_combiner_of_an_application_says_what_is_empty(db: Any, name: str) -> None:
    def combine(key: Any, values: Any) -> Any:
        return "".join(values)

    own = cq.Combiner("joined", 1, combine, lambda value: value == "-")
    cq.configure(db, name, value=str, combiner=own, buckets=1)
    queue = QueueKeys(name)
    put(db, {queue.value(encoded("a")): encoded("-"), queue.staged(encoded("b")): encoded(["in between"])})
    put(db, {queue.state(1, 0): BucketState(staged=True).to_bytes(), queue.notification(1, 0): bytes(10)})

    assert found_in(db, queue) == []
    assert [each.kind for each in found_in(db, queue, combiner=own)] == ["value-empty"]


def test_nothing_is_told_of_a_queue_whose_configuration_cannot_be_read(
    db: Any, name: str, queue: QueueKeys
) -> None:
    before = transact(db, lambda tr: tr.get(queue.config).value) or b""
    put(db, {queue.flags: b"\xff"})
    for config in (
        b"\xff",
        encoded([1]),
        before.replace(encoded("buckets") + b"\x04", encoded("buckets") + b"\x00"),
    ):
        put(db, {queue.config: config})

        (found,) = found_in(db, queue, repair=True)

        assert (found.kind, found.where, found.repairable) == ("config", queue.config, False)
    put(db, {queue.config: before.replace(encoded("format") + b"\x02", encoded("format") + b"\x03")})
    with pytest.raises(CodeMismatch, match="newer version"):
        found_in(db, queue)
    with pytest.raises(QueueNotConfigured):
        list(verify(db, other(queue)))


def test_the_stores_own_keys_are_looked_at(tmp_path: Any) -> None:
    with Embedded(tmp_path / "other.db") as db:
        cq.configure(db, "words")
        put(
            db,
            {
                keys.STORE_ID: b"x",
                workerkeys.workers()[0] + b"x": b"",
                workerkeys.worker(bytes(8)): b"of a later version",
            },
        )

        found = list(verify(db, "words"))

        assert [(each.kind, each.where) for each in found] == [
            ("store-key", keys.STORE_ID),
            ("unknown-key", workerkeys.workers()[0] + b"x"),
        ]


def test_what_workers_leave_behind_is_no_difference(db: Any, name: str, queue: QueueKeys) -> None:
    """Notes under a shape, or of a queue, that there is no more."""
    gone = QueueKeys(other(queue))
    note = bytes(10) + encoded([])
    put(
        db,
        {
            queue.attempt(7, 99, bytes(8)): note,
            queue.observer_data(7) + b"n": bytes(10),
            gone.attempt(1, 1, bytes(8)): note,
            gone.observer_data(7) + b"n": bytes(10),
        },
    )
    assert found_in(db, queue) == []
    put(db, {gone.observer_data(7) + b"o": b""})

    assert [each.where for each in found_in(db, queue)] == [gone.observer_data(7) + b"o"]


def test_keys_of_the_layout_are_known_to_it() -> None:
    """Those in the table at the head of cq/keys/queue.py: a verification must also check a new kind."""
    table = inspect.getdoc(key_layout) or ""
    letters = set(re.findall(r'^ *P "(\w)"', table, flags=re.MULTILINE))
    single = set(re.findall(r'^ *P "(\w\w\w+)"', table, flags=re.MULTILINE))
    letters |= {name[0] for name in re.findall(r'^ *P "(\w\w)"', table, flags=re.MULTILINE)}

    assert letters | single == set(PARTS)


def test_a_repair_under_faults_tells_of_all_that_it_mends(db: Any, name: str, queue: QueueKeys) -> None:
    """Also of what a commit has mended of which nobody knows whether it has happened."""
    writes = {queue.value(encoded(f"new {number}")): encoded(0) for number in range(50)}
    put(db, {**writes, queue.notification(1, 1): None})
    faulty = FaultyDatabase(db, 0, conflict=0.2, unknown=0.4, too_old=0.05)

    verification = Verification(faulty, name, CHECKS, repair=True)
    verification.rows = 7

    found = list(verification.run())

    assert all(each.repaired for each in found)
    assert {each.where for each in found} == {*writes, queue.notification(1, 1)}
    assert found_in(db, queue) == []
    assert faulty.injected["unknown, committed"]


def test_every_kind_is_tried() -> None:
    tried = {each.kind for each in DAMAGES.values()} | {"config", "store-key", "audit"}
    tried |= {"missed-unreadable", "missed-unseen"}  # in test_missed

    assert {
        kind
        for kind in KINDS
        if not kind.startswith(("top", "cloud", "link", "outbox"))
        and not kind.startswith(("window", "history", "expiry", "level"))
    } == tried
