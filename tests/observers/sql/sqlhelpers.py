"""What tests of exports into SQL need: an export of a queue, and a look at its table."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

import cq
from cq.admin.backfill import publish_generations
from cq.observers.export import queue as export
from cq.observers.export.spec import export_spec
from cq.observers.exporters import export_tasks
from cq.observers.scheduling.runner import DONE
from cq.observers.sql.check import init
from cq.observers.sql.configured import Export, find_export
from cq.observers.sql.table import columns_of
from cq.observers.sql.verify import TableCheck
from cq.store.transact import transact
from cq.verify.verification import Verification
from tests.helpers import combine_all

FACTORIES = {"export": export.add_changes("export")}


def configure(
    db: Any, name: str, table: str = "report", columns: str | None = None, **settings: Any
) -> Export:
    """A queue that is exported, and its table."""
    cq.configure(db, name, observers=[export_spec(table, columns=columns)], **settings)
    found = find_export(db, name)
    init(found.reporting, found.definition)
    return found


def add(db: Any, name: str, updates: dict[Any, Any]) -> None:
    """Add updates in one transaction."""
    transact(db, lambda tr: cq.CombineQueue(name).add(tr, updates))


def combine(db: Any, name: str) -> None:
    """Run passes until nothing is queued, with the observers told."""
    combine_all(db, name, App())
    publish_generations(db, name)


class App(cq.App):
    """An app that has the built-in export."""

    def code(self, wanted: Any, built_in: Any = None) -> Any:
        return super().code(wanted, built_in or FACTORIES)


def work(db: Any, name: str) -> None:
    """Export until nothing is left to do; fails when a task fails."""
    found = find_export(db, name)
    tasks: list[Any] = export_tasks(db, found.config, found.observer)
    try:
        keeper = tasks[0]
        keeper.run()  # it looks whether an export that is stopped may go on, and sweeps once all is exported
        for task in [*tasks[1:], keeper]:
            while (pause := task.run()) != DONE:
                assert pause == 0.0, f"{task}: {task.problem or pause}"
    finally:
        for task in tasks:
            task.end()


class Compared:
    """What the check of an export's table finds, with its totals."""

    def __init__(self, db: Any, export: Export, wait_seconds: float = 30.0) -> None:
        check = TableCheck(db, export, wait_seconds)
        self.verification = Verification(db, export.queue, {"table": check.run})
        self.differences = list(self.verification.run())
        self.totals, self.undecided = self.verification.totals, check.undecided

    @property
    def are_rows_checked(self) -> bool:
        return not any("surplus rows were not searched for" in note for note in self.verification.notes)


def problems(db: Any, name: str) -> list[str]:
    """Run every task once; what they say fails."""
    found = find_export(db, name)
    tasks: list[Any] = export_tasks(db, found.config, found.observer)
    for task in tasks:
        task.run()
        task.end()
    return [task.problem for task in tasks if task.problem]


def table_of(found: Export, *columns: str) -> list[tuple[Any, ...]]:
    """The rows of an export's table, sorted; of some columns, by default key and value."""
    with found.reporting.reading() as (conn, dialect):
        table = found.definition.table(dialect)
        names = columns or tuple(
            column.name for column in table.columns if column.name not in ("sequence", "updated_at")
        )
        rows = conn.execute(sa.select(table)).mappings().all()
        return sorted(columns_of(dict(row), names) for row in rows)


def sql(found: Export, text: str, **parameters: Any) -> None:
    """Change something in the reporting database behind cq's back."""
    with found.reporting.transaction() as (conn, _):
        conn.execute(sa.text(text), parameters)
