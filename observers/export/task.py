"""The task that exports one bucket of an export queue: read a batch, call the exporter, clear the batch.

    1. Read, at one version: the bucket's state, its notification, and its first entries.
    2. Call the exporter. Entries that it can never export are set aside in the store before later ones are exported.
    3. Clear the entries in the store, in a transaction that reads the bucket's state with a conflict range and writes
       the new position: of two workers with the same batch, the slower one finds the batch cleared.

After a crash between 2 and 3 the batch is exported again; an exporter recognizes its entries by their sequences. A
failing exporter is retried after growing pauses, and delays its own bucket only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from cq import runtime
from cq.config.queue import ObserverConfig, QueueConfig
from cq.encoding import codec
from cq.errors import InvalidConfiguration
from cq.keys import INCOMPLETE_VERSIONSTAMP, after
from cq.keys.export import ExportKeys
from cq.observers.export.batch import (
    BATCH_BYTES,
    BATCH_ENTRIES,
    ExportBatch,
    Exporter,
    ExportFailed,
    ExportPosition,
    KeptExporter,
    OutdatedBatch,
    PoisonEntryIsolator,
)
from cq.observers.export.failure_note import STOPPED_SECONDS, FailureNote, NotedTask
from cq.observers.export.keeper import Keeper
from cq.observers.export.queue import BUCKETS
from cq.observers.export.rows import QueuedEntries, ReadLimits, read_entries
from cq.observers.export.state import (
    AsideEntry,
    ExportState,
    ExportView,
    read_position,
    read_view,
    set_entry_aside,
)
from cq.observers.scheduling.runner import DONE
from cq.observers.scheduling.task import Task
from cq.observers.telemetry.bus import during, emit
from cq.store.api import Database, Transaction, TransactionRead
from cq.store.sizes import fitting
from cq.store.transact import transact

_ERROR_BYTES: Final = 1_500
"""Maximum bytes of an entry set aside, in addition to its key and value; most of them are the error."""
AHEAD_SECONDS: Final = 1.0
"""How often to check for entries of a later generation, which only workers with its configuration may export."""


@dataclass(slots=True)
class BucketRead:
    """The data of a bucket, read at one version."""

    export: ExportView
    notification: bytes | None
    queued: QueuedEntries


class ExportTask(NotedTask):
    """The task that exports one bucket; one thread at a time may use it.

    Args:
        db: a database of either store.
        queue: the name of the export queue.
        bucket: the bucket's number.
        exporter: see `Exporter`.
        generation: the newest generation that this exporter may export (None: all). It keeps a worker with an outdated
            configuration from exporting entries of a newer generation into the old table.
        width: how many of the queue's buckets are exported at once; None: all.

    Attributes:
        notification: a key that exists while the bucket has entries.
        batch_bytes, batch_entries: approximate limits of a batch.
        signal: called with the name of each completed step, for tests.
    """

    notification: bytes
    batch_bytes = BATCH_BYTES
    batch_entries = BATCH_ENTRIES
    signal: Callable[[str], object] = staticmethod(lambda point: None)

    def __init__(
        self,
        db: Database,
        queue: str,
        bucket: int,
        exporter: Exporter,
        *,
        generation: int | None = None,
        width: int | None = None,
    ) -> None:
        self.keys = ExportKeys(queue)
        super().__init__(db, queue, self.keys, bucket)
        self.bucket = bucket
        self.notification = self.keys.notification(bucket)
        self.notification_prefix = self.notification[:-4]
        self.progress_key = self.keys.state(bucket)
        self.max_parallel = width
        self._isolator = PoisonEntryIsolator(exporter, self._set_aside)
        self._generation = generation

    def waits(self, tr: TransactionRead) -> bool:
        """Whether the export is stopped."""
        return read_view(tr, self.keys, ())().stopped is not None

    def __str__(self) -> str:
        return f"export of bucket {self.bucket} of queue {self.queue!r}"

    def _step(self) -> float:
        """Export one batch; returns 0.0 if there are more entries, `DONE` if there are none."""
        read = transact(self.db, self._read)
        self._epoch = read.export.control.epoch
        if read.export.stopped is not None:
            self._note.wait(read.export.stopped)
            return STOPPED_SECONDS
        self.signal("read")
        begun = runtime.monotonic()
        self.found_work = read.queued.last_key is not None
        if not self.found_work:
            # No row was read: reading stopped at the first one, or the bucket is empty.
            if read.queued.foreign:
                raise ExportFailed("an entry is stamped later than the read version: was it copied here?")
            if read.queued.is_ahead:
                return AHEAD_SECONDS
            self._note.clear()
            return DONE
        with during("export_done", queue=self.queue, bucket=self.bucket):
            self._export(read)  # outside of any transaction: an exporter may take longer than five seconds
            self.signal("exported")
            transact(self.db, lambda tr: self._clear(tr, read))
            self._note.clear()
            emit(
                "export_done",
                queue=self.queue,
                bucket=self.bucket,
                entries=len(read.queued.entries),
                seconds=runtime.monotonic() - begun,
            )
        self.signal("cleared")
        return DONE if read.queued.at_end else 0.0

    # 1: reading

    def _read(self, tr: Transaction) -> BucketRead:
        """Read the bucket's state, notification and first entries; clear the notification if there are no entries."""
        version = tr.get_read_version()
        export = read_view(tr.snapshot, self.keys, [self.bucket])
        notification = tr.snapshot.get(self.notification)
        limits = ReadLimits(version.wait(), self.batch_bytes, self.batch_entries, self._generation)
        queued = read_entries(tr.snapshot, self.keys, self.bucket, limits)
        read = BucketRead(export(), notification.value, queued)
        if queued.last_key is None and queued.at_end and read.export.stopped is None:
            self._clear_notification(tr, read.notification)
            if read.notification is not None:
                # A slow worker may have stored its failure after another one exported the batch.
                tr.clear(self.keys.failure(self.bucket))
        return read

    # 2: exporting

    def _export(self, read: BucketRead) -> None:
        queued = read.queued
        batch = ExportBatch(
            queue=self.queue,
            bucket=self.bucket,
            ordered=queued.entries,
            last=queued.last,
            epoch=read.export.control.epoch,
            cleared=read.export.cleared(self.bucket),
            known={entry.sequence for entry in queued.entries} | {queued.last},
            read_position=self._read_position,
        )
        # First set the broken rows aside: the export advances the position past them.
        self._keep(
            batch.epoch,
            [AsideEntry(self.bucket, each.sequence, each.error, None, each.data) for each in queued.broken],
        )
        self._isolator.export(batch)

    def _read_position(self, sequence: bytes) -> ExportPosition:
        return transact(self.db, lambda tr: read_position(tr.snapshot, self.keys, self.bucket, sequence))

    def _set_aside(self, batch: ExportBatch, errors: Mapping[bytes, str]) -> None:
        """Set aside entries that cannot be exported; raises `OutdatedBatch` if another worker has passed them."""
        for sequence, error in errors.items():
            emit(
                "entry_set_aside",
                queue=self.queue,
                bucket=self.bucket,
                sequence=sequence.hex(),
                error=error,
            )

        self._keep(
            batch.epoch,
            [
                AsideEntry(
                    self.bucket, entry.sequence, errors[entry.sequence], entry.encoded_key, entry.value
                )
                for entry in batch.ordered
                if entry.sequence in errors
            ],
        )

    def _keep(self, epoch: int, entries: Sequence[AsideEntry]) -> None:
        """Set entries aside, as many in each transaction as fit. Idempotent.

        Raises `OutdatedBatch` if an entry was cleared or the epoch has changed; conflicts with both.
        """

        def keep(tr: Transaction, some: Sequence[AsideEntry]) -> None:
            found = read_view(tr, self.keys, [self.bucket])()
            if found.control.epoch != epoch or found.cleared(self.bucket) >= some[0].sequence:
                raise OutdatedBatch
            for each in some:
                set_entry_aside(tr, self.keys, each)

        while entries:
            number = fitting(map(_size, entries))
            transact(self.db, partial(keep, some=entries[:number]))
            entries = entries[number:]

    # 3: clearing

    def _clear(self, tr: Transaction, read: BucketRead) -> None:
        queued, epoch = read.queued, read.export.control.epoch
        found = read_view(tr, self.keys, [self.bucket])()
        if found.control.epoch != epoch:
            return  # a rebuild or rebase decides what the new epoch exports: leave the entries
        if found.cleared(self.bucket) >= queued.last:
            return  # another worker was faster, or this is a retry after a commit with unknown result
        if queued.last_key is None or tr.snapshot.get(queued.last_key).value is None:
            raise OutdatedBatch  # neither cleared nor present: the queue was deleted, or the store set back
        tr.clear_range(self.keys.rows(self.bucket)[0], after(queued.last_key))
        tr.set(self.keys.state(self.bucket), ExportState(epoch, queued.last).to_bytes())
        tr.clear(self.keys.failure(self.bucket))  # also one that another worker stored
        if queued.at_end:
            self._clear_notification(tr, read.notification)

    def _clear_notification(self, tr: Transaction, value: bytes | None) -> None:
        """Clear the notification if it is unchanged: an entry added since the read has written a new value."""
        if value is not None:
            tr.compare_and_clear(self.notification, value)


def _size(entry: AsideEntry) -> int:
    """The bytes that an entry takes when set aside, approximately."""
    return len(entry.encoded_key or b"") + len(codec.encode(entry.value)) + _ERROR_BYTES


def kept_tasks(
    db: Database, config: QueueConfig, observer: ObserverConfig, make: Callable[[], KeptExporter]
) -> list[Task]:
    """The tasks for an export queue that an observer of a queue fills: the keeper first, then one for each bucket.

    Notifies the keeper, so that it checks both databases when a worker starts. If this process lacks an address, a
    secret or a package, returns no tasks and stores the failure: other workers may have them.

    Args:
        db: a database of either store.
        config: the observed queue; the export queue has the same name.
        observer: the observer that fills the export queue.
        make: makes the exporter, which all tasks share.
    """
    keys = ExportKeys(config.name)
    try:
        exporter = make()
        exporter.check_settings()
    except (ExportFailed, InvalidConfiguration) as error:
        FailureNote(db, keys, None).give_up(f"export of queue {config.name!r}", error)
        return []
    transact(db, lambda tr: wake_keeper(tr, keys))
    tasks: list[Task] = [Keeper(db, config.name, exporter, observer)]
    for bucket in range(BUCKETS):
        task = ExportTask(
            db, config.name, bucket, exporter, generation=observer.generation, width=exporter.width
        )
        task.batch_bytes, task.batch_entries = exporter.batch_bytes, exporter.batch_entries
        tasks.append(task)
    return tasks


def exporter_tasks(db: Database, name: str, exporter: Exporter) -> list[Task]:
    """The tasks for an export queue with an application's own exporter: one for each bucket."""
    return [ExportTask(db, name, bucket, exporter) for bucket in range(BUCKETS)]


def wake_keeper(tr: Transaction, keys: ExportKeys) -> None:
    """Notify the export's keeper, so that it checks all buckets again."""
    tr.set_versionstamped_value(keys.keeper, INCOMPLETE_VERSIONSTAMP)
