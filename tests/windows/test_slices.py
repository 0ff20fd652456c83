"""A window over a combiner that cannot subtract has exactly the updates inside, whatever workers have done."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cq
from cq.admin.configure import put_observer
from cq.admin.queue_status import status
from cq.app import App
from cq.combiners import BUILT_IN, Combiner
from cq.config.queue import queue_names, read_config
from cq.errors import CodeMismatch, ConfigurationConflict, InvalidConfiguration, InvalidData
from cq.failure import KeyFailure
from cq.keys import QueueKeys
from cq.observers.top.index import top
from cq.queue.set_aside import drop_aside, set_aside
from cq.store.embedded import Database
from cq.store.transact import transact
from cq.testing import assert_drained, drain
from cq.verify.queue import verify
from tests.clocks import START, Clock, set_clock
from tests.helpers import add, configured, stored

WIDTH, SLICE = 60, 5


@pytest.fixture
def clock() -> Iterator[Clock]:
    with set_clock() as clock:
        yield clock


@pytest.fixture
def window(db: Any, name: str) -> cq.Window:
    cq.configure(db, name, combiner="maximum", window=(WIDTH, SLICE), buckets=2)
    return cq.Window(name, width=WIDTH, slice=SLICE)


def put(db: Any, window: cq.Window, key: Any, update: Any, **given: Any) -> str:
    return str(transact(db, lambda tr: window.add(tr, {key: update}, **given)))


def total(db: Any, window: cq.Window, key: Any, **given: Any) -> Any:
    return transact(db, lambda tr: window.get(tr.snapshot, key, **{"pending": True, **given}))


def totals(db: Any, window: cq.Window, **given: Any) -> dict[Any, Any]:
    """All pages together."""

    def page(tr: Any, after: bytes | None) -> cq.Page:
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


def work(db: Any, name: str, app: App | None = None) -> None:
    """Let workers do all there is to do."""
    levels = [
        each for each in transact(db, lambda tr: queue_names(tr.snapshot)) if each.startswith(f"{name}.")
    ]
    drain(db, name, *levels, app=app)


def kept(db: Any, *names: str) -> int:
    """Values that the store has."""
    return sum(len(stored(db, QueueKeys(name).values())) for name in names)


def test_an_update_counts_until_a_width_after_its_slice(db: Any, window: cq.Window, clock: Clock) -> None:
    clock.now = START + 2
    assert put(db, window, "a", 9) == "taken"
    clock.now = START + 30
    put(db, window, "a", 4)

    seen = {}
    for seconds in (30, 62, 64.9, 65, 94.9, 95):
        clock.now = START + seconds
        seen[seconds] = total(db, window, "a"), totals(db, window, pending=True)

    of_both, of_later = (9, {"a": 9}), (4, {"a": 4})
    assert seen == {30: of_both, 62: of_both, 64.9: of_both, 65: of_later, 94.9: of_later, 95: (None, {})}


def test_combined_updates_leave_without_a_worker_and_workers_delete_them(
    db: Any, window: cq.Window, clock: Clock
) -> None:
    put(db, window, "a", 9)
    work(db, window.name)
    assert total(db, window, "a", pending=False) == 9
    assert totals(db, window) == {"a": 9}

    clock.now = START + 65
    assert total(db, window, "a", pending=False) is None
    assert totals(db, window) == {}
    assert kept(db, window.name, f"{window.name}.5s") == 2

    clock.now = START + 200
    work(db, window.name)
    assert kept(db, window.name, f"{window.name}.5s") == 0
    assert_drained(db, window.name)


def test_an_update_is_late_as_soon_as_it_leaves(db: Any, window: cq.Window, clock: Clock) -> None:
    clock.now = START + SLICE + WIDTH
    assert put(db, window, "a", 1, at=START) == "late"
    assert put(db, window, "a", 1, at=START + SLICE - 0.001) == "late"
    assert put(db, window, "a", 1, at=START + SLICE) == "taken"
    clock.now -= 0.001
    assert put(db, window, "a", 1, at=START) == "taken"


def test_late_and_future_updates_are_counted_and_not_added(db: Any, window: cq.Window, clock: Clock) -> None:
    now = clock.now = START + 1_000
    said = [put(db, window, "a", 1, at=now - offset) for offset in (0, 59, 60.1, 70, -5, -5.1)]

    assert said == ["taken", "taken", "late", "late", "taken", "future"]
    assert transact(db, window.statistics) == cq.WindowStatistics(2, 1, 0)
    assert status(db, window.name)[0].window == cq.WindowStatistics(2, 1, 0)


def test_an_operation_counts_once(db: Any, window: cq.Window, clock: Clock) -> None:
    put(db, window, "a", 1, once="op")
    put(db, window, "a", 2, once="op")
    assert total(db, window, "a") == 1
    work(db, window.name)
    assert total(db, window, "a") == 1


def test_emitters_and_adds_count_as_of_now(db: Any, window: cq.Window, clock: Clock) -> None:
    with cq.Emitter(window, db) as emitter:
        emitter.emit("a", 3)
    clock.now = START + 30
    add(db, window.name, {"a": 2, "b": 1})

    assert totals(db, window, pending=True) == {"a": 3, "b": 1}
    clock.now = START + 70
    assert totals(db, window, pending=True) == {"a": 2, "b": 1}


def test_a_purge_and_a_rebucketing_include_the_slices(db: Any, window: cq.Window, clock: Clock) -> None:
    put(db, window, "a", 1)
    cq.rebucket(db, window.name, 5)
    put(db, window, "b", 2)
    assert totals(db, window, pending=True) == {"a": 1, "b": 2}
    work(db, window.name)
    assert totals(db, window) == {"a": 1, "b": 2}
    assert list(verify(db, window.name)) == list(verify(db, f"{window.name}.5s")) == []

    cq.purge(db, window.name)
    work(db, window.name)
    assert totals(db, window, pending=True) == {}


def test_the_queue_itself_keeps_the_latest_update_of_each_key(
    db: Any, window: cq.Window, clock: Clock
) -> None:
    for update in (5, 3):
        put(db, window, "a", update)
        got = transact(db, lambda tr: window.queue.get(tr.snapshot, "a", pending=True))
        work(db, window.name)
        assert got == transact(db, lambda tr: window.queue.get(tr, "a")) == update
    assert total(db, window, "a", pending=False) == 5


def test_the_queue_stays_small_when_the_union_of_all_time_would_not_fit(
    db: Any, name: str, clock: Clock
) -> None:
    cq.configure(db, name, value=set, combiner="union", window=(WIDTH, SLICE))
    window = cq.Window(name)
    for day in range(6):
        put(db, window, "a", {f"{day}.{number:030}" for number in range(700)})
        work(db, name)
        clock.now += WIDTH
    assert len(total(db, window, "a", now=clock.now - WIDTH)) >= 700
    assert_drained(db, name)
    assert {each.aside for each in status(db, name)} == {0}


def test_sketches_have_a_window(db: Any, name: str, clock: Clock) -> None:
    cq.configure(db, name, combiner="distinct", window=(WIDTH, SLICE))
    window = cq.Window[str, Any](name)
    put(db, window, "page", "ann")
    clock.now = START + 30
    put(db, window, "page", ["ann", "bob"])
    work(db, name)
    assert total(db, window, "page").estimate == 2
    clock.now = START + 70
    put(db, window, "page", "bob")
    assert total(db, window, "page", pending=False).estimate == 2
    clock.now = START + 95
    assert total(db, window, "page").estimate == 1


# What is refused


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"combiner": "last", "window": 60},
            "the combiner last cannot have a window: .* an expiry of 60 s",
        ),
        (
            {"combiner": "maximum", "window": (1, 0.1)},
            "slices of whole seconds for a window of the combiner maximum",
        ),
        ({"combiner": "maximum", "window": (1001, 1)}, "at most 1,000 slices"),
        ({"combiner": "maximum", "window": 60, "rollup": "1m:1h"}, "with a window cannot have a roll-up"),
        ({"combiner": "maximum", "window": 60, "expire": 60}, "a window or an expiry of keys, not both"),
    ],
)
def test_windows_that_cannot_be_merged(db: Any, name: str, given: Any, message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=message):
        cq.configure(db, name, **given)


def test_changes_of_a_merged_window(db: Any, window: cq.Window, clock: Clock) -> None:
    name = window.name
    cq.configure(db, name, combiner="maximum", window=(WIDTH, SLICE))
    with pytest.raises(InvalidConfiguration, match=r"the roll-up of queue .* has the slices of its window"):
        cq.configure(db, name, rollup="none")
    with pytest.raises(InvalidConfiguration, match="not both"):
        cq.configure(db, name, expire=False)
    with pytest.raises(ConfigurationConflict, match="window 60/5 -> 60/6"):
        cq.configure(db, name, window=(60, 6))
    with pytest.raises(InvalidConfiguration, match=rf"configure the observers of queue '{name}.5s'"):
        put_observer(db, name, top())
    put_observer(db, f"{name}.5s", top())

    put(db, window, "a", 1)
    work(db, name)
    config = configured(db, name, window=(90, SLICE))
    assert config.settings()["window"] == "90/5"
    assert (config.settings()["expire"], config.settings()["rollup"]) == (None, None)
    clock.now = START + 70
    assert total(db, cq.Window(name), "a", pending=False) == 1


def test_updates_set_aside_can_be_dropped(db: Any, window: cq.Window) -> None:
    level = QueueKeys(f"{window.name}.5s")
    transact(db, lambda tr: set_aside(tr, level, b"\x82aa\x00", KeyFailure("for this test"), [1]))
    assert drop_aside(db, f"{window.name}.5s") == 1
    keys = window.keys
    transact(db, lambda tr: set_aside(tr, keys, b"aa", KeyFailure("for this test"), [1]))
    assert drop_aside(db, window.name) == 1


# Against a recount

JOINED = Combiner("joined", 1, lambda key, values: "".join(values))
"""It does not commute."""
KINDS: dict[str, tuple[Any, str, list[Any]]] = {
    "maximum": ("maximum", "int", [1, -5, 9, 0]),
    "union": ("union", "set", [{"x"}, {"y"}, set(), {"x", "z"}]),
    "sum of float": ("sum", "float", [1.0, -1.0, 0.5, 0.0]),
    "joined": (JOINED, "str", ["a", "b", "c", "d"]),
}
KEYS = st.sampled_from("abcd")
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("add"), KEYS, st.integers(0, 3), st.integers(-80, 8), st.sampled_from(["", "x", "y"])
        ),
        st.tuples(st.just("pass"), st.integers(1, 40)),
        st.tuples(st.just("drain")),
        st.tuples(st.just("rebucket"), st.integers(1, 4)),
    ),
    max_size=30,
)


def recounted(combiner: Combiner, updates: Sequence[tuple[int, Any]]) -> Any:
    """The combination of (due, update), slice after slice, and in commit order within a slice."""
    if not updates:
        return None
    value = combiner.combine(None, [update for _, update in sorted(updates, key=lambda each: each[0])])
    return None if combiner.is_empty(value) else value


@pytest.mark.parametrize("kind", KINDS)
@given(STEPS)
@settings(max_examples=8)
def test_totals_are_those_of_a_recount(kind: str, steps: list[Any]) -> None:
    code, value, choices = KINDS[kind]
    combiner = code if isinstance(code, Combiner) else BUILT_IN[code]
    app = App()
    app.queue("q", combiner=combiner)
    with tempfile.TemporaryDirectory() as folder, set_clock() as clock:
        db: Any = Database(Path(folder) / "test.db", power_safe=False)
        queue = cq.configure(db, "q", value=value, combiner=combiner, window=(WIDTH, SLICE), buckets=2)
        window = cq.Window(cq.CombineQueue("q", combiner=combiner))
        spec = transact(db, lambda tr: read_config(tr, queue.name)).window
        assert spec is not None
        added, operations = [], set()
        for what, *how in steps:
            if what == "add":
                key, chosen, offset, operation = how
                at = clock.now + offset
                said = put(db, window, key, choices[chosen], at=at, once=operation or None)
                due = spec.expires(round(at * 1000)) / 1000
                assert said == ("late" if due <= clock.now else "future" if offset > SLICE else "taken")
                if said == "taken" and operation not in operations:
                    added.append((key, due, choices[chosen]))
                    operations |= {operation} - {""}
            elif what == "pass":
                clock.now += how[0]
            elif what == "rebucket":
                work(db, "q", app)
                cq.rebucket(db, "q", how[0])
            else:
                work(db, "q", app)
            inside: dict[str, list[Any]] = defaultdict(list)
            for key, due, update in added:
                if due > clock.now:
                    inside[key].append((due, update))
            expected = {key: recounted(combiner, updates) for key, updates in inside.items()}
            expected = {key: each for key, each in expected.items() if each is not None}
            assert totals(db, window, pending=True) == expected
            assert {key: total(db, window, key) for key in "abcd"} == {
                key: expected.get(key) for key in "abcd"
            }
        work(db, "q", app)
        assert totals(db, window) == expected if steps else True
        for name in ("q", "q.5s"):
            assert list(verify(db, name, combiner=combiner)) == []
        clock.now += 1000
        work(db, "q", app)
        assert kept(db, "q", "q.5s") == 0
        db.close()


def test_a_window_of_an_own_combiner_needs_it(db: Any, name: str) -> None:
    cq.configure(db, name, value=str, combiner=JOINED, window=60)
    with pytest.raises(CodeMismatch, match="give it as CombineQueue"):
        total(db, cq.Window(name), "a")
    with pytest.raises(InvalidData, match="expected a key of type str, got: 1"):
        total(db, cq.Window(cq.CombineQueue(name, combiner=JOINED)), 1)
