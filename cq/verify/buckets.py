"""Checks of the buckets: a bucket with work must have a notification, so that a worker will come.

Only a pass that leaves no work clears the notification. So at every read version a bucket without a notification has no
rows, no staged updates, no pending purge, and no observer that must receive its values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Final

from cq.admin.purge import needs_purge
from cq.config.queue import ObserverConfig, QueueConfig
from cq.encoding import codec
from cq.keys.missed import MissedKeys
from cq.queue.bucket_state import BucketState
from cq.verify.repairs import notify
from cq.verify.verification import Difference, Piece, Verification

_BUCKETS: Final = 64
"""Buckets in a piece, at most."""

Place = tuple[int, int]
"""Generation and bucket."""


def check_buckets(verification: Verification) -> Iterator[Difference]:
    """Check each bucket of the queue's current and former shape."""
    verification.part = "buckets"
    place: Place | None = (0, 0)
    while place is not None:
        place, differences = verification.piece(partial(_check_next, verification, begin=place))
        yield from differences


def _check_next(verification: Verification, piece: Piece, begin: Place) -> Place | None:
    """Check the next buckets; return the one after them, None after the last one."""
    most = verification.share(_BUCKETS)
    places = (
        (shape, bucket)
        for shape in piece.shapes
        for bucket in range(shape.buckets)
        if (shape.generation, bucket) >= begin
    )
    unswitched = _unswitched(piece)
    following = list(islice(places, most + 1))
    for shape, bucket in following[:most]:
        piece.checked += 1
        piece.defer(_begin_check(piece, shape, bucket, unswitched))
    if len(following) <= most:
        return None
    shape, bucket = following[most]
    return shape.generation, bucket


def _unswitched(piece: Piece) -> list[ObserverConfig]:
    """Return the observers in backfill: readers do not yet use the data of their generation."""
    stored = [
        (each, piece.snapshot.get(piece.keys.observer_current(each.name))) for each in piece.config.observers
    ]
    return [each for each, future in stored if future.value != codec.encode(each.generation)]


def _begin_check(
    piece: Piece, shape: QueueConfig, bucket: int, unswitched: list[ObserverConfig]
) -> Callable[[], None]:
    """Begin to read a bucket; return the check of its work against its notification."""
    get, get_range, queue = piece.snapshot.get, piece.snapshot.get_range, piece.keys
    key = queue.notification(shape.generation, bucket)
    notification = get(key)
    rows = get_range(*queue.rows(shape.generation, bucket), limit=1)
    values = get_range(*queue.values_of_bucket(shape.buckets, bucket), limit=1)
    retries = get_range(*MissedKeys(piece.name).retries_of_bucket(shape.buckets, bucket), limit=1)

    def check() -> None:
        if notification.value is not None:
            return
        state = piece.state(shape.generation, bucket)
        reason = "queued rows" if rows.to_list() else ""
        if not reason and state is not None:
            reason = _pending_work(shape, state, unswitched, has_values=bool(values.to_list()))
        if not reason and shape.generation == piece.config.generation and retries.to_list():
            reason = "missed reports to retry"
        if reason:
            what = f"{reason} in bucket {bucket} of generation {shape.generation}, but no notification"
            piece.report("notification-missing", key, what, partial(notify, piece, shape.generation, bucket))

    return check


def _pending_work(
    shape: QueueConfig, state: BucketState, unswitched: list[ObserverConfig], *, has_values: bool
) -> str:
    """Return the work that a pass would find in a bucket without rows; empty: no work."""
    if state.staged:
        return "staged updates"
    if state.unfinished_since:
        return "an unfinished backlog"
    if needs_purge(shape, state):
        return "an unfinished purge"
    for each in shape.observers:
        cursor = state.observers.get(each.generation, b"")
        is_new = each.generation not in state.observers
        if is_new and each.generation <= shape.backfilled_until:
            continue  # its backfill was complete when this shape began
        if cursor is not None and (not is_new or has_values or each in unswitched):
            return f"values to report to the observer {each.name!r}"
    return ""
