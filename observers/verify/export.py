"""Checks of a queue's export: queued entries, the progress of each bucket, entries set aside, and the table.

Entries and notifications are added and removed together, so at any version a bucket without a notification has no
entries. `cq.observers.sql.verify` compares the table; it waits for pending changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from cq.encoding import codec
from cq.encoding.hashing import bucket_of
from cq.errors import CorruptData, CqError
from cq.keys import version_of
from cq.keys.export import SEQUENCE_BYTES, ExportKeys, sequence_at, versionstamp_of
from cq.observers.export.batch import ExportFailed
from cq.observers.export.environment import read_variable
from cq.observers.export.queue import BUCKETS
from cq.observers.export.rows import QueuedEntries, is_piece, is_whole, unpack
from cq.observers.export.spec import NAME
from cq.observers.export.state import (
    AsideEntry,
    Control,
    ExportFailure,
    ExportState,
    ExportStop,
    set_entry_aside,
)
from cq.observers.sql.configured import find_export
from cq.verify.layout import check_stamp
from cq.verify.piece import FROM_THE_FUTURE, Difference, Found, Piece, RowCheck, readable
from cq.verify.verification import Verification

_BUCKET_BYTES: Final = 4


def check_export(piece: Piece, found: Found) -> bytes | None:
    """Check a row of an export queue."""
    check = _CHECKS.get(found.rest[:1])
    if check is None:
        raise CorruptData("not a key of an export queue")
    return check.run(piece, found._replace(rest=found.rest[1:]))


# Keys


def _check_bucket(rest: bytes) -> None:
    if len(rest) != _BUCKET_BYTES or ExportKeys.bucket_of(rest) >= BUCKETS:
        raise CorruptData("of a bucket that does not exist")


def _check_single(rest: bytes) -> None:
    if rest:
        raise CorruptData("the key is not one of an export queue")


def _check_failure(rest: bytes) -> None:
    if rest:  # of a bucket; else of the whole export
        _check_bucket(rest)


# Queued entries


def _check_row(piece: Piece, found: Found) -> bytes | None:
    """Check a row of entries: its bucket exists and is notified, it is not of the future, and it is readable."""
    keys = ExportKeys(piece.name)
    sequence = keys.sequence_of_row(found.key)
    _check_bucket(found.rest[:_BUCKET_BYTES])
    bucket = ExportKeys.bucket_of(found.rest)
    version = version_of(versionstamp_of(sequence))
    if version > piece.version:
        fix = partial(_keep, piece, bucket, [(sequence, found.value)], FROM_THE_FUTURE)
        piece.report("export-row", found.key, FROM_THE_FUTURE, fix)
        return None
    where = keys.notification(bucket)
    what = f"bucket {bucket} has entries but no notification"
    piece.require(where, "export-notification", found.key, what, partial(piece.stamp, where))
    if is_whole(found.value):
        _check_entries(piece, bucket, [(sequence, found.value)], found)
    else:
        _check_pieces(piece, bucket, sequence, found)
    return keys.rows_later_than(bucket, sequence, piece.future) if version > piece.began else None


def _check_pieces(piece: Piece, bucket: int, sequence: bytes, found: Found) -> None:
    """Check an entry in two pieces, the most that cq writes: with the first, or with the last if it has no first."""
    is_first = is_piece(found.value)
    other = sequence_at(sequence, 1 if is_first else -1)
    stored = piece.snapshot.get(ExportKeys(piece.name).row(bucket, other))

    def check() -> None:
        value = stored.value
        pieces = [(sequence, found.value)]
        if value is not None and not is_whole(value) and is_piece(value) != is_first:
            if not is_first:
                return
            pieces.append((other, value))
        _check_entries(piece, bucket, pieces, found)

    piece.defer(check)


def _check_entries(piece: Piece, bucket: int, pieces: list[tuple[bytes, bytes]], found: Found) -> None:
    unpacked = QueuedEntries()
    unpack(unpacked, pieces)
    for broken in unpacked.broken:
        fix = partial(_keep, piece, bucket, pieces, broken.error)
        piece.report("export-row", found.key, broken.error, fix)
    astray = [entry for entry in unpacked.entries if bucket_of(entry.encoded_key, BUCKETS) != bucket]
    if astray:
        what = f"{len(astray):,} entries in bucket {bucket} have keys of other buckets"
        piece.report("export-row", found.key, what, key=astray[0].key)


def _keep(piece: Piece, bucket: int, rows: list[tuple[bytes, bytes]], error: str) -> None:
    """Set unreadable rows aside, as exports do; a concurrent export would write the same."""
    keys = ExportKeys(piece.name)
    data = b"".join(value for _, value in rows)
    set_entry_aside(piece.tr, keys, AsideEntry(bucket, rows[0][0], error, None, data))
    for sequence, _ in rows:
        piece.tr.clear(keys.row(bucket, sequence))


def _keep_lost(piece: Piece, found: Found) -> None:
    """Set a row without a bucket aside, since it may be valuable."""
    sequence = found.key[-SEQUENCE_BYTES:].rjust(SEQUENCE_BYTES, b"\x00")
    error = "its key is not one of an export queue"
    set_entry_aside(piece.tr, ExportKeys(piece.name), AsideEntry(0, sequence, error, None, found.value))
    piece.tr.clear(found.key)


# Entries set aside


def _check_aside(piece: Piece, found: Found) -> None:
    """Check a piece of an entry set aside; the whole entry is checked with its first piece."""
    keys = ExportKeys(piece.name)
    parsed = keys.parse_aside(found.key)
    if parsed is None:
        raise CorruptData(f"the key is not one of an export queue; {_REBUILD}")
    bucket, sequence, number = parsed
    if number:
        first = keys.aside_piece(bucket, sequence, 0)
        what = f"a piece without the first one; {_REBUILD}"
        piece.require(first, "export-aside", found.key, what)
        return
    pieces = piece.snapshot.get_range(found.key, keys.aside_end(bucket, sequence))

    def check() -> None:
        try:
            content = codec.decode(b"".join(each.value for each in pieces))
            if not isinstance(content, list) or len(content) != 3:
                raise CorruptData("it holds no error, key and value")
        except CorruptData as error:
            piece.report("export-aside", found.key, f"{error}; {_REBUILD}")

    piece.defer(check)


_REBUILD: Final = "`cq export rebuild` exports the current values"
_CHECKS: Final = {
    b"b": RowCheck("export-state", readable(_check_bucket, ExportState.from_bytes)),
    b"c": RowCheck("export-state", readable(_check_single, Control.from_bytes)),
    b"f": RowCheck("export-state", readable(_check_failure, ExportFailure.from_bytes)),
    b"k": RowCheck("export-state", readable(_check_single, check_stamp)),
    b"n": RowCheck("export-notification", readable(_check_bucket, bytes)),
    b"q": RowCheck("export-row", _check_row, _keep_lost),
    b"s": RowCheck("export-state", readable(_check_single, ExportStop.from_bytes)),
    b"x": RowCheck("export-aside", _check_aside, None),
}
"""{letter after the prefix of an export queue: the check of its rows}."""


# The table


def check_table(verification: Verification, wait_seconds: float, url_env: str | None) -> Iterator[Difference]:
    """Compare the exported table with the values; with a repair, export it again after the comparison.

    Skipped without an export, and with a note if the URL of the database is not set.

    Args:
        verification: the verification.
        wait_seconds: how long to wait for pending changes.
        url_env: the environment variable with the URL, None for the configured one.
    """
    observer = next((each for each in verification.config().observers if each.name == NAME), None)
    if observer is None or not observer.is_built_in:
        return
    variable = url_env or str(observer.settings["url_env"])
    if not read_variable(variable):
        verification.note(f"the table was not compared with the values: ${variable} is not set")
        return
    # SQLAlchemy is an extra: import its users only where a table is exported.
    from cq.observers.sql import rebuild
    from cq.observers.sql.verify import TableCheck

    db = verification.db
    found = find_export(db, verification.name, url_env=variable)
    try:
        differences = list(TableCheck(db, found, wait_seconds).run(verification))
        if differences and verification.repair:
            rebuild.rebuild(db, found)
        yield from (replace(each, repaired=verification.repair) for each in differences)
    except ExportFailed:
        raise
    except CqError as error:
        # The table is being filled, or a value is unreadable, which another check reports.
        verification.note(f"the table was not compared with the values: {error}")
    finally:
        found.reporting.close()
