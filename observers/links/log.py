r"""The log of a link: changes for another system, added in the transactions that make them, in commit order.

An add is blind: it has no reads and no conflicts. The key's hash determines the bucket of an entry, and each bucket is
sent in the order of its entries' sequences; so all entries of a key are sent in commit order.

A row is a byte 0, and CBOR of [encoded key, value, encoded key, value ...]: entries whose sequences count up from the
row's own.

An entry that is too large for such a row has one of its own: its key in the store ends with the encoded key, and the
row is the value in CBOR. A value of null is a deletion. One transaction added all entries of a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Final, NamedTuple

import cbor2

from cq import runtime
from cq.arguments import repeatable
from cq.encoding import codec
from cq.encoding.cbor import dumps
from cq.encoding.codec import MAX_VALUE_BYTES
from cq.encoding.hashing import bucket_of
from cq.errors import CorruptData, InvalidData, TooLarge
from cq.keys import INCOMPLETE_VERSIONSTAMP, prefix_end, version_of
from cq.keys.link import SEQUENCE_BYTES, LinkKeys, generation_of, sequences_from, versionstamp_of
from cq.store.api import WANT_ALL, Transaction, TransactionRead

ROW_BYTES: Final = 8_000
"""A row of this size is full: FoundationDB works best with values below 10 kB."""
_SHARED_BYTES: Final = 90_000
"""A larger entry has a row of its own: its key and value can exceed the limit of a value."""
# CBOR encodes each of them in at most nine bytes, ints of up to 64 bits.
_NUMBERS: Final = frozenset((int, float, bool, type(None)))
_NUMBER_BYTES: Final = 9
_PLAIN_KEYS: Final = frozenset((str, int, bytes))
_KIND: Final = b"\x00"
BUCKETS: Final = 8
"""Number of buckets of every link, which never changes; each of them can be sent in parallel.

It is part of the layout. If it changed, new entries of a key could overtake older ones in the key's former bucket.
"""


class LinkEntry(NamedTuple):
    """A change of one key to send.

    Attributes:
        key: the key.
        value: the new value; None for a deletion.
        sequence: 22 bytes, greater than those of all earlier entries of the key, and never used twice.
        encoded_key: the key in CBOR.
    """

    key: Any
    value: Any
    sequence: bytes
    encoded_key: bytes


# Makes an `LinkEntry` of a tuple without a call of a Python function for each entry.
_entry: Final = partial(tuple.__new__, LinkEntry)


class ReadLimits(NamedTuple):
    """The limits of a read of a bucket's first entries.

    Attributes:
        read_version: the version at which the transaction reads; rows stamped later were copied from elsewhere.
        size, entries: bytes and number of entries, after which reading ends.
        generation: rows of later generations are not read; None: all are.
    """

    read_version: int
    size: int
    entries: int
    generation: int | None = None


class BrokenLinkRow(NamedTuple):
    """A row that cq did not write; it is set aside unchanged."""

    sequence: bytes
    data: bytes
    error: str


@dataclass(slots=True)
class QueuedEntries:
    """The first entries of a bucket, in the order of their sequences.

    Attributes:
        entries: the entries read.
        broken: rows read that cq did not write.
        last_key: the key of the last row read; None: no row was read.
        last: the highest sequence read.
        at_end: whether these are all entries of the bucket.
        foreign: whether reading ended at a row stamped later than the read version.
        is_ahead: whether reading ended at a row of a later generation.
    """

    entries: list[LinkEntry] = field(default_factory=list)
    broken: list[BrokenLinkRow] = field(default_factory=list)
    last_key: bytes | None = None
    last: bytes = b""
    at_end: bool = True
    foreign: bool = False
    is_ahead: bool = False


_COUNTED: Final = 1 << 16
"""More than a row has entries, whose counters follow that of the row."""
# Counters order the rows of a transaction. They start at a random number in each process: so no two entries ever have
# the same sequence, even if a store is set back and assigns a version twice.
_counters: Final = count(int.from_bytes(runtime.token_bytes(8)) >> 2, _COUNTED)


class _PackedRow(NamedTuple):
    """A row to write: the counter of its first entry, what follows in its key, and its value."""

    counter: int
    tail: bytes
    value: bytes


def pack(pairs: Iterable[tuple[bytes, Any]]) -> list[_PackedRow]:
    """Encode the entries of one bucket as rows, in order; raises `InvalidData` or `TooLarge`.

    Args:
        pairs: (encoded key, value), None for a deletion.
    """
    rows: list[_PackedRow] = []
    content: list[Any] = []
    size = 0
    for encoded_key, value in pairs:
        entry_size = len(encoded_key) + _checked_size(value)
        if content and size + entry_size > ROW_BYTES:
            rows.append(_packed(content))
            content, size = [], 0
        content += (encoded_key, value)
        size += entry_size
    return [*rows, _packed(content)] if content else rows


def _checked_size(value: Any) -> int:
    if type(value) in _NUMBERS and (type(value) is not int or codec.is_int64(value)):
        return _NUMBER_BYTES
    size = len(codec.encode([value])) - 1  # in a list, as in a row: it counts as a level of nesting
    if size > MAX_VALUE_BYTES:
        raise TooLarge(f"a value of {size:,} bytes exceeds the limit of {MAX_VALUE_BYTES:,}")
    return size


def _packed(content: list[Any]) -> _PackedRow:
    """Encode several entries, or one large entry, as a row."""
    data = dumps(content)  # every part has been checked
    if len(data) <= _SHARED_BYTES:
        return _PackedRow(next(_counters), b"", _KIND + data)
    encoded, value = content
    return _PackedRow(next(_counters), encoded, dumps(value))


def encoded_key(key: Any) -> bytes:
    """Encode the key of an entry in CBOR; raises `InvalidData` or `TooLarge`."""
    if not isinstance(key, (str, int, bytes, tuple)) or isinstance(key, bool):
        raise InvalidData(f"expected a key to be str, int, bytes or a tuple of them, got: {codec.shown(key)}")
    data = codec.encode(key)
    if len(data) > codec.MAX_KEY_BYTES:
        raise TooLarge(f"a key of {len(data):,} bytes exceeds the limit of {codec.MAX_KEY_BYTES:,}")
    return data


def encoded_keys(keys: Sequence[Any]) -> list[bytes]:
    """Encode the keys of entries in CBOR; raises as `encoded_key` does."""
    try:
        data = list(map(cbor2.dumps, keys)) if _PLAIN_KEYS.issuperset(map(type, keys)) else []
    except Exception:  # noqa: BLE001 - a text that is not Unicode: `encoded_key` raises a clear error below
        data = []
    if data and max(map(len, data)) <= codec.MAX_KEY_BYTES:
        return data
    return list(map(encoded_key, keys))


def decoded_keys(encoded: Sequence[Any]) -> list[Any]:
    """The inverse of `encoded_keys`; raises `CorruptData`. CBOR decodes tuples as lists."""
    if set(map(type, encoded)) != {bytes}:
        raise CorruptData("a key that is not encoded")
    return [tuple(key) if type(key) is list else key for key in codec.decode_all(encoded)]


def read_entries(snapshot: TransactionRead, keys: LinkKeys, bucket: int, limits: ReadLimits) -> QueuedEntries:
    """Read a bucket's first rows until their entries exceed a limit.

    Stops at a row of a later generation, and at a row stamped later than the read version: such a row was copied from
    elsewhere, and clearing up to it could delete entries that no worker has read.
    """
    found = QueuedEntries()
    size = 0
    for row in snapshot.get_range(*keys.rows(bucket), streaming_mode=WANT_ALL):
        if size > limits.size or len(found.entries) >= limits.entries:
            found.at_end = False
            break
        sequence, tail = keys.split_row(row.key)
        if version_of(versionstamp_of(sequence)) > limits.read_version:
            found.at_end, found.foreign = False, True
            break
        if limits.generation is not None and generation_of(sequence) > limits.generation:
            found.at_end, found.is_ahead = False, True
            break
        size += len(row.key) + len(row.value)
        found.last_key = row.key
        found.last = max(found.last, sequence)
        try:
            found.entries += unpack(sequence, tail, row.value)
        except CorruptData as error:
            found.broken.append(BrokenLinkRow(sequence, row.value, str(error)))
        else:
            found.last = max(found.last, found.entries[-1].sequence)
    return found


def unpack(first: bytes, tail: bytes, value: bytes) -> list[LinkEntry]:
    """Decode a row; raises `CorruptData`. The arguments are the parts of its key, see `LinkKeys.split_row`, and it."""
    if tail:
        content = [tail, codec.decode(value)]
    elif value.startswith(_KIND):
        content = codec.decode(value[len(_KIND) :])
    else:
        raise CorruptData(f"the row {first.hex()} has a kind that this version of cq does not know")
    if not isinstance(content, list) or len(content) % 2 or not content:
        raise CorruptData(f"the row {first.hex()} holds no entries")
    encoded = content[::2]
    sequences = sequences_from(first, len(encoded))
    return list(map(_entry, zip(decoded_keys(encoded), content[1::2], sequences, encoded, strict=True)))


def holds(snapshot: TransactionRead, keys: LinkKeys, bucket: int, sequence: bytes) -> bool:
    """Whether the bucket holds the entry with this sequence."""
    if len(sequence) != SEQUENCE_BYTES:
        return False
    begin = keys.rows(bucket)[0]
    # The entry may be in the middle of a row, whose key has the sequence of the row's first entry.
    end = prefix_end(keys.row(bucket, sequence))
    for row in snapshot.get_range(begin, end, limit=1, reverse=True):
        first, tail = keys.split_row(row.key)
        with suppress(CorruptData):  # of a damaged row, only the first sequence is known
            return sequence in [first, *(entry.sequence for entry in unpack(first, tail, row.value))]
        return sequence == first
    return False


def oldest_versions(tr: TransactionRead, keys: LinkKeys) -> list[int]:
    """The commit version of the first entry of each bucket that has entries."""
    firsts = [tr.get_range(*keys.rows(bucket), limit=1) for bucket in range(BUCKETS)]
    return [version_of(versionstamp_of(keys.split_row(row.key)[0])) for first in firsts for row in first]


def append(
    tr: Transaction, keys: LinkKeys, generation: int, entries: Mapping[Any, Any] | Iterable[tuple[Any, Any]]
) -> None:
    """Append entries to the log of a link in a transaction; the arguments and errors are those of `cq.links.add`.

    Entries of a higher generation sort after all of a lower one. So no process may append under a lower generation than
    that of the link: each reads the configuration in the transaction, which conflicts with changes of it.
    """
    buckets: dict[int, list[tuple[bytes, Any]]] = {}
    pairs = list(entries.items() if isinstance(entries, Mapping) else repeatable(entries, "entries"))
    for encoded, (_, value) in zip(encoded_keys([key for key, _ in pairs]), pairs, strict=True):
        buckets.setdefault(bucket_of(encoded, BUCKETS), []).append((encoded, value))
    packed = {bucket: pack(each) for bucket, each in buckets.items()}
    for bucket, rows in packed.items():
        for counter, tail, row in rows:
            tr.set_versionstamped_key(keys.new_row(bucket, generation, counter, tail), row)
        tr.set_versionstamped_value(keys.notification(bucket), INCOMPLETE_VERSIONSTAMP)
