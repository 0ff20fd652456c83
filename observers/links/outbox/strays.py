"""Rows that no worker moves, because their queue has no outbox; and the trigger of their table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from cq.config.queue import queue_names
from cq.errors import CorruptData, InvalidConfiguration
from cq.observers.links.outbox.operate import OutboxStatus, outbox_status
from cq.observers.links.outbox.state import OutboxSettings, read_settings
from cq.observers.links.outbox.table import OutboxTables, StrayRows
from cq.observers.links.outbox.task import source_of
from cq.observers.links.outbox.trigger import OutboxTrigger
from cq.observers.links.target import LinkFailed
from cq.plain_text import printable
from cq.store.api import Database, TransactionRead
from cq.store.transact import transact

_SHOWN: Final = 10
_ADVICE: Final = (
    "run `cq outbox init QUEUE` if the queue should have an outbox, else correct or delete the rows with SQL"
)


@dataclass(frozen=True, slots=True)
class TableStatus:
    """The table of one or more outboxes.

    Attributes:
        strays: rows of queues that have no outbox in this table, by the name of the queue; of at most 100 queues.
        problems: what is wrong with the rights of the trigger's function, and what to do about it.
    """

    strays: Sequence[StrayRows]
    problems: Sequence[str]

    def findings(self) -> list[str]:
        """What an operator should do; empty if there is nothing."""
        return [*self.problems, *([_stray_text(self.strays)] if self.strays else [])]


def outbox_tables(db: Database) -> dict[OutboxSettings, list[str]]:
    """{table: the queues that have an outbox in it}; without outboxes whose settings are unreadable."""

    def read(tr: TransactionRead) -> dict[OutboxSettings, list[str]]:
        found: dict[OutboxSettings, list[str]] = defaultdict(list)
        for name in queue_names(tr):
            with suppress(CorruptData):  # the check of the outbox reports it
                settings = read_settings(tr, name)
                if settings is not None:
                    found[settings].append(name)
        return dict(found)

    return transact(db, lambda tr: read(tr.snapshot))


def table_status(db: Database, settings: OutboxSettings, queues: Sequence[str]) -> TableStatus:
    """The status of the table of these queues' outboxes; raises `LinkFailed`, `InvalidConfiguration`."""
    source = source_of(db, settings)
    try:
        with source.database.reading() as (conn, dialect):
            strays = OutboxTables.of(dialect, source.schema).strays(conn, queues, source.store)
            problems = (
                OutboxTrigger.of(conn, source.schema).problems(conn) if dialect.name == "postgresql" else []
            )
    finally:
        source.database.close()
    return TableStatus(strays, problems)


def statuses(db: Database, queue: str | None = None) -> list[OutboxStatus]:
    """The status of one outbox; or of all, with the rows of queues without an outbox."""
    if queue is not None:
        return [outbox_status(db, queue)]
    names = transact(
        db,
        lambda tr: [
            name for name in queue_names(tr.snapshot) if read_settings(tr.snapshot, name) is not None
        ],
    )
    return [*(outbox_status(db, name) for name in names), *stray_statuses(db)]


def stray_statuses(db: Database) -> list[OutboxStatus]:
    """The rows of queues without an outbox, in all tables that can be read."""
    found = []
    for settings, queues in outbox_tables(db).items():
        with suppress(LinkFailed, InvalidConfiguration):  # the statuses of its outboxes have the error
            for each in table_status(db, settings, queues).strays:
                error = f"no worker moves these rows, in {place_of(settings)}: {_ADVICE}"
                found.append(
                    OutboxStatus(each.queue, "no outbox", each.rows, each.oldest_seconds, None, error)
                )
    return found


def place_of(settings: OutboxSettings) -> str:
    """The table, for messages."""
    return f"${settings.url_env}" + ("" if settings.schema is None else f", schema {settings.schema}")


def _stray_text(strays: Sequence[StrayRows]) -> str:
    shown = ", ".join(f"'{printable(each.queue)}' ({each.rows:,})" for each in strays[:_SHOWN])
    more = f" and {len(strays) - _SHOWN} others" if len(strays) > _SHOWN else ""
    return f"rows wait for queues that have no outbox: {shown}{more}: {_ADVICE}"
