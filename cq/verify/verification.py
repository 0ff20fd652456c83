"""Looking through all that a queue keeps for what cannot be so, and mending what can be derived: while it is in use.

Each piece is looked at in one transaction, at one read version, by snapshot reads: whatever is compared is compared as
it was at one moment, so a store that is in order never seems damaged however many add and combine meanwhile. Pieces are
bounded in rows and bytes; one whose transaction fails, or would write too much, is tried again smaller.

A repair happens in the transaction that has found the difference. It conflicts with whoever changes the key
meanwhile; and where it changes a bucket's rows, values or staged updates it gives the bucket's state a new token, so
that a pass under way begins again.

    `Verification` goes through the parts; `cq.verify.rows` looks at each row, `cq.verify.buckets` at each bucket, and
    `cq.verify.store` at what no queue has. `cq.observers.verify.queue` adds what observers keep.
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
"""Of a piece, at most."""


_AN_HOUR: Final = 3_600 * VERSIONS_PER_SECOND


@dataclass(frozen=True, slots=True)
class Difference:
    """Something in the store that cannot be so.

    Attributes:
        kind: what kind of difference, see `cq.verify.kinds`.
        where: the key in the store, or the beginning of several.
        what: what is wrong, in one line.
        key: the application's key that it is about, None when it is about none or that cannot be told.
        repairable: whether it can be mended from what the store has.
        repaired: whether that was done.
    """

    kind: str
    where: bytes
    what: str
    key: Any = None
    repairable: bool = False
    repaired: bool = False


@dataclass(frozen=True, slots=True)
class VerifyProgress:
    """How far a verification is: what it looks at, how many keys it has looked at, and the differences found."""

    part: str
    checked: int
    differences: int


class Piece:
    """What is looked at in one transaction, at one read version.

    Attributes:
        tr: the transaction; for repairs.
        snapshot: its snapshot reads; for everything else.
        version: its read version.
        began: the read version of the verification's first piece.
        name, keys: of the queue.
        checked: how many rows were looked at.
        differences: found so far.
        follow_ups: what is to be looked at once the parts have been gone through.
        set_aside: {encoded key: how many pieces of it the transaction has set aside}.
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
        """A version that no transaction reaches while the verification goes on.

        From a row on that was added since it began, what else is added up to then is left to the next verification:
        else adders could keep it busy for ever.
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
        """The queue's combiner, None when it is not at hand."""
        wanted = self.config.combiner
        for each in (self._own, BUILT_IN.get(wanted.name)):
            if each is not None and Named(each.name, each.version) == wanted:
                return each
        return None

    @property
    def shapes(self) -> list[QueueConfig]:
        """The configuration under each shape that has buckets, the former one first."""
        former = self.config.under_former_shape()
        return [self.config] if former is None else [former, self.config]

    def shape(self, generation: int, bucket: int) -> QueueConfig | None:
        """The configuration under the shape of this generation, None if that has no such bucket."""
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
        """Note a difference, and what mends it in this transaction if that is asked for."""
        self.differences.append(Difference(kind, where, what, key, repairable=fix is not None))
        if fix is not None:
            self._fixes.append((where, fix))

    def defer(self, look: Callable[[], object]) -> None:
        """Have something looked at once all reads of the piece are under way."""
        self._deferred.append(look)

    def finish(self, *, repair: bool) -> None:
        """Do what was left for later, then what mends."""
        for look in self._deferred:
            look()
        if not repair or not self._fixes:
            return
        self.tr.add_read_conflict_key(self.keys.config)
        for where, fix in self._fixes:
            self.tr.add_read_conflict_key(where)
            fix()
        self.differences = [replace(each, repaired=each.repairable) for each in self.differences]

    def is_too_large(self) -> bool:
        """Whether the repairs write more than one transaction should; without repairs nothing is written."""
        is_repaired = any(each.repaired for each in self.differences)
        return is_repaired and self.tr.get_approximate_size().wait() > TRANSACTION_BYTES


RowVisitor = Callable[[Piece, KeyValue], bytes | None]
"""Looks at a row. Returns the key to go on with, None for the next one."""
Handler = Callable[[Piece, bytes, KeyValue], bytes | None]
"""Looks at a row, given what stands in its key behind the part; returns as `Look` does."""


class Verification:
    """One look through all that a queue keeps; run it once.

    Args:
        db: a database of either store.
        name: the queue.
        repair: whether to mend what can be derived.
        combiner: the queue's, if it is one of your own: it says which values are empty.
        parts: what to look at, in order.
        progress: called after each piece.
        rows, size: of a piece, at most; size in bytes.

    Attributes:
        checked: how many keys were looked at.
        found: how many differences.
        notes: what was not looked at, and why.
        part: what is being looked at, for people.
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
        """All differences, as they are found; with `repair`, once what mends them is committed.

        Raises `QueueNotConfigured`, `CodeMismatch` for a queue that a newer version of cq has configured, and the
        store's `FDBError` when the store cannot go on.
        """
        for difference in self._all():
            self.found += 1
            yield difference

    def note(self, what: str) -> None:
        """Say, once, that something is not looked at."""
        if what not in self.notes:
            self.notes.append(what)

    def walk(self, begin: bytes, end: bytes, look: RowVisitor) -> Iterator[Difference]:
        """Look at all rows of a range, a piece at a time."""
        place: bytes | None = begin
        while place is not None:
            place, differences = self.piece(partial(self._page, begin=place, end=end, look=look))
            yield from differences

    def piece(self, look: Callable[[Piece], T]) -> tuple[T, list[Difference]]:
        """Run `look` over a piece, in a transaction of its own; returns what it returned, and the differences.

        It is run again when the transaction fails or repairs would make it too large, with less to look at (see
        `share`).
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
                    # How much a repair writes depends on the row, its key, and the buckets that it concerns.
                    self._share = max(self._share / 2, 1 / self._rows)
                    tr = self.db.create_transaction()
                    continue
                tr.commit().wait()
            except Exception as error:
                code = error_code(error)
                if code is None:
                    raise
                if code == COMMIT_UNKNOWN_RESULT:  # what was mended, if it was, will not be found again
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
        """How much of so much the piece may look at: less after transactions that failed."""
        return max(1, int(self._share * most))

    def _all(self) -> Iterator[Difference]:
        try:
            for part in self._parts:
                yield from part(self)
            while self._follow_ups:
                yield from self._follow_ups.pop(0)(self)
        except CorruptConfiguration as error:
            yield Difference("config", self.keys.config, str(error))
            self.note("nothing else of the queue can be told without its configuration")

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
"""Looks at something of the queue; what it yields is committed."""


def every_row(handlers: Mapping[str, Sequence[Handler]]) -> Part:
    """The part that gives each row below the queue's prefix to the handlers of its part of the key layout."""

    def look(piece: Piece, row: KeyValue) -> bytes | None:
        name, rest = part_of(piece.keys, row.key)
        if name not in handlers:
            piece.report("unknown-key", row.key, "no key of cq's begins so")
            return None
        following = [handler(piece, rest, row) for handler in handlers[name]]
        return max((each for each in following if each is not None), default=None)

    def check_rows(verification: Verification) -> Iterator[Difference]:
        verification.part = "rows"
        prefix = verification.keys.prefix
        return verification.walk(prefix, prefix_end(prefix), look)

    return check_rows


def _stored_config(snapshot: TransactionRead, queue: QueueKeys, name: str) -> QueueConfig:
    """The configuration as it is stored: one that somebody else has changed is not in any cache."""
    stored = snapshot.get(queue.config).value
    if stored is None:
        raise QueueNotConfigured(name)
    try:
        config = QueueConfig.from_bytes(name, stored)
    except CorruptData as error:
        raise CorruptConfiguration(str(error)) from error
    numbers = config.buckets, config.generation, *(config.former or ())
    if any(type(number) is not int or number < 1 for number in numbers) or config.buckets > MAX_BUCKETS:
        raise CorruptConfiguration(
            f"the configuration of queue {name!r} has a shape that cq did not write: {numbers}"
        )
    return config
