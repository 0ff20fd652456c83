"""The two tables of outboxes in an application's database, and all statements about them.

cq_outbox           id -> queue, key_json, update_json, operation, added_at, error    an update to add to a queue
cq_outbox_progress  queue -> store, batch                                             the fence, one row for each queue

Applications insert rows and read nothing. A worker reads rows of committed transactions without locks, and locks only
its row of `cq_outbox_progress`, so it never delays an application's transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, sqlite

from cq.config.store_id import STORE_ID_BYTES
from cq.observers.links.outbox.state import BATCH_BYTES
from cq.observers.links.sql.dialects.dialect import TABLES_REMEMBERED, Dialect
from cq.outbox import TABLE

PROGRESS: Final = "cq_outbox_progress"
BATCH_ROWS: Final = 2_000
_BATCH_CHARACTERS: Final = 1_000_000
LONGEST_ROW: Final = 700_000
"""Largest size of a row that is read: JSON escapes take up to six times the bytes of CBOR."""
_NAME_LENGTH: Final = 130
_MAX_STRAYS: Final = 100


@dataclass(frozen=True, slots=True)
class OutboxFence:
    """The row of a queue in `cq_outbox_progress`.

    Attributes:
        store: the id of the store whose workers move the rows.
        batch: the id of the latest batch whose rows are deleted.
    """

    store: bytes
    batch: bytes


class OutboxRow(NamedTuple):
    """A row to move. `key_json` is None if the row is too large to read."""

    id: int
    key_json: str | None
    update_json: str
    operation: str | None
    added_at: datetime


class OutboxBacklog(NamedTuple):
    """Rows of a queue in the table: their number, the age of the oldest one, and the number of rows set aside."""

    rows: int
    oldest_seconds: float | None
    aside: int


class StrayRows(NamedTuple):
    """Rows of a queue that no worker moves: the queue, their number, and the age of the oldest one."""

    queue: str
    rows: int
    oldest_seconds: float


@dataclass(frozen=True, slots=True)
class OutboxTables:
    """The two tables in one schema, in the types of a dialect."""

    dialect: Dialect
    rows: sa.Table
    progress: sa.Table

    @classmethod
    @lru_cache(maxsize=TABLES_REMEMBERED)
    def of(cls, dialect: Dialect, schema: str | None) -> OutboxTables:
        """The tables of a schema; None: the default one."""
        metadata = sa.MetaData()
        text, name = dialect.binary_text(None), dialect.binary_text(_NAME_LENGTH)
        number = (
            sqlite.INTEGER() if dialect.name == "sqlite" else sa.BigInteger()
        )  # only INTEGER counts in SQLite
        rows = sa.Table(
            TABLE,
            metadata,
            sa.Column("id", number, sa.Identity(always=False), primary_key=True),
            sa.Column("queue", name, nullable=False),
            sa.Column("key_json", text, nullable=False),
            sa.Column("update_json", text, nullable=False),
            sa.Column("operation", text, nullable=True),
            sa.Column("added_at", _time(dialect), nullable=False, server_default=_now(dialect)),
            sa.Column("error", text, nullable=True),
            schema=schema,
            sqlite_autoincrement=True,  # else an id is used again after its row is deleted
            **dialect.table_options,
        )
        to_move = rows.c.error.is_(None)
        sa.Index("cq_outbox_rows", rows.c.queue, rows.c.id, postgresql_where=to_move, sqlite_where=to_move)
        progress = sa.Table(
            PROGRESS,
            metadata,
            sa.Column("queue", name, primary_key=True),
            sa.Column("store", dialect.binary(STORE_ID_BYTES), nullable=False),
            sa.Column("batch", dialect.binary(BATCH_BYTES), nullable=False),
            schema=schema,
            **dialect.table_options,
        )
        return cls(dialect, rows, progress)

    # The fence

    def fence(self, conn: sa.Connection, queue: str, *, lock: bool = False) -> OutboxFence | None:
        """Read a queue's fence; with `lock`, keep it unchanged until the transaction ends. None: no row."""
        table = self.progress.c
        query = sa.select(table.store, table.batch).where(table.queue == queue)
        if lock and self.dialect.locks_rows:
            query = query.with_for_update()
        found = conn.execute(query).one_or_none()
        return None if found is None else OutboxFence(bytes(found[0]), bytes(found[1]))

    def insert_fence(self, conn: sa.Connection, queue: str, fence: OutboxFence) -> None:
        """Insert a queue's fence unless it has one."""
        row = {"queue": queue, "store": fence.store, "batch": fence.batch}
        conn.execute(self.dialect.insert_if_missing(self.progress, row))

    def set_fence(self, conn: sa.Connection, queue: str, **changes: Any) -> None:
        """Change columns of a queue's fence."""
        conn.execute(sa.update(self.progress).where(self.progress.c.queue == queue).values(changes))

    def delete_fence(self, conn: sa.Connection, queue: str) -> None:
        """Delete a queue's fence."""
        conn.execute(sa.delete(self.progress).where(self.progress.c.queue == queue))

    # Rows

    def read(self, conn: sa.Connection, queue: str) -> tuple[list[OutboxRow], bool]:
        """The first rows of committed transactions by id, and whether these are all.

        A transaction that commits later can have lower ids than rows read now: a later call reads them.
        """
        sizes = conn.execute(self._sizes(queue)).all()
        chosen: list[int] = []
        large: list[Any] = []
        total = 0
        for row in sizes:
            if row.size > LONGEST_ROW:
                large.append(row)
                continue
            total += row.size
            if chosen and total > _BATCH_CHARACTERS:
                break
            chosen.append(row.id)
        table = self.rows.c
        columns = [table.id, table.key_json, table.update_json, table.operation, table.added_at]
        query = sa.select(*columns).where(table.id.in_(chosen))
        found = conn.execute(query).all() if chosen else []
        rows = [OutboxRow(each[0], each[1], each[2], each[3], _moment(each[4])) for each in found]
        rows += [OutboxRow(each.id, None, "", None, _moment(each.added_at)) for each in large]
        return sorted(rows), len(sizes) < BATCH_ROWS and total <= _BATCH_CHARACTERS

    def _sizes(self, queue: str) -> Any:
        table = self.rows.c
        # SQLite counts characters, which is as good: only memory must be bounded.
        length = sa.func.length if self.dialect.name == "sqlite" else sa.func.octet_length
        size = (
            length(table.key_json) + length(table.update_json) + sa.func.coalesce(length(table.operation), 0)
        )
        query = sa.select(table.id, size.label("size"), table.added_at)
        return query.where(self._to_move(queue)).order_by(table.id).limit(BATCH_ROWS)

    def delete(self, conn: sa.Connection, ids: Sequence[int], until: str) -> int:
        """Delete the rows with these ids that were added until a time, in ISO 8601; returns their number."""
        table = self.rows.c
        moment = self.dialect.moment(datetime.fromisoformat(until))
        where = (table.id.in_(ids), table.added_at <= moment)
        return conn.execute(sa.delete(self.rows).where(*where)).rowcount

    def set_aside(self, conn: sa.Connection, errors: Mapping[int, str]) -> None:
        """Store the errors of rows that cannot be moved, so that `read` skips them."""
        table = self.rows
        statement = (
            sa.update(table).where(table.c.id == sa.bindparam("row")).values(error=sa.bindparam("why"))
        )
        conn.execute(statement, [{"row": row, "why": why} for row, why in errors.items()])

    def aside(self, conn: sa.Connection, queue: str, limit: int) -> list[Any]:
        """The first `limit` rows set aside: id, key_json, update_json, error."""
        table = self.rows.c
        query = sa.select(table.id, table.key_json, table.update_json, table.error)
        of_queue = query.where(table.queue == queue, table.error.is_not(None))
        return list(conn.execute(of_queue.order_by(table.id).limit(limit)))

    def retry(self, conn: sa.Connection, queue: str) -> int:
        """Let all rows set aside be moved again; returns their number."""
        where = (self.rows.c.queue == queue, self.rows.c.error.is_not(None))
        return conn.execute(sa.update(self.rows).where(*where).values(error=None)).rowcount

    def backlog(self, conn: sa.Connection, queue: str) -> OutboxBacklog:
        """Count the rows of a queue."""
        table = self.rows.c
        waiting = sa.select(sa.func.count(), sa.func.min(table.added_at)).where(self._to_move(queue))
        number, oldest = conn.execute(waiting).one()
        aside = sa.select(sa.func.count()).where(table.queue == queue, table.error.is_not(None))
        age = None if oldest is None else seconds_since(_moment(oldest))
        return OutboxBacklog(number, age, conn.execute(aside).scalar_one())

    def strays(self, conn: sa.Connection, queues: Sequence[str], store: bytes) -> list[StrayRows]:
        """Count the rows of queues without an outbox, by queue, of at most 100 queues.

        `queues` are those of the store that have an outbox in this table. Queues of other stores have a fence.
        """
        table, fence = self.rows.c, self.progress.c
        joined = self.rows.outerjoin(self.progress, table.queue == fence.queue)
        query = sa.select(table.queue, sa.func.count(), sa.func.min(table.added_at)).select_from(joined)
        is_ours = sa.or_(fence.queue.is_(None), fence.store == store)
        of_none = query.where(table.queue.not_in(queues), is_ours).group_by(table.queue)
        found = conn.execute(of_none.order_by(table.queue).limit(_MAX_STRAYS))
        return [StrayRows(queue, number, seconds_since(_moment(oldest))) for queue, number, oldest in found]

    def _to_move(self, queue: str) -> Any:
        return sa.and_(self.rows.c.queue == queue, self.rows.c.error.is_(None))


def seconds_since(moment: datetime) -> float:
    """Seconds since a time of the other machine's clock, at least 0."""
    return max(0.0, (datetime.now(UTC) - moment).total_seconds())


def _moment(stored: Any) -> datetime:
    """The time in UTC: SQLite returns text, MySQL a time without a zone."""
    found = datetime.fromisoformat(stored) if isinstance(stored, str) else stored
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


def _time(dialect: Dialect) -> sa.types.TypeEngine[Any]:
    # MySQL's TIMESTAMP is in UTC whatever the zone of the session that inserts it.
    return mysql.TIMESTAMP(fsp=6) if dialect.name == "mysql" else dialect.time()


def _now(dialect: Dialect) -> Any:
    texts = {"mysql": "CURRENT_TIMESTAMP(6)", "sqlite": "(strftime('%Y-%m-%d %H:%M:%f', 'now'))"}
    return sa.text(texts.get(dialect.name, "now()"))
