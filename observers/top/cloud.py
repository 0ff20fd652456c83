"""The published cloud: a copy of a queue's top at one moment, read as a whole and awaited without polling.

`Publisher` writes it; a web server reads it with one read, and a watch reports a newer one. Each publication increases
its version by one, whichever worker publishes. The version starts again only if the top is removed from the queue's
configuration and added again.

A cloud is one value; if it is too large for one, a head and pieces under keys of its version. Head and pieces are
read at one version of the store, so they always belong together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from cq.admin.backfill import parse_generation
from cq.config.queue import QueueConfig, read_config
from cq.encoding import codec
from cq.errors import CorruptData, InvalidConfiguration, InvalidData, NotReady
from cq.keys import QueueKeys
from cq.keys.top import CloudKeys
from cq.observers.top.index import MAX_N, NAME
from cq.observers.top.ranking import check_group, entry_of, missing, settings_of
from cq.observers.top.scores import exact
from cq.observers.top.weights import LEAST, MOST, weights
from cq.store.api import Database, KeyValue, Transaction, TransactionRead, Void
from cq.store.reads import snapshot_of
from cq.store.watch import wait_until

PIECE_BYTES: Final = 90_000
"""The most data in one value, so that it stays below FoundationDB's limit of 100,000 bytes."""
CLOUD_BYTES: Final = 500_000
"""About the maximum size of a cloud: with long keys it has fewer than the configured n entries."""

_FORMAT: Final = 1
_MAX_VERSIONS: Final = (1 << 63) - 1
_MAX_PIECES: Final = 10
"""More than a cloud of `CLOUD_BYTES` needs; a limit, as a reader fetches all pieces into memory."""
_KEY_PARTS: Final = frozenset((str, int, bytes))
_LAST_MILLISECOND: Final = 253_402_300_799_999  # the end of the year 9999, the latest that datetime supports


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
        group: the group of the cloud, None for the whole queue.
        version: number of the publication, from 1.
        created: time of publication, in UTC, by the clock of the worker that published it.
        entries: the highest score first, equal scores by key; empty if no key has a score any more.
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
        """The newest cloud, with one read; above 90 kB with a second, parallel read of all pieces.

        Raises:
            NotReady: no cloud has been published yet.
            InvalidConfiguration, QueueNotConfigured: the queue has no top, or does not exist.
        """
        stored = tr.get(self._keys.head(self.group)).value
        if stored is None:
            raise self._missing(tr)
        return self._cloud(tr, CloudHead.from_bytes(stored))

    def wait(self, db: Database, version: int = 0, timeout: float | None = None) -> Cloud | None:
        """Wait for a cloud of another version, which is a newer one, and return it.

        Uses a watch, without polling. Begin with version 0, or with the version of a displayed cloud; versions in
        between may be skipped. Also waits for the first publication.

        Args:
            db: a database; the wait is outside of any transaction.
            version: of the caller's cloud.
            timeout: in seconds; None waits for ever.

        Returns:
            The cloud; None at the timeout.

        Raises:
            QueueNotConfigured: there is no such queue, or it is deleted during the wait.
            InvalidConfiguration: the queue has no top, or loses it during the wait.
        """
        return wait_until(db, lambda tr: self.newer(tr, version), timeout)

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
            f"no cloud of queue {self.name!r}{of} has been published yet: workers do so once it has entries"
        )


@dataclass(frozen=True, slots=True)
class CloudHead:
    """The head of a cloud.

    Attributes:
        version: of the cloud.
        created: in milliseconds since 1970.
        digest: of the encoded entries.
        pieces: number of pieces that contain the encoded entries; 0 if `data` does.
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
            (head.version, _MAX_VERSIONS),
            (head.created, _LAST_MILLISECOND),
            (head.pieces, _MAX_PIECES),
        )
        if format_ != _FORMAT or not all(0 <= number <= most for number, most in numbers):
            raise CorruptData("this version of cq has not written this cloud: upgrade cq, or rebuild the top")
        return head

    def to_bytes(self) -> bytes:
        """The stored value."""
        return codec.encode([_FORMAT, self.version, self.created, self.digest, self.pieces, self.data])

    def entries(self, tr: TransactionRead, keys: CloudKeys, group: str | None) -> tuple[CloudEntry, ...]:
        """The entries, from the head or its pieces; `tr` is the transaction that read the head."""
        data = self.data
        if self.pieces:
            found = [tr.get(keys.piece(group, self.version, number)) for number in range(self.pieces)]
            data = b"".join(piece.value or b"" for piece in found)
        return decode_entries(data)


def first_entries(
    config: QueueConfig, rows: Iterable[KeyValue], prefix_length: int, most: int = CLOUD_BYTES
) -> bytes:
    """The encoded entries of a cloud from these rows of an index, up to about `most` bytes."""
    entries, size = [], 0
    for row in rows:
        size += len(row.key) - prefix_length + len(row.value)
        if size > most:
            break
        entry = entry_of(config, row.key[prefix_length:], row.value)
        entries.append((entry.key, entry.score))
    return encode_entries(entries)


def encode_entries(entries: Sequence[tuple[Any, Any]]) -> bytes:
    """(key, score) pairs with their weights, as stored in a cloud."""
    weighed = zip(entries, weights([score for _, score in entries]), strict=True)
    return codec.encode([[key, score, weight] for (key, score), weight in weighed])


def decode_entries(data: bytes) -> tuple[CloudEntry, ...]:
    """The inverse of `encode_entries`; raises `CorruptData`, also for entries of a wrong type or range.

    HTML pages are made from the entries, so their types matter for security: a weight that is text may be a script.
    """
    found = codec.decode(data)
    try:
        if type(found) is not list or len(found) > MAX_N:
            raise InvalidData("not a list, or too long")
        return tuple(map(_entry, found))
    except InvalidData as error:
        raise CorruptData(
            f"the entries of a cloud are not those that cq writes ({error}): `cq verify --repair` publishes it again"
        ) from None


def _entry(stored: object) -> CloudEntry:
    """The entry of a decoded list; raises `InvalidData`."""
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
    """A digest of encoded entries, to compare clouds without reading their pieces."""
    return blake2b(data, digest_size=16).digest()
