"""Checking a queue's audit: whether all that was added is still there, once.

    added = stored + staged + waiting + set aside + dropped

`added` and `dropped` are sums that `cq.queue.ledger` keeps; everything else is summed up here, for each bucket of
the audit
as of one version of the store. It is read in one transaction if five seconds are enough for that. If not, the next
transaction goes on with current and staged values where the last one ended, provided that the states of the buckets of
the queue that overlap it are what they were: whoever writes such values writes a state, with a token that nobody else
has. So a bucket with any number of values can be checked while no pass writes to it. What waits, what was set aside and
the two sums are always read in the last of these transactions.

The difference of the two sides is the same in every commit, so an audit can begin at a queue that holds something: what
the two sides differ by at any one version is counted as added, once, and from then on they must agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from cq.admin.purge import needs_purge
from cq.config.queue import Audit, QueueConfig, read_config
from cq.encoding import codec
from cq.encoding.hashing import bucket_of, overlapping
from cq.errors import CorruptData, InvalidConfiguration, NotChecked, NotNow, QueueNotConfigured
from cq.keys import QueueKeys, after
from cq.keys.audit import AuditKeys
from cq.queue.bucket_state import BucketState
from cq.queue.ledger import MODULUS, from_bytes, plain, to_bytes, weigh
from cq.queue.rows import decode_row
from cq.queue.set_aside import updates_aside
from cq.store.api import (
    TRANSACTION_TOO_OLD,
    WANT_ALL,
    Database,
    KeyValue,
    Transaction,
    TransactionRead,
    error_code,
)
from cq.store.transact import transact

_TRIES: Final = 5
"""How many transactions in a row may fail to get further than those before them."""


@dataclass(frozen=True, slots=True)
class BucketAudit:
    """What was found of one of an audit's buckets, as of one version. Sums are modulo 2**64, with a sign.

    Attributes:
        bucket: its number. An audit has as many as the queue had buckets when it began.
        is_balanced: whether nothing is missing, and nothing is there that was not added; False also if `unknown`.
        added: the sum of all updates added, and of what the queue held when the audit began.
        stored: the sum of the current values.
        staged: of updates that were combined, and wait to be reported.
        waiting: of updates that are queued.
        aside: of updates that were set aside.
        dropped: of updates that were left out because an earlier transaction had added their operation, and of those
            that were set aside and dropped by hand.
        unknown: why the bucket could not be checked; empty if it was.
    """

    bucket: int
    is_balanced: bool
    added: int = 0
    stored: int = 0
    staged: int = 0
    waiting: int = 0
    aside: int = 0
    dropped: int = 0
    unknown: str = ""

    @property
    def excess(self) -> int:
        """By how much more is there than was added; negative when some is missing."""
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
    """Check a queue's audit, bucket by bucket, each as of one version: while adds, passes and all else go on.

    Reads all that the queue holds, by snapshot reads, and writes nothing. A bucket that cannot be read within five
    seconds is checked, too, but only if no pass writes to it meanwhile: else it is `unknown`, as it is while it is
    being purged.

    What it finds: updates lost, repeated, changed or put to other keys, by whatever means, since the audit was turned
    on. What it does not: what is missing at one key and too much at another of the same hash, or by intent.

    Raises `QueueNotConfigured`, and `InvalidConfiguration` when the queue has no audit.
    """
    audit = _audit_of(name, transact(db, lambda tr: read_config(tr.snapshot, name)))
    return (_check(db, name, audit, bucket) for bucket in range(audit.buckets))


def audit_findings(db: Database, name: str) -> Iterator[str]:
    """A line for each of the audit's buckets that is not balanced, or could not be checked; raises as `check_audit`."""
    return (str(each) for each in check_audit(db, name) if not each.is_balanced)


def include_all(db: Database, config: QueueConfig) -> None:
    """Count what a queue holds as added, in each of its audit's buckets where that has not happened.

    For `cq.configure`, which turns the audit on. Can be broken off and called again, and go on in several processes at
    once. Raises `NotNow` when a bucket cannot be read at one version.
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
        return  # somebody else was faster
    tr.add(keys.added(audit.generation, bucket), to_bytes(excess))
    tr.set(included, b"")


def _audit_of(name: str, config: QueueConfig) -> Audit:
    if config.audit is None:
        raise InvalidConfiguration(
            f"queue {name!r} has no audit: `cq configure {name} --audit` turns it on, from then on it can be checked"
        )
    return config.audit


def _check(db: Database, name: str, audit: Audit, bucket: int) -> BucketAudit:
    try:
        found = _measure(db, name, audit, bucket)
        if not (audit.whole or found.is_included):
            raise NotChecked(
                f"holds what the audit has not yet included: run `cq configure {name} --audit` again"
            )
    except NotChecked as reason:
        return BucketAudit(bucket, is_balanced=False, unknown=f"it {reason}")
    return BucketAudit(
        bucket,
        is_balanced=found.excess == 0,
        added=plain(found.added),
        stored=plain(found.stored),
        staged=plain(found.staged),
        waiting=plain(found.waiting),
        aside=plain(found.aside),
        dropped=plain(found.dropped),
    )


# Reading a bucket as of one version


@dataclass(frozen=True, slots=True)
class _BucketSums:
    """The sums of a bucket as in `BucketAudit`, but weighted, and whether what was there at first is among them."""

    added: int
    stored: int
    staged: int
    waiting: int
    aside: int
    dropped: int
    is_included: bool

    @property
    def excess(self) -> int:
        """By how much more is there than was added."""
        found = self.stored + self.staged + self.waiting + self.aside + self.dropped
        return (found - self.added) % MODULUS


def _measure(db: Database, name: str, audit: Audit, bucket: int) -> _BucketSums:
    """The sums of a bucket, in as many transactions as it takes; raises `NotChecked`."""
    reading = _BucketReader(name, audit, bucket)
    farthest = tries = 0
    while True:
        tr = db.create_transaction()
        try:
            return reading.read(tr)
        except CorruptData as error:
            raise NotChecked(f"cannot be read: {error}") from error
        except Exception as error:
            code = error_code(error)
            if code is None:
                raise
            tries = tries + 1 if reading.rows <= farthest else 0
            farthest = max(farthest, reading.rows)
            if code == TRANSACTION_TOO_OLD and tries >= _TRIES:
                raise NotChecked(
                    "holds more than can be read at one version while passes write to it: pause the queue meanwhile, "
                    "when little is queued"
                ) from error
            tr.on_error(code).wait()


class _BucketReader:
    """What was read of a bucket so far.

    Attributes:
        rows: how many rows of current and staged values these were.
    """

    def __init__(self, name: str, audit: Audit, bucket: int) -> None:
        self._name, self._audit, self._bucket = name, audit, bucket
        self._keys, self._own_keys = QueueKeys(name), AuditKeys(name)
        self._fence: object = None
        self._begin()

    def _begin(self) -> None:
        self.rows = 0
        self._stored = self._staged = 0
        self._values_from, self._values_end = self._keys.values_of_bucket(self._audit.buckets, self._bucket)
        self._staged_from, self._staged_end = self._keys.staged_of_bucket(self._audit.buckets, self._bucket)

    def read(self, tr: Transaction) -> _BucketSums:
        """Read on, to the end: the sums at this transaction's read version. Raises `NotChecked`."""
        tr.options.set_read_your_writes_disable()  # else the client keeps all that is read
        snapshot = tr.snapshot
        config = self._check_fence(snapshot)
        for row in snapshot.get_range(self._values_from, self._values_end, streaming_mode=WANT_ALL):
            self._stored += self._amount(row)
            self._values_from = after(row.key)
            self.rows += 1
        for row in snapshot.get_range(self._staged_from, self._staged_end, streaming_mode=WANT_ALL):
            self._staged += self._amount(row)
            self._staged_from = after(row.key)
            self.rows += 1
        generation = self._audit.generation
        added = snapshot.get(self._own_keys.added(generation, self._bucket))
        dropped = snapshot.get(self._own_keys.dropped(generation, self._bucket))
        included = snapshot.get(self._own_keys.included(generation, self._bucket))
        return _BucketSums(
            added=from_bytes(added.value),
            stored=self._stored,
            staged=self._staged,
            waiting=self._waiting(snapshot, config),
            aside=self._aside(snapshot),
            dropped=from_bytes(dropped.value),
            is_included=included.value is not None,
        )

    def _check_fence(self, snapshot: TransactionRead) -> QueueConfig:
        """Forget what was read if it may have changed since; the configuration."""
        stored = snapshot.get(self._keys.config).value
        if stored is None:
            raise QueueNotConfigured(self._name)
        config = QueueConfig.from_bytes(self._name, stored)
        if config.audit != self._audit:
            raise NotChecked("belongs to an audit that was turned off or has begun anew meanwhile")
        states = [snapshot.get(self._keys.state(*bucket)) for bucket in self._overlapping(config)]
        fence = stored, [state.value for state in states]
        if fence != self._fence:
            self._fence = fence
            self._begin()
        if any(needs_purge(config, BucketState.from_bytes(state.value)) for state in states):
            raise NotChecked("is being purged")
        return config

    def _overlapping(self, config: QueueConfig) -> list[tuple[int, int]]:
        """The buckets of the queue that share hashes with this one, as generation and number; of both shapes."""
        shapes = [config, former] if (former := config.under_former_shape()) else [config]
        return [
            (shape.generation, number)
            for shape in shapes
            for number in overlapping(self._audit.buckets, self._bucket, shape.buckets)
        ]

    def _amount(self, row: KeyValue) -> int:
        """What a current or staged value counts; one that cannot be read counts nothing, and so is missing."""
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
                    continue  # not one of cq's, or one that is missing now
                total += self._sum(updates)
        return total

    def _aside(self, snapshot: TransactionRead) -> int:
        bounds = self._keys.aside_of_bucket(self._audit.buckets, self._bucket)
        pieces = snapshot.get_range(*bounds, streaming_mode=WANT_ALL)
        return sum(self._sum(updates_aside(self._keys, piece.key, piece.value)) for piece in pieces)

    def _sum(self, updates: Iterable[tuple[bytes, Any]]) -> int:
        """What updates count; a row of the queue may hold some of keys of other buckets of the audit."""
        buckets = self._audit.buckets
        return sum(weigh(key, update) for key, update in updates if bucket_of(key, buckets) == self._bucket)
