"""The tasks of a link: one for each bucket, which sends its entries, and the keeper for all of them.

The task of a bucket reads a batch, has the target apply it, and clears the batch.

    1. Read, at one version: the bucket's state, its notification, and its first entries.
    2. Call the target. Entries that it can never apply are set aside in the store before later ones are sent.
    3. Clear the entries in the store, in a transaction that reads the bucket's state with a conflict range and writes
       the new position: of two workers with the same batch, the slower one finds the batch cleared.

After a crash between 2 and 3 the batch is sent again; a target recognizes it by its position, or its entries by their
sequences. A failing target is tried again after growing pauses, and delays its own bucket only.

The keeper

- At the start of a worker it compares the positions of all buckets on both sides. So it detects that either side was
  set back even if nothing is queued.
- It has the target begin the epoch and the generation in buckets without entries.
- It checks whether a stopped link may continue. A stop by an observer of an earlier generation concerned its target.
- Once a new generation is completely sent, it sweeps what earlier ones have left: these keys have no value any more.
  It does not while the link has missed a value in its backfill, as the target's entry may be its last readable copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from cq import runtime
from cq.admin.backfill import current_generation
from cq.config.queue import ObserverConfig, QueueConfig
from cq.encoding import codec
from cq.keys import after
from cq.keys.link import LinkKeys, NoteKeys, first_sequence, generation_of
from cq.observers.links.failure_note import STOPPED_SECONDS, NotedTask, store_failure
from cq.observers.links.lease import HELD_SECONDS, Lease
from cq.observers.links.log import BUCKETS, QueuedEntries, ReadLimits, oldest_versions, read_entries
from cq.observers.links.sender import LinkBatch, PoisonEntryIsolator, Sender
from cq.observers.links.spec import link_name, links_in
from cq.observers.links.state import (
    PAUSED,
    AsideEntry,
    LinkView,
    is_outdated,
    read_control,
    read_view,
    set_entry_aside,
    wake_keeper,
)
from cq.observers.links.target import LinkFailed, OutdatedBatch, Target
from cq.observers.scheduling.runner import CAUGHT_UP, DONE
from cq.observers.scheduling.task import Task
from cq.observers.telemetry.bus import during, emit
from cq.plain_text import describe
from cq.queue.missed_reports import lacks_values
from cq.store.api import Database, Transaction, TransactionRead, error_code
from cq.store.sizes import fitting
from cq.store.transact import transact

AGAIN_SECONDS: Final = 0.2
"""How soon to check again after a concurrent rebuild or rebase."""
SWEEP_SECONDS: Final = 0.5
"""How often to check whether a generation is completely sent."""
_ERROR_BYTES: Final = 1_500
"""Maximum bytes of an entry set aside, in addition to its key and value; most of them are the error."""
AHEAD_SECONDS: Final = 1.0
"""How often to check for entries of a later generation, which only workers with its configuration may send."""


class SendingTask(NotedTask):
    """A task of a link; one target of all tasks of the link fails for all of them.

    Args:
        db: a database of either store.
        keys: of the link.
        bucket: the bucket's number; None for the keeper.
        sender: the link's sender.
    """

    def __init__(self, db: Database, keys: LinkKeys, bucket: int | None, sender: Sender) -> None:
        super().__init__(db, keys, bucket, sender.source.generation)
        self.keys = keys
        self.max_parallel = sender.target.width
        self._sender = sender

    def _open(self) -> None:
        """Make the target, see `Sender.open`."""
        self._sender.open()
        self.max_parallel = self._sender.target.width

    @property
    def is_failing(self) -> bool:
        return self._sender.is_failing


class Keeper(SendingTask):
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
        super().__init__(db, keys, None, sender)
        self.notification = self.keys.keeper
        self._observer = observer.name
        self._backfilled_at: int | None = None

    def __str__(self) -> str:
        return f"link {self.keys.link!r} of queue {self.queue!r}"

    def end(self) -> None:
        """Close the connections to the target: the worker leaves the link."""
        self._sender.close()

    def _step(self) -> float:
        self._open()
        found, notification = transact(self.db, self._read)
        is_own_stop = found.stop.generation >= self._generation and not found.stop.resumes
        reason = PAUSED if found.control.paused else found.stopped if is_own_stop else None
        if self._must_wait(found.control.epoch, reason):
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
            if lacks_values(tr.snapshot, self.queue, self._generation):
                why = "a value could not be sent, so entries of keys without a value are not deleted"
                raise LinkFailed(f"{why}: see `cq aside list {self.queue}`")
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


@dataclass(slots=True)
class BucketRead:
    """The data of a bucket, read at one version."""

    link: LinkView
    notification: bytes | None
    queued: QueuedEntries
    is_leased: bool = True


class LinkTask(SendingTask):
    """The task that sends one bucket of a link; one thread at a time may use it.

    It sends no entries of a later generation than the sender's: a worker with an outdated configuration must not send
    entries of a newer generation to the old target.

    Args:
        db: a database of either store.
        keys: of the link.
        bucket: the bucket's number.
        sender: the link's sender.

    Attributes:
        notification: a key that exists while the bucket has entries.
        sent: the number of entries that this task has sent.
        signal: called with the name of each completed step, for tests.
    """

    notification: bytes
    signal: Callable[[str], object] = staticmethod(lambda point: None)

    def __init__(self, db: Database, keys: LinkKeys, bucket: int, sender: Sender) -> None:
        super().__init__(db, keys, bucket, sender)
        self.bucket = bucket
        self.sent = 0
        self.notification = self.keys.notification(bucket)
        self.notification_prefix = self.notification[:-4]
        self.progress_key = self.keys.state(bucket)
        self._isolator = PoisonEntryIsolator(sender.send, self._set_aside)
        self._lease = Lease(keys, bucket)  # for a target that keeps no positions

    def waits(self, tr: TransactionRead) -> bool:
        """Whether the link is stopped or paused."""
        return read_view(tr, self.keys, ())().waiting is not None

    @property
    def _target(self) -> Target:
        return self._sender.target

    def enter(self, worker: bytes) -> None:
        self._lease.enter(worker)

    def end(self) -> None:
        """Give the lease of the bucket to others."""
        self._lease.leave(self.db)

    def __str__(self) -> str:
        return f"bucket {self.bucket} of link {self.keys.link!r} of queue {self.queue!r}"

    def _step(self) -> float:
        """Send one batch; returns 0.0 if there are more entries."""
        self._open()
        read = transact(self.db, self._read)
        if self._must_wait(read.link.control.epoch, read.link.waiting):
            return STOPPED_SECONDS
        self.signal("read")
        begun = runtime.monotonic()
        if read.queued.last_key is None:
            # No row was read: reading stopped at the first one, or the bucket is empty.
            if read.queued.foreign:
                raise LinkFailed("an entry is stamped later than the read version: was it copied here?")
            if read.queued.is_ahead:
                return AHEAD_SECONDS
            self._clear_note()
            return DONE
        if not read.is_leased:
            return HELD_SECONDS
        with during("link_done", queue=self.queue, link=self.keys.link, bucket=self.bucket):
            self._call(read)  # outside of any transaction: a target may take longer than five seconds
            self.signal("sent")
            transact(self.db, lambda tr: self._clear(tr, read))
            self.sent += len(read.queued.entries)
            self._clear_note()
            emit(
                "link_done",
                queue=self.queue,
                link=self.keys.link,
                bucket=self.bucket,
                entries=len(read.queued.entries),
                seconds=runtime.monotonic() - begun,
            )
        self.signal("cleared")
        return CAUGHT_UP if read.queued.at_end else 0.0

    # 1: reading

    def _read(self, tr: Transaction) -> BucketRead:
        """Read the bucket's state, notification and first entries; clear the notification if there are no entries."""
        version = tr.get_read_version()
        link = read_view(tr.snapshot, self.keys, [self.bucket])
        notification = tr.snapshot.get(self.notification)
        limits = ReadLimits(
            version.wait(), self._target.batch_bytes, self._target.batch_entries, self._generation or None
        )
        queued = read_entries(tr.snapshot, self.keys, self.bucket, limits)
        read = BucketRead(link(), notification.value, queued)
        is_leased = not self._target.keeps_positions
        if is_leased and queued.last_key is not None and read.link.waiting is None:
            read.is_leased = self._lease.take(tr, read.link.states[self.bucket])
        if queued.last_key is None and queued.at_end and read.link.stopped is None:
            self._clear_notification(tr, read.notification)
            if read.notification is not None:
                # A slow worker may have stored its failure after another one sent the batch.
                tr.clear(self.keys.failure(self.bucket))
        return read

    # 2: sending

    def _call(self, read: BucketRead) -> None:
        if self._target.keeps_positions:
            self._send(read)
            return
        self._lease.begin()
        try:
            self._send(read)
        finally:
            self._lease.end(self.db)

    def _send(self, read: BucketRead) -> None:
        queued = read.queued
        cleared = read.link.cleared(self.bucket)
        batch = LinkBatch(
            bucket=self.bucket,
            ordered=queued.entries,
            after=cleared,
            last=queued.last,
            epoch=read.link.control.epoch,
            cleared=cleared,
            known={entry.sequence for entry in queued.entries} | {queued.last},
        )
        # First set the broken rows aside: the target advances its position past them.
        self._keep(
            batch.epoch,
            [AsideEntry(self.bucket, each.sequence, each.error, None, each.data) for each in queued.broken],
        )
        self._isolator.send(batch)

    def _set_aside(self, batch: LinkBatch, errors: Mapping[bytes, str]) -> None:
        """Set aside entries that cannot be sent; raises `OutdatedBatch` if another worker has passed them."""
        for sequence, error in errors.items():
            emit(
                "entry_set_aside",
                queue=self.queue,
                link=self.keys.link,
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
            is_outdated_batch = found.control.epoch != epoch or found.cleared(self.bucket) >= some[0].sequence
            if is_outdated_batch or is_outdated(tr, self.keys, self._generation):
                raise OutdatedBatch
            for each in some:
                set_entry_aside(tr, self.keys, each)

        while entries:
            number = fitting(map(_size, entries))
            transact(self.db, partial(keep, some=entries[:number]))
            entries = entries[number:]

    # 3: clearing

    def _clear(self, tr: Transaction, read: BucketRead) -> None:
        queued, epoch = read.queued, read.link.control.epoch
        found = read_view(tr, self.keys, [self.bucket])()
        if found.control.epoch != epoch:
            return  # a rebuild or rebase decides what the new epoch sends: leave the entries
        if found.cleared(self.bucket) >= queued.last:
            return  # another worker was faster, or this is a retry after a commit with unknown result
        if queued.last_key is None or tr.snapshot.get(queued.last_key).value is None:
            raise OutdatedBatch  # neither cleared nor present: the queue was deleted, or the store set back
        tr.clear_range(self.keys.rows(self.bucket)[0], after(queued.last_key))
        state = replace(found.states[self.bucket], epoch=epoch, cleared=queued.last)
        tr.set(self.keys.state(self.bucket), state.to_bytes())
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


def link_tasks(
    db: Database, config: QueueConfig, observer: ObserverConfig, make: Callable[[], Sender]
) -> list[Task]:
    """The tasks for a link of a queue: the keeper first, then one for each bucket; see `noted_tasks`.

    Args:
        db: a database of either store.
        config: the queue.
        observer: the observer that the link is.
        make: makes the sender, which all tasks share.
    """
    keys = LinkKeys(config.name, link_name(observer.name))

    def made() -> list[Task]:
        sender = make()
        sender.target.check_settings()
        buckets = [LinkTask(db, keys, bucket, sender) for bucket in range(BUCKETS)]
        tasks: list[Task] = [Keeper(db, keys, sender, observer), *buckets]
        for task in tasks:
            task.leaves_room = len(links_in(config)) > 1
        return tasks

    return noted_tasks(db, keys, made, observer.generation)


def noted_tasks(
    db: Database, keys: NoteKeys, make: Callable[[], list[Task]], generation: int = 0
) -> list[Task]:
    """The tasks that `make` returns; the first one is notified, so that it checks both sides when a worker starts.

    If this process lacks an address, a secret, a package or a declaration of the application, returns no tasks and
    stores the failure: other workers may have them. The queue's passes are not affected. `generation` is that of the
    link's observer, 0 for an outbox.
    """
    try:
        tasks = make()
    except Exception as error:
        if error_code(error) is not None:
            raise
        what = f"link {keys.link!r} of queue {keys.queue!r}"
        emit("link_left_alone", queue=keys.queue, link=keys.link, task=what, reason=str(error))
        store_failure(db, keys, None, generation, describe(error))
        return []
    transact(db, lambda tr: wake_keeper(tr, keys, generation))
    return tasks
