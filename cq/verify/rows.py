"""Checks of documents and positions, of the generations of observers' data, and of the parts of a single key each."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Final

from cq.admin.backfill import parse_generation
from cq.config.flags import Flags
from cq.encoding import codec
from cq.encoding.hashing import bucket_at, key_hash
from cq.errors import CorruptData
from cq.intake.documents import decode_counts
from cq.intake.lines import FilePosition
from cq.keys import CHANGED, place, prefix_end, version_of
from cq.keys.answers import GROUP_BYTES
from cq.keys.link import Position
from cq.keys.missed import MissedKeys
from cq.queue.answers import parse_answers
from cq.queue.missed_reports import NOTHING, may_have_missed
from cq.verify import layout
from cq.verify.piece import FROM_THE_FUTURE, Found, Piece, Steps, rewrite_state
from cq.verify.queued import key_at

_COUNTER_BYTES: Final = 8
_ANSWERS: Final = {
    b"a": "group14",
    b"l": "group14 position2",  # the letter of the key is "a"
    b"d": "versionstamp10 n4",
    b"w": "ticket20",
}
_MISSED: Final = {b"g": "g4 h4 key", b"n": "h4 key", b"r": "h4 key"}

# Data of applications


def parse_parts(stored: bytes) -> int:
    """Return the number of parts of a document; raise `CorruptData`."""
    if type(parts := codec.decode(stored)) is not int or parts < 1:
        raise CorruptData("it has no number of parts")
    return parts


def check_counts(piece: Piece, found: Found) -> Steps:
    """Check a piece of a document's counts: [item, count, ...], of an existing part of a document."""
    document, part, _ = found.fields
    decode_counts(found.value)
    header = piece.snapshot.get(piece.keys.document(document))
    yield None
    with suppress(CorruptData):  # an unreadable number of parts is a separate difference
        if header.value is None or part >= parse_parts(header.value):
            piece.report("document", found.key, "counts of a part that the document does not have")


def parse_received(stored: bytes) -> None:
    """Raise `CorruptData` unless this is the position up to which another queue was forwarded into this one."""
    if Position.parse(stored.decode("latin-1")) is None:
        raise CorruptData("it is not a position of a link")


def check_answer(piece: Piece, found: Found) -> None:
    """Check an answer to a request, the groups that a pass answered, or the mark of a withdrawn request."""
    kind = found.rest[:1]
    if kind == b"a" and len(found.rest) > 1 + GROUP_BYTES:
        kind = b"l"
    layout.parse_by_letter(_ANSWERS, kind + found.rest[1:])
    if piece.config.decider is None:
        raise CorruptData("the queue has no decider")
    version = 0
    if kind == b"a":
        version = parse_answers(found.value)[0]
    elif kind == b"l":
        codec.decode(found.value)
    elif kind == b"d":
        version = version_of(found.rest[1:])
        if not found.value or len(found.value) % GROUP_BYTES:
            raise CorruptData("it is no list of groups")
    elif found.value:
        raise CorruptData("it has a value")
    if version > piece.version:
        raise CorruptData(FROM_THE_FUTURE)


def check_load(piece: Piece, found: Found) -> None:
    """Check the position in a file that is being added."""
    FilePosition.from_bytes(found.value)


def check_refused(piece: Piece, found: Found) -> None:
    """Check the number of updates that a queue refused for their time."""
    if found.key not in (piece.keys.late, piece.keys.future) or len(found.value) != _COUNTER_BYTES:
        raise CorruptData("it is not a number of refused updates")


# The generations of observers' data


def check_observer_data(piece: Piece, found: Found) -> bytes | None:
    """Check that data is of a configured generation, or of one in use until the configured one is complete."""
    generation, tail = found.fields
    observers = piece.config.observers
    if generation in {each.generation for each in observers} or layout.is_wake_up(tail):
        return None
    read = [piece.snapshot.get(piece.keys.observer_current(each.name)) for each in observers]
    if codec.encode(generation) in (each.value for each in read):
        return None
    data = piece.keys.observer_data(generation)
    fix = partial(piece.tr.clear_range, data, prefix_end(data))
    piece.report("observer-data", data, f"of generation {generation}, which no observer has", fix)
    return prefix_end(data)  # one difference covers all rows of the generation


def check_current(piece: Piece, found: Found) -> None:
    """Check the generation of an observer's data that readers use."""
    if all(found.key != piece.keys.observer_current(each.name) for each in piece.config.observers):
        raise CorruptData("of an observer that the queue does not have")
    if not 0 < parse_generation(found.value) <= piece.config.observer_generations:
        raise CorruptData("its generation has never existed")


def forget_current(piece: Piece, found: Found) -> None:
    """Clear the generation, so that workers publish the configured one when its backfill is complete."""
    piece.tr.clear(found.key)
    piece.stamp(CHANGED)


def check_published(piece: Piece, found: Found) -> None:
    """Check that published data is of an observer that the queue has."""
    prefixes = tuple(piece.keys.observer_published(each.name) for each in piece.config.observers)
    if not found.key.startswith(prefixes):
        raise CorruptData("of an observer that the queue does not have")


# The parts of a single key each


def pause(piece: Piece, found: Found) -> None:
    """Pause the queue for an operator, as the former flags are lost."""
    reason = "its flags could not be read: set priority and limits anew, then resume it"
    piece.tr.set(found.key, Flags(paused=True, reason=reason).to_bytes())
    piece.stamp(CHANGED)


def check_missed(piece: Piece, found: Found) -> None:
    """Check that a missed report is of the queue's key and observer, readable, and noted in the bucket's state."""
    *generations, hashed, encoded = layout.parse_by_letter(_MISSED, found.rest)
    key = key_at(piece.config, hashed, encoded)
    if not generations:
        return
    (generation,) = generations
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
