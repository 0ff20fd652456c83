"""The speed of an export into PostgreSQL, against that of COPY of the same rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cq import runtime
from cq.cli.bench.measures.measured_system import Figures, Notify, Result, measuring
from cq.cli.bench.systems.backends import require
from cq.cli.bench.systems.cq_queue import QueueSystem
from cq.cli.bench.systems.system import BenchWorkload, Plan, WrongSum

if TYPE_CHECKING:
    import psycopg

_COPIED: Final = "cq_bench_copied"


def measure_export(
    queue: QueueSystem, conninfo: str, workload: BenchWorkload, plan: Plan, notify: Notify
) -> Result:
    """Measure an export of a new row for each key of the workload, and a COPY of the same rows, in turns.

    Each repetition begins with empty tables. The rows are queued in the export's log before, and COPY has its data in
    binary format in memory: neither is measured. Both tables have the same definition.

    Args:
        queue: a queue with an export.
        conninfo: the connection string of the database that it is exported to.

    Raises:
        WrongSum: a table lacks rows.
        ProcessFailed: the worker has failed.
    """
    keys = workload.keys
    with measuring(queue, plan, notify, drainers=plan.workers) as run, _connected(conninfo) as connection:
        connection.execute(f'CREATE TABLE {_COPIED} (LIKE "{queue.queue}" INCLUDING ALL)')

        def once(_: float) -> Figures:
            connection.execute(f'TRUNCATE "{queue.queue}", {_COPIED}')
            queue.queue_rows(workload)
            exported = run.drain()
            copied = _copy(connection, queue.queue)
            _check(connection, queue.queue, keys)
            return {"exported": keys / exported, "copied": keys / copied, "to_copy": copied / exported}

        try:
            figures = run.repeat("export", once)
        finally:
            connection.execute(f"DROP TABLE {_COPIED}")
    return {"system": queue.name, "size": keys, "workers": plan.workers, **figures}


def _connected(conninfo: str) -> psycopg.Connection[Any]:
    connection: psycopg.Connection[Any] = require("psycopg").connect(conninfo, autocommit=True)
    return connection


def _copy(connection: psycopg.Connection[Any], table: str) -> float:
    """Copy the rows of the table; returns the seconds of writing them."""
    with connection.cursor() as cursor:
        with cursor.copy(f'COPY "{table}" TO STDOUT (FORMAT BINARY)') as read:
            data = b"".join(map(bytes, read))
        begin = runtime.monotonic()
        with cursor.copy(f"COPY {_COPIED} FROM STDIN (FORMAT BINARY)") as written:
            written.write(data)
        return runtime.monotonic() - begin


def _check(connection: psycopg.Connection[Any], table: str, rows: int) -> None:
    for each in (table, _COPIED):
        found = connection.execute(f'SELECT count(*), sum(value) FROM "{each}"').fetchone()  # noqa: S608
        if found != (rows, rows):
            raise WrongSum(f"the table {each} has {found} rows and their sum instead of {rows:,} rows of 1")
