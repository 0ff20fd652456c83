"""Checks of the store's own keys, and of keys that belong to no configured queue."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from cq import keys
from cq.config.store_id import STORE_ID_BYTES
from cq.errors import InvalidConfiguration
from cq.keys import QueueKeys, after, prefix_end
from cq.keys.cell import CELLS
from cq.keys.feed import is_of_feeds
from cq.keys.link import name_of, queue_names_below
from cq.keys.membership import WORKER_ID_BYTES, WORKERS_CHANGED, workers
from cq.verify import layout
from cq.verify.piece import Difference, Found, Piece, clear
from cq.verify.verification import Verification

_QUEUES: Final = 50
"""Queues in a piece, at most."""
_SINGLE: Final = {
    keys.CHANGED: keys.VERSIONSTAMP_BYTES,
    WORKERS_CHANGED: keys.VERSIONSTAMP_BYTES,
    keys.STORE_ID: STORE_ID_BYTES,
}


def check_store(verification: Verification) -> Iterator[Difference]:
    """Check the store's own keys, and that each queue with data is configured and listed."""
    begin, end = queue_names_below()
    yield from verification.walk(keys.ROOT, CELLS, _check_store_key)
    # Skip the data of users in cells: it can be large, and belongs to the application.
    yield from verification.walk(prefix_end(CELLS), begin, _check_store_key)
    yield from verification.pages(begin, _check_queues)
    yield from verification.walk(end, prefix_end(keys.ROOT), _check_store_key)


def _check_store_key(piece: Piece, row: Found) -> None:
    if row.key.startswith(keys.QUEUES):
        _check_listed(piece, row)
    elif row.key in _SINGLE:
        if len(row.value) != _SINGLE[row.key]:
            piece.report("store-key", row.key, f"{_SINGLE[row.key]} bytes are expected")
    elif not _is_worker(row.key) and not is_of_feeds(row.key):
        piece.report("unknown-key", row.key, "cq writes no key with this beginning")


def _is_worker(key: bytes) -> bool:
    """Return whether this is the key of a worker's row, whose value a later version of cq may have written."""
    return key.startswith(workers()[0]) and len(workers.rest(key)) == WORKER_ID_BYTES


def _check_listed(piece: Piece, row: Found) -> None:
    """Check that a listed queue is configured."""
    fix = partial(clear, piece, row)
    name = keys.queue_of_entry(row.key)
    if name is None:
        piece.report("listing", row.key, "not the name of a queue", fix)
        return
    what = f"queue {name!r} is listed but not configured"
    piece.require(QueueKeys(name).config, "listing", row.key, what, fix)


def _check_queues(piece: Piece, begin: bytes) -> bytes | None:
    """Check the next names that have any key; return where to continue."""
    end = queue_names_below()[1]
    for _ in range(piece.share(_QUEUES)):
        # One read for each name: the next search begins after all keys of this one.
        first = piece.snapshot.get_range(begin, end, limit=1).to_list()
        if not first:
            return None
        piece.checked += 1
        begin = _check_name(piece, first[0].key)
    return begin


def _check_name(piece: Piece, first: bytes) -> bytes:
    """Check the keys under the name of this key; return where the next name may begin."""
    try:
        name = name_of(first)
        queue = QueueKeys(name)
    except InvalidConfiguration:
        queue = None
    if queue is None or not first.startswith(queue.prefix):
        what = "below the keys of all queues, but without a valid name of a queue"
        piece.report("unknown-key", first, what)
        return after(first)
    if not piece.snapshot.get(queue.config).present():
        _check_orphans(piece, name, queue.prefix)
    elif not piece.snapshot.get(keys.queue_entry(name)).present():
        what = f"queue {name!r} is configured but not listed"
        piece.report("listing", keys.queue_entry(name), what, partial(_list, piece, name))
    return prefix_end(queue.prefix)


def _list(piece: Piece, name: str) -> None:
    piece.tr.set(keys.queue_entry(name), b"")
    piece.stamp(keys.CHANGED)


def _check_orphans(piece: Piece, name: str, prefix: bytes) -> None:
    """Report the first key under a name without a queue that cannot exist without the queue."""
    place: bytes | None = prefix
    end = prefix_end(prefix)
    while place is not None and (rows := piece.snapshot.get_range(place, end, limit=1).to_list()):
        place = layout.after_orphans(prefix, rows[0].key[len(prefix) :])
        if place is None:
            what = f"a key of queue {name!r}, which is not configured"
            piece.report("unknown-queue", rows[0].key, what)
