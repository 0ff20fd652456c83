r"""Rows of an export queue: entries to bytes and back, and reading a bucket's.

A row is a byte that says what it is, and a payload:

    0  CBOR of [encoded key, value, encoded key, value ...]: entries whose sequences count up from the row's own
    1  the first or a middle piece of an entry that is too large for one row; the next row has the next sequence
    2  the last piece of it; the pieces together are as 0, of one entry, whose sequence is that of the first piece

A value of null is a deletion. What a row holds was added by one transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any, Final, NamedTuple

import cbor2

from cq import runtime
from cq.encoding import codec
from cq.encoding.codec import MAX_VALUE_BYTES
from cq.errors import CorruptData, InvalidData, TooLarge
from cq.keys import after, version_of
from cq.keys.export import SEQUENCE_BYTES, ExportKeys, generation_of, sequences_from, versionstamp_of
from cq.store.api import WANT_ALL, TransactionRead

ROW_BYTES: Final = 8_000
"""Where a row is split: FoundationDB likes values below 10 kB."""
_PIECE_BYTES: Final = 90_000
MAX_PIECES: Final = 2
"""How many rows an entry can have. cq did not write a longer series, which may never end."""
_NUMBERS: Final = frozenset(
    (int, float, bool, type(None))
)  # which CBOR always carries, ints of 64 bits at least
_NUMBER_BYTES: Final = 9
_PLAIN_KEYS: Final = frozenset((str, int, bytes))
_WHOLE: Final = b"\x00"
_PIECE: Final = b"\x01"
_LAST_PIECE: Final = b"\x02"


class ExportEntry(NamedTuple):
    """What is to be exported of one key.

    Attributes:
        key: the key.
        value: its value now; None when it is deleted.
        sequence: 22 bytes, greater than those of all entries of the key before it, and never used twice.
        encoded_key: the key in CBOR.
    """

    key: Any
    value: Any
    sequence: bytes
    encoded_key: bytes


_entry: Final = partial(
    tuple.__new__, ExportEntry
)  # as `ExportEntry(...)`, of a tuple, without a call of Python's for each


class BrokenExportRow(NamedTuple):
    """A row that cq has not written: it is set aside as it is."""

    sequence: bytes
    data: bytes
    error: str


@dataclass(slots=True)
class QueuedEntries:
    """What was read of a bucket: its first entries, in the order of their sequences, and whether they are all."""

    entries: list[ExportEntry] = field(default_factory=list)
    broken: list[BrokenExportRow] = field(default_factory=list)
    last_key: bytes | None = None
    last: bytes = b""
    at_end: bool = True
    foreign: bool = False
    is_ahead: bool = False


class _Counters:
    """Numbers that keep the entries of one transaction apart and in order; thread-safe.

    They begin at random in each process. So no entry ever has the sequence of another, even when a store that was set
    back gives a version twice.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._next = int.from_bytes(runtime.token_bytes(8)) >> 2

    def take(self, count: int) -> int:
        """The first of so many numbers in a row."""
        with self._lock:
            first = self._next
            self._next += count
            return first


_counters: Final = _Counters()


def pack(pairs: Iterable[tuple[bytes, Any]]) -> list[tuple[int, bytes]]:
    """(counter, row) for the entries of one bucket, in order; raises `InvalidData` or `TooLarge`.

    Args:
        pairs: (encoded key, value), None for a deletion.
    """
    rows: list[tuple[int, bytes]] = []
    content: list[Any] = []
    size = 0
    for encoded_key, value in pairs:
        entry_size = len(encoded_key) + _checked_size(value)
        if content and size + entry_size > ROW_BYTES:
            rows += _rows(content)
            content, size = [], 0
        content += (encoded_key, value)
        size += entry_size
    return rows + _rows(content) if content else rows


def _checked_size(value: Any) -> int:
    if type(value) in _NUMBERS and (type(value) is not int or codec.is_int64(value)):
        return _NUMBER_BYTES
    size = len(codec.encode([value])) - 1  # in a list, as it is in a row, since lists can be nested too deep
    if size > MAX_VALUE_BYTES:
        raise TooLarge(f"a value of {size:,} bytes exceeds the limit of {MAX_VALUE_BYTES:,}")
    return size


def _rows(content: list[Any]) -> list[tuple[int, bytes]]:
    """One row, or the pieces of an entry that is too large for it."""
    data = cbor2.dumps(content)  # every part of it has been checked
    if len(data) <= _PIECE_BYTES:
        return [(_counters.take(len(content) // 2), _WHOLE + data)]
    pieces = [data[start : start + _PIECE_BYTES] for start in range(0, len(data), _PIECE_BYTES)]
    first = _counters.take(len(pieces))
    kinds = [_PIECE] * (len(pieces) - 1) + [_LAST_PIECE]
    return [
        (first + number, kind + piece) for number, (kind, piece) in enumerate(zip(kinds, pieces, strict=True))
    ]


def encoded_key(key: Any) -> bytes:
    """A key of an entry in CBOR; raises `InvalidData` or `TooLarge`."""
    if not isinstance(key, (str, int, bytes, tuple)) or isinstance(key, bool):
        raise InvalidData(f"expected a key to be str, int, bytes or a tuple of them, got: {codec.shown(key)}")
    data = codec.encode(key)
    if len(data) > codec.MAX_KEY_BYTES:
        raise TooLarge(f"a key of {len(data):,} bytes exceeds the limit of {codec.MAX_KEY_BYTES:,}")
    return data


def encoded_keys(keys: Sequence[Any]) -> list[bytes]:
    """Keys of entries in CBOR; raises as `encoded_key` does."""
    try:
        data = list(map(cbor2.dumps, keys)) if _PLAIN_KEYS.issuperset(map(type, keys)) else []
    except Exception:  # noqa: BLE001 - a text that is not Unicode: found, and said, below
        data = []
    if data and max(map(len, data)) <= codec.MAX_KEY_BYTES:
        return data
    return list(map(encoded_key, keys))


def decoded_keys(encoded: Sequence[Any]) -> list[Any]:
    """The inverse of `encoded_keys`; CBOR makes lists of tuples. Raises `CorruptData`."""
    if set(map(type, encoded)) != {bytes}:
        raise CorruptData("a key that is not encoded")
    return [tuple(key) if type(key) is list else key for key in codec.decode_all(encoded)]


def read_entries(
    snapshot: TransactionRead,
    keys: ExportKeys,
    bucket: int,
    read_version: int,
    limit_bytes: int,
    limit_entries: int,
    generation: int | None = None,
) -> QueuedEntries:
    """A bucket's first entries, whole rows of them, until a limit is exceeded.

    Reading ends before a row of a generation later than the one given, and before a row that is stamped later than
    the read version: that was copied here from elsewhere, and clearing up to it could take along what nobody has read.
    """
    found = QueuedEntries()
    size = 0
    pieces: list[tuple[bytes, bytes]] = []
    for row in snapshot.get_range(*keys.rows(bucket), streaming_mode=WANT_ALL):
        if not pieces and (size > limit_bytes or len(found.entries) >= limit_entries):
            found.at_end = False
            break
        sequence = keys.sequence_of_row(row.key)
        if version_of(versionstamp_of(sequence)) > read_version:
            found.at_end, found.foreign = False, True
            break
        if generation is not None and generation_of(sequence) > generation:
            found.at_end, found.is_ahead = False, True
            break
        size += len(row.key) + len(row.value)
        found.last_key = row.key
        found.last = max(found.last, sequence)
        pieces.append((sequence, row.value))
        if not is_piece(row.value) or len(pieces) > MAX_PIECES:
            unpack(found, pieces)
            pieces = []
    if pieces:
        unpack(found, pieces)
    return found


def unpack(found: QueuedEntries, pieces: Sequence[tuple[bytes, bytes]]) -> None:
    """Add the entries of a row, or of the pieces of one, to what was found; each with its sequence."""
    first = pieces[0][0]
    data = b"".join(value[1:] for _, value in pieces)
    try:
        _check_kinds([value[:1] for _, value in pieces], first)
        content = codec.decode(data)
        if not isinstance(content, list) or len(content) % 2 or not content:
            raise CorruptData(f"the exported row {first.hex()} holds no entries")
        encoded = content[::2]
        sequences = sequences_from(first, len(encoded))
        entries = list(
            map(_entry, zip(decoded_keys(encoded), content[1::2], sequences, encoded, strict=True))
        )
    except CorruptData as error:
        found.broken.append(BrokenExportRow(first, data, str(error)))
        return
    found.entries += entries
    found.last = max(found.last, entries[-1].sequence)


def is_piece(value: bytes) -> bool:
    """Whether a row is a piece of an entry, but the last one."""
    return value[:1] == _PIECE


def is_whole(value: bytes) -> bool:
    """Whether a row is no piece of an entry; also one that cq has not written."""
    return value[:1] not in (_PIECE, _LAST_PIECE)


def _check_kinds(kinds: Sequence[bytes], first: bytes) -> None:
    expected = [_WHOLE] if len(kinds) == 1 else [_PIECE] * (len(kinds) - 1) + [_LAST_PIECE]
    if kinds != expected:
        raise CorruptData(f"the exported row {first.hex()} is of no kind that this version of cq knows")


def holds(snapshot: TransactionRead, keys: ExportKeys, bucket: int, sequence: bytes) -> bool:
    """Whether the entry of this sequence waits in the bucket."""
    if len(sequence) != SEQUENCE_BYTES:
        return False
    begin = keys.rows(bucket)[0]
    rows = snapshot.get_range(begin, after(keys.row(bucket, sequence)), limit=1, reverse=True).to_list()
    if not rows:
        return False
    first, value = keys.sequence_of_row(rows[0].key), rows[0].value
    if first == sequence or value[:1] != _WHOLE:
        return first == sequence
    found = QueuedEntries()
    unpack(found, [(first, value)])
    return any(entry.sequence == sequence for entry in found.entries)
