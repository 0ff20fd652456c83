"""The history of queues: minutes have the work of all workers, whatever fails, and stay bounded."""

from __future__ import annotations

import random
import threading
from contextlib import ExitStack
from dataclasses import fields
from typing import Any

import pytest

import cq
from cq import admin
from cq.errors import InvalidConfiguration
from cq.keys import QueueKeys, below
from cq.keys.history import HistoryKeys
from cq.observers.telemetry.bus import Event, subscribe
from cq.observers.telemetry.history import MINUTES_KEPT, HistoryMinute, HistoryWriter, read_history
from cq.observers.telemetry.totals import Counts, WorkerCounts
from cq.observers.verify.queue import verification
from cq.observers.worker.worker import Worker
from cq.passes.effects import PassResult
from cq.store.api import COMMIT_UNKNOWN_RESULT
from cq.store.transact import transact
from tests.kit.clocks import START, Clock, jumping
from tests.kit.faults import TIMED_OUT, FailedCalls, FaultyDatabase, Overtaken
from tests.kit.queues import add, event_of, put, stored
from tests.kit.sized import Sized
from tests.kit.trips import COMMIT, VERSION, TripsDatabase
from tests.kit.workers import running

SECONDS = 60.0
NUMBERS = [each.name for each in fields(Counts)]
FIRST = int(START) // 60
"""The minute at which the clock of the tests begins."""


class Source:
    """A worker's counts and its history."""

    def __init__(self, db: Any, *, is_on: bool = True) -> None:
        self.totals = WorkerCounts()
        self.writer = HistoryWriter(db, self.totals, is_on=is_on)

    def work(self, name: str, updates: int = 1, **more: Any) -> None:
        """Count a pass."""
        self.totals.count(name, PassResult(updates=updates, rows=1, reported=2, **more))

    def end(self) -> None:
        self.writer.record(is_last=True)


def whole_history(db: Any, name: str) -> list[tuple[bytes, bytes]]:
    return stored(db, below(QueueKeys(name).prefix + b"h"))


def minutes(db: Any, name: str, number: int = 60) -> dict[int, HistoryMinute]:
    """{minutes since the beginning of the test: its work}, without minutes that have none."""
    found = read_history(db, [name], number)[name]
    assert len(found) == number
    return {each.begins // 60 - FIRST: each for each in found if each != HistoryMinute(begins=each.begins)}


def sums(db: Any, name: str) -> dict[str, int]:
    """The numbers of the last day, summed."""
    found = read_history(db, [name], MINUTES_KEPT)[name]
    return {number: sum(getattr(each, number) for each in found) for number in NUMBERS}


def test_a_minute_has_the_work_of_all_workers(db: Any, name: str, clock: Clock) -> None:
    cq.configure(db, name)
    one, other = Source(db), Source(db)
    one.work(name, 5, aside={b"x": "wrong"}, conflicts=2, age=1.5)
    one.work(name, 6, folded=3, age=2.25)
    other.work(name, 7, age=2.0)
    clock.now += 60
    one.writer.record()
    other.writer.record()
    other.work(name, 100)
    clock.now += 60
    one.writer.record()
    other.end()

    assert minutes(db, name) == {
        0: HistoryMinute(
            begins=FIRST * 60,
            passes=3,
            rows=3,
            reported=6,
            folded=3,
            aside=1,
            updates=18,
            conflicts=2,
            oldest_seconds=2.25,
        ),
        1: HistoryMinute(begins=(FIRST + 1) * 60, passes=1, rows=1, reported=2, updates=100),
    }


def test_minutes_are_in_order_and_the_last_one_is_running(db: Any, name: str, clock: Clock) -> None:
    found = read_history(db, [name, f"{name}-other"], 3)

    assert found.keys() == {name, f"{name}-other"}
    assert [each.begins for each in found[name]] == [(FIRST + each) * 60 for each in (-2, -1, 0)]


def test_nothing_is_written_within_a_minute_or_without_work(db: Any, name: str, clock: Clock) -> None:
    cq.configure(db, name)
    counted = TripsDatabase(db)
    source = Source(counted)
    clock.now += 60
    source.writer.record()
    source.work(name)
    source.writer.record()
    assert counted.trips == []

    source.end()
    assert sums(db, name)["passes"] == 1


def test_all_queues_are_written_and_read_together(db: Any, name: str, clock: Clock) -> None:
    names = [f"{name}-{number}" for number in range(3)]
    for each in names:
        cq.configure(db, each)
    counted = TripsDatabase(db)
    source = Source(counted)
    for each in names:
        source.work(each)
    source.end()

    assert counted.trips == [VERSION, ["get"] * 3, COMMIT]
    read = TripsDatabase(db)
    assert all(each[-1].passes == 1 for each in read_history(read, names).values())
    assert read.trips[-2:] == [["get_range"] * 3, COMMIT]


def test_many_queues_with_long_names_are_written_in_bounded_transactions(db: Any, clock: Clock) -> None:
    names = [f"{number:0100}" for number in range(250)]
    put(db, {QueueKeys(each).config: b"" for each in names})
    sized = Sized(db)
    source = Source(sized)
    for each in names:
        source.work(each, age=1.0)
    source.end()

    assert len(sized.sizes) == 3
    assert max(sized.sizes) < 250_000
    assert all(each[-1].passes == 1 for each in read_history(db, names).values())


def test_a_history_is_of_a_day(db: Any, name: str, clock: Clock) -> None:
    cq.configure(db, name)
    source = Source(db)
    for _ in range(110):
        source.work(name, age=1.0)
        clock.now += 17 * 60
        source.writer.record()

    written = [17 * number for number in range(110)]
    kept = [minute for minute in written if written[-1] - minute < MINUTES_KEPT]
    keys = HistoryKeys(name)
    assert [key for key, _ in whole_history(db, name)] == [
        each(FIRST + minute) for minute in kept for each in (keys.counts, keys.oldest)
    ]
    clock.now -= 17 * 60
    assert list(minutes(db, name, MINUTES_KEPT)) == kept


def test_minutes_of_clocks_that_are_far_ahead_do_not_stay(db: Any, name: str, clock: Clock) -> None:
    cq.configure(db, name)
    clock.now += 90_000
    source = Source(db)
    source.work(name)
    source.end()
    clock.now -= 90_000
    other = Source(db)
    other.work(name, 3)
    other.end()

    assert len(whole_history(db, name)) == 1
    assert minutes(db, name)[0].updates == 3


@pytest.mark.parametrize("unknown", [0.0, 0.4])
def test_sums_of_minutes_are_the_totals_of_the_workers(
    db: Any, name: str, clock: Clock, unknown: float
) -> None:
    """Whatever fails; results that stay unknown can make the sums smaller, and never larger."""
    names = [name, f"{name}-other"]
    for each in names:
        cq.configure(db, each)
    rng = random.Random(7)
    faulty = FaultyDatabase(db, 7, conflict=0.3, unknown=unknown, too_old=0.2)
    sources = [Source(faulty) for _ in range(3)]
    ended: list[Source] = []
    for _ in range(60):
        source = rng.choice(sources)
        source.work(rng.choice(names), rng.randrange(9), conflicts=rng.randrange(3))
        if rng.random() < 0.7:
            clock.now += rng.choice((1, 30, 60, 300))
            source.writer.record()
        if rng.random() < 0.1:
            source.end()
            ended.append(source)
            sources[sources.index(source)] = Source(faulty)
    for source in sources:
        source.end()
        ended.append(source)
    for each in names:
        found = sums(db, each)
        totals = [source.totals.queues[each].as_dict() for source in ended if each in source.totals.queues]
        expected = {number: sum(total[number] for total in totals) for number in NUMBERS}
        if unknown:
            assert all(found[number] <= expected[number] for number in NUMBERS)
            assert 0 < found["passes"] < expected["passes"]
        else:
            assert found == expected
    assert faulty.injected["conflict"] > 3


@pytest.mark.parametrize("is_made", [True, False])
@pytest.mark.parametrize("code", [COMMIT_UNKNOWN_RESULT, TIMED_OUT])
def test_work_whose_commit_has_an_unknown_result_is_not_added_again(
    db: Any, name: str, clock: Clock, is_made: bool, code: int
) -> None:
    cq.configure(db, name)
    source = Source(FailedCalls(db, code, is_made=is_made, left=1))
    source.work(name, 5)
    source.end()
    assert sums(db, name)["updates"] == (5 if is_made else 0)

    source.work(name, 7)
    source.end()
    assert sums(db, name)["updates"] == (12 if is_made else 7)


def test_work_that_the_store_did_not_take_is_in_the_next_minute(db: Any, name: str, clock: Clock) -> None:
    cq.configure(db, name)
    source = Source(FailedCalls(db, TIMED_OUT, what="get", left=1))
    source.work(name, 5, age=3.0)
    clock.now += 60
    source.writer.record()
    assert minutes(db, name) == {}

    source.work(name, 7, age=2.0)
    clock.now += 60
    source.writer.record()
    found = minutes(db, name)
    assert found.keys() == {1}
    assert (found[1].updates, found[1].oldest_seconds) == (12, 3.0)


def test_a_deleted_queue_has_no_history(db: Any, name: str, clock: Clock) -> None:
    cq.configure(db, name)
    source = Source(Overtaken(db, lambda: admin.delete(db, name)))
    source.work(name)
    source.end()
    assert whole_history(db, name) == []

    cq.configure(db, name)
    source.work(name)
    source.end()
    assert sums(db, name)["passes"] == 1
    admin.delete(db, name)
    assert stored(db, below(QueueKeys(name).prefix)) == []


def test_a_history_can_be_turned_off(db: Any, name: str) -> None:
    cq.configure(db, name)
    add(db, name, {"a": 1})
    worker = Worker(db, queues=[name], history=False)
    worker.drain()
    assert worker.totals.updates == 1
    assert whole_history(db, name) == []


def test_the_minutes_asked_for_are_at_most_a_day(db: Any, name: str) -> None:
    for wrong in (0, MINUTES_KEPT + 1, 1.5, "1"):
        with pytest.raises(InvalidConfiguration, match="1 to 1,440"):
            read_history(db, [name], wrong)  # type: ignore[arg-type]


# Workers


def test_workers_that_end_have_stored_all_their_work(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=2)
    totals = []
    for round_number in range(2):
        add(db, name, *({f"k{number}": 1} for number in range(5 + round_number)))
        worker = Worker(db, queues=[name])
        worker.drain()
        totals.append(worker.counts.queues[name].as_dict())

    assert sums(db, name) == {number: sum(each[number] for each in totals) for number in NUMBERS}
    assert sums(db, name)["updates"] == 11
    assert [*verification(db, name).run()] == []


def test_a_running_worker_stores_a_minute_after_its_end(db: Any, name: str) -> None:
    """So that one that is killed has lost the work since then only."""
    cq.configure(db, name, buckets=1)
    with jumping() as clock:
        add(db, name, {"a": 1}, {"b": 1})
        worker = Worker(db, queues=[name], beat=0.1)
        minute = worker._history._minute
        written = event_of(transact(db, lambda tr: tr.watch(HistoryKeys(name).counts(minute))))
        combined = threading.Event()

        def look(event: Event) -> None:
            if worker.totals.updates == 2:
                combined.set()

        end = subscribe(look)
        with ExitStack() as stack:
            stack.callback(end)
            stack.enter_context(running(worker))
            assert combined.wait(SECONDS)
            clock.passed += 60
            assert written.wait(SECONDS)
            assert sums(db, name)["updates"] == 2
        assert sums(db, name)["updates"] == 2


# Verification

DAMAGES = {
    "a key too short": lambda keys: {keys.counts(7)[:-1]: b""},
    "a key of another letter": lambda keys: {keys.counts(7)[:-1] + b"x": b""},
    "a key too long": lambda keys: {keys.counts(7) + b"x": b""},
    "counts of another length": lambda keys: {keys.counts(FIRST): bytes(55)},
    "an age of another length": lambda keys: {keys.oldest(FIRST): bytes(9)},
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found_counts_as_no_work_and_is_repaired(
    db: Any, name: str, clock: Clock, damage: str
) -> None:
    cq.configure(db, name)
    put(db, writes := DAMAGES[damage](HistoryKeys(name)))
    assert minutes(db, name) == {}

    (found,) = verification(db, name, repair=True).run()
    assert (found.kind, [found.where], found.repaired) == ("history", [*writes], True)
    assert whole_history(db, name) == []
