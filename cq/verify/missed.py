"""Checks of the reports that observers missed: passes must know of them and be able to read them."""

from __future__ import annotations

from functools import partial

from cq.encoding import codec
from cq.encoding.hashing import bucket_at, key_hash
from cq.errors import CorruptData
from cq.keys import place
from cq.keys.missed import MissedKeys
from cq.queue.missed_reports import NOTHING, may_have_missed
from cq.verify.layout import parse_missed
from cq.verify.piece import Found, Piece
from cq.verify.queued import key_of
from cq.verify.repairs import rewrite_state


def check_missed(piece: Piece, found: Found) -> None:
    """Check that a missed report is of the queue's key and observer, readable, and noted in the bucket's state."""
    generation, hashed, encoded = parse_missed(found.rest)
    key = key_of(piece.config, encoded)
    if hashed != key_hash(encoded):
        raise CorruptData("it is not stored under the hash of its key")
    if generation is None:
        return
    observer = next((each for each in piece.config.observers if each.generation == generation), None)
    if observer is None:
        raise CorruptData("of an observer that the queue does not have")
    try:
        if found.value != NOTHING:
            codec.decode(found.value)
    except CorruptData as error:
        fix = partial(piece.rebuilds.add, observer.name)
        piece.report("missed-unreadable", found.key, str(error), fix, key=key)
    for config in piece.shapes:  # buckets of both shapes report changes of the key
        bucket = bucket_at(hashed, config.buckets)
        state = piece.state(config.generation, bucket)
        # Passes read missed reports only if the state says that there are some.
        if state is not None and not may_have_missed(config, state):
            fix = partial(rewrite_state, piece, config.generation, bucket, missed=True)
            what = f"the state of bucket {bucket} says that no observer missed a report"
            piece.report("missed-unseen", found.key, what, fix)


def has_missed(piece: Piece, generation: int, encoded: bytes) -> bool:
    """Return whether an observer has missed a report of a key, so that its data may differ from the key's value."""
    state = piece.state(piece.config.generation, bucket_at(key_hash(encoded), piece.config.buckets))
    if state is None or not may_have_missed(piece.config, state):
        return False
    return piece.snapshot.get(MissedKeys(piece.name).received(generation, place(encoded))).present()
