"""What passes take is in each level exactly once, in the period of its time, whatever becomes of it then."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

import pytest

import cq
from cq.bucket.pass_runner import PassRunner
from cq.combiners import BUILT_IN, Combiner
from cq.encoding import codec
from cq.failure import KeyFailure
from cq.observers.top.index import top
from cq.passes.combine_pass import Pass
from cq.passes.plan import Limits, PassPlan
from cq.queue.set_aside import drop_aside, retry_aside
from cq.store.transact import transact
from cq.testing import assert_drained, drain
from cq.verify.queue import verify
from cq.windows import Window
from tests.kit.clocks import START, Clock
from tests.kit.observing import Seen, app_with
from tests.kit.queues import add, aside, code_of, commits, values, waiting_of
from tests.kit.sized import MOST, Sized
from tests.passes.passhelpers import one_pass

pytestmark = pytest.mark.usefixtures("clock")

NOW: Final = int(START)
MINUTE, HOUR = NOW // 60 * 60, NOW // 3600 * 3600
LEVELS: Final[dict[str, Any]] = {"rollup": "1m:2h,1h:forever", "window": "60/5"}


def add_each(
    db: Any, name: str, updates: Sequence[tuple[Any, Any, float | None]], once: str | None = None
) -> None:
    transact(db, lambda tr: Window[Any, Any](name).add_each(tr, updates, once))


# The levels of each update


def test_updates_of_several_periods_in_one_pass(db: Any, name: str) -> None:
    """In rows with one time, and in rows with a time for each update."""
    cq.configure(db, name, key=(str, int), buckets=1, **LEVELS)
    k, other = ("k", 1), ("o", 2)
    add(db, name, {k: 1})
    add_each(db, name, [(k, 2, NOW - 61), (other, 4, NOW - 3600), (k, 8, NOW - 20), (other, 16, None)])
    assert one_pass(db, name).rows == 2
    drain(db, name)
    assert values(db, name) == {k: 11, other: 20}
    assert values(db, f"{name}.1m") == {
        (*k, MINUTE): 9, (*k, MINUTE - 60): 2,
        (*other, MINUTE): 16, (*other, (NOW - 3600) // 60 * 60): 4,
    }  # fmt: skip
    assert values(db, f"{name}.1h") == {(*k, HOUR): 11, (*other, HOUR): 16, (*other, HOUR - 3600): 4}
    assert values(db, f"{name}.window") == {k: 9, other: 16}


@pytest.mark.parametrize("position", range(1, 6))
def test_a_row_that_is_taken_in_parts(db: Any, name: str, position: int) -> None:
    """Whichever update is the first that a pass leaves, each keeps its own time."""
    cq.configure(db, name, buckets=1, **LEVELS)
    updates = [(f"k{number}", 1 << number, NOW - 13 * number) for number in range(6)]
    add_each(db, name, updates)
    runner = PassRunner(db, code_of(db, name), 0)
    runner.size.takes.now = position
    assert runner.combine().updates == position
    drain(db, name)
    assert values(db, f"{name}.1m") == {(key, at // 60 * 60): update for key, update, at in updates}
    assert values(db, f"{name}.window") == {key: update for key, update, at in updates if at >= NOW - 60}


def test_periods_that_are_over_are_dropped_by_the_pass(db: Any, name: str, clock: Clock) -> None:
    cq.configure(db, name, window="60/5", rollup="1m:5m,1h:forever")
    add(db, name, {"a": 1})
    clock.now = START + 299
    add(db, name, {"a": 10})
    clock.now = START + 400
    add(db, name, {"a": 100})
    drain(db, name)
    assert values(db, name) == {"a": 111}
    assert values(db, f"{name}.1m") == {("a", (NOW + 299) // 60 * 60): 10, ("a", (NOW + 400) // 60 * 60): 100}
    assert values(db, f"{name}.1h") == {("a", HOUR): 111}
    assert values(db, f"{name}.window") == {"a": 100}
    for each in (name, f"{name}.1m", f"{name}.1h", f"{name}.slices", f"{name}.window"):
        assert list(verify(db, each)) == []


def test_rows_from_before_a_level_and_after_it(db: Any, name: str) -> None:
    """A row without a time counts in no level; a row with times is combined as any other when the levels are gone."""
    cq.configure(db, name, buckets=1)
    add(db, name, {"a": 1, "b": 1})
    cq.configure(db, name, **LEVELS)
    add(db, name, {"a": 2})
    add_each(db, name, [("b", 4, NOW - 10), ("c", 8, None)])
    one_pass(db, name)  # rows of both kinds at once
    drain(db, name)
    assert values(db, f"{name}.1h") == {("a", HOUR): 2, ("b", HOUR): 4, ("c", HOUR): 8}
    assert values(db, f"{name}.window") == {"a": 2, "b": 4, "c": 8}

    add_each(db, name, [("a", 16, NOW - 10), ("c", 32, None)])
    cq.configure(db, name, rollup="none", window=False)
    add(db, name, {"a": 64})
    drain(db)
    assert values(db, name) == {"a": 83, "b": 5, "c": 40}
    assert list(verify(db, name)) == []


def test_a_pass_conflicts_with_a_change_of_the_levels(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=1, **LEVELS)
    add(db, name, {"a": 1})
    under_way = db.create_transaction()
    assert Pass(under_way, code_of(db, name), 0).run().reported == 1
    cq.configure(db, name, rollup="1m:2h", window="30/5")
    assert not commits(under_way)
    drain(db, name)
    assert values(db, f"{name}.1m") == {("a", MINUTE): 1}


# Folds, and failures


@pytest.mark.parametrize("repack_bytes", [0, 600_000], ids=["staged", "rows"])
@pytest.mark.parametrize("observers", [[], [top()]], ids=["alone", "heard"])
def test_folded_updates_are_not_added_again(
    db: Any, name: str, repack_bytes: int, observers: list[Any]
) -> None:
    cq.configure(db, name, buckets=1, observers=observers, **LEVELS)
    for number in range(300):
        add_each(db, name, [(f"k{number % 7}", 1, NOW - number % 40), ("all", 1, None)])
    limits = Limits(read_bytes=3_000, repack_bytes=repack_bytes)
    folded = reported = 0
    while (result := one_pass(db, name, limits=limits, max_report=3)).more:
        folded, reported = folded + result.folded, reported + result.reported
    assert folded > 10 or not observers
    drain(db, name)
    expected = {f"k{number}": len(range(number, 300, 7)) for number in range(7)} | {"all": 300}
    assert values(db, name) == values(db, f"{name}.window") == expected
    hours: defaultdict[str, int] = defaultdict(int)
    for (key, _), value in values(db, f"{name}.1m").items():
        hours[key] += value
    assert hours == expected


class Failing:
    """A combiner of lists that fails for some keys, or returns what is no update."""

    def __init__(self) -> None:
        self.breaks: set[Any] = set()
        self.called: list[Any] = []
        self.combiner = Combiner("failing", 1, self)

    def __call__(self, key: Any, lists: Any) -> list[Any]:
        self.called.append(key)
        if key in self.breaks or (type(key) is tuple and key[0] in self.breaks):
            raise ValueError("broken")
        return [each for some in lists for each in some]


def test_a_pass_that_sets_a_key_aside_does_not_call_the_combiner_with_it(db: Any, name: str) -> None:
    """The combiner may have ended the worker there; and one bad key does not keep others from being combined."""
    failing = Failing()
    app = app_with(db, name, combiner=failing.combiner, value=list, buckets=1, **LEVELS)
    code = code_of(db, name, app)
    for key in "ab":
        add(db, name, {key: [1]}, {key: [2]})
    failing.breaks = {"a"}

    def run(tr: Any) -> None:
        plan = PassPlan(max_report=0, rejected={codec.encode("a"): KeyFailure("it ended workers")})
        Pass(tr, code, 0, plan).run()

    transact(db, run)
    assert failing.called == ["b"] * len(failing.called)
    assert [update for each in aside(db, name) for update in each.updates] == [[1], [2]]
    assert waiting_of(db, f"{name}.1h") == {("a", HOUR): [[1], [2]], ("b", HOUR): [[1, 2]]}


@pytest.mark.parametrize("end", ["retry", "drop"])
def test_updates_set_aside_are_in_the_levels_once(db: Any, name: str, end: str) -> None:
    """The levels set aside what their combiner cannot combine, too; and what is dropped in the queue stays there."""
    failing = Failing()
    app = app_with(db, name, combiner=failing.combiner, value=list, buckets=1, **LEVELS)
    failing.breaks = {"a"}
    for number in range(3):
        add(db, name, {"a": [number], "b": [number]})
    drain(db, name, app=app)
    window = Window(cq.CombineQueue(name, combiner=failing.combiner))
    assert transact(db, lambda tr: window.get(tr, "b")) == [0, 1, 2]
    assert values(db, f"{name}.1h") == {("b", HOUR): [0, 1, 2]}
    for each in (name, f"{name}.1h", f"{name}.slices"):
        assert sorted(update for piece in aside(db, each) for update in piece.updates) == [[0], [1], [2]]

    failing.breaks = set()
    for each in (name, f"{name}.1m", f"{name}.1h", f"{name}.slices", f"{name}.window"):
        if each == name and end == "drop":
            assert drop_aside(db, name) == 1
        else:
            retry_aside(db, each)
    drain(db, name, app=app)
    expected = {"b": [0, 1, 2]} | ({"a": [0, 1, 2]} if end == "retry" else {})
    assert values(db, name) == expected
    assert values(db, f"{name}.1h") == {("a", HOUR): [0, 1, 2], ("b", HOUR): [0, 1, 2]}
    assert transact(db, lambda tr: window.get(tr, "a")) == [0, 1, 2]
    assert_drained(db, name)


def test_updates_whose_report_fails_are_in_the_levels_once(db: Any, name: str) -> None:
    """Of sums, the window has the updates that an observer of the queue refuses."""
    seen = Seen({"a"})
    app = app_with(db, name, seen.observer, buckets=1, **LEVELS)
    for _ in range(3):
        add(db, name, {"a": 1, "b": 1})
        drain(db, name, app=app)
    assert values(db, name) == {"b": 3}
    assert values(db, f"{name}.window") == {"a": 3, "b": 3}
    seen.refused = ()
    assert retry_aside(db, name) == 3
    drain(db, name, app=app)
    assert values(db, name) == values(db, f"{name}.window") == {"a": 3, "b": 3}
    assert values(db, f"{name}.1h") == {("a", HOUR): 3, ("b", HOUR): 3}


LARGE: dict[str, list[Any]] = {
    "union": [{f"{kind}{number:06}" for number in range(6_000)} for kind in "ab"],
    "counter": [{f"{kind}{number:05}": 1 for number in range(5_900)} for kind in "ab"],
}
"""Two updates of 48 kB, whose combination is larger than an update may be, and fits into a value."""


@pytest.mark.parametrize("combiner", LARGE)
def test_a_combination_that_is_no_update_is_added_update_by_update(db: Any, name: str, combiner: str) -> None:
    cq.configure(
        db, name, combiner=combiner, value="set" if combiner == "union" else "dict", buckets=1, **LEVELS
    )
    for update in LARGE[combiner]:
        add(db, name, {"a": update, "b": update})
    assert one_pass(db, name).rows == 4
    drain(db, name)
    value = BUILT_IN[combiner].combine("a", LARGE[combiner])
    assert values(db, f"{name}.1h") == {("a", HOUR): value, ("b", HOUR): value}
    assert transact(db, lambda tr: Window[Any, Any](name).get(tr, "a")) == value
    assert_drained(db, name)


# Sizes of transactions


@pytest.mark.parametrize(
    ("key", "update", "number"), [("k" * 1_000, 1, 6_000), ("k", 1 << 33_000, 1_000)], ids=["key", "update"]
)
def test_many_periods_of_one_key_stay_within_the_limits(
    db: Any, name: str, key: str, update: int, number: int
) -> None:
    settings: dict[str, Any] = {"rollup": "1s:1h,1m:forever", "window": "1200/0.1", "key": str}
    cq.configure(db, name, buckets=1, **settings)
    sized = Sized(db)
    for first in range(0, number, 100):
        add_each(db, name, [(key, update, NOW - 0.1 * each) for each in range(first, first + 100)])
    sized.sizes.clear()
    runner = PassRunner(sized, code_of(db, name), 0)
    while runner.combine().more:
        pass
    assert len(sized.sizes) > 3
    assert max(sized.sizes) <= MOST
    drain(db, name)
    assert values(db, name) == values(db, f"{name}.window") == {key: number * update}
    assert set(values(db, f"{name}.1s").values()) <= {update, 9 * update, 10 * update}
    assert sum(values(db, f"{name}.1m").values()) == number * update
