"""Checks of current values, staged updates, and updates set aside."""

from __future__ import annotations

from functools import partial
from typing import Any

from cq.combiners import built_in_combiner
from cq.config.queue import Named, QueueConfig
from cq.encoding import codec
from cq.encoding.hashing import bucket_at, key_hash
from cq.errors import CorruptData
from cq.failure import KeyFailure
from cq.verify.expiry import check_value_expires
from cq.verify.layout import parse_aside, parse_value
from cq.verify.piece import Found, Piece
from cq.verify.queued import check_type, key_of, shown_key
from cq.verify.repairs import notify, renew_states, rewrite_state, set_updates_aside

_ASTRAY = "it is not stored under the hash of its key"


def check_value(piece: Piece, found: Found) -> None:
    """Check that a current value has a key of the queue, the key's hash and the queue's type, and is not empty."""
    hashed, encoded = parse_value(found.rest)
    key = key_of(piece.config, encoded)
    if not _is_at_hash(piece, "value-astray", found, key):
        return
    try:
        value = codec.decode(found.value)
        check_type(piece.config, value)
    except CorruptData as error:
        piece.report("value-unreadable", found.key, str(error), key=key)
        return
    check_value_expires(piece, key, encoded)
    if _is_empty(piece, value):
        fix = partial(_clear, piece, found.key, hashed)
        piece.report("value-empty", found.key, f"{value!r:.80} means no value", fix, key=key)


def _is_at_hash(piece: Piece, kind: str, found: Found, key: Any) -> bool:
    """Return whether a row is stored under the hash of its key; report the difference if it is not."""
    hashed, encoded = parse_value(found.rest)
    if hashed == key_hash(encoded):
        return True
    piece.report(kind, found.key, _ASTRAY, partial(_move_aside, piece, found, _ASTRAY), key=key)
    return False


def check_staged(piece: Piece, found: Found) -> None:
    """Check staged updates as current values; the bucket's state must say that they exist, or no pass reads them."""
    hashed, encoded = parse_value(found.rest)
    key = key_of(piece.config, encoded)
    if not _is_at_hash(piece, "staged-astray", found, key):
        return
    try:
        value = codec.decode(found.value)
        # An application's combiner may fold updates into a result of any type before it makes a value.
        if built_in_combiner(piece.config.combiner.name) is not None:
            check_type(piece.config, value, or_delete=True)
    except CorruptData as error:
        fix = partial(_move_aside, piece, found, "staged updates that cannot be read")
        piece.report("staged-unreadable", found.key, str(error), fix, key=key)
        return
    buckets = [bucket_at(hashed, config.buckets) for config in piece.shapes]
    states = [
        piece.state(config.generation, bucket) for config, bucket in zip(piece.shapes, buckets, strict=True)
    ]
    # During a rebucketing either shape can have staged the updates. An unreadable state is a separate difference.
    if not any(state is None or state.staged for state in states):
        what = f"the state of bucket {buckets[-1]} says that no updates are staged"
        fix = partial(_mark_staged, piece, piece.config, buckets[-1])
        piece.report("staged-unseen", found.key, what, fix, key=key)


def check_aside(piece: Piece, found: Found) -> None:
    """Check that a piece set aside is a failure and updates, under the key's hash."""
    hashed, encoded = parse_aside(found.rest)
    content = codec.decode(found.value)
    if not isinstance(content, list) or not content:
        raise CorruptData("it is not a failure and updates")
    failure = KeyFailure.from_stored(content[0])
    if hashed != key_hash(encoded):
        key = shown_key(piece.config, encoded)
        fix = partial(_move_to_hash, piece, found, encoded, failure, content[1:])
        piece.report("aside-astray", found.key, _ASTRAY, fix, key=key)


def _is_empty(piece: Piece, value: Any) -> bool:
    """Return whether a value means no value; False if the combiner is an application's, and was not given."""
    wanted = piece.config.combiner
    if piece.config.lists_keys or piece.config.decider is not None:  # its values are updates, or states
        return False
    for each in (piece.combiner, built_in_combiner(wanted.name)):
        # Another version of a combiner may treat other values as empty.
        if each is not None and Named(each.name, each.version) == wanted:
            try:
                return each.is_empty(value)
            except Exception:  # noqa: BLE001 - an application's combiner may not accept a damaged value
                return False
    return False


def _clear(piece: Piece, key: bytes, hashed: int) -> None:
    piece.tr.clear(key)
    renew_states(piece, hashed)


def _move_aside(piece: Piece, found: Found, error: str) -> None:
    """Set a row aside; on a retry it counts as an update of its key."""
    hashed, encoded = parse_value(found.rest)
    try:
        updates = [codec.decode(found.value)]
    except CorruptData:
        updates = [found.value]
    set_updates_aside(piece, encoded, KeyFailure(error), updates)
    piece.tr.clear(found.key)
    renew_states(piece, hashed, key_hash(encoded))


def set_key_aside(piece: Piece, found: Found) -> None:
    """Set a row aside whose key is not one of the queue: as bytes."""
    failure = KeyFailure("of a key of another type than the queue's")
    set_updates_aside(piece, b"", failure, [found.key, found.value])
    piece.tr.clear(found.key)
    renew_states(piece, int.from_bytes(found.rest[:4].ljust(4, b"\x00"), "big"))


def _mark_staged(piece: Piece, config: QueueConfig, bucket: int) -> None:
    rewrite_state(piece, config.generation, bucket, staged=True)
    notify(piece, config.generation, bucket)


def _move_to_hash(
    piece: Piece, found: Found, encoded: bytes, failure: KeyFailure, updates: list[Any]
) -> None:
    """Set a piece aside again, under its key's hash."""
    set_updates_aside(piece, encoded, failure, updates)
    piece.tr.clear(found.key)
