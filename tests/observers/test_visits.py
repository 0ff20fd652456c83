"""Unique visitors are counted exactly, within the window and ever, by a tree of queues."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cq
from cq import admin
from cq.errors import FlushFailed, InvalidConfiguration, InvalidData
from cq.observers.builtin import FACTORIES
from cq.observers.distinct import distinct
from cq.observers.visits import PageVisits, VisitEmitter, VisitLog, Visits
from cq.store.embedded import Database
from cq.store.transact import transact
from cq.testing import assert_values, drain
from tests.kit.clocks import START, Clock, set_clock
from tests.kit.queues import add, combine_all, configured, put_built_in


@pytest.fixture
def visits(db: Any, name: str) -> Visits:
    found = Visits(name, readers=True)
    found.configure(db, window=(60, 5), buckets=2)
    return found


def count(db: Any, visits: Visits, *given: str, **named: Any) -> str:
    return str(transact(db, lambda tr: visits.count(tr, *given, **named)))


def page(db: Any, visits: Visits, name: str) -> PageVisits:
    drain(db, *visits.queues)
    return transact(db, lambda tr: visits.get(tr.snapshot, name))


def test_views_visitors_and_readers_are_counted(db: Any, visits: Visits, clock: Clock) -> None:
    count(db, visits, "/", "ann")
    count(db, visits, "/", "ann")
    count(db, visits, "/", "bob")
    count(db, visits, "/", "eve", author="eve")
    count(db, visits, "/other", "bob", once="op")
    count(db, visits, "/other", "bob", once="op")

    assert page(db, visits, "/") == PageVisits(4, 3, 3, 2)
    assert page(db, visits, "/other") == PageVisits(1, 1, 1, 1)

    clock.now = START + 30
    count(db, visits, "/", "ann")
    clock.now = START + 70
    assert page(db, visits, "/") == PageVisits(1, 1, 4, 2)
    assert page(db, visits, "/other") == PageVisits(0, 0, 1, 1)
    clock.now = START + 100
    assert page(db, visits, "/") == PageVisits(0, 0, 4, 2)


def test_a_page_is_right_at_once_when_nobody_has_combined(db: Any, visits: Visits, clock: Clock) -> None:
    for visitor in ("ann", "bob", "ann"):
        count(db, visits, "/", visitor)
    count(db, visits, "/other", "ann")

    def seen() -> tuple[PageVisits, PageVisits]:
        return tuple(  # type: ignore[return-value]
            transact(db, lambda tr: visits.get(tr.snapshot, "/", pending=pending))  # noqa: B023
            for pending in (False, True)
        )

    assert seen() == (PageVisits(0, 0, 0, 0), PageVisits(3, 2, 3, 2))
    clock.now = START + 100
    assert seen()[1] == PageVisits(0, 0, 3, 2)
    page(db, visits, "/")
    assert seen() == (PageVisits(0, 0, 3, 2), PageVisits(0, 0, 3, 2))


def test_a_visit_that_comes_too_late_counts_for_its_lifetime(db: Any, visits: Visits, clock: Clock) -> None:
    assert count(db, visits, "/", "ann", at=START - 1000) == "late"

    assert page(db, visits, "/") == PageVisits(0, 0, 1, 1)


def test_an_emitter_counts_all_of_it(db: Any, visits: Visits, clock: Clock) -> None:
    with VisitEmitter(visits, db) as emitter:
        for visitor in ("ann", "bob", "ann", "eve"):
            emitter.count("/", visitor, author="eve")
        emitter.flush()

        assert page(db, visits, "/") == PageVisits(4, 3, 3, 2)


def test_an_emitter_that_cannot_count_views_commits_the_rest_when_it_is_closed(
    db: Any, visits: Visits
) -> None:
    emitter = VisitEmitter(visits, db, every="1h", timeout=0.2)
    emitter.count("/", "ann")
    admin.delete(db, visits.views.name)
    with pytest.raises(FlushFailed, match="views"):
        emitter.close()
    drain(db, visits.lifetime.name)
    assert_values(db, visits.lifetime, {"/": 1, "": 1})


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("visit"), st.sampled_from("pq"), st.sampled_from("abc"), st.integers(-70, 4)),
            st.tuples(st.just("pass"), st.integers(1, 30)),
            st.tuples(
                st.just("combine"),
                st.sampled_from(("views", "seen", "visitors", "seen.slices", "seen.window", "views.slices")),
            ),
        ),
        max_size=40,
    )
)
@settings(max_examples=15)
def test_visitors_are_those_of_a_recount_at_any_time(steps: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder, set_clock() as clock:
        db: Any = Database(Path(folder) / "test.db", power_safe=False)
        visits, seen = Visits(), []
        visits.configure(db, window=(60, 5), buckets=2)
        for kind, *what in steps:
            if kind == "visit":
                name, visitor, offset = what
                if count(db, visits, name, visitor, at=clock.now + offset) == "taken":
                    seen.append((name, visitor, ((clock.now + offset) // 5 + 1) * 5 + 60))
            elif kind == "pass":
                clock.now += what[0]
            elif what[0] in ("views", "seen"):  # without their levels
                combine_all(db, f"visits.{what[0]}")
            else:
                drain(db, f"visits.{what[0]}")
            inside = [(name, visitor) for name, visitor, leaves in seen if leaves > clock.now]
            expected = {
                name: (sum(each == name for each, _ in inside), len({v for n, v in inside if n == name}))
                for name in {name for name, _ in inside}
            }
            assert transact(db, visits.within) == expected
        for _ in range(2):
            clock.now += 1000
            drain(db)
        assert transact(db, partial(visits.get, page="p")).visitors == 0
        assert dict(visits.visitors.scan(db)) == dict(visits.seen.queue.scan(db)) == {}
        db.close()


def test_what_cannot_be_counted_into_another_queue_is_refused(db: Any, name: str) -> None:
    plain, pairs = configured(db, f"{name}.plain"), configured(db, f"{name}.pairs", key=(str, int))
    for config, spec in (
        (plain, distinct("other")),
        (pairs, distinct("other", parts=2)),
        (pairs, distinct(pairs.name)),
    ):
        with pytest.raises(InvalidConfiguration, match="more than"):
            put_built_in(db, config, spec)
    with pytest.raises(InvalidConfiguration, match="at least 1"):
        distinct("other", parts=0)
    with pytest.raises(InvalidConfiguration, match=r"keys of \(str\), the combiner sum and values of int"):
        put_built_in(db, pairs, distinct(configured(db, f"{name}.wrong", key=int).name))
    with pytest.raises(InvalidConfiguration, match="settings that are invalid"):
        FACTORIES["distinct"](pairs, {"into": "other"}, 1)


@pytest.fixture
def counted(db: Any, name: str) -> tuple[str, str, str]:
    """The names of two queues of pairs and of the one that counts the pairs of both: 2 + 1 of "/", 1 of "/other"."""
    first, second, into = f"{name}.first", f"{name}.second", f"{name}.into"
    cq.configure(db, into, key=str, value=int, combiner="sum")
    for queue in (first, second):
        cq.configure(db, queue, key=(str, str), observers=[distinct(into)])
    add(db, first, {("/", "ann"): 2, ("/", "bob"): 1, ("/other", "ann"): 1})
    add(db, second, {("/", "eve"): 1})
    drain(db, first, second, into)
    assert_values(db, into, {"/": 3, "/other": 1})
    return first, second, into


REBUILDS: dict[str, Callable[[Any, str, str], object]] = {
    "by name": lambda db, queue, into: admin.rebuild_observer(db, queue, "distinct"),
    "by settings": lambda db, queue, into: admin.rebuild_observer(db, queue, distinct(into)),
    "another version": lambda db, queue, into: admin.put_observer(
        db, queue, replace(distinct(into), version=2)
    ),
    "configured": lambda db, queue, into: cq.configure(
        db, queue, observers=[replace(distinct(into), version=2)], report_again=True
    ),
    "another queue": lambda db, queue, into: admin.put_observer(db, queue, distinct(f"{into}.other")),
}


@pytest.mark.parametrize("rebuild", REBUILDS.values(), ids=REBUILDS)
def test_a_rebuild_never_counts_keys_a_second_time(
    db: Any, counted: tuple[str, str, str], rebuild: Callable[[Any, str, str], object]
) -> None:
    first, second, into = counted
    before = configured(db, first)

    with pytest.raises(InvalidConfiguration, match="would be counted a second time into queue"):
        rebuild(db, first, into)

    assert configured(db, first) == before
    for queue in (first, second):  # as the error says
        admin.remove_observer(db, queue, "distinct")
    admin.purge(db, into)
    for queue in (first, second):
        admin.put_observer(db, queue, distinct(into))
    add(db, second, {("/", "joe"): 1})
    drain(db, first, second, into)
    assert_values(db, into, {"/": 4, "/other": 1})


def test_a_queue_without_values_can_be_counted_in_another_way(db: Any, name: str) -> None:
    pairs, into = f"{name}.pairs", f"{name}.into"
    cq.configure(db, into, key=str, value=int, combiner="sum")
    cq.configure(db, pairs, key=(str, str), observers=[distinct(f"{name}.mistaken")])
    admin.put_observer(db, pairs, distinct(into))
    admin.rebuild_observer(db, pairs, "distinct")
    add(db, pairs, {("/", "ann"): 1})
    drain(db, pairs, into)

    assert_values(db, into, {"/": 1})


# Access logs


def log_line(page: str, visitor: str, at: float, agent: str = "Browser/1") -> bytes:
    time = datetime.fromtimestamp(at, UTC).strftime("%d/%b/%Y:%H:%M:%S %z")
    return f'{visitor} - - [{time}] "GET {page} HTTP/1.1" 200 5 "-" "{agent}"\n'.encode()


def test_the_lines_of_a_log_are_visits(db: Any, visits: Visits, clock: Clock) -> None:
    lines = [
        log_line("/", "192.0.2.1", START),
        log_line("/", "192.0.2.1", START - 5),
        log_line("/", "192.0.2.1", START, "Browser/2"),
        log_line("/", "192.0.2.2", START - 1_000),
        log_line("/", "192.0.2.3", START, "Googlebot/2.1"),
        log_line("/a", "192.0.2.3", START, "-"),
        b"nothing\n",
        b"nothing else\n",
    ]

    added = transact(db, lambda tr: VisitLog(visits)(tr, lines))

    assert (added.lines, added.added, added.skipped, added.outside) == (8, 4, 2, 1)
    assert added.problem.endswith("'nothing\\n'")
    assert page(db, visits, "/") == PageVisits(3, 2, 4, 3)
    assert page(db, visits, "/a") == PageVisits(0, 0, 0, 0)
    transact(db, lambda tr: VisitLog(visits, bots=None)(tr, lines[-4:]))
    assert page(db, visits, "/a") == PageVisits(1, 1, 1, 1)
    with pytest.raises(InvalidConfiguration, match="regular expression of bots"):
        VisitLog(visits, bots="(")


def test_stored_visits_have_the_queues_of_the_store(db: Any, name: str) -> None:
    assert Visits.stored(db, name) is None
    for readers in (False, True):
        made = Visits(name, readers=readers)
        made.configure(db)
        stored = Visits.stored(db, name)
        assert stored is not None
        assert stored.queues == made.queues


def test_a_log_is_followed(db: Any, visits: Visits, clock: Clock, tmp_path: Path) -> None:
    path, log = tmp_path / "access.log", VisitLog(visits)
    path.write_bytes(log_line("/", "192.0.2.1", START))
    for _ in range(2):
        with closing(log.follow(db, path)) as follower:
            while follower.add_next(log):
                pass
        path.rename(tmp_path / "access.log.1")
        path.write_bytes(log_line("/", "192.0.2.2", START))

    assert page(db, visits, "/") == PageVisits(2, 2, 2, 2)


# The whole site, and ids of visitors


def test_the_site_counts_each_view_and_each_visitor_once(db: Any, visits: Visits, clock: Clock) -> None:
    def site(**given: Any) -> PageVisits:
        return transact(db, lambda tr: visits.site(tr.snapshot, **given))

    assert site() == PageVisits(0, 0, 0, 0)
    count(db, visits, "/a", "ann")
    count(db, visits, "/b", "ann", author="ann")
    transact(db, lambda tr: visits.count_each(tr, [("/b", "bob", START), ("/c", "eve", START - 1_000)]))
    with VisitEmitter(visits, db) as emitter:
        emitter.count("/a", "joe")

    exact = PageVisits(4, 3, 4, 4)
    assert site(pending=True) == exact
    drain(db, *visits.queues)
    assert site() == exact
    assert site(now=START + 100, pending=True) == PageVisits(0, 0, 4, 4)
    assert transact(db, visits.within) == {"/a": (2, 2), "/b": (2, 2)}
    clock.now = START + 100
    drain(db, *visits.queues)
    assert site() == PageVisits(0, 0, 4, 4)


def test_a_page_without_a_name_is_refused(db: Any, visits: Visits) -> None:
    with pytest.raises(InvalidData, match="a page of at least one character"):
        count(db, visits, "", "ann")
    with (
        VisitEmitter(visits, db) as emitter,
        pytest.raises(InvalidData, match="a page of at least one character"),
    ):
        emitter.count("", "ann")


def test_ids_are_the_same_in_all_processes_for_a_day(db: Any, visits: Visits, clock: Clock) -> None:
    one, other = visits.ids(db), visits.ids(db)
    found = {one.of("ann"), other.of("ann"), visits.ids(db).of("ann", START)}
    days = {one.of("ann", START + 86_400 * day) for day in range(12)}

    assert len(found) == 1
    assert len(days) == 12
    assert days >= found
    assert one.of("bob") not in days
    assert all(len(each) == 12 and "ann" not in each for each in days)
    drain(db, *visits.queues)
    assert visits.ids(db).of("ann") in found


def test_processes_that_begin_at_once_take_the_same_salt(db: Any, visits: Visits) -> None:
    made = [visits.ids(db) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda ids: ids.of("ann", START), made))) == 1


def test_salts_are_deleted(db: Any, visits: Visits, clock: Clock) -> None:
    before = visits.ids(db).of("ann", START)
    drain(db, *visits.queues)
    assert len(dict(visits.salts.scan(db))) == 1
    clock.now = START + 3 * 86_400
    drain(db, *visits.queues)

    assert dict(visits.salts.scan(db)) == {}
    assert visits.ids(db).of("ann", START) != before


def test_the_visitors_of_a_log_have_ids(db: Any, visits: Visits, clock: Clock) -> None:
    log = VisitLog(visits, ids=visits.ids(db))
    transact(db, lambda tr: log(tr, [log_line("/", f"192.0.2.{number}", START) for number in (1, 2, 1)]))
    drain(db, *visits.queues)

    assert transact(db, visits.within) == {"/": (3, 2)}
    assert not [key for key, _ in visits.seen.queue.scan(db) if "192" in key[1]]
