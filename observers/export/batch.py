"""The batch of entries that an exporter receives, its errors, and the isolation of entries that it can never export."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, NoReturn

from cq.errors import CqError
from cq.keys.export import SEQUENCE_BYTES
from cq.observers.export.rows import ExportEntry

Exporter = Callable[["ExportBatch"], object]
"""A function that exports a batch, and returns once all of it is exported.

Several threads call it at once, with batches of different buckets. It may receive a batch, or a part of one, again:
after a crash, after another worker was slow, or if another entry of the batch could not be exported. If it raises
`CannotExport`, the worker sets the faulty entries aside; after any other exception it retries the batch later.
"""

CLOSED: Final = b"\xff" * SEQUENCE_BYTES
"""The progress of an epoch that a rebuild or rebase has ended: no entry has a higher sequence."""
BATCH_BYTES: Final = 500_000
BATCH_ENTRIES: Final = 5_000
_MIN_BROKEN: Final = 10
_SHARE_BROKEN: Final = 0.2
_WINDOW: Final = 10_000  # exported entries


class CannotExport(CqError):
    """Entries that can never be exported as they are: the worker sets them aside, and exports the others.

    An exporter that knows the faulty entries names them in `entries`, as {sequence: error}. Otherwise the worker finds
    them by exporting ever smaller halves of the batch.
    """

    def __init__(self, message: str, entries: Mapping[bytes, str] | None = None) -> None:
        super().__init__(message)
        self.entries: dict[bytes, str] = dict(entries or {})

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.entries)


class ExportFailed(CqError):
    """A batch could not be exported, for reasons that may pass; the worker retries it after a pause.

    Args:
        message: one line.
        pause: the least seconds until the next try, if the other system has asked for a pause.
    """

    def __init__(self, message: str, pause: float = 0.0) -> None:
        super().__init__(message)
        self.pause = pause

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.pause)


class OutdatedBatch(CqError):
    """The batch was read before another worker exported it, or before a rebuild or rebase; the worker reads again."""


class ExportStopped(CqError):
    """Continuing the export would lose or mix up data: the operator must decide what to do, as the message says."""


class ExportPosition(NamedTuple):
    """The export position of a bucket in the store, at one version.

    Attributes:
        epoch: the export's epoch.
        cleared: a sequence; entries up to and including it are exported and cleared.
        holds: whether the bucket holds the entry with the sequence in question.
    """

    epoch: int
    cleared: bytes
    holds: bool


@dataclass(frozen=True)
class ExportBatch:
    """Entries of one bucket. Iterating yields all entries of a key together, in ascending order of their sequences.

    If all entries were set aside, the batch is empty; an exporter that stores `last` must still store it.

    Attributes:
        queue: the name of the export queue.
        bucket: the bucket's number.
        ordered: the entries in the order of their sequences.
        last: the new `cleared` of the bucket after this batch; not always the sequence of an entry in it.
        epoch: the export's epoch when the batch was read.
        cleared: the `cleared` of the bucket's position when the batch was read.
        known: the sequences read with the batch, from the bucket's first one onward.
        read_position: reads the bucket's current position, and whether the bucket holds the entry with a sequence.
    """

    queue: str
    bucket: int
    ordered: Sequence[ExportEntry]
    last: bytes
    epoch: int
    cleared: bytes
    known: Collection[bytes]
    read_position: Callable[[bytes], ExportPosition]

    def __len__(self) -> int:
        return len(self.ordered)

    def __iter__(self) -> Iterator[ExportEntry]:
        by_key: dict[bytes, list[ExportEntry]] = {}
        for entry in self.ordered:
            by_key.setdefault(entry.encoded_key, []).append(entry)
        for entries in by_key.values():
            yield from entries

    def without(self, sequences: Collection[bytes]) -> ExportBatch:
        """The batch without some of its entries, and with the same `last`."""
        return replace(self, ordered=[entry for entry in self.ordered if entry.sequence not in sequences])

    def halves(self) -> tuple[ExportBatch, ExportBatch]:
        """Two batches: the first half of the entries, and the rest."""
        middle = len(self.ordered) // 2
        first = self.ordered[:middle]
        return replace(self, ordered=first, last=first[-1].sequence), replace(
            self, ordered=self.ordered[middle:]
        )


class KeptExporter(ABC):
    """An exporter for an export queue that an observer of a queue fills; its keeper checks and sweeps for all buckets.

    Attributes:
        resumes: whether a stopped export continues by itself once `check` passes; else after a rebuild or rebase only.
        batch_bytes, batch_entries: the maximum bytes of stored entries in a batch, about, and their maximum number.
        width: how many of a queue's buckets are exported at once; None: all.
        signal: called with the name of each completed step, for tests.
    """

    resumes = True
    batch_bytes = BATCH_BYTES
    batch_entries = BATCH_ENTRIES
    signal: Callable[[str], object] = staticmethod(lambda point: None)

    @property
    def width(self) -> int | None:
        return None

    @abstractmethod
    def __call__(self, batch: ExportBatch) -> None:
        """Export a batch; raises `CannotExport`, `ExportFailed`, `OutdatedBatch` or `ExportStopped`."""

    @abstractmethod
    def check_settings(self) -> str:
        """Return the line for operators once `check` passes, which names the other system; does not connect to it.

        Raises `ExportFailed` or `InvalidConfiguration` if an address, a secret or a package is missing or malformed.
        """

    @abstractmethod
    def check(self, batches: Sequence[ExportBatch]) -> None:
        """Check the other system, and the positions of batches of all buckets, without exporting any.

        Raises as a call does.
        """

    def sweep(self, queue: str, epoch: int, below: bytes) -> int:
        """Delete the rows of entries with a sequence lower than `below`, if there are any; returns their number."""
        return 0

    @abstractmethod
    def close(self) -> None:
        """Close the connections to the other system."""


class FencedExporter(KeptExporter):
    """An exporter with exactly-once effect: the other database has a fence for each bucket, its progress.

    The progress is the sequence of the last entry applied, compared in the transaction that applies a batch. The
    exporter skips entries up to it: so applying a batch again, after a crash or by a delayed worker, has no effect.
    """

    def _may_apply(self, batch: ExportBatch, progress: bytes) -> bool:
        """Whether to apply the entries after `progress`; False if other workers have applied and cleared them all.

        `progress` was read after the batch. Raises `OutdatedBatch` if the epoch has ended, `ExportStopped` if either
        database was set back: if the store has cleared entries that the progress has not reached, or if the progress is
        at an entry that the store neither holds nor has cleared. Versions are not compared: a restore raises them.
        """
        if progress == batch.cleared or progress in batch.known:
            return True
        if progress < batch.cleared:
            self._target_was_set_back(batch)
        # Another worker has advanced the progress since the batch was read, or the store was set back.
        position = batch.read_position(progress)
        if position.epoch != batch.epoch:
            raise OutdatedBatch
        if position.cleared >= progress and progress != CLOSED:
            return False  # the whole batch was applied and cleared
        if not position.holds:
            self._store_was_set_back(batch, progress)
        return True

    @property
    @abstractmethod
    def target(self) -> str:
        """The other database, as messages name it."""

    @abstractmethod
    def advice(self, queue: str) -> str:
        """What an operator can do after the export has stopped."""

    def _target_was_set_back(self, batch: ExportBatch) -> NoReturn:
        raise ExportStopped(
            f"{self.target} lacks changes that queue {batch.queue!r} has exported: it was set back or emptied, or is "
            f"not the one exported to before. {self.advice(batch.queue)}"
        )

    def _store_was_set_back(self, batch: ExportBatch, progress: bytes) -> NoReturn:
        if progress == CLOSED:
            raise ExportStopped(
                f"the export of queue {batch.queue!r} was taken over, or ended by a rebuild or rebase that this store "
                f"has no record of. {self.advice(batch.queue)}"
            )
        raise ExportStopped(
            f"{self.target} has changes of queue {batch.queue!r} that this store does not have: the store was set "
            f"back. {self.advice(batch.queue)}"
        )


class PoisonEntryIsolator:
    """Exports batches, and sets aside entries that can never be exported.

    Counts failed entries over all batches of a bucket, retries included. Otherwise a broken deployment, which fails for
    every entry, would empty the queue with a few entries in each try.

    Args:
        exporter: exports a batch.
        set_aside: called with the batch and {sequence: error} before any later entry is exported: once the exporter has
            passed an entry, no worker reads it again.
    """

    def __init__(
        self, exporter: Exporter, set_aside: Callable[[ExportBatch, Mapping[bytes, str]], object]
    ) -> None:
        self._exporter = exporter
        self._set_aside = set_aside
        self.exported = 0
        self.aside: dict[bytes, str] = {}
        self._latest = b""

    def export(self, batch: ExportBatch) -> None:
        """Export the batch, except for entries that can never be exported.

        Raises:
            ExportFailed: 10 entries or more, and over 20 % of those seen, fail: the deployment is broken, not the data.
            Exception: another error of the exporter, which it does not ascribe to an entry.
        """
        try:
            self._exporter(batch)
        except CannotExport as error:
            self._export_others(batch, error)
        else:
            self._count(batch)

    def _count(self, batch: ExportBatch) -> None:
        """Count the entries exported for the first time, which have higher sequences than all exported before."""
        self.exported += sum(
            entry.sequence > self._latest and entry.sequence not in self.aside for entry in batch.ordered
        )
        self._latest = max(self._latest, batch.last)
        if self.exported > _WINDOW:  # halve both counts: errors of long ago weigh less than recent ones
            self.exported //= 2
            self.aside = dict(list(self.aside.items())[len(self.aside) // 2 :])

    def _export_others(self, batch: ExportBatch, error: CannotExport) -> None:
        named = self._named(batch, error)
        if named:
            # First store the faulty entries: the export below advances the position past them.
            self._put_aside(batch, named)
            self.export(batch.without(named))
        elif len(batch) > 1:
            for half in batch.halves():
                self.export(half)
        else:
            raise error  # an empty batch fails: the error is not about an entry

    def _named(self, batch: ExportBatch, error: CannotExport) -> dict[bytes, str]:
        """{sequence: error} of the faulty entries, if the exporter names them or the batch has only one."""
        entries = error.entries
        named = {
            entry.sequence: entries[entry.sequence] for entry in batch.ordered if entry.sequence in entries
        }
        if not named and len(batch) == 1:
            named = {batch.ordered[0].sequence: str(error)}
        return named

    def _put_aside(self, batch: ExportBatch, named: Mapping[bytes, str]) -> None:
        failed = len(self.aside.keys() | named.keys())
        seen = self.exported + len(self.aside) + len(batch)
        if failed >= _MIN_BROKEN and failed > _SHARE_BROKEN * seen:
            latest = list(named.values())[-1]
            raise ExportFailed(f"{failed} of {seen} entries cannot be exported, the latest with: {latest}")
        self._set_aside(batch, named)
        self.aside.update(named)
