"""Checks of a queue's window: of each row, and of the totals against the rows.

    stored + staged + queued + set aside = rows that will expire

holds in every commit, key by key: an add changes both sides, and so does an expiry.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from typing import Final

from cq.admin.purge import read_purging
from cq.config.queue import QueueConfig, read_config
from cq.encoding import codec
from cq.errors import BacklogTooDeep, CorruptData
from cq.keys import QueueKeys, version_of
from cq.keys.window import WindowKeys
from cq.queue.rows import decode_row
from cq.queue.set_aside import updates_aside
from cq.queue.window_rows import read_expiring, sum_up
from cq.store.api import WANT_ALL, KeyValue, TransactionRead
from cq.store.transact import transact
from cq.verify.queued import key_of, shown_key
from cq.verify.repairs import set_bytes_aside
from cq.verify.verification import FROM_THE_FUTURE, Difference, Piece, Verification
from cq.windows.pending import read_pending_sums

RECOUNT_BYTES: Final = 4_000_000
"""Bytes to recount, at most: of rows, of values, and of updates set aside."""
_COUNTER_BYTES: Final = 8


def check_window(piece: Piece, rest: bytes, found: KeyValue) -> bytes | None:
    """Check a key of a window: a row that can expire, the mark of its operation id, a count, or the lock."""
    window = WindowKeys(piece.name)
    try:
        if rest[:1] == b"r":
            _check_row(piece, window, found)
        elif rest[:1] == b"o":
            _check_operation(piece, window, found)
        elif found.key in (window.late, window.future):
            _check(len(found.value) == _COUNTER_BYTES, "a count")
        else:
            _check(found.key == window.lock, "one of a window")
    except CorruptData as error:
        piece.report("window-key", found.key, str(error), partial(_set_aside, piece, found))
    return None


def _check_row(piece: Piece, window: WindowKeys, found: KeyValue) -> None:
    _check(window.is_row(found.key), "a row of a window")
    row = decode_row(found.key, found.value)
    for encoded, update in row.updates:
        key_of(piece.config, encoded)
        _check(type(update) is int, "a row of ints")
    if version_of(row.versionstamp) > piece.version:
        raise CorruptData(f"a row is {FROM_THE_FUTURE}")
    if row.operation is not None:
        stands = piece.snapshot.get(window.operation_of(row.key))
        piece.defer(lambda: _check_id_is_remembered(piece, window.operation_of(row.key), stands.value))


def _check_id_is_remembered(piece: Piece, key: bytes, stored: bytes | None) -> None:
    if stored is None:
        what = "a row with an operation id that can be trimmed before the row expires"
        piece.report("window-operation", key, what, partial(piece.tr.set, key, b""))


def _check_operation(piece: Piece, window: WindowKeys, found: KeyValue) -> None:
    _check(window.is_operation(found.key) and not found.value, "the mark of a row's operation id")


def _set_aside(piece: Piece, found: KeyValue) -> None:
    set_bytes_aside(piece, "a key of a window that cq did not write", found.value or b"\x00")
    piece.tr.clear(found.key)


def check_window_totals(verification: Verification) -> Iterator[Difference]:
    """Recount the window at one read version, and compare the result with the totals."""
    verification.part = "window"
    config = transact(verification.db, lambda tr: read_config(tr.snapshot, verification.name))
    if config.window is None:
        return
    _, differences = verification.piece(partial(_recount, verification))
    yield from differences


def _recount(verification: Verification, piece: Piece) -> None:
    config, window = piece.config, WindowKeys(piece.name)
    if read_purging(piece.snapshot, config):
        verification.note("the window is not recounted: the queue is being purged")
        return
    limit = verification.share(RECOUNT_BYTES)
    try:
        rows = read_expiring(piece.snapshot, config, window.rows(), limit)
        _check_complete(rows.at_end)
        expected = sum_up(piece.snapshot, piece.keys, rows.rows)
        found = defaultdict(int, read_pending_sums(piece.snapshot, config))
        _add_values(piece.snapshot, piece.keys, found, limit)
        _add_aside(piece.snapshot, piece.keys, found, limit)
    except BacklogTooDeep:
        verification.note(f"the window is not recounted: it holds more than {RECOUNT_BYTES:,} bytes")
        return
    except CorruptData:  # reported as a separate difference
        verification.note("the window is not recounted: some data of the queue cannot be read")
        return
    for encoded in {*expected, *found}:
        _compare(piece, config, encoded, found.get(encoded, 0), expected.get(encoded, 0))


def _compare(piece: Piece, config: QueueConfig, encoded: bytes, found: int, expected: int) -> None:
    if found != expected:
        what = f"{found:,} in the total, but {expected:,} in the rows that will expire"
        piece.report("window-total", piece.keys.value(encoded), what, key=shown_key(config, encoded))


def _add_values(
    snapshot: TransactionRead, queue: QueueKeys, totals: defaultdict[bytes, int], limit: int
) -> None:
    size = 0
    for row in snapshot.get_range(*queue.values(), streaming_mode=WANT_ALL):
        value = codec.decode(row.value)
        totals[queue.encoded_key(row.key)] += value if type(value) is int else 0
        size += len(row.key) + len(row.value)
        _check_complete(size <= limit)


def _add_aside(
    snapshot: TransactionRead, queue: QueueKeys, totals: defaultdict[bytes, int], limit: int
) -> None:
    size = 0
    for row in snapshot.get_range(*queue.aside(), streaming_mode=WANT_ALL):
        for encoded, update in updates_aside(queue, row.key, row.value):
            totals[encoded] += update if type(update) is int else 0
        size += len(row.key) + len(row.value)
        _check_complete(size <= limit)


def _check_complete(is_all: bool) -> None:
    if not is_all:
        raise BacklogTooDeep("the window is too large to be recounted in one transaction")


def _check(holds: bool, what: str) -> None:
    if not holds:
        raise CorruptData(f"it is not {what}")
