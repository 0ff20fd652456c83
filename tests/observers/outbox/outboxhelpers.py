"""What tests of outboxes need: a queue with an outbox, rows in its table, and its task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

import cq
from cq.observers.links.outbox.operate import init
from cq.observers.links.outbox.state import OutboxSettings
from cq.observers.links.outbox.task import find_outbox
from cq.observers.links.registry import outbox_tasks
from cq.observers.links.sql.engine import ReportingDatabase
from tests.kit.queues import combine_all

URL_ENV = "CQ_REPORTING_URL"
SETTINGS = OutboxSettings(URL_ENV, None)


def configure(db: Any, name: str, **settings: Any) -> None:
    """A queue with an outbox."""
    cq.configure(db, name, **settings)
    init(db, name, SETTINGS)


def insert(name: str, updates: Any, once: str | None = None) -> None:
    """Commit a transaction of the application that adds updates."""
    database = ReportingDatabase(env=URL_ENV)
    with database.transaction() as (conn, _):
        cq.outbox.add(conn, name, updates, once=once)
    database.close()


def sql(text: str, **parameters: Any) -> list[Any]:
    """Run a statement in the application's database; returns the rows of a SELECT."""
    database = ReportingDatabase(env=URL_ENV)
    with database.transaction() as (conn, _):
        found = conn.execute(sa.text(text), parameters)
        rows = list(found) if found.returns_rows else []
    database.close()
    return rows


def table() -> list[Any]:
    """(key_json, update_json, error) of all rows of the table, by id."""
    return [tuple(row) for row in sql("SELECT key_json, update_json, error FROM cq_outbox ORDER BY id")]


def outbox_task(db: Any, name: str, at: Callable[[str], object] = lambda point: None) -> Any:
    """A new task of the queue's outbox, as a worker makes it; `at` is called with the points that it reaches."""
    task: Any = outbox_tasks(db, name)[0]
    task.signal = at
    return task


def move(db: Any, name: str) -> None:
    """Move all rows; fails if the task fails."""
    task = outbox_task(db, name)
    try:
        while (pause := task.run()) >= 0.0:
            assert pause == 0.0, task.problem
    finally:
        task.end()


def problem(db: Any, name: str) -> str:
    """What one run of the task says fails."""
    task = outbox_task(db, name)
    task.run()
    task.end()
    return str(task.problem)


def values(db: Any, name: str) -> dict[Any, Any]:
    """The queue's values, after all queued updates are combined."""
    combine_all(db, name, cq.App())
    return dict(cq.CombineQueue(name).scan(db))


def source(db: Any, name: str) -> Any:
    return find_outbox(db, name)
