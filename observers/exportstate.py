"""What an export queue keeps beside its entries: how far each bucket is exported, what fails, what was set aside.

The epoch counts the rebuilds and rebases of the export. What is known about how far a bucket is exported holds within
one epoch; whoever has read a batch in an earlier one must throw it away.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from time import time
from typing import Any, Final, NamedTuple

from cq import codec, keys
from cq.errors import CorruptData
from cq.exportkeys import ExportKeys, name_of, queue_names_below
from cq.store.api import Transaction, TransactionRead

ERROR_CHARACTERS: Final = 1_000
_PIECE_BYTES: Final = 90_000


@dataclass(frozen=True, slots=True)
class Control:
    """Of the whole export.

    Attributes:
        epoch: counts the rebuilds and rebases.
        swept: the generation for which rows of earlier ones were last swept from the table; 0 at first.
    """

    epoch: int = 0
    swept: int = 0

    def to_bytes(self) -> bytes:
        """As stored."""
        return codec.encode([self.epoch, self.swept])


def read_control(tr: TransactionRead, queue: ExportKeys) -> Control:
    """The export's control; through a transaction it adds a read conflict with rebuilds and rebases."""
    stored = tr.get(queue.control).value
    return Control() if stored is None else Control(*_list_of(stored, [int, int]))


@dataclass(frozen=True, slots=True)
class ExportState:
    """A bucket's state, written with every batch that is cleared: the lock between exporters.

    Attributes:
        epoch: the export's epoch when the batch was exported.
        cleared: the sequence up to which entries are exported and cleared; empty at first.
    """

    epoch: int = 0
    cleared: bytes = b""

    def to_bytes(self) -> bytes:
        """As stored."""
        return codec.encode([self.epoch, self.cleared])

    @classmethod
    def from_bytes(cls, data: bytes | None) -> ExportState:
        """The inverse of `to_bytes`; None is the state of a bucket of which nothing was exported."""
        return cls() if data is None else cls(*_list_of(data, [int, bytes]))


def read_state(tr: TransactionRead, queue: ExportKeys, bucket: int) -> ExportState:
    """A bucket's state; through a transaction it adds a read conflict with other exporters of the bucket."""
    return ExportState.from_bytes(tr.get(queue.state(bucket)).value)


# Why an export is stopped: until the epoch changes


def stop(tr: Transaction, queue: ExportKeys, epoch: int, message: str) -> None:
    """Stop the export in all buckets, unless it is in another epoch by now; the keeper looks whether it may go on."""
    if read_control(tr, queue).epoch == epoch and read_stopped(tr, queue) != shortened(message):
        tr.set(queue.stopped, codec.encode([epoch, shortened(message)]))
        tr.set_versionstamped_value(queue.keeper, keys.INCOMPLETE_VERSIONSTAMP)


def read_stopped(tr: TransactionRead, queue: ExportKeys) -> str | None:
    """Why the export is stopped, None when it is not."""
    stored = tr.get(queue.stopped)
    control = read_control(tr, queue)
    if stored.value is None:
        return None
    epoch, message = _list_of(stored.value, [int, str])
    return str(message) if epoch == control.epoch else None


# What fails


@dataclass(frozen=True, slots=True)
class Failure:
    """Why the export of a bucket fails.

    Attributes:
        bucket: None for what is done for the export as a whole: the checks at start, and sweeping.
        error: the latest error.
        since: when it failed first, in seconds since 1970 by the clock of the worker.
        tries: how often in a row.
    """

    bucket: int | None
    error: str
    since: float
    tries: int


def write_failure(tr: Transaction, queue: ExportKeys, failure: Failure) -> None:
    """Store a failure, in place of the one before."""
    content = [shortened(failure.error), failure.since, failure.tries]
    tr.set(queue.failure(failure.bucket), codec.encode(content))


def read_failures(tr: TransactionRead, queue: ExportKeys) -> list[Failure]:
    """The failures of all buckets."""
    begin, end = queue.failures()
    found = []
    for row in tr.get_range(begin, end):
        rest = row.key[len(begin) :]
        error, since, tries = _list_of(row.value, [str, float, int])
        found.append(Failure(int.from_bytes(rest, "big") if rest else None, error, since, tries))
    return found


def next_failure(before: Failure | None, bucket: int | None, error: str) -> Failure:
    """The failure after another one in a row, or the first."""
    if before is None:
        return Failure(bucket, error, time(), 1)
    return Failure(bucket, error, before.since, before.tries + 1)


# What was set aside


class AsideEntry(NamedTuple):
    """An entry that can never be exported: where it stood, why, and what it was; key None for a row not of cq's."""

    bucket: int
    sequence: bytes
    error: str
    encoded_key: bytes | None
    value: Any


def set_entry_aside(
    tr: Transaction,
    queue: ExportKeys,
    bucket: int,
    sequence: bytes,
    error: str,
    key: bytes | None,
    value: Any,
) -> None:
    """Keep an entry with its error; the same entry again replaces what was kept of it."""
    data = codec.encode([shortened(error), key, value])
    for piece, start in enumerate(range(0, len(data), _PIECE_BYTES)):
        tr.set(queue.aside_piece(bucket, sequence, piece), data[start : start + _PIECE_BYTES])


def read_entries_aside(tr: TransactionRead, queue: ExportKeys) -> Iterator[AsideEntry]:
    """What was set aside, by bucket and sequence."""
    place: tuple[int, bytes] | None = None
    data = b""
    for row in tr.get_range(*queue.aside()):
        bucket, sequence, piece = queue.parse_aside(row.key)
        if piece == 0 and place is not None:
            yield AsideEntry(*place, *codec.decode(data))
            data = b""
        place = bucket, sequence
        data += row.value
    if place is not None:
        yield AsideEntry(*place, *codec.decode(data))


def export_names(tr: TransactionRead) -> list[str]:
    """The names of all export queues of which anything is stored, sorted; two reads for each queue there is."""
    names = []
    begin, end = queue_names_below()
    while found := tr.get_range(begin, end, limit=1).to_list():
        name = name_of(found[0].key)
        below = ExportKeys(name).prefix
        if tr.get_range(below, keys.prefix_end(below), limit=1).to_list():
            names.append(name)
        begin = keys.prefix_end(keys.QueueKeys(name).prefix)
    return names


def shortened(message: str) -> str:
    """A message that is not too long to be stored, whatever it contains."""
    text = message if len(message) <= ERROR_CHARACTERS else message[:ERROR_CHARACTERS] + "..."
    return text.encode("utf-8", "replace").decode()


def _list_of(data: bytes, types: list[type]) -> list[Any]:
    content = codec.decode(data)
    if not isinstance(content, list) or list(map(type, content)) != types:
        raise CorruptData(f"this is not what cq keeps of an export: {data[:60]!r}")
    return content
