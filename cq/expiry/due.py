"""Due keys: the entries of the index whose time is a period ago, of one bucket for a pass, or of all for a worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from cq import runtime
from cq.config.expiry import SLICES, ExpirySpec
from cq.config.queue import QueueConfig, notify, read_config
from cq.encoding.hashing import bucket_at, bucket_bounds
from cq.expiry.index import ExpiryIndex
from cq.keys.expiry import ExpiryKeys, hash_of, parse_count
from cq.store.api import WANT_ALL, Transaction, TransactionRead
from cq.store.transact import transactional

_SEEKS: Final = 500
"""Times of entries that one pass searches for keys of its bucket, at most."""
_NOTIFIED: Final = 200
"""Times and buckets of entries that one transaction searches, at most."""
AGAIN_SECONDS: Final = 1.0
"""The pause between two notifications of buckets with due keys."""
_SHORTEST_SECONDS: Final = 0.05
_LONGEST_SECONDS: Final = 60.0


class DueKey(NamedTuple):
    """An entry that is due: the time of a key in seconds since 1970, and the key's place in hash order."""

    time: int
    where: bytes


class BucketExpiry:
    """The expiry of one bucket in one pass. It starts to read the first due entry of the queue at once.

    Args:
        snapshot: snapshot reads of the pass's transaction.
        config: the queue's configuration.
        bucket: number of the bucket.
        spec: the queue's expiry.

    Attributes:
        index: the index of the queue's keys.
        may_be_due: whether more keys of the bucket may be due, and a further pass must look for them.
    """

    def __init__(self, snapshot: TransactionRead, config: QueueConfig, bucket: int, spec: ExpirySpec) -> None:
        self.index = ExpiryIndex(snapshot, config, spec)
        self.may_be_due = True
        self._snapshot = snapshot
        self._first, self._end = bucket_bounds(config.buckets, bucket)
        self._bounds = self.index.keys.entries_until(spec.latest_due(self.index.now))
        self._next = snapshot.get_range(*self._bounds, limit=1)

    def is_any_due(self) -> bool:
        """Whether a key of the queue is due."""
        self.may_be_due = bool(self._next.to_list())
        return self.may_be_due

    def read(self, limit: int) -> list[DueKey]:
        """The first due keys of the bucket, at most `limit`.

        Within a time, entries are in hash order. So each read begins at the bucket's first hash of a time, and the next
        one at the next time that exists.
        """
        found: list[DueKey] = []
        for _ in range(_SEEKS):
            rows = self._next.to_list()
            if not rows:
                self.may_be_due = False
                return found
            time, where = self.index.keys.parse_entry(rows[0].key)
            hashed = hash_of(where)
            if hashed >= self._end:
                self._seek(time + 1)
            elif hashed < self._first:
                self._seek(time)
            else:
                end = self.index.keys.entries_of(time, self._first, self._end)[1]
                some = self._snapshot.get_range(
                    rows[0].key, end, limit=limit - len(found), streaming_mode=WANT_ALL
                )
                found += [DueKey(*self.index.keys.parse_entry(row.key)) for row in some]
                if len(found) >= limit:
                    return found
                self._seek(time + 1)
        self.may_be_due = bool(found)
        return found

    def _seek(self, time: int) -> None:
        begin = self.index.keys.entries_of(time, self._first, self._end)[0]
        self._next = self._snapshot.get_range(begin, max(begin, self._bounds[1]), limit=1)


@dataclass(frozen=True, slots=True)
class ExpiryStatistics:
    """The expiry of a queue's keys.

    Attributes:
        expired: keys that have expired since the expiry was switched on, or since the latest purge.
        overdue_seconds: how long the first key has been due; 0 if no key is due.
    """

    expired: int
    overdue_seconds: float


def read_statistics(snapshot: TransactionRead, config: QueueConfig) -> ExpiryStatistics | None:
    """The statistics of a queue's expiry, by two reads; None if its keys do not expire."""
    if config.expiry is None:
        return None
    index = ExpiryKeys(config.name)
    count = snapshot.get(index.count)
    late = [
        runtime.time() - config.expiry.due_at(index.parse_entry(row.key)[0])
        for row in snapshot.get_range(*index.entries(), limit=1)
    ]
    return ExpiryStatistics(parse_count(count.value), max(0.0, *late, 0.0))


class Notified(NamedTuple):
    """The result of `notify_due`.

    Attributes:
        buckets: number of buckets notified.
        position: the key of the store from which to continue; empty after the last due entry.
        seconds: seconds until the next call: until the next key is due, at most a minute or a period; 0 to continue.
    """

    buckets: int
    position: bytes
    seconds: float


@transactional
def notify_due(tr: Transaction, name: str, position: bytes = b"") -> Notified | None:
    """Notify the buckets with due keys, so that passes delete these; None if the queue has no expiry.

    Reads two rows if no key is due. Raises `QueueNotConfigured`.
    """
    config = read_config(tr, name)
    if config.expiry is None:
        return None
    index, now = ExpiryKeys(name), runtime.time()
    begin, end = index.entries_until(config.expiry.latest_due(now))
    begin = min(max(begin, position), end)
    buckets: set[int] = set()
    for _ in range(_NOTIFIED):
        rows = tr.snapshot.get_range(begin, end, limit=1).to_list()
        if not rows:
            notify(tr, config, sorted(buckets))
            is_any = bool(buckets or position)
            seconds = AGAIN_SECONDS if is_any else _seconds_to_next(tr.snapshot, config.expiry, index, now)
            return Notified(len(buckets), b"", seconds)
        time, where = index.parse_entry(rows[0].key)
        bucket = bucket_at(hash_of(where), config.buckets)
        buckets.add(bucket)
        # The next entry of another bucket or time.
        begin = min(index.entries_of(time, 0, bucket_bounds(config.buckets, bucket)[1])[1], end)
    notify(tr, config, sorted(buckets))
    return Notified(len(buckets), begin, 0.0)


def _seconds_to_next(snapshot: TransactionRead, spec: ExpirySpec, index: ExpiryKeys, now: float) -> float:
    """Seconds until the first key is due, between a moment and a minute: keys can get times that are past.

    At most a period: a key that gets an update now is due after it. A slice or period of a late update may be due at
    once, so about a slice for these.
    """
    period = spec.period / spec.ticks
    longest = min(period, max(AGAIN_SECONDS, period / SLICES)) if spec.is_by_key else period
    wait = longest = max(_SHORTEST_SECONDS, min(_LONGEST_SECONDS, longest))
    for row in snapshot.get_range(*index.entries(), limit=1):
        wait = spec.due_at(index.parse_entry(row.key)[0]) - now
    return min(max(wait, _SHORTEST_SECONDS), longest)
