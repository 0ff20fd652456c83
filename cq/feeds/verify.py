"""Check of a live feed for corrupt or inconsistent data; reads only.

Each piece is read at one version, so concurrent senders and workers cause no false differences. The check compares a
receiver's messages with their numbers page by page: from the end of the page before, or from the last removed message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

from cq.encoding.codec import brief
from cq.errors import CorruptData
from cq.feeds.config import FeedConfig, read_feed_config
from cq.feeds.groups import check_event
from cq.feeds.messages import COUNT_BYTES, StoredMessage, decode_message, is_quiet, take
from cq.keys import prefix_end
from cq.keys.feed import (
    ID_BYTES,
    FeedKeys,
    bucket_of,
    decode_name,
    id_of,
    split_mark,
    split_removed,
    versionstamp_of_id,
)
from cq.store.api import Database, KeyValue, Transaction, TransactionRead
from cq.store.bounded_reads import scan_rows
from cq.store.transact import transact

_PAGE: Final = 500
_MOST: Final = (1 << 64) - 1


class FeedDifference(NamedTuple):
    """An inconsistency in a feed: its receiver or group (`whose`), and a description."""

    whose: str
    what: str


class _VerifiedPage(NamedTuple):
    """The result for a page of a receiver's messages.

    Attributes:
        found: the problems in it.
        position, number: id and number of its last message, after which the next page begins.
        more: whether there are more messages.
        total: number of messages up to the position that the receiver has ever got, and that count as unread.
    """

    found: list[str]
    position: bytes
    number: int
    more: bool
    total: int = 0


def verify_feed(db: Database, name: str) -> Iterator[FeedDifference]:
    """Yield all inconsistencies of a feed: messages, numbers and notes that are damaged, lost or superfluous.

    In addition joins and leaves that are damaged, as a group's messages wait for them.

    In a feed with numbers, at most one page of messages without numbers is checked for each receiver. Costs about two
    reads for each stored message; conflicts with no other transaction. Raises `FeedNotConfigured`.
    """
    config = transact(db, lambda tr: read_feed_config(tr.snapshot, name))
    keys = FeedKeys(name)
    begin, end = keys.all_latest()
    for row, _ in scan_rows(db, begin, end):
        receiver = row[len(begin) :]
        whose = f"receiver {_shown(receiver)}"
        page = _VerifiedPage([], b"", 0, True)
        while page.more:
            page = transact(db, _by_snapshot(partial(_check_messages, config, keys, receiver, page)))
            yield from (FeedDifference(whose, what) for what in page.found)
    place: bytes | None = keys.all_group_messages()[0]
    while place is not None:
        place, found = transact(db, _by_snapshot(partial(_check_group, keys, place)))
        yield from found
    for row, value in scan_rows(db, *keys.all_events()):
        try:
            check_event(value)
        except CorruptData as error:
            yield FeedDifference(f"group and user {_shown(keys.names_of(row))}", str(error))


def _by_snapshot(check: Callable[[TransactionRead], Any]) -> Callable[[Transaction], Any]:
    return lambda tr: check(tr.snapshot)


def _check_messages(
    config: FeedConfig, keys: FeedKeys, receiver: bytes, before: _VerifiedPage, tr: TransactionRead
) -> _VerifiedPage:
    """Check the next messages of a receiver."""
    futures = [tr.get(each(receiver)) for each in (keys.removed, keys.numbered, keys.latest, keys.appended)]
    try:
        removed, removed_number, removed_count = split_removed(futures[0].value)
        last, last_number = split_mark(futures[1].value)
    except CorruptData as error:
        return _VerifiedPage([str(error)], b"", 0, False)
    # Retention may have removed messages after the page before.
    position, number = max((before.position, before.number), (removed, removed_number))
    _, count = max((before.position, before.total), (removed, removed_count))
    rows, more = take(tr.get_range(*keys.messages(receiver, position), limit=_PAGE + 1), _PAGE)
    found = list(_undecodable(rows))
    if config.keep_seconds is None:
        found += _without_text(tr, keys, receiver, rows)
    if removed and tr.get_range(*keys.messages_through(receiver, removed), limit=1).to_list():
        found.append("messages exist that are recorded as removed")
    ids = [id_of(row.key) for row in rows]
    if ids and (futures[2].value or b"") < versionstamp_of_id(ids[-1]):
        found.append("waiting readers are not notified of the latest message")
    count += sum(not is_quiet(row.value) for row in rows)
    counted = futures[3].value or b""
    appended = int.from_bytes(counted[:COUNT_BYTES], "little")
    if config.unread and not more and (count != appended or len(counted) > COUNT_BYTES):
        found.append(f"{appended:,} messages were counted, and there were {count:,}")
    if config.numbers:
        with_number = [id_ for id_ in ids if id_ <= last]
        found += _wrong_numbers(tr, keys, receiver, number, with_number)
        number += len(with_number)
        # Workers may number later messages before the next page is read, so the check ends here.
        more = more and len(with_number) == len(ids)
        if not more and number != last_number:
            found.append(f"numbers go to {last_number:,}, and messages to {number:,}")
        beyond, end = keys.number(receiver, last_number + 1), keys.number(receiver, _MOST)
        if not more and tr.get_range(beyond, end, limit=1).to_list():
            found.append(f"numbers go to {last_number:,}, and there are greater numbers")
        if len(with_number) < len(ids) and not _is_noted(tr, keys.unnumbered, keys.numbering, receiver):
            found.append("messages have no numbers, and no worker is notified")
    return _VerifiedPage(found, ids[-1] if ids else position, number, more, count)


def _undecodable(rows: list[KeyValue]) -> Iterator[str]:
    for row in rows:
        try:
            decode_message(row)
        except CorruptData as error:
            yield f"message {id_of(row.key).hex()}: {error}"


def _without_text(
    tr: TransactionRead, keys: FeedKeys, receiver: bytes, rows: list[KeyValue]
) -> Iterator[str]:
    """Find copies of messages to groups whose text is not stored; nothing removes it in a feed without an age."""
    places = {}
    for row in rows:
        with suppress(CorruptData):
            stored = StoredMessage.from_bytes(row.value)
            place = stored.place_of_text(keys, receiver)
            if place is not None and stored.changes is None:
                places[id_of(row.key)] = tr.get(place)
    for id_, text in places.items():
        if not text.present():
            yield f"message {id_.hex()}: the text to the group is not stored"


def _wrong_numbers(
    tr: TransactionRead, keys: FeedKeys, receiver: bytes, number: int, ids: list[bytes]
) -> Iterator[str]:
    """Compare the next numbers with the ids of their messages."""
    begin, end = keys.number(receiver, number + 1), keys.number(receiver, number + 1 + len(ids))
    stored = {row.key: row.value for row in tr.get_range(begin, end)}
    for at, id_ in enumerate(ids, number + 1):
        if stored.get(keys.number(receiver, at)) != id_:
            yield f"number {at:,} does not belong to message {id_.hex()}"


def _check_group(
    keys: FeedKeys, place: bytes, tr: TransactionRead
) -> tuple[bytes | None, list[FeedDifference]]:
    """Check the next group with undelivered messages; returns the place of the next one, None at the end."""
    begin, end = keys.all_group_messages()
    rows = tr.get_range(place, end, limit=1).to_list()
    if not rows:
        return None, []
    group = rows[0].key[len(begin) : -ID_BYTES]
    found = list(_undecodable(rows))
    if not _is_noted(tr, keys.undelivered, keys.delivering, group):
        found.append("messages are undelivered, and no worker is notified")
    return prefix_end(begin + group), [FeedDifference(f"group {_shown(group)}", what) for what in found]


def _is_noted(
    tr: TransactionRead, note: Callable[[bytes], bytes], notification: Callable[[int], bytes], name: bytes
) -> bool:
    """Whether workers are notified that a receiver or a group has work."""
    return tr.get(note(name)).present() and tr.get(notification(bucket_of(name))).present()


def _shown(name: bytes) -> str:
    try:
        return brief(decode_name(name))
    except CorruptData:
        return name.hex()
