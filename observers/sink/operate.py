"""What operators do with a queue's export to a sink: check the sink, and continue or repeat the export."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cq.admin.configure import rebuild_observer
from cq.config.queue import ObserverConfig, QueueConfig
from cq.keys.export import ExportKeys, generation_of
from cq.observers.export.batch import ExportBatch, ExportFailed
from cq.observers.export.keeper import empty_batches
from cq.observers.export.queue import BUCKETS
from cq.observers.export.state import Control, read_control, read_view
from cq.observers.export.task import wake_keeper
from cq.observers.sink.exporter import SentPosition, SinkExporter
from cq.store.api import Database, Transaction
from cq.store.transact import transact


class Sink(NamedTuple):
    """A queue's export to a sink: the configuration, and the exporter."""

    db: Database
    config: QueueConfig
    observer: ObserverConfig
    exporter: SinkExporter

    def check(self) -> str:
        """Check the settings, and compare positions with the sink; returns a line that says what it accepts.

        Raises `ExportFailed` if the sink cannot be reached, `ExportStopped` if it refuses or either side was set back.
        """
        accepted = self.exporter.check_settings()
        self.exporter.check(self._batches())
        return accepted

    def rebase(self) -> int:
        """Continue with the queued entries, whatever positions the sink has; returns the new epoch.

        Raises `ExportFailed` or `ExportStopped` if the sink refuses or cannot be reached.
        """
        return self._begin_epoch(self._positions())

    def rebuild(self) -> int:
        """Have all values sent again by the passes and workers; returns the new generation.

        Raises as `rebase` does.
        """
        positions = self._positions()
        # A store that was set back assigns generations again that the sink already has.
        highest = max((generation_of(each.sequence) for each in positions), default=0)
        generation = 0
        while generation <= highest:
            config = rebuild_observer(self.db, self.config.name, self.observer.name)
            generation = next(each.generation for each in config.observers if each.name == self.observer.name)
        self._begin_epoch(positions)
        return generation

    def _positions(self) -> list[SentPosition]:
        """The sink's positions that differ from the store's."""
        self.exporter.check_settings()
        return self.exporter.positions(self._batches())

    def _begin_epoch(self, positions: Sequence[SentPosition]) -> int:
        """Start an epoch later than the store's and the sink's."""
        keys = ExportKeys(self.config.name)
        control = transact(self.db, lambda tr: read_control(tr.snapshot, keys))
        epoch = max([control.epoch, *(each.epoch for each in positions)]) + 1
        if not transact(self.db, lambda tr: _store_epoch(tr, keys, epoch)):
            raise ExportFailed(
                f"another rebuild or rebase of queue {self.config.name!r} has overtaken this one"
            )
        return epoch

    def _batches(self) -> list[ExportBatch]:
        """Batches without entries, for comparing the positions of all buckets."""
        keys = ExportKeys(self.config.name)
        found = transact(self.db, lambda tr: read_view(tr.snapshot, keys, range(BUCKETS))())
        return empty_batches(self.db, self.config.name, found)


def _store_epoch(tr: Transaction, keys: ExportKeys, epoch: int) -> bool:
    """Change the store to a new epoch; False if a later one has begun.

    The states of buckets are not written: so a bucket has no position in the epoch until the sink has its first batch
    of the epoch. Until then the sink may have any position.
    """
    control = read_control(tr, keys)
    if control.epoch >= epoch:
        return control.epoch == epoch  # equal: this is a retry after a commit with unknown result
    tr.set(keys.control, Control(epoch, control.swept).to_bytes())
    tr.clear(keys.stopped)
    wake_keeper(tr, keys)
    return True
