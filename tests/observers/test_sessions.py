"""Sessions are those of a direct computation over all visits, in whatever order these come."""

from __future__ import annotations

import random
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cq
from cq import admin
from cq.combiners import BUILT_IN
from cq.errors import InvalidConfiguration, InvalidData
from cq.observers.sessions import DAY, SessionCounts, Sessions, interval, sessions
from cq.observers.visits import VisitEmitter, VisitLog, Visits
from cq.queue.set_aside import read_aside
from cq.store.embedded import Database
from cq.store.transact import transact
from cq.testing import drain
from tests.kit.clocks import START, Clock, set_clock
from tests.kit.queues import combine_all
from tests.observers.test_visits import log_line

GAP = 1_800
TODAY, NOW = "2023-11-14", int(START)


def counted(visits: Iterable[tuple[str, int]], gap: int = GAP) -> SessionCounts:
    """The counts of visits, as pairs of visitor and time: by sorting them."""
    times = defaultdict[tuple[str, int], list[int]](list)
    for visitor, at in visits:
        times[visitor, at // DAY].append(at)
    found = list[list[int]]()
    for each in times.values():
        for number, at in enumerate(sorted(each)):
            if number and at - found[-1][-1] < gap:
                found[-1].append(at)
            else:
                found.append([at])
    return SessionCounts(
        len(found),
        sum(len(each) == 1 for each in found),
        sum(map(len, found)),
        sum(each[-1] - each[0] for each in found),
    )


@pytest.fixture
def made(db: Any, name: str) -> Sessions:
    found = Sessions(name)
    found.configure(db, buckets=2)
    return found


def read(db: Any, made: Sessions, day: str | None = None) -> SessionCounts:
    drain(db, *made.queues)
    return transact(db, lambda tr: made.get(tr.snapshot, day))


def add(db: Any, made: Sessions, *visits: tuple[str, float | None], **given: Any) -> int:
    return transact(db, lambda tr: made.add(tr, visits, **given))


@given(st.lists(st.integers(0, DAY - 1), min_size=1, max_size=12), st.integers(60, DAY), st.randoms())
def test_intervals_are_sessions_in_any_order_and_grouping(
    times: list[int], gap: int, rng: random.Random
) -> None:
    combine = BUILT_IN["intervals"].combine
    values = [interval("ann", at, gap)[1] for at in times]
    rng.shuffle(values)
    while len(values) > 1:
        begin = rng.randrange(len(values) - 1)
        end = rng.randint(begin + 1, len(values))
        values[begin:end] = [combine("k", values[begin:end])]
    (value,) = values
    value = combine("k", [value])

    assert counted((("ann", at) for at in times), gap) == SessionCounts(
        len(value),
        sum(number == 1 for _, _, number in value),
        sum(number for _, _, number in value),
        sum(end - begin - gap for begin, end, _ in value),
    )
    assert value == sorted(value)


def test_less_than_a_gap_continues_a_session(db: Any, made: Sessions, clock: Clock) -> None:
    add(db, made, ("ann", NOW - 4_000), ("ann", NOW - 4_000 + GAP), ("bob", NOW - 4_000))
    assert read(db, made) == SessionCounts(3, 3, 3, 0)
    add(db, made, ("ann", NOW - 3_999))  # the visit between two sessions joins them
    assert read(db, made) == SessionCounts(2, 1, 4, GAP)
    add(db, made, ("bob", NOW - 4_000 - 600), ("ann", None))
    found = read(db, made)

    assert found == SessionCounts(3, 1, 6, GAP + 600)
    assert (found.mean_seconds, found.bounce_share, found.mean_visits) == (800, 1 / 3, 2)
    assert SessionCounts().mean_seconds is SessionCounts().bounce_share is SessionCounts().mean_visits is None


def test_days_have_their_sessions(db: Any, made: Sessions, clock: Clock) -> None:
    midnight = NOW // DAY * DAY
    add(db, made, ("ann", midnight - 60), ("ann", midnight + 60), ("ann", midnight + 120))

    assert read(db, made) == SessionCounts(2, 1, 3, 60)
    assert read(db, made, TODAY) == SessionCounts(1, 0, 2, 60)
    assert read(db, made, "2023-11-13") == SessionCounts(1, 1, 1, 0)
    days = transact(db, lambda tr: made.days(tr, last="2d"))
    assert list(days.items())[1:] == [
        ("2023-11-13", SessionCounts(1, 1, 1, 0)),
        (TODAY, SessionCounts(1, 0, 2, 60)),
    ]
    with pytest.raises(InvalidData, match="expected a day such as 2026-01-31, got: 'today'"):
        read(db, made, "today")


def test_a_visit_counts_once_and_late_ones_until_the_end_of_the_next_day(
    db: Any, made: Sessions, clock: Clock
) -> None:
    for _ in range(2):
        add(db, made, ("ann", NOW), once="op")
    last_moment = NOW // DAY * DAY + 2 * DAY - 0.0002
    assert transact(db, lambda tr: made.add(tr, [("ann", NOW + 60)], now=last_moment)) == 0
    clock.now = NOW // DAY * DAY + 2 * DAY - 1
    assert read(db, made, TODAY) == SessionCounts(1, 0, 2, 60)
    clock.now += 1
    add(db, made, ("ann", NOW), once="op")
    assert read(db, made, TODAY) == SessionCounts(1, 0, 2, 60)
    assert add(db, made, ("ann", NOW + 120), ("bob", NOW), ("bob", clock.now + DAY + 1)) == 3
    assert read(db, made, TODAY) == SessionCounts(1, 0, 2, 60, 2)
    assert read(db, made) == SessionCounts(1, 0, 2, 60, 3)
    assert transact(db, lambda tr: made.visitors.items(tr.snapshot)).items
    clock.now += 3_601
    found = read(db, made)

    assert found == SessionCounts(1, 0, 2, 60, 3)
    assert not transact(db, lambda tr: made.visitors.items(tr.snapshot)).items


@settings(max_examples=15)
@given(
    st.lists(
        st.one_of(
            st.tuples(
                st.just("visits"),
                st.lists(st.tuples(st.sampled_from("ab"), st.integers(-120, 20)), min_size=1, max_size=3),
            ),
            st.tuples(st.just("combine"), st.sampled_from((0, 1, 2))),
            st.tuples(st.just("hours"), st.integers(1, 30)),
        ),
        max_size=25,
    )
)
def test_sessions_are_those_of_a_recount_at_any_time(steps: list[tuple[str, Any]]) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        set_clock() as clock,
        Database(Path(folder) / "x.db", power_safe=False) as db,
    ):
        made, taken, refused = Sessions("s"), list[tuple[str, int]](), list[tuple[str, int]]()
        made.configure(db, gap="20m", late="2h", buckets=2)
        for what, given in steps:
            if what == "hours":
                clock.now += 3_600 * given
            elif what == "combine":
                combine_all(db, [*made.queues, f"{made.name}.1d"][given])
            else:
                visits = [(visitor, int(clock.now) + 600 * offset) for visitor, offset in given]
                fitting = [each for each in visits if clock.now < each[1] // DAY * DAY + DAY + 7_200]
                assert add(db, made, *visits) == len(visits) - len(fitting)
                taken += fitting
                refused += [each for each in visits if each not in fitting]

        assert read(db, made) == replace(counted(taken, 1_200), refused=len(refused))
        days = transact(db, lambda tr: made.days(tr, last="40d"))
        first = int(clock.now) // DAY - len(days) + 1
        for number, found in enumerate(days.values(), first):
            visits, late = ([each for each in some if each[1] // DAY == number] for some in (taken, refused))
            assert found == replace(counted(visits, 1_200), refused=len(late))


# Settings


def test_a_gap_is_that_of_the_configuration(db: Any, made: Sessions, clock: Clock) -> None:
    made.configure(db, late="7d", buckets=2)  # which can be changed
    add(db, made, ("ann", NOW), ("ann", NOW - 60), ("bob", NOW - 3 * DAY))
    assert read(db, made) == SessionCounts(2, 1, 3, 60)

    with pytest.raises(InvalidConfiguration, match="would be counted a second time into queue"):
        made.configure(db, gap="10m", buckets=2)
    with pytest.raises(
        InvalidConfiguration, match="expected a gap of sessions from 60 s to a day, such as 30m"
    ):
        made.configure(db, gap="59s", buckets=2)


def test_queues_without_sessions_are_refused(db: Any, name: str) -> None:
    cq.configure(db, f"{name}.visitors", key=(str, int), value=list, combiner="intervals")
    with pytest.raises(
        InvalidConfiguration, match=r"counts no sessions: configure it by `Sessions\.configure`"
    ):
        add(db, Sessions(name), ("ann", NOW))
    with pytest.raises(InvalidConfiguration, match="expected keys of visitor and day, with intervals"):
        admin.put_observer(db, Sessions(name).visitors.name, sessions(f"{name}.visitors", gap=60))


def test_a_purge_of_visitors_leaves_the_sums(db: Any, made: Sessions, clock: Clock) -> None:
    add(db, made, ("ann", NOW), ("ann", NOW - 60))
    assert read(db, made) == SessionCounts(1, 0, 2, 60)
    admin.purge(db, made.visitors.name)
    assert read(db, made) == SessionCounts(1, 0, 2, 60)
    admin.purge(db, made.name)
    add(db, made, ("ann", NOW))
    assert read(db, made) == SessionCounts(1, 1, 1, 0)


# Visits


@pytest.fixture
def visits(db: Any, name: str) -> Visits:
    found = Visits(name, sessions=True)
    found.configure(db, buckets=2)
    return found


def test_all_ways_to_count_visits_count_sessions(db: Any, visits: Visits, clock: Clock) -> None:
    transact(db, lambda tr: visits.count(tr, "/", "ann", author="ann"))
    transact(db, lambda tr: visits.count_each(tr, [("/", "ann", NOW - 1_000), ("/a", "bob", NOW - 1_000)]))
    transact(db, lambda tr: visits.count_each(tr, [("/a", "eve", NOW), ("/a", "bob", NOW - DAY)]))
    with VisitEmitter(visits, db) as emitter:
        emitter.count("/", "bob")
        emitter.count("/a", "bob")
    log = VisitLog(visits)
    transact(db, lambda tr: log(tr, [log_line("/", "192.0.2.1", NOW - 60 * number) for number in (1, 3, 2)]))

    assert read(db, visits.sessions, TODAY) == counted(
        [("ann", NOW), ("ann", NOW - 1_000), ("bob", NOW), ("bob", NOW), ("bob", NOW - 1_000), ("eve", NOW)]
        + [("log", NOW - 60 * number) for number in (1, 2, 3)]
    )
    assert Visits.stored(db, visits.name).has_sessions  # type: ignore[union-attr]


def test_ids_are_kept_while_visits_of_their_day_are_taken(db: Any, visits: Visits, clock: Clock) -> None:
    before, clock.now = visits.ids(db).of("ann", NOW), NOW // DAY * DAY + 2 * DAY - 1
    drain(db, *visits.queues)
    assert visits.ids(db).of("ann", NOW) == before

    visits.configure(db, late="7d", buckets=2)
    clock.now += 6 * DAY
    drain(db, *visits.queues)
    assert visits.ids(db).of("ann", NOW) == before
    clock.now += 9 * DAY
    drain(db, *visits.queues)
    assert visits.ids(db).of("ann", NOW) != before


def test_a_day_that_is_none_is_set_aside_alone(db: Any, made: Sessions, clock: Clock) -> None:
    """Only adds to the queue of visitors itself can have such keys."""
    day = int(clock.now) // DAY * DAY
    intervals = {(visitor, day): [(0, 1800, 1)] for visitor in "abcdefgh"} | {("eve", 2**62): [(0, 1800, 1)]}
    transact(db, lambda tr: made.visitors.add(tr, intervals))

    drain(db, *made.queues)

    assert transact(db, made.get).sessions == 8
    aside = transact(db, lambda tr: read_aside(tr, made.visitors.name))
    assert [(each.updates, "expected a time" in each.error) for each in aside] == [([[[0, 1800, 1]]], True)]
