"""What looks at each row of a queue, by the part of the key layout that it is in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from cq.admin.backfill import current_generation
from cq.admin.purge import read_purging
from cq.bucket.attempt_notes import parse_note
from cq.config.queue import Flags, QueueConfig
from cq.encoding import codec
from cq.errors import CorruptData
from cq.keys import CHANGED, INCOMPLETE_VERSIONSTAMP, VERSIONSTAMP_BYTES, prefix_end
from cq.keys.export import SEQUENCE_BYTES
from cq.queue.bucket_state import BucketState, fresh_token
from cq.store.api import KeyValue
from cq.verify.layout import (
    check_attempt,
    check_received,
    is_wake_up,
    parse_bucket,
    parse_current,
    parse_document,
    parse_observer_data,
    parse_piece,
    parse_published,
)
from cq.verify.missed import check_missed, rebuild
from cq.verify.queued import check_emitter, check_marker, check_notification, check_row
from cq.verify.repairs import notify
from cq.verify.values import check_aside, check_staged, check_value
from cq.verify.verification import Handler, Piece
from cq.verify.window import check_window

# The bucket's state, and notes of attempts


def check_state(piece: Piece, rest: bytes, found: KeyValue) -> bytes | None:
    """A bucket's state: of a bucket that there is, and readable, or nobody can pass."""
    try:
        generation, bucket = parse_bucket(rest)
        shape = piece.shape(generation, bucket)
    except CorruptData as error:
        piece.report("state-lost", found.key, str(error), partial(piece.tr.clear, found.key))
        return None
    if shape is None:
        what = f"of a bucket that there is not: {bucket} of generation {generation}"
        piece.report("state-lost", found.key, what, partial(piece.tr.clear, found.key))
    elif piece.state(generation, bucket) is None:
        what = f"the state of bucket {bucket} of generation {generation} is not one that cq wrote"
        piece.report("state-unreadable", found.key, what, partial(_derive_state, piece, shape, bucket))
    return None


def _derive_state(piece: Piece, shape: QueueConfig, bucket: int) -> None:
    """Write the state that a bucket can have: observers that are being told are told anew, all others have been."""
    staged = piece.tr.get_range(*piece.keys.staged_of_bucket(shape.buckets, bucket), limit=1).to_list()
    told: dict[int, bytes | None] = {}
    for each in shape.observers:
        if current_generation(piece.tr, shape.name, each.name) == each.generation:
            told[each.generation] = None
        else:
            piece.follow_ups.append(partial(rebuild, observer=each.name))
    is_purged = shape.purge_generation == shape.generation
    state = BucketState(
        token=fresh_token(),
        staged=bool(staged),
        observers=told,
        purged=shape.purges if is_purged else 0,
        missed=True,  # perhaps: the next pass finds out
    )
    piece.tr.set(piece.keys.state(shape.generation, bucket), state.to_bytes())
    notify(piece, shape.generation, bucket)


def check_attempt_note(piece: Piece, rest: bytes, found: KeyValue) -> bytes | None:
    """A note of an attempt. Workers that have not heard of a change leave some under earlier shapes."""
    try:
        check_attempt(rest)
        parse_note(found.value)
    except CorruptData as error:
        piece.report("attempt", found.key, str(error), partial(piece.tr.clear, found.key))
    return None


# What applications keep


def check_document(piece: Piece, rest: bytes, found: KeyValue) -> bytes | None:
    """A document: of how many parts it is."""
    try:
        parse_document(rest)
        if type(parts := codec.decode(found.value)) is not int or parts < 1:
            raise CorruptData("it has no number of parts")
    except CorruptData as error:
        piece.report("document", found.key, str(error))
    return None


def check_counts(piece: Piece, rest: bytes, found: KeyValue) -> bytes | None:
    """A piece of a document's counts: [item, count, ...], of a part of a document that there is."""
    try:
        document, part = parse_piece(rest)
        content = codec.decode(found.value)
        if (
            not isinstance(content, list)
            or len(content) % 2
            or any(type(each) is not int for each in content[1::2])
        ):
            raise CorruptData("it holds no counts")
    except CorruptData as error:
        piece.report("document", found.key, str(error))
        return None
    header = piece.snapshot.get(piece.keys.document(document))

    def look() -> None:
        if header.value is None or not _has_part(header.value, part):
            piece.report("document", found.key, "counts of a part that the document has not")

    piece.defer(look)
    return None


def _has_part(header: bytes, part: int) -> bool:
    try:
        parts = codec.decode(header)
    except CorruptData:
        return True  # which is a difference of its own
    return type(parts) is not int or part < parts


def check_received_fence(piece: Piece, rest: bytes, found: KeyValue) -> bytes | None:
    """How far a bucket of a queue was forwarded into this one."""
    try:
        check_received(rest)
        if len(found.value) != SEQUENCE_BYTES:
            raise CorruptData("it is no sequence of an export queue")
    except CorruptData as error:
        piece.report("received", found.key, str(error))
    return None


def check_load(piece: Piece, rest: bytes, found: KeyValue) -> bytes | None:
    """The position in a file that is being added."""
    _check_list(piece, "load", found, [int, int, bytes], None)
    return None


# What observers keep: whose generations these are


def check_observer_data(piece: Piece, rest: bytes, found: KeyValue) -> bytes | None:
    """Data of a generation that is configured, or that is read until the configured one is complete."""
    try:
        generation, tail = parse_observer_data(rest)
    except CorruptData as error:
        piece.report("observer-data", found.key, str(error), partial(piece.tr.clear, found.key))
        return None
    known = {each.generation for each in piece.config.observers}
    if generation in known or is_wake_up(tail) or generation in _read_generations(piece):
        return None
    data = piece.keys.observer_data(generation)
    fix = partial(piece.tr.clear_range, data, prefix_end(data))
    piece.report("observer-data", data, f"of generation {generation} of an observer, which there is not", fix)
    return prefix_end(data)


def _read_generations(piece: Piece) -> set[int]:
    stored = [piece.snapshot.get(piece.keys.observer_current(each.name)) for each in piece.config.observers]
    return {generation for each in stored if (generation := _generation(each.value)) is not None}


def _generation(stored: bytes | None) -> int | None:
    try:
        generation = None if stored is None else codec.decode(stored)
    except CorruptData:
        return None
    return generation if type(generation) is int else None


def check_current(piece: Piece, rest: bytes, found: KeyValue) -> bytes | None:
    """Which generation of an observer's data readers are to use."""
    try:
        name = parse_current(rest)
    except CorruptData:
        name = ""
    if all(each.name != name for each in piece.config.observers):
        what = "of an observer that the queue has not"
    else:
        generation = _generation(found.value)
        if generation is not None and 0 < generation <= piece.config.observer_generations:
            return None
        what = "it names no generation that there has been"
    piece.report("observer-current", found.key, what, partial(_forget_current, piece, found.key))
    return None


def _forget_current(piece: Piece, key: bytes) -> None:
    """Have workers switch to the configured generation, once all of it has been told."""
    piece.tr.clear(key)
    piece.tr.set_versionstamped_value(CHANGED, INCOMPLETE_VERSIONSTAMP)


def check_published(piece: Piece, rest: bytes, found: KeyValue) -> bytes | None:
    """What an observer publishes: one that the queue has."""
    try:
        name, _ = parse_published(rest)
    except CorruptData:
        name = ""
    if all(each.name != name for each in piece.config.observers):
        fix = partial(piece.tr.clear, found.key)
        piece.report("observer-published", found.key, "of an observer that the queue has not", fix)
    return None


# The parts that are one key each


def check_flags(piece: Piece, rest: bytes, found: KeyValue) -> bytes | None:
    """The flags. What they said is lost: a repair pauses the queue, for somebody to look at it."""
    try:
        Flags.from_bytes(found.value)
    except CorruptData as error:
        flags = Flags(
            paused=True, reason="its flags could not be read: set priority and limits anew, then resume it"
        )
        piece.report("flags", found.key, str(error), partial(_write_flags, piece, flags))
    return None


def _write_flags(piece: Piece, flags: Flags) -> None:
    piece.tr.set(piece.keys.flags, flags.to_bytes())
    piece.tr.set_versionstamped_value(CHANGED, INCOMPLETE_VERSIONSTAMP)


def check_full(piece: Piece, rest: bytes, found: KeyValue) -> bytes | None:
    """The mark of a queue that is full: workers write it again if it is so."""
    _check_list(piece, "full", found, [str, str], partial(piece.tr.clear, found.key))
    return None


def check_purge(piece: Piece, rest: bytes, found: KeyValue) -> bytes | None:
    """The versionstamp of the latest purge: needed until all buckets have begun it."""
    if len(found.value) == VERSIONSTAMP_BYTES:
        return None
    try:
        is_needed = read_purging(piece.snapshot, piece.config)
    except CorruptData:
        is_needed = True
    fix = None if is_needed else partial(piece.tr.clear, found.key)
    piece.report("purge", found.key, "not a versionstamp; `cq purge` writes a new one", fix)
    return None


def check_nothing(piece: Piece, rest: bytes, found: KeyValue) -> bytes | None:
    """The configuration: it was read before everything else."""
    return None


def _check_list(
    piece: Piece, kind: str, found: KeyValue, types: list[type], fix: Callable[[], object] | None
) -> None:
    """A list of values of these types."""
    try:
        content = codec.decode(found.value)
        if not isinstance(content, list) or list(map(type, content)) != types:
            raise CorruptData(f"it holds no list of {', '.join(each.__name__ for each in types)}")
    except CorruptData as error:
        piece.report(kind, found.key, str(error), fix)


HANDLERS: Final[Mapping[str, Sequence[Handler]]] = {
    "a": [check_attempt_note],
    "b": [check_state],
    "d": [check_value],
    "e": [check_nothing],
    "i": [check_emitter],
    "j": [check_nothing],
    "k": [check_document],
    "l": [check_load],
    "m": [check_missed],
    "n": [check_notification],
    "o": [check_marker],
    "r": [check_received_fence],
    "s": [check_staged],
    "t": [check_observer_data],
    "u": [check_row],
    "v": [check_window],
    "w": [check_counts],
    "x": [check_aside],
    "y": [check_current],
    "z": [check_published],
    "config": [check_nothing],
    "flags": [check_flags],
    "full": [check_full],
    "purge": [check_purge],
}
"""{part of the key layout: what looks at its rows}; what observers keep is looked at by `cq.observers.verify.queue`."""
