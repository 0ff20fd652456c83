"""How a worker waits until an outbox has rows: by LISTEN on PostgreSQL, and by a query each second everywhere.

An application's transaction that began before the worker waits does not notify it, so PostgreSQL is queried, too.

PostgreSQL's trigger on the rows notifies waiting workers. An application's role needs no right to read
`cq_outbox_progress`, as the trigger's function runs with the rights of its owner (SECURITY DEFINER). So nobody else may
decide what it reads: the name of the table with its schema is fixed in the function, only the owner may attach the
function to a table, and no other role can replace the table.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from cq import runtime
from cq.observers.links.outbox.table import OutboxTables
from cq.observers.links.sql.engine import ReportingDatabase
from cq.observers.links.target import LinkFailed
from cq.outbox import TABLE
from cq.plain_text import describe
from cq.store.api import error_code

CHANNEL: Final = "cq_outbox"
"""The channel of the notifications."""
_NAME: Final = "cq_outbox_notify"

# NOTIFY takes a lock that makes commits wait for each other, so the trigger notifies only while a worker waits.
_BODY: Final = """
BEGIN
  IF EXISTS (SELECT 1 FROM %I.cq_outbox_progress WHERE waiting) THEN
    PERFORM pg_catalog.pg_notify('cq_outbox', '');
  END IF;
  RETURN NULL;
END
"""
_FUNCTION: Final = (
    "CREATE OR REPLACE FUNCTION %I.cq_outbox_notify() RETURNS trigger "
    "LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS %L"
)
_REVOKE: Final = "REVOKE ALL ON FUNCTION %I.cq_outbox_notify() FROM PUBLIC"
_TRIGGER: Final = (
    "CREATE TRIGGER cq_outbox_notify AFTER INSERT ON %I.cq_outbox "
    "FOR EACH STATEMENT EXECUTE FUNCTION %I.cq_outbox_notify()"
)
_DROP: Final = "DROP FUNCTION IF EXISTS %I.cq_outbox_notify() CASCADE"

_TABLES: Final = sa.text("""
SELECT n.nspname, n.oid AS namespace, r.oid AS rows, p.oid AS progress
FROM pg_catalog.pg_class r
JOIN pg_catalog.pg_namespace n ON n.oid = r.relnamespace
JOIN pg_catalog.pg_class p ON p.relnamespace = n.oid AND p.relname = 'cq_outbox_progress'
WHERE r.oid = pg_catalog.to_regclass(:name)
""")
_FOUND: Final = sa.text("""
SELECT f.prosrc, f.prosecdef, f.proconfig, o.rolname,
  o.rolsuper OR o.rolcreaterole OR o.rolbypassrls OR o.rolreplication AS is_administrator,
  EXISTS (
    SELECT 1 FROM pg_catalog.aclexplode(coalesce(f.proacl, pg_catalog.acldefault('f', f.proowner))) a
    WHERE a.grantee = 0
  ) AS is_public,
  EXISTS (SELECT 1 FROM pg_catalog.pg_trigger t WHERE t.tgrelid = :rows AND t.tgfoid = f.oid) AS is_attached
FROM pg_catalog.pg_proc f
JOIN pg_catalog.pg_roles o ON o.oid = f.proowner
WHERE f.pronamespace = :namespace AND f.proname = 'cq_outbox_notify' AND f.pronargs = 0
""")
# An administrator need not be a superuser: that of a managed PostgreSQL is none.
# The owner of a schema may drop each table in it. `pg_database_owner` stands for the owner of the database.
_OTHER_OWNERS: Final = sa.text("""
SELECT DISTINCT o.rolname
FROM (
  SELECT nspowner AS role FROM pg_catalog.pg_namespace WHERE oid = :namespace
  UNION ALL SELECT relowner FROM pg_catalog.pg_class WHERE oid IN (:rows, :progress)
) owned
JOIN pg_catalog.pg_roles r ON r.oid = owned.role
JOIN pg_catalog.pg_database d ON d.datname = pg_catalog.current_database()
JOIN pg_catalog.pg_roles o ON o.oid = CASE WHEN r.rolname = 'pg_database_owner' THEN d.datdba ELSE r.oid END
WHERE NOT o.rolsuper AND o.rolname <> :owner
ORDER BY o.rolname
""")
log = logging.getLogger("cq.worker")
POLL_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class OutboxTrigger:
    """The trigger on the table of one schema, which may be missing.

    Attributes:
        schema: the name of the schema.
        places: the ids of the schema and of the two tables.
    """

    schema: str
    places: dict[str, int]

    @classmethod
    def of(cls, conn: sa.Connection, schema: str | None) -> OutboxTrigger:
        """The trigger on the table in a schema (None: on the search path); raises `LinkFailed` without tables."""
        quoted = "" if schema is None else f"{conn.dialect.identifier_preparer.quote_identifier(schema)}."
        found = conn.execute(_TABLES, {"name": quoted + TABLE}).one_or_none()
        if found is None:
            raise LinkFailed("the application's database has no tables cq_outbox and cq_outbox_progress")
        return cls(
            found.nspname, {"namespace": found.namespace, "rows": found.rows, "progress": found.progress}
        )

    def exists(self, conn: sa.Connection) -> bool:
        """Whether the table has the trigger."""
        found = self._found(conn)
        return found is not None and found.is_attached

    def put(self, conn: sa.Connection) -> None:
        """Create the trigger, or replace an outdated function of it.

        Raises `LinkFailed` where another role could then use the rights of the owner.
        """
        found = self._found(conn)
        if found is None or self._problems(conn, found):
            self._run(conn, _FUNCTION, self._text(conn, _BODY))
            self._run(conn, _REVOKE)
        if found is None or not found.is_attached:
            self._run(conn, _TRIGGER, self.schema)
        if problems := self.problems(conn):
            raise LinkFailed("; ".join(problems))

    def drop(self, conn: sa.Connection) -> None:
        """Drop the trigger and its function, if there are any; waits for transactions that have inserted rows."""
        if self._found(conn) is not None:
            self._run(conn, _DROP)

    def problems(self, conn: sa.Connection) -> list[str]:
        """Wrong rights of the function, each with its remedy; empty without a function."""
        found = self._found(conn)
        return [] if found is None else self._problems(conn, found)

    def _problems(self, conn: sa.Connection, found: Any) -> list[str]:
        problems = []
        function = f"the trigger function {self.schema}.{_NAME}"
        again = f"run `cq outbox init QUEUE` as the role {found.rolname}"
        is_safe = found.prosecdef and found.proconfig == ["search_path=pg_catalog, pg_temp"]
        if not is_safe or found.prosrc != self._text(conn, _BODY):
            problems.append(f"{function} is not the present one, and may be unsafe: {again}")
        if found.is_public:
            problems.append(f"every role may attach {function} to its own tables: {again}")
        owned = {**self.places, "owner": found.rolname}
        others = conn.execute(_OTHER_OWNERS, owned).scalars().all() if found.is_administrator else []
        if others:
            problems.append(
                f"{function} runs with the rights of the administrator {found.rolname}, and the role {others[0]} can "
                f"replace the table that it reads: run `cq outbox init QUEUE --no-trigger` as {found.rolname}, then "
                f"`cq outbox init QUEUE --trigger` as the role {others[0]}"
            )
        return problems

    def _found(self, conn: sa.Connection) -> Any:
        """The row of the function; None: there is none."""
        places = {what: self.places[what] for what in ("namespace", "rows")}
        return conn.execute(_FOUND, places).one_or_none()

    def _run(self, conn: sa.Connection, statement: str, *others: str) -> None:
        text = self._text(conn, statement, *others)
        conn.exec_driver_sql(text, execution_options={"no_parameters": True})

    def _text(self, conn: sa.Connection, template: str, *others: str) -> str:
        """Fill the schema and further texts in; PostgreSQL quotes them."""
        values = {f"v{number}": value for number, value in enumerate((self.schema, *others))}
        given = ", ".join(f"CAST(:{name} AS text)" for name in values)
        query = sa.text(f"SELECT pg_catalog.format(CAST(:template AS text), {given})")
        return str(conn.execute(query, {"template": template, **values}).scalar_one())


class RowWatch:
    """Watches the outbox of one queue in a thread of its own while it is started.

    Args:
        database: the application's database.
        schema: of the tables.
        queue: the queue's name.
        found: called in the thread once there are rows, or the database cannot be queried; the watch then ends.
    """

    def __init__(
        self, database: ReportingDatabase, schema: str | None, queue: str, found: Callable[[], object]
    ) -> None:
        self._database, self._schema, self._queue, self._found = database, schema, queue, found
        self._stopping: Any = None

    def start(self) -> None:
        """Begin to watch, in place of an earlier watch that may not have ended."""
        self.stop()
        self._stopping = stopping = runtime.event()
        runtime.start_thread(lambda: self._watch(stopping), f"cq-outbox-{self._queue}")

    def stop(self) -> None:
        """End the watch soon, without waiting for its thread."""
        if self._stopping is not None:
            self._stopping.set()

    def _watch(self, stopping: Any) -> None:
        try:
            self._wait(stopping)
        except Exception as error:  # noqa: BLE001 - the task must run again: it finds the same error, and notes it
            log.debug("the watch of the outbox of queue %r has failed: %s", self._queue, describe(error))
            stopping.wait(POLL_SECONDS)
        while not self._is_reported(stopping):
            stopping.wait(POLL_SECONDS)  # the store fails

    def _is_reported(self, stopping: Any) -> bool:
        """Call `found`, unless the watch is stopped; returns False if the store has failed."""
        try:
            if not stopping.is_set():
                self._found()
        except Exception as error:
            if stopping.is_set():
                return True  # the process may have closed the store meanwhile
            if error_code(error) is None:
                raise
            return False
        return True

    def _wait(self, stopping: Any) -> None:
        """Return once there are rows, or the watch is stopped; raises `CqError`."""
        while not stopping.is_set():
            with self._database.reading() as (conn, dialect):
                tables = OutboxTables.of(dialect, self._schema)
                if dialect.name == "postgresql" and conn.dialect.driver == "psycopg":
                    self._listen(conn, tables, stopping)
                    return
                if tables.has_rows(conn, self._queue):
                    return
            stopping.wait(POLL_SECONDS)

    def _listen(self, conn: sa.Connection, tables: OutboxTables, stopping: Any) -> None:
        """As `_wait`, by psycopg's notifications."""
        conn.execution_options(
            isolation_level="AUTOCOMMIT"
        )  # a transaction that stays open would hinder VACUUM
        driver: Any = conn.connection.driver_connection
        conn.detach()  # from the pool: it must not get back a connection that listens
        conn.exec_driver_sql(f"LISTEN {CHANNEL}")
        while not stopping.is_set() and not tables.has_rows(conn, self._queue):
            try:
                for _ in driver.notifies(timeout=POLL_SECONDS, stop_after=1):
                    pass
            except conn.dialect.loaded_dbapi.Error as error:
                raise LinkFailed(
                    f"the connection that waits for rows has failed: {type(error).__name__}"
                ) from None
