"""Limits of what may wait, and the pace of passes."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cq
from cq import admin
from cq.bucket.pass_runner import PassRunner, PassSize
from cq.config.flags import read_flags
from cq.config.queue import read_config
from cq.keys import QueueKeys
from cq.observers.worker.worker import Worker
from cq.passes.effects import PassResult
from cq.passes.plan import Limits
from cq.queue import limits as pressure
from cq.queue.limits import compare, measure_backlog, read_full
from cq.store.api import NOT_COMMITTED
from cq.store.embedded import Database
from cq.store.transact import transact
from cq.testing import assert_values, drain
from tests.kit.clocks import Stopped
from tests.kit.faults import FaultyDatabase
from tests.kit.observing import app_with, concatenation
from tests.kit.queues import add, buckets_of, code_of, combine_all, event_of, get
from tests.kit.workers import running

SECONDS = 60.0


@pytest.fixture(autouse=True)
def _always_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adds look at the mark each time."""
    monkeypatch.setattr(pressure, "CHECK_SECONDS", 0.0)


def fill(db: Any, name: str, number: int = 50) -> None:
    add(db, name, *({f"k{each}": 1 for each in range(20)} for _ in range(number)))


@pytest.fixture
def sampled(db: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A database that estimates the size of a small range as 0, as a cluster does."""
    if isinstance(db, Database):
        tr = db.create_transaction()
        nothing = tr.get_estimated_range_size_bytes(b"\x00", b"\x01")
        nothing.wait()
        for reads in (type(tr), type(tr.snapshot)):
            monkeypatch.setattr(reads, "get_estimated_range_size_bytes", lambda self, begin, end: nothing)
    return db


class TestLimits:
    """`limit`, the mark, and adds."""

    def test_a_small_backlog_is_counted_where_the_store_has_no_estimate(
        self, sampled: Any, name: str
    ) -> None:
        cq.configure(sampled, name, buckets=2)
        admin.limit(sampled, name, max_bytes=5_000)
        fill(sampled, name, 5)
        assert compare(sampled, name) == ""
        fill(sampled, name, 45)
        assert compare(sampled, name) == "more than 5,000 bytes are queued"
        size = transact(sampled, lambda tr: measure_backlog(tr, name)).size
        assert size == sum(
            len(row.key) + len(row.value) for row in sampled.get_range(*QueueKeys(name).all_rows())
        )

    def test_adds_are_refused_while_more_waits_than_is_allowed(self, db: Any, name: str) -> None:
        cq.configure(db, name, buckets=2)
        admin.limit(db, name, max_bytes=5_000)
        assert compare(db, name) == ""
        fill(db, name)
        assert compare(db, name) == "more than 5,000 bytes are queued"
        before = transact(db, lambda tr: measure_backlog(tr, name))
        with pytest.raises(cq.QueueFull, match="full, more than 5,000 bytes are queued: try again later"):
            fill(db, name)
        assert transact(db, lambda tr: measure_backlog(tr, name)).size == before.size
        drain(db, name)
        assert compare(db, name) == ""
        fill(db, name, 1)
        drain(db, name)
        assert_values(db, name, {f"k{each}": 51 for each in range(20)})

    def test_it_is_full_no_more_only_once_clearly_less_waits(self, db: Any, name: str) -> None:
        cq.configure(db, name, buckets=1)
        fill(db, name, 20)
        size = transact(db, lambda tr: measure_backlog(tr, name)).size
        admin.limit(db, name, max_bytes=size - 1)
        assert compare(db, name)
        transact(db, lambda tr: tr.clear(first_row(tr, name)))
        assert compare(db, name)  # a little less
        for _ in range(8):
            transact(db, lambda tr: tr.clear(first_row(tr, name)))
        assert not compare(db, name)

    def test_the_age_of_the_oldest_counts(self, db: Any, name: str) -> None:
        cq.configure(db, name, buckets=4)
        admin.limit(db, name, max_age=1e-6)
        assert compare(db, name) == ""  # of what is added later this process knows the age
        add(db, name, {"a": 1})
        transact(db, lambda tr: tr.set(b"other", b""))
        transact(db, lambda tr: tr.set(b"other", b"later"))
        assert compare(db, name) == "the oldest update has waited longer than 1e-06 s"

    def test_updates_may_be_admitted_all_the_same(self, db: Any, name: str) -> None:
        cq.configure(db, name)
        admin.limit(db, name, max_bytes=1, when_full="admit")
        fill(db, name, 1)
        assert compare(db, name)
        fill(db, name, 1)
        full = transact(db, lambda tr: read_full(tr, name))
        assert full is not None
        assert full.mode == "admit"

    def test_without_limits_nothing_is_read(self, db: Any, name: str) -> None:
        cq.configure(db, name)
        admin.limit(db, name, max_bytes=1)
        fill(db, name, 1)
        assert compare(db, name)
        admin.limit(db, name)
        assert not transact(db, lambda tr: read_config(tr, name)).limited
        fill(db, name, 1)
        transact(db, lambda tr: tr.set(QueueKeys(name).full, b"not read"))
        fill(db, name, 1)

    def test_the_mark_is_read_once_a_second_at_most(
        self, db: Any, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pressure, "CHECK_SECONDS", 1000.0)
        cq.configure(db, name)
        admin.limit(db, name, max_bytes=1)
        fill(db, name, 1)
        assert compare(db, name)
        fill(db, name, 5)  # it has looked just before

    def test_observers_are_not_refused(self, db: Any, name: str) -> None:
        """Else a queue that is full would hold up, and have set aside, what another one tells it."""
        app, days = cq.App(), cq.CombineQueue(f"{name}-2")

        @app.observer(name)
        def by_day(tr: Any, changes: list[cq.Change]) -> None:
            days.add(tr, {"today": len(changes)})

        cq.configure(db, days.name)
        admin.limit(db, days.name, max_bytes=1)
        app.configure(db, name)
        fill(db, days.name, 1)
        assert compare(db, days.name)
        add(db, name, {f"k{number}": 1 for number in range(20)})
        drain(db, name, app=app)
        assert_values(db, name, {f"k{number}": 1 for number in range(20)})
        with pytest.raises(cq.QueueFull):
            fill(db, days.name, 1)

    @pytest.mark.parametrize(
        ("settings", "said"),
        [
            ({"max_bytes": 0}, "a positive number of bytes"),
            ({"max_bytes": "1 mile"}, "a size such as 10MB, got: '1 mile'"),
            ({"max_age": -1.0}, "a positive duration in seconds"),
            ({"max_age": float("nan")}, "a positive duration in seconds"),
            ({"max_bytes": 1, "when_full": "block"}, "raise or admit for a full queue, got: 'block'"),
        ],
    )
    def test_what_is_no_limit_is_refused(
        self, db: Any, name: str, settings: dict[str, Any], said: str
    ) -> None:
        cq.configure(db, name)
        with pytest.raises(cq.errors.InvalidConfiguration, match=said):
            admin.limit(db, name, **settings)

    def test_limits_are_given_as_durations_and_sizes(self, db: Any, name: str) -> None:
        cq.configure(db, name)
        admin.limit(db, name, max_age="1h30m", max_bytes="1.5 MiB")
        flags = db.transact(lambda tr: read_flags(tr.snapshot, name))
        assert (flags.max_seconds, flags.max_bytes, flags.when_full) == (5400, 1_572_864, "raise")

    def test_workers_set_and_clear_the_mark(
        self, db: Any, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("cq.observers.tasks.timed.CHECK_SECONDS", 0.01)
        entered, release = threading.Event(), threading.Event()

        def holds(tr: Any, changes: list[cq.Change]) -> None:
            entered.set()
            assert release.wait(SECONDS)

        app = app_with(db, name, holds, buckets=1)
        admin.limit(db, name, max_bytes=1_000)
        full = QueueKeys(name).full
        with running(Worker(db, app, [name])):
            add(db, name, {"a": 1})
            assert entered.wait(SECONDS)
            add(db, name, {f"key {number}": 1 for number in range(500)})
            wait_until(db, full, present=True)
            with pytest.raises(cq.QueueFull):
                fill(db, name, 1)
            release.set()
            wait_until(db, full, present=False)
            fill(db, name, 1)


def first_row(tr: Any, name: str) -> bytes:
    (row,) = tr.get_range(*QueueKeys(name).all_rows(), limit=1)
    key: bytes = row.key
    return key


def wait_until(db: Any, key: bytes, *, present: bool) -> None:
    """Wait until a key is there, or is not."""
    while True:
        found, watch = transact(db, lambda tr: (tr.get(key).present(), tr.watch(key)))
        if found == present:
            watch.cancel()
            return
        fired = event_of(watch)
        assert fired.wait(SECONDS)


class TestPassSize:
    """How much a pass takes."""

    @given(st.floats(0.0001, 0.015))
    def test_it_settles_where_passes_are_neither_slow_nor_needlessly_small(self, per_share: float) -> None:
        """A pass that costs so many seconds at full size: 0.1 to 15."""
        clock = Stopped()
        size = PassSize(Limits(), clock=clock.monotonic)
        cost = per_share * 1000
        taken = []
        for _ in range(60):
            size.begin()
            taken.append(cost * size.share)
            clock.now += taken[-1]
            size.committed(PassResult(), (), "q")
        assert max(taken[20:]) <= 1.0
        assert min(taken[20:]) >= min(0.16, cost)

    @pytest.mark.parametrize("code", [1007, 1020])
    def test_what_the_store_refuses_makes_it_smaller(self, code: int) -> None:
        size = PassSize(Limits())
        size.refused(code)
        assert size.share == 0.5
        limits = size.limits()
        assert (limits.read_bytes, limits.load_bytes, limits.write_bytes) == (1_000_000, 100_000, 200_000)
        assert limits.repack_bytes == 300_000
        for _ in range(20):
            size.refused(code)
        assert size.share == 1 / 64
        assert size.limits().max_report == Limits().max_report // 64

    def test_it_recovers_when_passes_take_neither_long_nor_little(self) -> None:
        clock = Stopped()
        size = PassSize(Limits(), clock=clock.monotonic)
        for seconds in [1.2] * 6 + [0.4] * 60:
            size.begin()
            clock.now += seconds
            size.committed(PassResult(), (), "q")
        assert size.share == 1.0

    @pytest.mark.parametrize(("seconds", "factor"), [(1.9, 2), (2.1, 1)])
    def test_after_a_pass_of_two_seconds_no_number_of_keys_grows(self, seconds: float, factor: int) -> None:
        """Twice as many keys might take longer than a transaction lives."""
        clock = Stopped()
        size = PassSize(Limits(), clock=clock.monotonic)
        numbers = [size.reports, size.backfills, size.takes]
        for number in numbers:
            number.halve(100)
        size.begin()
        clock.now += seconds
        size.committed(PassResult(reported=1, backfilled=1), (), "q")
        assert [number.now for number in numbers] == [50 * factor] * 3

    def test_other_errors_do_not(self) -> None:
        size = PassSize(Limits())
        size.refused(1021)
        assert size.share == 1.0

    def test_a_bucket_paces_its_passes(self, db: Any, name: str) -> None:
        cq.configure(db, name, buckets=1)
        fill(db, name)
        bucket = PassRunner(
            FaultyDatabase(db, 1, conflict=1.0, unknown=0.0, too_old=0.0), code_of(db, name), 0
        )
        tries = iter([False] * 3)
        bucket.combine(lambda: next(tries, True))
        assert bucket.size.share == 1 / 16
        bucket.db = db
        while bucket.combine().more:
            pass
        assert bucket.size.share > 1 / 16
        assert get(db, name, "k1") == 50

    @pytest.mark.parametrize("refusals", range(7))
    def test_a_large_update_that_does_not_count_is_dropped_by_passes_of_any_size(
        self, db: Any, name: str, refusals: int
    ) -> None:
        """The rest of the budget of a small pass is negative: the row is larger than all that the pass may write."""
        app = app_with(db, name, combiner=concatenation, value=list, buckets=1)
        add(db, name, {"a": [1]}, once="x")
        combine_all(db, name, app)
        add(db, name, {"a": ["x" * 89_000]}, once="x")
        (bucket,) = buckets_of(db, name, app)
        for _ in range(refusals):
            bucket.size.refused(NOT_COMMITTED)

        assert not bucket.combine().more
        assert get(db, name, "a") == [1]
