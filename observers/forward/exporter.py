"""The exporter that applies forwarded updates to the receiving queue, with exactly-once effect.

One transaction of the receiving store reads the fence of a bucket (see `FencedExporter`) with a conflict range, adds
the updates, and advances the fence. The export stops if either store was set back, and if a new generation begins with
all present values, which sums would count twice: lost or repeated differences cannot be corrected by later ones.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cq import store
from cq.combiners import resolve
from cq.config.queue import QueueConfig, read_config
from cq.config.store_id import store_id
from cq.encoding.codec import DELETE, encode
from cq.errors import CorruptData, InvalidData, InvalidUrl, QueueFull
from cq.keys.export import SEQUENCE_BYTES, generation_of, received
from cq.observers.export.batch import (
    CannotExport,
    ExportBatch,
    ExportFailed,
    ExportStopped,
    FencedExporter,
    OutdatedBatch,
)
from cq.observers.export.environment import read_variable
from cq.observers.export.rows import ExportEntry
from cq.queue.checks import AddCheck
from cq.queue.combine_queue import CombineQueue
from cq.store.api import Database, Transaction, TransactionRead
from cq.store.sizes import PREDICTED_BYTES
from cq.store.transact import transact


class ForwardExporter(FencedExporter):
    """An exporter into a queue of another store, for all buckets of an export queue; thread-safe.

    Args:
        config: the configuration of the forwarded queue.
        store: the id of its store.
        generation: the observer's generation; entries of other generations are not applied.
        into: the name of the receiving queue.
        url_env: the environment variable with the receiving store's URL.
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
        try:
            is_applied = transact(self._database(), lambda tr: self._apply(tr, self._own(batch)))
        except QueueFull as error:
            raise ExportFailed(str(error)) from error
        if not is_applied:
            for half in batch.halves():
                self(half)

    def check(self, batches: Sequence[ExportBatch]) -> None:
        for batch in batches:
            progress = transact(self._database(), lambda tr: self._progress(tr.snapshot, batch.bucket))  # noqa: B023
            self._may_apply(self._own(batch), progress)

    @property
    def target(self) -> str:
        return f"the store in ${self._url_env}"

    def advice(self, queue: str) -> str:
        return f"Forward it from all stores into another queue than {self._into.name!r}, to start again"

    def check_settings(self) -> str:
        self.check_url()
        return f"queue {self._into.name!r} of {self.target} takes it"

    def check_receiver(self) -> str:
        """Check the receiving store and queue; returns a line that names them. Raises as `check` does."""
        transact(self._database(), self._check_queue)
        return self.check_settings()

    def close(self) -> None:
        with self._opening:
            receiving, self._receiving = self._receiving, None
        if receiving is not None:
            store.close(receiving)

    def _apply(self, tr: Transaction, batch: ExportBatch) -> bool:
        """Add the updates of a batch; returns False, and writes nothing, if they are too large for one transaction."""
        config = self._check_queue(tr)
        progress = self._progress(tr, batch.bucket)
        if not self._may_apply(batch, progress):
            raise OutdatedBatch
        if progress >= batch.last or generation_of(batch.last) < self._generation:
            return True
        entries = [
            entry
            for entry in batch.ordered
            if entry.sequence > progress and generation_of(entry.sequence) == self._generation
        ]
        if len(entries) > 1 and _written(config, entries) > PREDICTED_BYTES:
            return False
        if entries:
            try:
                self._into.add(tr, list(map(_update, entries)))
            except InvalidData as error:
                raise CannotExport(str(error)) from error
        tr.set(self._fence(batch.bucket), batch.last)
        return True

    # The fence

    def _fence(self, bucket: int) -> bytes:
        return received(self._into.keys, self._store, bucket, self._config.name)

    def _progress(self, tr: TransactionRead, bucket: int) -> bytes:
        """The sequence of the last entry of a bucket applied in this generation; empty at first."""
        stored = tr.get(self._fence(bucket)).value
        if stored is not None and len(stored) != SEQUENCE_BYTES:
            raise CorruptData(f"the stored fence of a forwarded queue was not written by cq: {stored[:40]!r}")
        progress = stored or b""
        generation = generation_of(progress)
        if generation > self._generation:
            raise ExportFailed(
                f"a forward of queue {self._config.name!r} later than this worker's has begun: if this error persists, "
                f"the store was set back. {self.advice(self._config.name)}"
            )
        if generation == self._generation or not progress:
            return progress
        if not resolve(self._config.combiner.name).is_idempotent:
            raise ExportStopped(
                f"queue {self._config.name!r} was forwarded into {self._into.name!r} before; forwarding all of its "
                f"values again would count them twice. {self.advice(self._config.name)}"
            )
        return b""

    def _own(self, batch: ExportBatch) -> ExportBatch:
        """The batch, without a position of an earlier generation: another export may have cleared its entries."""
        return batch if generation_of(batch.cleared) == self._generation else replace(batch, cleared=b"")

    # The receiving store

    def _database(self) -> Database:
        """Open the receiving store, once; raises `ExportFailed` if its URL is missing or wrong, or a `StoreError`."""
        receiving = self._receiving
        if receiving is None:
            # Without the lock: this may take long, and a second thread may do the same.
            opened = self._opened()
            with self._opening:
                receiving = self._receiving = self._receiving or opened
            if receiving is not opened:
                store.close(opened)
        return receiving

    def check_url(self) -> tuple[str, str, str]:
        """Return the receiving store's URL, scheme and path; raises `ExportFailed` if the URL is missing or wrong."""
        url = read_variable(self._url_env)
        if not url:
            raise ExportFailed(f"${self._url_env} is not set: give the URL of the receiving store there")
        try:
            return url, *store.located(url)
        except InvalidUrl:
            # The message must not show the URL: it may be one of another kind of database, with a password.
            raise ExportFailed(
                f"the URL in ${self._url_env} names no store: write embedded:PATH, fdb: or fdb:/path/to/fdb.cluster"
            ) from None

    def _opened(self) -> Database:
        url, scheme, path = self.check_url()
        if scheme == "embedded" and not os.path.exists(path):  # opening it would create an empty store
            raise ExportFailed(
                f"there is no store where ${self._url_env} says: create it, or correct the variable"
            )
        db = store.open_exactly(url)
        if transact(db, store_id) == self._store and self._into.name == self._config.name:
            raise ExportFailed(
                f"queue {self._config.name!r} would be forwarded into itself: ${self._url_env} has this store's URL"
            )
        return db

    def _check_queue(self, tr: Transaction) -> QueueConfig:
        """The receiving queue; raises `ExportFailed` unless it has the types and combiner of the forwarded queue."""
        config = read_config(tr, self._into.name)
        found, own = config.settings(), self._config.settings()
        wrong = [
            f"{what} {found[what]} instead of {own[what]}"
            for what in ("key", "value", "combiner")
            if found[what] != own[what]
        ]
        if wrong:
            raise ExportFailed(
                f"the receiving queue {self._into.name!r} has {', '.join(wrong)}: forward into a queue of the same kind"
            )
        return config


def _update(entry: ExportEntry) -> tuple[Any, Any]:
    """The key and the update of an entry."""
    return entry.key, DELETE if entry.value is None else entry.value


def _written(config: QueueConfig, entries: Sequence[ExportEntry]) -> int:
    """The approximate bytes that adding these entries to a queue writes; 0 if a batch is small enough in any case."""
    adds = AddCheck(config)
    if not adds.each:
        return 0
    return sum(adds.written(len(entry.encoded_key) + len(encode(_update(entry)[1]))) for entry in entries)
