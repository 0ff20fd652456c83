"""The sender of a link: it has a target apply batches, compares positions, and isolates entries that are refused.

A position is the link's epoch, which counts rebases, and the sequence of the last entry applied. The
target compares it in the transaction that applies a batch, so a batch of a late worker or of an earlier epoch is
applied in its place in the order, or not at all. If the positions differ, the sender finds out which entries the
target has, whether another worker was faster, or whether one of the two sides was set back, which stops the link.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from cq import runtime
from cq.encoding.codec import brief
from cq.failure import is_failure
from cq.keys.link import LinkKeys, Position, first_sequence, generation_of
from cq.observers.links.log import LinkEntry
from cq.observers.links.state import StorePosition, leave_former_rows, read_position
from cq.observers.links.target import (
    CannotSend,
    Changes,
    LinkFailed,
    LinkStopped,
    OutdatedBatch,
    Source,
    Target,
    TargetRefuses,
    UnmadeTarget,
)
from cq.plain_text import describe
from cq.store.api import Database
from cq.store.transact import transact

log = logging.getLogger("cq.link")

_MIN_BROKEN: Final = 10
_SHARE_BROKEN: Final = 0.2
_WINDOW: Final = 10_000  # sent entries
CLOSE_SECONDS = 5.0
"""How long to wait until a target is closed."""
R = TypeVar("R")


@dataclass(frozen=True)
class LinkBatch:
    """Entries of one bucket. If all of them were set aside, the batch is empty; a target still stores its position.

    Attributes:
        bucket: the bucket's number.
        ordered: the entries in the order of their sequences.
        after: the sequence that the entries follow: `cleared`, or that of the last entry of a half before.
        last: the new `cleared` of the bucket after this batch; not always the sequence of an entry in it.
        epoch: the link's epoch when the batch was read.
        cleared: the `cleared` of the bucket's position when the batch was read.
        known: the sequences read with the batch, from the bucket's first one onward.
    """

    bucket: int
    ordered: Sequence[LinkEntry]
    after: bytes
    last: bytes
    epoch: int
    cleared: bytes
    known: Collection[bytes]

    def __len__(self) -> int:
        return len(self.ordered)

    def without(self, sequences: Collection[bytes]) -> LinkBatch:
        """The batch without some of its entries, and with the same `last`."""
        return replace(self, ordered=[entry for entry in self.ordered if entry.sequence not in sequences])

    def halves(self) -> tuple[LinkBatch, LinkBatch]:
        """Two batches: the first half of the entries, and the rest."""
        middle = len(self.ordered) // 2
        first = self.ordered[:middle]
        end = first[-1].sequence
        return replace(self, ordered=first, last=end), replace(self, ordered=self.ordered[middle:], after=end)


class PoisonEntryIsolator:
    """Sends batches, and sets aside entries that the target can never apply.

    Counts failed entries over all batches of a bucket, retries included. Otherwise a broken deployment, which fails for
    every entry, would empty the log with a few entries in each try.

    Args:
        send: sends a batch.
        set_aside: called with the batch and {sequence: error} before any later entry is sent: once the target has
            passed an entry, no worker reads it again.
    """

    def __init__(
        self,
        send: Callable[[LinkBatch], object],
        set_aside: Callable[[LinkBatch, Mapping[bytes, str]], object],
    ) -> None:
        self._send = send
        self._set_aside = set_aside
        self.sent = 0
        self.aside: dict[bytes, str] = {}
        self._latest = b""

    def send(self, batch: LinkBatch) -> None:
        """Send the batch, except for entries that the target can never apply.

        Raises:
            LinkFailed: 10 entries or more, and over 20 % of those seen, fail: the deployment is broken, not the data.
            Exception: another error of the target, which it does not ascribe to an entry.
        """
        try:
            self._send(batch)
        except CannotSend as error:
            self._send_others(batch, error)
        else:
            self._count(batch)

    def _count(self, batch: LinkBatch) -> None:
        """Count the entries sent for the first time, which have higher sequences than all sent before."""
        self.sent += sum(
            entry.sequence > self._latest and entry.sequence not in self.aside for entry in batch.ordered
        )
        self._latest = max(self._latest, batch.last)
        if self.sent > _WINDOW:  # halve both counts: errors of long ago weigh less than recent ones
            self.sent //= 2
            self.aside = dict(list(self.aside.items())[len(self.aside) // 2 :])

    def _send_others(self, batch: LinkBatch, error: CannotSend) -> None:
        named = self._named(batch, error)
        if named:
            # First store the faulty entries: the target below advances the position past them.
            self._put_aside(batch, named)
            self.send(batch.without(named))
        elif len(batch) > 1:
            for half in batch.halves():
                self.send(half)
        else:
            raise error  # an empty batch fails: the error is not about an entry

    def _named(self, batch: LinkBatch, error: CannotSend) -> dict[bytes, str]:
        """{sequence: error} of the faulty entries, if the target names them or the batch has only one."""
        entries = error.entries
        named = {
            entry.sequence: entries[entry.sequence] for entry in batch.ordered if entry.sequence in entries
        }
        if not named and len(batch) == 1:
            named = {batch.ordered[0].sequence: str(error)}
        return named

    def _put_aside(self, batch: LinkBatch, named: Mapping[bytes, str]) -> None:
        failed = len(self.aside.keys() | named.keys())
        seen = self.sent + len(self.aside) + len(batch)
        if failed >= _MIN_BROKEN and failed > _SHARE_BROKEN * seen:
            latest = list(named.values())[-1]
            raise LinkFailed(f"{failed} of {seen} entries cannot be sent, the latest with: {latest}")
        self._set_aside(batch, named)
        self.aside.update(named)


class Sender:
    """Sends batches of all buckets of a link; thread-safe.

    Args:
        db: the store, of either kind.
        source: what the link sends, and its name.
        target: what the link sends to.

    Attributes:
        is_failing: whether the latest call of the target has failed, for whichever bucket.
    """

    def __init__(self, db: Database, source: Source, target: Target) -> None:
        self.source = source
        self.target = target
        self.is_failing = False
        self._opening = threading.Lock()
        self._db = db
        self._keys = LinkKeys(source.queue, source.link)

    def open(self) -> None:
        """Make the target before its first use, if it is one of the application; raises `LinkFailed`."""
        with self._opening:
            if isinstance(self.target, UnmadeTarget):
                made = self._call(self.target.make)
                made.check_settings()
                self.target = made

    def send(self, batch: LinkBatch) -> None:
        """Have the target apply a batch; raises `OutdatedBatch` if another worker was faster, or as `Target.apply`."""
        stored = self._apply(batch, Position(batch.epoch, self._own(batch.after)), batch.last, batch.ordered)
        if stored is None:
            return
        progress = self._progress(batch, stored)
        if progress is None:
            raise OutdatedBatch
        if not progress:
            self._follow(batch, stored)
        if progress < batch.last:
            entries = [entry for entry in batch.ordered if entry.sequence > progress]
            if self._apply(batch, stored, batch.last, entries) is not None:
                raise OutdatedBatch

    def check(self, batches: Sequence[LinkBatch]) -> None:
        """Check the target, and compare its positions with those of these batches, without sending entries.

        Raises as `Target.check`, and `LinkStopped` if one of the sides was set back.
        """
        self._call(self.target.check)
        for batch, stored in zip(batches, self._compared(batches), strict=True):
            if stored is not None:
                self._progress(batch, stored)

    def positions(self, batches: Sequence[LinkBatch]) -> list[Position]:
        """Check the target; returns its positions that differ from those of these batches. Raises as `Target.check`."""
        self._call(self.target.check)
        return [position for position in self._compared(batches) if position is not None]

    def begin(self, batch: LinkBatch) -> bytes | None:
        """Have the target begin the epoch and generation in a bucket without entries.

        Returns the sequence from which the bucket begins, which no entry has; None if it has begun. So the target has a
        position of the epoch even if no entry comes, and a target that is set back later is noticed.
        """
        begin = first_sequence(self.source.generation)
        if self._own(batch.cleared):
            return None
        (stored,) = self._compared([batch])
        if stored is not None and self._progress(batch, stored) != b"":
            raise OutdatedBatch  # an entry was added and sent meanwhile: the target has begun
        if stored is not None:
            self._follow(batch, stored)
        stored = stored or Position(batch.epoch, b"")
        if stored != (batch.epoch, begin) and self._apply(batch, stored, begin) is not None:
            raise OutdatedBatch
        return begin

    def sweep(self, epoch: int) -> int:
        """Delete what entries of earlier generations have left in the target; raises as `Target.sweep`."""
        below = first_sequence(self.source.generation)
        return self._call(lambda: self.target.sweep(epoch, below))

    def close(self) -> None:
        """Close the target's connections; an error is only logged, as nothing depends on it.

        A target may hang. The worker's loop must go on, so it waits for a few seconds only.
        """
        ended = runtime.event()

        def close() -> None:
            self._close()
            ended.set()

        try:
            runtime.start_thread(close, "cq-link-close")
        except RuntimeError as error:  # the system starts no more threads
            log.warning("%s cannot be closed: %s", self.target.noun, describe(error))
            return
        if not ended.wait(CLOSE_SECONDS):
            log.warning("%s has not been closed within %.0f s", self.target.noun, CLOSE_SECONDS)

    def _close(self) -> None:
        try:
            self.target.close()
        except BaseException as error:
            if not is_failure(error):
                raise
            log.warning("%s cannot be closed: %s", self.target.noun, describe(error))

    @property
    def advice(self) -> str:
        """What an operator can do after the link has stopped."""
        name = f"{self.source.queue} {self.source.link}"
        again = f"`cq link rebuild {name}` sends all values again"
        if not self.target.repeats:
            again = "to start again, link all stores to another queue"
        return f"`cq link rebase {name}` continues from here, if both sides are known to agree; {again}"

    # Positions

    def _own(self, cleared: bytes) -> bytes:
        """The store's position in this generation: another target may have got the entries of an earlier one."""
        return cleared if generation_of(cleared) >= self.source.generation else b""

    def _progress(self, batch: LinkBatch, stored: Position) -> bytes | None:
        """The sequence up to which the target has applied entries; its position is not the expected one.

        Returns None if another worker was faster, or a new epoch or generation has begun. The position was read after
        the batch. Raises `LinkStopped` if the store has cleared entries that the target lacks, or if the target has an
        entry that the store neither holds nor has cleared. Versions are not compared: a restore raises them.
        """
        epoch, sequence = stored
        cleared = self._own(batch.cleared)
        if sequence and (sequence == cleared or sequence in batch.known):
            # Also in an earlier epoch: a worker of that epoch can have sent entries that this one then found applied.
            return sequence
        now = self._read_position(batch, sequence)
        if now.epoch != batch.epoch or now.cleared != batch.cleared:
            return None  # also if both are of an earlier generation, whose entries this worker sends, too
        if now.generation != self.source.generation:
            return None  # the configuration of this worker is outdated
        generation = generation_of(sequence)
        is_former = 0 < generation < self.source.generation
        if epoch > batch.epoch and not is_former:
            raise self._store_was_set_back()
        if now.holds:
            return sequence
        has_begun = sequence != b"" and sequence != first_sequence(self.source.generation)
        if not cleared and (is_former or epoch < batch.epoch or not has_begun):
            return b""  # the first entries of a generation or an epoch follow any earlier position
        # A rebuild may begin in an earlier epoch than that of a former generation's position.
        is_ahead = not is_former and stored > (batch.epoch, cleared)
        raise self._store_was_set_back() if is_ahead else self._target_was_set_back()

    def _follow(self, batch: LinkBatch, stored: Position) -> None:
        """Before a bucket begins an epoch or a generation from this position: see `leave_former_rows`."""
        begun = batch.epoch, self.source.generation
        transact(self._db, lambda tr: leave_former_rows(tr, self._keys, batch.bucket, stored, begun))

    def _read_position(self, batch: LinkBatch, sequence: bytes) -> StorePosition:
        """The position of the store now, and whether the bucket of a batch holds the entry with this sequence."""
        return transact(self._db, lambda tr: read_position(tr.snapshot, self._keys, batch.bucket, sequence))

    def _target_was_set_back(self) -> LinkStopped:
        return LinkStopped(
            f"{self.target.noun} lacks changes that queue {self.source.queue!r} has sent: it was set back or emptied, "
            f"or is not the one sent to before. {self.advice}"
        )

    def _store_was_set_back(self) -> LinkStopped:
        return LinkStopped(
            f"{self.target.noun} has changes of queue {self.source.queue!r} that this store does not have: the store "
            f"was set back. {self.advice}"
        )

    # Calls of the target

    def _apply(
        self, batch: LinkBatch, previous: Position, last: bytes, entries: Sequence[LinkEntry] = ()
    ) -> Position | None:
        """Have the target apply entries of a batch, and store the position of the sequence `last`.

        Returns None if it has done so, or if it keeps no positions; else the position that it has.
        """
        changes = self._changes(batch, previous, last, entries)
        stored = self._parsed(self._call(lambda: self.target.apply(changes)))
        if stored == previous:  # sent again at once, they would be refused again
            raise LinkFailed(f"{self.target.noun} refuses changes after {str(previous)!r}, its own position")
        return stored

    def _changes(
        self, batch: LinkBatch, previous: Position, last: bytes, entries: Sequence[LinkEntry]
    ) -> Changes:
        position = Position(batch.epoch, last)
        return Changes(self.source.queue, batch.bucket, str(previous), str(position), entries)

    def _parsed(self, text: object) -> Position | None:
        if text is None:
            return None
        if not isinstance(text, str):
            raise LinkFailed(
                f"`apply` of {self.target.noun} has returned {brief(text)}, expected None or its position"
            )
        stored = Position.parse(text)
        if stored is None:
            raise TargetRefuses(
                f"{self.target.noun} has a position that is not cq's: {text[:80]!r}. Delete it there; then "
                f"{self.advice}"
            )
        return stored

    def _compared(self, batches: Sequence[LinkBatch]) -> list[Position | None]:
        """Compare positions without sending entries: None for each that agrees, else the target's position."""
        own = [Position(batch.epoch, self._own(batch.cleared)) for batch in batches]
        changes = [self._changes(batch, at, at.sequence, ()) for batch, at in zip(batches, own, strict=True)]
        return list(map(self._parsed, self._call(lambda: self.target.compare(changes))))

    def _call(self, call: Callable[[], R]) -> R:
        """Call the target; a stop gets the advice what to do."""
        try:
            result = call()
        except LinkStopped as error:
            first = "" if error.resumes else "Repair the cause there; then "
            raise type(error)(f"{error}. {first}{self.advice}") from None
        except BaseException:
            self.is_failing = True
            raise
        self.is_failing = False
        return result
