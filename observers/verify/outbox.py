"""Checks of the keys of a queue's outbox."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from cq.errors import CorruptData
from cq.observers.links.outbox.state import OutboxSettings, parse_state
from cq.observers.links.state import Control, LinkFailure, LinkStop
from cq.verify.layout import check_stamp
from cq.verify.piece import Found, Piece


def check_outbox(piece: Piece, found: Found) -> None:
    """Check a row of an outbox: its key, and that its value is readable. Raises `CorruptData`."""
    check = _CHECKS.get(found.rest)
    if check is None:
        raise CorruptData("not a key of an outbox")
    check(found.value)


_CHECKS: Final[Mapping[bytes, Callable[[bytes], object]]] = {
    b"o": OutboxSettings.from_bytes,
    b"b": parse_state,
    b"k": check_stamp,
    b"f": LinkFailure.from_bytes,
    b"s": LinkStop.from_bytes,
    b"c": Control.from_bytes,
}
