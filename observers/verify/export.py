"""Checks of a queue's export: queued entries, the progress of each bucket, entries set aside, and the table.

Entries and notifications are added and removed together, so at any version a bucket without a notification has no
entries. `cq.observers.sql.verify` compares the table; it waits for pending changes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from cq.encoding import codec
from cq.encoding.hashing import bucket_of
from cq.errors import CorruptData, CqError
from cq.keys import INCOMPLETE_VERSIONSTAMP, VERSIONSTAMP_BYTES, version_of
from cq.keys.export import SEQUENCE_BYTES, ExportKeys, sequence_at, versionstamp_of
from cq.observers.export.errors import ExportFailed
from cq.observers.export.queue import BUCKETS
from cq.observers.export.rows import MAX_PIECES, QueuedEntries, is_piece, is_whole, unpack
from cq.observers.export.state import Control, ExportState, check_failure, check_stopped, set_entry_aside
from cq.observers.sql.configured import NAME, find_export
from cq.store.api import KeyValue, Value
from cq.verify.verification import Difference, Piece, Verification

_FAILURE: Final = b"f"  # of a bucket, or of the whole export


def check_export(piece: Piece, rest: bytes, found: KeyValue) -> bytes | None:
    """Check a row of an export queue."""
    keys = ExportKeys(piece.name)
    letter, data = rest[:1], rest[1:]
    if letter == b"q":
        return _check_row(piece, keys, data, found)
    if letter == b"n":
        _check_notification(piece, data, found)
    elif letter == b"x":
        _check_aside(piece, keys, found)
    elif letter in _STATES:
        _check_state(piece, letter, data, found)
    else:
        piece.report("unknown-key", found.key, "not a key of an export queue")
    return None


def _check_state(piece: Piece, letter: bytes, data: bytes, found: KeyValue) -> None:
    of_bucket, check = _STATES[letter]
    try:
        if of_bucket or (data and letter == _FAILURE):
            _check_bucket(data)
        elif data:
            raise CorruptData("the key is not one of an export queue")
        check(found.value)
    except CorruptData as error:
        piece.report("export-state", found.key, str(error), partial(piece.tr.clear, found.key))


def _check_bucket(data: bytes) -> None:
    if len(data) != 4 or ExportKeys.bucket_of(data) >= BUCKETS:
        raise CorruptData("of a bucket that does not exist")


def _check_stamp(value: bytes) -> None:
    if len(value) != VERSIONSTAMP_BYTES:
        raise CorruptData("not a versionstamp")


_STATES: Final[dict[bytes, tuple[bool, Callable[[bytes], object]]]] = {
    b"b": (True, ExportState.from_bytes),
    b"c": (False, Control.from_bytes),
    _FAILURE: (False, check_failure),
    b"k": (False, _check_stamp),
    b"s": (False, check_stopped),
}
"""{letter: (whether a bucket follows it, function that raises `CorruptData` for an invalid value)}."""


def _check_notification(piece: Piece, data: bytes, found: KeyValue) -> None:
    try:
        _check_bucket(data)
    except CorruptData as error:
        piece.report("export-notification", found.key, str(error), partial(piece.tr.clear, found.key))


# Queued entries


def _check_row(piece: Piece, keys: ExportKeys, data: bytes, found: KeyValue) -> bytes | None:
    """Check a row of entries: its bucket exists and is notified, it is not of the future, and it is readable."""
    try:
        sequence = keys.sequence_of_row(found.key)
        bucket = ExportKeys.bucket_of(data)
        _check_bucket(data[:4])
    except CorruptData as error:
        # The row may be valuable: the repair sets it aside, as exports do with entries that they cannot export.
        piece.report("export-row", found.key, str(error), partial(_keep_lost, piece, keys, found, str(error)))
        return None
    version = version_of(versionstamp_of(sequence))
    notification = piece.snapshot.get(keys.notification(bucket))
    if version > piece.version:
        what = "stamped later than anything committed: copied from another store?"
        piece.report(
            "export-row",
            found.key,
            what,
            partial(_keep, piece, keys, bucket, [(sequence, found.value)], what),
        )
        return None

    def check() -> None:
        if notification.value is None:
            piece.report(
                "export-notification",
                found.key,
                f"bucket {bucket} has entries but no notification",
                partial(
                    piece.tr.set_versionstamped_value, keys.notification(bucket), INCOMPLETE_VERSIONSTAMP
                ),
            )

    piece.defer(check)
    _check_entries(piece, keys, bucket, sequence, found)
    return keys.rows_later_than(bucket, sequence, piece.future) if version > piece.began else None


def _check_entries(piece: Piece, keys: ExportKeys, bucket: int, sequence: bytes, found: KeyValue) -> None:
    """Check the entries of a row; an entry in several pieces is checked with its first piece."""
    if is_whole(found.value):
        _check_unpacked(piece, keys, bucket, [(sequence, found.value)], found)
        return
    before = _neighbour(piece, keys, bucket, sequence, -1)

    def check() -> None:
        if before is not None and (value := before[1].value) is not None and is_piece(value):
            return
        pieces = [(sequence, found.value)]
        while is_piece(pieces[-1][1]) and len(pieces) <= MAX_PIECES:
            following = _neighbour(piece, keys, bucket, sequence, len(pieces))
            if following is None or (value := following[1].value) is None:
                break
            pieces.append((following[0], value))
        _check_unpacked(piece, keys, bucket, pieces, found)

    piece.defer(check)


def _neighbour(
    piece: Piece, keys: ExportKeys, bucket: int, sequence: bytes, offset: int
) -> tuple[bytes, Value] | None:
    """The sequence at an offset from another one, and the read of its row; None if there is no such sequence."""
    try:
        other = sequence_at(sequence, offset)
    except CorruptData:
        return None
    return other, piece.snapshot.get(keys.row(bucket, other))


def _check_unpacked(
    piece: Piece, keys: ExportKeys, bucket: int, pieces: list[tuple[bytes, bytes]], found: KeyValue
) -> None:
    unpacked = QueuedEntries()
    unpack(unpacked, pieces)
    for broken in unpacked.broken:
        fix = partial(_keep, piece, keys, bucket, pieces, broken.error)
        piece.report("export-row", found.key, broken.error, fix)
    astray = [entry for entry in unpacked.entries if bucket_of(entry.encoded_key, BUCKETS) != bucket]
    if astray:
        what = f"{len(astray):,} entries in bucket {bucket} have keys of other buckets"
        piece.report("export-row", found.key, what, key=astray[0].key)


def _keep(piece: Piece, keys: ExportKeys, bucket: int, rows: list[tuple[bytes, bytes]], error: str) -> None:
    """Set unreadable rows aside, as exports do; a concurrent export would write the same."""
    data = b"".join(value for _, value in rows)
    set_entry_aside(piece.tr, keys, bucket, rows[0][0], error, None, data)
    for sequence, _ in rows:
        piece.tr.clear(keys.row(bucket, sequence))


def _keep_lost(piece: Piece, keys: ExportKeys, found: KeyValue, error: str) -> None:
    sequence = found.key[-SEQUENCE_BYTES:].rjust(SEQUENCE_BYTES, b"\x00")
    set_entry_aside(piece.tr, keys, 0, sequence, error, None, found.value)
    piece.tr.clear(found.key)


# Entries set aside


def _check_aside(piece: Piece, keys: ExportKeys, found: KeyValue) -> None:
    """Check a piece of an entry set aside; the whole entry is checked with its first piece."""
    parsed = keys.parse_aside(found.key)
    if parsed is None:
        _report_aside(piece, found, "the key is not one of an export queue")
        return
    bucket, sequence, number = parsed
    if number:
        first = piece.snapshot.get(keys.aside_piece(bucket, sequence, 0))

        def check_first() -> None:
            if first.value is None:
                _report_aside(piece, found, "a piece without the first one")

        piece.defer(check_first)
        return
    following = piece.snapshot.get_range(found.key, keys.aside_end(bucket, sequence))

    def check() -> None:
        try:
            content = codec.decode(b"".join(each.value for each in following))
        except CorruptData as error:
            _report_aside(piece, found, str(error))
        else:
            if not isinstance(content, list) or len(content) != 3:
                _report_aside(piece, found, "it holds no error, key and value")

    piece.defer(check)


def _report_aside(piece: Piece, found: KeyValue, what: str) -> None:
    piece.report("export-aside", found.key, f"{what}; `cq export rebuild` exports the current values")


# The table


def check_table(wait_seconds: float, url_env: str | None) -> Callable[[Verification], Iterator[Difference]]:
    """A part of the verification that compares the exported table with the values.

    It is skipped without an export, and with a note if the URL of the database is not set.

    Args:
        wait_seconds: how long to wait for pending changes.
        url_env: the environment variable with the URL, None for the configured one.
    """

    def check(verification: Verification) -> Iterator[Difference]:
        verification.part = "table"
        config, _ = verification.piece(lambda piece: piece.config)
        observer = next((each for each in config.observers if each.name == NAME), None)
        if observer is None or not observer.is_built_in:
            return
        variable = url_env or str(observer.settings["url_env"])
        if not os.environ.get(variable):
            verification.note(f"the table was not compared with the values: ${variable} is not set")
            return
        yield from _compare(verification, variable, wait_seconds)

    return check


def _compare(verification: Verification, variable: str, wait_seconds: float) -> Iterator[Difference]:
    from cq.observers.sql import rebuild, verify

    found = find_export(verification.db, verification.name, url_env=variable)
    try:
        result = verify.verify(verification.db, found, wait_seconds=wait_seconds)
        if result.differences and verification.repair:
            rebuild.rebuild(verification.db, found)
    except ExportFailed:
        raise
    except (
        CqError
    ) as error:  # the table is being filled, or a value cannot be read, which another check reports
        verification.note(f"the table was not compared with the values: {error}")
        return
    finally:
        found.reporting.close()
    if result.undecided:
        verification.note(
            f"{len(result.undecided):,} keys of the table were not compared: their changes are not exported yet"
        )
    if not result.is_complete:
        verification.note("the comparison of the table stopped early because of too many differences")
    for each in result.differences:
        value = "no value" if each.value is None else repr(each.value)[:40]
        row = "no row" if each.row is None else repr(each.row)[:80]
        where = b"" if each.key is None else verification.keys.value(codec.encode(each.key))
        what = f"the queue has {value}, the table {row}" + (f" ({each.reason})" if each.reason else "")
        yield Difference("export-table", where, what, each.key, True, verification.repair)
