"""Checks of current values and of their expiry, of staged updates, and of updates set aside.

Each value of a queue with an expiry has one entry in the index, at the time of its key.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from cq.combiners import built_in_combiner
from cq.config.expiry import LATEST, UPDATE, ExpirySpec
from cq.config.queue import Named, QueueConfig
from cq.encoding import codec
from cq.encoding.codec import MAX_KEY_BYTES
from cq.encoding.hashing import bucket_at, key_hash
from cq.errors import CorruptData
from cq.expiry.index import ExpiryIndex, IndexMove
from cq.failure import KeyFailure
from cq.keys import place
from cq.keys.expiry import COUNT_BYTES, TIME_BYTES, ExpiryKeys, pack_time, parse_time
from cq.queue.bucket_state import needs_purge
from cq.store.api import Value
from cq.verify.layout import parse_by_letter
from cq.verify.piece import Found, Piece, Steps, notify, renew_states, rewrite_state, set_updates_aside
from cq.verify.queued import check_hash, check_type, key_at, shown_key

_HASH_BYTES: Final = 4
_EXPIRY: Final = {b"d": "time8 h4 key", b"l": "h4 key", b"c": "", b"p": "", b"x": ""}


def check_expiry(piece: Piece, found: Found) -> Steps:
    """Check an entry of the index, the stored time of a key, or the progress of workers that give times."""
    spec, kind = piece.config.expiry, found.rest[:1]
    *times, encoded = parse_by_letter(_EXPIRY, found.rest) or [None]
    if kind == b"x":  # it remains when the expiry is switched off
        parse_time(found.value)
        return
    if spec is None:
        raise CorruptData("the queue's keys do not expire")
    if encoded is None:
        _check_number(kind, found.value)
        return
    hashed = times.pop()
    key = key_at(piece.config, hashed, encoded)
    if not times:
        yield from _check_time(piece, spec, found, encoded)
        return
    (time,) = times
    if time > LATEST:
        raise CorruptData("it is not an entry of an expiry")
    stored = _stored_time(piece, spec, key, encoded)
    value = piece.snapshot.get(piece.keys.value(encoded))
    yield None
    is_other = (stored if isinstance(stored, bytes) else stored.value) != pack_time(time)
    if not value.present():
        fix = partial(_clear, piece, found.key, hashed)
        piece.report("expiry-extra", found.key, "an entry without a value", fix, key=key)
    elif is_other:
        fix = partial(_clear_former, piece, found.key, encoded, pack_time(time))
        piece.report("expiry-extra", found.key, "an entry at another time than the key's", fix, key=key)


def _check_number(kind: bytes, value: bytes) -> None:
    """Check the number of expired keys, or the progress: a place, which is empty at the beginning."""
    most = _HASH_BYTES + MAX_KEY_BYTES
    if not (len(value) == COUNT_BYTES if kind == b"c" else not value or _HASH_BYTES < len(value) <= most):
        raise CorruptData("it is not the number of expired keys, or the place of a key")


def _stored_time(piece: Piece, spec: ExpirySpec, key: Any, encoded: bytes) -> bytes | Value:
    if spec.by == UPDATE:
        return piece.snapshot.get(ExpiryKeys(piece.name).time_of(encoded))
    return pack_time(spec.time_of_key(key))


def _check_time(piece: Piece, spec: ExpirySpec, found: Found, encoded: bytes) -> Steps:
    """Check that a stored time is one, and has a value and an entry."""
    what = "it is not the time of a key's latest update"
    if spec.by != UPDATE:
        raise CorruptData(what)
    is_time = len(found.value) == TIME_BYTES and parse_time(found.value) <= LATEST
    hashed = key_hash(encoded)
    entry = ExpiryKeys(piece.name).entry_at(found.value, place(encoded))
    value, stored = piece.snapshot.get(piece.keys.value(encoded)), piece.snapshot.get(entry)
    yield None  # the rest after the entries, of which repairs may clear the one that this one writes
    if not value.present():
        fix = partial(_clear, piece, found.key, hashed)
        piece.report("expiry-extra", found.key, "the time of a key without a value", fix)
    elif not is_time:
        piece.report("expiry-key", found.key, what, partial(_renew_time, piece, spec, encoded))
    elif not stored.present():
        fix = partial(_set_entry, piece, entry, hashed)
        piece.report("expiry-missing", found.key, "a key with a time, but without an entry", fix)


def check_value_expires(piece: Piece, key: Any, encoded: bytes) -> None:
    """Check that a value has a time, and by key also an entry; its time is unknown until workers have given times."""
    spec = piece.config.expiry
    if spec is None or _is_pending(piece, encoded):
        return
    index = ExpiryIndex(piece.tr.snapshot, piece.config, spec)
    if spec.by == UPDATE:
        time, needed = index.present_time, index.keys.time_of(encoded)
    else:
        time = pack_time(spec.time_of_key(key))
        needed = index.keys.entry_at(time, place(encoded))
    fix = partial(_add, piece, index, IndexMove(place(encoded), None, time))
    what = "a value without an entry in the index of the expiry"
    piece.require(needed, "expiry-missing", needed, what, fix, key=key)


def _is_pending(piece: Piece, encoded: bytes) -> bool:
    """Whether a value may lack an entry: workers still give times, or a purge is to delete it."""
    if piece.snapshot.get(ExpiryKeys(piece.name).progress).present():
        return True
    bucket = bucket_at(key_hash(encoded), piece.config.buckets)
    state = piece.state(piece.config.generation, bucket)
    return state is None or needs_purge(piece.config, state)


# Repairs: each conflicts with passes over the key's bucket, which change the index, too


def _add(piece: Piece, index: ExpiryIndex, move: IndexMove) -> None:
    index.write(piece.tr, [move])
    renew_states(piece, key_hash(move.where[_HASH_BYTES:]))


def _renew_time(piece: Piece, spec: ExpirySpec, encoded: bytes) -> None:
    """Give a key whose time is lost the present one."""
    index = ExpiryIndex(piece.tr.snapshot, piece.config, spec)
    _add(piece, index, IndexMove(place(encoded), None, index.present_time))


def _clear(piece: Piece, key: bytes, hashed: int) -> None:
    piece.tr.clear(key)
    renew_states(piece, hashed)


def _clear_former(piece: Piece, entry: bytes, encoded: bytes, time: bytes) -> None:
    """Clear the entry of a former time of a key, unless a repair before has given the key this time."""
    if piece.tr.get(ExpiryKeys(piece.name).time_of(encoded)).value != time:
        _clear(piece, entry, key_hash(encoded))


def _set_entry(piece: Piece, entry: bytes, hashed: int) -> None:
    piece.tr.set(entry, b"")
    renew_states(piece, hashed)


def check_value(piece: Piece, found: Found) -> None:
    """Check that a current value has a key of the queue, the key's hash and the queue's type, and is not empty."""
    hashed, encoded = found.fields
    key = key_at(piece.config, hashed, encoded)
    try:
        value = codec.decode(found.value)
        check_type(piece.config, value)
    except CorruptData as error:
        piece.report("value-unreadable", found.key, str(error), key=key)
        return
    if _is_empty(piece, value):
        fix = partial(_clear_value, piece, found.key, key, encoded)
        piece.report("value-empty", found.key, f"{value!r:.80} means no value", fix, key=key)
        return
    check_value_expires(piece, key, encoded)


def _clear_value(piece: Piece, row: bytes, key: Any, encoded: bytes) -> None:
    """Clear a value with its entry in the index of the expiry."""
    if spec := piece.config.expiry:
        index = ExpiryIndex(piece.tr.snapshot, piece.config, spec)
        stored = _stored_time(piece, spec, key, encoded)
        time = stored if isinstance(stored, bytes) else stored.value
        index.write(piece.tr, [IndexMove(place(encoded), time, None)])
    _clear(piece, row, key_hash(encoded))


def check_staged(piece: Piece, found: Found) -> None:
    """Check staged updates as current values; the bucket's state must say that they exist, or no pass reads them."""
    hashed, encoded = found.fields
    key = key_at(piece.config, hashed, encoded)
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
    hashed, encoded, *_ = found.fields
    content = codec.decode(found.value)
    if not isinstance(content, list) or not content:
        raise CorruptData("it is not a failure and updates")
    KeyFailure.from_stored(content[0])
    check_hash(hashed, encoded)


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


def set_key_aside(piece: Piece, found: Found) -> None:
    """Set a row aside that is not stored under a key of the queue, and the hash of this key."""
    _move_aside(piece, found, "not stored under the hash of a key of the queue")


def _move_aside(piece: Piece, found: Found, error: str) -> None:
    """Set a row aside: on a retry it counts as an update of its key; as bytes if this is not one of the queue."""
    hashed, encoded = found.rest[:_HASH_BYTES].ljust(_HASH_BYTES, b"\x00"), found.rest[_HASH_BYTES:]
    try:
        updates = [codec.decode(found.value)]
    except CorruptData:
        updates = [found.value]
    if shown_key(piece.config, encoded) is None:
        encoded, updates = b"", [found.key, found.value]
    set_updates_aside(piece, encoded, KeyFailure(error), updates)
    piece.tr.clear(found.key)
    renew_states(piece, int.from_bytes(hashed, "big"), key_hash(encoded))


def _mark_staged(piece: Piece, config: QueueConfig, bucket: int) -> None:
    rewrite_state(piece, config.generation, bucket, staged=True)
    notify(piece, config.generation, bucket)
