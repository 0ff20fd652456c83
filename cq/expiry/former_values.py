"""Gives a time to values that are older than the queue's expiry, a page in each transaction.

A key that has no update since the expiry was configured has no entry in the index. So workers read all values once, in
hash order, and write the entries that are missing. With an expiry after the latest update, the time of such a key is
the present time.

A page belongs to one bucket. Its transaction reads the bucket's state with a conflict and rewrites it, so it conflicts
with every pass over the bucket: the index cannot get two entries of a key.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from cq.config.expiry import UPDATE
from cq.config.queue import QueueConfig, read_config
from cq.encoding.hashing import bucket_at
from cq.errors import CorruptData
from cq.expiry.index import ExpiryIndex, IndexMove, index_cost
from cq.keys import QueueKeys, after
from cq.keys.expiry import hash_of
from cq.queue.bucket_state import BucketState, needs_purge
from cq.queue.missed_reports import renewed
from cq.store.api import WANT_ALL, Transaction, TransactionRead
from cq.store.sizes import fitting
from cq.store.transact import transactional

_KEYS: Final = 1_000
"""Values in a page, at most."""
_BYTES: Final = 1_000_000
"""Bytes of keys and values in a page, about."""
_HASH_BYTES: Final = 4
BLOCKED_SECONDS: Final = 1.0
"""The pause while the queue is rebucketed, or a bucket is purged."""


@transactional
def index_page(tr: Transaction, name: str) -> float | None:
    """Index the next page of former values; returns the seconds until the next page, None if all are indexed.

    Raises `QueueNotConfigured`.
    """
    config = read_config(tr, name)
    if config.expiry is None:
        return None
    index = ExpiryIndex(tr.snapshot, config, config.expiry)
    progress = tr.get(index.keys.progress).value
    if progress is None:
        return None
    if config.former is not None:  # a pass over a bucket of either shape may combine a key
        return BLOCKED_SECONDS
    places = _next_places(tr.snapshot, config, progress)
    if not places:
        tr.clear(index.keys.progress)
        return None
    bucket = bucket_at(hash_of(places[0]), config.buckets)
    places = [where for where in places if bucket_at(hash_of(where), config.buckets) == bucket]
    state_key = QueueKeys(name).state(config.generation, bucket)
    state = BucketState.from_bytes(tr.get(state_key).value)
    if needs_purge(config, state):
        return BLOCKED_SECONDS
    index.write(tr, _missing(tr.snapshot, index, places))
    tr.set(index.keys.progress, places[-1])
    tr.set(state_key, renewed(config, state).to_bytes())
    return 0.0


def _next_places(snapshot: TransactionRead, config: QueueConfig, progress: bytes) -> list[bytes]:
    """The places of the next values after a place, as many as one transaction can index."""
    queue = QueueKeys(config.name)
    begin, prefix = after(queue.value_at(progress)), len(queue.value_at(b""))
    places: list[bytes] = []
    size = 0
    for row in snapshot.get_range(begin, queue.values()[1], limit=_KEYS, streaming_mode=WANT_ALL):
        if len(row.key) - prefix > _HASH_BYTES:  # else cq has not written it
            places.append(row.key[prefix:])
        size += len(row.key) + len(row.value)
        if size > _BYTES:
            break
    copies, each = index_cost(config)
    return places[: fitting(copies * len(where) + each for where in places)] if places else []


def _missing(snapshot: TransactionRead, index: ExpiryIndex, places: Sequence[bytes]) -> list[IndexMove]:
    """The entries that these keys lack."""
    if index.spec.by == UPDATE:
        first, last = index.keys.time(places[0]), index.keys.time(places[-1])
        rows = snapshot.get_range(first, after(last), streaming_mode=WANT_ALL)
        present = {index.keys.times.rest(row.key) for row in rows}
        return [IndexMove(where, None, index.present_time) for where in places if where not in present]
    moves = []
    for where in places:
        with suppress(CorruptData):  # `cq verify` reports such a key
            moves.append(IndexMove(where, None, index.time_in_key(where[_HASH_BYTES:])))
    return moves
