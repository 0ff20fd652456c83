"""Audit of a queue: checks that each added update is still there exactly once.

    added = stored + staged + waiting + set aside + dropped

`added` and `dropped` are sums that `cq.queue.ledger` keeps. All other sums are computed here, for each bucket of the
audit, as of one version of the store. A check reads in one transaction if five seconds are enough. If not, the next
transaction continues with current and staged values where the last one ended, provided that the states of the buckets
that overlap the audit's bucket have not changed: each writer of such values also writes a state, with a unique token.
So a bucket with any number of values can be checked while no pass writes to it. Queued updates, updates set aside and
the two kept sums are always read in the last of these transactions.

The difference of the two sides is the same in every commit. So an audit can begin on a queue that holds data: the
difference at any one version is counted as added, once, and from then on the two sides must agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from cq.config.parts import Audit
from cq.config.queue import QueueConfig, read_config
from cq.encoding import codec
from cq.encoding.hashing import bucket_of, overlapping
from cq.errors import CorruptData, NotChecked, NotInStore, NotNow, QueueNotConfigured
from cq.keys import QueueKeys, after
from cq.keys.audit import AuditKeys
from cq.queue.bucket_state import BucketState, needs_purge
from cq.queue.ledger import MODULUS, from_bytes, plain, to_bytes, weigh
from cq.queue.rows import decode_row
from cq.queue.set_aside import updates_aside
from cq.store.api import WANT_ALL, Database, KeyValue, Transaction, TransactionRead
from cq.store.transact import transact

_TRIES: Final = 10
"""Maximum number of consecutive transactions that read no further than earlier ones."""


@dataclass(frozen=True, slots=True)
class BucketAudit:
    """The sums of one of an audit's buckets, as of one version. Sums are signed, modulo 2**64.

    Attributes:
        bucket: its number. An audit has as many buckets as the queue had when the audit began.
        is_balanced: whether no update is missing and no other one is there; False if `unknown` is set.
        added: sum of all added updates, and of the queue's content when the audit began.
        stored: sum of the current values.
        staged: sum of combined updates not yet reported.
        waiting: sum of queued updates.
        aside: sum of updates set aside.
        dropped: sum of updates skipped because an earlier transaction added their operation, and of updates set aside
            that an operator dropped.
        unknown: why the bucket could not be checked; else empty.
    """

    bucket: int
    is_balanced: bool
    added: int = 0
    stored: int = 0
    staged: int = 0
    waiting: int = 0
    aside: int = 0
    dropped: int = 0
    unknown: str = field(default="", kw_only=True)

    @property
    def excess(self) -> int:
        """The surplus over the added sum; negative if updates are missing."""
        return plain(self.stored + self.staged + self.waiting + self.aside + self.dropped - self.added)

    def __str__(self) -> str:
        if self.unknown:
            return f"bucket {self.bucket} of the audit is not checked: {self.unknown}"
        figures = (
            f"bucket {self.bucket} of the audit: added {self.added:,}, stored {self.stored:,}, staged "
            f"{self.staged:,}, waiting {self.waiting:,}, set aside {self.aside:,}, dropped {self.dropped:,}: "
        )
        if self.is_balanced:
            return figures + "balanced"
        if self.excess:
            return figures + f"{abs(self.excess):,} {'too much' if self.excess > 0 else 'missing'}"
        return figures + "the sum is right, but not key by key"


def check_audit(db: Database, name: str) -> Iterator[BucketAudit]:
    """Check a queue's audit, bucket by bucket, each as of one version, while adds and passes continue.

    Reads the whole queue by snapshot reads, and writes nothing. A bucket that takes more than five seconds to read can
    be checked only if no pass writes to it during that time: else it is `unknown`, as it is during a purge.

    The check finds updates that were lost, repeated, changed or moved to other keys, by any cause, since the audit
    began. It does not find errors at two keys with the same hash that cancel out, or deliberate manipulation.

    Raises `QueueNotConfigured`, and `InvalidConfiguration` if the queue has no audit.
    """
    audit = _audit_of(name, transact(db, lambda tr: read_config(tr.snapshot, name)))
    return (check_bucket(db, name, audit, bucket) for bucket in range(audit.buckets))


def check_bucket(db: Database, name: str, audit: Audit, bucket: int) -> BucketAudit:
    """Check one bucket of a queue's audit, see `check_audit`."""
    try:
        measured = _measure(db, name, audit, bucket)
    except NotChecked as reason:
        return BucketAudit(bucket, is_balanced=False, unknown=f"it {reason}")
    if not (audit.whole or measured.is_included):
        unknown = (
            f"it holds data that the audit does not include yet: run `cq configure {name} --audit` again"
        )
        return BucketAudit(bucket, is_balanced=False, unknown=unknown)
    return measured.figures


def audit_findings(db: Database, name: str) -> Iterator[str]:
    """A line for each unbalanced or unchecked bucket; raises the errors of `check_audit`."""
    return (str(each) for each in check_audit(db, name) if not each.is_balanced)


def include_all(db: Database, config: QueueConfig) -> None:
    """Count a queue's content as added, in each bucket of its audit not counted yet.

    `cq.configure` calls this when it turns the audit on. The call can be interrupted and repeated, and several
    processes can run it at the same time. Raises `NotNow` if a bucket cannot be read at one version.
    """
    audit = _audit_of(config.name, config)
    if audit.whole:
        return
    for bucket in transact(db, lambda tr: _not_included(tr, config.name, audit)):
        try:
            excess = _measure(db, config.name, audit, bucket).excess
        except NotChecked as reason:
            raise NotNow(
                f"bucket {bucket} of the audit of queue {config.name!r} {reason}; "
                f"run `cq configure {config.name} --audit` again"
            ) from None
        transact(db, partial(_include, name=config.name, audit=audit, bucket=bucket, excess=excess))


def _not_included(tr: Transaction, name: str, audit: Audit) -> list[int]:
    included = AuditKeys(name).included
    found = [tr.snapshot.get(included(audit.generation, bucket)) for bucket in range(audit.buckets)]
    return [bucket for bucket, each in enumerate(found) if each.value is None]


def _include(tr: Transaction, name: str, audit: Audit, bucket: int, excess: int) -> None:
    keys = AuditKeys(name)
    included = keys.included(audit.generation, bucket)
    if read_config(tr, name).audit != audit or tr.get(included).value is not None:
        return  # another process was faster, or the audit has changed
    tr.add(keys.added(audit.generation, bucket), to_bytes(excess))
    tr.set(included, b"")


def _audit_of(name: str, config: QueueConfig) -> Audit:
    if config.audit is None:
        raise NotInStore(
            f"queue {name!r} has no audit: turn it on with `cq configure {name} --audit`, then it can be checked"
        )
    return config.audit


# Reading a bucket as of one version


class _Measured(NamedTuple):
    """A bucket's figures, its surplus modulo `MODULUS`, and whether they include its content when the audit began."""

    figures: BucketAudit
    excess: int
    is_included: bool


def _measure(db: Database, name: str, audit: Audit, bucket: int) -> _Measured:
    """The sums of a bucket, read in as many transactions as necessary; raises `NotChecked`."""
    try:
        return transact(db, _BucketReader(name, audit, bucket).read)
    except CorruptData as error:
        raise NotChecked(f"cannot be read: {error}") from error


class _SummedRange:
    """A range of values that is summed over several transactions, each from the end of the one before."""

    def __init__(self, bounds: tuple[bytes, bytes]) -> None:
        self.sum = self.rows = 0
        self._begin, self._end = bounds

    def read(self, snapshot: TransactionRead, amount: Callable[[KeyValue], int]) -> None:
        """Read on to the end; if this raises as the transaction expires, the rows read so far stay counted."""
        for row in snapshot.get_range(self._begin, self._end, streaming_mode=WANT_ALL):
            self.sum += amount(row)
            self._begin = after(row.key)
            self.rows += 1


class _BucketReader:
    """Reads a bucket of an audit over several transactions."""

    def __init__(self, name: str, audit: Audit, bucket: int) -> None:
        self._name, self._audit, self._bucket = name, audit, bucket
        self._keys, self._own_keys = QueueKeys(name), AuditKeys(name)
        self._fence: object = None
        self._farthest = self._tries = 0
        self._values, self._staged = self._ranges()

    def _ranges(self) -> tuple[_SummedRange, _SummedRange]:
        """The ranges of the current and the staged values, before the first read."""
        place = self._audit.buckets, self._bucket
        values, staged = self._keys.values.of_bucket(*place), self._keys.all_staged.of_bucket(*place)
        return _SummedRange(values), _SummedRange(staged)

    def read(self, tr: Transaction) -> _Measured:
        """Read on to the end; returns the sums at this transaction's read version. Raises `NotChecked`.

        The retry loop calls this again after each transaction that expires: it continues where the last one ended.
        """
        rows = self._values.rows + self._staged.rows
        self._tries = 1 if rows > self._farthest else self._tries + 1
        self._farthest = max(self._farthest, rows)
        if self._tries > _TRIES:
            raise NotChecked(
                "holds more than can be read at one version while passes write to it: pause the queue for the check, "
                "at a time when little is queued"
            )
        tr.options.set_read_your_writes_disable()  # else the client caches all rows read
        snapshot = tr.snapshot
        config = self._check_fence(snapshot)
        self._values.read(snapshot, self._amount)
        self._staged.read(snapshot, self._amount)
        generation = self._audit.generation
        added = snapshot.get(self._own_keys.added(generation, self._bucket))
        dropped = snapshot.get(self._own_keys.dropped(generation, self._bucket))
        included = snapshot.get(self._own_keys.included(generation, self._bucket))
        found = [
            self._values.sum,
            self._staged.sum,
            self._waiting(snapshot, config),
            self._aside(snapshot),
            from_bytes(dropped.value),
        ]
        total = from_bytes(added.value)
        excess = (sum(found) - total) % MODULUS
        figures = BucketAudit(self._bucket, excess == 0, *map(plain, [total, *found]))
        return _Measured(figures, excess, included.value is not None)

    def _check_fence(self, snapshot: TransactionRead) -> QueueConfig:
        """Start again if the rows read so far may have changed; returns the configuration."""
        stored = snapshot.get(self._keys.config).value
        if stored is None:
            raise QueueNotConfigured(self._name)
        config = QueueConfig.from_bytes(self._name, stored)
        if config.audit != self._audit:
            raise NotChecked("belongs to an audit that was turned off or begun again during the check")
        states = [snapshot.get(self._keys.state(*bucket)) for bucket in self._overlapping(config)]
        # Each pass writes a state with a new token, so equal states mean unchanged current and staged values.
        fence = stored, [state.value for state in states]
        if fence != self._fence:
            self._fence = fence
            self._values, self._staged = self._ranges()
        if any(needs_purge(config, BucketState.from_bytes(state.value)) for state in states):
            raise NotChecked("is being purged")
        return config

    def _overlapping(self, config: QueueConfig) -> list[tuple[int, int]]:
        """Generation and number of the queue's buckets that share hashes with this one, of both shapes."""
        shapes = [config, former] if (former := config.under_former_shape()) else [config]
        return [
            (shape.generation, number)
            for shape in shapes
            for number in overlapping(self._audit.buckets, self._bucket, shape.buckets)
        ]

    def _amount(self, row: KeyValue) -> int:
        """The weight of a current or staged value; 0 for an unreadable one, which the audit reports as missing."""
        try:
            return weigh(self._keys.encoded_key(row.key), codec.decode(row.value))
        except CorruptData:
            return 0

    def _waiting(self, snapshot: TransactionRead, config: QueueConfig) -> int:
        total = 0
        for bucket in self._overlapping(config):
            for row in snapshot.get_range(*self._keys.rows(*bucket), streaming_mode=WANT_ALL):
                try:
                    updates = decode_row(row.key, row.value).updates
                except CorruptData:
                    continue  # not written by cq, or damaged: its updates are missing
                total += self._sum(updates)
        return total

    def _aside(self, snapshot: TransactionRead) -> int:
        bounds = self._keys.all_aside.of_bucket(self._audit.buckets, self._bucket)
        pieces = snapshot.get_range(*bounds, streaming_mode=WANT_ALL)
        return sum(self._sum(updates_aside(self._keys, piece.key, piece.value)) for piece in pieces)

    def _sum(self, updates: Iterable[tuple[bytes, Any]]) -> int:
        """The weight of updates of this bucket; a row may also have updates of other buckets of the audit."""
        buckets = self._audit.buckets
        return sum(weigh(key, update) for key, update in updates if bucket_of(key, buckets) == self._bucket)
