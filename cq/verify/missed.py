"""Checks of the reports that observers missed: passes must know of them and be able to read them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from cq.admin.configure import rebuild_observer
from cq.config.queue import QueueConfig
from cq.encoding import codec
from cq.encoding.hashing import bucket_at, key_hash
from cq.errors import CorruptData
from cq.keys import place
from cq.keys.missed import MissedKeys
from cq.queue.missed_reports import NOTHING, may_have_missed
from cq.store.api import KeyValue
from cq.verify.layout import parse_missed
from cq.verify.queued import key_of
from cq.verify.repairs import rewrite_state
from cq.verify.verification import Difference, Piece, Verification


def check_missed(piece: Piece, rest: bytes, found: KeyValue) -> bytes | None:
    """Check that a missed report is of the queue's key and observer, readable, and noted in the bucket's state."""
    clear = partial(piece.tr.clear, found.key)
    try:
        generation, hashed, encoded = parse_missed(rest)
        key = key_of(piece.config, encoded)
        if hashed != key_hash(encoded):
            raise CorruptData("it is not stored under the hash of its key")
    except CorruptData as error:
        piece.report("missed-key", found.key, str(error), clear)
        return None
    if generation is None:
        return None
    observer = next((each for each in piece.config.observers if each.generation == generation), None)
    if observer is None:
        piece.report("missed-key", found.key, "of an observer that the queue does not have", clear, key=key)
        return None
    try:
        if found.value != NOTHING:
            codec.decode(found.value)
    except CorruptData as error:
        fix = partial(piece.follow_ups.append, partial(rebuild, observer=observer.name))
        piece.report("missed-unreadable", found.key, str(error), fix, key=key)
    for config in piece.shapes:  # buckets of both shapes report changes of the key
        _check_state(piece, config, hashed, found)
    return None


def _check_state(piece: Piece, config: QueueConfig, hashed: int, found: KeyValue) -> None:
    """Check that the bucket's state says that reports were missed: otherwise passes do not read them."""
    bucket = bucket_at(hashed, config.buckets)
    state = piece.state(config.generation, bucket)
    if state is None or may_have_missed(config, state):
        return
    fix = partial(rewrite_state, piece, config.generation, bucket, missed=True)
    what = f"the state of bucket {bucket} says that no observer missed a report"
    piece.report("missed-unseen", found.key, what, fix)


def rebuild(verification: Verification, observer: str) -> Iterator[Difference]:
    """Rebuild an observer: report all values to it again, as the values that it received last are unknown."""
    rebuild_observer(verification.db, verification.name, observer)
    return iter(())


def has_missed(piece: Piece, generation: int, encoded: bytes) -> bool:
    """Return whether an observer has missed a report of a key, so that its data may differ from the key's value."""
    where = place(encoded)
    state = piece.state(piece.config.generation, bucket_at(key_hash(encoded), piece.config.buckets))
    if state is None or not may_have_missed(piece.config, state):
        return False
    return piece.snapshot.get(MissedKeys(piece.name).received(generation, where)).present()
