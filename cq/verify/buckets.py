"""Checks of the buckets: their states, and whether work has a notification.

A pass that writes values also writes its bucket's state. So a bucket of the first shape with values has a state, and so
has one of any shape whose values an observer has received under it. Without a state, the next pass would report all
values to the observers again, and repeat a purge.

A bucket with work must have a notification, so that a worker will come. Only a pass that leaves no work clears the
notification. So at every read version a bucket without a notification has no rows, no staged updates, no pending purge,
and no observer that must receive its values.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Final

from cq.admin.backfill import current_generation
from cq.admin.configure import start_rebuild
from cq.config.queue import ObserverConfig, QueueConfig
from cq.encoding import codec
from cq.errors import CorruptData
from cq.keys.missed import MissedKeys
from cq.queue.bucket_state import BucketState, fresh_token, has_new_purge, needs_conversion, needs_purge
from cq.verify.piece import Difference, Found, Piece, notify, stored_config
from cq.verify.verification import Verification

_BUCKETS: Final = 64
"""Buckets in a piece, at most."""


# States


def check_state(piece: Piece, found: Found) -> None:
    """Check that a bucket's state is of an existing bucket, and readable: otherwise no pass can run."""
    generation, bucket = found.fields
    shape = piece.shape(generation, bucket)
    if shape is None:
        raise CorruptData(f"of a missing bucket: {bucket} of generation {generation}")
    if piece.state(generation, bucket) is None:
        what = f"the state of bucket {bucket} of generation {generation} is not one that cq wrote"
        unknown = BucketState()
        converts = needs_conversion(shape, unknown)
        if converts:
            what += ", and only it has how far the values are converted to the new version of the combiner"
        elif has_new_purge(shape, unknown):
            what += ": if the latest purge had not ended, run it again after the repair"
        what += "" if converts else _repeated(_unswitched(piece))
        fix = None if converts else partial(_derive_state, piece, shape, bucket)
        piece.report("state-unreadable", found.key, what, fix)


def _derive_state(piece: Piece, shape: QueueConfig, bucket: int) -> None:
    """Write a state that is safe for the bucket: backfills begin again, those of all other observers are complete.

    A purge ends there: the values that it has left may be later ones.
    """
    staged = piece.tr.get_range(*piece.keys.all_staged.of_bucket(shape.buckets, bucket), limit=1).to_list()
    positions: dict[int, bytes | None] = {}
    config = stored_config(piece.tr, piece.keys, piece.name)  # a repair of another bucket may have changed it
    for each in config.observers:
        # The observer of totals has no backfill: it would add all slices a second time.
        if each.keeps_totals or current_generation(piece.tr, shape.name, each.name) == each.generation:
            positions[each.generation] = None
        elif each in piece.config.observers:
            # In this transaction: the observer may have received values of the bucket, and must not get them again.
            start_rebuild(piece.tr, stored_config(piece.tr, piece.keys, piece.name), each.name)
    is_purged = shape.purges.generation == shape.generation
    state = BucketState(
        token=fresh_token(),
        staged=bool(staged),
        observers=positions,
        purged=shape.purges.latest if is_purged else 0,
        missed=True,  # not known: the next pass reads the missed reports
    )
    piece.tr.set(piece.keys.state(shape.generation, bucket), state.to_bytes())
    notify(piece, shape.generation, bucket)  # the lost state may have recorded work


def _repeated(unswitched: list[ObserverConfig]) -> str:
    """A warning about what the repair of a state repeats: only the state has how far a backfill has come."""
    names = ", ".join(repr(each.name) for each in unswitched if not each.keeps_totals)
    return f"; a repair reports all values to {names} again, each as new" if names else ""


# Work and notifications


def check_buckets(verification: Verification) -> Iterator[Difference]:
    """Check that each bucket with work, of the queue's current and former shape, has a notification."""
    return verification.pages((0, 0), _check_next)


def _check_next(piece: Piece, begin: tuple[int, int]) -> tuple[int, int] | None:
    """Check the next buckets; return generation and number of the one after them, None after the last one."""
    places = (
        (shape, bucket)
        for shape in piece.shapes
        for bucket in range(shape.buckets)
        if (shape.generation, bucket) >= begin
    )
    unswitched = _unswitched(piece)
    for shape, bucket in islice(places, piece.share(_BUCKETS)):
        piece.checked += 1
        piece.begin(_check_bucket(piece, shape, bucket, unswitched))
    following = next(places, None)
    return None if following is None else (following[0].generation, following[1])


def _unswitched(piece: Piece) -> list[ObserverConfig]:
    """Return the observers in backfill: readers do not yet use the data of their generation."""
    stored = [
        (each, piece.snapshot.get(piece.keys.observer_current(each.name))) for each in piece.config.observers
    ]
    return [each for each, future in stored if future.value != codec.encode(each.generation)]


def _check_bucket(
    piece: Piece, shape: QueueConfig, bucket: int, unswitched: list[ObserverConfig]
) -> Iterator[None]:
    """Check that a bucket has its state, and a notification or no work."""
    get, get_range, queue = piece.snapshot.get, piece.snapshot.get_range, piece.keys
    notification = get(queue.notification(shape.generation, bucket))
    stored = get(queue.state(shape.generation, bucket))
    rows = get_range(*queue.rows(shape.generation, bucket), limit=1)
    values = get_range(*queue.values.of_bucket(shape.buckets, bucket), limit=1)
    retries = get_range(*MissedKeys(piece.name).retries.of_bucket(shape.buckets, bucket), limit=1)
    yield
    has_values = bool(values.to_list())
    if not stored.present() and has_values and _had_pass(piece.config, unswitched):
        what = f"bucket {bucket} of generation {shape.generation} has values, but no state{_repeated(unswitched)}"
        fix = partial(_derive_state, piece, shape, bucket)
        piece.report("state-missing", queue.state(shape.generation, bucket), what, fix)
        return
    if notification.present():
        return
    state = piece.state(shape.generation, bucket)
    reason = "queued rows" if rows.to_list() else ""
    if not reason and state is not None:
        reason = _pending_work(shape, state, unswitched, has_values=has_values)
    if not reason and shape.generation == piece.config.generation and retries.to_list():
        reason = "missed reports to retry"
    if reason:
        what = f"{reason} in bucket {bucket} of generation {shape.generation}, but no notification"
        fix = partial(notify, piece, shape.generation, bucket)
        piece.report("notification-missing", queue.notification(shape.generation, bucket), what, fix)


def _had_pass(config: QueueConfig, unswitched: list[ObserverConfig]) -> bool:
    """Whether each bucket with values has had a pass under its shape; False while passes of two shapes write values."""
    if config.former is not None:
        return False
    received = (each for each in config.observers if each not in unswitched)
    return config.generation == 1 or any(each.generation > config.backfilled_until for each in received)


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
