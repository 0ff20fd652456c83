r"""The keys of the store and of its queues. Other keyspaces have their own modules, which the table names.

Each row has a key, its value, and who writes it. `P` is the prefix of a queue, `h` the 32-bit hash of the encoded key,
`g` a generation, of the queue's shape if the row does not say otherwise. A number after a name is its length in bytes.
Numbers are big-endian, so that keys sort in the order of the numbers.

    "cq/queues/" name                         ""                               one for each configured queue
    "cq/changed"                              versionstamp of the last change  configure, pause, resume
    "cq/id"                                   id of the store, random          the first process that needs it
    "cq/w/" id8                               a worker's latest heartbeat      that worker; others after its end
    "cq/workers"                              versionstamp of the last change  workers that start, end or find one dead
    "cq/c/" ...                               cells, and their directory       see cq.keys.cell
    "cq/feeds/" ..., "cq/f/" ...              feeds, and their data            see cq.keys.feed
    P = "cq/q/" name "/"
    P "u" g4 bucket4 versionstamp10 counter8  packed updates                   add (blind)
    P "n" g4 bucket4                          versionstamp of the latest add   add (blind), cleared by a pass
    P "o" length2 id versionstamp10           ""                               add (blind), trimmed by workers
    P "i" emitter10                           versionstamp, number8: a flush   that emitter, trimmed by workers
    P "d" h4 key                              current value                    a pass
    P "s" h4 key                              updates folded before a report   a pass
    P "b" g4 bucket4                          the bucket's state (the lock)    a pass
    P "a" g4 bucket4 worker                   a worker's attempt at a pass     workers, before their passes
    P "x" h4 length2 key versionstamp10 n4    updates set aside, the reason    a pass
    P "k" length2 id                          number of parts of a document    Documents
    P "w" length2 id part4 piece4             a document's counts              Documents
    P "l" name                                position in a file being added   add_jsonl, LogFollower
    P "t" g4 ...                              data of a generation of an observer
    P "y" observer                            generation that readers use      configure, workers
    P "z" observer 0 ...                      published data of an observer    workers
    P "e" ...                                 links, and their queued entries  see cq.keys.link
    P "g" ...                                 state of the outbox              see cq.keys.link
    P "j" ...                                 sums of the audit                see cq.keys.audit
    P "h" ...                                 work of each minute of a day     see cq.keys.history
    P "vl"                                    number of updates that were late add (blind)
    P "vf"                                    number of updates from the future add (blind)
    P "m" ...                                 reports that observers missed    see cq.keys.missed
    P "q" ...                                 times after which keys expire    see cq.keys.expiry
    P "A" ...                                 answers to requests              see cq.keys.answers
    P "r" store16 bucket4 queue "/" link      position of a forward            workers of the queue of that store
    P "config"                                shape of the queue               configure, rebucket, purge
    P "full"                                  limit reached, effect on adds    workers
    P "purge"                                 versionstamp of the latest purge purge
    P "flags"                                 paused or not, limits, priority  operators and workers

A bucket is a range of hashes: its values are adjacent, and do not move when the number of buckets changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from operator import add
from struct import Struct
from typing import Final, NamedTuple

from cq.encoding.codec import brief
from cq.encoding.hashing import HASHES, bucket_bounds, key_hash
from cq.errors import CorruptData, InvalidConfiguration

ROOT: Final = b"cq/"
QUEUES: Final = ROOT + b"queues/"
STORE_ID: Final = ROOT + b"id"
CHANGED: Final = ROOT + b"changed"
"""Changes with every change of a configuration or of flags. Workers watch it."""

VERSIONSTAMP_BYTES: Final = 10
EMITTER_ID_BYTES: Final = 10
_INCOMPLETE: Final = b"\x00" * VERSIONSTAMP_BYTES
_BUCKET: Final = Struct(">II")
_HASH: Final = Struct(">I")
_LENGTH: Final = Struct(">H")
_COUNTER: Final = Struct(">Q")
_PIECE_TAIL: Final = VERSIONSTAMP_BYTES + 4  # after the key: the versionstamp, and the number of the piece
# The argument of a versionstamped operation ends with the position of the versionstamp, which is little-endian.
_OFFSET: Final = Struct("<I")
MAX_NAME: Final = 100
"""The longest name of a queue or a feed, in characters."""
_NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{MAX_NAME - 1}}}")

INCOMPLETE_VERSIONSTAMP: Final = _INCOMPLETE + _OFFSET.pack(0)
"""The argument of `set_versionstamped_value` that makes the value the bare versionstamp."""


def place(encoded_key: bytes) -> bytes:
    """The place of a key in hash order, by which current and staged values are sorted: its hash, then the key."""
    return _HASH.pack(key_hash(encoded_key)) + encoded_key


def places(encoded_keys: Sequence[bytes]) -> list[bytes]:
    """The `place` of each key."""
    return list(map(add, map(_HASH.pack, map(key_hash, encoded_keys)), encoded_keys))


def after(key: bytes) -> bytes:
    """The first key after `key`."""
    return key + b"\x00"


def prefix_end(prefix: bytes) -> bytes:
    r"""The end of the range of all keys that begin with `prefix`, which must have a byte other than 255.

    >>> prefix_end(b"a\x01\xff")
    b'a\x02'
    """
    prefix = prefix.rstrip(b"\xff")
    return prefix[:-1] + bytes((prefix[-1] + 1,))


def below(prefix: bytes) -> tuple[bytes, bytes]:
    """The range of all keys that begin with `prefix`."""
    return prefix, prefix_end(prefix)


class Prefix(bytes):
    """The prefix of some keys. To call it returns the range of all of them."""

    __slots__ = ()

    def __call__(self) -> tuple[bytes, bytes]:
        return below(bytes(self))

    def of_bucket(self, buckets: int, bucket: int) -> tuple[bytes, bytes]:
        """The range of a bucket's hashes, if a hash follows the prefix."""
        return bucket_range(self, buckets, bucket)

    def rest(self, key: bytes) -> bytes:
        """What follows the prefix in a key."""
        return key[len(self) :]


def stamped(prefix: bytes, tail: bytes = b"") -> bytes:
    """The key argument of `set_versionstamped_key` for a versionstamp between prefix and tail."""
    return prefix + _INCOMPLETE + tail + _OFFSET.pack(len(prefix))


def version_of(versionstamp: bytes) -> int:
    """The commit version in a versionstamp; transactions of one commit batch share it."""
    return int.from_bytes(versionstamp[:8], "big")


def new_flush(number: int) -> bytes:
    """The argument of `set_versionstamped_value` for an emitter's key."""
    return _INCOMPLETE + _COUNTER.pack(number) + _OFFSET.pack(0)


def parse_flush(value: bytes) -> tuple[bytes, int]:
    """Versionstamp and number of the flush in the value of an emitter's key; raises `CorruptData`."""
    if len(value) != VERSIONSTAMP_BYTES + _COUNTER.size:
        raise CorruptData(f"the committed flush of an emitter is not one that cq wrote: {value[:40]!r}")
    return value[:VERSIONSTAMP_BYTES], _COUNTER.unpack_from(value, VERSIONSTAMP_BYTES)[0]


def check_name(name: object, what: str = "queue") -> str:
    """The name itself; raises `InvalidConfiguration` if it is not a valid name of a queue, or of a feed (`what`)."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidConfiguration(
            f"expected a {what} name of 1 to 100 letters, digits, '_', '.' or '-', "
            f"beginning with a letter or digit, got: {brief(name)}"
        )
    return name


def queue_entry(name: str) -> bytes:
    """The key of a queue in the store's list of queues."""
    return QUEUES + name.encode()


def queue_of_entry(key: bytes) -> str | None:
    """The inverse of `queue_entry`; None if the name is not valid."""
    return valid_name(key[len(QUEUES) :])


def valid_name(data: bytes) -> str | None:
    """The name of a queue or a feed in these bytes; None if it is not valid."""
    name = data.decode("ascii", "replace")
    return name if _NAME.fullmatch(name) else None


class GenerationRanges(NamedTuple):
    """The ranges of the keys of one generation of a queue's shape."""

    rows: tuple[bytes, bytes]
    notifications: tuple[bytes, bytes]
    states: tuple[bytes, bytes]
    attempts: tuple[bytes, bytes]


class QueueKeys:
    r"""The keys of one queue.

    >>> QueueKeys("words").notification(1, 2)
    b'cq/q/words/n\x00\x00\x00\x01\x00\x00\x00\x02'

    Attributes:
        values, all_staged, all_aside: the prefixes of current values, of staged updates and of updates set aside, in
            hash order.
        all_rows, notifications, emitters, documents, all_observer_data: the prefixes of these.
    """

    def __init__(self, name: str) -> None:
        self.prefix = ROOT + b"q/" + check_name(name).encode() + b"/"
        self.config = self.prefix + b"config"
        self.flags = self.prefix + b"flags"
        self.full = self.prefix + b"full"
        self.purge = self.prefix + b"purge"
        self.late = self.prefix + b"vl"
        self.future = self.prefix + b"vf"
        self.values = Prefix(self.prefix + b"d")
        self.all_staged = Prefix(self.prefix + b"s")
        self.all_rows = Prefix(self.prefix + b"u")
        self.notifications = Prefix(self.prefix + b"n")
        self.emitters = Prefix(self.prefix + b"i")
        self.all_aside = Prefix(self.prefix + b"x")
        self.documents = Prefix(self.prefix + b"k")
        self.all_observer_data = Prefix(self.prefix + b"t")
        self._markers = self.prefix + b"o"
        self._states = self.prefix + b"b"
        self._attempts = self.prefix + b"a"
        self._counts = self.prefix + b"w"
        self._loads = self.prefix + b"l"
        self._observers_current = self.prefix + b"y"
        self._observers_published = self.prefix + b"z"

    # Queued updates

    def rows(self, generation: int, bucket: int) -> tuple[bytes, bytes]:
        """The range of a bucket's queued rows, in commit order."""
        prefix = self.all_rows + _BUCKET.pack(generation, bucket)
        return prefix, prefix + b"\xff" * (VERSIONSTAMP_BYTES + _COUNTER.size + 1)

    def after_rows(self, generation: int, bucket: int) -> bytes:
        """A key after all rows of a bucket, in the range that an add makes unreadable; no transaction writes it."""
        return self.all_rows + _BUCKET.pack(generation, bucket) + b"\xff" * VERSIONSTAMP_BYTES

    def new_row(self, generation: int, bucket: int, counter: int) -> bytes:
        """The key argument of `set_versionstamped_key` for a row; `counter` orders the rows of one transaction."""
        return stamped(self.all_rows + _BUCKET.pack(generation, bucket), _COUNTER.pack(counter))

    @staticmethod
    def versionstamp_of_row(key: bytes) -> bytes:
        """The versionstamp in a row's key."""
        return key[-VERSIONSTAMP_BYTES - _COUNTER.size : -_COUNTER.size]

    def rows_before(self, generation: int, bucket: int, versionstamp: bytes) -> tuple[bytes, bytes]:
        """The range of a bucket's rows of transactions before this versionstamp."""
        prefix = self.all_rows + _BUCKET.pack(generation, bucket)
        return prefix, prefix + versionstamp

    def notification(self, generation: int, bucket: int) -> bytes:
        """The key of the notification of a bucket, which exists while the bucket has work."""
        return self.notifications + _BUCKET.pack(generation, bucket)

    # Operation ids

    def markers(self, operation: bytes | None = None) -> tuple[bytes, bytes]:
        """The range of one operation id's markers in commit order, or of all markers."""
        if operation is None:
            return below(self._markers)
        # The length keeps the markers of an id apart from those of longer ids that begin with it.
        prefix = self._markers + _LENGTH.pack(len(operation)) + operation
        return prefix, prefix + b"\xff" * (VERSIONSTAMP_BYTES + 1)

    def new_marker(self, operation: bytes) -> bytes:
        """The key argument of `set_versionstamped_key` for a marker."""
        return stamped(self.markers(operation)[0])

    def parse_marker(self, key: bytes) -> tuple[bytes, bytes]:
        """Operation id and versionstamp in the key of a marker."""
        start = len(self._markers) + _LENGTH.size
        return key[start:-VERSIONSTAMP_BYTES], key[-VERSIONSTAMP_BYTES:]

    # Emitters

    def emitter(self, emitter_id: bytes) -> bytes:
        """The key of the last committed flush of an emitter."""
        return self.emitters + emitter_id

    # Data of observers

    def observer_data(self, generation: int) -> bytes:
        """The prefix of the data of a generation of an observer."""
        return self.all_observer_data + _HASH.pack(generation)

    def observer_current(self, name: str) -> bytes:
        """The key of the number of the generation of an observer's data that readers use."""
        return self._observers_current + name.encode()

    def observer_published(self, name: str) -> bytes:
        """The prefix of the published data of an observer, which all generations share."""
        return self._observers_published + name.encode() + b"\x00"

    # Sources of updates

    def document(self, document: bytes) -> bytes:
        """The key of the number of parts of a document, which exists while the document does."""
        return self.documents + _LENGTH.pack(len(document)) + document

    def document_of(self, key: bytes) -> bytes:
        """The id in a document's key."""
        return self.documents.rest(key)[_LENGTH.size :]

    def document_part(self, document: bytes, part: int) -> tuple[bytes, bytes]:
        """The range of one part of a document's counts."""
        prefix = self._counts + _LENGTH.pack(len(document)) + document
        return prefix + _HASH.pack(part), prefix + _HASH.pack(part + 1)

    def document_piece(self, document: bytes, part: int, piece: int) -> bytes:
        """The key of one piece of a part of a document's counts."""
        return self.document_part(document, part)[0] + _HASH.pack(piece)

    def sources(self) -> list[tuple[bytes, bytes]]:
        """The ranges of all documents, of their counts, and of the positions in files."""
        return [(prefix, prefix_end(prefix)) for prefix in (self.documents, self._counts, self._loads)]

    def load(self, name: bytes) -> bytes:
        """The key of the position in a file that `add_jsonl` adds."""
        return self._loads + name

    # Values, by hash

    def value(self, encoded_key: bytes) -> bytes:
        """The key of a current value."""
        return self.values + place(encoded_key)

    def value_at(self, where: bytes) -> bytes:
        """The key of the current value at a place."""
        return self.values + where

    def values_at(self, where: Iterable[bytes]) -> list[bytes]:
        """The key of the current value at each place."""
        return list(map(self.values.__add__, where))

    def staged(self, encoded_key: bytes) -> bytes:
        """The key of a key's staged updates, which a pass has folded but not reported."""
        return self.all_staged + place(encoded_key)

    def staged_at(self, where: bytes) -> bytes:
        """The key of the staged updates at a place."""
        return self.all_staged + where

    def encoded_key(self, key: bytes) -> bytes:
        """The encoded application key in the key of a current or staged value."""
        start = len(self.values) + _HASH.size
        if len(key) <= start:
            raise CorruptData(f"the key {key!r} is too short to hold a value: it was not written by cq")
        return key[start:]

    # State of buckets, and updates set aside

    def state(self, generation: int, bucket: int) -> bytes:
        """The key of a bucket's state. Every pass reads and writes it, so two passes over one bucket conflict."""
        return self._states + _BUCKET.pack(generation, bucket)

    def attempts(self, generation: int, bucket: int) -> tuple[bytes, bytes]:
        """The range of all workers' notes of attempts at a bucket."""
        return below(self._attempts + _BUCKET.pack(generation, bucket))

    def attempt(self, generation: int, bucket: int, worker: bytes) -> bytes:
        """The key of a worker's note of its attempt at a bucket."""
        return self.attempts(generation, bucket)[0] + worker

    def of_generation(self, generation: int) -> GenerationRanges:
        """The ranges of the keys of a generation of the shape."""
        prefixes = (self.all_rows, self.notifications, self._states, self._attempts)
        return GenerationRanges(*(below(prefix + _HASH.pack(generation)) for prefix in prefixes))

    def new_aside(self, encoded_key: bytes, piece: int) -> bytes:
        """The key argument of `set_versionstamped_key` for a piece of an entry that is set aside."""
        return stamped(self._aside_of(encoded_key), piece.to_bytes(4, "big"))

    def aside(self, encoded_key: bytes | None = None) -> tuple[bytes, bytes]:
        """The range of the entries that were set aside, of one key or of all keys."""
        if encoded_key is None:
            return self.all_aside()
        prefix = self._aside_of(encoded_key)
        return prefix, _end_of_pieces(prefix)

    def end_of_aside(self, key: bytes) -> bytes:
        """The end of the range of the entries that were set aside with the encoded key of this one."""
        return _end_of_pieces(key[:-_PIECE_TAIL])

    def _aside_of(self, encoded_key: bytes) -> bytes:
        return (
            self.all_aside + _HASH.pack(key_hash(encoded_key)) + _LENGTH.pack(len(encoded_key)) + encoded_key
        )

    def parse_aside(self, key: bytes) -> tuple[bytes, bytes, int]:
        """Encoded key, versionstamp and piece of an entry that was set aside."""
        start = len(self.all_aside) + _HASH.size + _LENGTH.size
        return key[start:-_PIECE_TAIL], key[-_PIECE_TAIL:-4], int.from_bytes(key[-4:], "big")


def _end_of_pieces(prefix: bytes) -> bytes:
    return prefix + b"\xff" * (_PIECE_TAIL + 1)


def bucket_range(prefix: bytes, buckets: int, bucket: int) -> tuple[bytes, bytes]:
    """The range of a bucket's hashes below a prefix."""
    first, end = bucket_bounds(buckets, bucket)
    return prefix + _HASH.pack(first), prefix_end(prefix) if end == HASHES else prefix + _HASH.pack(end)


# Keys that cq may not have written: other programs can write into the ranges of a queue, too. These functions take the
# prefix of a range and a key in the range, of any length.


def is_row(prefix: bytes, key: bytes) -> bool:
    """Whether a key in the range of a bucket's rows has the form that cq writes."""
    return len(key) == len(prefix) + VERSIONSTAMP_BYTES + _COUNTER.size


def versionstamp_in(prefix: bytes, key: bytes) -> bytes:
    r"""The versionstamp after a prefix; for a key that is too short, the lowest one after it in key order.

    >>> versionstamp_in(b"u", b"u\xff").hex()
    'ff000000000000000000'
    """
    return key[len(prefix) : len(prefix) + VERSIONSTAMP_BYTES].ljust(VERSIONSTAMP_BYTES, b"\x00")


def later_than(prefix: bytes, version: int) -> bytes:
    """The first possible key that was committed after `version`."""
    return prefix + (version + 1).to_bytes(8, "big")


def bucket_in(prefix: bytes, key: bytes) -> tuple[int, int] | None:
    """Generation and bucket in the key of a notification; None if it does not have the form that cq writes."""
    if len(key) != len(prefix) + _BUCKET.size:
        return None
    generation, bucket = _BUCKET.unpack(key[len(prefix) :])
    return generation, bucket
