"""Checks of a queue's expiry: each value has one entry in the index, at the time of its key."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from cq.config.expiry import LATEST, UPDATE, ExpirySpec
from cq.encoding.codec import MAX_KEY_BYTES
from cq.encoding.hashing import bucket_at, key_hash
from cq.errors import CorruptData
from cq.expiry.index import ExpiryIndex, IndexMove
from cq.keys import place
from cq.keys.expiry import COUNT_BYTES, TIME_BYTES, ExpiryKeys, pack_time, parse_time
from cq.queue.bucket_state import needs_purge
from cq.store.api import Value
from cq.verify.layout import parse_expiry
from cq.verify.piece import Found, Piece
from cq.verify.queued import key_of
from cq.verify.repairs import renew_states

_HASH_BYTES: Final = 4


def check_expiry(piece: Piece, found: Found) -> None:
    """Check an entry of the index, the stored time of a key, or the progress of workers that give times."""
    spec = piece.config.expiry
    time, hashed, encoded = parse_expiry(found.rest)
    if found.rest == b"x":  # it remains when the expiry is switched off
        parse_time(found.value)
        return
    if spec is None:
        raise CorruptData("the queue's keys do not expire")
    if not encoded:
        _check_number(found)
        return
    key = key_of(piece.config, encoded)
    if hashed != key_hash(encoded):
        raise CorruptData("it is not stored under the hash of its key")
    if time is None:
        _check_time(piece, spec, found, encoded)
        return
    if found.value or time > LATEST:
        raise CorruptData("it is not an entry of an expiry")
    stored = _stored_time(piece, spec, key, encoded)
    value = piece.snapshot.get(piece.keys.value(encoded))

    def check() -> None:
        is_other = (stored if isinstance(stored, bytes) else stored.value) != pack_time(time)
        if is_other or not value.present():
            what = (
                "an entry at another time than the key's" if value.present() else "an entry without a value"
            )
            piece.report("expiry-extra", found.key, what, partial(_clear, piece, found.key, hashed), key=key)

    piece.defer(check)


def _check_number(found: Found) -> None:
    """Check the number of expired keys, or the progress: a place, which is empty at the beginning."""
    lengths = (
        range(_HASH_BYTES + 1, _HASH_BYTES + MAX_KEY_BYTES + 1) if found.rest == b"p" else (COUNT_BYTES,)
    )
    if len(found.value) not in lengths and not (found.rest == b"p" and not found.value):
        raise CorruptData("it is not the number of expired keys, or the place of a key")


def _stored_time(piece: Piece, spec: ExpirySpec, key: Any, encoded: bytes) -> bytes | Value:
    if spec.by == UPDATE:
        return piece.snapshot.get(ExpiryKeys(piece.name).time_of(encoded))
    return pack_time(spec.time_of_key(key))


def _check_time(piece: Piece, spec: ExpirySpec, found: Found, encoded: bytes) -> None:
    """Check that a stored time has a value, and an entry."""
    if spec.by != UPDATE or len(found.value) != TIME_BYTES:
        raise CorruptData("it is not the time of a key's latest update")
    fix = partial(_clear, piece, found.key, key_hash(encoded))
    value = piece.keys.value(encoded)
    piece.require(value, "expiry-extra", found.key, "the time of a key without a value", fix)
    entry = ExpiryKeys(piece.name).entry_at(found.value, place(encoded))
    fix = partial(_set_entry, piece, entry, key_hash(encoded))
    piece.require(entry, "expiry-missing", found.key, "a key with a time, but without an entry", fix)


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


def _clear(piece: Piece, key: bytes, hashed: int) -> None:
    piece.tr.clear(key)
    renew_states(piece, hashed)


def _set_entry(piece: Piece, entry: bytes, hashed: int) -> None:
    piece.tr.set(entry, b"")
    renew_states(piece, hashed)
