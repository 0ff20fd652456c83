"""A window has exactly the updates of the last seconds, whatever workers have done, for every combiner."""

from __future__ import annotations

from decimal import Decimal
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cq
from cq.admin.queue_status import status
from cq.combiners import Combiner
from cq.config.window import WindowSpec
from cq.errors import (
    BacklogTooDeep,
    CodeMismatch,
    InvalidConfiguration,
    InvalidData,
    NotInStore,
    PendingUnreadable,
)
from cq.queue import Page
from cq.queue import pending as queued
from cq.store.transact import transact
from cq.testing import assert_drained, drain
from cq.windows import Window, WindowStatistics, slices
from tests.kit.clocks import START, Clock
from tests.kit.queues import add, add_at, values
from tests.kit.sketches import needs_sketches

WIDTH, SLICE = 60.0, 5.0


def window_of(db: Any, name: str, **given: Any) -> Window[Any, Any]:
    """A window of a new queue."""
    cq.configure(db, name, **{"window": (WIDTH, SLICE), "buckets": 2, **given})
    return Window(name)


def total(db: Any, window: Window[Any, Any], key: Any, **given: Any) -> Any:
    return transact(db, lambda tr: window.get(tr.snapshot, key, **given))


def totals(db: Any, window: Window[Any, Any], **given: Any) -> dict[Any, Any]:
    """All pages together."""

    def page(tr: Any, after: bytes | None) -> Page:
        return window.items(tr.snapshot, limit=2, after=after, **given)

    found: dict[Any, Any] = {}
    after = None
    while True:
        read = transact(db, partial(page, after=after))
        assert not found.keys() & dict(read.items).keys()
        found.update(read.items)
        after = read.continuation
        if after is None:
            return found


def kept(db: Any, name: str) -> int:
    """The number of values that the store has for a window."""
    return sum(len(values(db, f"{name}.{part}")) for part in ("slices", "window"))


# Which updates are in a window


@pytest.mark.parametrize("works", ["never", "until 30 s", "always"])
@pytest.mark.parametrize(
    ("combiner", "value", "first", "second", "both"),
    [
        ("sum", "int", 7, 2, 9),
        ("sum", "float", 1e17, 0.1, 1e17),  # a running total would lose the small number
        ("sum", "decimal", Decimal("0.1"), Decimal("0.2"), Decimal("0.3")),
        ("counter", "dict", {"x": 7}, {"y": 2}, {"x": 7, "y": 2}),
        ("maximum", "int", 7, 2, 7),
        ("union", "set", {7}, {2}, {7, 2}),
        ("first", "str", "a", "b", "a"),
    ],
)
def test_an_update_counts_until_a_width_after_its_slice(
    db: Any,
    name: str,
    clock: Clock,
    works: str,
    combiner: str,
    value: str,
    first: Any,
    second: Any,
    both: Any,
) -> None:
    """Also if workers are late, or dead."""
    window = window_of(db, name, combiner=combiner, value=value)
    clock.now = START + 2
    assert add_at(db, window, {"a": first}) == "taken"
    clock.now = START + 30
    add_at(db, window, {"a": second})
    if works != "never":
        drain(db, name)
        assert totals(db, window) == {"a": both}

    seen = {}
    for seconds in (30, 62, 64.9, 65, 94.9, 95, 1000):
        clock.now = START + seconds
        if works == "always":
            drain(db, name)
        pending = works == "never"
        seen[seconds] = total(db, window, "a", pending=pending)
        assert totals(db, window, pending=pending) == ({} if seen[seconds] is None else {"a": seen[seconds]})

    assert seen == {30: both, 62: both, 64.9: both, 65: second, 94.9: second, 95: None, 1000: None}
    for _ in range(2):  # a merged window lists a key for a while after its latest update was combined
        drain(db, name)
        clock.now += 1000
    drain(db, name)
    assert kept(db, name) == 0
    assert_drained(db, name)


@pytest.mark.parametrize("combiner", ["sum", "maximum"])
def test_late_and_future_updates_are_counted_and_not_added(
    db: Any, name: str, clock: Clock, combiner: str
) -> None:
    window, now = window_of(db, name, combiner=combiner), START + 1_000
    clock.now = now
    offsets = (0, 59, 60, 60.1, 70, 10_000_000_000, -5, -5.1)
    said = [add_at(db, window, {"a": 1}, now - offset) for offset in offsets]

    assert said == ["taken", "taken", "taken", "late", "late", "late", "taken", "future"]
    assert total(db, window, "a", pending=True) == (4 if combiner == "sum" else 1)
    statistics = transact(db, window.statistics)
    assert (statistics.late, statistics.future) == (3, 1)
    assert status(db, name)[0].window == statistics
    assert add_at(db, Window(name, late=30), {"a": 1}, now - 31) == "late"


@pytest.mark.parametrize("now", [float("nan"), float("inf"), 1e18, "noon"])
def test_a_present_that_is_no_time_is_refused(db: Any, name: str, now: Any) -> None:
    window = window_of(db, name)
    calls: list[Any] = [
        lambda tr: window.add(tr, {"a": 1}, now=now),
        lambda tr: window.add_each(tr, [("a", 1, None)], now=now),
        lambda tr: window.get(tr, "a", now=now),
    ]
    for call in calls:
        with pytest.raises(InvalidData, match="expected a time in seconds since 1970"):
            transact(db, call)


@pytest.mark.parametrize("updates", [[("a", 1)], {"a": 1}, [5]])
def test_updates_without_times_are_refused(db: Any, name: str, updates: Any) -> None:
    window = window_of(db, name)
    with pytest.raises(cq.errors.WrongType, match=r"as in `add_each\(tr, \[\(key, update, at\)\]\)`"):
        transact(db, lambda tr: window.add_each(tr, updates))


@pytest.mark.parametrize(("combiner", "due"), [("sum", 65), ("maximum", 75)])
def test_statistics_say_how_late_workers_are(
    db: Any, name: str, clock: Clock, combiner: str, due: int
) -> None:
    """Slices that reads merge are deleted two slices later."""
    window = window_of(db, name, combiner=combiner)
    add_at(db, window, {"a": 1})
    drain(db, name)
    clock.now = START + due - 1
    assert transact(db, window.statistics) == WindowStatistics(0, 0, 0.0)
    clock.now = START + due + 7
    assert transact(db, window.statistics).overdue_seconds == 7
    drain(db, name)
    assert transact(db, window.statistics).overdue_seconds == 0


def test_an_operation_counts_once_in_the_slice_of_its_first_try(db: Any, name: str, clock: Clock) -> None:
    window = window_of(db, name)
    add_at(db, window, {"a": 2}, once="op")
    clock.now = START + 30
    add_at(db, window, {"a": 5}, once="op")
    assert total(db, window, "a", pending=True) == 2
    for seconds, expected in ((30, 2), (65, None), (100, None)):
        clock.now = START + seconds
        assert total(db, window, "a", pending=True) == expected
        drain(db, name)
        assert total(db, window, "a") == expected


def test_updates_of_different_times_are_added_together(db: Any, name: str, clock: Clock) -> None:
    window = window_of(db, name, key=(str, int))
    clock.now = START + 100
    updates = [
        (("a", 1), 1, None),
        (("a", 1), 2, START + 50),
        (("a", 2), 4, START),
        (("b", 1), 8, START + 106),
    ]
    assert transact(db, partial(window.add_each, updates=updates)) == ["taken", "taken", "late", "future"]
    with cq.Emitter(window, db) as emitter:
        emitter.emit(("b", 1), 16)
    add(db, name, {("b", 1): 32})

    assert totals(db, window, pending=True) == {("a", 1): 3, ("b", 1): 48}
    assert totals(db, window) == {}
    drain(db, name)
    assert totals(db, window) == {("a", 1): 3, ("b", 1): 48}
    clock.now = START + 115
    many = transact(db, lambda tr: window.get_many(tr.snapshot, [("a", 1), ("b", 1), ("c", 1)]))
    assert many == {("a", 1): 1, ("b", 1): 48, ("c", 1): None}
    assert (transact(db, window.statistics).late, transact(db, window.statistics).future) == (1, 1)


# Values


@pytest.mark.parametrize(
    ("given", "updates", "expected"),
    [
        ({}, [-3, 1], -2),
        ({}, [-3, 3], None),
        ({"value": "float"}, [-0.5, 0.5], None),
        ({"value": "any"}, [1, Decimal("0.5")], Decimal("1.5")),
        ({"value": "decimal"}, [Decimal(f"1{'0' * 40}.01"), Decimal("0.7")], Decimal(f"1{'0' * 40}.71")),
        ({"combiner": "counter", "value": "dict"}, [{"x": 1, "y": Decimal("0.1")}, {"x": -1}], {"y": Decimal("0.1")}),
        ({"combiner": "counter", "value": "dict"}, [{"x": 1}, {"x": -1}], None),
        ({"combiner": "maximum"}, [-5, 0], 0),
        ({"combiner": "minimum"}, [0, -5], -5),
        ({"combiner": "maximum", "value": "float"}, [-0.5, -1.5], -0.5),
        ({"combiner": "union", "value": "set"}, [set(), set()], None),
    ],
)  # fmt: skip
def test_zero_and_negative_values(
    db: Any, name: str, clock: Clock, given: Any, updates: Any, expected: Any
) -> None:
    """In one slice and in two, before and after passes; a later update that is alone in the window is not changed."""
    window = window_of(db, name, **given)
    everything = {} if expected is None else dict.fromkeys("ab", expected)
    for update in updates:
        add_at(db, window, {"a": update})
        add_at(db, window, {"b": update}, clock.now - 10 * updates.index(update))
    assert totals(db, window, pending=True) == everything
    drain(db, name)
    assert totals(db, window) == everything
    assert total(db, window, "a") == total(db, window, "b") == expected
    clock.now = START + 70
    add_at(db, window, {"a": updates[0]})
    drain(db, name)
    assert totals(db, window) == ({} if not updates[0] and type(updates[0]) is set else {"a": updates[0]})


def test_values_larger_than_updates_leave_the_window(db: Any, name: str, clock: Clock) -> None:
    window = window_of(db, name, combiner="counter", value="dict")
    both = [{f"{part}{number:08}": 1 for number in range(4_250)} for part in range(2)]
    for update in both:
        add_at(db, window, {"a": update})
        drain(db, name)
    assert total(db, window, "a") == {**both[0], **both[1]}
    clock.now = START + 65
    assert total(db, window, "a") is None
    drain(db, name)
    assert kept(db, name) == 0
    assert_drained(db, name)


@needs_sketches
def test_sketches_have_a_window(db: Any, name: str, clock: Clock) -> None:
    window = window_of(db, name, combiner="distinct")
    add_at(db, window, {"page": "ann"})
    clock.now = START + 30
    add_at(db, window, {"page": ["ann", "bob"]})
    drain(db, name)
    assert total(db, window, "page").estimate == 2
    clock.now = START + 70
    add_at(db, window, {"page": "cid"})
    assert total(db, window, "page").estimate == 2
    assert total(db, window, "page", pending=True).estimate == 3
    clock.now = START + 95
    assert total(db, window, "page", pending=True).estimate == 1


# Reads that are refused


def test_reads_refuse_what_is_too_much_for_them(
    db: Any, name: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = window_of(db, name)
    for number in range(3):
        add_at(db, window, {"a": 1, f"k{number}": 1})
    with monkeypatch.context() as small:
        small.setattr(queued, "PENDING_BYTES", 50)
        with pytest.raises(BacklogTooDeep, match="run more workers"):
            total(db, window, "a", pending=True)
        assert total(db, window, "a") is None
    drain(db, name)

    monkeypatch.setattr(slices, "MAX_OVERDUE", 3)
    clock.now = START + 64
    assert total(db, window, "a") == 3
    clock.now = START + 65
    with pytest.raises(BacklogTooDeep, match="more than 3 slices are overdue"):
        total(db, window, "a")


@pytest.mark.parametrize("combiner", ["sum", "maximum"])
def test_pending_reads_after_an_add_in_the_same_transaction_are_refused(
    db: Any, name: str, combiner: str
) -> None:
    window = window_of(db, name, combiner=combiner)

    def both(tr: Any, pending: bool) -> Any:
        window.add(tr, {"a": 1})
        return window.get(tr, "a", pending=pending), window.items(tr, pending=pending).items

    assert transact(db, lambda tr: both(tr, False)) == (None, [])
    with pytest.raises(PendingUnreadable):
        transact(db, lambda tr: both(tr, True))


@pytest.mark.parametrize(
    ("combiner", "value", "good", "bad", "message"),
    [
        ("sum", "float", 1.0, 1, "type float"),
        ("sum", "decimal", Decimal(1), Decimal("inf"), "a value that CBOR gives back"),
        ("counter", "dict", {"x": 1}, {"x": 0.5}, "ints or finite decimals in a window"),
        ("counter", "dict", {"x": 1}, {"x": Decimal("nan")}, "a dict of numbers"),
        ("maximum", "float", 1.0, float("nan"), "neither NaN"),
    ],
)
def test_updates_and_times_are_checked_before_anything_is_written(
    db: Any, name: str, combiner: str, value: str, good: Any, bad: Any, message: str
) -> None:
    window = window_of(db, name, combiner=combiner, value=value)
    with pytest.raises(InvalidData, match=message):
        add_at(db, window, {"a": good, "b": bad})
    with pytest.raises(InvalidData, match=message):
        transact(db, lambda tr: window.add_each(tr, [("a", good, None), ("b", bad, None)]))
    with cq.Emitter(window, db) as emitter, pytest.raises(InvalidData, match=message):
        emitter.emit("b", bad)
    for at in ("now", float("nan"), float("inf"), True):
        with pytest.raises(InvalidData, match="a time in seconds"):
            add_at(db, window, {"a": good}, at)  # type: ignore[arg-type]
    assert totals(db, window, pending=True) == {}


def test_a_window_that_there_is_not(db: Any, name: str) -> None:
    cq.configure(db, name)
    with pytest.raises(NotInStore, match="has neither a window nor a roll-up"):
        add_at(db, Window(name), {"a": 1})
    cq.configure(db, name, rollup="1m:1h")
    with pytest.raises(NotInStore, match="has no window: run `cq configure"):
        total(db, Window(name), "a")


def test_a_window_of_an_own_combiner_needs_it(db: Any, name: str) -> None:
    cq.configure(db, name, value=str, combiner=JOINED, window=60)
    with pytest.raises(CodeMismatch, match="give it as CombineQueue"):
        total(db, Window(name), "a")
    with pytest.raises(InvalidData, match="expected a key of type str, got: 1"):
        total(db, Window(cq.CombineQueue(name, combiner=JOINED)), 1)


@pytest.mark.parametrize(
    "given", [0, -1, "0.005", (600, 7), (10, 20), (1, 0.001), "600/", "600/10/1", (1, 1, 1)]
)
def test_windows_that_cannot_be(given: Any) -> None:
    with pytest.raises(InvalidConfiguration, match="such as 10m/10s"):
        WindowSpec.parse(given)


@given(st.integers(1, 10_000), st.integers(1, 100), st.integers(0, 1 << 50))
def test_a_window_has_all_of_its_width_and_at_most_a_slice_more(step: int, slices: int, at: int) -> None:
    spec = WindowSpec(step * slices * 10, step * 10).checked()
    due = spec.expires(at)

    assert at + spec.width < due <= at + spec.width + spec.slice
    assert WindowSpec.parse(str(spec)) == spec
    for now in (at, due - 1, due):
        assert (
            spec.is_over(spec.period_of(at), now)
            == (spec.period_of(at) not in spec.ends(now))
            == (now == due)
        )


JOINED = Combiner("joined", 1, lambda key, values: "".join(values))
"""It does not commute."""
