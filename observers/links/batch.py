"""The batch of entries that a worker sends, and the isolation of entries that a target can never apply."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from cq.observers.links.rows import LinkEntry
from cq.observers.links.target import CannotSend, LinkFailed

_MIN_BROKEN: Final = 10
_SHARE_BROKEN: Final = 0.2
_WINDOW: Final = 10_000  # sent entries


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
