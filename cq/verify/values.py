"""What a verification looks at in what is kept by key: current values, staged updates, and what was set aside."""

from __future__ import annotations

from functools import partial
from typing import Any

from cq.combiners import BUILT_IN
from cq.config.queue import QueueConfig
from cq.encoding import codec
from cq.encoding.hashing import bucket_at, key_hash
from cq.errors import CorruptData
from cq.store.api import KeyValue
from cq.verify.layout import of_aside, of_value
from cq.verify.queued import check_type, key_of, shown_key
from cq.verify.repairs import keep, keep_raw, rewrite_state, touch, wake
from cq.verify.verification import Piece


def check_value(piece: Piece, rest: bytes, found: KeyValue) -> bytes | None:
    """A current value: of a key of the queue's, under the key's hash, of the queue's type, and not an empty one."""
    parsed = _parsed(piece, "value", rest, found)
    if parsed is None:
        return None
    hashed, _, key = parsed
    try:
        value = codec.decode(found.value)
        check_type(piece.config, value)
    except CorruptData as error:
        piece.found("value-unreadable", found.key, str(error), key=key)
        return None
    if _is_empty(piece, value):
        fix = partial(_clear, piece, found.key, hashed)
        piece.found("value-empty", found.key, f"{value!r:.80} stands for no value", fix, key=key)
    return None


def check_staged(piece: Piece, rest: bytes, found: KeyValue) -> bytes | None:
    """Staged updates: as current values; and the bucket's state says that they are there, or no pass would look."""
    parsed = _parsed(piece, "staged", rest, found)
    if parsed is None:
        return None
    hashed, encoded, key = parsed
    try:
        value = codec.decode(found.value)
        if (
            piece.config.combiner.name in BUILT_IN
        ):  # what others make of updates before a value may be anything
            check_type(piece.config, value, or_delete=True)
    except CorruptData as error:
        fix = partial(_move_aside, piece, found, hashed, encoded, "staged updates that cannot be read")
        piece.found("staged-unreadable", found.key, str(error), fix, key=key)
        return None
    shapes = [(config, bucket_at(hashed, config.buckets)) for config in piece.shapes]
    states = [piece.state(config.generation, bucket) for config, bucket in shapes]
    if not any(state is None or state.staged for state in states):
        config, bucket = shapes[-1]
        piece.found(
            "staged-unseen",
            found.key,
            f"the state of bucket {bucket} says that nothing is staged",
            partial(_tell_of_staged, piece, config, bucket),
            key=key,
        )
    return None


def check_aside(piece: Piece, rest: bytes, found: KeyValue) -> bytes | None:
    """A piece of what was set aside: an error and updates, under the key's hash."""
    try:
        hashed, encoded = of_aside(rest)
        content = codec.decode(found.value)
        if not isinstance(content, list) or not content or not isinstance(content[0], str):
            raise CorruptData("it holds no error and updates")
    except CorruptData as error:
        piece.found("aside-unreadable", found.key, str(error), partial(_keep_again, piece, found, b"", None))
        return None
    if hashed != key_hash(encoded):
        key = shown_key(piece.config, encoded)
        fix = partial(_keep_again, piece, found, encoded, content)
        piece.found("aside-astray", found.key, "it does not stand under the hash of its key", fix, key=key)
    return None


def _parsed(piece: Piece, kind: str, rest: bytes, found: KeyValue) -> tuple[int, bytes, Any] | None:
    """Hash, encoded key and key; None when that is a difference."""
    try:
        hashed, encoded = of_value(rest)
    except CorruptData as error:
        piece.found(f"{kind}-key", found.key, str(error), partial(_keep_short, piece, rest, found))
        return None
    try:
        key = key_of(piece.config, encoded)
    except CorruptData as error:
        fix = partial(_move_aside, piece, found, hashed, b"", "of a key that is none of the queue's")
        piece.found(f"{kind}-key", found.key, str(error), fix)
        return None
    if hashed != key_hash(encoded):
        fix = partial(
            _move_aside, piece, found, hashed, encoded, "it did not stand under the hash of its key"
        )
        piece.found(f"{kind}-astray", found.key, "it does not stand under the hash of its key", fix, key=key)
        return None
    return hashed, encoded, key


def _is_empty(piece: Piece, value: Any) -> bool:
    try:
        return piece.combiner is not None and piece.combiner.is_empty(value)
    except Exception:  # noqa: BLE001 - an application's, which may not expect what it is given
        return False


def _clear(piece: Piece, key: bytes, hashed: int) -> None:
    piece.tr.clear(key)
    touch(piece, hashed)


def _move_aside(piece: Piece, found: KeyValue, hashed: int, encoded: bytes, error: str) -> None:
    """Set what stands there aside; added again it counts as an update of its key."""
    try:
        keep(piece, encoded, error, [codec.decode(found.value)] if encoded else [found.key, found.value])
    except CorruptData:
        keep(piece, encoded, error, [found.value])
    piece.tr.clear(found.key)
    touch(piece, hashed, key_hash(encoded))


def _keep_short(piece: Piece, rest: bytes, found: KeyValue) -> None:
    keep_raw(piece, f"stood under a key too short: {rest!r}", found.value)
    piece.tr.clear(found.key)


def _tell_of_staged(piece: Piece, config: QueueConfig, bucket: int) -> None:
    rewrite_state(piece, config.generation, bucket, staged=True)
    wake(piece, config.generation, bucket)


def _keep_again(piece: Piece, found: KeyValue, encoded: bytes, content: list[Any] | None) -> None:
    """Set it aside anew; without a key what cannot be read."""
    if content is None:
        keep_raw(piece, "was set aside, and cannot be read", found.value)
    else:
        keep(piece, encoded, content[0], content[1:])
    piece.tr.clear(found.key)
