"""Reports that observers missed: what an observer last received of a key decides what it receives next."""

from __future__ import annotations

from typing import Any

import pytest

import cq
from cq import admin
from cq.admin.configure import rebuild_observer
from cq.admin.purging import purge
from cq.bucket.pass_runner import PassRunner
from cq.config.queue import read_config
from cq.encoding import codec
from cq.keys import QueueKeys, place, prefix_end
from cq.keys.missed import MissedKeys
from cq.queue.bucket_state import BucketState
from cq.queue.missed_reports import forget_missed, renewed, take_note
from cq.queue.set_aside import drop_aside, retry_aside, retry_missed
from cq.store.transact import transact
from cq.testing import drain
from cq.verify.queue import verify
from tests.kit.clocks import Jumping, jumping
from tests.kit.faults import WrappedDatabase, WrappedTransaction
from tests.kit.observing import SeenInStore, app_with
from tests.kit.queues import (
    add,
    aside,
    code_of,
    combine_all,
    commits,
    config_of,
    get,
    nothing_queued,
    spoil,
    stored,
)


def missed(db: Any, name: str) -> list[tuple[bytes, bytes]]:
    prefix = MissedKeys(name).prefix
    return stored(db, (prefix, prefix_end(prefix)))


def shown(db: Any, name: str) -> list[tuple[str, list[Any]]]:
    return [(codec.decode(each.encoded_key), each.updates) for each in aside(db, name)]


class Backfilled:
    """A queue with values, to which a second observer is added that refuses the key `ann`."""

    def __init__(self, db: Any, name: str, buckets: int = 1) -> None:
        self.db, self.name = db, name
        self.first, self.second = (SeenInStore(db, name, name=each) for each in ("first", "second"))
        self.app = app_with(db, name, self.first.observer, buckets=buckets)
        add(db, name, {"ann": 20, "bob": 1})
        self.drain()
        self.app = app_with(db, name, self.first.observer, self.second.observer)
        self.second.refused = {"ann"}
        self.drain()
        self.second.refused = set()

    def drain(self) -> None:
        drain(self.db, self.name, app=self.app)


@pytest.fixture
def backfilled(db: Any, name: str) -> Backfilled:
    return Backfilled(db, name)


def test_the_next_report_of_a_key_whose_backfill_failed_starts_from_none(backfilled: Backfilled) -> None:
    db, name = backfilled.db, backfilled.name
    assert backfilled.second.received("bob") == [(None, 1)]
    assert shown(db, name) == [("ann", [])]

    add(db, name, {"ann": 1})
    backfilled.drain()

    assert backfilled.second.received("ann") == [(None, 21)]
    assert backfilled.first.received("ann") == [(None, 20), (20, 21)]
    assert [*aside(db, name), *missed(db, name)] == []


def test_one_retry_reports_a_key_whose_backfill_failed(backfilled: Backfilled) -> None:
    db, name = backfilled.db, backfilled.name

    assert retry_aside(db, name) == 1
    assert aside(db, name) == []
    backfilled.drain()
    assert backfilled.second.received("ann") == [(None, 20)]
    assert missed(db, name) == []
    assert nothing_queued(db, name)

    add(db, name, {"ann": 1})
    backfilled.drain()
    assert backfilled.second.received("ann") == [(None, 20), (20, 21)]
    assert backfilled.first.received("ann") == [(None, 20), (20, 21)]


def test_a_retry_that_fails_again_is_listed_again_and_costs_the_others_nothing(
    backfilled: Backfilled,
) -> None:
    db, name = backfilled.db, backfilled.name
    backfilled.second.refused = {"ann"}
    assert retry_aside(db, name, "ann") == 1
    add(db, name, {"bob": 1})
    backfilled.drain()

    assert backfilled.second.received("bob") == [(None, 1), (1, 2)]
    assert shown(db, name) == [("ann", [])]
    assert list(verify(db, name)) == []
    backfilled.second.refused = set()
    assert retry_aside(db, name, "bob") == 0
    assert retry_aside(db, name, "ann") == 1
    backfilled.drain()
    assert backfilled.second.received("ann") == [(None, 20)]


def test_a_value_that_cannot_be_read_is_missed_by_a_new_observer_and_holds_up_no_other(
    db: Any, name: str
) -> None:
    people = {f"person {number}": number + 1 for number in range(5)}
    first, second = (SeenInStore(db, name, name=each) for each in ("first", "second"))
    add_all = app_with(db, name, first.observer, buckets=1)
    add(db, name, people)
    drain(db, name, app=add_all)
    repair = spoil(db, name, "person 1", "person 2")
    app = app_with(db, name, first.observer, second.observer)

    drain(db, name, app=app)

    rest = {key: value for key, value in people.items() if key not in ("person 1", "person 2")}
    assert second.values == rest
    assert sorted(shown(db, name)) == [("person 1", []), ("person 2", [])]
    assert nothing_queued(db, name)
    assert {each.kind for each in verify(db, name)} == {"value-unreadable"}

    repair()
    add(db, name, {"person 1": 10})
    assert retry_aside(db, name, "person 2") == 1
    drain(db, name, app=app)

    assert second.received("person 1") == [(None, 12)]
    assert second.received("person 2") == [(None, 3)]
    assert [*aside(db, name), *missed(db, name)] == []


def test_a_new_observer_misses_a_value_that_cannot_be_read_before_one_that_it_refuses(
    db: Any, name: str
) -> None:
    people = {f"person {number}": 1 for number in range(40)}
    first, second = (SeenInStore(db, name, name=each) for each in ("first", "second"))
    app = app_with(db, name, first.observer, buckets=1)
    add(db, name, people)
    drain(db, name, app=app)
    encoded = config_of(db, name).key.encoder()
    in_order = sorted(people, key=lambda each: place(encoded(each)))
    unreadable, second.refused = set(in_order[::2]), set(in_order[1::4])
    spoil(db, name, *unreadable)
    app = app_with(db, name, first.observer, second.observer)

    drain(db, name, app=app)

    assert second.values == dict.fromkeys(in_order[3::4], 1)
    assert sorted(shown(db, name)) == sorted((each, []) for each in unreadable | second.refused)


def test_a_purge_leaves_a_value_that_cannot_be_read(db: Any, name: str) -> None:
    seen = SeenInStore(db, name)
    app = app_with(db, name, seen.observer, buckets=1)
    add(db, name, {"ann": 1, "bob": 2, "eve": 3})
    drain(db, name, app=app)
    repair = spoil(db, name, "bob")

    purge(db, name)
    drain(db, name, app=app)
    assert {each.kind for each in verify(db, name)} == {"value-unreadable"}
    repair()
    add(db, name, {"ann": 5, "bob": 5})
    drain(db, name, app=app)

    assert seen.received("ann") == [(None, 1), (1, None), (None, 5)]
    assert seen.received("bob") == [(None, 2), (2, 7)]


class SlowReads(WrappedDatabase):
    """Each read of what an observer has received takes 0.3 s; a transaction that is tried for ever fails."""

    def __init__(self, db: Any, name: str, clock: Jumping) -> None:
        super().__init__(db)
        self.clock, self.received, self.tries = clock, MissedKeys(name).of_generations, 0

    def call(self, tr: WrappedTransaction, what: str, *args: Any, **kwargs: Any) -> Any:
        if what == "get" and args[0].startswith(self.received):
            self.clock.passed += 0.3
        self.tries += what == "on_error"
        assert self.tries < 3
        return super().call(tr, what, *args, **kwargs)


def test_many_keys_are_retried_although_each_read_takes_long(db: Any, name: str) -> None:
    people = {f"person {number}" for number in range(30)}
    first, second = (SeenInStore(db, name, name=each) for each in ("first", "second"))
    app = app_with(db, name, first.observer, buckets=1)
    add(db, name, dict.fromkeys(people, 1))
    drain(db, name, app=app)
    app = app_with(db, name, first.observer, second.observer)
    second.refused = people
    drain(db, name, app=app)
    second.refused = set()

    with jumping() as clock:
        assert retry_aside(SlowReads(db, name, clock), name) == 30
    drain(db, name, app=app)
    assert second.values == first.values == dict.fromkeys(people, 1)


def test_an_update_that_fails_while_a_report_is_pending_changes_nothing(backfilled: Backfilled) -> None:
    db, name = backfilled.db, backfilled.name
    backfilled.second.refused = {"ann"}
    add(db, name, {"ann": 1})
    backfilled.drain()
    assert shown(db, name) == [("ann", [1]), ("ann", [])]
    assert get(db, name, "ann") == 20

    backfilled.second.refused = set()
    assert retry_aside(db, name) == 2
    backfilled.drain()
    assert backfilled.second.values == backfilled.first.values == {"ann": 21, "bob": 1}
    assert backfilled.second.received("ann")[0][0] is None


def test_a_key_that_is_deleted_before_its_first_report_needs_none(backfilled: Backfilled) -> None:
    add(backfilled.db, backfilled.name, {"ann": -20})
    backfilled.drain()

    assert backfilled.second.received("ann") == []
    assert missed(backfilled.db, backfilled.name) == []


@pytest.fixture
def purged(db: Any, name: str) -> tuple[SeenInStore, SeenInStore, cq.App]:
    """Two observers of a purged queue, the first of which has refused the deletion of `ann`."""
    first, second = (SeenInStore(db, name, name=each) for each in ("first", "second"))
    app = app_with(db, name, first.observer, second.observer, buckets=1)
    add(db, name, {"ann": 20, "bob": 1})
    drain(db, name, app=app)
    purge(db, name)
    first.refused = {"ann"}
    drain(db, name, app=app)
    first.refused = set()
    return first, second, app


def test_after_a_refused_purge_the_next_report_starts_from_the_value_received(
    db: Any, name: str, purged: tuple[SeenInStore, SeenInStore, cq.App]
) -> None:
    first, second, app = purged
    assert shown(db, name) == [("ann", [])]
    assert get(db, name, "ann") is None

    add(db, name, {"ann": 5})
    drain(db, name, app=app)

    assert first.received("ann") == second.received("ann") == [(None, 20), (20, 5)]
    assert first.received("bob") == [(None, 1), (1, None)]
    assert missed(db, name) == []


def test_a_refused_purge_can_be_retried(
    db: Any, name: str, purged: tuple[SeenInStore, SeenInStore, cq.App]
) -> None:
    first, second, app = purged
    purge(db, name)  # again: what the observers received is still known
    drain(db, name, app=app)
    assert retry_aside(db, name) == 1
    drain(db, name, app=app)

    assert first.received("ann") == second.received("ann") == [(None, 20), (20, None)]
    assert missed(db, name) == []


def test_the_same_value_again_after_a_refused_purge_is_no_change(
    db: Any, name: str, purged: tuple[SeenInStore, SeenInStore, cq.App]
) -> None:
    first, _, app = purged
    add(db, name, {"ann": 20})
    drain(db, name, app=app)

    assert first.received("ann") == [(None, 20)]
    assert first.values == {"ann": 20}
    assert missed(db, name) == []


def test_a_purge_of_a_key_whose_backfill_failed_reports_nothing(backfilled: Backfilled) -> None:
    purge(backfilled.db, backfilled.name)
    backfilled.drain()

    assert backfilled.second.received("ann") == []
    assert backfilled.first.received("ann") == [(None, 20), (20, None)]
    assert missed(backfilled.db, backfilled.name) == []


def test_other_buckets_know_of_missed_reports_after_a_rebucketing(backfilled: Backfilled) -> None:
    db, name = backfilled.db, backfilled.name
    admin.rebucket(db, name, 3)
    backfilled.drain()
    assert missed(db, name) != []
    add(db, name, {"ann": 1})
    backfilled.drain()

    assert backfilled.second.received("ann") == [(None, 21)]
    assert list(verify(db, name)) == []


def test_a_renewed_state_of_a_bucket_without_a_pass_says_that_reports_may_be_missed(
    backfilled: Backfilled,
) -> None:
    db, name = backfilled.db, backfilled.name
    admin.rebucket(db, name, 3)
    config = transact(db, lambda tr: read_config(tr.snapshot, name))

    # A repair rewrites the state before the first pass over the bucket.
    renewals = [renewed(config, BucketState()), renewed(config, BucketState(token=b"a pass"))]

    assert [each.missed for each in renewals] == [True, False]
    assert all(each.token not in (b"", b"a pass") for each in renewals)


def test_a_retry_conflicts_with_a_pass_that_reports_the_key(backfilled: Backfilled) -> None:
    db, name = backfilled.db, backfilled.name
    tr = db.create_transaction()
    assert take_note(tr, name, codec.encode("ann"), retry=True)
    add(db, name, {"ann": 1})
    backfilled.drain()
    assert missed(db, name) == []

    # Else its row would stay: passes over a bucket without missed reports read no retries.
    assert not commits(tr)
    assert retry_missed(db, name) == 0
    assert missed(db, name) == []


def test_forgetting_missed_reports_conflicts_with_a_pass_that_notes_one(backfilled: Backfilled) -> None:
    db, name = backfilled.db, backfilled.name
    assert retry_aside(db, name) == 1
    backfilled.drain()
    assert missed(db, name) == []
    config = transact(db, lambda tr: read_config(tr.snapshot, name))
    tr = db.create_transaction()
    forget_missed(tr, name, [each.generation for each in config.observers])
    backfilled.second.refused = {"ann"}
    purge(db, name)
    backfilled.drain()

    # Else its note would be cleared, and no operator could see or retry it.
    assert shown(db, name) == [("ann", [])]
    assert not commits(tr)
    assert shown(db, name) == [("ann", [])]


def test_a_dropped_note_is_not_listed_and_the_next_report_is_right(backfilled: Backfilled) -> None:
    db, name = backfilled.db, backfilled.name
    assert drop_aside(db, name) == 1
    assert aside(db, name) == []
    add(db, name, {"ann": 1})
    backfilled.drain()

    assert backfilled.second.received("ann") == [(None, 21)]


@pytest.mark.parametrize("what", ["rebuilt", "removed"])
def test_an_observer_that_is_rebuilt_or_removed_has_missed_nothing(backfilled: Backfilled, what: str) -> None:
    db, name = backfilled.db, backfilled.name
    if what == "removed":
        cq.configure(db, name, observers=[backfilled.first.observer])
        assert [*aside(db, name), *missed(db, name)] == []
        return
    rebuild_observer(db, name, "second")
    backfilled.second.prefix += b"rebuilt/"
    assert [*aside(db, name), *missed(db, name)] == []
    backfilled.drain()
    assert backfilled.second.received("ann") == [(None, 20)]


def test_a_first_report_says_when_later_updates_are_queued(db: Any, name: str) -> None:
    seen = SeenInStore(db, name)
    cq.configure(db, name, buckets=1)
    add(db, name, {"ann": 20, "bob": 1})
    combine_all(db, name)
    app = app_with(db, name, seen.observer)
    bucket = PassRunner(db, code_of(db, name, app), 0)
    bucket.combine()  # finds that the observer is new
    add(db, name, {"ann": 1})
    bucket.combine()
    assert {change.key: change.complete for change in seen.changes} == {"ann": False, "bob": True}

    combine_all(db, name, app)
    assert seen.changes[-1] == cq.Change("ann", 20, 21, complete=True)


def test_a_purge_says_when_later_updates_are_queued(db: Any, name: str) -> None:
    seen = SeenInStore(db, name)
    app = app_with(db, name, seen.observer, buckets=1)
    add(db, name, {"ann": 20, "bob": 1})
    drain(db, name, app=app)
    add(db, name, {"bob": 7})  # before the purge, which drops it
    purge(db, name)
    add(db, name, {"ann": 1})
    drain(db, name, app=app)

    deletions = {change.key: change.complete for change in seen.changes if change.new is None}
    assert deletions == {"ann": False, "bob": True}
    assert seen.values == {"ann": 1}


def test_verification_finds_missed_reports_that_passes_do_not_know_of(backfilled: Backfilled) -> None:
    db, name = backfilled.db, backfilled.name
    config = transact(db, lambda tr: read_config(tr.snapshot, name))
    state = QueueKeys(name).state(config.generation, 0)
    assert list(verify(db, name)) == []
    transact(db, lambda tr: tr.set(state, codec.encode(codec.decode(tr.get(state).value or b"")[:-1])))

    assert [each.kind for each in verify(db, name)] == ["missed-unseen"]
    assert [each.repaired for each in verify(db, name, repair=True)] == [True]
    assert list(verify(db, name)) == []
    add(db, name, {"ann": 1})
    backfilled.drain()
    assert backfilled.second.received("ann") == [(None, 21)]


def test_verification_notifies_a_bucket_of_a_report_to_be_retried(backfilled: Backfilled) -> None:
    db, name = backfilled.db, backfilled.name
    retry_aside(db, name)
    transact(db, lambda tr: tr.clear_range(*QueueKeys(name).notifications()))

    assert [each.kind for each in verify(db, name, repair=True)] == ["notification-missing"]
    backfilled.drain()
    assert backfilled.second.received("ann") == [(None, 20)]


@pytest.mark.parametrize("kind", ["missed-key", "missed-unreadable"])
def test_verification_repairs_what_it_cannot_read(backfilled: Backfilled, kind: str) -> None:
    db, name = backfilled.db, backfilled.name
    key = MissedKeys(name).prefix + b"gx" if kind == "missed-key" else missed(db, name)[0][0]
    transact(db, lambda tr: tr.set(key, b"\xff"))

    assert [each.kind for each in verify(db, name, repair=True)] == [kind]
    assert list(verify(db, name)) == [] or kind == "missed-unreadable"
    backfilled.second.prefix += b"rebuilt/" if kind == "missed-unreadable" else b""
    backfilled.drain()
    assert list(verify(db, name)) == []
