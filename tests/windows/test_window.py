"""A window's totals are sums of what is in it, at any time, whatever becomes of workers, clocks and commits."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cq
from cq.admin.queue_status import status
from cq.config.window import WindowSpec
from cq.encoding import codec
from cq.errors import (
    BacklogTooDeep,
    ConfigurationConflict,
    InvalidConfiguration,
    InvalidData,
    PendingUnreadable,
    QueueFull,
)
from cq.failure import KeyFailure
from cq.keys import QueueKeys
from cq.keys.window import WindowKeys
from cq.observers.tasks.timed import WindowTask
from cq.observers.telemetry.bus import subscribe
from cq.observers.worker.worker import Worker
from cq.queue import pending as pendingrows
from cq.queue import window_rows
from cq.queue.operation_ids import Trim
from cq.queue.set_aside import drop_aside, read_aside, retry_aside, set_aside
from cq.store.api import NOT_COMMITTED, error_code
from cq.store.embedded import Database
from cq.store.transact import transact
from cq.testing import assert_drained, drain
from cq.verify.queue import verify
from cq.windows import expiry
from cq.windows.expiry import expire
from tests.clocks import START, Clock, set_clock
from tests.helpers import add, combine_all, configured, put, stored

WIDTH, SLICE = 60.0, 5.0


@pytest.fixture
def clock() -> Iterator[Clock]:
    with set_clock() as clock:
        yield clock


@pytest.fixture
def window(db: Any, name: str) -> cq.Window:
    cq.configure(db, name, window=(WIDTH, SLICE), buckets=2)
    return cq.Window(name, width=WIDTH, slice=SLICE)


def visit(db: Any, window: cq.Window, key: str, number: Any = 1, **given: Any) -> str:
    return str(transact(db, lambda tr: window.add(tr, {key: number}, **given)))


def total(db: Any, window: cq.Window, key: str, **given: Any) -> Any:
    given = {"pending": True, **given}
    return transact(db, lambda tr: window.get(tr.snapshot, key, **given))


def totals(db: Any, window: cq.Window, **given: Any) -> dict[str, Any]:
    def page(tr: Any, after: bytes | None) -> cq.Page:
        return window.items(tr.snapshot, limit=2, after=after, **given)

    found: dict[str, Any] = {}
    after = None
    while True:
        read = transact(db, partial(page, after=after))
        assert not found.keys() & dict(read.items).keys()
        found.update(read.items)
        after = read.continuation
        if after is None:
            return found


def take(db: Any, name: str, **given: Any) -> tuple[int, int, float]:
    expired = expire(db, name, **given)
    assert expired is not None
    return expired.rows, expired.keys, expired.seconds


def refused(tr: Any) -> bool:
    """Whether a commit conflicts with what was committed since the transaction has read."""
    with pytest.raises(Exception, match=r"onflict|1020") as raised:
        tr.commit().wait()
    return error_code(raised.value) == NOT_COMMITTED


def differences(db: Any, name: str) -> list[Any]:
    return list(verify(db, name))


# When something is in the window


def test_it_is_in_the_window_at_once_and_until_a_width_after_the_end_of_its_slice(
    db: Any, window: cq.Window, clock: Clock
) -> None:
    clock.now = START + 2
    assert visit(db, window, "a") == "taken"

    seen = {}
    for seconds in (2, 59, 62, 64.9, 65, 100):
        clock.now = START + seconds
        seen[seconds] = total(db, window, "a")

    assert seen == {2: 1, 59: 1, 62: 1, 64.9: 1, 65: None, 100: None}


def test_what_has_left_is_taken_out_once_and_nothing_is_left_of_it(
    db: Any, window: cq.Window, clock: Clock
) -> None:
    visit(db, window, "a", 3)
    visit(db, window, "a", once="op")
    drain(db, window.name)
    assert total(db, window, "a", pending=False) == 4

    clock.now = START + 65
    assert take(db, window.name) == (2, 1, 0)
    assert take(db, window.name) == (0, 0, SLICE)
    drain(db, window.name)

    assert dict(window.queue.scan(db)) == {}
    keys = WindowKeys(window.name)
    assert stored(db, keys.rows()) == stored(db, keys.operations()) == []


def test_it_is_told_when_to_look_again(db: Any, window: cq.Window, clock: Clock) -> None:
    visit(db, window, "a")

    clock.now = START + 63
    assert take(db, window.name) == (0, 0, 2)
    clock.now = START + 10
    assert take(db, window.name) == (0, 0, SLICE)


def test_a_queue_without_a_window_has_nothing_to_take_out(db: Any, name: str) -> None:
    cq.configure(db, name)

    assert expire(db, name) is None


def test_an_update_is_late_as_soon_as_it_leaves(db: Any, window: cq.Window, clock: Clock) -> None:
    clock.now = START + SLICE + WIDTH
    assert visit(db, window, "a", 1, at=START) == "late"
    assert visit(db, window, "a", 1, at=START + SLICE - 0.001) == "late"
    assert visit(db, window, "a", 1, at=START + SLICE) == "taken"
    clock.now -= 0.001
    assert visit(db, window, "a", 1, at=START) == "taken"


def test_late_and_future_events_are_counted_and_said_and_not_added(
    db: Any, window: cq.Window, clock: Clock
) -> None:
    now = clock.now = START + 1_000
    said = [
        visit(db, window, "a", at=now - offset) for offset in (0, 59, 60, 60.1, 70, 10_000_000_000, -5, -5.1)
    ]
    statistics = transact(db, window.statistics)

    assert said == ["taken", "taken", "taken", "late", "late", "late", "taken", "future"]
    assert total(db, window, "a") == 4
    assert (statistics.late, statistics.future) == (3, 1)
    assert [each.window for each in status(db, window.name)] == [statistics]


def test_reads_are_right_when_no_worker_has_run_for_long(db: Any, window: cq.Window, clock: Clock) -> None:
    visit(db, window, "a", 2)
    visit(db, window, "old")
    drain(db, window.name)
    clock.now = START + 50
    visit(db, window, "a")  # and nobody combines it
    clock.now = START + 70

    assert total(db, window, "a", pending=False) == 1
    assert total(db, window, "old", pending=False) is None
    assert totals(db, window) == {"a": 1}
    assert transact(db, window.statistics).overdue_seconds == 5
    clock.now = START + 80 + WIDTH
    assert totals(db, window) == {}


def test_reads_refuse_what_is_too_much_for_them(
    db: Any, window: cq.Window, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        visit(db, window, "a")
    monkeypatch.setattr(pendingrows, "PENDING_BYTES", 50)
    with pytest.raises(BacklogTooDeep, match="run more workers"):
        total(db, window, "a")
    drain(db, window.name)

    monkeypatch.setattr(window_rows, "OVERDUE_BYTES", 50)
    clock.now = START + 100
    with pytest.raises(BacklogTooDeep, match="run workers"):
        total(db, window, "a")


def test_pending_reads_after_an_add_in_the_same_transaction_are_refused(db: Any, window: cq.Window) -> None:
    def both(tr: Any, pending: bool) -> Any:
        window.add(tr, {"a": 1})
        return window.get(tr, "a", pending=pending)

    assert transact(db, lambda tr: both(tr, False)) is None
    drain(db, window.name)
    with pytest.raises(PendingUnreadable):
        transact(db, lambda tr: both(tr, True))


# Taking out


def test_an_outage_is_caught_up_with_in_bounded_steps(db: Any, window: cq.Window, clock: Clock) -> None:
    for second in range(0, 50, 5):
        clock.now = START + second
        visit(db, window, "a" * 100)
    drain(db, window.name)
    clock.now = START + 100_000

    steps = []
    while rows := take(db, window.name, limit_bytes=400)[0]:
        steps.append(rows)
    drain(db, window.name)

    assert sum(steps) == 10
    assert max(steps) < 5
    assert dict(window.queue.scan(db)) == {}


def test_a_row_that_is_committed_when_its_time_is_over_is_taken_out_by_the_next_look(
    db: Any, window: cq.Window, clock: Clock
) -> None:
    slow = db.create_transaction()
    visit(db, window, "before")
    window.add(slow, {"slow": 1})
    clock.now = START + 65
    expire(db, window.name)
    slow.commit().wait()

    assert totals(db, window, pending=True) == {}
    expire(db, window.name)
    drain(db, window.name)
    assert dict(window.queue.scan(db)) == {}


@pytest.mark.parametrize("foreign", [False, True])
def test_a_row_committed_during_taking_out_stays(
    db: Any, window: cq.Window, clock: Clock, monkeypatch: pytest.MonkeyPatch, foreign: bool
) -> None:
    """Whatever was read before and behind it: also a row stamped later than anything, as a copied one can be."""
    visit(db, window, "first")
    if foreign:
        ((first, value),) = stored(db, WindowKeys(window.name).rows())
        late = first[:-18] + b"\xfe" * 18
        transact(db, lambda tr: tr.set(late, value))
    clock.now = START + 10
    visit(db, window, "second")
    slow = db.create_transaction()
    clock.now = START + 1
    window.add(slow, {"slow": 1})
    clear = expiry._clear

    def interrupted(*given: Any) -> None:
        monkeypatch.setattr(expiry, "_clear", clear)
        slow.commit().wait()
        clear(*given)

    monkeypatch.setattr(expiry, "_clear", interrupted)
    clock.now = START + 100
    expire(db, window.name)

    assert len(stored(db, WindowKeys(window.name).rows())) == 1
    drain(db, window.name)
    assert dict(window.queue.scan(db)) == ({"first": -1} if foreign else {})  # which was never added


def test_a_queue_that_is_full_is_taken_out_of(db: Any, window: cq.Window, clock: Clock) -> None:
    visit(db, window, "a")
    cq.limit(db, window.name, seconds=1.0)
    transact(db, lambda tr: tr.set(window.keys.full, codec.encode(["raise", "for this test"])))
    with pytest.raises(QueueFull):
        visit(db, window, "a")

    clock.now = START + 100
    drain(db, window.name)
    assert stored(db, WindowKeys(window.name).rows()) == []
    assert dict(window.queue.scan(db)) == {}


def test_a_worker_s_task_takes_out_and_says_so(db: Any, window: cq.Window, clock: Clock) -> None:
    visit(db, window, "a")
    task, told = WindowTask(db, window.name), []
    end = subscribe(lambda event: told.append((event.name, event.fields["queue"], event.fields["rows"])))
    try:
        clock.now = START + 64
        assert task.run() == 1
        clock.now = START + 65
        assert task.run() == 0
        assert task.run() == SLICE
    finally:
        end()

    assert told == [("window_left", window.name, 1)]


def test_two_who_take_out_conflict(db: Any, window: cq.Window, clock: Clock) -> None:
    visit(db, window, "a")
    clock.now = START + 100
    first, second = db.create_transaction(), db.create_transaction()
    for tr in (first, second):
        assert expiry._expire(tr, window.name, round(clock.now * 1000), 1000) is not None
    first.commit().wait()

    assert refused(second)


def test_of_an_operation_what_its_first_try_added_is_taken_out(
    db: Any, window: cq.Window, clock: Clock
) -> None:
    visit(db, window, "a", 2, once="op")
    clock.now = START + 30
    visit(db, window, "a", 5, once="op")
    assert total(db, window, "a") == 2
    drain(db, window.name)
    for seconds in (70, 100):
        clock.now = START + seconds
        assert total(db, window, "a") is None
        drain(db, window.name)

        assert dict(window.queue.scan(db)) == {}


def test_an_operation_is_remembered_as_long_as_it_is_in_the_window(
    db: Any, window: cq.Window, clock: Clock
) -> None:
    """Were it not, its second try would be taken out, too."""
    visit(db, window, "a", once="op")
    clock.now = START + 30
    visit(db, window, "a", once="op")
    drain(db, window.name)
    visit(db, window, "b")

    def trimmed() -> int:
        trimming = Trim(db, window.name, 0.0)
        while trimming.step():
            pass
        return trimming.removed

    assert trimmed() == 0
    clock.now = START + 200
    drain(db, window.name)
    assert dict(window.queue.scan(db)) == {}
    add(db, window.name, {"c": 1})
    assert trimmed() == 2


def test_rows_that_cq_has_not_written_are_set_aside(db: Any, window: cq.Window, clock: Clock) -> None:
    visit(db, window, "a")
    keys = WindowKeys(window.name)
    due = keys.rows()[0] + bytes(8)
    bad = {due: b"short", due + bytes(18): b"\xff", due + bytes(17) + b"\x01": b"\x83\xf6aaa1"}
    put(db, bad)
    assert {each.kind for each in differences(db, window.name)} == {"window-key"}

    clock.now = START + 100
    drain(db, window.name)

    assert stored(db, keys.rows()) == []
    assert len(transact(db, lambda tr: read_aside(tr, window.name))) == 3
    assert dict(window.queue.scan(db)) == {}


def test_a_drain_takes_out_what_is_due(db: Any, window: cq.Window, clock: Clock) -> None:
    visit(db, window, "a")
    clock.now = START + 100

    Worker(db, queues=[window.name]).drain()

    assert stored(db, WindowKeys(window.name).rows()) == []
    assert_drained(db, window.name)


# With all else that queues can


def test_a_purge_drops_what_would_leave(db: Any, window: cq.Window, clock: Clock) -> None:
    visit(db, window, "a")
    drain(db, window.name)
    visit(db, window, "a", once="op")
    taking = db.create_transaction()
    assert expiry._expire(taking, window.name, round(START + 100) * 1000, 1000) is not None
    cq.purge(db, window.name)
    assert refused(taking)
    visit(db, window, "b")
    drain(db, window.name)
    assert totals(db, window, pending=True) == {"b": 1}
    assert differences(db, window.name) == []

    clock.now = START + 100
    drain(db, window.name)
    assert dict(window.queue.scan(db)) == {}


def test_rebucketing_and_an_audit_go_on(db: Any, window: cq.Window, clock: Clock) -> None:
    cq.configure(db, window.name, audit=True)
    visit(db, window, "a")
    cq.rebucket(db, window.name, 5)
    visit(db, window, "a")
    assert totals(db, window, pending=True) == {"a": 2}
    drain(db, window.name)
    assert differences(db, window.name) == []

    clock.now = START + 100
    drain(db, window.name)
    assert dict(window.queue.scan(db)) == {}
    assert differences(db, window.name) == []


def test_another_width_counts_for_what_comes_then(db: Any, window: cq.Window, clock: Clock) -> None:
    visit(db, window, "old")
    cq.configure(db, window.name, window="10/5")
    with pytest.raises(ConfigurationConflict, match="window 10/5 -> 60/5"):
        total(db, window, "old")
    changed = cq.Window(window.name)
    visit(db, changed, "new")

    seen = {}
    for seconds in (14, 15, 64, 65):
        clock.now = START + seconds
        seen[seconds] = totals(db, changed, pending=True)
        drain(db, window.name)

    assert seen == {14: {"new": 1, "old": 1}, 15: {"old": 1}, 64: {"old": 1}, 65: {}}


def test_what_is_set_aside_and_added_again_leaves_once(db: Any, window: cq.Window, clock: Clock) -> None:
    visit(db, window, "a", 3)
    queue = QueueKeys(window.name)

    def move(tr: Any) -> None:
        """As a pass does whose observer fails."""
        for bounds in (queue.all_rows(), queue.notifications()):
            tr.clear_range(*bounds)
        set_aside(tr, queue, b"aa", KeyFailure("failed"), [3])

    transact(db, move)
    assert differences(db, window.name) == []
    with pytest.raises(InvalidData, match="add them again"):
        drop_aside(db, window.name)
    retry_aside(db, window.name)
    drain(db, window.name)
    assert total(db, window, "a") == 3

    clock.now = START + 100
    drain(db, window.name)
    assert dict(window.queue.scan(db)) == {}


def test_it_is_told_what_does_not_add_up(db: Any, window: cq.Window) -> None:
    visit(db, window, "a", 3)
    visit(db, window, "b", once="op")
    drain(db, window.name)
    transact(db, lambda tr: tr.clear(QueueKeys(window.name).value(b"aa")))
    transact(db, lambda tr: tr.clear_range(*WindowKeys(window.name).operations()))

    found = {each.kind: (each.key, each.repairable) for each in differences(db, window.name)}

    assert found == {"window-total": ("a", False), "window-operation": (None, True)}
    assert [each.kind for each in verify(db, window.name, repair=True) if each.repaired] == [
        "window-operation"
    ]
    assert {each.kind for each in differences(db, window.name)} == {"window-total"}


def test_an_emitter_adds_to_the_window(db: Any, window: cq.Window, clock: Clock) -> None:
    with cq.Emitter(window, db) as emitter:
        emitter.emit("a")
        emitter.emit_many({"a": 2, "b": 1})

    assert totals(db, window, pending=True) == {"a": 3, "b": 1}
    clock.now = START + 100
    drain(db, window.name)
    assert dict(window.queue.scan(db)) == {}


# Other sums


@pytest.fixture
def prices(db: Any, name: str) -> cq.Window:
    cq.configure(db, name, value=Decimal, window=(WIDTH, SLICE))
    return cq.Window(name)


def test_a_sum_of_decimals_leaves_without_rounding(db: Any, prices: cq.Window, clock: Clock) -> None:
    first, second = Decimal(f"1{'0' * 40}.01"), Decimal(f"0.{'7' * 60}")
    visit(db, prices, "a", first)
    clock.now = START + 30
    visit(db, prices, "a", second)
    drain(db, prices.name)
    assert Fraction(total(db, prices, "a")) == Fraction(first) + Fraction(second)

    clock.now = START + 65
    assert total(db, prices, "a") == second  # before a worker subtracts
    drain(db, prices.name)
    assert total(db, prices, "a", pending=False) == prices.queue.get(db.create_transaction(), "a") == second


def test_what_has_more_digits_together_than_a_sum_leaves_one_by_one(
    db: Any, prices: cq.Window, clock: Clock
) -> None:
    large, small = Decimal("1E+6000"), Decimal("1E-6000")
    visit(db, prices, "a", large)
    drain(db, prices.name)
    visit(db, prices, "a", small)
    with pytest.raises(InvalidData, match="more than 10,000 digits"):
        total(db, prices, "a")
    drain(db, prices.name)
    assert len(transact(db, lambda tr: read_aside(tr, prices.name))) == 1

    clock.now = START + 65
    assert take(db, prices.name) == (2, 1, 0)
    drain(db, prices.name)
    retry_aside(db, prices.name)
    drain(db, prices.name)
    retry_aside(db, prices.name)
    drain(db, prices.name)
    assert dict(prices.queue.scan(db)) == {}


def test_counters_leave_item_by_item_however_large_they_are_together(
    db: Any, name: str, clock: Clock
) -> None:
    cq.configure(db, name, value=dict, combiner="counter", window=(WIDTH, SLICE))
    window = cq.Window(name)
    both = [{f"{part}{number:08}": 1 for number in range(4_250)} for part in range(2)]
    for update in both:  # together they fit into a value, but not into one update
        visit(db, window, "a", update)
        drain(db, name)
    assert total(db, window, "a") == {**both[0], **both[1]}

    clock.now += WIDTH + SLICE
    assert total(db, window, "a") is None
    assert take(db, name) == (2, 1, 0)
    drain(db, name)
    assert dict(window.queue.scan(db)) == {}


@pytest.mark.parametrize(
    "update",
    [{"a": 0.5}, {"a": Decimal("inf")}, {"a": True}, {"a": "text"}, {"a": Decimal("nan")}],
)
def test_what_cannot_leave_exactly_is_refused(db: Any, name: str, update: Any) -> None:
    cq.configure(db, name, value=dict, combiner="counter", window=60)
    window = cq.Window(name)

    with pytest.raises(InvalidData, match=r"expected ints or finite decimals in a window|a dict of numbers"):
        visit(db, window, "a", update)
    with cq.Emitter(window, db) as emitter, pytest.raises(InvalidData):
        emitter.emit("a", update)
    assert totals(db, window, pending=True) == {}


# What is refused


def test_a_queue_that_was_made_without_a_window_gets_none(db: Any, name: str) -> None:
    cq.configure(db, name)
    with pytest.raises(ConfigurationConflict, match="window none -> 60/1"):
        cq.configure(db, name, window=60)
    with pytest.raises(ConfigurationConflict, match="window none"):
        visit(db, cq.Window(name), "a")


def test_updates_and_times_are_checked_before_anything_is_written(db: Any, window: cq.Window) -> None:
    with pytest.raises(InvalidData, match="type int"):
        visit(db, window, "a", 1.5)
    for at in ("now", float("nan"), float("inf"), True):
        with pytest.raises(InvalidData, match="a time in seconds"):
            visit(db, window, "a", at=at)
    assert totals(db, window, pending=True) == {}


@pytest.mark.parametrize(
    "given", [0, -1, "10", (600, 7), (10, 20), (1, 0.001), "600/", "600/10/1", (1, 1, 1)]
)
def test_windows_that_cannot_be(given: Any) -> None:
    with pytest.raises(InvalidConfiguration, match="such as 600/10"):
        WindowSpec.parse(given)


@given(st.integers(1, 10_000), st.integers(1, 100), st.integers(0, 1 << 50))
def test_all_that_is_younger_than_the_width_is_in_and_nothing_older_than_a_slice_more(
    step: int, slices: int, at: int
) -> None:
    spec = WindowSpec(step * slices * 10, step * 10).checked()
    due = spec.expires(at)

    assert at + spec.width < due <= at + spec.width + spec.slice
    assert WindowSpec.parse(str(spec)) == spec


# Everything at once, against a recount

KEYS = st.sampled_from("abcd")
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("add"), KEYS, st.integers(0, 7), st.integers(-80, 8), st.sampled_from(["", "x", "y"])
        ),
        st.tuples(st.just("pass"), st.integers(1, 40)),
        st.tuples(st.just("take"), st.integers(50, 400)),
        st.tuples(st.just("combine")),
        st.tuples(st.just("drain")),
    ),
    max_size=40,
)


DIGITS = Decimal(f"0.{'3' * 40}")
KINDS: dict[str, list[Any]] = {
    "int": [-2, -1, 0, 1, 2, 3, 1 << 70, -(1 << 63)],
    "decimal": [*map(Decimal, ("-1.50", "0.00", "1.50", "1E+30", "-1E+30")), DIGITS, -DIGITS, 1 + DIGITS],
    "dict": [
        {},
        {"x": 1},
        {"x": -1},
        {"x": 2, "y": DIGITS},
        {"y": -DIGITS},
        {"z": Decimal("0.1")},
        {3: 3},
        {"": 0},
    ],
}
"""{value type: the updates of a queue}."""


def recounted(value: str, updates: list[Any]) -> Any:
    """The total of these updates, computed with fractions; None for an empty total."""
    if value != "dict":
        return sum(map(Fraction, updates)) or None
    items = {item for update in updates for item in update}
    counts = {item: sum(Fraction(update.get(item, 0)) for update in updates) for item in items}
    return {item: count for item, count in counts.items() if count} or None


@pytest.mark.parametrize("value", KINDS)
@given(STEPS)
@settings(max_examples=10)
def test_totals_are_those_of_a_recount_at_any_time(value: str, steps: list[Any]) -> None:
    given: dict[str, Any] = {"value": value, "combiner": "counter" if value == "dict" else "sum"}
    given["audit"] = value == "int"
    with tempfile.TemporaryDirectory() as folder, set_clock() as clock:
        db: Any = Database(Path(folder) / "test.db", power_safe=False)
        spec = configured(db, "visits", window=(WIDTH, SLICE), buckets=2, **given).window
        assert spec is not None
        window, added, operations = cq.Window("visits"), [], set()
        for kind, *what in steps:
            if kind == "add":
                key, chosen, offset, operation = what
                number = KINDS[value][chosen]
                at = clock.now + offset
                said = visit(db, window, key, number, at=at, once=operation or None)
                due = spec.expires(round(at * 1000)) / 1000
                assert said == ("late" if due <= clock.now else "future" if offset > SLICE else "taken")
                if said == "taken" and operation not in operations:
                    added.append((key, number, due))
                    operations |= {operation} - {""}
            elif kind == "pass":
                clock.now += what[0]
            elif kind == "take":
                expire(db, "visits", limit_bytes=what[0])
            elif kind == "combine":
                combine_all(db, "visits")
            else:
                drain(db, "visits")
            inside: dict[str, list[Any]] = defaultdict(list)
            for key, number, due in added:
                if due > clock.now:
                    inside[key].append(number)
            recount = {key: recounted(value, numbers) for key, numbers in inside.items()}
            expected = {key: number for key, number in recount.items() if number is not None}
            assert totals(db, window, pending=True) == expected
            assert {key: total(db, window, key) for key in "abcd"} == {
                key: expected.get(key) for key in "abcd"
            }
        assert differences(db, "visits") == []
        clock.now += 1000
        drain(db, "visits")
        assert dict(window.queue.scan(db)) == {}
        db.close()
