"""Checks of a queue's links and outbox: queued entries, positions, entries set aside, and tables.

Entries and notifications are added and removed together, so at any version a bucket without a notification has no
entries. `cq.observers.links.sql.verify` compares the table; it waits for pending changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from cq import runtime
from cq.app import App
from cq.encoding import codec
from cq.errors import CorruptData, CqError
from cq.keys import version_of
from cq.keys.link import SEQUENCE_BYTES, LinkKeys, links_of, split_link, versionstamp_of
from cq.observers.links.log import BUCKETS, unpack
from cq.observers.links.operate import OpenLink
from cq.observers.links.outbox.state import OutboxSettings, parse_state
from cq.observers.links.registry import opened_link, table_check
from cq.observers.links.spec import kind_of_link, links_in, read_variable
from cq.observers.links.state import (
    AsideEntry,
    Control,
    LinkFailure,
    LinkState,
    LinkStop,
    set_entry_aside,
)
from cq.observers.links.target import LinkFailed
from cq.verify.layout import check_stamp, parse
from cq.verify.piece import FROM_THE_FUTURE, Difference, Found, Piece, RowCheck, RowVisitor, Steps, readable
from cq.verify.verification import Verification


def check_link(piece: Piece, found: Found) -> bytes | None:
    """Check a row of a link."""
    rest = split_link(found.rest)[1]
    check = _CHECKS.get(rest[:1])
    if check is None:
        raise CorruptData("not a key of a link")
    return check.run(piece, found._replace(rest=rest[1:]))


def _keys(piece: Piece, found: Found) -> LinkKeys:
    """The keys of the link of a row."""
    return LinkKeys(piece.name, split_link(found.key[len(links_of(piece.name)[0]) :])[0])


def _check_bucket(bucket: int) -> None:
    if bucket >= BUCKETS:
        raise CorruptData("of a bucket that does not exist")


def _of_bucket(parse_value: Callable[[bytes], object]) -> RowVisitor:
    """The check of a row of a bucket, or, if its key names none, of the whole link."""

    def check(piece: Piece, found: Found) -> None:
        for bucket in parse("bucket4", found.rest) if found.rest else ():
            _check_bucket(bucket)
        parse_value(found.value)

    return check


# Queued entries


def _check_row(piece: Piece, found: Found) -> bytes | None:
    """Check a row of entries: its bucket exists and is notified, it is not of the future, and it is readable."""
    bucket, sequence, tail = found.fields
    _check_bucket(bucket)
    keys = _keys(piece, found)
    version = version_of(versionstamp_of(sequence))
    if version > piece.version:
        _report_row(piece, bucket, sequence, found, FROM_THE_FUTURE)
        return None
    where = keys.notification(bucket)
    what = f"bucket {bucket} has entries but no notification"
    piece.require(where, "link-notification", found.key, what, partial(piece.stamp, where))
    try:
        unpack(sequence, tail, found.value)
    except CorruptData as error:
        _report_row(piece, bucket, sequence, found, str(error))
    return keys.rows_later_than(bucket, sequence, piece.future) if version > piece.began else None


def _report_row(piece: Piece, bucket: int, sequence: bytes, found: Found, error: str) -> None:
    """Report an unreadable row; the repair sets it aside, as workers do: a concurrent one would write the same."""

    def keep() -> None:
        set_entry_aside(piece.tr, _keys(piece, found), AsideEntry(bucket, sequence, error, None, found.value))
        piece.tr.clear(found.key)

    piece.report("link-row", found.key, error, keep)


def _keep_lost(piece: Piece, found: Found) -> None:
    """Set a row without a bucket aside, since it may be valuable."""
    sequence = found.key[-SEQUENCE_BYTES:].rjust(SEQUENCE_BYTES, b"\x00")
    error = "its key is not one of a link"
    set_entry_aside(piece.tr, _keys(piece, found), AsideEntry(0, sequence, error, None, found.value))
    piece.tr.clear(found.key)


# Entries set aside


def _check_aside(piece: Piece, found: Found) -> Steps:
    """Check a piece of an entry set aside; the whole entry is checked with its first piece."""
    keys = _keys(piece, found)
    bucket, sequence, number = found.fields
    if number:
        first = keys.aside_piece(bucket, sequence, 0)
        what = f"a piece without the first one; {_REBUILD}"
        piece.require(first, "link-aside", found.key, what)
        return
    pieces = piece.snapshot.get_range(found.key, keys.aside_end(bucket, sequence))
    yield None
    content = codec.decode(b"".join(each.value for each in pieces))
    if not isinstance(content, list) or len(content) != 3:
        raise CorruptData(f"it holds no error, key and value; {_REBUILD}")


_REBUILD: Final = "`cq link rebuild` sends the current values"
_CHECKS: Final = {
    b"b": RowCheck("link-state", "bucket4", _of_bucket(LinkState.from_bytes)),
    b"c": RowCheck("link-state", "", readable(Control.from_bytes)),
    b"f": RowCheck("link-state", None, _of_bucket(LinkFailure.from_bytes)),
    b"k": RowCheck("link-state", "", readable(check_stamp)),
    b"n": RowCheck("link-notification", "bucket4", _of_bucket(bytes)),
    b"q": RowCheck("link-row", "bucket4 sequence22 key?", _check_row, _keep_lost),
    b"s": RowCheck("link-state", "", readable(LinkStop.from_bytes)),
    b"x": RowCheck("link-aside", "bucket4 sequence22 piece4", _check_aside, None),
}
"""{letter after the prefix of a link: the check of its rows}."""


# The tables


def check_tables(verification: Verification, app: App | None, wait_seconds: float) -> Iterator[Difference]:
    """Compare the tables of links with the values; with a repair, send all values again after the comparison.

    Skips a table, with a note, if the URL of its database is not set. Raises `LinkFailed`, after all others, for a
    table whose database cannot be read.

    Args:
        verification: the verification.
        app: the application, with the columns of its tables.
        wait_seconds: how long to wait for pending changes, of all tables together.
    """
    failed: LinkFailed | None = None
    deadline = runtime.monotonic() + wait_seconds
    for link, observer in links_in(verification.config()).items():
        if kind_of_link(verification.name, observer.name, observer.settings) != "sql":
            continue
        variable = str(observer.settings["url_env"])
        if not read_variable(variable):
            verification.note(f"{_table_of(link)} was not compared with the values: ${variable} is not set")
            continue
        try:
            with opened_link(verification.db, verification.name, link, app=app) as opened:
                yield from _check_table(verification, opened, deadline - runtime.monotonic())
        except LinkFailed as error:
            failed = failed or error
    if failed is not None:
        raise failed


def _check_table(verification: Verification, link: OpenLink, seconds: float) -> Iterator[Difference]:
    try:
        differences = list(table_check(link).run(verification, seconds))
        if differences and verification.repair:
            link.rebuild()
        yield from (replace(each, repaired=verification.repair) for each in differences)
    except LinkFailed:
        raise
    except CqError as error:
        # The table is being filled, or a value is unreadable, which another check reports.
        verification.note(f"{_table_of(link.keys.link)} was not compared with the values: {error}")


def _table_of(link: str) -> str:
    return f"the table of link {link!r}"


def check_outbox(piece: Piece, found: Found) -> None:
    """Check a row of an outbox: its key, and that its value is readable. Raises `CorruptData`."""
    check = _OUTBOX_CHECKS.get(found.rest)
    if check is None:
        raise CorruptData("not a key of an outbox")
    check(found.value)


_OUTBOX_CHECKS: Final[Mapping[bytes, Callable[[bytes], object]]] = {
    b"o": OutboxSettings.from_bytes,
    b"b": parse_state,
    b"k": check_stamp,
    b"f": LinkFailure.from_bytes,
    b"s": LinkStop.from_bytes,
    b"c": Control.from_bytes,
}
