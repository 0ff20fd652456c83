"""Checks of a queue's window: of each row, and of the totals against the rows.

    stored + staged + queued + set aside = rows that will expire

holds in every commit, key by key: an add changes both sides, and so does an expiry.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from cq.admin.purge import read_purging
from cq.combiners import BUILT_IN
from cq.encoding import codec
from cq.errors import BacklogTooDeep, CorruptData, InvalidData
from cq.keys.window import WindowKeys
from cq.queue.rows import decode_row
from cq.queue.set_aside import updates_aside
from cq.queue.slots import combined
from cq.queue.window_rows import is_removable, read_expiring, updates_that_count
from cq.store.api import WANT_ALL, KeyValue
from cq.verify.piece import Difference, Found, Piece
from cq.verify.queued import key_of, refuse_future, shown_key
from cq.verify.verification import Verification
from cq.windows.pending import read_pending_updates

RECOUNT_BYTES: Final = 4_000_000
"""Bytes to recount, at most: of rows, of values, and of updates set aside."""
_COUNTER_BYTES: Final = 8


def check_window(piece: Piece, found: Found) -> None:
    """Check a key of a window: a row that can expire, the mark of its operation id, a count, or the lock."""
    window = WindowKeys(piece.name)
    if found.rest[:1] == b"r":
        _check_row(piece, window, found)
    elif found.rest[:1] == b"o":
        _check(window.is_operation(found.key) and not found.value, "the mark of a row's operation id")
    elif found.key in (window.late, window.future):
        _check(len(found.value) == _COUNTER_BYTES, "a count")
    else:
        _check(found.key == window.lock, "one of a window")


def _check_row(piece: Piece, window: WindowKeys, found: Found) -> None:
    _check(window.is_row(found.key), "a row of a window")
    row = decode_row(found.key, found.value)
    for encoded, update in row.updates:
        key_of(piece.config, encoded)
        _check(is_removable(piece.config, update), "a row of updates that can be removed")
    refuse_future(piece, row.versionstamp)
    if row.operation is None:
        return
    mark = window.operation_of(row.key)
    what = "a row with an operation id that can be trimmed before the row expires"
    piece.require(mark, "window-operation", mark, what, partial(piece.tr.set, mark, b""))


def check_totals(verification: Verification) -> Iterator[Difference]:
    """Recount the window at one read version, and compare the result with the totals."""
    reason, differences = verification.piece(_recount)
    if reason:
        verification.note(f"the window is not recounted: {reason}")
    yield from differences


def _recount(piece: Piece) -> str:
    """Compare the totals of a window with its rows; return why they cannot be compared, empty if they can."""
    if piece.config.subtracted_window is None:
        return ""
    if read_purging(piece.snapshot, piece.config):
        return "the queue is being purged"
    limit = piece.share(RECOUNT_BYTES)
    try:
        rows = read_expiring(piece.snapshot, piece.config, WindowKeys(piece.name).rows(), limit)
        values = read_up_to(piece, piece.keys.values(), limit)
        aside = read_up_to(piece, piece.keys.aside(), limit)
        if not rows.at_end or values is None or aside is None:
            return f"it holds more than {RECOUNT_BYTES:,} bytes"
        expected = updates_that_count(piece.snapshot, piece.keys, rows.rows)
        found = defaultdict(list, read_pending_updates(piece.snapshot, piece.config))
        _add(found, ((piece.keys.encoded_key(row.key), codec.decode(row.value)) for row in values))
        for row in aside:
            _add(found, updates_aside(piece.keys, row.key, row.value))
    except BacklogTooDeep:
        return f"it holds more than {RECOUNT_BYTES:,} bytes"
    except CorruptData:  # reported as a separate difference
        return "some data of the queue cannot be read"
    for encoded in {*expected, *found}:
        try:
            there, wanted = (_total(piece, each.get(encoded, ())) for each in (found, expected))
        except InvalidData as error:
            return f"the updates of a key cannot be combined: {error}"
        if there != wanted:
            what = f"{_shown(there)} in the total, but {_shown(wanted)} in the rows that will expire"
            key = shown_key(piece.config, encoded)
            piece.report("window-total", piece.keys.value(encoded), what, key=key)
    return ""


def _total(piece: Piece, updates: Sequence[Any]) -> Any:
    """The combination of those updates that can be removed; None for nothing."""
    exact = [update for update in updates if is_removable(piece.config, update)]
    return combined(BUILT_IN[piece.config.combiner.name], None, exact)


def _shown(total: Any) -> str:
    return f"{total or 0:,}" if isinstance(total, int | None) else codec.brief(total)


def read_up_to(piece: Piece, bounds: tuple[bytes, bytes], limit: int) -> list[KeyValue] | None:
    """Read a range; None if it has more than `limit` bytes."""
    rows, size = [], 0
    for row in piece.snapshot.get_range(*bounds, streaming_mode=WANT_ALL):
        rows.append(row)
        size += len(row.key) + len(row.value)
        if size > limit:
            return None
    return rows


def _add(totals: defaultdict[bytes, list[Any]], updates: Iterable[tuple[bytes, Any]]) -> None:
    for encoded, update in updates:
        totals[encoded].append(update)


def _check(holds: bool, what: str) -> None:
    if not holds:
        raise CorruptData(f"it is not {what}")
