"""The published cloud: the top of a queue as it was at one moment, read in one piece and waited for without polling.

`Publisher` writes it; every web server reads it with one read, and is told when there is a newer one. Its version
goes up by one with each publication and never back, whichever worker publishes; only when the top is taken out of
the queue's configuration and put in again does it begin anew.

A cloud is one value, or, beyond what fits into one, a head and pieces under keys of that version. Head and pieces are
read at one version of the store, so they always belong together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from cq import runtime
from cq.admin.backfill import parse_generation
from cq.config.queue import read_config
from cq.encoding import codec
from cq.errors import CorruptData, InvalidConfiguration, InvalidData, NotReady
from cq.keys import QueueKeys
from cq.keys.top import CloudKeys
from cq.observers.top.index import MAX_N, NAME
from cq.observers.top.ranking import check_group, missing, settings_of
from cq.observers.top.scores import exact
from cq.observers.top.weights import LEAST, MOST, weights
from cq.store.api import Database, Transaction, TransactionRead, Void, snapshot_of
from cq.store.transact import transact
from cq.store.watch import wait_for

PIECE_BYTES: Final = 90_000
"""What goes into one value, so that it stays below FoundationDB's limit of 100,000 bytes."""
CLOUD_BYTES: Final = 500_000
"""About what a cloud takes at most: of keys as long as that it has fewer than the n configured."""

_FORMAT: Final = 1
_MOST_VERSIONS: Final = (1 << 63) - 1
_MOST_PIECES: Final = 10
"""More than a cloud of `CLOUD_BYTES` takes: a reader fetches all pieces into memory."""
_KEY_PARTS: Final = frozenset((str, int, bytes))
_LAST_MILLISECOND: Final = 253_402_300_799_999  # of the year 9999


class CloudEntry(NamedTuple):
    """A key with its score, and its weight from 1 to 9 (see `cq.observers.top.weights`)."""

    key: Any
    score: Any
    weight: int


@dataclass(frozen=True, slots=True)
class Cloud:
    """A published cloud.

    Attributes:
        queue: the queue's name.
        group: the group it is of, None for the whole queue.
        version: counts the publications, from 1.
        created: when it was published, in UTC, by the clock of the worker that did so.
        entries: the highest score first, equal scores by key; empty once nothing has a score.
    """

    queue: str
    group: str | None
    version: int
    created: datetime
    entries: tuple[CloudEntry, ...]


class CloudReader:
    """Reads a queue's published cloud; a handle without state, for databases and transactions of either store.

    Args:
        name: the queue's name.
        group: whose cloud, for a queue with groups.
    """

    def __init__(self, name: str, group: str | None = None) -> None:
        self.name = name
        self.group = group
        self._keys = CloudKeys(QueueKeys(name))
        self._current = QueueKeys(name).observer_current(NAME)

    def read(self, tr: TransactionRead) -> Cloud:
        """The newest cloud, with one read; one more, of all pieces at once, when it exceeds 90 kB.

        Raises:
            NotReady: none has been published yet.
            InvalidConfiguration, QueueNotConfigured: the queue keeps no top, or is none.
        """
        stored = tr.get(self._keys.head(self.group)).value
        if stored is None:
            raise self._missing(tr)
        return self._cloud(tr, CloudHead.from_bytes(stored))

    def wait(self, db: Database, version: int = 0, timeout: float | None = None) -> Cloud | None:
        """Wait until there is a cloud of another version than this, which is a newer one, and return it.

        Nothing is polled: a watch tells. Begin with version 0, or with that of the cloud that is shown, and versions in
        between may be left out. Waits for the first publication, too.

        Args:
            db: a database; the wait is outside of any transaction.
            version: what the caller has.
            timeout: in seconds; None waits for ever.

        Returns None when the time is over. Raises `InvalidConfiguration`, `QueueNotConfigured`, also when the top is
        taken out of the configuration meanwhile.
        """
        end = None if timeout is None else runtime.monotonic() + timeout
        while True:
            cloud, watch = transact(db, lambda tr: self.newer(tr, version))
            if cloud is not None or watch is None:
                return cloud
            if not wait_for(db, watch, None if end is None else end - runtime.monotonic()):
                return None

    def newer(self, tr: Transaction, version: int) -> tuple[Cloud | None, Void | None]:
        """The newest cloud if it is of another version than this; else a watch for it, once `tr` is committed.

        Raises `InvalidConfiguration`, `QueueNotConfigured`.
        """
        key = self._keys.head(self.group)
        stored = tr.snapshot.get(key).value
        if stored is None:
            error = self._missing(tr.snapshot)
            if not isinstance(error, NotReady):
                raise error
        elif (head := CloudHead.from_bytes(stored)).version != version:
            return self._cloud(tr.snapshot, head), None
        return None, tr.watch(key)

    def _cloud(self, tr: TransactionRead, head: CloudHead) -> Cloud:
        return Cloud(
            self.name,
            self.group,
            head.version,
            datetime.fromtimestamp(head.created / 1000, UTC),
            head.entries(tr, self._keys, self.group),
        )

    def _missing(self, tr: TransactionRead) -> Exception:
        current = tr.get(self._current)
        config = read_config(snapshot_of(tr), self.name)
        if current.value is None:
            return missing(config)
        try:
            check_group(config, settings_of(config, parse_generation(current.value)), self.group)
        except InvalidConfiguration as error:
            return error
        of = "" if self.group is None else f", group {self.group!r}"
        return NotReady(
            f"no cloud of queue {self.name!r}{of} has been published yet: workers do so once there is something in it"
        )


@dataclass(frozen=True, slots=True)
class CloudHead:
    """What lies in a cloud's head.

    Attributes:
        version: of the cloud.
        created: in milliseconds since 1970.
        digest: of the encoded entries.
        pieces: how many pieces hold the encoded entries; 0 when `data` does.
        data: the encoded entries, if they fit.
    """

    version: int
    created: int
    digest: bytes
    pieces: int
    data: bytes

    @classmethod
    def from_bytes(cls, stored: bytes) -> CloudHead:
        """The inverse of `to_bytes`; raises `CorruptData`."""
        format_, *fields = codec.decode_list(stored, (int, int, int, bytes, int, bytes), "a cloud")
        head = cls(*fields)
        numbers = (
            (head.version, _MOST_VERSIONS),
            (head.created, _LAST_MILLISECOND),
            (head.pieces, _MOST_PIECES),
        )
        if format_ != _FORMAT or not all(0 <= number <= most for number, most in numbers):
            raise CorruptData(
                "a cloud that this version of cq has not written: upgrade cq, or build the top anew"
            )
        return head

    def to_bytes(self) -> bytes:
        """As stored."""
        return codec.encode([_FORMAT, self.version, self.created, self.digest, self.pieces, self.data])

    def entries(self, tr: TransactionRead, keys: CloudKeys, group: str | None) -> tuple[CloudEntry, ...]:
        """The entries, from the head or its pieces; `tr` is the transaction that read the head."""
        data = self.data
        if self.pieces:
            found = [tr.get(keys.piece(group, self.version, number)) for number in range(self.pieces)]
            data = b"".join(piece.value or b"" for piece in found)
        return decode_entries(data)


def encode_entries(entries: Sequence[tuple[Any, Any]]) -> bytes:
    """(key, score) pairs with their weights, as stored in a cloud."""
    weighed = zip(entries, weights([score for _, score in entries]), strict=True)
    return codec.encode([[key, score, weight] for (key, score), weight in weighed])


def decode_entries(data: bytes) -> tuple[CloudEntry, ...]:
    """The inverse of `encode_entries`; raises `CorruptData`, also for an entry of another type or range.

    Pages are made of the entries, so a reader relies on their types: a weight that is text may be a script.
    """
    found = codec.decode(data)
    try:
        if type(found) is not list or len(found) > MAX_N:
            raise InvalidData("they are no list, or too long")
        return tuple(map(_entry, found))
    except InvalidData as error:
        raise CorruptData(
            f"the entries of a cloud are not those that cq writes ({error}): `cq verify --repair` publishes it again"
        ) from None


def _entry(stored: object) -> CloudEntry:
    """The entry in this list; raises `InvalidData`."""
    if type(stored) is not list or len(stored) != len(CloudEntry._fields):
        raise InvalidData(f"expected key, score and weight, got: {codec.brief(stored)}")
    key, score, weight = stored
    parts = key if type(key) is list else [key]
    if not parts or not _KEY_PARTS.issuperset(map(type, parts)):
        raise InvalidData(f"expected a key, got: {codec.shown(key)}")
    exact(score)
    if type(weight) is not int or not LEAST <= weight <= MOST:
        raise InvalidData(f"expected a weight from {LEAST} to {MOST}, got: {codec.shown(weight)}")
    return CloudEntry(tuple(key) if type(key) is list else key, score, weight)


def digest_of(data: bytes) -> bytes:
    """What tells encoded entries apart without reading them."""
    return blake2b(data, digest_size=16).digest()
