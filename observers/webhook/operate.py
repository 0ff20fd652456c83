"""What operators do with a queue's webhook: check the receiver, and continue or repeat the export."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

from cq.admin.configure import rebuild_observer
from cq.config.queue import ObserverConfig, QueueConfig, read_config
from cq.errors import NotInStore
from cq.keys.export import ExportKeys, generation_of
from cq.observers.export.batch import ExportBatch, ExportFailed
from cq.observers.export.keeper import empty_batches
from cq.observers.export.queue import BUCKETS
from cq.observers.export.state import Control, read_control, read_view
from cq.observers.export.task import wake_keeper
from cq.observers.webhook.exporter import WebhookExporter
from cq.observers.webhook.message import SentPosition
from cq.observers.webhook.observer import NAME, webhook_exporter
from cq.store.api import Database, Transaction, TransactionRead
from cq.store.transact import transact


class Webhook(NamedTuple):
    """A queue's webhook: the configuration, and the exporter."""

    db: Database
    config: QueueConfig
    observer: ObserverConfig
    exporter: WebhookExporter

    def check(self) -> str:
        """Check URL and secret, and compare positions with the receiver; returns a line that names its host.

        Raises `ExportFailed` if the receiver cannot be reached, `ExportStopped` if it refuses or either side was set
        back.
        """
        host = self.exporter.check_receiver()
        self.exporter.check(self._batches())
        return f"the receiver at {host} accepts signed requests"

    def rebase(self) -> int:
        """Continue with the queued entries, whatever positions the receiver has; returns the new epoch.

        Raises `ExportFailed` or `ExportStopped` if the receiver refuses or cannot be reached.
        """
        return self._begin_epoch(self._positions())

    def rebuild(self) -> int:
        """Have all values sent again by the passes and workers; returns the new generation.

        Raises as `rebase` does.
        """
        positions = self._positions()
        # A store that was set back assigns generations again that the receiver already has.
        highest = max((generation_of(each.sequence) for each in positions), default=0)
        generation = 0
        while generation <= highest:
            config = rebuild_observer(self.db, self.config.name, NAME)
            generation = next(each.generation for each in config.observers if each.name == NAME)
        self._begin_epoch(positions)
        return generation

    def _positions(self) -> list[SentPosition]:
        """The receiver's positions that differ from the store's."""
        self.exporter.check_receiver()
        return self.exporter.positions(self._batches())

    def _begin_epoch(self, positions: Sequence[SentPosition]) -> int:
        """Start an epoch later than the store's and the receiver's."""
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


@contextmanager
def opened_webhook(db: Database, queue: str, *, url_env: str | None = None) -> Iterator[Webhook]:
    """The webhook of a queue; closes its connections at exit.

    Args:
        db: a database of either store.
        queue: the queue's name.
        url_env: the environment variable with the URL; None: the configured one.

    Raises `QueueNotConfigured`, and `NotInStore` if the queue has no webhook.
    """
    config = transact(db, lambda tr: read_config(tr.snapshot, queue))
    observer = webhook_of(config)
    if observer is None:
        raise NotInStore(f"queue {queue!r} has no webhook: run `cq configure {queue} --webhook NAME` first")
    if url_env is not None:
        observer = replace(observer, settings={**observer.settings, "url_env": url_env})
    exporter = webhook_exporter(db, config, observer)
    try:
        yield Webhook(db, config, observer, exporter)
    finally:
        exporter.close()


def has_webhook(tr: TransactionRead, queue: str) -> bool:
    """Whether a queue has a webhook; raises `QueueNotConfigured`."""
    return webhook_of(read_config(tr, queue)) is not None


def webhook_of(config: QueueConfig) -> ObserverConfig | None:
    """The observer of a queue's webhook, or None."""
    return next((each for each in config.observers if each.name == NAME), None)


def _store_epoch(tr: Transaction, keys: ExportKeys, epoch: int) -> bool:
    """Change the store to a new epoch; False if a later one has begun.

    The states of buckets are not written: so a bucket has no position in the epoch until the receiver has its first
    batch of the epoch. Until then the receiver may have any position.
    """
    control = read_control(tr, keys)
    if control.epoch >= epoch:
        return control.epoch == epoch  # equal: this is a retry after a commit with unknown result
    tr.set(keys.control, Control(epoch, control.swept).to_bytes())
    tr.clear(keys.stopped)
    wake_keeper(tr, keys)
    return True
