"""The keeper of a link: the task for everything that concerns all of its buckets.

- At the start of a worker it compares the positions of all buckets on both sides. So it detects that either side was
  set back even if nothing is queued.
- It has the target begin the epoch and the generation in buckets without entries.
- It checks whether a stopped link may continue. A stop by an observer of an earlier generation concerned its target.
- Once a new generation is completely sent, it sweeps what earlier ones have left: these keys have no value any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Final

from cq.admin.backfill import current_generation
from cq.config.queue import ObserverConfig
from cq.keys.link import LinkKeys, first_sequence, generation_of
from cq.observers.links.batch import LinkBatch
from cq.observers.links.failure_note import STOPPED_SECONDS, NotedTask
from cq.observers.links.queue import BUCKETS, oldest_versions
from cq.observers.links.sender import Sender
from cq.observers.links.state import PAUSED, LinkView, is_outdated, read_control, read_view
from cq.observers.scheduling.runner import DONE
from cq.observers.telemetry.bus import emit
from cq.store.api import Database, Transaction
from cq.store.transact import transact

AGAIN_SECONDS: Final = 0.2
"""How soon to check again after a concurrent rebuild or rebase."""
SWEEP_SECONDS: Final = 0.5
"""How often to check whether a generation is completely sent."""


class Keeper(NotedTask):
    """The keeper task of a link.

    Args:
        db: a database of either store.
        keys: of the link.
        sender: the link's sender.
        observer: the observer that fills the link's log.
    """

    notification: bytes
    outdated_seconds = AGAIN_SECONDS

    def __init__(self, db: Database, keys: LinkKeys, sender: Sender, observer: ObserverConfig) -> None:
        super().__init__(db, keys, None, observer.generation)
        self.keys = keys
        self.notification = self.keys.keeper
        self._sender = sender
        self._observer = observer.name
        self._backfilled_at: int | None = None

    def __str__(self) -> str:
        return f"keeper of link {self.keys.link!r} of queue {self.queue!r}"

    def end(self) -> None:
        """Close the connections to the target: the worker leaves the link."""
        self._sender.target.close()

    def _step(self) -> float:
        found, notification = transact(self.db, self._read)
        self._epoch = found.control.epoch
        if found.control.paused:
            self._wait(PAUSED)
            return STOPPED_SECONDS
        is_own_stop = found.stop.generation >= self._generation
        if found.stopped is not None and is_own_stop and not found.stop.resumes:
            self._wait(found.stopped)
            return STOPPED_SECONDS
        batches = empty_batches(found)
        self._sender.check(batches)
        self._begin(batches)
        if found.stopped is not None:  # and the checks above have passed now
            transact(self.db, lambda tr: self._resume(tr, found))
        if found.control.swept < self._generation and not self._sweep():
            return SWEEP_SECONDS
        self._clear_note()
        if notification is not None:
            transact(self.db, lambda tr: self._done(tr, notification))
        return DONE

    def _done(self, tr: Transaction, notification: bytes) -> None:
        tr.clear(self.keys.failure(None))  # also one that a slow worker stored after this one succeeded
        # Compared: a notification written since the read must remain.
        tr.compare_and_clear(self.notification, notification)

    def _read(self, tr: Transaction) -> tuple[LinkView, bytes | None]:
        found = read_view(tr.snapshot, self.keys, range(BUCKETS))
        notification = tr.snapshot.get(self.notification)
        return found(), notification.value

    def _resume(self, tr: Transaction, found: LinkView) -> None:
        """Let a stopped link continue: the checks have passed."""
        # A new epoch or generation has its own reasons to stop.
        is_same = read_control(tr, self.keys).epoch == found.control.epoch
        if is_same and not is_outdated(tr, self.keys, self._generation):
            tr.clear(self.keys.stopped)

    # The beginning of an epoch or a generation

    def _begin(self, batches: Iterable[LinkBatch]) -> None:
        """Have the target begin in buckets without entries. Entries of the others, which follow, do the same."""
        for batch in batches:
            has_begun = batch.cleared >= first_sequence(self._generation)
            if not has_begun and transact(self.db, partial(self._is_empty, bucket=batch.bucket)):
                begin = self._sender.begin(batch)
                if begin is not None:  # stored after the target has it: a sender takes it for the beginning
                    transact(self.db, partial(self._note_begun, batch=batch, begin=begin))

    def _is_empty(self, tr: Transaction, bucket: int) -> bool:
        return not tr.snapshot.get_range(*self.keys.rows(bucket), limit=1).to_list()

    def _note_begun(self, tr: Transaction, batch: LinkBatch, begin: bytes) -> None:
        found = read_view(tr, self.keys, [batch.bucket])()
        is_same = found.control.epoch == batch.epoch and found.cleared(batch.bucket) == batch.cleared
        is_same = is_same and not is_outdated(tr, self.keys, self._generation)
        if is_same and not tr.get_range(*self.keys.rows(batch.bucket), limit=1).to_list():
            state = replace(found.states[batch.bucket], epoch=batch.epoch, cleared=begin)
            tr.set(self.keys.state(batch.bucket), state.to_bytes())

    # Sweeping

    def _sweep(self) -> bool:
        """Sweep what earlier generations have left once this one is completely sent; returns whether it did."""
        if not transact(self.db, self._is_sent):
            return False
        swept = self._sender.sweep(self._epoch)
        if swept:
            emit("link_swept", queue=self.queue, link=self.keys.link, rows=swept)
        transact(self.db, self._note_swept)
        return True

    def _is_sent(self, tr: Transaction) -> bool:
        """Whether a sweep is due, and all entries added before the end of the backfill are sent."""
        found = read_view(tr.snapshot, self.keys, range(BUCKETS))()
        # Whether it is due is known once all buckets have begun the epoch: see `leave_former_rows`.
        have_begun = all(generation_of(found.cleared(bucket)) >= self._generation for bucket in found.states)
        if not have_begun or found.control.swept >= self._generation:
            return False
        if self._backfilled_at is None:
            if current_generation(tr.snapshot, self.queue, self._observer) != self._generation:
                return False
            # All entries of the backfill have versions up to this one. Later entries need not be sent first.
            self._backfilled_at = tr.get_read_version().wait()
        return all(version > self._backfilled_at for version in oldest_versions(tr.snapshot, self.keys))

    def _note_swept(self, tr: Transaction) -> None:
        control = read_control(tr, self.keys)
        if control.swept < self._generation and not is_outdated(tr, self.keys, self._generation):
            tr.set(self.keys.control, replace(control, swept=self._generation).to_bytes())
            # The backfill sent the values of these keys again, or set them aside again.
            for bucket in range(BUCKETS):
                tr.clear_range(*self.keys.aside_before(bucket, first_sequence(self._generation)))


def empty_batches(found: LinkView) -> list[LinkBatch]:
    """A batch without entries for each bucket whose state was read, for comparing positions."""
    epoch = found.control.epoch
    cleared = {bucket: found.cleared(bucket) for bucket in found.states}
    return [LinkBatch(bucket, (), at, at, epoch, at, ()) for bucket, at in cleared.items()]
