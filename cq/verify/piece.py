"""A piece of a live queue: what one transaction checks, the differences that it finds, and their repairs.

A piece is checked at one read version, by snapshot reads. It compares keys as they were at one moment, so a correct
store never seems damaged, however many transactions change it.

A repair is part of the same transaction as the check. It conflicts with concurrent changes of the key. If
it changes a bucket's rows, values or staged updates, it gives the bucket's state a new token, so that a concurrent pass
begins again. It derives data from what the store has, and drops no update.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, TypeVar

from cq.combiners import Combiner
from cq.config.queue import QueueConfig
from cq.encoding import codec
from cq.encoding.hashing import bucket_at
from cq.errors import CorruptConfiguration, CorruptData, InvalidData, QueueNotConfigured
from cq.failure import KeyFailure
from cq.keys import INCOMPLETE_VERSIONSTAMP, QueueKeys
from cq.queue.bucket_state import BucketState
from cq.queue.missed_reports import renewed
from cq.queue.set_aside import set_aside
from cq.store.api import VERSIONS_PER_SECOND, Transaction, TransactionRead
from cq.store.sizes import TRANSACTION_BYTES
from cq.verify.layout import parse

T = TypeVar("T")

FROM_THE_FUTURE: Final = "stamped later than anything committed: copied from another store?"
_AN_HOUR: Final = 3_600 * VERSIONS_PER_SECOND
_RAW_BYTES: Final = 50_000
_END: Final = object()


@dataclass(frozen=True, slots=True)
class Difference:
    """Corrupt or inconsistent data.

    Attributes:
        kind: the kind of difference, see `cq.verify.kinds`.
        where: the key in the store, or the prefix of several.
        what: a description in one line.
        key: the application's key; None: unknown, or the difference does not concern one key.
        repairable: whether the store has the data for a repair.
        repaired: whether it was repaired.
        details: further data by name, for programs.
    """

    kind: str
    where: bytes
    what: str
    key: Any = None
    repairable: bool = False
    repaired: bool = False
    details: Mapping[str, Any] = field(default_factory=dict)


class Found(NamedTuple):
    """A row to check: its key and value in the store, the rest of its key after its part, and the fields of this."""

    key: bytes
    value: bytes
    rest: bytes
    fields: Sequence[Any] = ()


class Piece:
    """The rows checked in one transaction, at one read version.

    Attributes:
        tr: the transaction; for repairs.
        snapshot: its snapshot reads; for all checks.
        version: its read version.
        began: the read version of the verification's first piece.
        name, keys: the queue's name and keys.
        combiner: the combiner that the caller of the verification has given.
        config: the queue's configuration as stored at the read version.
        share: how much of a number the piece may check: less after failed transactions.
        shapes: the configuration under each shape with buckets, the former one first.
        checked: number of rows checked.
        differences: differences found so far.
        rebuilds: observers to rebuild after all checks.
        notes: the checks that were skipped, and why.
        set_aside: {encoded key: number of its pieces that the transaction has set aside}.
        renewed: generation and number of each bucket whose state has a new token: one is enough for all repairs.

    Raises `QueueNotConfigured`, `CorruptConfiguration`.
    """

    def __init__(
        self,
        tr: Transaction,
        name: str,
        began: int | None,
        combiner: Combiner | None,
        share: Callable[[int], int],
    ) -> None:
        self.tr = tr
        self.snapshot: TransactionRead = tr.snapshot
        self.version = tr.get_read_version().wait()
        self.began = self.version if began is None else began
        self.name, self.keys, self.combiner, self.share = name, QueueKeys(name), combiner, share
        self.config = stored_config(self.snapshot, self.keys, self.name)
        former = self.config.under_former_shape()
        self.shapes = [self.config] if former is None else [former, self.config]
        self.checked = 0
        self.differences: list[Difference] = []
        self.rebuilds: set[str] = set()
        self.notes: list[str] = []
        self.set_aside: Counter[bytes] = Counter()
        self.renewed: set[tuple[int, int]] = set()
        self._begun: list[Iterator[Any]] = []
        self._fixes: list[tuple[bytes, Callable[[], object]]] = []
        self._states: dict[tuple[int, int], BucketState | None] = {}

    @property
    def future(self) -> int:
        """A version that no transaction reaches during the verification.

        After a row added since it began, the verification skips all rows up to this version. Otherwise adders
        could keep it busy forever.
        """
        return self.version + _AN_HOUR

    def shape(self, generation: int, bucket: int) -> QueueConfig | None:
        """Return the configuration under the shape of this generation; None if the shape has no such bucket."""
        for config in self.shapes:
            if config.generation == generation and bucket < config.buckets:
                return config
        return None

    def state(self, generation: int, bucket: int) -> BucketState | None:
        """Return a bucket's state, None if it cannot be read."""
        place = generation, bucket
        if place not in self._states:
            stored = self.snapshot.get(self.keys.state(generation, bucket)).value
            try:
                self._states[place] = BucketState.from_bytes(stored)
            except CorruptData:
                self._states[place] = None
        return self._states[place]

    def report(
        self, kind: str, where: bytes, what: str, fix: Callable[[], object] | None = None, *, key: Any = None
    ) -> None:
        """Add a difference, and its repair for this transaction; `finish` decides whether to run it."""
        self.differences.append(Difference(kind, where, what, key, repairable=fix is not None))
        if fix is not None:
            self._fixes.append((where, fix))

    def require(
        self,
        needed: bytes,
        kind: str,
        where: bytes,
        what: str,
        fix: Callable[[], object] | None = None,
        *,
        key: Any = None,
    ) -> None:
        """Report a difference unless a key of the store exists."""

        def steps() -> Iterator[None]:
            stored = self.snapshot.get(needed)
            yield
            if stored.value is None:
                self.report(kind, where, what, fix, key=key)

        self.begin(steps())

    def stamp(self, key: bytes) -> None:
        """Set a key to the versionstamp of the transaction, as notifications and marks are."""
        self.tr.set_versionstamped_value(key, INCOMPLETE_VERSIONSTAMP)

    def begin(self, steps: Iterator[T]) -> T | None:
        """Run a check up to its first `yield`, and return what it yields; `finish` runs the rest.

        A check yields after it has sent its reads, so that the reads of a piece are concurrent.
        """
        first = next(steps, None)
        self._begun.append(steps)
        return first

    def finish(self, *, repair: bool) -> bool:
        """Run the rest of the checks, then the repairs; return whether the writes fit into a transaction."""
        for steps in self._begun:
            if next(steps, _END) is not _END:  # it has sent further reads
                self._begun.append(steps)
        if not repair or not self._fixes:
            return True
        # The checks were snapshot reads: a repair is valid only if the configuration and each key stay as read.
        self.tr.add_read_conflict_key(self.keys.config)
        for where, fix in self._fixes:
            self.tr.add_read_conflict_key(where)
            fix()
        self.differences = [replace(each, repaired=each.repairable) for each in self.differences]
        return self.tr.get_approximate_size().wait() <= TRANSACTION_BYTES


RowVisitor = Callable[[Piece, Found], bytes | None]
"""Checks a row. Returns the key to continue with; None: the next one."""
Steps = Iterator[bytes | None]
"""The steps of a check that reads further keys, see `Piece.begin`. The first yields what a `RowVisitor` returns."""


def readable(parse_value: Callable[[bytes], object]) -> RowVisitor:
    """Return the check that a function which raises `CorruptData` can parse a row's value."""

    def check(piece: Piece, found: Found) -> None:
        parse_value(found.value)

    return check


def clear(piece: Piece, found: Found) -> None:
    """Repair a row without valuable data: clear it."""
    piece.tr.clear(found.key)


class RowCheck(NamedTuple):
    """A check of each row of one part of the key layout.

    Attributes:
        kind: the kind of a row that cq has not written: its key has another form, or `check` raises `CorruptData` or
            `InvalidData` for it.
        form: of the rest of the key, see `cq.verify.layout.parse`; None: the check parses it.
        check: checks a row, and reports differences of other kinds.
        repair: the repair of a row that cq has not written; None: the row stays as it is.
    """

    kind: str
    form: str | None
    check: Callable[[Piece, Found], bytes | Steps | None]
    repair: Callable[[Piece, Found], object] | None = clear

    def run(self, piece: Piece, found: Found) -> bytes | None:
        """Check a row, and return as `RowVisitor` does."""
        return piece.begin(self._steps(piece, found))

    def _steps(self, piece: Piece, found: Found) -> Steps:
        try:
            fields = () if self.form is None else parse(self.form, found.rest)
            following = self.check(piece, found._replace(fields=fields))
            if isinstance(following, Iterator):
                yield from following
            else:
                yield following
        except (CorruptData, InvalidData) as error:
            repair = self.repair
            fix = None if repair is None else lambda: repair(piece, found)
            piece.report(self.kind, found.key, str(error), fix)


def stored_config(tr: TransactionRead, queue: QueueKeys, name: str) -> QueueConfig:
    """Read the stored configuration, not a cached one: damage to it does not invalidate the cache."""
    stored = tr.get(queue.config).value
    if stored is None:
        raise QueueNotConfigured(name)
    try:
        return QueueConfig.from_bytes(name, stored)
    except CorruptData as error:
        raise CorruptConfiguration(str(error)) from error


def renew_states(piece: Piece, *hashes: int) -> None:
    """Give the buckets of these hashes new tokens, so that concurrent passes over them conflict and begin again."""
    for config in piece.shapes:
        for bucket in {bucket_at(each, config.buckets) for each in hashes}:
            rewrite_state(piece, config.generation, bucket)


def rewrite_state(piece: Piece, generation: int, bucket: int, **changes: Any) -> None:
    """Give a bucket's state a new token, and other changes; leave an unreadable state to its own repair."""
    place = generation, bucket
    if place in piece.renewed and not changes:
        return
    key = piece.keys.state(generation, bucket)
    # A conflicting read: passes over the bucket write this key, so none commits between the check and the repair.
    with suppress(CorruptData):
        state = BucketState.from_bytes(piece.tr.get(key).value)
        state = renewed(piece.shape(*place) or piece.config, state)
        piece.tr.set(key, replace(state, **changes).to_bytes())
        piece.renewed.add(place)


def notify(piece: Piece, generation: int, bucket: int) -> None:
    """Set a bucket's notification, so that a worker runs a pass."""
    piece.stamp(piece.keys.notification(generation, bucket))


def set_updates_aside(piece: Piece, encoded: bytes, failure: KeyFailure, updates: Sequence[Any]) -> None:
    """Set updates of a key aside; as bytes without a key if they cannot be encoded as updates."""
    with suppress(InvalidData):  # the decoder accepts some values that the encoder refuses
        if all(len(codec.encode(update)) <= codec.MAX_UPDATE_BYTES for update in updates):
            _set_aside(piece, encoded, failure, list(updates))
            return
    set_bytes_aside(piece, failure, b"".join(_raw(encoded, update) for update in updates))


def set_bytes_aside(piece: Piece, failure: KeyFailure, data: bytes) -> None:
    """Set bytes aside that are not updates."""
    pieces = [data[start : start + _RAW_BYTES] for start in range(0, len(data), _RAW_BYTES)]
    _set_aside(piece, b"", failure, pieces)


def set_row_aside(error: str) -> Callable[[Piece, Found], None]:
    """Return the repair that sets the bytes of a row aside."""

    def repair(piece: Piece, found: Found) -> None:
        set_bytes_aside(piece, KeyFailure(error), found.value or b"\x00")
        piece.tr.clear(found.key)

    return repair


def _set_aside(piece: Piece, encoded: bytes, failure: KeyFailure, updates: list[Any]) -> None:
    number = piece.set_aside[encoded]
    piece.set_aside[encoded] = set_aside(piece.tr, piece.keys, encoded, failure, updates, number)


def _raw(encoded: bytes, update: Any) -> bytes:
    return encoded + (update if isinstance(update, bytes) else repr(update).encode("utf-8", "replace"))
