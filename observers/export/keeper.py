"""The keeper of an export: the task for everything that concerns all of its buckets.

- At the start of a worker it compares the positions of all buckets in both databases. So it detects that
  either database was set back even if the queue is empty.
- It checks whether a stopped export may continue. A stop by an observer of an earlier generation concerned its target.
- Once a new generation is completely exported, it sweeps the rows of earlier ones: their keys have no value any more.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

from cq.admin.backfill import current_generation
from cq.config.queue import ObserverConfig
from cq.keys.export import ExportKeys, first_sequence
from cq.observers.export.batch import ExportBatch, ExportPosition, KeptExporter
from cq.observers.export.failure_note import STOPPED_SECONDS, NotedTask
from cq.observers.export.queue import BUCKETS, oldest_versions
from cq.observers.export.state import ExportView, read_control, read_position, read_view
from cq.observers.scheduling.runner import DONE
from cq.observers.telemetry.bus import emit
from cq.store.api import Database, Transaction
from cq.store.transact import transact

AGAIN_SECONDS: Final = 0.2
"""How soon to check again after a concurrent rebuild or rebase."""
SWEEP_SECONDS: Final = 0.5
"""How often to check whether a generation is completely exported."""


class Keeper(NotedTask):
    """The keeper task of an export queue.

    Args:
        db: a database of either store.
        queue: the name of the export queue.
        exporter: the queue's exporter.
        observer: the observer that fills the export queue.
    """

    notification: bytes
    _generation: int
    outdated_seconds = AGAIN_SECONDS

    def __init__(self, db: Database, queue: str, exporter: KeptExporter, observer: ObserverConfig) -> None:
        self.keys = ExportKeys(queue)
        super().__init__(db, queue, self.keys, None)
        self.notification = self.keys.keeper
        self._exporter = exporter
        self._observer = observer.name
        self._generation = observer.generation
        self._backfilled_at: int | None = None

    def __str__(self) -> str:
        return f"keeper of the export of queue {self.queue!r}"

    def end(self) -> None:
        """Close the connections to the other database: the worker leaves the export."""
        self._exporter.close()

    def _step(self) -> float:
        found, notification = transact(self.db, self._read)
        self._epoch = found.control.epoch
        is_own_stop = found.stop.generation >= self._generation
        if found.stopped is not None and is_own_stop and not self._exporter.resumes:
            self._note.wait(found.stopped)
            return STOPPED_SECONDS
        self._exporter.check(empty_batches(self.db, self.queue, found))
        if found.stopped is not None:  # and the checks above have passed now
            transact(self.db, lambda tr: self._resume(tr, found))
        if found.control.swept < self._generation and not self._sweep():
            return SWEEP_SECONDS
        self._note.clear()
        if notification is not None:
            transact(self.db, lambda tr: self._done(tr, notification))
        return DONE

    def _done(self, tr: Transaction, notification: bytes) -> None:
        tr.clear(self.keys.failure(None))  # also one that a slow worker stored after this one succeeded
        # Compared: a notification written since the read must remain.
        tr.compare_and_clear(self.notification, notification)

    def _read(self, tr: Transaction) -> tuple[ExportView, bytes | None]:
        found = read_view(tr.snapshot, self.keys, range(BUCKETS))
        notification = tr.snapshot.get(self.notification)
        return found(), notification.value

    def _resume(self, tr: Transaction, found: ExportView) -> None:
        """Let a stopped export continue: the checks have passed."""
        if read_control(tr, self.keys).epoch == found.control.epoch:
            # A new epoch has its own reasons to stop.
            tr.clear(self.keys.stopped)

    # Sweeping

    def _sweep(self) -> bool:
        """Delete the rows of earlier generations once this one is completely exported; returns whether it did."""
        if not transact(self.db, self._is_exported):
            return False
        swept = self._exporter.sweep(self.queue, self._epoch, first_sequence(self._generation))
        if swept:
            emit("export_swept", queue=self.queue, rows=swept)
        transact(self.db, self._note_swept)
        return True

    def _is_exported(self, tr: Transaction) -> bool:
        """Whether all entries added before the end of the backfill are exported."""
        if self._backfilled_at is None:
            if current_generation(tr.snapshot, self.queue, self._observer) != self._generation:
                return False
            # All entries of the backfill have versions up to this one. Later entries need not be exported first.
            self._backfilled_at = tr.get_read_version().wait()
        return all(version > self._backfilled_at for version in oldest_versions(tr.snapshot, self.keys))

    def _note_swept(self, tr: Transaction) -> None:
        control = read_control(tr, self.keys)
        if control.swept < self._generation:
            tr.set(self.keys.control, replace(control, swept=self._generation).to_bytes())
            # The backfill exported the values of these keys again, or set them aside again.
            for bucket in range(BUCKETS):
                tr.clear_range(*self.keys.aside_before(bucket, first_sequence(self._generation)))


def empty_batches(db: Database, queue: str, found: ExportView) -> list[ExportBatch]:
    """A batch without entries for each bucket, for comparing positions; `found` has the states of all buckets."""
    keys = ExportKeys(queue)

    def read(sequence: bytes, bucket: int) -> ExportPosition:
        return transact(db, lambda tr: read_position(tr.snapshot, keys, bucket, sequence))

    return [
        ExportBatch(
            queue, bucket, (), cleared, found.control.epoch, cleared, (), partial(read, bucket=bucket)
        )
        for bucket in range(BUCKETS)
        for cleared in [found.cleared(bucket)]
    ]
