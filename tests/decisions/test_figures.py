"""The figures of decisions: how many, which of them are refused, and how long the first one waited."""

from __future__ import annotations

from typing import Any

import pytest

import cq
from cq import runtime
from cq.app import App
from cq.deciders import bounded, bucket, budget, claim, release_name, reserve, settle, unique
from cq.observers.scheduling.members import Member, MemberReport
from cq.observers.telemetry.bus import Event, subscribe
from cq.observers.telemetry.totals import WorkerCounts
from cq.observers.worker.reports import WorkerReports
from cq.observers.worker.worker import Worker
from cq.passes.effects import PassResult
from tests.kit.clocks import Stopped


def limit(key: str, state: int | None, request: int) -> tuple[Any, str]:
    """Adds up to 10."""
    new = (state or 0) + request
    return (new, "added") if new <= 10 else (state, "full")


CASES = [
    (cq.Decider("limit", 1, limit), int, [20, 6, 5], 2),
    (
        cq.Decider("limit", 1, limit, refused=lambda request, answer: answer == "full" and request > 9),
        int,
        [20, 6, 5],
        1,
    ),
    (bounded(0, 10), int, [6, 6, 0, -7], 2),
    (bounded(0, 10, clamp=True), int, [6, 6, 6], 1),
    (unique(), str, [claim("ada"), claim("bob"), claim("ada"), release_name("bob"), release_name("ada")], 2),
    (bucket(5, 1), list, [{"take": 5, "at": 0}, {"take": 2, "at": 1}, {"take": 2, "at": 2}], 1),
    (budget(10), dict, [reserve(8, "a", ttl=60), reserve(8, "b", ttl=60), settle("a", 7), settle("b", 1)], 2),
]


@pytest.mark.parametrize(("decider", "value", "requests", "refused"), CASES, ids=lambda each: str(each)[:20])
def test_refused_requests_are_counted(
    db: Any, name: str, decider: cq.Decider, value: Any, requests: list[Any], refused: int
) -> None:
    app, events = App(), list[Event]()
    queue = app.queue(name, key=str, value=value, decider=decider)
    app.configure(db, name)
    cq.transact(db, lambda tr: [queue.ask(tr, "a", each) for each in requests])
    end = subscribe(events.append)
    Worker(db, app).drain()
    end()
    (event,) = (each for each in events if each.name == "requests_decided")
    assert (event.fields["decided"], event.fields["refused"]) == (len(requests), refused)
    assert event.fields["waited"] > 0


def test_requests_that_fail_are_not_among_the_decisions(db: Any, name: str) -> None:
    events = list[Event]()
    queue = cq.configure(db, name, key=str, value=int, decider="bounded:0:10")
    cq.transact(db, lambda tr: [queue.ask(tr, "a", each) for each in ("nails", 2)])
    end = subscribe(events.append)
    Worker(db).drain()
    end()
    (event,) = (each for each in events if each.name == "requests_decided")
    assert (event.fields["decided"], event.fields["refused"]) == (1, 0)


def test_a_worker_reports_the_rates_of_decisions() -> None:
    totals = WorkerCounts()
    anybody = Member(b"", b"", 1.0, frozenset(), frozenset(), None, "here", 1, MemberReport())
    with runtime.using(clock := Stopped()):
        reports = WorkerReports(anybody, totals)
        totals.count("stock", PassResult(decided=30, refused=10, waited=0.01), 0.005)
        totals.count("stock", PassResult(decided=10, waited=0.02), 0.005)
        totals.count("words", PassResult(updates=5))
        clock.now += 4
        assert reports.facts([])["decisions"] == {"stock": [10.0, 2.5, 0.5, 10_000.0]}
