"""Sizes of the transactions that set updates and reports aside, add or report them again, and drop them."""

from __future__ import annotations

from typing import Any, Final

import pytest

import cq
from cq import admin
from cq.admin.audit import audit_findings
from cq.encoding import codec
from cq.failure import KeyFailure
from cq.keys import QueueKeys, place
from cq.keys.missed import MissedKeys
from cq.passes.plan import LOCAL_LIMITS, Limits
from cq.queue.set_aside import drop_aside, each_aside, retry_aside, set_aside
from cq.store.transact import transact
from tests.kit.faults import FaultyDatabase, WrappedDatabase
from tests.kit.observing import Seen, app_of, app_with, failing
from tests.kit.queues import add, aside, combine_all, put, values
from tests.kit.sized import MOST, Sized, drained, fill, words

pytestmark = pytest.mark.sampled(3)

LARGE: Final = "k" * 7_900


def put_aside(db: Any, name: str, updates: list[Any], *keys: str) -> None:
    def put_all(tr: Any) -> None:
        for key in keys or [LARGE]:
            set_aside(tr, QueueKeys(name), codec.encode(key), KeyFailure("an error"), updates)

    transact(db, put_all)


@pytest.mark.parametrize("is_failing", [False, True])
def test_many_updates_of_a_large_key_are_added_again_in_several_transactions(
    db: Any, name: str, is_failing: bool
) -> None:
    cq.configure(db, name, buckets=1)
    put_aside(db, name, [1] * 600)
    cq.configure(db, name, audit=True)
    assert len(aside(db, name)) == 1
    sized = Sized(FaultyDatabase(db, seed=1, unknown=0.4) if is_failing else db)
    retried = retry_aside(sized, name)

    assert 0 < max(sized.sizes) <= MOST
    assert len(sized.sizes) > 4
    assert aside(db, name) == []
    combine_all(db, name)
    assert values(db, name) == {LARGE: 600}
    if not is_failing:  # a transaction whose answer is lost returns what it finds when it is run again
        assert retried == 600
    assert list(audit_findings(db, name)) == []


def test_large_updates_are_added_again_and_dropped_in_bounded_transactions(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=1, value=str, combiner="last")
    sized = Sized(db)
    put_aside(db, name, [f"{number:089000}" for number in range(40)])
    assert retry_aside(sized, name) == 40
    put_aside(db, name, [f"{number:089000}" for number in range(40)])
    assert drop_aside(sized, name) == 40

    assert max(sized.sizes) <= MOST
    assert aside(db, name) == []
    combine_all(db, name)
    assert values(db, name) == {LARGE: f"{39:089000}"}


class SetAsideAgain(WrappedDatabase):
    """A database in which a worker, which the repair has not reached, sets updates aside before each transaction."""

    def __init__(self, db: Any, name: str, app: cq.App) -> None:
        super().__init__(db)
        self.name, self.app, self.transactions = name, app, 0

    def create_transaction(self) -> Any:
        self.transactions += 1
        assert self.transactions < 50, "the command has no end"
        combine_all(self.inner, self.name, self.app)
        return super().create_transaction()


def test_a_retry_ends_while_a_worker_sets_the_same_updates_aside_again(db: Any, name: str) -> None:
    app = app_with(db, name, combiner=failing, value=bytes, buckets=1)
    for key in "ab":
        add(db, name, *({key: bytes([number]) * 80_000} for number in range(8)))
    combine_all(db, name, app)

    assert retry_aside(SetAsideAgain(db, name, app), name) == 16
    assert retry_aside(SetAsideAgain(db, name, app), name, "a") == 8

    mended = cq.Combiner("failing", 1, lambda key, values: b"".join(value[:1] for value in values))
    retry_aside(db, name)
    combine_all(db, name, app_of(name, combiner=mended))
    assert {key: sorted(value) for key, value in values(db, name).items()} == {
        key: [*range(8)] for key in "ab"
    }


def test_many_keys_are_listed_added_again_and_dropped_in_few_bounded_transactions(db: Any, name: str) -> None:
    keys = words(12, 1_000)
    cq.configure(db, name, buckets=1)
    put_aside(db, name, [1], *keys)
    assert list(each_aside(db, name)) == aside(db, name)
    sized = Sized(db)
    assert retry_aside(sized, name) == 1_000
    put_aside(db, name, [1], *keys)
    assert drop_aside(sized, name) == 1_000

    assert len(sized.sizes) < 20
    assert max(sized.sizes) <= MOST
    assert aside(db, name) == []
    combine_all(db, name)
    assert values(db, name) == dict.fromkeys(keys, 1)


def test_a_piece_that_is_refused_keeps_no_other_one_from_being_added_again(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=1)
    put_aside(db, name, [1], *words(3, 9))
    keys = [codec.decode(each.encoded_key) for each in aside(db, name)]
    drop_aside(db, name, keys[4])
    put_aside(db, name, [], keys[4])
    with pytest.raises(cq.InvalidData, match="stay set aside: 1; the first one: no update to add"):
        retry_aside(db, name)

    assert [codec.decode(each.encoded_key) for each in aside(db, name)] == [keys[4]]
    combine_all(db, name)
    assert values(db, name) == dict.fromkeys([*keys[:4], *keys[5:]], 1)


@pytest.mark.parametrize(("size", "number"), [(1, 5_000), (600, 4_000), (90_000, 40)])
@pytest.mark.parametrize("limits", [Limits(), LOCAL_LIMITS], ids=["cluster", "local"])
def test_unreadable_rows_are_set_aside_in_bounded_transactions(
    db: Any, name: str, size: int, number: int, limits: Limits
) -> None:
    cq.configure(db, name, buckets=1)
    begin = QueueKeys(name).rows(1, 0)[0]
    keys = [begin + key.to_bytes(8, "big") + bytes(10) for key in range(number)]
    for start in range(0, number, 40 + 100_000 // size):
        some = keys[start : start + 40 + 100_000 // size]
        put(db, dict.fromkeys(some, b"\xff" * size))
    add(db, name, {"a": 1})

    assert max(drained(db, name, limits)) <= limits.transaction_bytes
    assert sum(len(update) for each in aside(db, name) for update in each.updates) == size * number
    assert values(db, name) == {"a": 1}


def test_many_updates_of_a_key_that_fails_are_set_aside_in_bounded_transactions(db: Any, name: str) -> None:
    app = app_with(db, name, combiner=failing, value=int, buckets=1)
    for _ in range(30):
        add(db, name, [("a", 1 << 60)] * 10_000)
    sized = Sized(db)
    combine_all(sized, name, app)

    assert max(sized.sizes) <= MOST
    assert sum(len(each.updates) for each in aside(db, name)) == 300_000


class Missed:
    """A queue of large keys of which three observers have missed the first reports."""

    def __init__(self, db: Any, name: str) -> None:
        self.db, self.name = db, name
        self.observers = [Seen(name=f"seen{number}") for number in range(3)]
        self.keys = words(7_900, 60)
        cq.configure(db, name, buckets=1)
        fill(db, name, 7_900, len(self.keys))
        combine_all(db, name)
        self.app = app_with(db, name, *(each.observer for each in self.observers))
        for each in self.observers:
            each.refused = self.keys
        self.combine()
        for each in self.observers:
            each.refused = ()

    def combine(self) -> list[int]:
        """Passes until nothing is left to do; the sizes of their transactions."""
        sized = Sized(self.db)
        combine_all(sized, self.name, self.app)
        return sized.sizes

    def assert_received(self, value: Any) -> None:
        for each in self.observers:
            assert each.values == dict.fromkeys(self.keys, value)


@pytest.fixture
def missed(db: Any, name: str) -> Missed:
    found = Missed(db, name)
    assert len(aside(db, name)) == len(found.keys)
    return found


def test_missed_reports_of_large_keys_are_retried_in_bounded_transactions(missed: Missed) -> None:
    sized = Sized(missed.db)
    assert retry_aside(sized, missed.name) == len(missed.keys)
    assert max(sized.sizes) <= MOST

    assert max(missed.combine()) <= MOST
    missed.assert_received(1)


def test_missed_reports_of_keys_of_all_lengths_are_dropped_in_many_transactions(
    db: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A note ends with its key, and not, as a piece does, with a versionstamp and a number."""
    cq.configure(db, name)
    notes, noted = MissedKeys(name), codec.encode(KeyFailure("an error").to_stored())
    keys = [codec.encode(f"{number:0{9 + number % 4}}") for number in range(2_000)]
    for most in range(30, 40):
        monkeypatch.setattr("cq.queue.set_aside._MOST_PIECES", most)
        put(db, {notes.note(place(encoded)): noted for encoded in keys})

        assert drop_aside(db, name) == len(keys)
        assert aside(db, name) == []


def test_missed_reports_of_large_keys_are_dropped_in_bounded_transactions(missed: Missed) -> None:
    sized = Sized(missed.db)
    assert drop_aside(sized, missed.name) == len(missed.keys)

    assert max(sized.sizes) <= MOST
    assert aside(missed.db, missed.name) == []


def test_passes_that_report_keys_again_after_missed_reports_write_at_most_a_megabyte(missed: Missed) -> None:
    fill(missed.db, missed.name, 7_900, len(missed.keys))

    assert max(missed.combine()) <= MOST
    missed.assert_received(2)
    assert aside(missed.db, missed.name) == []


def test_a_purge_after_missed_reports_writes_at_most_a_megabyte(missed: Missed) -> None:
    admin.purge(missed.db, missed.name)

    assert max(missed.combine()) <= MOST
    assert aside(missed.db, missed.name) == []
    assert list(cq.CombineQueue(missed.name).scan(missed.db)) == []
