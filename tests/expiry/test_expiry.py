"""Keys without updates are deleted after the queue's period, and observers receive each deletion once."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

import cq
from cq import admin
from cq.admin.queue_status import status
from cq.config.expiry import KEY, ExpirySpec
from cq.config.queue import read_config
from cq.encoding import codec
from cq.errors import InvalidConfiguration
from cq.expiry.due import BucketExpiry, DueKey, ExpiryStatistics, notify_due
from cq.expiry.former_values import BLOCKED_SECONDS, index_page
from cq.keys import QueueKeys, below, place
from cq.keys.expiry import ExpiryKeys, pack_time
from cq.observers.telemetry.bus import subscribe
from cq.observers.worker.worker import Worker
from cq.passes.combine_pass import Pass
from cq.passes.plan import PassPlan
from cq.queue.missed_reports import read_missed
from cq.queue.set_aside import retry_missed
from cq.store.transact import transact
from cq.testing import drain
from cq.verify.queue import verify
from tests.kit.clocks import START, Clock
from tests.kit.observing import Seen, app_with
from tests.kit.queues import (
    STAGING,
    add,
    buckets_of,
    code_of,
    combine_all,
    commits,
    configured,
    put,
    stored,
    values,
)

PERIOD = 600
SLICE = PERIOD // 60
LONG = PERIOD + SLICE + 1
"""Seconds after which every key without an update is due."""


def view_of(db: Any, name: str, refused: Any = (), **settings: Any) -> tuple[Seen, cq.App]:
    view = Seen(refused, only_deletions=True)
    return view, app_with(db, name, view.observer, **{"expire": PERIOD, "buckets": 2, **settings})


def index_of(db: Any, name: str) -> dict[Any, int]:
    """{key: time} in the index; asserts that entries and stored times agree."""
    keys, config = ExpiryKeys(name), transact(db, lambda tr: read_config(tr, name))
    entries = [keys.parse_entry(key) for key, _ in stored(db, keys.entries())]
    found = {config.key.decode(where[4:]): time for time, where in entries}
    assert len(found) == len(entries)
    if config.expiry and config.expiry.by == "update":
        times = {keys.times.rest(key): value for key, value in stored(db, below(keys.time(b"")))}
        assert times == {where: pack_time(time) for time, where in entries}
    return found


def test_a_key_without_updates_is_deleted_and_others_stay(db: Any, name: str, clock: Clock) -> None:
    view, app = view_of(db, name)
    add(db, name, {"old": 1, "new": 1})
    combine_all(db, name, app)
    clock.now = START + PERIOD - 1
    add(db, name, {"new": 1})
    combine_all(db, name, app)
    assert values(db, name) == view.values == {"old": 1, "new": 2}
    assert list(verify(db, name)) == []

    clock.now = START + LONG
    drain(db, name, app=app)

    assert values(db, name) == view.values == {"new": 2}
    assert view.changes[-1] == cq.Change("old", 1, None, cause="expiry")
    assert index_of(db, name) == {"new": (START + PERIOD - 1) // SLICE * SLICE + SLICE}
    assert list(verify(db, name)) == []

    clock.now += LONG
    drain(db, name, app=app)
    assert (values(db, name), view.values, index_of(db, name)) == ({}, {}, {})


def test_no_key_is_deleted_before_its_period(db: Any, name: str, clock: Clock) -> None:
    configured(db, name, expire=PERIOD)
    clock.now = START + SLICE - 1
    add(db, name, {"a": 1})
    drain(db, name)

    clock.now += PERIOD
    drain(db, name)
    assert values(db, name) == {"a": 1}


def test_an_update_that_leaves_the_value_as_it_is_counts(db: Any, name: str, clock: Clock) -> None:
    configured(db, name, combiner="maximum", expire=PERIOD)
    add(db, name, {"a": 5})
    combine_all(db, name)
    clock.now = START + PERIOD - 1
    add(db, name, {"a": 3})
    combine_all(db, name)

    clock.now = START + LONG
    drain(db, name)
    assert values(db, name) == {"a": 5}
    clock.now += PERIOD
    drain(db, name)
    assert values(db, name) == {}


def test_a_due_key_with_queued_updates_is_combined(db: Any, name: str, clock: Clock) -> None:
    view, app = view_of(db, name)
    add(db, name, {"a": 1, "b": 1})
    combine_all(db, name, app)
    clock.now = START + LONG
    add(db, name, {"a": 1})

    drain(db, name, app=app)

    assert values(db, name) == view.values == {"a": 2}
    assert [change for change in view.changes if change.key == "a"] == [
        cq.Change("a", None, 1),
        cq.Change("a", 1, 2),
    ]


def test_an_update_during_the_deletion_begins_a_new_value(db: Any, name: str, clock: Clock) -> None:
    view, app = view_of(db, name, buckets=1)
    add(db, name, {"a": 1})
    combine_all(db, name, app)
    clock.now = START + LONG
    code, tr = code_of(db, name, app), db.create_transaction()
    result = Pass(tr, code, 0).run()
    add(db, name, {"a": 7})

    assert commits(tr)
    assert result.expired == 1
    combine_all(db, name, app)
    assert values(db, name) == view.values == {"a": 7}


def test_a_key_that_loses_its_value_leaves_the_index(db: Any, name: str, clock: Clock) -> None:
    configured(db, name, expire=PERIOD)
    add(db, name, {"a": 1, "b": 1}, {"a": -1})
    combine_all(db, name)
    assert set(index_of(db, name)) == {"b"}
    add(db, name, {"b": -1})
    combine_all(db, name)
    assert index_of(db, name) == {}


def test_values_from_before_get_a_time_and_expire_a_period_later(db: Any, name: str, clock: Clock) -> None:
    configured(db, name, buckets=3)
    add(db, name, {str(number): 1 for number in range(50)})
    combine_all(db, name)
    configured(db, name, expire=PERIOD)
    assert list(verify(db, name)) == []  # workers still give times
    clock.now = START + 100
    add(db, name, {"1": 1})
    combine_all(db, name)

    drain(db, name)
    assert index_of(db, name) == dict.fromkeys(map(str, range(50)), int(START) + 110)
    assert index_page(db, name) is None
    assert list(verify(db, name)) == []

    clock.now = START + 100 + LONG
    drain(db, name)
    assert (values(db, name), index_of(db, name)) == ({}, {})


def test_no_times_are_given_while_passes_over_buckets_of_the_former_shape_may_write_others(
    db: Any, name: str, clock: Clock
) -> None:
    configured(db, name, buckets=2)
    add(db, name, {"a": 1, "b": 1})
    combine_all(db, name)
    add(db, name, {"a": -1, "b": 1})
    configured(db, name, expire=PERIOD)
    admin.rebucket(db, name, 3)

    assert index_page(db, name) == BLOCKED_SECONDS
    assert index_of(db, name) == {}
    clock.now = START + SLICE
    drain(db, name)
    assert set(index_of(db, name)) == {"b"}
    assert list(verify(db, name)) == []


def test_no_times_are_given_to_values_that_a_purge_deletes(db: Any, name: str, clock: Clock) -> None:
    view = Seen()
    app = app_with(db, name, view.observer, buckets=1)
    add(db, name, {"a": 1, "b": 1})
    combine_all(db, name, app)
    admin.purge(db, name)
    app.configure(db, name, expire=PERIOD)

    assert index_page(db, name) == BLOCKED_SECONDS
    assert index_of(db, name) == {}
    drain(db, name, app=app)
    assert (values(db, name), view.values, index_of(db, name)) == ({}, {}, {})
    assert list(verify(db, name)) == []


def test_expiry_is_switched_off_and_changed(db: Any, name: str, clock: Clock) -> None:
    configured(db, name, expire=PERIOD)
    add(db, name, {"a": 1})
    combine_all(db, name)
    configured(db, name, expire=10 * PERIOD)
    clock.now = START + LONG
    drain(db, name)
    assert values(db, name) == {"a": 1}
    assert configured(db, name).settings()["expire"] == "100m"

    configured(db, name, expire=False)
    assert stored(db, ExpiryKeys(name).prefix()) == []
    clock.now = START + 100 * LONG
    drain(db, name)
    assert values(db, name) == {"a": 1}
    assert configured(db, name).settings()["expire"] is None
    assert list(verify(db, name)) == []


@pytest.mark.parametrize(
    "wrong", [0, -1, 0.5, True, "30 moons", float("nan"), float("inf"), 10**12, ExpirySpec(5, 6)]
)
def test_a_wrong_period_is_refused(db: Any, name: str, wrong: Any) -> None:
    with pytest.raises(
        InvalidConfiguration, match=r"expected (a duration|keys to expire after a whole number) of .*seconds"
    ):
        cq.configure(db, name, expire=wrong)


def test_wrong_combinations_are_refused(db: Any, name: str) -> None:
    with pytest.raises(InvalidConfiguration, match="several parts"):
        cq.configure(db, name, expire=ExpirySpec(60, 1, KEY))
    with pytest.raises(InvalidConfiguration, match="by update or key"):
        cq.configure(db, name, expire=ExpirySpec(60, 1, "moon"))


def test_keys_expire_by_their_last_part(db: Any, name: str, clock: Clock) -> None:
    view, app = view_of(db, name, key=(str, int), expire=ExpirySpec(PERIOD, 1, KEY))
    now = int(START)
    add(db, name, {("a", now): 1, ("a", now - PERIOD + 1): 1, ("a", -5): 1, ("a", 1 << 70): 1})
    combine_all(db, name, app)
    assert set(view.values) == {("a", now), ("a", now - PERIOD + 1), ("a", -5), ("a", 1 << 70)}
    drain(db, name, app=app)
    assert set(view.values) == {("a", now), ("a", now - PERIOD + 1), ("a", 1 << 70)}
    assert list(verify(db, name)) == []

    clock.now = START + 1
    add(db, name, {("a", now - PERIOD + 1): 1})
    drain(db, name, app=app)
    # The queued update is combined; as the key stays due, the same drain deletes it.
    assert set(view.values) == {("a", now), ("a", 1 << 70)}
    assert values(db, name) == view.values
    add(db, name, {("a", now): -1})
    combine_all(db, name, app)
    assert set(index_of(db, name)) == {("a", 1 << 70)}


def test_by_key_former_values_expire_too(db: Any, name: str, clock: Clock) -> None:
    configured(db, name, key=(str, int))
    add(db, name, {("a", int(START) - PERIOD): 1, ("a", int(START)): 1})
    combine_all(db, name)
    configured(db, name, expire=ExpirySpec(PERIOD, 1, KEY))
    drain(db, name)
    drain(db, name)
    assert values(db, name) == {("a", int(START)): 1}
    configured(db, name, expire=PERIOD)  # the other kind of times
    drain(db, name)
    assert index_of(db, name) == {("a", int(START)): int(START) // SLICE * SLICE + SLICE}


def test_a_refused_deletion_is_a_missed_report_and_delays_no_other_key(
    db: Any, name: str, clock: Clock
) -> None:
    view, app = view_of(db, name, refused={"7"})
    add(db, name, {str(number): number for number in range(1, 30)})
    combine_all(db, name, app)
    clock.now = START + LONG
    drain(db, name, app=app)

    assert values(db, name) == {}
    assert view.values == {"7": 7}
    assert [codec.decode(key) for key, _ in transact(db, lambda tr: read_missed(tr, name))] == ["7"]
    assert index_of(db, name) == {}

    view.refused = ()
    retry_missed(db, name)
    drain(db, name, app=app)
    assert view.values == {}


def test_a_refused_deletion_sets_no_update_aside(db: Any, name: str, clock: Clock) -> None:
    """Although the key has a queued update by the time when it is set aside."""
    view, app = view_of(db, name, refused={"a"}, buckets=1)
    add(db, name, {"a": 1})
    combine_all(db, name, app)
    clock.now = START + LONG
    bucket = buckets_of(db, name, app)[0]

    added: list[list[bytes]] = []

    def add_now(encoded_keys: list[bytes]) -> None:
        if not added:
            add(db, name, {"a": 1})
        added.append(encoded_keys)

    bucket._before_code = add_now  # type: ignore[method-assign]
    while bucket.combine().more:
        pass

    assert values(db, name) == view.values == {"a": 2}
    assert transact(db, lambda tr: read_missed(tr, name)) == []


def test_combining_and_expiry_take_turns(db: Any, name: str, clock: Clock) -> None:
    """A steady load does not delay the expiry, and many due keys do not delay updates."""
    _, app = view_of(db, name, buckets=1)
    add(db, name, {str(number): 1 for number in range(100)})
    combine_all(db, name, app)
    clock.now = START + LONG
    (bucket,) = buckets_of(db, name, app)
    bucket.size.reports.most = bucket.size.reports.now = 5
    kinds = []
    for number in range(60):
        add(db, name, {"hot": 1, f"new {number}": 1})
        result = bucket.combine()
        kinds.append((result.expired > 0, result.reported > 0))
    assert not any(all(kind) for kind in kinds)
    assert any(expired for expired, _ in kinds[:3])
    assert not any(a[0] and b[0] for a, b in pairwise(kinds))
    assert not set(map(str, range(100))) & set(values(db, name))


def test_a_bucket_finds_its_due_keys_among_those_of_others(db: Any, name: str, clock: Clock) -> None:
    configured(db, name, expire=PERIOD, buckets=8)
    for number in range(40):
        clock.now = START + number * SLICE
        add(db, name, {f"{number} {each}": 1 for each in range(3)})
        combine_all(db, name)
    clock.now += LONG
    for bucket in buckets_of(db, name):
        bounds = QueueKeys(name).values.of_bucket(8, bucket.number)
        others = len(values(db, name)) - len(stored(db, bounds))
        while bucket.combine().more:
            pass
        assert (stored(db, bounds), len(values(db, name))) == ([], others)
    assert index_of(db, name) == {}


def test_workers_are_notified_of_due_keys(db: Any, name: str, clock: Clock) -> None:
    assert not configured(db, name, expire=PERIOD, buckets=4).former
    found = notify_due(db, name)
    assert found is not None
    assert (found.buckets, found.seconds) == (0, 60.0)
    add(db, name, {str(number): 1 for number in range(40)})
    combine_all(db, name)
    due = int(START) // SLICE * SLICE + SLICE + PERIOD
    clock.now = due - 7
    found = notify_due(db, name)
    assert found is not None
    assert (found.buckets, found.seconds) == (0, 7)
    clock.now = due
    found = notify_due(db, name)
    assert found is not None
    assert (found.buckets, found.seconds) == (4, 1)
    assert len(stored(db, QueueKeys(name).notifications())) == 4
    drain(db, name)
    assert stored(db, QueueKeys(name).notifications()) == []
    configured(db, name, expire=False)
    assert notify_due(db, name) is None


def test_a_worker_that_finds_no_key_looks_again_before_a_new_one_is_due(db: Any, name: str) -> None:
    configured(db, name, expire=3, window="2m/0.5s")
    for queue, seconds in ((name, 3), (f"{name}.slices", 2)):  # slices of late updates are due at any time
        found = notify_due(db, queue)
        assert found is not None
        assert found.seconds == seconds


def test_staged_updates_keep_a_key(db: Any, name: str, clock: Clock) -> None:
    configured(db, name, expire=PERIOD, buckets=1)
    add(db, name, {"a": 1})
    combine_all(db, name)
    clock.now = START + LONG
    add(db, name, {"a": 1})
    code = code_of(db, name)
    transact(
        db, lambda tr: Pass(tr, code, 0, PassPlan(limits=STAGING, max_report=0, expires_first=False)).run()
    )
    assert transact(db, lambda tr: Pass(tr, code, 0).run()).expired == 0
    combine_all(db, name)
    assert values(db, name) == {"a": 2}


def test_an_unreadable_value_stays_and_delays_no_other_key(db: Any, name: str, clock: Clock) -> None:
    configured(db, name, expire=PERIOD, buckets=1)
    add(db, name, {"a": 1, "b": 1})
    combine_all(db, name)
    put(db, {QueueKeys(name).value(codec.encode("a")): b"\xff\xff"})
    clock.now = START + LONG
    drain(db, name)
    assert len(stored(db, QueueKeys(name).values())) == 1
    assert index_of(db, name) == {}


def test_deletions_are_counted_in_events(db: Any, name: str, clock: Clock) -> None:
    configured(db, name, expire=PERIOD, buckets=1)
    add(db, name, {"a": 1, "b": 1})
    drain(db, name)
    clock.now = START + LONG
    told = []
    end = subscribe(lambda event: told.append(event.fields) if event.name == "keys_expired" else None)
    try:
        Worker(db, queues=[name]).drain()
    finally:
        end()
    assert [fields["expired"] for fields in told] == [2]


def test_the_status_has_the_number_of_expired_keys(db: Any, name: str, clock: Clock) -> None:
    configured(db, name, expire=PERIOD, buckets=1)
    add(db, name, {"a": 1, "b": 1})
    drain(db, name)
    assert status(db, name)[0].expiry == ExpiryStatistics(0, 0.0)
    clock.now = int(START) // SLICE * SLICE + SLICE + PERIOD + 5
    assert status(db, name)[0].expiry == ExpiryStatistics(0, 5.0)
    drain(db, name)
    assert status(db, name)[0].expiry == ExpiryStatistics(2, 0.0)
    configured(db, name, expire=False)
    assert status(db, name)[0].expiry is None


# Verification


def damaged(db: Any, name: str) -> tuple[ExpiryKeys, bytes, int]:
    configured(db, name, expire=PERIOD, buckets=1)
    add(db, name, {"a": 1, "b": 1})
    combine_all(db, name)
    return ExpiryKeys(name), place(codec.encode("a")), int(START) // SLICE * SLICE + SLICE


@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        ("expiry-extra", lambda k, a, t: {k.entry(t + 10, a): b""}),
        ("expiry-extra", lambda k, a, t: {k.entry(t, place(codec.encode("c"))): b""}),
        ("expiry-extra", lambda k, a, t: {k.time_of(codec.encode("c")): pack_time(t)}),
        ("expiry-missing", lambda k, a, t: {k.entry(t, a): None}),
        ("expiry-missing", lambda k, a, t: {k.entry(t, a): None, k.time(a): None}),
        ("expiry-missing", lambda k, a, t: {k.time(a): None}),
        ("expiry-extra", lambda k, a, t: {k.time(a): pack_time(t + 10)}),
        ("expiry-key", lambda k, a, t: {k.prefix + b"z": b""}),
        ("expiry-key", lambda k, a, t: {k.entry(t, b"\x00\x00\x00\x01" + a[4:]): b""}),
        ("expiry-key", lambda k, a, t: {k.time(a): b"short"}),
        ("expiry-key", lambda k, a, t: {k.time(a): b"\xff" * 8}),
        ("expiry-key", lambda k, a, t: {k.progress: b"abc"}),
        ("expiry-key", lambda k, a, t: {k.count: b"abc"}),
        ("expiry-key", lambda k, a, t: {k.entry(1 << 63, a): b""}),
    ],
)  # fmt: skip
def test_a_wrong_index_is_found_and_repaired(db: Any, name: str, clock: Clock, kind: str, rows: Any) -> None:
    keys, where, time = damaged(db, name)
    put(db, rows(keys, where, time))

    assert kind in {each.kind for each in verify(db, name)}
    assert all(each.repaired for each in verify(db, name, repair=True))

    assert list(verify(db, name)) == []
    assert set(index_of(db, name)) == {"a", "b"}
    assert values(db, name) == {"a": 1, "b": 1}


def test_the_repair_of_a_value_that_means_none_leaves_no_entry(db: Any, name: str, clock: Clock) -> None:
    damaged(db, name)
    put(db, {QueueKeys(name).value(codec.encode("a")): codec.encode(0)})

    assert [(each.kind, each.repaired) for each in verify(db, name, repair=True)] == [("value-empty", True)]

    assert list(verify(db, name)) == []
    assert set(index_of(db, name)) == {"b"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("width", [4, 500])
@pytest.mark.parametrize("is_observed", [False, True])
def test_passes_write_at_most_a_megabyte(
    db: Any, name: str, clock: Clock, width: int, is_observed: bool
) -> None:
    """With entries of new keys, with moved entries, and when all keys expire."""
    app = Seen().app(name) if is_observed else cq.App()
    app.configure(db, name, expire=PERIOD, buckets=1)
    keys = [f"{number}".ljust(width, "x") for number in range(4_000 if width < 10 else 1_500)]
    sizes, expired, read = [], [0], [0]
    read_due = BucketExpiry.read

    def counted(expiry: BucketExpiry, limit: int) -> list[DueKey]:
        found = read_due(expiry, limit)
        read.append(len(found))
        return found

    def passes() -> None:
        (bucket,) = buckets_of(db, name, app)
        committed = bucket._commit

        def measured(tr: Any, *args: Any) -> bool:
            sizes.append(tr.get_approximate_size().wait())
            return committed(tr, *args)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bucket, "_commit", measured)
            patch.setattr(BucketExpiry, "read", counted)
            more = True
            while more:
                result = bucket.combine()
                expired.append(result.expired)
                more = result.more

    for later in (0, SLICE, LONG):
        clock.now += later
        if later < LONG:
            add(db, name, dict.fromkeys(keys, 1))
        passes()
    assert values(db, name) == {}
    assert max(sizes) < 1_000_000
    assert sum(expired) == len(keys)
    if width < 10:  # entries that a pass reads and leaves, the next one reads again
        assert max(read) <= 3 * max(expired)
