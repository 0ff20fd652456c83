"""The speed of an export into PostgreSQL, against that of COPY of the same rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cq import runtime
from cq.cli.bench.measures.measured_system import MeasuredSystem, Notify, Result, measuring, medians
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
    exports, copies = [], []
    with measuring(queue, plan, notify, drainers=plan.workers) as run, _connected(conninfo) as connection:
        connection.execute(f'CREATE TABLE {_COPIED} (LIKE "{queue.queue}" INCLUDING ALL)')
        try:
            for _ in run.repetitions("export"):
                connection.execute(f'TRUNCATE "{queue.queue}", {_COPIED}')
                exports.append(_export(run, workload))
                copies.append(_copy(connection, queue.queue))
                _check(connection, queue.queue, workload.keys)
        finally:
            connection.execute(f"DROP TABLE {_COPIED}")
    del exports[0], copies[0]  # of the warm-up
    ratios = [copied / exported for exported, copied in zip(exports, copies, strict=True)]
    return {
        "system": queue.name,
        "size": workload.keys,
        "workers": plan.workers,
        **medians(
            exported=[workload.keys / each for each in exports],
            copied=[workload.keys / each for each in copies],
            to_copy=ratios,
        ),
    }


def _connected(conninfo: str) -> psycopg.Connection[Any]:
    connection: psycopg.Connection[Any] = require("psycopg").connect(conninfo, autocommit=True)
    return connection


def _export(run: MeasuredSystem[QueueSystem], workload: BenchWorkload) -> float:
    """Export a row for each key; returns the seconds."""
    run.system.queue_rows(workload)
    return run.drain()


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
