"""Work that waits by design: its workers are not stuck, keep it, and report it once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cq import admin
from cq.observers.links.failure_note import NotedTask
from cq.observers.monitoring.findings import remarks
from cq.observers.monitoring.link_status import link_status
from cq.observers.monitoring.store_overview import Overview, overview
from cq.observers.scheduling.takeover import StalledTasks
from cq.observers.telemetry.bus import Event, subscribe
from cq.observers.worker import worker as worker_module
from cq.observers.worker.worker import Worker
from cq.queue import limits
from tests.kit.held_calls import until
from tests.kit.queues import add
from tests.kit.workers import SECONDS, running
from tests.links.sqlhelpers import configure, sql, table_of
from tests.observers.outbox.outboxhelpers import configure as configure_outbox
from tests.observers.outbox.outboxhelpers import insert, values

CHECKS = 20
"""How often workers must have looked for work of others that makes no progress: each time they could take it."""
WAITS = 300
"""How often tasks must have waited: each time their workers could release them."""


class Watched:
    """What workers do meanwhile, and the events that they emit."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[Event] = []
        self.checks = self.waits = 0
        self.changed = threading.Condition()
        find, wait = StalledTasks.find, NotedTask._wait

        def found(stalled: StalledTasks, *given: Any) -> Any:
            with self.changed:
                self.checks += 1
                self.changed.notify_all()
            return find(stalled, *given)

        def waits(task: NotedTask, reason: str) -> None:
            with self.changed:
                self.waits += 1
                self.changed.notify_all()
            wait(task, reason)

        monkeypatch.setattr(StalledTasks, "find", found)
        monkeypatch.setattr(NotedTask, "_wait", waits)

    def note(self, event: Event) -> None:
        with self.changed:
            self.events.append(event)
            self.changed.notify_all()

    def until(self, happened: Callable[[], bool]) -> None:
        """Wait for something that an event, a check or a wait follows."""
        with self.changed:
            assert self.changed.wait_for(happened, SECONDS)

    def until_all_have_looked(self, *workers: Worker) -> None:
        """Wait while the workers look for tasks without progress all the time."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(worker_module, "SAFETY_SECONDS", 0.05)
            for worker in workers:
                worker._next_check = 0.0
            checks, waits = self.checks, self.waits
            self.until(lambda: self.checks >= checks + CHECKS and self.waits >= waits + WAITS)

    @property
    def urgent(self) -> list[str]:
        return [event.name for event in self.events if event.kind.level >= logging.WARNING]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    """Workers that release a task after a few failures."""
    monkeypatch.setattr("cq.observers.scheduling.takeover.MANY_FAILURES", 3)
    for module in ("task", "failure_note"):
        monkeypatch.setattr(f"cq.observers.links.{module}.STOPPED_SECONDS", 0.01)
    monkeypatch.setattr("cq.observers.links.outbox.task.FULL_SECONDS", 0.01)
    made = Watched(monkeypatch)
    unsubscribe = subscribe(made.note)
    yield made
    unsubscribe()


def stuck(seen: Overview) -> list[str]:
    return [task for worker in seen.workers for task in worker.stuck]


def test_a_stopped_link_waits_and_is_in_order_again_at_once(
    db: Any, name: str, sqlite_url: str, watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    """Its database is set back, and later restored to the state before."""
    link = configure(db, name)
    keys = {f"k{number}": 1 for number in range(50)}
    with (
        caplog.at_level(logging.WARNING),
        running(Worker(db, queues=[name], beat=2)) as first,
        running(Worker(db, queues=[name], beat=2)) as second,
    ):
        add(db, name, keys)
        watched.until(lambda: len(table_of(link)) == len(keys))
        sql(link, "CREATE TABLE kept AS SELECT * FROM cq_progress")
        sql(link, "DELETE FROM cq_progress")
        add(db, name, keys)
        watched.until(lambda: "link_stopped" in watched.urgent)
        watched.until_all_have_looked(first, second)

        seen = overview(db, name)
        assert stuck(seen) == []
        (remark,) = remarks(seen)
        assert remark.startswith(f"the link '{name} export' is stopped: the reporting database")
        assert f"`cq link rebuild {name} export`" in remark
        assert f"`cq link rebase {name} export`" in remark

        sql(link, "INSERT OR REPLACE INTO cq_progress SELECT * FROM kept")
        watched.until(lambda: {value for _, value in table_of(link)} == {2})
        watched.until(lambda: link_status(db, name)[0].waiting_buckets == 0)
        until(lambda: link_status(db, name)[0].state == "active")  # no event says that the link has gone on
        seen = overview(db, name)
        assert stuck(seen) == []
        assert remarks(seen) == []
    # A batch that was under way while the positions were deleted may have failed, and one that was under way while they
    # were restored may have stopped the link once more, for a moment.
    stops = [each for each in watched.urgent if each != "link_failed"]
    assert stops in (["link_stopped"], ["link_stopped"] * 2)
    assert [record.levelname for record in caplog.records].count("ERROR") == len(stops)


def test_an_outbox_waits_for_room_in_its_queue(
    db: Any,
    name: str,
    sqlite_url: str,
    watched: Watched,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(limits, "CHECK_SECONDS", 0.0)  # read the mark in every add
    configure_outbox(db, name)
    admin.limit(db, name, max_bytes=10)
    add(db, name, {"a": 1})
    assert limits.compare(db, name)
    insert(name, {"a": 1})
    with (
        caplog.at_level(logging.WARNING),
        running(Worker(db, queues=[name], roles=["outbox"], beat=2)) as first,
        running(Worker(db, queues=[name], roles=["outbox"], beat=2)) as second,
    ):
        watched.until(lambda: watched.waits > 0)
        watched.until_all_have_looked(first, second)
        assert stuck(overview(db, name)) == []
        assert values(db, name) == {"a": 1}
        assert not limits.compare(db, name)
        watched.until(lambda: any(event.name == "outbox_moved" for event in watched.events))
        assert stuck(overview(db, name)) == []
    assert watched.urgent == []
    assert caplog.records == []
    assert values(db, name) == {"a": 2}
