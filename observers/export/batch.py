"""A batch of entries as an exporter gets it, and exporting one around the entries that can never be exported."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from cq.observers.export.errors import CannotExport, ExportFailed
from cq.observers.export.rows import ExportEntry

Exporter = Callable[["ExportBatch"], object]
"""Called with a batch, from several threads at once with those of different buckets; it returns when all is exported.

It may get a batch, or a part of one, again: after a crash, when somebody else was slow, or when another entry of it
could not be exported. Raising `CannotExport` says that entries are to blame, which are then set aside; anything else
that it raises, that the batch is to be tried again later.
"""

_MIN_BROKEN: Final = 10
_SHARE_BROKEN: Final = 0.2
_WINDOW: Final = 10_000


class ExportPosition(NamedTuple):
    """How far a bucket is exported, as the store knows it at one moment.

    Attributes:
        epoch: the export's epoch.
        cleared: the sequence up to which entries are exported and cleared.
        holds: whether the entry that was asked for waits in the bucket.
    """

    epoch: int
    cleared: bytes
    holds: bool


@dataclass(frozen=True)
class ExportBatch:
    """Entries of one bucket; iterating gives all entries of a key together, and ascending in their sequences.

    It is empty when all of its entries were set aside: then there is only `last` to be kept, by those who keep it.

    Attributes:
        queue: the name of the export queue.
        bucket: which one.
        ordered: the entries in the order of their sequences.
        last: the sequence up to which the bucket is exported once the batch is; not always that of an entry in it.
        epoch: of the export, when the batch was read.
        cleared: the sequence up to which entries had been exported and cleared when the batch was read.
        known: the sequences read together with those of the batch, from the bucket's first one onward.
        read_position: asks the store anew how far the bucket is exported, and whether it holds the entry of a sequence.
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
        """The batch without some of its entries; exporting it still means exporting up to `last`."""
        return replace(self, ordered=[entry for entry in self.ordered if entry.sequence not in sequences])

    def halves(self) -> tuple[ExportBatch, ExportBatch]:
        """The batch of the first half of its entries, and that of the rest."""
        middle = len(self.ordered) // 2
        first = self.ordered[:middle]
        return replace(self, ordered=first, last=first[-1].sequence), replace(
            self, ordered=self.ordered[middle:]
        )


class PoisonEntryIsolator:
    """Exports batches; entries that can never be exported are set aside first, and the others go on.

    It counts over all batches of a bucket, tries again included: a deployment that fails for every entry must not
    empty the queue, a few entries in each try.

    Args:
        exporter: of the batch.
        set_aside: called with the batch and {sequence: error} before anything behind those entries is exported: once
            the exporter has passed them, nobody will look at them again.
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
        """Export all of the batch that can be.

        Raises:
            ExportFailed: so many entries fail that it must be the deployment that is broken, not the data.
            Exception: whatever the exporter raises that no entry is to blame for.
        """
        try:
            self._exporter(batch)
        except CannotExport as error:
            self._around(batch, error)
        else:
            self._count(batch)

    def _count(self, batch: ExportBatch) -> None:
        """Count the entries exported for the first time: those behind all that were exported before."""
        self.exported += sum(
            entry.sequence > self._latest and entry.sequence not in self.aside for entry in batch.ordered
        )
        self._latest = max(self._latest, batch.last)
        if self.exported > _WINDOW:
            self.exported //= 2
            self.aside = dict(list(self.aside.items())[len(self.aside) // 2 :])

    def _around(self, batch: ExportBatch, error: CannotExport) -> None:
        named = self._named(batch, error)
        if named:
            self._put_aside(batch, named)
            self.export(batch.without(named))
        elif len(batch) > 1:
            for half in batch.halves():
                self.export(half)
        else:
            raise error  # nothing to export, and yet it fails: no entry is to blame

    def _named(self, batch: ExportBatch, error: CannotExport) -> dict[bytes, str]:
        """The entries that are known to be to blame."""
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
