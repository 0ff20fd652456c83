"""The published cloud: a copy of a queue's top at one moment, read as a whole and awaited without polling.

`Publisher` writes it; a web server reads it with one read, and a watch reports a newer one. Each publication increases
its version by one, whichever worker publishes. The version starts again only if the top is removed from the queue's
configuration and added again.

A cloud is one value; if it is too large for one, a head and pieces under keys of its version. Head and pieces are
read at one version of the store, so they always belong together. Versions that are kept (see `cq.observers.top.kept`)
are stored once more by their times, so that a reader finds the cloud as of a time with one range read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from functools import partial
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from cq.admin.backfill import parse_generation
from cq.config.queue import QueueConfig, read_config
from cq.config.window import checked_time
from cq.durations import Span
from cq.encoding import codec
from cq.errors import CorruptData, InvalidConfiguration, InvalidData, NotInStore, NotReady
from cq.keys import QueueKeys, below
from cq.keys.top import CloudKeys, split_kept
from cq.observers.top.index import LAST_PART, MAX_N, NAME
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


class CloudChange(NamedTuple):
    """A key whose score differs in two versions of a cloud.

    Attributes:
        key: a key of the queue.
        score: in the newer version; None if the key is not in it.
        before: in the older version; None if the key is not in it.
    """

    key: Any
    score: Any
    before: Any


@dataclass(frozen=True, slots=True)
class Cloud:
    """A published cloud.

    Attributes:
        queue: the queue's name.
        group: the group of the cloud, None for the whole queue.
        version: number of the publication, from 1.
        created: time of publication, in UTC, by the clock of the worker that published it.
        entries: the highest score first, equal scores by key; empty if no key has a score any more.
        through: a version of the store: the scores include every update that was committed at or before it and that is
            not set aside. Some of later transactions may be included, too.
    """

    queue: str
    group: str | None
    version: int
    created: datetime
    entries: tuple[CloudEntry, ...]
    through: int = 0

    def changes_since(self, older: Cloud) -> list[CloudChange]:
        """The keys whose scores differ from those in another version, those of this version first, in its order.

        Args:
            older: the version to compare with.
        """
        before = {entry.key: entry.score for entry in older.entries}
        found = [CloudChange(key, score, before.pop(key, None)) for key, score, _ in self.entries]
        found += [CloudChange(key, None, score) for key, score in before.items()]
        return [each for each in found if each.score != each.before]


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

    def read(self, tr: TransactionRead, at: float | None = None) -> Cloud:
        """The newest cloud, with one read; above 90 kB with a second, parallel read of all pieces.

        Args:
            tr: a transaction, or its snapshot reads.
            at: the cloud as of this time, in seconds since 1970: the latest version published until then, of those that
                `top(keep=...)` keeps. The version before a cloud is that of a millisecond before its `created`.

        Raises:
            NotReady: no cloud has been published yet.
            NotInStore: no version published until that time is kept, or the top has no clouds.
            InvalidConfiguration, QueueNotConfigured: the queue has no top, or does not exist.
        """
        future = tr.get(self._keys.head(self.group))
        time = None if at is None else checked_time(at)
        kept = None if time is None else self._last_kept(tr, time)
        if future.value is None:
            raise self._missing(tr)
        head = CloudHead.from_bytes(future.value)
        if time is None or (
            head.created <= time and (kept is None or kept[:2] <= (head.created, head.version))
        ):
            return self._newest(tr, head)
        if kept is None:
            raise self._too_early(tr, time)
        return self._kept(tr, kept)

    def oldest(self, tr: TransactionRead) -> Cloud:
        """The oldest version that is kept, or else the newest cloud; raises as `read`."""
        kept = self._end_of_kept(tr, below(self._keys.kept_of(self.group)))
        return self.read(tr) if kept is None else self._kept(tr, kept)

    def _last_kept(self, tr: TransactionRead, time: int) -> tuple[int, int] | None:
        """Time and version of the latest kept version that was published until then, in milliseconds since 1970."""
        bounds = self._keys.kept_of(self.group), self._keys.kept_from(self.group, time + 1)
        return self._end_of_kept(tr, bounds, reverse=True)

    def _end_of_kept(
        self, tr: TransactionRead, bounds: tuple[bytes, bytes], *, reverse: bool = False
    ) -> tuple[int, int] | None:
        """Time and version in the first or last row of a range of kept versions."""
        for row in tr.get_range(*bounds, limit=1, reverse=reverse):
            place = split_kept(row.key[len(self._keys.all_kept) :])
            return place.time, place.version
        return None

    def _too_early(self, tr: TransactionRead, time: int) -> NotInStore:
        """The error of a time before the oldest version, in milliseconds since 1970."""
        first = self._end_of_kept(tr, below(self._keys.kept_of(self.group)))
        remedy = (
            f"`cq configure {self.name} --top --keep-clouds 30d` keeps those of 30 days from now on"
            if first is None
            else f"the oldest is of {_shown(first[0])}"
        )
        return NotInStore(f"the store has no cloud of queue {self.name!r} as of {_shown(time)}: {remedy}")

    def _kept(self, tr: TransactionRead, kept: tuple[int, int]) -> Cloud:
        piece = partial(self._keys.kept, self.group, *kept)
        stored = tr.get(piece(0)).value
        if stored is None:
            raise CorruptData(
                f"a kept version of a cloud has no head: `cq verify {self.name} --repair` clears it"
            )
        return self._cloud(tr, CloudHead.from_bytes(stored), lambda number: piece(number + 1))

    def wait(self, db: Database, version: int = 0, timeout: Span | None = None) -> Cloud | None:
        """Wait for a cloud of another version, which is a newer one, and return it.

        Uses a watch, without polling. Begin with version 0, or with the version of a displayed cloud; versions in
        between may be skipped. Also waits for the first publication.

        Args:
            db: a database; the wait is outside of any transaction.
            version: of the caller's cloud.
            timeout: None waits for ever.

        Returns:
            The cloud; None at the timeout.

        Raises:
            QueueNotConfigured: there is no such queue, or it is deleted during the wait.
            InvalidConfiguration: the queue has no top, or loses it during the wait.
        """
        return wait_until(db, lambda tr: self.newer(tr, version), timeout)

    def newer(
        self, tr: Transaction, version: int, created: datetime | None = None
    ) -> tuple[Cloud | None, Void | None]:
        """The newest cloud if it is of another version than this; else a watch for it, once `tr` is committed.

        With its time `created`, too: the versions of a queue that was deleted and made again begin again.
        Raises `InvalidConfiguration`, `QueueNotConfigured`.
        """
        key = self._keys.head(self.group)
        stored = tr.snapshot.get(key).value
        if stored is None:
            error = self._missing(tr.snapshot)
            if not isinstance(error, NotReady):
                raise error
        elif not (head := CloudHead.from_bytes(stored)).is_of(version, created):
            return self._newest(tr.snapshot, head), None
        return None, tr.watch(key)

    def _newest(self, tr: TransactionRead, head: CloudHead) -> Cloud:
        return self._cloud(tr, head, partial(self._keys.piece, self.group, head.version))

    def _cloud(self, tr: TransactionRead, head: CloudHead, piece: Callable[[int], bytes]) -> Cloud:
        entries = head.entries(tr, piece)
        return Cloud(self.name, self.group, head.version, head.time, entries, head.through)

    def _missing(self, tr: TransactionRead) -> Exception:
        current = tr.get(self._current)
        config = read_config(snapshot_of(tr), self.name)
        if current.value is None:
            return missing(config)
        settings = settings_of(config, parse_generation(current.value))
        if settings.get("group") == LAST_PART:
            return NotInStore(
                f"the top of queue {self.name!r} is kept by the last part of keys, and has no clouds: read the order "
                f"itself, as `cq top {self.name} --group` does"
            )
        try:
            check_group(config, settings, self.group)
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
        through: the version of the store up to which all updates are in the scores, see `Cloud`.
    """

    version: int
    created: int
    digest: bytes
    pieces: int
    data: bytes
    through: int = 0

    @classmethod
    def from_bytes(cls, stored: bytes) -> CloudHead:
        """The inverse of `to_bytes`; raises `CorruptData`."""
        format_, *fields = codec.decode_list(
            stored, (int, int, int, bytes, int, bytes, int), "a cloud", optional=1
        )
        head = cls(*fields)
        numbers = (
            (head.version, _MAX_VERSIONS),
            (head.created, _LAST_MILLISECOND),
            (head.pieces, _MAX_PIECES),
            (head.through, _MAX_VERSIONS),
        )
        if format_ != _FORMAT or not all(0 <= number <= most for number, most in numbers):
            raise CorruptData("this version of cq has not written this cloud: upgrade cq, or rebuild the top")
        return head

    @property
    def time(self) -> datetime:
        """When it was published."""
        return datetime.fromtimestamp(self.created / 1000, UTC)

    def is_of(self, version: int, created: datetime | None) -> bool:
        """Whether it is of this version, and if a time is given, of this time."""
        return self.version == version and created in (None, self.time)

    def to_bytes(self) -> bytes:
        """The stored value."""
        return codec.encode([_FORMAT, *astuple(self)])

    def entries(self, tr: TransactionRead, piece: Callable[[int], bytes]) -> tuple[CloudEntry, ...]:
        """The entries, from the head or its pieces.

        Args:
            tr: the transaction that read the head.
            piece: returns the key of the piece of a number, from 0.
        """
        data = self.data
        if self.pieces:
            found = [tr.get(piece(number)) for number in range(self.pieces)]
            data = b"".join(each.value or b"" for each in found)
        return decode_entries(data)


def first_entries(config: QueueConfig, rows: Iterable[KeyValue], prefix_length: int) -> bytes:
    """The encoded entries of a cloud from these rows of an index, up to about `CLOUD_BYTES`."""
    entries, size = [], 0
    for row in rows:
        size += len(row.key) - prefix_length + len(row.value)
        if size > CLOUD_BYTES:
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


def pieces_of(data: bytes) -> list[bytes]:
    """Encoded entries in pieces that each fit into a value; no pieces if they fit into the head."""
    if len(data) <= PIECE_BYTES:
        return []
    return [data[start : start + PIECE_BYTES] for start in range(0, len(data), PIECE_BYTES)]


def digest_of(data: bytes) -> bytes:
    """A digest of encoded entries, to compare clouds without reading their pieces."""
    return blake2b(data, digest_size=16).digest()


def _shown(time: int) -> str:
    """The text of a time in milliseconds since 1970, of any year."""
    try:
        return f"{datetime.fromtimestamp(time / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError):
        return f"{time // 1000} seconds since 1970"
