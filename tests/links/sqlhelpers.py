"""What tests of links to SQL need: a queue with a table, and a look at the table."""

from __future__ import annotations

from functools import partial
from typing import Any

import sqlalchemy as sa

import cq
from cq import links
from cq.observers.links.operate import OpenLink
from cq.observers.links.registry import table_check
from cq.observers.links.sql.engine import ReportingDatabase
from cq.observers.links.sql.table import TableDefinition, columns_of
from cq.observers.links.sql.target import SqlTarget
from cq.verify.verification import Verification
from tests.links.linkhelpers import found


def configure(
    db: Any,
    name: str,
    table: str = "report",
    columns: str | None = None,
    app: cq.App | None = None,
    **settings: Any,
) -> OpenLink:
    """A queue that is sent to a table by the link `export`, and its table."""
    cq.configure(db, name, links=[links.table(table, columns=columns)], **settings)
    link = found(db, name, app=app)
    link.target.create()
    return link


def target_of(link: OpenLink) -> SqlTarget:
    """The target of a link to a table."""
    assert isinstance(link.target, SqlTarget)
    return link.target


def reporting_of(link: OpenLink) -> ReportingDatabase:
    """The database of a link's table."""
    return target_of(link).reporting


def definition_of(link: OpenLink) -> TableDefinition:
    """The definition of a link's table."""
    return target_of(link).definition


class Compared:
    """What the check of a link's table finds, with its totals."""

    def __init__(self, link: OpenLink, wait_seconds: float = 30.0) -> None:
        check = table_check(link)
        self.verification = Verification(
            link.db, link.queue, {"table": partial(check.run, wait_seconds=wait_seconds)}
        )
        self.differences = list(self.verification.run())
        self.totals, self.undecided = self.verification.totals, check.undecided

    @property
    def are_rows_checked(self) -> bool:
        return not any("surplus rows were not searched for" in note for note in self.verification.notes)


def table_of(link: OpenLink, *columns: str) -> list[tuple[Any, ...]]:
    """The rows of a link's table, sorted; of some columns, by default key and value."""
    with reporting_of(link).reading() as (conn, dialect):
        table = definition_of(link).table(dialect)
        names = columns or tuple(
            column.name for column in table.columns if column.name not in ("sequence", "updated_at")
        )
        rows = conn.execute(sa.select(table)).mappings().all()
        return sorted(columns_of(dict(row), names) for row in rows)


def sql(link: OpenLink, text: str, **parameters: Any) -> None:
    """Change something in the reporting database behind cq's back."""
    with reporting_of(link).transaction() as (conn, _):
        conn.execute(sa.text(text), parameters)
