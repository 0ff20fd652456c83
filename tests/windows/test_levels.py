"""A roll-up has each update in its minute, hour and day, and reads them by slots; beside a window and an expiry."""

from __future__ import annotations

import io
import json
import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

import cq
from cq.app import App
from cq.encoding import codec
from cq.errors import CodeMismatch, InvalidData, NotInStore
from cq.intake.documents import Documents
from cq.intake.json_lines import add_jsonl
from cq.keys import QueueKeys
from cq.observers.verify.queue import verification
from cq.queue.set_aside import drop_aside
from cq.store.transact import transact
from cq.testing import drain
from cq.windows import Window
from tests.kit.clocks import START, Clock
from tests.kit.observing import concatenation
from tests.kit.queues import add, add_at, combine_all, get, put, values

LEVELS = "1m:forever,1h:forever,1d:forever"
NOW = int(START)
MINUTE, HOUR, DAY = (NOW // each * each for each in (60, 3600, 86_400))


def configure(db: Any, name: str, **settings: Any) -> Window[Any, Any]:
    return Window(cq.configure(db, name, **{"rollup": LEVELS, **settings}))


def read(db: Any, name: str, key: Any = "a", **given: Any) -> list[tuple[int, Any]]:
    return transact(db, lambda tr: cq.CombineQueue(name).series(tr.snapshot, key, **given))


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


def test_an_update_is_late_as_soon_as_its_period_is_due(db: Any, name: str) -> None:
    window = configure(db, name, rollup="1m:10m,1h:forever")

    assert add_at(db, window, {"a": 1}, MINUTE, now=MINUTE + 600) == "late"
    assert add_at(db, window, {"a": 1}, MINUTE + 59.9, now=MINUTE + 600) == "late"
    assert add_at(db, window, {"a": 1}, MINUTE, now=MINUTE + 599.9) == "taken"


@pytest.mark.usefixtures("clock")
def test_emitters_and_documents_are_rolled_up(db: Any, name: str) -> None:
    queue = cq.configure(db, name, rollup=LEVELS)
    with cq.Emitter(Window(queue), db) as emitter:
        emitter.emit("a", 2)
    Documents(queue).put(db, b"d", {"a": 5})
    Documents(queue).put(db, b"d", {"a": 3})
    drain(db)
    assert get(db, name, "a") == 5
    assert values(db, f"{name}.1d") == {("a", DAY): 5}


@pytest.mark.usefixtures("clock")
def test_a_series_has_a_slot_for_each_part_of_the_span(db: Any, name: str) -> None:
    window = configure(db, name)
    for at, number in ((NOW, 1), (NOW - 60, 10), (NOW - 3600, 100), (NOW - 7200, 1000)):
        add_at(db, window, {"a": number}, at)
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
    with pytest.raises(NotInStore, match="has neither a window nor a roll-up"):
        add_at(db, Window(f"{name}b"), {"a": 1}, None)


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
    window = configure(db, name, rollup="1m:10m,1h:3h,1d:forever", buckets=3)
    for number in range(300):
        clock.now = START + 60 * number
        assert add_at(db, window, {"a": 1, "b": 2}, clock.now - number % 300) == "taken"
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
    assert add_at(db, window, {"a": 1}, now - 661) == "late"
    starts = [start for start, _ in read(db, name, last="10m", by="1m")]
    assert starts == [*range(now // 60 * 60 - 540, now + 1, 60)]  # the first that cannot have expired
    with pytest.raises(InvalidData, match="has no slots of 1m over 20m"):
        read(db, name, last="20m", by="1m")
    assert len(read(db, name, last="2h")) == 3
    assert sum(value for _, value in read(db, name, last="10d", fill=0)) == 300


def test_a_series_leaves_a_slot_out_from_the_moment_at_which_a_period_of_it_is_due(
    db: Any, name: str, clock: Clock
) -> None:
    window = configure(db, name, rollup="1m:10m")
    begin = NOW // 300 * 300
    for minute in range(5):
        clock.now = begin + 60 * minute
        add_at(db, window, {"a": 1}, None)
    drain(db)
    for past, slots in (
        (599.9, [(begin, 5), (begin + 300, None)]),
        (600.5, [(begin + 300, None), (begin + 600, None)]),
    ):
        clock.now = begin + past
        assert read(db, name, last="10m", by="5m") == slots


@pytest.mark.parametrize("combiner", ["sum", "maximum"])
def test_a_level_that_differs_from_the_shorter_periods_is_found(
    db: Any, name: str, clock: Clock, combiner: str
) -> None:
    window = configure(db, name, combiner=combiner, rollup="1m:2h,1h:forever")
    for number in range(200):
        clock.now = START + 60 * number
        add_at(db, window, {"a": number + 1}, None)
        if number % 30 == 0:
            drain(db)
    combine_all(db, name)
    assert "queued" in notes(db, f"{name}.1m")
    drain(db)
    level = f"{name}.1m"
    assert not notes(db, level)
    queue, hour = QueueKeys(f"{name}.1h"), ("a", int(clock.now) // 3600 * 3600)
    put(db, {queue.value(codec.encode(list(hour))): codec.encode(7_777)})
    (found,) = verification(db, level).run()
    assert (found.kind, found.key) == ("level-value", hour)
    assert "7777 in queue" in found.what


@pytest.mark.usefixtures("clock")
def test_a_total_that_differs_from_its_slices_is_found(db: Any, name: str) -> None:
    configure(db, name, window="60/5")
    add(db, name, {"a": 1, "b": 2})
    drain(db)
    assert not notes(db, f"{name}.slices")
    put(db, {QueueKeys(f"{name}.window").value(codec.encode("a")): codec.encode(7_777)})
    (found,) = verification(db, f"{name}.slices").run()
    assert (found.kind, found.key) == ("level-value", "a")


def test_a_slice_of_another_type_ends_no_check_and_reads_name_its_key(
    db: Any, name: str, clock: Clock
) -> None:
    window = configure(db, name, window="60/5")
    add(db, name, {"a": 1, "b": 2})
    drain(db)
    slices = QueueKeys(f"{name}.slices")
    ((key, _),) = ((each, value) for each, value in values(db, f"{name}.slices").items() if each[0] == "a")
    put(db, {slices.value(codec.encode(list(key))): codec.encode([1])})

    checked = verification(db, f"{name}.slices")
    assert [each.kind for each in checked.run()] == ["value-unreadable"]
    assert "some data of it cannot be read" in "; ".join(checked.notes)
    clock.now += 120
    with pytest.raises(InvalidData, match="key 'a': its values cannot be combined: TypeError"):
        transact(db, lambda tr: window.get(tr.snapshot, "a"))


@pytest.mark.parametrize(
    "then", ["1m:1d,1h:2d,1d:forever", "1m:forever,1h:forever,1d:forever", "1m:5m,1h:2h,1d:2d"]
)
def test_a_change_of_retentions_makes_no_differences(db: Any, name: str, clock: Clock, then: str) -> None:
    window = configure(db, name, rollup="1m:10m,1h:3h,1d:forever", buckets=2)

    def go_on(first: int, end: int) -> None:
        for number in range(first, end):
            clock.now = START + 60 * number
            add_at(db, window, {"a": 1}, clock.now)
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


@pytest.mark.parametrize(
    ("value", "updates"),
    [
        ("float", [[math.inf], [1.0]]),
        ("float", [[math.nan], [1.0]]),
        ("float", [[0.1], [0.3, -0.4]]),
        ("float", [[1e12 + 0.1], [0.1, 0.7], [-1e12]]),
        ("dict", [[{"x": 0.1}], [{"x": 0.7}, {"x": 0.2}], [{"x": 0.3}, {"x": 0.1}]]),
        ("dict", [[{"x": 0.1}], [{"x": 0.3}, {"x": -0.4}]]),
    ],
)
def test_the_last_digits_of_floats_and_infinities_make_no_differences(
    db: Any, name: str, clock: Clock, value: str, updates: list[list[Any]]
) -> None:
    combiner, wrong = ("sum", 5.0) if value == "float" else ("counter", {"x": 5.0})
    configure(db, name, value=value, combiner=combiner, rollup="1m:forever,1h:forever")
    hour = int(START) // 3600 * 3600
    for number in range(3):  # in each minute of an hour after the queue was made
        clock.now = hour + 7_200 + 60 * number
        for update in updates[number : number + 1]:
            add(db, name, *({"a": each} for each in update))
    drain(db)
    assert not notes(db, f"{name}.1m")

    put(db, {QueueKeys(f"{name}.1h").value(codec.encode(["a", hour + 7_200])): codec.encode(wrong)})
    (found,) = verification(db, f"{name}.1m").run()
    assert (found.kind, found.key) == ("level-value", ("a", hour + 7_200))


def test_values_that_cannot_be_combined_end_no_check(db: Any, name: str, clock: Clock) -> None:
    """Their updates were set aside in the longer period, and dropped there."""
    configure(db, name, value="any", rollup="1m:forever,1h:forever")
    for number, update in enumerate([0.5, Decimal(1)]):
        clock.now = int(START) // 3600 * 3600 + 7_200 + 60 * number
        add(db, name, {"a": update})
        drain(db)
    for level in (name, f"{name}.1h"):
        drop_aside(db, level)

    assert "key ('a', 1700006400) cannot be combined: TypeError" in notes(db, f"{name}.1m")


def notes(db: Any, name: str) -> str:
    """Why checks were skipped."""
    checked = verification(db, name)
    assert not list(checked.run())
    return "; ".join(checked.notes)


def test_updates_ahead_of_a_new_level_make_no_differences(db: Any, name: str, clock: Clock) -> None:
    hour = int(START) // 3600 * 3600 + 3600
    clock.now = hour - 600
    window = configure(db, name, rollup="1h:forever")
    assert add_at(db, window, {"a": 1}, hour + 1800) == "taken"  # at most an hour ahead
    drain(db)
    cq.configure(db, name, rollup="1m:forever,1h:forever")
    for later in (2400, 3600):
        clock.now = hour + later
        add_at(db, window, {"a": 1}, None)
        drain(db)
        assert not notes(db, f"{name}.1m")

    put(db, {QueueKeys(f"{name}.1h").value(codec.encode(["a", hour + 3600])): codec.encode(7)})
    (found,) = verification(db, f"{name}.1m").run()
    assert (found.kind, found.key) == ("level-value", ("a", hour + 3600))


# Together with a window and an expiry


def test_a_window_a_roll_up_and_an_expiry_each_keep_their_own_time(db: Any, name: str, clock: Clock) -> None:
    window = configure(db, name, window="60/5", rollup="1m:10m,1h:2h", expire=1_800)
    assert add_at(db, window, {"a": 1}, None) == "taken"
    assert add_at(db, window, {"a": 2}, NOW - 300) == "taken"  # too late for the window alone
    assert add_at(db, window, {"a": 4}, NOW - 700) == "late"
    assert add_at(db, window, {"a": 4}, NOW + 6) == "future"

    seen = []
    for seconds in (0, 100, 700, 2_000, 20_000):
        clock.now = NOW + seconds
        drain(db)
        now = transact(db, lambda tr: window.get(tr, "a"))
        minutes, hours = (values(db, f"{name}.{level}").values() for level in ("1m", "1h"))
        seen.append((now, sum(minutes), sum(hours), values(db, name).get("a")))

    assert seen == [
        (1, 3, 3, 3), (None, 3, 3, 3), (None, 0, 3, 3), (None, 0, 3, None), (None, 0, 0, None),
    ]  # fmt: skip
    for part in ("", ".slices", ".window", ".1m", ".1h"):
        assert values(db, f"{name}{part}") == {}
        assert not notes(db, f"{name}{part}")
