"""A roll-up has each update in its minute, hour and day, once, and reads them by slots."""

from __future__ import annotations

import io
import json
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

import cq
from cq import combiners
from cq.app import App
from cq.combiners import BUILT_IN
from cq.encoding import codec
from cq.encoding.codec import DELETE
from cq.errors import CodeMismatch, InvalidData, NotInStore, QueueFull, TooLarge
from cq.intake.documents import Documents
from cq.intake.json_lines import add_jsonl
from cq.keys import QueueKeys
from cq.observers.verify.queue import verification
from cq.queue.limits import Full
from cq.queue.set_aside import read_aside
from cq.store.transact import transact
from cq.testing import drain
from tests.clocks import START, Clock, set_clock
from tests.helpers import add, get, nothing_queued, put, stored
from tests.queue.test_combine_queue import concatenation

LEVELS = "1m:forever,1h:forever,1d:forever"
NOW = int(START)
MINUTE, HOUR, DAY = (NOW // each * each for each in (60, 3600, 86_400))


@pytest.fixture
def clock() -> Iterator[Clock]:
    with set_clock() as clock:
        yield clock


def configure(db: Any, name: str, **settings: Any) -> cq.Series:
    return cq.Series(cq.configure(db, name, **{"rollup": LEVELS, **settings}))


def values(db: Any, name: str) -> dict[Any, Any]:
    return dict(cq.CombineQueue(name).scan(db))


def add_at(db: Any, series: cq.Series, updates: Any, at: float | None, **given: Any) -> str:
    return str(transact(db, lambda tr: series.add(tr, updates, at=at, **given)))


def read(db: Any, name: str, key: Any = "a", **given: Any) -> list[tuple[int, Any]]:
    return transact(db, lambda tr: cq.CombineQueue(name).series(tr.snapshot, key, **given))


LARGE: dict[str, list[Any]] = {
    "union": [{f"{kind}{number:06}" for number in range(6_000)} for kind in "ab"],
    "counter": [{f"{kind}{number:05}": 1 for number in range(5_900)} for kind in "ab"],
}
"""Two updates of 48 kB, whose combination is larger than an update may be, and fits into a value."""


@pytest.mark.parametrize("combiner", LARGE)
@pytest.mark.parametrize("is_drained_between", [False, True])
@pytest.mark.usefixtures("clock")
def test_a_difference_larger_than_an_update_reaches_all_levels(
    db: Any, name: str, combiner: str, is_drained_between: bool
) -> None:
    series = configure(db, name, combiner=combiner, value="set" if combiner == "union" else "dict")
    for update in LARGE[combiner]:
        add_at(db, series, {"a": update}, NOW)
        if is_drained_between:
            drain(db)
    drain(db)

    value = BUILT_IN[combiner].combine("a", LARGE[combiner])
    assert values(db, name) == {"a": value}
    for level, start in (("1m", MINUTE), ("1h", HOUR), ("1d", DAY)):
        assert values(db, f"{name}.{level}") == {("a", start): value}
        assert transact(db, lambda tr: read_aside(tr, f"{name}.{level}")) == []  # noqa: B023 - runs at once


@pytest.mark.usefixtures("clock")
def test_derived_differences_as_large_as_two_values_would_be_set_aside_undivided(
    db: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above would notice: this variant is broken on purpose."""
    monkeypatch.setattr(combiners, "_parts", lambda update: [update])
    series = configure(db, name, combiner="union", value="set")
    for update in LARGE["union"]:
        add_at(db, series, {"a": update}, NOW)
    drain(db)

    assert values(db, f"{name}.1h") == {}
    assert transact(db, lambda tr: read_aside(tr, f"{name}.1m"))[0].error.endswith(
        "exceeds the limit of 90,000"
    )


UPDATES: dict[str, tuple[str, list[Any]]] = {
    "sum": ("int", [1, -1, 5, 5, -10]),
    "minimum": ("int", [5, 3, 9]),
    "maximum": ("float", [5.0, 3.0, 9.0]),
    "last": ("any", [1, DELETE, 2, 3, DELETE]),
    "first": ("str", ["b", "a"]),
    "union": ("set", [{1}, {2, 3}, {1}, set()]),
    "counter": ("dict", [{"x": 1}, {"x": -1, "y": 2}, {"y": 1}]),
}


@pytest.mark.parametrize("combiner", UPDATES)
@pytest.mark.usefixtures("clock")
def test_every_level_has_the_combination_of_its_updates(db: Any, name: str, combiner: str) -> None:
    value, updates = UPDATES[combiner]
    series = configure(db, name, combiner=combiner, value=value, buckets=2)
    added: defaultdict[Any, list[Any]] = defaultdict(list)
    for turn, update in enumerate(updates * 2):
        at = NOW - (0, 30, 70, 4000, 90_000)[turn % 5]
        assert add_at(db, series, {"a": update, "b": update}, at) == "taken"
        for level, period in (("1m", 60), ("1h", 3600), ("1d", 86_400)):
            for key in "ab":
                added[level, (key, at // period * period)].append(update)
        if turn % 3:
            drain(db)
    drain(db)
    code = BUILT_IN[combiner]
    expected: dict[str, dict[Any, Any]] = {"1m": {}, "1h": {}, "1d": {}}
    for (level, key), some in added.items():
        combined = code.combine(key, some)
        if not code.is_empty(combined):
            expected[level][key] = combined
    for level, found in expected.items():
        assert values(db, f"{name}.{level}") == found
        assert nothing_queued(db, f"{name}.{level}")


@pytest.mark.usefixtures("clock")
def test_decimals_are_derived_exactly(db: Any, name: str) -> None:
    series = configure(db, name, value="decimal")
    for number in ("1e30", "1e-30", "-1e30"):
        add_at(db, series, {"a": Decimal(number)}, NOW)
        drain(db)
    assert values(db, f"{name}.1d") == {("a", DAY): Decimal("1e-30")}


@pytest.mark.usefixtures("clock")
def test_an_add_counts_now_and_an_operation_once(db: Any, name: str) -> None:
    configure(db, name, key=(str, int), audit=True)
    for _ in range(3):
        add(db, name, {("a", 7): 2}, once="x")
    drain(db)
    assert values(db, name) == {("a", 7): 2}
    assert values(db, f"{name}.1m") == {("a", 7, MINUTE): 2}
    assert values(db, f"{name}.1d") == {("a", 7, DAY): 2}


@pytest.mark.usefixtures("clock")
def test_a_combiner_of_the_application_needs_no_code_for_the_levels(db: Any, name: str) -> None:
    app = App()
    app.queue(name, combiner=concatenation)
    app.configure(db, name, value=list, rollup=LEVELS)
    for text in "abc":
        add(db, name, {"a": [text]})
    drain(db, app=app)
    for level, start in (("1m", MINUTE), ("1h", HOUR), ("1d", DAY)):
        assert values(db, f"{name}.{level}") == {("a", start): ["a", "b", "c"]}
    with pytest.raises(CodeMismatch):
        read(db, name, last="2h", by="2h")
    own = cq.CombineQueue(name, combiner=concatenation)
    assert transact(db, lambda tr: own.merged_series(tr, "a", last="2h")) == ["a", "b", "c"]


@pytest.mark.usefixtures("clock")
def test_late_and_future_updates_are_counted_and_not_added(db: Any, name: str) -> None:
    configure(db, name)
    series = cq.Series(name, late="1h")
    assert add_at(db, series, {"a": 1, "b": 1}, NOW - 3601) == "late"
    assert add_at(db, series, {"a": 1}, NOW + 61) == "future"
    assert add_at(db, series, {"a": 1}, NOW - 3600) == "taken"
    assert add_at(db, series, {"a": 1}, NOW + 60) == "taken"
    assert add_at(db, series, {"a": 1}, None) == "taken"
    assert add_at(db, cq.Series(name), {"a": 1}, 0) == "taken"  # kept for ever, so never late
    drain(db)
    assert values(db, name) == {"a": 4}
    assert sum(values(db, f"{name}.1d").values()) == 4
    found = transact(db, series.statistics)
    assert (found.late, found.future, found.overdue_seconds) == (2, 1, 0)


def test_an_update_is_late_as_soon_as_its_period_is_due(db: Any, name: str) -> None:
    series = configure(db, name, rollup="1m:10m,1h:forever")

    assert add_at(db, series, {"a": 1}, MINUTE, now=MINUTE + 600) == "late"
    assert add_at(db, series, {"a": 1}, MINUTE + 59.9, now=MINUTE + 600) == "late"
    assert add_at(db, series, {"a": 1}, MINUTE, now=MINUTE + 599.9) == "taken"


@pytest.mark.parametrize("at", ["now", float("nan"), 1e20])
def test_a_wrong_time_is_refused(db: Any, name: str, at: Any) -> None:
    series = configure(db, name)
    with pytest.raises(InvalidData):
        add_at(db, series, {"a": 1}, at)


def test_a_refused_add_has_written_nothing(db: Any, name: str) -> None:
    """Neither if only a level refuses it because its keys are longer, nor if the queue is full with its levels."""
    queue = cq.configure(db, name, rollup=LEVELS)
    config = stored(db, (b"cq/q/", b"cq/q0"))

    def too_large(tr: Any) -> None:
        with pytest.raises(TooLarge):
            queue.add(tr, {"a" * 7_996: 1})

    transact(db, too_large)
    assert stored(db, (b"cq/q/", b"cq/q0")) == config
    cq.limit(db, name, size=1)
    put(db, {QueueKeys(name).full: Full("raise", "too much").to_bytes()})
    config = stored(db, (b"cq/q/", b"cq/q0"))

    def full(tr: Any) -> None:
        with pytest.raises(QueueFull):
            queue.add(tr, {"a": 1})

    transact(db, full)
    assert stored(db, (b"cq/q/", b"cq/q0")) == config


@pytest.mark.usefixtures("clock")
def test_emitters_and_documents_are_rolled_up(db: Any, name: str) -> None:
    queue = cq.configure(db, name, rollup=LEVELS)
    with cq.Emitter(cq.Series(queue), db) as emitter:
        emitter.emit("a", 2)
    Documents(queue).put(db, b"d", {"a": 5})
    Documents(queue).put(db, b"d", {"a": 3})
    drain(db)
    assert get(db, name, "a") == 5
    assert values(db, f"{name}.1d") == {("a", DAY): 5}


@pytest.mark.usefixtures("clock")
def test_a_series_has_a_slot_for_each_part_of_the_span(db: Any, name: str) -> None:
    series = configure(db, name)
    for at, number in ((NOW, 1), (NOW - 60, 10), (NOW - 3600, 100), (NOW - 7200, 1000)):
        add_at(db, series, {"a": number}, at)
    drain(db)
    hours = [(HOUR - 7200, 1000), (HOUR - 3600, 100), (HOUR, 11)]
    assert read(db, name, last="2h", by="1h") == hours
    assert read(db, name, last=7200, by=timedelta(hours=1)) == hours
    assert read(db, name, last="3h", by="1h", fill=0) == [(HOUR - 10_800, 0), *hours]
    assert read(db, name, last="1h", by="1h", until=HOUR) == [(HOUR - 3600, 100)]
    minutes = read(db, name, last="2m")
    assert minutes == [(MINUTE - 120, None), (MINUTE - 60, 10), (MINUTE, 1)]
    halves = read(db, name, last="1m", by="2m")  # two minutes are combined
    assert sum(value or 0 for _, value in halves) == sum(
        value or 0 for start, value in minutes[-len(halves) * 2 :]
    )
    queue = cq.CombineQueue(name)
    many = transact(db, lambda tr: queue.series_of_many(tr, ["a", "b"], last="2h", by="1h", fill=0))
    assert many == {"a": hours, "b": [(start, 0) for start, _ in hours]}
    assert transact(db, lambda tr: queue.merged_series(tr, "a", last="2h", by="1h")) == 1111
    assert transact(db, lambda tr: queue.merged_series(tr, "a", last="1m")) == 11
    assert transact(db, lambda tr: queue.merged_series(tr, "b", last="1m")) is None
    assert len(read(db, name, last="10d")) == 11


@pytest.mark.usefixtures("clock")
def test_a_series_that_cannot_be_read_says_what_can(db: Any, name: str) -> None:
    configure(db, name)
    for given, message in (
        ({"last": "30d", "by": "1m"}, "give by='1h'"),
        ({"last": "10d", "by": "90s"}, "has no slots of 90s over 10d"),
        ({"last": "20000d", "by": "1d"}, "give a shorter span"),
        ({"last": "1d", "until": "now"}, "a time"),
    ):
        with pytest.raises(InvalidData, match=message):
            read(db, name, **given)
    with pytest.raises(InvalidData, match="expected a key of type str"):
        read(db, name, 5, last="1h")
    cq.configure(db, f"{name}b")
    with pytest.raises(NotInStore, match="has no roll-up"):
        read(db, f"{name}b", last="1h")
    with pytest.raises(NotInStore, match="has no roll-up"):
        add_at(db, cq.Series(f"{name}b"), {"a": 1}, None)


@pytest.mark.usefixtures("clock")
def test_updates_of_different_times_are_added_together(db: Any, name: str) -> None:
    configure(db, name)
    series = cq.Series(name, late="1d")
    updates = [("a", 1, NOW - 60), ("b", 2, None), ("a", 4, NOW), ("a", 8, 0), ("a", 16, NOW + 100)]
    found = transact(db, lambda tr: series.add_each(tr, updates, "once"))
    assert found == {"taken": 3, "late": 1, "future": 1}
    transact(db, lambda tr: series.add_each(tr, updates[:1], "once"))
    drain(db)
    assert values(db, name) == {"a": 5, "b": 2}
    minutes = {("a", MINUTE - 60): 1, ("b", MINUTE): 2, ("a", MINUTE): 4}
    assert values(db, f"{name}.1m") == minutes
    counted = transact(db, series.statistics)
    assert (counted.late, counted.future) == (1, 1)


@pytest.mark.usefixtures("clock")
def test_lines_have_the_times_of_their_updates(db: Any, name: str) -> None:
    queue = cq.configure(db, name, rollup=LEVELS)
    moment = datetime.fromtimestamp(NOW - 3600, UTC)
    lines = [
        {"key": "a", "update": 1},
        {"key": "a", "update": 2, "at": NOW - 7200},
        {"key": "a", "update": 4, "at": moment.isoformat()},
        {"key": "a", "update": 8, "at": moment.replace(tzinfo=None).isoformat()},
    ]
    text = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
    for _ in range(2):
        add_jsonl(db, queue, io.BytesIO(text), name=b"file")
    add_jsonl(db, queue, io.BytesIO(text))
    drain(db)
    assert read(db, name, last="2h", by="1h") == [(HOUR - 7200, 4), (HOUR - 3600, 24), (HOUR, 2)]
    for wrong in ("soon", "NaN", [1], True, 1e300):
        line = json.dumps({"key": "a", "update": 1, "at": wrong}).encode()
        with pytest.raises(InvalidData, match="a time in seconds since 1970"):
            add_jsonl(db, queue, io.BytesIO(line))
    other = cq.configure(db, f"{name}-other")
    with pytest.raises(InvalidData, match="has no roll-up"):
        add_jsonl(db, other, io.BytesIO(text.splitlines()[1]))


def test_periods_expire_and_stay_in_the_longer_ones(db: Any, name: str, clock: Clock) -> None:
    series = configure(db, name, rollup="1m:10m,1h:3h,1d:forever", buckets=3)
    for number in range(300):
        clock.now = START + 60 * number
        assert add_at(db, series, {"a": 1, "b": 2}, clock.now - number % 300) == "taken"
        if number % 20 == 0:
            drain(db)
    drain(db)
    minutes, hours = values(db, f"{name}.1m"), values(db, f"{name}.1h")
    assert all(start + 600 > clock.now for _, start in minutes)
    assert all(start + 10_800 > clock.now for _, start in hours)
    assert len(minutes) >= 8
    assert len(hours) in (6, 8)
    days = values(db, f"{name}.1d")
    assert {key: sum(days[each] for each in days if each[0] == key) for key in "ab"} == {"a": 300, "b": 600}
    now = int(clock.now)
    assert add_at(db, series, {"a": 1}, now - 661) == "late"
    starts = [start for start, _ in read(db, name, last="10m", by="1m")]
    assert starts == [*range(now // 60 * 60 - 540, now + 1, 60)]  # the first that cannot have expired
    with pytest.raises(InvalidData, match="has no slots of 1m over 20m"):
        read(db, name, last="20m", by="1m")
    assert len(read(db, name, last="2h")) == 3
    assert sum(value for _, value in read(db, name, last="10d", fill=0)) == 300


@pytest.mark.parametrize("combiner", ["sum", "maximum"])
def test_a_level_that_differs_from_the_shorter_periods_is_found(
    db: Any, name: str, clock: Clock, combiner: str
) -> None:
    series = configure(db, name, combiner=combiner, rollup="1m:2h,1h:forever")
    for number in range(200):
        clock.now = START + 60 * number
        add_at(db, series, {"a": number + 1}, None)
        if number % 30 == 0:
            drain(db)
    assert "queued" in notes(db, f"{name}.1m")
    drain(db)
    level = f"{name}.1m"
    assert not notes(db, level)
    queue, hour = QueueKeys(f"{name}.1h"), ("a", int(clock.now) // 3600 * 3600)
    put(db, {queue.value(codec.encode(list(hour))): codec.encode(7_777)})
    (found,) = verification(db, level).run()
    assert (found.kind, found.key) == ("level-value", hour)
    assert "7777 in queue" in found.what


@pytest.mark.parametrize(
    "then", ["1m:1d,1h:2d,1d:forever", "1m:forever,1h:forever,1d:forever", "1m:5m,1h:2h,1d:2d"]
)
def test_a_change_of_retentions_makes_no_differences(db: Any, name: str, clock: Clock, then: str) -> None:
    series = configure(db, name, rollup="1m:10m,1h:3h,1d:forever", buckets=2)

    def go_on(first: int, end: int) -> None:
        for number in range(first, end):
            clock.now = START + 60 * number
            add_at(db, series, {"a": 1}, clock.now)
            if number % 20 == 0:
                drain(db)
        drain(db)

    go_on(0, 300)
    cq.configure(db, name, rollup=then)
    for end in (300, 500):
        go_on(300, end)
        for level in ("1m", "1h"):
            assert not notes(db, f"{name}.{level}")
    if not then.startswith("1m:5m"):  # the last hours are whole, and so they are compared
        queue, hour = QueueKeys(f"{name}.1h"), int(clock.now) // 3600 * 3600
        put(db, {queue.value(codec.encode(["a", hour])): codec.encode(7_777)})
        assert "level-value" in {each.kind for each in verification(db, f"{name}.1m").run()}


def notes(db: Any, name: str) -> str:
    """Why checks were skipped."""
    checked = verification(db, name)
    assert not list(checked.run())
    return "; ".join(checked.notes)
