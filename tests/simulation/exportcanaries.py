"""Variants of exports that are broken on purpose, see `canaries`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from unittest.mock import patch

from cq.keys import after
from cq.observers.export.batch import CLOSED, FencedExporter, OutdatedBatch
from cq.observers.export.state import ExportState, read_view
from cq.observers.export.task import ExportTask
from cq.observers.sql.exporter import SqlExporter
from cq.observers.sql.progress import ProgressTables


def misses_a_store_set_back() -> Any:
    """An exporter goes on when the progress is at an entry that the store does not know."""
    return patch.object(SqlExporter, "_store_was_set_back", lambda self, batch, progress: None)


def misses_a_table_set_back() -> Any:
    """An exporter goes on when the store has cleared entries that the progress has not reached."""
    return patch.object(SqlExporter, "_target_was_set_back", lambda self, batch: None)


def clears_exports_by_their_epoch_only() -> Any:
    """A worker clears its batch though another worker has cleared it, and later ones."""

    def clear(self: ExportTask, tr: Any, read: Any) -> None:
        queued, epoch = read.queued, read.export.control.epoch
        if read_view(tr, self.keys, [self.bucket])().control.epoch == epoch:
            tr.clear_range(self.keys.rows(self.bucket)[0], after(queued.last_key))
            tr.set(self.keys.state(self.bucket), ExportState(epoch, queued.last).to_bytes())
            tr.clear(self.keys.failure(self.bucket))
            if queued.at_end:
                self._clear_notification(tr, read.notification)

    return patch.object(ExportTask, "_clear", clear)


def leaves_old_epochs_open() -> Any:
    """A rebuild or rebase begins an epoch and lets workers apply the batches that they have read before."""
    insert = ProgressTables.insert_if_missing

    def insert_open(
        self: Any, conn: Any, feeder: Any, epoch: int, bucket: int, sequence: bytes = b""
    ) -> None:
        if sequence != CLOSED:
            insert(self, conn, feeder, epoch, bucket, sequence)

    return patch.multiple(
        ProgressTables, close=lambda self, conn, feeder: None, insert_if_missing=insert_open
    )


def stops_for_batches_that_others_have_cleared() -> Any:
    """A late worker takes the progress of a faster one for that of a store that this one was before a restore."""

    def may_apply(self: Any, batch: Any, progress: bytes) -> bool:
        if progress == batch.cleared or progress in batch.known:
            return True
        if progress < batch.cleared:
            self._target_was_set_back(batch)
        position = batch.read_position(progress)
        if position.epoch != batch.epoch:
            raise OutdatedBatch
        if not position.holds:
            self._store_was_set_back(batch, progress)
        return True

    return patch.object(FencedExporter, "_may_apply", may_apply)


EXPORTING: Final[dict[Callable[[], Any], int]] = {
    misses_a_store_set_back: 60,
    misses_a_table_set_back: 60,
    clears_exports_by_their_epoch_only: 60,
    leaves_old_epochs_open: 60,
    stops_for_batches_that_others_have_cleared: 60,
}
"""{canary: within how many seeds it is caught}."""
ONLY: Final[dict[Callable[[], Any], frozenset[str]]] = {
    misses_a_store_set_back: frozenset(("store set back",)),
    misses_a_table_set_back: frozenset(("table set back",)),
    clears_exports_by_their_epoch_only: frozenset(("freezes",)),
    leaves_old_epochs_open: frozenset(("freezes", "export again", "come and go")),
    stops_for_batches_that_others_have_cleared: frozenset(("freezes", "come and go")),
}
"""{canary: the only kinds that its plans have}."""
