"""What an export queue keeps beside its entries: how far each bucket is exported, what fails, what was set aside.

The epoch counts the rebuilds and rebases of the export. What is known about how far a bucket is exported holds within
one epoch; whoever has read a batch in an earlier one must throw it away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

from cq import keys, runtime
from cq.encoding import codec
from cq.errors import CorruptData, InvalidConfiguration
from cq.keys.export import ExportKeys, behind_queue, name_of, queue_names_below
from cq.plain_text import printable
from cq.store.api import Database, Transaction, TransactionRead
from cq.store.transact import transact

_PIECE_BYTES: Final = 90_000
_PAGE: Final = 100


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

    @classmethod
    def from_bytes(cls, data: bytes | None) -> Control:
        """The inverse of `to_bytes`; None is that of an export that was neither rebuilt nor swept."""
        return cls() if data is None else cls(*_list_of(data, [int, int]))


def read_control(tr: TransactionRead, queue: ExportKeys) -> Control:
    """The export's control; through a transaction it adds a read conflict with rebuilds and rebases."""
    return Control.from_bytes(tr.get(queue.control).value)


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


@dataclass(frozen=True, slots=True)
class ExportView:
    """An export at one version: its control, the states of buckets, and why it is stopped, None when it is not."""

    control: Control
    states: dict[int, ExportState]
    stopped: str | None

    def cleared(self, bucket: int) -> bytes:
        """Up to where a bucket is exported and cleared, as far as this epoch knows."""
        state = self.states[bucket]
        return state.cleared if state.epoch == self.control.epoch else b""


def read_view(tr: TransactionRead, queue: ExportKeys, buckets: Iterable[int]) -> Callable[[], ExportView]:
    """Read an export, all at once; what is returned waits for it.

    Through a transaction it adds read conflicts with rebuilds, rebases, and other exporters of these buckets.
    """
    control, stopped = tr.get(queue.control), tr.get(queue.stopped)
    states = {bucket: tr.get(queue.state(bucket)) for bucket in buckets}

    def wait() -> ExportView:
        found = Control.from_bytes(control.value)
        return ExportView(
            found,
            {bucket: ExportState.from_bytes(state.value) for bucket, state in states.items()},
            _reason(stopped.value, found.epoch),
        )

    return wait


# Why an export is stopped: until the epoch changes


def stop(tr: Transaction, queue: ExportKeys, epoch: int, message: str) -> None:
    """Stop the export in all buckets, unless it is in another epoch by now; the keeper looks whether it may go on."""
    found = read_view(tr, queue, ())()
    if found.control.epoch == epoch and found.stopped != printable(message):
        tr.set(queue.stopped, codec.encode([epoch, printable(message)]))
        tr.set_versionstamped_value(queue.keeper, keys.INCOMPLETE_VERSIONSTAMP)


def _reason(stored: bytes | None, epoch: int) -> str | None:
    """Why an export of this epoch is stopped, from what is stored."""
    if stored is None:
        return None
    stopped_in, message = _list_of(stored, [int, str])
    return str(message) if stopped_in == epoch else None


def check_stopped(stored: bytes) -> None:
    """Raises `CorruptData` unless this is what says why an export is stopped."""
    _reason(stored, 0)


# What fails


@dataclass(frozen=True, slots=True)
class ExportFailure:
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


def write_failure(tr: Transaction, queue: ExportKeys, failure: ExportFailure) -> None:
    """Store a failure, in place of the one before."""
    content = [printable(failure.error), failure.since, failure.tries]
    tr.set(queue.failure(failure.bucket), codec.encode(content))


def read_failures(tr: TransactionRead, queue: ExportKeys) -> list[ExportFailure]:
    """The failures of all buckets."""
    begin, end = queue.failures()
    found = []
    for row in tr.get_range(begin, end):
        rest = row.key[len(begin) :]
        error, since, tries = _list_of(row.value, [str, float, int])
        found.append(ExportFailure(int.from_bytes(rest, "big") if rest else None, error, since, tries))
    return found


def check_failure(stored: bytes) -> None:
    """Raises `CorruptData` unless this is a failure as stored."""
    _list_of(stored, [str, float, int])


def next_failure(before: ExportFailure | None, bucket: int | None, error: str) -> ExportFailure:
    """The failure after another one in a row, or the first."""
    if before is None:
        return ExportFailure(bucket, error, runtime.time(), 1)
    return ExportFailure(bucket, error, before.since, before.tries + 1)


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
    data = codec.encode([printable(error), key, value])
    for piece, start in enumerate(range(0, len(data), _PIECE_BYTES)):
        tr.set(queue.aside_piece(bucket, sequence, piece), data[start : start + _PIECE_BYTES])


def read_entries_aside(
    tr: TransactionRead, queue: ExportKeys, behind: AsideEntry | None = None
) -> Iterator[AsideEntry]:
    """What was set aside, by bucket and sequence; from the first one, or the one behind another."""
    place: tuple[int, bytes] | None = None
    data = b""
    begin, end = queue.aside()
    if behind is not None:
        begin = queue.aside_end(behind.bucket, behind.sequence)
    for row in tr.get_range(begin, end):
        found = queue.parse_aside(row.key)
        if found is None:
            continue
        bucket, sequence, piece = found
        if place is not None and (piece == 0 or place != (bucket, sequence)):
            yield _aside_entry(place, data)
            data = b""
        place = bucket, sequence
        data += row.value
    if place is not None:
        yield _aside_entry(place, data)


def _aside_entry(place: tuple[int, bytes], data: bytes) -> AsideEntry:
    """The entry that these bytes hold; one that cannot be read has its bytes."""
    try:
        error, key, value = codec.decode(data)
    except (CorruptData, TypeError, ValueError):
        error = key = None
    if type(error) is not str or type(key) not in (bytes, type(None)):
        return AsideEntry(*place, "this entry is not one that cq wrote", None, data)
    return AsideEntry(*place, error, key, value)


def entries_aside(db: Database, queue: ExportKeys) -> Iterator[AsideEntry]:
    """What was set aside, some at a time, each in a transaction of its own."""

    def page(tr: Transaction, behind: AsideEntry | None) -> list[AsideEntry]:
        return list(islice(read_entries_aside(tr.snapshot, queue, behind), _PAGE))

    found = transact(db, partial(page, behind=None))
    while found:
        yield from found
        found = transact(db, partial(page, behind=found[-1]))


def export_names(tr: TransactionRead) -> list[str]:
    """The names of all export queues of which anything is stored, sorted; two reads for each queue there is."""
    names = []
    begin, end = queue_names_below()
    while found := tr.get_range(begin, end, limit=1).to_list():
        begin = behind_queue(found[0].key)
        with suppress(InvalidConfiguration):
            name = name_of(found[0].key)
            below = ExportKeys(name).prefix
            if tr.get_range(below, keys.prefix_end(below), limit=1).to_list():
                names.append(name)
    return names


def _list_of(data: bytes, types: list[type]) -> list[Any]:
    content = codec.decode(data)
    if not isinstance(content, list) or list(map(type, content)) != types:
        raise CorruptData(f"this is not what cq keeps of an export: {data[:60]!r}")
    return content
