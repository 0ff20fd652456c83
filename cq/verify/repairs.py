"""Repairs: they derive data from what the store has, and drop no update.

Each transaction except a pass that changes rows, values or staged updates must read and rewrite the state of each
bucket that it touches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from cq.encoding import codec
from cq.encoding.hashing import bucket_at, overlapping
from cq.errors import CorruptData, InvalidData
from cq.failure import KeyFailure
from cq.queue.bucket_state import BucketState
from cq.queue.missed_reports import renewed
from cq.queue.set_aside import set_aside
from cq.verify.piece import Found, Piece

_RAW_BYTES: Final = 50_000


def renew_states(piece: Piece, *hashes: int) -> None:
    """Give the buckets of these hashes new tokens, so that concurrent passes over them conflict and begin again."""
    for config in piece.shapes:
        for bucket in {bucket_at(each, config.buckets) for each in hashes}:
            rewrite_state(piece, config.generation, bucket)


def rewrite_state(piece: Piece, generation: int, bucket: int, **changes: Any) -> None:
    """Give a bucket's state a new token, and other changes; leave an unreadable state to its own repair.

    If the bucket is of the former shape, the current buckets that share hashes with it get new tokens, too: a
    concurrent pass over these may have found the former bucket without work, and has read values that will change.
    """
    states: list[tuple[tuple[int, int], Mapping[str, Any]]] = [((generation, bucket), changes)]
    shape, now = piece.shape(generation, bucket), piece.config
    if shape is not None and generation != now.generation:
        others = overlapping(shape.buckets, bucket, now.buckets)
        states += [((now.generation, other), {}) for other in others]
    for place, changed in states:
        if place in piece.renewed and not changed:
            continue
        key = piece.keys.state(*place)
        # A conflicting read: passes over the bucket write this key, so none commits between the check and the repair.
        with suppress(CorruptData):
            state = BucketState.from_bytes(piece.tr.get(key).value)
            state = renewed(piece.shape(*place) or now, state)
            piece.tr.set(key, replace(state, **changed).to_bytes())
            piece.renewed.add(place)


def notify(piece: Piece, generation: int, bucket: int) -> None:
    """Set a bucket's notification, so that a worker runs a pass."""
    piece.stamp(piece.keys.notification(generation, bucket))


def set_updates_aside(piece: Piece, encoded: bytes, failure: KeyFailure, updates: Sequence[Any]) -> None:
    """Set updates of a key aside; as bytes without a key if they cannot be encoded as updates."""
    with suppress(InvalidData):  # the decoder accepts some values that the encoder refuses
        if all(len(codec.encode(update)) <= codec.MAX_UPDATE_BYTES for update in updates):
            _set_aside(piece, encoded, failure, list(updates))
            return
    set_bytes_aside(piece, failure, b"".join(_raw(encoded, update) for update in updates))


def set_bytes_aside(piece: Piece, failure: KeyFailure, data: bytes) -> None:
    """Set bytes aside that are not updates."""
    pieces = [data[start : start + _RAW_BYTES] for start in range(0, len(data), _RAW_BYTES)]
    _set_aside(piece, b"", failure, pieces)


def set_row_aside(error: str) -> Callable[[Piece, Found], None]:
    """Return the repair that sets the bytes of a row aside."""

    def repair(piece: Piece, found: Found) -> None:
        set_bytes_aside(piece, KeyFailure(error), found.value or b"\x00")
        piece.tr.clear(found.key)

    return repair


def _set_aside(piece: Piece, encoded: bytes, failure: KeyFailure, updates: list[Any]) -> None:
    number = piece.set_aside[encoded]
    piece.set_aside[encoded] = set_aside(piece.tr, piece.keys, encoded, failure, updates, number)


def _raw(encoded: bytes, update: Any) -> bytes:
    return encoded + (update if isinstance(update, bytes) else repr(update).encode("utf-8", "replace"))
