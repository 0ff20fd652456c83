"""Checks of documents and positions, of the generations of observers' data, and of the parts of a single key each."""

from __future__ import annotations

from functools import partial

from cq.admin.purge import read_purging
from cq.config.queue import Flags
from cq.encoding import codec
from cq.errors import CorruptData
from cq.keys import CHANGED, INCOMPLETE_VERSIONSTAMP, VERSIONSTAMP_BYTES, prefix_end
from cq.keys.export import SEQUENCE_BYTES
from cq.verify import layout
from cq.verify.piece import Found, Piece

# Data of applications


def check_document(piece: Piece, found: Found) -> None:
    """Check that a document has a number of parts."""
    layout.parse_document(found.rest)
    if type(parts := codec.decode(found.value)) is not int or parts < 1:
        raise CorruptData("it has no number of parts")


def check_counts(piece: Piece, found: Found) -> None:
    """Check a piece of a document's counts: [item, count, ...], of an existing part of a document."""
    document, part = layout.parse_piece(found.rest)
    content = codec.decode(found.value)
    if (
        not isinstance(content, list)
        or len(content) % 2
        or any(type(each) is not int for each in content[1::2])
    ):
        raise CorruptData("it holds no counts")
    header = piece.snapshot.get(piece.keys.document(document))

    def check() -> None:
        if header.value is None or not _has_part(header.value, part):
            piece.report("document", found.key, "counts of a part that the document does not have")

    piece.defer(check)


def _has_part(header: bytes, part: int) -> bool:
    try:
        parts = codec.decode(header)
    except CorruptData:
        return True  # reported as a separate difference
    return type(parts) is not int or part < parts


def check_received(piece: Piece, found: Found) -> None:
    """Check the position up to which a bucket of another queue was forwarded into this one."""
    layout.check_received_key(found.rest)
    if len(found.value) != SEQUENCE_BYTES:
        raise CorruptData("it is not a sequence of an export queue")


def check_load(piece: Piece, found: Found) -> None:
    """Check the position in a file whose lines are being added."""
    codec.decode_list(found.value, [int, int, bytes], "the position in a file")


# The generations of observers' data


def check_observer_data(piece: Piece, found: Found) -> bytes | None:
    """Check that data is of a configured generation, or of one in use until the configured one is complete."""
    generation, tail = layout.parse_observer_data(found.rest)
    known = {each.generation for each in piece.config.observers}
    if generation in known or layout.is_wake_up(tail) or generation in _read_generations(piece):
        return None
    data = piece.keys.observer_data(generation)
    fix = partial(piece.tr.clear_range, data, prefix_end(data))
    piece.report("observer-data", data, f"of generation {generation}, which no observer has", fix)
    return prefix_end(data)  # one difference covers all rows of the generation


def _read_generations(piece: Piece) -> set[int | None]:
    stored = [piece.snapshot.get(piece.keys.observer_current(each.name)) for each in piece.config.observers]
    return {_generation(each.value) for each in stored}


def _generation(stored: bytes | None) -> int | None:
    try:
        generation = None if stored is None else codec.decode(stored)
    except CorruptData:
        return None
    return generation if type(generation) is int else None


def check_current(piece: Piece, found: Found) -> None:
    """Check the generation of an observer's data that readers use."""
    _check_observer(piece, layout.parse_current(found.rest))
    generation = _generation(found.value)
    if generation is None or not 0 < generation <= piece.config.observer_generations:
        raise CorruptData("its generation has never existed")


def _check_observer(piece: Piece, name: str) -> None:
    if all(each.name != name for each in piece.config.observers):
        raise CorruptData("of an observer that the queue does not have")


def forget_current(piece: Piece, found: Found) -> None:
    """Clear the generation, so that workers publish the configured one when its backfill is complete."""
    piece.tr.clear(found.key)
    piece.tr.set_versionstamped_value(CHANGED, INCOMPLETE_VERSIONSTAMP)


def check_published(piece: Piece, found: Found) -> None:
    """Check that published data is of an observer that the queue has."""
    _check_observer(piece, layout.parse_published(found.rest)[0])


# The parts of a single key each


def check_flags(piece: Piece, found: Found) -> None:
    """Check the flags."""
    Flags.from_bytes(found.value)


def pause(piece: Piece, found: Found) -> None:
    """Pause the queue for an operator, as the former flags are lost."""
    reason = "its flags could not be read: set priority and limits anew, then resume it"
    piece.tr.set(found.key, Flags(paused=True, reason=reason).to_bytes())
    piece.tr.set_versionstamped_value(CHANGED, INCOMPLETE_VERSIONSTAMP)


def check_full(piece: Piece, found: Found) -> None:
    """Check the mark of a full queue: workers write it again if the queue is full."""
    codec.decode_list(found.value, [str, str], "the mark of a full queue")


def check_purge(piece: Piece, found: Found) -> None:
    """Check the versionstamp of the latest purge; it is needed until all buckets have begun the purge."""
    if len(found.value) == VERSIONSTAMP_BYTES:
        return
    try:
        is_needed = read_purging(piece.snapshot, piece.config)
    except CorruptData:
        is_needed = True
    fix = None if is_needed else partial(piece.tr.clear, found.key)
    piece.report("purge", found.key, "not a versionstamp; `cq purge` writes a new one", fix)
