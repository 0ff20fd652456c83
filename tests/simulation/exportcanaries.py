"""Canaries of exports, see `canary`."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from cq.keys import after
from cq.observers.export.batch import CLOSED, OutdatedBatch
from cq.observers.export.state import ExportState, read_view
from cq.observers.export.task import ExportTask
from cq.observers.sql.progress import ProgressTables
from tests.simulation.canary import Canaries

exports = Canaries("exports")


@exports.replaces(
    "cq.observers.export.batch.FencedExporter._store_was_set_back", seed=7, only={"store set back"}
)
def misses_a_store_set_back(*_: Any) -> None:
    """An exporter goes on when the progress is at an entry that the store does not know."""


@exports.replaces(
    "cq.observers.export.batch.FencedExporter._target_was_set_back", seed=10, only={"table set back"}
)
def misses_a_table_set_back(*_: Any) -> None:
    """An exporter goes on when the store has cleared entries that the progress has not reached."""


@exports.replaces("cq.observers.export.task.ExportTask._clear", seed=120, only={"freezes"})
def clears_exports_by_their_epoch_only(_: Any, self: ExportTask, tr: Any, read: Any) -> None:
    """A worker clears its batch though another worker has cleared it, and later ones."""
    queued, epoch = read.queued, read.export.control.epoch
    if read_view(tr, self.keys, [self.bucket])().control.epoch == epoch:
        tr.clear_range(self.keys.rows(self.bucket)[0], after(queued.last_key))
        tr.set(self.keys.state(self.bucket), ExportState(epoch, queued.last).to_bytes())
        tr.clear(self.keys.failure(self.bucket))
        if queued.at_end:
            self._clear_notification(tr, read.notification)


@exports.patches(seed=117, only={"freezes", "export again", "come and go"})
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


@exports.replaces(
    "cq.observers.export.batch.FencedExporter._may_apply", seed=10, only={"freezes", "come and go"}
)
def stops_for_batches_that_others_have_cleared(_: Any, self: Any, batch: Any, progress: bytes) -> bool:
    """A late worker takes the progress of a faster one for that of a store that this one was before a restore."""
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
