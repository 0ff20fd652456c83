"""The keys of links, below `P "e" link "/"`, and of outboxes, below `P "g"`; `P` is the prefix of the queue."""

from __future__ import annotations

import re
from struct import Struct
from typing import Final, NamedTuple

from cq.errors import CorruptData, InvalidConfiguration
from cq.keys.queue import ROOT, VERSIONSTAMP_BYTES, Prefix, QueueKeys, below, check_name, prefix_end, stamped

_NUMBER: Final = Struct(">I")
_PAIR: Final = Struct(">II")
_COUNTER: Final = Struct(">Q")
SEQUENCE_BYTES: Final = 4 + VERSIONSTAMP_BYTES + _COUNTER.size
"""Length of the sequence of an entry: generation, versionstamp and counter. Entries are exported in this order."""
OBSERVER: Final = "link:"
"""The beginning of the names of observers that are links."""
OUTBOX: Final = "outbox"
"""The name of the outbox of a queue among its links."""
_LINK_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,40}")
_POSITION: Final = re.compile(rf"(\d{{1,15}})-((?:[0-9a-f]{{{2 * SEQUENCE_BYTES}}})?)")


class NoteKeys:
    """The keys of notes below a prefix; the base of the keys of links and of outboxes.

    Attributes:
        queue, link: the names of the queue and of the link; `outbox` for an outbox.
        prefix: of all keys.
        control: the key of the epoch, which counts rebases.
        stopped: the key of the reason of a stop.
        keeper: the key of the notification of the task for all buckets.
        failures: the prefix of all notes of failures.
    """

    def __init__(self, queue: str, link: str, prefix: bytes) -> None:
        self.queue, self.link = queue, link
        self.prefix = prefix
        self.control = prefix + b"c"
        self.stopped = prefix + b"s"
        self.keeper = prefix + b"k"
        self._notifications = prefix + b"n"
        self.failures = Prefix(prefix + b"f")

    def notification(self, bucket: int) -> bytes:
        """The key of the notification of a bucket, which exists while the bucket has work."""
        return self._notifications + _NUMBER.pack(bucket)

    def failure(self, bucket: int | None) -> bytes:
        """The key of the note of the failure of a bucket's task, or of the task for all buckets (None)."""
        return self.failures + (b"" if bucket is None else _NUMBER.pack(bucket))


def check_link_name(name: object) -> str:
    """Return the name; raises `InvalidConfiguration` unless it is a valid name of a link."""
    if not isinstance(name, str) or not _LINK_NAME.fullmatch(name) or name == OUTBOX:
        raise InvalidConfiguration(
            f"expected the name of a link, 1 to 40 letters, digits, hyphens and underscores other than {OUTBOX!r}"
        )
    return name


class LinkKeys(NoteKeys):
    r"""The keys of one link of a queue, below `P "e" link "/"`.

        "q" bucket4 g4 versionstamp10 counter8   packed entries             add (blind)
        "q" ... counter8 key                     the value of a large entry add (blind)
        "n" bucket4                              notification               add (blind), cleared by workers
        "b" bucket4                              epoch and `cleared up to`  workers (the lock)
        "f" bucket4                              failure: reason, start     workers
        "x" bucket4 sequence22 piece4            entries set aside          workers
        "c"                                      epoch, generation swept    rebase, pause, the keeper
        "s"                                      reason of a stop           workers
        "k"                                      the keeper's notification  workers, rebuild, rebase, resume

    >>> LinkKeys("words", "report").notification(2)
    b'cq/q/words/ereport/n\x00\x00\x00\x02'

    Attributes:
        all_rows, aside: the prefixes of all rows of the log, and of all entries set aside.
    """

    def __init__(self, queue: str, link: str) -> None:
        super().__init__(queue, link, QueueKeys(queue).prefix + b"e" + link.encode() + b"/")
        self.all_rows = Prefix(self.prefix + b"q")
        self._states = self.prefix + b"b"
        self.aside = Prefix(self.prefix + b"x")

    def rows(self, bucket: int) -> tuple[bytes, bytes]:
        """The range of a bucket's rows, in the order of their sequences."""
        prefix = self.all_rows + _NUMBER.pack(bucket)
        return prefix, prefix + b"\xff" * (SEQUENCE_BYTES + 1)

    def new_row(self, bucket: int, generation: int, counter: int, encoded_key: bytes = b"") -> bytes:
        """The key argument of `set_versionstamped_key` for a row; `counter` is the counter of its first entry.

        The key of a large entry, which has a row of its own, ends with the encoded key.
        """
        return stamped(self.all_rows + _PAIR.pack(bucket, generation), _COUNTER.pack(counter) + encoded_key)

    def row(self, bucket: int, sequence: bytes) -> bytes:
        """The key of the row whose first entry has this sequence, without the key of a large entry."""
        return self.all_rows + _NUMBER.pack(bucket) + sequence

    def split_row(self, key: bytes) -> tuple[bytes, bytes]:
        """The sequence of a row's first entry, and the encoded key of a large entry or b"".

        Raises `CorruptData` if the key is not one of a row.
        """
        begin = len(self.all_rows) + _NUMBER.size
        if len(key) < begin + SEQUENCE_BYTES:
            raise CorruptData(f"the key {key!r} is not one of a link")
        return key[begin : begin + SEQUENCE_BYTES], key[begin + SEQUENCE_BYTES :]

    def rows_later_than(self, bucket: int, sequence: bytes, version: int) -> bytes:
        """The first key of rows of a bucket, in the generation of `sequence`, with a later commit version."""
        # A versionstamp begins with the commit version, so this sorts after all rows of `version`.
        return self.row(bucket, sequence[:4] + (version + 1).to_bytes(8, "big"))

    def state(self, bucket: int) -> bytes:
        """The key of a bucket's state. Workers read and write it: two that send the same entries conflict."""
        return self._states + _NUMBER.pack(bucket)

    def aside_before(self, bucket: int, sequence: bytes) -> tuple[bytes, bytes]:
        """The range of a bucket's entries set aside, before a sequence."""
        prefix = self.aside + _NUMBER.pack(bucket)
        return prefix, prefix + sequence

    def aside_end(self, bucket: int, sequence: bytes) -> bytes:
        """The first key after all pieces of an entry set aside."""
        return prefix_end(self.aside + _NUMBER.pack(bucket) + sequence)

    def aside_piece(self, bucket: int, sequence: bytes, piece: int) -> bytes:
        """The key of a piece of an entry set aside."""
        return self.aside + _NUMBER.pack(bucket) + sequence + _NUMBER.pack(piece)

    def parse_aside(self, key: bytes) -> tuple[int, bytes, int] | None:
        """Bucket, sequence and piece of an entry set aside; None if the key is not one of such an entry."""
        rest = self.aside.rest(key)
        if len(rest) != 2 * _NUMBER.size + SEQUENCE_BYTES:
            return None
        return _NUMBER.unpack(rest[:4])[0], rest[4:-4], _NUMBER.unpack(rest[-4:])[0]


def sequences_from(first: bytes, count: int) -> list[bytes]:
    """The sequences of the `count` entries of a row; raises `CorruptData` on overflow."""
    before, counter = first[: -_COUNTER.size], _COUNTER.unpack(first[-_COUNTER.size :])[0]
    if counter + count - 1 >> 8 * _COUNTER.size:
        raise CorruptData(f"the row {first.hex()} has more entries than there are sequences")
    return [before + _COUNTER.pack(each) for each in range(counter, counter + count)]


def first_sequence(generation: int) -> bytes:
    """The lower bound of the sequences of a generation; those of earlier generations are below it."""
    return _NUMBER.pack(generation) + b"\x00" * (SEQUENCE_BYTES - 4)


def generation_of(sequence: bytes) -> int:
    """The generation in a sequence; for a sequence of another length, a number between those of its neighbours.

    >>> generation_of(first_sequence(3))
    3
    """
    return int.from_bytes(sequence[: _NUMBER.size].ljust(_NUMBER.size, b"\x00"), "big")


class Position(NamedTuple):
    """The position of a bucket of a link: the link's epoch, and the sequence of the last entry applied.

    The sequence is empty at the beginning.
    """

    epoch: int
    sequence: bytes

    def __str__(self) -> str:
        """The position as targets store it; empty at the beginning of the first epoch."""
        return f"{self.epoch}-{self.sequence.hex()}" if self.sequence or self.epoch else ""

    @classmethod
    def parse(cls, text: object) -> Position | None:
        """The inverse of `str`; None for a text that is not a position."""
        if text in ("", None):
            return cls(0, b"")
        found = _POSITION.fullmatch(text) if isinstance(text, str) and text.isascii() else None
        return None if found is None else cls(int(found[1]), bytes.fromhex(found[2]))


def versionstamp_of(sequence: bytes) -> bytes:
    """The versionstamp in a sequence."""
    return sequence[4 : 4 + VERSIONSTAMP_BYTES]


def received(queue: QueueKeys, store: bytes, bucket: int, source: LinkKeys) -> bytes:
    """The key of a queue for its position in a bucket of a link of another store, with this id."""
    name = f"{source.queue}/{source.link}".encode()
    return queue.prefix + b"r" + store + _NUMBER.pack(bucket) + name


def links_of(queue: str) -> tuple[bytes, bytes]:
    """The range of the keys of all links of a queue."""
    return below(QueueKeys(queue).prefix + b"e")


def split_link(rest: bytes) -> tuple[str, bytes]:
    """The name of the link, and the rest, of a key after `P "e"`; raises `CorruptData`."""
    name, slash, tail = rest.partition(b"/")
    text = name.decode("latin-1")
    if not slash or not _LINK_NAME.fullmatch(text):
        raise CorruptData("the key is not one of a link")
    return text, tail


def queue_names_below() -> tuple[bytes, bytes]:
    """The range of the keys of all queues."""
    return ROOT + b"q/", prefix_end(ROOT + b"q/")


def name_of(key: bytes) -> str:
    """The name of the queue of a key in this range; raises `InvalidConfiguration` if it is not a valid name."""
    return check_name(key[len(ROOT) + 2 :].split(b"/", 1)[0].decode("utf-8", "replace"))


class OutboxKeys(NoteKeys):
    r"""The keys of the outbox of one queue, below `P "g"`.

        "o"   name of the URL's variable, schema                         cq outbox init
        "b"   the latest batch, the one before, ids not known as deleted the worker that moves rows (the lock)
        "k"   notification: the table may have rows                      workers, cq outbox init
        "f"   failure: reason, start                                     workers
        "s"   reason of a stop                                           workers
        "c"   whether it is paused                                       cq link pause, cq link resume

    >>> OutboxKeys("words").state
    b'cq/q/words/gb'
    """

    def __init__(self, name: str) -> None:
        super().__init__(name, OUTBOX, QueueKeys(name).prefix + b"g")
        self.settings = self.prefix + b"o"
        self.state = self.prefix + b"b"
