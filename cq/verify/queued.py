"""Checks of queued rows, notifications, and the markers of operation ids."""

from __future__ import annotations

from functools import partial
from typing import Any

from cq.config.queue import QueueConfig
from cq.encoding.codec import DELETE, shown
from cq.encoding.hashing import bucket_of, key_hash
from cq.errors import CorruptData, InvalidData
from cq.failure import KeyFailure
from cq.keys import VERSIONSTAMP_BYTES, parse_flush, version_of
from cq.keys.queue import later_than
from cq.queue.requests import is_request
from cq.queue.rows import Row, decode_row, encode_row
from cq.verify.layout import RowPlace, parse
from cq.verify.piece import (
    FROM_THE_FUTURE,
    Found,
    Piece,
    notify,
    rewrite_state,
    set_bytes_aside,
    set_updates_aside,
)


def key_of(config: QueueConfig, encoded: bytes) -> Any:
    """Decode a key; raise `CorruptData` unless the bytes are the queue's own encoding of a key of its type."""
    key = config.key.decode(encoded)
    try:
        again = config.key.encoder()(key)
    except InvalidData as error:
        raise CorruptData(str(error)) from None
    if again != encoded:
        raise CorruptData(f"the key {key!r:.80} has an encoding that cq does not write")
    return key


def key_at(config: QueueConfig, hashed: int, encoded: bytes) -> Any:
    """Decode a key as `key_of`; raise `CorruptData` also if this is not its hash."""
    check_hash(hashed, encoded)
    return key_of(config, encoded)


def check_hash(hashed: int, encoded: bytes) -> None:
    """Raise `CorruptData` if this is not the hash of a key."""
    if hashed != key_hash(encoded):
        raise CorruptData("it is not stored under the hash of its key")


def shown_key(config: QueueConfig, encoded: bytes) -> Any:
    """Decode a key; return None if the bytes are not a key of the queue's type."""
    try:
        return key_of(config, encoded)
    except CorruptData:
        return None


def check_type(config: QueueConfig, value: Any, *, or_delete: bool = False) -> None:
    """Raise `CorruptData` unless a value is of the queue's type, or a deletion if `or_delete` allows it."""
    if or_delete and value is DELETE and config.takes_delete:
        return
    try:
        config.value.check(value)
    except InvalidData as error:
        raise CorruptData(str(error)) from None


def refuse_future(piece: Piece, versionstamp: bytes) -> None:
    """Raise `CorruptData` if a versionstamp is later than the piece."""
    if version_of(versionstamp) > piece.version:
        raise CorruptData(FROM_THE_FUTURE)


# Queued rows


def check_row(piece: Piece, found: Found) -> bytes | None:
    """Check that a queued row is in an existing bucket, not from the future, and holds updates of this bucket."""
    at = RowPlace(*found.fields)
    row = decode_row(found.key, found.value)
    version = version_of(at.versionstamp)
    shape = piece.shape(at.generation, at.bucket)
    if version > piece.version:
        what = f"{len(row.updates):,} updates are {FROM_THE_FUTURE}"
        piece.report("row-future", found.key, what, partial(_set_row_aside, piece, at, row, what))
    elif shape is None:
        where = f"{at.bucket} of generation {at.generation}"
        what = f"{len(row.updates):,} updates are in a missing bucket: {where}"
        piece.report("row-lost", found.key, what, partial(_set_row_aside, piece, at, row, what))
    else:
        _check_updates(piece, shape, at, row)
        if version > piece.began:
            # Skip the rows added since the verification began: else adders could keep it busy forever.
            return later_than(piece.keys.rows(at.generation, at.bucket)[0], piece.future)
    return None


def _check_updates(piece: Piece, shape: QueueConfig, at: RowPlace, row: Row) -> None:
    errors = [(update, error) for update in row.updates if (error := _error_of(shape, at.bucket, update))]
    if errors:
        (encoded, _), error = errors[0]
        what = f"the queue does not take {len(errors):,} updates: {error}"
        fix = partial(_set_some_aside, piece, shape, at, row)
        piece.report("row-update", row.key, what, fix, key=shown_key(shape, encoded))


def _error_of(config: QueueConfig, bucket: int, update: tuple[bytes, Any]) -> str:
    """Return the reason why a bucket of the queue does not take an update; empty: it does."""
    encoded, value = update
    try:
        key_of(config, encoded)
        if bucket_of(encoded, config.buckets) != bucket:
            raise CorruptData(f"in bucket {bucket}, to which its key does not belong")
        if config.decider is None:
            check_type(config, value, or_delete=True)
        elif not is_request(value):
            raise CorruptData(f"expected a request, got: {shown(value)}")
    except CorruptData as error:
        return str(error)
    return ""


def _set_some_aside(piece: Piece, shape: QueueConfig, at: RowPlace, row: Row) -> None:
    """Set the updates of a row aside that the queue does not take; the others stay."""
    valid = []
    for position, update in enumerate(row.updates):
        if error := _error_of(shape, at.bucket, update):
            _set_update_aside(piece, shape, update, error)
        else:
            valid.append(position)
    _clear_row(piece, at.generation, at.bucket, row.key)
    if valid:
        piece.tr.set(row.key, encode_row(row, valid))


def _set_row_aside(piece: Piece, at: RowPlace, row: Row, error: str) -> None:
    """Set all updates of a row aside."""
    for update in row.updates:
        _set_update_aside(piece, piece.config, update, error)
    _clear_row(piece, at.generation, at.bucket, row.key)


def _set_update_aside(piece: Piece, config: QueueConfig, update: tuple[bytes, Any], error: str) -> None:
    encoded, value = update
    if shown_key(config, encoded) is None:
        set_updates_aside(piece, b"", KeyFailure(error), [encoded, value])
    else:
        set_updates_aside(piece, encoded, KeyFailure(error), [value])


def set_unreadable_aside(piece: Piece, found: Found) -> None:
    """Set the bytes of an unreadable row aside."""
    set_bytes_aside(piece, KeyFailure("a queued row that cannot be read"), found.value)
    try:
        generation, bucket = parse("g4 bucket4", found.rest[:8])
    except CorruptData:  # the key has no bucket either
        piece.tr.clear(found.key)
    else:
        _clear_row(piece, generation, bucket, found.key)


def _clear_row(piece: Piece, generation: int, bucket: int, key: bytes) -> None:
    piece.tr.clear(key)
    if piece.shape(generation, bucket) is not None:
        rewrite_state(piece, generation, bucket)


# Notifications


def check_notification(piece: Piece, found: Found) -> None:
    """Check that a notification is of an existing bucket; `cq.verify.buckets` finds missing notifications."""
    generation, bucket = found.fields
    if piece.shape(generation, bucket) is None:
        raise CorruptData(f"of a missing bucket: {bucket} of generation {generation}")
    if len(found.value) != VERSIONSTAMP_BYTES:
        fix = partial(notify, piece, generation, bucket)
        piece.report("notification", found.key, "not a versionstamp", fix)


# Operation ids


def check_marker(piece: Piece, found: Found) -> None:
    """Check that a marker of an operation id is not from the future: it would keep the operation from counting."""
    refuse_future(piece, found.fields[1])


def check_emitter(piece: Piece, found: Found) -> None:
    """Check that an emitter's latest flush is not from the future: it would never be trimmed."""
    versionstamp, _ = parse_flush(found.value)
    refuse_future(piece, versionstamp)
