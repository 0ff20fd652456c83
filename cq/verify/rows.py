"""The checks of each row of a queue, by its part of the key layout."""

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
    """Check that a bucket's state is of an existing bucket, and readable: otherwise no pass can run."""
    try:
        generation, bucket = parse_bucket(rest)
        shape = piece.shape(generation, bucket)
    except CorruptData as error:
        piece.report("state-lost", found.key, str(error), partial(piece.tr.clear, found.key))
        return None
    if shape is None:
        what = f"of a missing bucket: {bucket} of generation {generation}"
        piece.report("state-lost", found.key, what, partial(piece.tr.clear, found.key))
    elif piece.state(generation, bucket) is None:
        what = f"the state of bucket {bucket} of generation {generation} is not one that cq wrote"
        piece.report("state-unreadable", found.key, what, partial(_derive_state, piece, shape, bucket))
    return None


def _derive_state(piece: Piece, shape: QueueConfig, bucket: int) -> None:
    """Write a state that is safe for the bucket: backfills begin again, those of all other observers are complete."""
    staged = piece.tr.get_range(*piece.keys.staged_of_bucket(shape.buckets, bucket), limit=1).to_list()
    positions: dict[int, bytes | None] = {}
    for each in shape.observers:
        if current_generation(piece.tr, shape.name, each.name) == each.generation:
            positions[each.generation] = None
        else:
            piece.follow_ups.append(partial(rebuild, observer=each.name))
    is_purged = shape.purge_generation == shape.generation
    state = BucketState(
        token=fresh_token(),
        staged=bool(staged),
        observers=positions,
        purged=shape.purges if is_purged else 0,
        missed=True,  # not known: the next pass reads the missed reports
    )
    piece.tr.set(piece.keys.state(shape.generation, bucket), state.to_bytes())
    notify(piece, shape.generation, bucket)  # the lost state may have recorded work


def check_attempt_note(piece: Piece, rest: bytes, found: KeyValue) -> bytes | None:
    """Check a note of an attempt. Workers with an outdated configuration can leave notes of earlier shapes."""
    try:
        check_attempt(rest)
        parse_note(found.value)
    except CorruptData as error:
        piece.report("attempt", found.key, str(error), partial(piece.tr.clear, found.key))
    return None


# Data of applications


def check_document(piece: Piece, rest: bytes, found: KeyValue) -> bytes | None:
    """Check that a document has a number of parts."""
    try:
        parse_document(rest)
        if type(parts := codec.decode(found.value)) is not int or parts < 1:
            raise CorruptData("it has no number of parts")
    except CorruptData as error:
        piece.report("document", found.key, str(error))
    return None


def check_counts(piece: Piece, rest: bytes, found: KeyValue) -> bytes | None:
    """Check a piece of a document's counts: [item, count, ...], of an existing part of a document."""
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

    def check() -> None:
        if header.value is None or not _has_part(header.value, part):
            piece.report("document", found.key, "counts of a part that the document does not have")

    piece.defer(check)
    return None


def _has_part(header: bytes, part: int) -> bool:
    try:
        parts = codec.decode(header)
    except CorruptData:
        return True  # reported as a separate difference
    return type(parts) is not int or part < parts


def check_received_fence(piece: Piece, rest: bytes, found: KeyValue) -> bytes | None:
    """Check the position up to which a bucket of another queue was forwarded into this one."""
    try:
        check_received(rest)
        if len(found.value) != SEQUENCE_BYTES:
            raise CorruptData("it is not a sequence of an export queue")
    except CorruptData as error:
        piece.report("received", found.key, str(error))
    return None


def check_load(piece: Piece, rest: bytes, found: KeyValue) -> bytes | None:
    """Check the position in a file whose lines are being added."""
    _check_list(piece, "load", found, [int, int, bytes], None)
    return None


# The generations of observers' data


def check_observer_data(piece: Piece, rest: bytes, found: KeyValue) -> bytes | None:
    """Check that data is of a configured generation, or of one in use until the configured one is complete."""
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
    piece.report("observer-data", data, f"of generation {generation}, which no observer has", fix)
    return prefix_end(data)  # one difference covers all rows of the generation


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
    """Check the generation of an observer's data that readers use."""
    try:
        name = parse_current(rest)
    except CorruptData:
        name = ""
    if all(each.name != name for each in piece.config.observers):
        what = "of an observer that the queue does not have"
    else:
        generation = _generation(found.value)
        if generation is not None and 0 < generation <= piece.config.observer_generations:
            return None
        what = "its generation has never existed"
    piece.report("observer-current", found.key, what, partial(_forget_current, piece, found.key))
    return None


def _forget_current(piece: Piece, key: bytes) -> None:
    """Clear the generation, so that workers publish the configured one when its backfill is complete."""
    piece.tr.clear(key)
    piece.tr.set_versionstamped_value(CHANGED, INCOMPLETE_VERSIONSTAMP)


def check_published(piece: Piece, rest: bytes, found: KeyValue) -> bytes | None:
    """Check that published data is of an observer that the queue has."""
    try:
        name, _ = parse_published(rest)
    except CorruptData:
        name = ""
    if all(each.name != name for each in piece.config.observers):
        fix = partial(piece.tr.clear, found.key)
        piece.report("observer-published", found.key, "of an observer that the queue does not have", fix)
    return None


# The parts of a single key each


def check_flags(piece: Piece, rest: bytes, found: KeyValue) -> bytes | None:
    """Check the flags. A repair pauses the queue for an operator, as the former flags are lost."""
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
    """Check the mark of a full queue: workers write it again if the queue is full."""
    _check_list(piece, "full", found, [str, str], partial(piece.tr.clear, found.key))
    return None


def check_purge(piece: Piece, rest: bytes, found: KeyValue) -> bytes | None:
    """Check the versionstamp of the latest purge; it is needed until all buckets have begun the purge."""
    if len(found.value) == VERSIONSTAMP_BYTES:
        return None
    try:
        is_needed = read_purging(piece.snapshot, piece.config)
    except CorruptData:
        is_needed = True
    fix = None if is_needed else partial(piece.tr.clear, found.key)
    piece.report("purge", found.key, "not a versionstamp; `cq purge` writes a new one", fix)
    return None


def accept_row(piece: Piece, rest: bytes, found: KeyValue) -> bytes | None:
    """Accept any row: another check reads it, such as the configuration before all other rows."""
    return None


def _check_list(
    piece: Piece, kind: str, found: KeyValue, types: list[type], fix: Callable[[], object] | None
) -> None:
    """Check that a row is a list of values of these types."""
    try:
        content = codec.decode(found.value)
        if not isinstance(content, list) or list(map(type, content)) != types:
            raise CorruptData(f"it is not a list of {', '.join(each.__name__ for each in types)}")
    except CorruptData as error:
        piece.report(kind, found.key, str(error), fix)


HANDLERS: Final[Mapping[str, Sequence[Handler]]] = {
    "a": [check_attempt_note],
    "b": [check_state],
    "d": [check_value],
    "e": [accept_row],
    "i": [check_emitter],
    "j": [accept_row],
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
    "config": [accept_row],
    "flags": [check_flags],
    "full": [check_full],
    "purge": [check_purge],
}
"""{part of the key layout: the checks of its rows}; `cq.observers.verify.queue` adds those of observers' data."""
