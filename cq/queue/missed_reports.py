"""Missed reports: the last received values of observers, for keys whose stored value is another one.

An observer that raises for a key in its first report, or when a purge or an expiry deletes the key, misses that report;
the values and all other keys go on. The observer of a window's totals misses none, see `PassRunner`. From then on the
stored value is not what the observer last received. So the pass that goes on without the report notes, for each
observer concerned, what it did receive. The next report of the key to that observer starts from there, whether a later
update or a retry causes it, and removes the note in its own transaction.

A bucket's state says whether the bucket has such notes, so passes over all other buckets read none. In a bucket with
notes, a pass reads one additional key for each key that it reports and each observer.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from cq.config.queue import QueueConfig, notify, read_config
from cq.encoding import codec
from cq.encoding.hashing import bucket_of
from cq.errors import CorruptData
from cq.failure import KeyFailure
from cq.keys import after, place, places
from cq.keys.missed import MissedKeys
from cq.observer import Change
from cq.queue.bucket_state import BucketState, fresh_token
from cq.store.api import WANT_ALL, Database, Transaction, TransactionRead, Writer
from cq.store.bounded_reads import prefix_read, read_at_hashes, scan_rows
from cq.store.sizes import clear_bytes, fitting

NOTHING: Final = b""
"""Stored if an observer has received no value of a key, or its deletion: no encoded value is empty."""
_HASH_BYTES: Final = 4
_DUE_BYTES: Final = 200_000
_MAX_LOOKED_AT: Final = 1_000


def may_have_missed(config: QueueConfig, state: BucketState) -> bool:
    """Whether observers may have missed reports of a bucket; True for a bucket without a pass since a rebucketing."""
    return state.missed or (not state.token and config.backfilled_until > 0)


def renewed(config: QueueConfig, state: BucketState) -> BucketState:
    """The state of a bucket with a new token, for a transaction other than a pass."""
    # A state without a token says that reports may be missed. With a token, only the field does.
    return replace(state, token=fresh_token(), missed=may_have_missed(config, state))


class MissedReports:
    """The missed reports of one bucket, as one pass reads and changes them.

    Args:
        config: the queue's configuration, with the bucket's shape.
        bucket: the bucket's number.
        state: the bucket's state, as read.

    Attributes:
        may_exist: whether the bucket may have missed reports before the pass.
        remain: whether it may have some after the pass: after `look` has found any, or after `note`.
        due: encoded keys of the next reports to retry.
        received: {(generation of an observer, place of a key): last received value}, of the checked keys.
    """

    def __init__(self, config: QueueConfig, bucket: int, state: BucketState) -> None:
        self._keys = MissedKeys(config.name)
        self._shape = config.buckets, bucket
        # Slices have no values before the observer of the window's totals, so that one misses no first report either.
        self._generations = [each.generation for each in config.observers if not each.keeps_totals]
        self.may_exist = bool(self._generations) and may_have_missed(config, state)
        self.remain = False
        self.due: list[bytes] = []
        self.received: dict[tuple[int, bytes], Any] = {}
        self._stored: dict[tuple[int, bytes], bytes] = {}

    def look(self, snapshot: TransactionRead, limit: int) -> None:
        """Read whether the bucket has notes or retries, and the next retries: at most `limit` + 1, and about 200 kB."""
        if not self.may_exist:
            return
        bounds = [self._keys.of_bucket(each, *self._shape) for each in self._generations]
        notes = [snapshot.get_range(*each, limit=1) for each in bounds]
        retries = self._keys.retries.of_bucket(*self._shape)
        size = 0
        for row in snapshot.get_range(*retries, limit=limit + 1, streaming_mode=WANT_ALL):
            self.due.append(self._keys.retries.rest(row.key)[_HASH_BYTES:])
            size += len(row.key)
            if size > _DUE_BYTES:
                break
        self.remain = bool(self.due) or any(each.to_list() for each in notes)

    def read(
        self, snapshot: TransactionRead, encoded_keys: list[bytes], limit_bytes: int, *, are_due: bool = False
    ) -> list[bytes]:
        """Read the values of these keys that the observers last received; returns the first keys, up to a limit.

        The limit applies to the bytes of each read, and to the writes of `clear`, with `are_due` for each key.
        """
        if not self.may_exist:
            return encoded_keys
        encoded_keys = self._read(snapshot, encoded_keys, limit_bytes)
        if not (self._stored or are_due):
            return encoded_keys
        noted = {where for _, where in self._stored}
        rows = 2 + len(self._generations)
        costs = (
            rows * clear_bytes(self._keys.note(where)) if are_due or where in noted else 0
            for where in places(encoded_keys)
        )
        return encoded_keys[: fitting(costs, limit_bytes)]

    def read_all(self, snapshot: TransactionRead, encoded_keys: list[bytes]) -> None:
        """Read the last received values of all of these keys; the caller keeps to `share` bytes."""
        if self.may_exist:
            self._read(snapshot, encoded_keys, sys.maxsize)

    def share(self, limit_bytes: int) -> int:
        """The part of a limit for clears of values, so that with the clears of `clear` they keep to the limit."""
        return limit_bytes // (3 + len(self._generations)) if self.may_exist else limit_bytes

    def _read(self, snapshot: TransactionRead, encoded_keys: list[bytes], limit_bytes: int) -> list[bytes]:
        for generation in self._generations:
            prefix = self._keys.received(generation, b"")
            found = read_at_hashes(snapshot, prefix.__add__, encoded_keys, {}, limit_bytes)
            encoded_keys = prefix_read(encoded_keys, found)
            stored = zip(places(encoded_keys), map(found.get, encoded_keys), strict=True)
            self._stored |= {(generation, where): data for where, data in stored if data is not None}
        return encoded_keys

    def check(self, encoded_keys: Iterable[bytes]) -> None:
        """Decode the last received values of these keys into `received`; raises `CorruptData`."""
        for generation, where in self._of(encoded_keys):
            data = self._stored[generation, where]
            self.received[generation, where] = None if data == NOTHING else codec.decode(data)

    def generations_of(self, encoded_key: bytes) -> list[int]:
        """The generations of the observers that missed a report of the key, as read."""
        return [generation for generation, _ in self._of([encoded_key])]

    def clear(self, tr: Writer, encoded_keys: Iterable[bytes], *, are_due: bool = False) -> None:
        """Clear the notes of these keys, as this pass reports them; with `are_due` also their retries."""
        if not self._stored and not are_due:
            return
        for encoded in encoded_keys:
            where, generations = place(encoded), self.generations_of(encoded)
            if generations or are_due:
                tr.clear(self._keys.note(where))
                tr.clear(self._keys.retry(where))
            for generation in generations:
                tr.clear(self._keys.received(generation, where))

    def note(
        self, tr: Writer, encoded_key: bytes, failure: KeyFailure, received: Mapping[int, bytes]
    ) -> None:
        """Note that some observers miss a report of a key; `received` has the encoded value each received last.

        A note of an earlier missed report stays valid: the observer has received no later value. An observer that never
        received a now deleted key has missed no report, so its note is cleared.
        """
        where = place(encoded_key)
        missing = [generation for generation in received if generation in self._generations]
        if received and not missing:
            return
        for generation in missing:
            stored = self._stored.get((generation, where))
            if stored is None:
                tr.set(self._keys.received(generation, where), received[generation])
            elif stored == NOTHING:
                tr.clear(self._keys.received(generation, where))
        tr.clear(self._keys.retry(where))
        tr.set(self._keys.note(where), codec.encode(failure.to_stored()))
        self.remain = True

    def _of(self, encoded_keys: Iterable[bytes]) -> list[tuple[int, bytes]]:
        """(generation, place) of each missed report of these keys, as read."""
        if not self._stored:
            return []
        return [
            (generation, where)
            for where in map(place, encoded_keys)
            for generation in self._generations
            if (generation, where) in self._stored
        ]


def as_received(
    changes: Sequence[tuple[bytes, Change]], generation: int, received: Mapping[tuple[int, bytes], Any]
) -> list[Change]:
    """Changes for one observer: `old` is the value that it last received; without changes to an equal value."""
    if not received:
        return [change for _, change in changes]
    seen = [replace(change, old=received.get((generation, where), change.old)) for where, change in changes]
    return [change for change in seen if not _is_same(change.old, change.new)]


def _is_same(left: Any, right: Any) -> bool:
    if left is None or right is None:
        return left is right
    return codec.encode(left) == codec.encode(right) or codec.is_same(left, right)


# Commands of operators


def read_missed(
    tr: TransactionRead, name: str, encoded: bytes | None = None, *, limit: int = 0
) -> list[tuple[bytes, KeyFailure]]:
    """The keys with missed reports, as [(encoded key, failure)], in hash order; of one key or of all keys."""
    rows = tr.get_range(*notes_of(name, encoded), limit=limit)
    return [_missed(name, row.key, row.value) for row in rows]


def each_missed(db: Database, name: str, encoded: bytes | None = None) -> Iterator[tuple[bytes, KeyFailure]]:
    """What `read_missed` returns, in many transactions."""
    return (_missed(name, *row) for row in scan_rows(db, *notes_of(name, encoded)))


def notes_of(name: str, encoded: bytes | None) -> tuple[bytes, bytes]:
    """The range of the notes of one key or of all keys."""
    keys = MissedKeys(name)
    return keys.notes() if encoded is None else (note := keys.note(place(encoded)), after(note))


def _missed(name: str, key: bytes, value: bytes) -> tuple[bytes, KeyFailure]:
    return MissedKeys(name).notes.rest(key)[_HASH_BYTES:], _failure(value)


def take_note(tr: Transaction, name: str, encoded: bytes, *, retry: bool) -> bool:
    """Have workers report a key again, whose note the caller clears, with `retry` and if an observer missed its report.

    Returns whether it is reported, or dropped. These reads conflict with a pass that clears the note. Otherwise a retry
    could be written into a bucket whose state says that it has no notes, and passes over such a bucket do not look for
    retries.
    """
    config, keys, where = read_config(tr, name), MissedKeys(name), place(encoded)
    if not retry:
        return True
    reads = [tr.get(keys.received(each.generation, where)) for each in config.observers]
    is_missed = any(each.present() for each in reads)
    if is_missed:
        tr.set(keys.retry(where), b"")
        notify(tr, config, [bucket_of(encoded, config.buckets)])
    return is_missed


def lacks_values(tr: TransactionRead, name: str, generation: int) -> bool:
    """Whether an observer misses values of its backfill; not those that the operator has dropped.

    Also True if the queue has 1,000 or more missed reports, whichever observer misses them.
    """
    keys = MissedKeys(name)
    found = [(kind, tr.get_range(*kind(), limit=_MAX_LOOKED_AT)) for kind in (keys.notes, keys.retries)]
    wheres = [kind.rest(row.key) for kind, rows in found for row in rows]
    received = [tr.get(keys.received(generation, where)) for where in wheres]
    return len(wheres) >= _MAX_LOOKED_AT or any(each.value == NOTHING for each in received)


def forget_missed(tr: Transaction, name: str, kept: Collection[int]) -> None:
    """Clear the missed reports of all other generations of observers; and all errors, if the kept ones missed none."""
    keys = MissedKeys(name)
    begin, end = keys.of_generations()
    for generation in sorted(kept):
        first, following = keys.of_generation(generation)
        tr.clear_range(begin, first)
        begin = following
    tr.clear_range(begin, end)
    # With read conflicts: a pass that notes a missed report must not commit in between.
    if not any(tr.get_range(*keys.of_generation(generation), limit=1).to_list() for generation in kept):
        tr.clear_range(*keys.notes())
        tr.clear_range(*keys.retries())


def _failure(value: bytes) -> KeyFailure:
    try:
        return KeyFailure.from_stored(codec.decode(value))
    except CorruptData as error:
        return KeyFailure(f"{error}: {value[:40]!r}")
