"""Applying what is forwarded to the receiving queue, exactly once.

The updates and the fence of their bucket change in one transaction of the receiving store, which reads the fence for
real. That is the sequence of the last entry applied; entries up to it are skipped. So a batch that comes again, after a
crash or from a worker that stood still while others went on, changes nothing.

When the store that forwards has entries cleared that the fence has not reached, the receiving store was set back, or
is another one. When the fence is at an entry that the forwarding store neither holds nor has cleared, that one was set
back. And entries of a later generation begin again with all values there are, which sums would count twice. In all of
these cases the export stops: differences that are lost or repeated cannot be made good by others.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Final

from cq import store
from cq.config.queue import QueueConfig, read_config
from cq.config.store_id import store_id
from cq.encoding.codec import DELETE
from cq.errors import CorruptData, InvalidData, InvalidUrl, QueueFull
from cq.keys.export import SEQUENCE_BYTES, generation_of, received
from cq.observers.export.batch import ExportBatch
from cq.observers.export.errors import CannotExport, ExportFailed, ExportStopped, OutdatedBatch
from cq.queue.combine_queue import CombineQueue
from cq.store.api import Database, Transaction, TransactionRead
from cq.store.transact import transact

REPEATABLE: Final = frozenset({"minimum", "maximum", "union", "last"})
"""The combiners to which it means nothing to be told of all values again."""


class ForwardExporter:
    """An exporter into a queue of another store; used by all buckets of an export queue, from any thread.

    Args:
        config: of the queue that is forwarded.
        store: the id of its store.
        generation: of the observer; entries of others are not for this one.
        into: the name of the receiving queue.
        url_env: the environment variable that has the receiving store's URL.
    """

    def __init__(
        self, config: QueueConfig, *, store: bytes, generation: int, into: str, url_env: str
    ) -> None:
        self._config = config
        self._store = store
        self._generation = generation
        self._into = CombineQueue(into)
        self._url_env = url_env
        self._opening = threading.Lock()
        self._receiving: Database | None = None

    def __call__(self, batch: ExportBatch) -> None:
        """Apply a batch; raises `CannotExport`, `ExportFailed`, `OutdatedBatch` or `ExportStopped`."""
        try:
            transact(self._database(), lambda tr: self._apply(tr, batch))
        except QueueFull as error:
            raise ExportFailed(str(error)) from error

    def check(self, batches: Sequence[ExportBatch]) -> None:
        """What batches of all buckets would find, without applying any: for the start. Raises as a call does."""
        for batch in batches:
            progress = transact(self._database(), lambda tr: self._progress(tr.snapshot, batch.bucket))  # noqa: B023
            self._may_apply(batch, progress)

    def look(self) -> str:
        """Whether the receiving store and queue are as they must be: what was found; raises as `check` does."""
        transact(self._database(), self._check_queue)
        return f"queue {self._into.name!r} of the store in ${self._url_env} takes it"

    def sweep(self, queue: str, epoch: int, below: bytes) -> int:
        """Nothing is kept of single entries."""
        return 0

    def close(self) -> None:
        """Close the receiving store."""
        with self._opening:
            receiving, self._receiving = self._receiving, None
        if receiving is not None:
            store.close(receiving)

    def _apply(self, tr: Transaction, batch: ExportBatch) -> None:
        self._check_queue(tr)
        progress = self._progress(tr, batch.bucket)
        if not self._may_apply(batch, progress):
            raise OutdatedBatch
        if progress >= batch.last or generation_of(batch.last) < self._generation:
            return
        updates = [
            (entry.key, DELETE if entry.value is None else entry.value)
            for entry in batch.ordered
            if entry.sequence > progress and generation_of(entry.sequence) == self._generation
        ]
        if updates:
            try:
                self._into.add(tr, updates)
            except InvalidData as error:
                raise CannotExport(str(error)) from error
        tr.set(self._fence(batch.bucket), batch.last)

    # The fence

    def _fence(self, bucket: int) -> bytes:
        return received(self._into.keys, self._store, bucket, self._config.name)

    def _progress(self, tr: TransactionRead, bucket: int) -> bytes:
        """Up to where a bucket was applied in this generation; empty at first."""
        progress = check_fence(tr.get(self._fence(bucket)).value)
        generation = generation_of(progress)
        if generation > self._generation:
            raise ExportFailed(
                f"a later forward of queue {self._config.name!r} than this worker knows of has begun: if that goes on, "
                f"the store was set back. {self._advice()}"
            )
        if generation == self._generation or not progress:
            return progress
        if self._config.combiner.name not in REPEATABLE:
            raise ExportStopped(
                f"queue {self._config.name!r} was forwarded into {self._into.name!r} before, and all of its values, "
                f"which are to be forwarded again, would count twice there. {self._advice()}"
            )
        return b""

    def _may_apply(self, batch: ExportBatch, progress: bytes) -> bool:
        """Whether the entries behind `progress`, which was read after the batch, may be applied; else others have.

        Raises `OutdatedBatch` when the epoch has ended, `ExportStopped` when either store was set back.
        """
        # What was cleared in earlier generations, perhaps by another kind of export, was not for this one.
        cleared = batch.cleared if generation_of(batch.cleared) == self._generation else b""
        if progress == cleared or progress in batch.known:
            return True
        if progress < cleared:
            raise ExportStopped(
                f"the store in ${self._url_env} lacks updates that bucket {batch.bucket} of queue {batch.queue!r} has "
                f"forwarded: it was set back or emptied, or is not the one forwarded to before. {self._advice()}"
            )
        position = batch.read_position(progress)
        if position.epoch != batch.epoch:
            raise OutdatedBatch
        if position.cleared >= progress:
            return False  # all of the batch has been applied and cleared
        if not position.holds:
            raise ExportStopped(
                f"the store in ${self._url_env} has updates of bucket {batch.bucket} of queue {batch.queue!r} that "
                f"this store knows nothing of: this store was set back. {self._advice()}"
            )
        return True

    def _advice(self) -> str:
        return f"Forward it from all stores into another queue than {self._into.name!r}, to begin anew"

    # The receiving store

    def _database(self) -> Database:
        """The receiving store; raises `ExportFailed` when its URL is not known, and a `StoreError`."""
        receiving = self._receiving
        if receiving is None:
            opened = self._opened()  # without the lock: this may take long
            with self._opening:
                receiving = self._receiving = self._receiving or opened
            if receiving is not opened:
                store.close(opened)
        return receiving

    def check_url(self) -> tuple[str, str, str]:
        """The receiving store's URL, with its scheme and path; raises `ExportFailed` if it is missing or wrong."""
        url = os.environ.get(self._url_env)
        if not url:
            raise ExportFailed(f"${self._url_env} is not set: it must have the URL of the receiving store")
        try:
            return url, *store.located(url)
        except InvalidUrl:
            # Not shown: it may be that of another kind of database, with its password.
            raise ExportFailed(
                f"the URL in ${self._url_env} names no store: write embedded:PATH, fdb: or fdb:/path/to/fdb.cluster"
            ) from None

    def _opened(self) -> Database:
        url, scheme, path = self.check_url()
        if scheme == "embedded" and not os.path.exists(path):  # opening it would make an empty one
            raise ExportFailed(
                f"there is no store where ${self._url_env} says: make it, or correct the variable"
            )
        db = store.open(url)
        if transact(db, store_id) == self._store and self._into.name == self._config.name:
            raise ExportFailed(
                f"queue {self._config.name!r} would be forwarded into itself: ${self._url_env} has this store's URL"
            )
        return db

    def _check_queue(self, tr: Transaction) -> None:
        """Raises `ExportFailed` unless the receiving queue combines as the one that is forwarded does."""
        found, own = read_config(tr, self._into.name).settings(), self._config.settings()
        wrong = [
            f"{what} {found[what]} for {own[what]}"
            for what in ("key", "value", "combiner")
            if found[what] != own[what]
        ]
        if wrong:
            raise ExportFailed(
                f"the receiving queue {self._into.name!r} has {', '.join(wrong)}: forward into a queue of the same kind"
            )


def check_fence(stored: bytes | None) -> bytes:
    """A fence as stored, empty when there is none; raises `CorruptData` for what is none."""
    if stored is not None and len(stored) != SEQUENCE_BYTES:
        raise CorruptData(f"what a queue keeps of those forwarded into it is not cq's: {stored[:40]!r}")
    return stored or b""
