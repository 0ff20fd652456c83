"""Checks of a queue's published clouds: each must be readable, and equal to the first entries of its top.

A cloud that differs from the top must have a mark, which the transaction that publishes it removes. The repair clears
and marks an unreadable cloud, so that a worker publishes it again. It clears kept versions that are unreadable.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from cq.config.queue import ObserverConfig
from cq.encoding import codec
from cq.errors import CorruptData
from cq.keys import prefix_end
from cq.keys.top import CloudKeys, TopKeys, split_group, split_kept, split_piece
from cq.observers.top.cloud import CloudHead, digest_of, first_entries
from cq.observers.top.index import NAME
from cq.observers.verify.top import top_of
from cq.verify.piece import Found, Piece

_LAST_NUMBER: Final = (1 << 32) - 1


def check_cloud(piece: Piece, found: Found) -> None:
    """Check a row of the published clouds."""
    name, _, tail = found.rest.partition(b"\x00")
    observer = top_of(piece.config)
    if name != NAME.encode() or observer is None:
        return
    if tail[:1] == b"h":
        group, excess = split_group(tail[1:])
        if excess:
            raise CorruptData("the key is not one of a cloud")
        _check_head(piece, observer, group, found)
    elif tail[:1] == b"p":
        _check_piece(piece, tail[1:], found)
    elif tail[:1] == b"v":
        _check_kept(piece, tail[1:], found)
    else:
        raise CorruptData("not a key of a cloud")


def _check_head(piece: Piece, observer: ObserverConfig, group: str | None, found: Found) -> None:
    """Check that a cloud can be read, and that it equals its top unless it is marked."""
    keys, top = CloudKeys(piece.keys), TopKeys(piece.keys, observer.generation)
    fix = partial(_publish_again, piece, keys, top, group)
    try:
        head = CloudHead.from_bytes(found.value)
        pieces = [piece.snapshot.get(keys.piece(group, head.version, each)) for each in range(head.pieces)]
    except CorruptData as error:
        piece.report("cloud-unreadable", found.key, str(error), fix)
        return
    current = piece.snapshot.get(piece.keys.observer_current(NAME))
    adopted = piece.snapshot.get(top.adopted)
    mark = piece.snapshot.get(top.mark(group))
    prefix = top.entries(group)
    rows = piece.snapshot.get_range(prefix, prefix_end(prefix), limit=observer.settings["n"])

    def check() -> None:
        data = b"".join(each.value or b"" for each in pieces) if head.pieces else head.data
        if digest_of(data) != head.digest:
            piece.report("cloud-unreadable", found.key, "its pieces differ from the published data", fix)
            return
        is_current = current.value == codec.encode(observer.generation)
        # Until the publisher has marked the clouds of earlier generations, these may differ from the top.
        if not is_current or adopted.value is None or mark.value is not None:
            return
        try:
            digest = digest_of(first_entries(piece.config, rows, len(prefix)))
        except (CorruptData, ValueError):
            return  # unreadable entries, which the check of the top reports
        if digest != head.digest:
            what = "it differs from the top, and is not marked for publication"
            piece.report("cloud-different", found.key, what, fix)

    piece.defer(check)


def _check_piece(piece: Piece, data: bytes, found: Found) -> None:
    """Check that a piece belongs to the published version."""
    group, version, number = split_piece(data)
    stored = piece.snapshot.get(CloudKeys(piece.keys).head(group))

    def check() -> None:
        try:
            head = CloudHead.from_bytes(stored.value) if stored.value is not None else None
        except CorruptData:
            return
        if head is None or head.version != version or number >= head.pieces:
            what = "a piece of a cloud that is not published"
            piece.report("cloud-piece", found.key, what, partial(piece.tr.clear, found.key))

    piece.defer(check)


def _check_kept(piece: Piece, data: bytes, found: Found) -> None:
    """Check that a kept version can be read: at each of its rows, as a row may lack its head."""
    row, keys = split_kept(data), CloudKeys(piece.keys)
    key = partial(keys.kept, row.group, row.time, row.version)
    fix = partial(piece.tr.clear_range, key(0), key(_LAST_NUMBER))
    stored = piece.snapshot.get(key(0))

    def check() -> None:
        try:
            if stored.value is None:
                raise CorruptData("it has no head")
            head = CloudHead.from_bytes(stored.value)
            if row.number > head.pieces or (head.created, head.version) != (row.time, row.version):
                raise CorruptData("a row belongs to another version")
            head.entries(piece.snapshot, lambda number: key(number + 1))
        except CorruptData as error:
            piece.report("cloud-version", found.key, str(error), fix)

    piece.defer(check)


def _publish_again(piece: Piece, keys: CloudKeys, top: TopKeys, group: str | None) -> None:
    """Clear a cloud, and notify workers to publish it."""
    piece.tr.clear(keys.head(group))
    pieces = keys.pieces_of(group)
    piece.tr.clear_range(pieces, prefix_end(pieces))
    piece.stamp(top.mark(group))
    piece.stamp(top.notification)
