"""What somebody decides when a database was set back: export everything again, or go on from where both are.

Both begin a new epoch. In the reporting database all progress of earlier ones is closed, for good, in the transaction
that makes the progress of the new one: so a worker that read a batch before cannot apply it after. Then the store takes
over the new epoch. If that is not reached, the export stands still, and either can be run again.
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from cq.admin.configure import rebuild_observer
from cq.keys.export import ExportKeys, generation_of
from cq.observers.export.errors import ExportFailed
from cq.observers.export.position import read_position
from cq.observers.export.queue import BUCKETS
from cq.observers.export.state import Control, ExportState, read_control, read_view
from cq.observers.export.tasks import wake_keeper
from cq.observers.sql.check import check
from cq.observers.sql.configured import NAME, Export
from cq.observers.sql.progress import CLOSED, Feeder, ProgressTables
from cq.observers.sql.table import SEQUENCE
from cq.store.api import Database, Transaction
from cq.store.transact import transact

_MAX_GENERATIONS: Final = 1_000


def rebase(db: Database, export: Export) -> int:
    """Go on exporting from where the store is, whatever the reporting database holds; returns the new epoch.

    Nothing is exported again. A table that another queue feeds is taken over. Raises `ExportFailed`.
    """
    keys = ExportKeys(export.queue)
    epoch = _take_over(db, export, keys)
    if not transact(db, lambda tr: _begin_epoch(tr, keys, epoch)):
        raise ExportFailed(f"another rebuild or rebase of queue {export.queue!r} has overtaken this one")
    return epoch


def rebuild(db: Database, export: Export) -> int:
    """Export all values again, through the passes and without stopping, then sweep; returns the new generation.

    The workers do it; this returns at once. Raises `ExportFailed`.
    """
    highest = _highest_generation(export)
    generation = _new_generation(db, export.queue)
    # In a store that was set back, numbers come again that the table already has.
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
    """The latest generation of which anything is in the table."""
    with export.reporting.transaction() as (conn, dialect):
        check(conn, dialect, export.definition, export.queue)
        sequence = export.definition.table(dialect).c[SEQUENCE]
        found = conn.execute(sa.select(sequence).order_by(sequence.desc()).limit(1)).scalar_one_or_none()
    return 0 if found is None else generation_of(bytes(found))


def _take_over(db: Database, export: Export, keys: ExportKeys) -> int:
    """Close all epochs before in the reporting database, and make the progress of a new one."""
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
            # Also where nothing was exported: a worker may have read its first batch, or the store be set back.
            own.insert_if_missing(conn, feeder, control.epoch, bucket, CLOSED)
            progress = latest.get(bucket, b"")
            start = _start(db, keys, bucket, progress)
            own.insert_if_missing(conn, feeder, epoch, bucket, start)
    return epoch


def _start(db: Database, keys: ExportKeys, bucket: int, progress: bytes) -> bytes:
    """From where a bucket is to go on: what was applied and waits to be cleared is not applied again."""
    position = transact(db, lambda tr: read_position(tr.snapshot, keys, bucket, progress))
    return progress if position.holds else position.cleared


def _begin_epoch(tr: Transaction, keys: ExportKeys, epoch: int) -> bool:
    """Take over a new epoch, with what is known of each bucket in the one before; False if another one was faster."""
    found = read_view(tr, keys, range(BUCKETS))()
    if found.control.epoch >= epoch:
        return found.control.epoch == epoch  # when the commit before got lost
    for bucket in range(BUCKETS):
        tr.set(keys.state(bucket), ExportState(epoch, found.cleared(bucket)).to_bytes())
    tr.set(keys.control, Control(epoch, found.control.swept).to_bytes())
    tr.clear(keys.stopped)
    wake_keeper(tr, keys)
    return True
