"""Rebuild and rebase of an export, for an operator whose store or reporting database was set back.

A rebuild exports everything again; a rebase continues from the present positions. Both begin a new epoch. One
transaction in the reporting database closes the progress of all earlier epochs for ever and creates that of the new
one: so a worker cannot apply a batch that it read before. Then the store changes to the new epoch. After a crash
between the two the export is stopped, and the operator can run either again.
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from cq.admin.configure import rebuild_observer
from cq.keys.export import ExportKeys, generation_of
from cq.observers.export.batch import CLOSED, ExportFailed
from cq.observers.export.queue import BUCKETS
from cq.observers.export.spec import NAME
from cq.observers.export.state import Control, ExportState, read_control, read_position, read_view
from cq.observers.export.task import wake_keeper
from cq.observers.sql.check import check
from cq.observers.sql.configured import Export
from cq.observers.sql.progress import Feeder, ProgressTables
from cq.observers.sql.table import SEQUENCE
from cq.store.api import Database, Transaction
from cq.store.transact import transact

_MAX_GENERATIONS: Final = 1_000


def rebase(db: Database, export: Export) -> int:
    """Continue the export from the present positions, without comparing any rows; returns the new epoch.

    No entry is exported again. A table of another queue is taken over. Raises `ExportFailed`.
    """
    keys = ExportKeys(export.queue)
    epoch = _take_over(db, export, keys)
    if not transact(db, lambda tr: _begin_epoch(tr, keys, epoch)):
        raise ExportFailed(f"another rebuild or rebase of queue {export.queue!r} has overtaken this one")
    return epoch


def rebuild(db: Database, export: Export) -> int:
    """Have all values exported again by the passes, and the table swept after that; returns the new generation.

    Returns at once: workers do the export, while the queue is in use. Raises `ExportFailed`.
    """
    highest = _highest_generation(export)
    generation = _new_generation(db, export.queue)
    # A store that was set back assigns generations again that rows of the table already have.
    if highest - generation > _MAX_GENERATIONS:
        raise ExportFailed(
            f"the table {str(export.definition)!r} has rows with sequences that are not cq's: empty it first"
        )
    while generation <= highest:
        generation = _new_generation(db, export.queue)
    rebase(db, export)
    return generation


def _new_generation(db: Database, queue: str) -> int:
    config = rebuild_observer(db, queue, NAME)
    return next(each.generation for each in config.observers if each.name == NAME)


def _highest_generation(export: Export) -> int:
    """The newest generation that has a row in the table; 0 for an empty table."""
    with export.reporting.transaction() as (conn, dialect):
        check(conn, dialect, export.definition, export.queue)
        sequence = export.definition.table(dialect).c[SEQUENCE]
        found = conn.execute(sa.select(sequence).order_by(sequence.desc()).limit(1)).scalar_one_or_none()
    return 0 if found is None else generation_of(bytes(found))


def _take_over(db: Database, export: Export, keys: ExportKeys) -> int:
    """Close all earlier epochs in the reporting database and create the progress of a new one; returns its number."""
    feeder = Feeder(export.store, export.queue)
    with export.reporting.transaction() as (conn, dialect):
        check(conn, dialect, export.definition, export.queue)
        own = ProgressTables.of(dialect, export.definition.schema)
        own.take(conn, str(export.definition), feeder)
        own.lock_all(conn, feeder)
        before = own.all_of(conn, feeder)
        control = transact(db, lambda tr: read_control(tr.snapshot, keys))
        epoch = max([control.epoch, *(epoch for epoch, _ in before)]) + 1
        latest = {bucket: sequence for (_, bucket), sequence in sorted(before.items())}
        own.close(conn, feeder)
        for bucket in range(BUCKETS):
            # Also without progress: a worker may hold its first batch, or the store may have been set back.
            own.insert_if_missing(conn, feeder, control.epoch, bucket, CLOSED)
            progress = latest.get(bucket, b"")
            start = _start(db, keys, bucket, progress)
            own.insert_if_missing(conn, feeder, epoch, bucket, start)
    return epoch


def _start(db: Database, keys: ExportKeys, bucket: int, progress: bytes) -> bytes:
    """The position from which a bucket continues: it skips entries already applied but not yet cleared."""
    position = transact(db, lambda tr: read_position(tr.snapshot, keys, bucket, progress))
    return progress if position.holds else position.cleared


def _begin_epoch(tr: Transaction, keys: ExportKeys, epoch: int) -> bool:
    """Change the store to a new epoch, with the buckets' present positions; False if a later one has begun."""
    found = read_view(tr, keys, range(BUCKETS))()
    if found.control.epoch >= epoch:
        return found.control.epoch == epoch  # equal: this is a retry after a commit with unknown result
    for bucket in range(BUCKETS):
        tr.set(keys.state(bucket), ExportState(epoch, found.cleared(bucket)).to_bytes())
    tr.set(keys.control, Control(epoch, found.control.swept).to_bytes())
    tr.clear(keys.stopped)
    wake_keeper(tr, keys)
    return True
