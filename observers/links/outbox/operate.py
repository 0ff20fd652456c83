"""What operators do with an outbox: create it, list and retry rows set aside, continue after a restore, remove it.

And the rows that no worker moves, because their queue has no outbox.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from cq import keys
from cq.config.queue import queue_names, read_config
from cq.errors import ConfigurationConflict, CorruptData
from cq.keys.link import OutboxKeys
from cq.observers.links.outbox.state import (
    OutboxSettings,
    OutboxState,
    existing_settings,
    new_batch,
    notify,
    number_of,
    parse_state,
    read_problem,
    read_settings,
)
from cq.observers.links.outbox.table import OutboxFence, OutboxTables, StrayRows
from cq.observers.links.outbox.task import OutboxSource, OutboxTask, find_outbox, source_of
from cq.observers.links.sql.check import create_missing
from cq.observers.links.target import LinkFailed
from cq.outbox import check_schema
from cq.plain_text import printable
from cq.store.api import Database, Transaction
from cq.store.bounded_reads import read_each
from cq.store.transact import transact

_PAGE = 1_000
_SHOWN: Final = 10
_ADVICE: Final = (
    "run `cq outbox init QUEUE` if the queue should have an outbox, else correct or delete the rows with SQL"
)


def init(db: Database, queue: str, settings: OutboxSettings) -> list[str]:
    """Give a queue an outbox: create the missing tables, and have workers move its rows; returns the created tables.

    Repeating it changes nothing.

    Args:
        db: a database of either store.
        queue: the queue's name.
        settings: where the tables are.

    Raises:
        QueueNotConfigured: the queue does not exist.
        InvalidConfiguration: the schema or the URL is invalid, or the queue is a level of a roll-up.
        ConfigurationConflict: the queue has an outbox with other settings.
        LinkFailed: a table differs from its definition, or the outbox was used before and its position is not in this
            store.
    """
    if settings.schema is not None:
        check_schema(settings.schema)
    current = transact(db, lambda tr: _read_settings(tr, queue))
    _check_same(queue, current or settings, settings)
    source = source_of(db, settings)
    try:
        with source.database.transaction() as (conn, dialect):
            tables = OutboxTables.of(dialect, settings.schema)
            created = create_missing(conn, dialect, (tables.rows, tables.progress))
            if current is None:
                tables.insert_fence(conn, queue, OutboxFence(source.store, new_batch()))
            fence = tables.fence(conn, queue)
    finally:
        source.database.close()
    transact(db, lambda tr: _configure(tr, queue, settings, fence, source.store))
    return [table.name for table in created]


def _read_settings(tr: Transaction, queue: str) -> OutboxSettings | None:
    config = read_config(tr.snapshot, queue)  # raises if the queue does not exist
    config.refuse_level("give an outbox to")
    return read_settings(tr.snapshot, queue)


def _configure(
    tr: Transaction, queue: str, settings: OutboxSettings, fence: OutboxFence | None, store: bytes
) -> None:
    read_config(tr, queue)
    outbox = OutboxKeys(queue)
    current = read_settings(tr, queue)
    if current is not None:
        _check_same(queue, current, settings)
        return
    if fence is None or fence.store != store or number_of(fence.batch) > 1:
        raise LinkFailed(
            f"the table cq_outbox_progress has a row of an earlier outbox of queue {queue!r}, whose position is not in "
            f"this store: correct the data if you need to, then delete that row, and run `cq outbox init {queue}` again"
        )
    tr.set(outbox.settings, settings.to_bytes())
    tr.set(outbox.state, OutboxState.of(fence.batch, b"").to_bytes())
    notify(tr, queue)
    tr.set_versionstamped_value(keys.CHANGED, keys.INCOMPLETE_VERSIONSTAMP)


def _check_same(queue: str, current: OutboxSettings, settings: OutboxSettings) -> None:
    pairs = {what: (getattr(current, what), getattr(settings, what)) for what in OutboxSettings.types()}
    differences = {f"outbox {what}": (old, new) for what, (old, new) in pairs.items() if old != new}
    if differences:
        raise ConfigurationConflict(queue, differences)


def opened(db: Database, queue: str) -> OpenOutbox:
    """The outbox of a queue; raises as `find_outbox`."""
    return OpenOutbox(db, queue, find_outbox(db, queue))


class OpenOutbox(NamedTuple):
    """The outbox of a queue among its links: what operators do with it."""

    db: Database
    queue: str
    source: OutboxSource

    @property
    def keys(self) -> OutboxKeys:
        """The outbox's keys."""
        return OutboxKeys(self.queue)

    def check(self) -> str:
        """Read the table; returns a line about its rows. Raises `LinkFailed` if an operator should do something."""
        stopped, error = transact(self.db, lambda tr: read_problem(tr.snapshot, self.queue))
        if error:
            raise LinkFailed(f"{'stopped' if stopped else 'failing'}: {error}")
        with self.source.database.reading() as (conn, dialect):
            found = OutboxTables.of(dialect, self.source.schema).backlog(conn, self.queue)
        if found.aside:
            raise LinkFailed(
                f"rows that the queue refuses: {found.aside:,}: `cq outbox aside {self.queue}` shows their errors"
            )
        oldest = "" if found.oldest_seconds is None else f", the oldest {found.oldest_seconds:,.1f} s old"
        return f"rows to add: {found.rows:,}{oldest}"

    def rebase(self) -> bool:
        """Continue with the rows that the table has now, after one of the databases was restored to an earlier state.

        Each of these rows is added, also if it was added before a restore. So are rows that are added and not deleted
        yet, if the state in the store is unreadable or missing. Returns False, and changes nothing, if the two
        databases agree. Raises `LinkFailed`.
        """
        stored, before = transact(self.db, self._read)
        with self._transaction() as (conn, tables):
            fence = tables.fence(conn, self.queue, lock=True)
            if fence == OutboxFence(self.source.store, before.batch):
                return False
            last = b"" if fence is None else fence.batch
            fresh = OutboxState.of(new_batch(max(before.batch, last)), last)
            if before.ids and last == before.previous:
                # These rows are added. If this fails before the commit, a worker deletes them.
                fresh = replace(fresh, packed=before.packed, until=before.until)
                tables.delete(conn, before.ids, before.until)
            # The store first: if this fails before the commit, the databases still differ.
            transact(self.db, lambda tr: self._restart(tr, stored, fresh))
            if fence is None:
                tables.insert_fence(conn, self.queue, OutboxFence(self.source.store, fresh.batch))
            tables.set_fence(conn, self.queue, store=self.source.store, batch=fresh.batch)
        return True

    def _read(self, tr: Transaction) -> tuple[bytes | None, OutboxState]:
        """The stored state and its content; if it is unreadable or missing, that of an outbox without any batch."""
        stored = tr.get(self.keys.state).value
        try:
            return stored, parse_state(stored or b"")
        except CorruptData:
            return stored, OutboxState.of(b"", b"")

    def _restart(self, tr: Transaction, before: bytes | None, fresh: OutboxState) -> None:
        if tr.get(self.keys.state).value not in (before, fresh.to_bytes()):
            raise LinkFailed("a worker has moved rows meanwhile: run the command again")
        tr.set(self.keys.state, fresh.to_bytes())
        notify(tr, self.queue)

    def remove(self) -> int:
        """Remove the outbox: workers leave its rows alone; returns the number of rows that stay in the table.

        The tables stay, too, as other queues may use them.
        """
        OutboxTask(self.db, self.queue, self.source).finish()
        with self._transaction() as (conn, tables):
            tables.delete_fence(conn, self.queue)
            left = tables.backlog(conn, self.queue)
            transact(self.db, self._clear)
        return left.rows + left.aside

    def _clear(self, tr: Transaction) -> None:
        state = tr.get(self.keys.state).value
        if state is not None and parse_state(state).ids:
            raise LinkFailed("a worker has moved rows meanwhile: run the command again")
        tr.clear_range(*keys.below(self.keys.prefix))
        tr.set_versionstamped_value(keys.CHANGED, keys.INCOMPLETE_VERSIONSTAMP)

    def retry(self) -> int:
        """Have workers add the rows set aside again; returns their number. Raises `NotInStore` if it was removed."""
        with self._transaction() as (conn, tables):
            number = tables.retry(conn, self.queue)
        transact(self.db, self._retried)
        return number

    def _retried(self, tr: Transaction) -> None:
        existing_settings(tr, self.queue)
        notify(tr, self.queue)

    def rows_aside(self) -> list[Any]:
        """The first 1,000 rows set aside: id, key_json, update_json, error."""
        with self.source.database.reading() as (conn, dialect):
            return OutboxTables.of(dialect, self.source.schema).aside(conn, self.queue, _PAGE)

    @contextmanager
    def _transaction(self) -> Iterator[tuple[sa.Connection, OutboxTables]]:
        with self.source.database.transaction() as (conn, dialect):
            yield conn, OutboxTables.of(dialect, self.source.schema)


def outbox_tables(db: Database) -> dict[OutboxSettings, list[str]]:
    """{table: the queues that have an outbox in it}; without outboxes whose settings are unreadable."""

    def read(tr: Transaction, name: str) -> OutboxSettings | None:
        with suppress(CorruptData):  # the check of the outbox reports it
            return read_settings(tr.snapshot, name)
        return None

    names = transact(db, lambda tr: queue_names(tr.snapshot))
    found: dict[OutboxSettings, list[str]] = defaultdict(list)
    for name, settings in zip(
        names, read_each(db, names, read, lambda name: [OutboxKeys(name).settings]), strict=True
    ):
        if settings is not None:
            found[settings].append(name)
    return dict(found)


def stray_rows(db: Database, settings: OutboxSettings, queues: Sequence[str]) -> list[StrayRows]:
    """The rows in the table of these queues' outboxes of queues that have none; of at most 100 queues.

    Raises `LinkFailed`, `InvalidConfiguration`.
    """
    source = source_of(db, settings)
    try:
        with source.database.reading() as (conn, dialect):
            return OutboxTables.of(dialect, source.schema).strays(conn, queues, source.store)
    finally:
        source.database.close()


def stray_text(strays: Sequence[StrayRows]) -> str:
    """What operators have to do about these rows."""
    shown = ", ".join(f"'{printable(each.queue)}' ({each.rows:,})" for each in strays[:_SHOWN])
    more = f" and {len(strays) - _SHOWN} others" if len(strays) > _SHOWN else ""
    return f"rows wait for queues that have no outbox: {shown}{more}: {_ADVICE}"


def place_of(settings: OutboxSettings) -> str:
    """The table, for messages."""
    return f"${settings.url_env}" + ("" if settings.schema is None else f", schema {settings.schema}")
