"""What a verification looks at beside its queue: the store's own keys, and what belongs to no queue that there is."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from cq import keys
from cq.config.queue import QueueConfig
from cq.config.store_id import STORE_ID_BYTES
from cq.errors import CodeMismatch, CorruptData, InvalidConfiguration
from cq.keys import QueueKeys, after, prefix_end
from cq.keys.cell import CELLS
from cq.keys.feed import is_of_feeds
from cq.store.api import KeyValue
from cq.verify import layout
from cq.verify.verification import Difference, Piece, Verification

_QUEUES: Final = 50
"""Of a piece, at most."""
_SINGLE: Final = {
    keys.CHANGED: keys.VERSIONSTAMP_BYTES,
    keys.WORKERS_CHANGED: keys.VERSIONSTAMP_BYTES,
    keys.STORE_ID: STORE_ID_BYTES,
}


def check_configuration(verification: Verification) -> Iterator[Difference]:
    """The part that looks whether the queue's configuration can be read, which all others need."""
    verification.part = "configuration"
    _, differences = verification.piece(lambda piece: piece.config)
    yield from differences


def check_store(verification: Verification) -> Iterator[Difference]:
    """The part that looks at the store's own keys, and that each queue with data is configured and listed."""
    verification.part = "store"
    begin, end = layout.below_all_queues()
    yield from verification.walk(keys.ROOT, CELLS, _check_store_key)
    # What users have in cells may be much, and is the application's.
    yield from verification.walk(prefix_end(CELLS), begin, _check_store_key)
    place: bytes | None = begin
    while place is not None:
        place, differences = verification.piece(partial(_check_queues, verification, begin=place))
        yield from differences
    yield from verification.walk(end, prefix_end(keys.ROOT), _check_store_key)


def _check_store_key(piece: Piece, row: KeyValue) -> bytes | None:
    if row.key.startswith(keys.QUEUES):
        _check_listed(piece, row)
    elif row.key in _SINGLE:
        if len(row.value) != _SINGLE[row.key]:
            piece.report("store-key", row.key, f"{_SINGLE[row.key]} bytes are expected")
    elif not _is_worker(row.key) and not is_of_feeds(row.key):
        piece.report("unknown-key", row.key, "no key of cq's begins so")
    return None


def _is_worker(key: bytes) -> bool:
    """Whether it is the key of a worker's row; the row may be one of a later version of cq."""
    return key.startswith(keys.workers()[0]) and len(keys.worker_of(key)) == keys.WORKER_ID_BYTES


def _check_listed(piece: Piece, row: KeyValue) -> None:
    """A queue that is listed is configured."""
    clear = partial(piece.tr.clear, row.key)
    try:
        name = keys.check_name(layout.queue_in_list(row.key))
    except (CorruptData, InvalidConfiguration) as error:
        piece.report("listing", row.key, str(error), clear)
        return
    config = piece.snapshot.get(QueueKeys(name).config)

    def look() -> None:
        if config.value is None:
            piece.report("listing", row.key, f"queue {name!r} is listed and not configured", clear)

    piece.defer(look)


def _check_queues(verification: Verification, piece: Piece, begin: bytes) -> bytes | None:
    """Look at the next names that anything is kept under; returns where to go on."""
    end = layout.below_all_queues()[1]
    for _ in range(verification.share(_QUEUES)):
        first = piece.snapshot.get_range(begin, end, limit=1).to_list()
        if not first:
            return None
        piece.checked += 1
        begin = _check_name(piece, first[0].key)
    return begin


def _check_name(piece: Piece, first: bytes) -> bytes:
    """Look at what is kept under the name of this key; returns where the next name may begin."""
    try:
        name, prefix = layout.queue_of(first)
        queue = QueueKeys(name)
    except (CorruptData, InvalidConfiguration):
        piece.report(
            "unknown-key", first, "below the keys of all queues, and of no name that a queue can have"
        )
        return after(first)
    stored = piece.snapshot.get(queue.config).value
    if stored is None:
        _check_orphans(piece, name, prefix)
    elif not piece.snapshot.get(keys.queue_entry(name)).present():
        fix = partial(_list, piece, name) if _is_readable(name, stored) else None
        piece.report("listing", keys.queue_entry(name), f"queue {name!r} is configured and not listed", fix)
    return prefix_end(prefix)


def _is_readable(name: str, stored: bytes) -> bool:
    try:
        QueueConfig.from_bytes(name, stored)
    except (CorruptData, CodeMismatch):
        return False
    return True


def _list(piece: Piece, name: str) -> None:
    piece.tr.set(keys.queue_entry(name), b"")
    piece.tr.set_versionstamped_value(keys.CHANGED, keys.INCOMPLETE_VERSIONSTAMP)


def _check_orphans(piece: Piece, name: str, prefix: bytes) -> None:
    """What is kept under a name that no queue has; the first key that cannot be so is told of."""
    place, end = prefix, prefix_end(prefix)
    while row := next(iter(piece.snapshot.get_range(place, end, limit=1)), None):
        rest = row.key[len(prefix) :]
        if not layout.may_outlive_queue(rest):
            piece.report("unknown-queue", row.key, f"kept for a queue {name!r} that is not configured")
            return
        place = layout.key_after_part(prefix, rest)
