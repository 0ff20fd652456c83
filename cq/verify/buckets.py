"""What a verification looks at in each bucket: whether a worker will come as long as there is something to do.

A notification goes only in the transaction of a pass that leaves nothing to do. So at any one version a bucket without
one has no rows, nothing staged, no purge before it, and no observer to be told of its values.
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
"""Of a piece, at most."""

Place = tuple[int, int]
"""Generation and bucket."""


def check_buckets(verification: Verification) -> Iterator[Difference]:
    """The part that looks at each bucket of each shape that the queue has."""
    verification.part = "buckets"
    place: Place | None = (0, 0)
    while place is not None:
        place, differences = verification.piece(partial(_check_next, verification, begin=place))
        yield from differences


def _check_next(verification: Verification, piece: Piece, begin: Place) -> Place | None:
    """Look at the next buckets; returns the one to go on with, None when these were the last."""
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
    """The observers whose data is not what readers use, as they are still being told of all values."""
    stored = [
        (each, piece.snapshot.get(piece.keys.observer_current(each.name))) for each in piece.config.observers
    ]
    return [each for each, future in stored if future.value != codec.encode(each.generation)]


def _begin_check(
    piece: Piece, shape: QueueConfig, bucket: int, unswitched: list[ObserverConfig]
) -> Callable[[], None]:
    """Read what a bucket has; what is returned tells whether a worker will come."""
    get, get_range, queue = piece.snapshot.get, piece.snapshot.get_range, piece.keys
    key = queue.notification(shape.generation, bucket)
    notification = get(key)
    rows = get_range(*queue.rows(shape.generation, bucket), limit=1)
    values = get_range(*queue.values_of_bucket(shape.buckets, bucket), limit=1)
    retries = get_range(*MissedKeys(piece.name).retries_of_bucket(shape.buckets, bucket), limit=1)

    def look() -> None:
        if notification.value is not None:
            return
        state = piece.state(shape.generation, bucket)
        reason = "rows wait" if rows.to_list() else ""
        if not reason and state is not None:
            reason = _pending_work(shape, state, unswitched, has_values=bool(values.to_list()))
        if not reason and shape.generation == piece.config.generation and retries.to_list():
            reason = "missed reports are to be retried"
        if reason:
            what = f"{reason} in bucket {bucket} of generation {shape.generation}, and no worker is told"
            piece.report("notification-missing", key, what, partial(notify, piece, shape.generation, bucket))

    return look


def _pending_work(
    shape: QueueConfig, state: BucketState, unswitched: list[ObserverConfig], *, has_values: bool
) -> str:
    """What a pass is to do in a bucket without rows; empty for nothing."""
    if state.staged:
        return "updates are staged"
    if state.unfinished_since:
        return "a backlog has not been read to its end"
    if needs_purge(shape, state):
        return "a purge is to be done"
    for each in shape.observers:
        cursor = state.observers.get(each.generation, b"")
        is_new = each.generation not in state.observers
        if is_new and each.generation <= shape.backfilled_until:
            continue
        if cursor is not None and (not is_new or has_values or each in unswitched):
            return f"the observer {each.name!r} is to be told of values"
    return ""
