"""Checks of current values, staged updates, and updates set aside."""

from __future__ import annotations

from functools import partial
from typing import Any

from cq.combiners import BUILT_IN
from cq.config.queue import QueueConfig
from cq.encoding import codec
from cq.encoding.hashing import bucket_at, key_hash
from cq.errors import CorruptData
from cq.store.api import KeyValue
from cq.verify.layout import parse_aside, parse_value
from cq.verify.queued import check_type, key_of, shown_key
from cq.verify.repairs import notify, renew_states, rewrite_state, set_bytes_aside, set_updates_aside
from cq.verify.verification import Piece


def check_value(piece: Piece, rest: bytes, found: KeyValue) -> bytes | None:
    """Check that a current value has a key of the queue, the key's hash and the queue's type, and is not empty."""
    parsed = _parsed(piece, "value", rest, found)
    if parsed is None:
        return None
    hashed, _, key = parsed
    try:
        value = codec.decode(found.value)
        check_type(piece.config, value)
    except CorruptData as error:
        piece.report("value-unreadable", found.key, str(error), key=key)
        return None
    if _is_empty(piece, value):
        fix = partial(_clear, piece, found.key, hashed)
        piece.report("value-empty", found.key, f"{value!r:.80} means no value", fix, key=key)
    return None


def check_staged(piece: Piece, rest: bytes, found: KeyValue) -> bytes | None:
    """Check staged updates as current values; the bucket's state must say that they exist, or no pass reads them."""
    parsed = _parsed(piece, "staged", rest, found)
    if parsed is None:
        return None
    hashed, encoded, key = parsed
    try:
        value = codec.decode(found.value)
        # An application's combiner may fold updates into a result of any type before it makes a value.
        if piece.config.combiner.name in BUILT_IN:
            check_type(piece.config, value, or_delete=True)
    except CorruptData as error:
        fix = partial(_move_aside, piece, found, hashed, encoded, "staged updates that cannot be read")
        piece.report("staged-unreadable", found.key, str(error), fix, key=key)
        return None
    shapes = [(config, bucket_at(hashed, config.buckets)) for config in piece.shapes]
    states = [piece.state(config.generation, bucket) for config, bucket in shapes]
    # During a rebucketing either shape can have staged the updates. An unreadable state is a separate difference.
    if not any(state is None or state.staged for state in states):
        config, bucket = shapes[-1]
        piece.report(
            "staged-unseen",
            found.key,
            f"the state of bucket {bucket} says that no updates are staged",
            partial(_mark_staged, piece, config, bucket),
            key=key,
        )
    return None


def check_aside(piece: Piece, rest: bytes, found: KeyValue) -> bytes | None:
    """Check that a piece set aside is an error and updates, under the key's hash."""
    try:
        hashed, encoded = parse_aside(rest)
        content = codec.decode(found.value)
        if not isinstance(content, list) or not content or not isinstance(content[0], str):
            raise CorruptData("it is not an error and updates")
    except CorruptData as error:
        piece.report(
            "aside-unreadable", found.key, str(error), partial(_set_aside_again, piece, found, b"", None)
        )
        return None
    if hashed != key_hash(encoded):
        key = shown_key(piece.config, encoded)
        fix = partial(_set_aside_again, piece, found, encoded, content)
        piece.report("aside-astray", found.key, "it is not stored under the hash of its key", fix, key=key)
    return None


def _parsed(piece: Piece, kind: str, rest: bytes, found: KeyValue) -> tuple[int, bytes, Any] | None:
    """Parse the key of a row: hash, encoded key and key; report a difference and return None if it is invalid."""
    try:
        hashed, encoded = parse_value(rest)
    except CorruptData as error:
        piece.report(f"{kind}-key", found.key, str(error), partial(_set_short_aside, piece, rest, found))
        return None
    try:
        key = key_of(piece.config, encoded)
    except CorruptData as error:
        fix = partial(_move_aside, piece, found, hashed, b"", "of a key of another type than the queue's")
        piece.report(f"{kind}-key", found.key, str(error), fix)
        return None
    if hashed != key_hash(encoded):
        fix = partial(
            _move_aside, piece, found, hashed, encoded, "it was not stored under the hash of its key"
        )
        piece.report(f"{kind}-astray", found.key, "it is not stored under the hash of its key", fix, key=key)
        return None
    return hashed, encoded, key


def _is_empty(piece: Piece, value: Any) -> bool:
    try:
        return piece.combiner is not None and piece.combiner.is_empty(value)
    except Exception:  # noqa: BLE001 - an application's combiner may not accept a damaged value
        return False


def _clear(piece: Piece, key: bytes, hashed: int) -> None:
    piece.tr.clear(key)
    renew_states(piece, hashed)


def _move_aside(piece: Piece, found: KeyValue, hashed: int, encoded: bytes, error: str) -> None:
    """Set a row aside; on a retry it counts as an update of its key."""
    try:
        set_updates_aside(
            piece, encoded, error, [codec.decode(found.value)] if encoded else [found.key, found.value]
        )
    except CorruptData:
        set_updates_aside(piece, encoded, error, [found.value])
    piece.tr.clear(found.key)
    renew_states(piece, hashed, key_hash(encoded))


def _set_short_aside(piece: Piece, rest: bytes, found: KeyValue) -> None:
    set_bytes_aside(piece, f"stored under a key that is too short: {rest!r}", found.value)
    piece.tr.clear(found.key)


def _mark_staged(piece: Piece, config: QueueConfig, bucket: int) -> None:
    rewrite_state(piece, config.generation, bucket, staged=True)
    notify(piece, config.generation, bucket)


def _set_aside_again(piece: Piece, found: KeyValue, encoded: bytes, content: list[Any] | None) -> None:
    """Set a piece aside again, under its key's hash; set unreadable content aside without a key."""
    if content is None:
        set_bytes_aside(piece, "set aside before, but unreadable", found.value)
    else:
        set_updates_aside(piece, encoded, content[0], content[1:])
    piece.tr.clear(found.key)
