"""Check a live queue for corrupt or inconsistent data, and repair what can be derived.

Each piece is checked in one transaction, at one read version, by snapshot reads. It compares keys as they were at one
moment, so a correct store never seems damaged, however many transactions change it. Pieces are bounded in rows and
bytes; a piece whose transaction fails, or would write too much, is tried again with fewer rows.

A repair is part of the same transaction as the check. It conflicts with concurrent changes of the key. If
it changes a bucket's rows, values or staged updates, it gives the bucket's state a new token, so that a concurrent pass
begins again.

`Verification` runs the checks: `cq.verify.rows` of each row, `cq.verify.buckets` of each bucket, and `cq.verify.store`
of keys without a queue. `cq.observers.verify.queue` adds those of observers' data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

from cq.combiners import BUILT_IN, Combiner
from cq.config.queue import MAX_BUCKETS, Named, QueueConfig
from cq.errors import CorruptConfiguration, CorruptData, QueueNotConfigured
from cq.keys import QueueKeys, after, prefix_end
from cq.queue.bucket_state import BucketState
from cq.store.api import (
    COMMIT_UNKNOWN_RESULT,
    VERSIONS_PER_SECOND,
    WANT_ALL,
    Database,
    KeyValue,
    Transaction,
    TransactionRead,
    error_code,
)
from cq.store.write_sizes import TRANSACTION_BYTES
from cq.verify.layout import part_of

T = TypeVar("T")

FROM_THE_FUTURE: Final = "stamped later than anything committed: copied from another store?"
ROWS: Final = 2_000
BYTES: Final = 200_000
"""Rows and bytes of a piece, at most."""


_AN_HOUR: Final = 3_600 * VERSIONS_PER_SECOND


@dataclass(frozen=True, slots=True)
class Difference:
    """Corrupt or inconsistent data in the store.

    Attributes:
        kind: the kind of difference, see `cq.verify.kinds`.
        where: the key in the store, or the prefix of several.
        what: a description in one line.
        key: the application's key; None: unknown, or the difference does not concern one key.
        repairable: whether the store has the data for a repair.
        repaired: whether it was repaired.
    """

    kind: str
    where: bytes
    what: str
    key: Any = None
    repairable: bool = False
    repaired: bool = False


@dataclass(frozen=True, slots=True)
class VerifyProgress:
    """The progress of a verification: its current part, and the numbers of keys checked and differences found."""

    part: str
    checked: int
    differences: int


class Piece:
    """The rows checked in one transaction, at one read version.

    Attributes:
        tr: the transaction; for repairs.
        snapshot: its snapshot reads; for all checks.
        version: its read version.
        began: the read version of the verification's first piece.
        name, keys: the queue's name and keys.
        checked: number of rows checked.
        differences: differences found so far.
        follow_ups: checks to run after all parts.
        set_aside: {encoded key: number of its pieces that the transaction has set aside}.
        renewed: generation and number of each bucket whose state has a new token: one is enough for all repairs.
    """

    def __init__(self, tr: Transaction, name: str, began: int | None, own: Combiner | None) -> None:
        self.tr = tr
        self.snapshot: TransactionRead = tr.snapshot
        self.version = tr.get_read_version().wait()
        self.began = self.version if began is None else began
        self.keys = QueueKeys(name)
        self.checked = 0
        self.differences: list[Difference] = []
        self.follow_ups: list[Part] = []
        self.set_aside: Counter[bytes] = Counter()
        self.renewed: set[tuple[int, int]] = set()
        self.name, self._own = name, own
        self._config: QueueConfig | None = None
        self._deferred: list[Callable[[], object]] = []
        self._fixes: list[tuple[bytes, Callable[[], object]]] = []
        self._states: dict[tuple[int, int], BucketState | None] = {}

    @property
    def future(self) -> int:
        """A version that no transaction reaches during the verification.

        After a row added since it began, the verification skips all rows up to this version. Otherwise adders
        could keep it busy forever.
        """
        return self.version + _AN_HOUR

    @property
    def config(self) -> QueueConfig:
        """The queue's configuration as stored at the read version.

        Raises `QueueNotConfigured`, `CorruptConfiguration`.
        """
        if self._config is None:
            self._config = _stored_config(self.snapshot, self.keys, self.name)
        return self._config

    @property
    def combiner(self) -> Combiner | None:
        """The queue's combiner; None: it is an application's, and was not given."""
        wanted = self.config.combiner
        # Another version of a combiner may treat other values as empty.
        for each in (self._own, BUILT_IN.get(wanted.name)):
            if each is not None and Named(each.name, each.version) == wanted:
                return each
        return None

    @property
    def shapes(self) -> list[QueueConfig]:
        """The configuration under each shape with buckets, the former one first."""
        former = self.config.under_former_shape()
        return [self.config] if former is None else [former, self.config]

    def shape(self, generation: int, bucket: int) -> QueueConfig | None:
        """Return the configuration under the shape of this generation; None if the shape has no such bucket."""
        for config in self.shapes:
            if config.generation == generation and bucket < config.buckets:
                return config
        return None

    def state(self, generation: int, bucket: int) -> BucketState | None:
        """A bucket's state, None when it cannot be read."""
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

    def defer(self, look: Callable[[], object]) -> None:
        """Run a check after all reads of the piece have been sent, so that the reads are concurrent."""
        self._deferred.append(look)

    def finish(self, *, repair: bool) -> None:
        """Run the deferred checks, then the repairs."""
        for look in self._deferred:
            look()
        if not repair or not self._fixes:
            return
        # The checks were snapshot reads: a repair is valid only if the configuration and each key stay as read.
        self.tr.add_read_conflict_key(self.keys.config)
        for where, fix in self._fixes:
            self.tr.add_read_conflict_key(where)
            fix()
        self.differences = [replace(each, repaired=each.repairable) for each in self.differences]

    def is_too_large(self) -> bool:
        """Return whether the repairs exceed the size of a transaction; without repairs there are no writes."""
        is_repaired = any(each.repaired for each in self.differences)
        return is_repaired and self.tr.get_approximate_size().wait() > TRANSACTION_BYTES


RowVisitor = Callable[[Piece, KeyValue], bytes | None]
"""Checks a row. Returns the key to continue with; None: the next one."""
Handler = Callable[[Piece, bytes, KeyValue], bytes | None]
"""Checks a row, given the rest of its key after the part; returns as `RowVisitor` does."""


class Verification:
    """One check of all data of a queue; run it once.

    Args:
        db: a database of either store.
        name: the queue.
        repair: whether to repair what can be derived.
        combiner: the queue's combiner, if it is not one of cq's: it decides which values are empty.
        parts: the checks to run, in order.
        progress: called after each piece.
        rows, size: rows and bytes of a piece, at most.

    Attributes:
        checked: number of keys checked.
        found: number of differences.
        notes: the checks that were skipped, and why.
        part: name of the current check, for display.
    """

    def __init__(
        self,
        db: Database,
        name: str,
        *,
        repair: bool = False,
        combiner: Combiner | None = None,
        parts: Sequence[Part],
        progress: Callable[[VerifyProgress], object] = lambda progress: None,
        rows: int = ROWS,
        size: int = BYTES,
    ) -> None:
        self.db = db
        self.name = name
        self.keys = QueueKeys(name)
        self.repair = repair
        self.checked = 0
        self.found = 0
        self.notes: list[str] = []
        self.part = ""
        self._combiner = combiner
        self._parts = parts
        self._progress = progress
        self._rows, self._size = rows, size
        self._share = 1.0
        self._began: int | None = None
        self._follow_ups: list[Part] = []

    def run(self) -> Iterator[Difference]:
        """Return the differences as they are found; with `repair`, after the repair is committed.

        Raises `QueueNotConfigured`, `CodeMismatch` for a queue that a newer version of cq has configured, and the
        store's `FDBError` if a retry cannot help.
        """
        for difference in self._all():
            self.found += 1
            yield difference

    def note(self, what: str) -> None:
        """Add the note of a skipped check, once."""
        if what not in self.notes:
            self.notes.append(what)

    def walk(self, begin: bytes, end: bytes, look: RowVisitor) -> Iterator[Difference]:
        """Check all rows of a range, piece by piece."""
        place: bytes | None = begin
        while place is not None:
            place, differences = self.piece(partial(self._page, begin=place, end=end, look=look))
            yield from differences

    def piece(self, look: Callable[[Piece], T]) -> tuple[T, list[Difference]]:
        """Run `look` over a piece in a separate transaction; return its result and the differences.

        If the transaction fails, or its repairs make it too large, run it again over a smaller piece (see `share`).
        """
        uncertain: dict[tuple[str, bytes], Difference] = {}
        tr = self.db.create_transaction()
        while True:
            differences: list[Difference] = []
            try:
                piece = Piece(tr, self.name, self._began, self._combiner)
                result = look(piece)
                piece.finish(repair=self.repair)
                differences = piece.differences
                if piece.is_too_large() and self._share > 1 / self._rows:
                    # The size of a repair depends on the row, its key, and the buckets that it touches.
                    self._share = max(self._share / 2, 1 / self._rows)
                    tr = self.db.create_transaction()
                    continue
                tr.commit().wait()
            except Exception as error:
                code = error_code(error)
                if code is None:
                    raise
                if (
                    code == COMMIT_UNKNOWN_RESULT
                ):  # a committed repair removes its difference from the next try
                    uncertain |= {(each.kind, each.where): each for each in differences if each.repaired}
                self._share = max(self._share / 2, 1 / self._rows)
                tr.on_error(code).wait()
            else:
                break
        self._began = piece.began
        self._share = min(1.0, 1.5 * self._share)
        self._follow_ups += piece.follow_ups
        self.checked += piece.checked
        self._progress(VerifyProgress(self.part, self.checked, self.found))
        return result, list((uncertain | {(each.kind, each.where): each for each in differences}).values())

    def share(self, most: int) -> int:
        """Return how much of `most` the piece may check: less after failed transactions."""
        return max(1, int(self._share * most))

    def _all(self) -> Iterator[Difference]:
        try:
            for part in self._parts:
                yield from part(self)
            while self._follow_ups:  # a follow-up may add others
                yield from self._follow_ups.pop(0)(self)
        except CorruptConfiguration as error:
            yield Difference("config", self.keys.config, str(error))
            self.note("no other data of the queue can be checked without its configuration")

    def _page(self, piece: Piece, begin: bytes, end: bytes, look: RowVisitor) -> bytes | None:
        rows, most = self.share(self._rows), self.share(self._size)
        size = 0
        for row in piece.snapshot.get_range(begin, end, limit=rows, streaming_mode=WANT_ALL):
            piece.checked += 1
            following = look(piece, row)
            size += len(row.key) + len(row.value)
            if following is not None:
                return following if following < end else None
            if size > most or piece.checked == rows:
                return after(row.key)
        return None


Part = Callable[[Verification], Iterator[Difference]]
"""A check of the queue; the repairs of the differences that it yields are committed."""


def every_row(handlers: Mapping[str, Sequence[Handler]]) -> Part:
    """Return the check of each row below the queue's prefix, by the handlers of its part of the key layout."""

    def look(piece: Piece, row: KeyValue) -> bytes | None:
        name, rest = part_of(piece.keys, row.key)
        if name not in handlers:
            piece.report("unknown-key", row.key, "cq writes no key with this beginning")
            return None
        following = [handler(piece, rest, row) for handler in handlers[name]]
        return max((each for each in following if each is not None), default=None)

    def check_rows(verification: Verification) -> Iterator[Difference]:
        verification.part = "rows"
        prefix = verification.keys.prefix
        return verification.walk(prefix, prefix_end(prefix), look)

    return check_rows


def _stored_config(snapshot: TransactionRead, queue: QueueKeys, name: str) -> QueueConfig:
    """Read the stored configuration, not a cached one: damage to it does not invalidate the cache."""
    stored = snapshot.get(queue.config).value
    if stored is None:
        raise QueueNotConfigured(name)
    try:
        config = QueueConfig.from_bytes(name, stored)
    except CorruptData as error:
        raise CorruptConfiguration(str(error)) from error
    # Checks loop over all buckets: a damaged number must not make them run forever.
    numbers = config.buckets, config.generation, *(config.former or ())
    if any(type(number) is not int or number < 1 for number in numbers) or config.buckets > MAX_BUCKETS:
        raise CorruptConfiguration(
            f"the configuration of queue {name!r} has a shape that cq did not write: {numbers}"
        )
    return config
