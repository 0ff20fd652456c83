"""Updates set aside, because they cannot be combined or reported; and the list of missed reports.

An entry is [failure, update, update, ...] under the key and the versionstamp of the transaction that moved it there, in
pieces that fit into a value. Operators can list them, add them again or drop them; updates added again get a new place
in the commit order. A missed report (see `cq.queue.missed_reports`) is listed as an entry without updates, and retried
as a report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

from cq import runtime
from cq.config.queue import read_config
from cq.encoding import codec
from cq.errors import CorruptData, CqError, InvalidData
from cq.failure import KeyFailure
from cq.keys import QueueKeys, after
from cq.keys.missed import MissedKeys
from cq.plain_text import printable
from cq.queue.adds import PackedAdd, write_updates
from cq.queue.ledger import count_added, count_dropped
from cq.queue.missed_reports import each_missed, notes_of, read_missed, take_note
from cq.queue.packing import Checked
from cq.queue.requests import is_request
from cq.queue.rows import UnreadableRow
from cq.store.api import Database, KeyValue, Transaction, TransactionRead, Writer
from cq.store.bounded_reads import scan_rows
from cq.store.sizes import fitting
from cq.store.transact import transact

_PIECE_BYTES: Final = 90_000
_RAW_BYTES: Final = 50_000  # of an unreadable row, in one update
_UPDATE_BYTES: Final = 12
"""Approximate bytes of an update in a row in addition to its key and its own bytes."""
_PIECES_AT_ONCE: Final = 10  # in a transaction of `each_aside`
_MOST_PIECES: Final = 1_000  # added again or dropped in a transaction
_USED_BYTES: Final = 200_000
"""Bytes that such a transaction has written when it takes no further piece, which writes up to `PREDICTED_BYTES`."""
_USED_SECONDS: Final = 1.0
"""Seconds after which it takes no further piece: on a cluster, the reads for each take a round trip."""
_HASH_BYTES: Final = 4
ANY: Final = object()
"""Stands for all keys."""


class Aside(NamedTuple):
    """A piece of updates set aside: the encoded key (empty for unreadable rows), the failure, and the updates.

    A piece without updates is a missed report.
    """

    encoded_key: bytes
    failure: KeyFailure
    updates: list[Any]

    @property
    def error(self) -> str:
        """Type and message of the error, in one printable line."""
        return self.failure.error


def set_aside(
    tr: Writer,
    keys: QueueKeys,
    encoded_key: bytes,
    failure: KeyFailure,
    updates: list[Any],
    piece: int = 0,
) -> int:
    """Write a key's updates and the failure to the queue's set-aside range, as pieces numbered from `piece`.

    Returns the number of the next piece.
    """
    noted = failure.to_stored()
    for part in _pieces(updates):
        tr.set_versionstamped_key(keys.new_aside(encoded_key, piece), codec.encode([noted, *part]))
        piece += 1
    return piece


def set_broken_aside(tr: Writer, keys: QueueKeys, rows: Iterable[UnreadableRow]) -> KeyFailure:
    """Write unreadable rows to the queue's set-aside range, unchanged; returns the last one's failure."""
    piece, failure = 0, KeyFailure("")
    for row in rows:
        raw = [row.value[start : start + _RAW_BYTES] for start in range(0, len(row.value), _RAW_BYTES)]
        failure = KeyFailure.of(CorruptData(row.error), text=row.error)
        piece = set_aside(tr, keys, b"", failure, raw or [b""], piece)
    return failure


def read_aside(tr: TransactionRead, name: str, key: Any = ANY, *, limit: int = 0) -> list[Aside]:
    """The updates set aside of a queue or of one key, then its missed reports, each in hash order.

    At most `limit` pieces unless `limit` is 0. Raises `QueueNotConfigured`, and `InvalidData` for a wrong key type.
    """
    keys = QueueKeys(name)
    rows = tr.get_range(*_range(tr, keys, name, key), limit=limit)
    found = [_parse(keys, row.key, row.value) for row in rows]
    if limit and len(found) == limit:
        return found
    left = limit and limit - len(found)
    missed = read_missed(tr, name, _encoded(tr, name, key), limit=left)
    return found + [Aside(encoded, failure, []) for encoded, failure in missed]


def each_aside(db: Database, name: str, key: Any = ANY) -> Iterator[Aside]:
    """The pieces that `read_aside` returns, in many transactions: any number of them, of which few are in memory."""
    keys = QueueKeys(name)
    encoded = transact(db, lambda tr: _encoded(tr, name, key))
    for row in scan_rows(db, *keys.aside(encoded), limit=_PIECES_AT_ONCE):
        yield _parse(keys, *row)
    for missed in each_missed(db, name, encoded):
        yield Aside(*missed, [])


def retry_aside(db: Database, name: str, key: Any = ANY) -> int:
    """Add updates set aside again, of a queue or of one key, and have workers retry missed reports.

    Missed reports come first. Then the pieces of updates are added, many small ones in one transaction, a large one in
    several. Returns the number of updates and reports. Raises `InvalidData` after all others if the queue does not take
    a piece, such as an unreadable row, which then stays set aside.
    """
    queue = QueueKeys(name)

    def add(tr: Transaction, piece: bytes, value: bytes) -> _Used:
        found = _parse(queue, piece, value)
        if found.encoded_key == b"":
            raise InvalidData("a row that cannot be read cannot be added again: drop it")
        if not found.updates:
            raise InvalidData(
                "no update to add: an observer missed a report of the value; rebuild it, and drop this entry"
            )
        config = read_config(tr, name)
        decoded = config.key.decode(found.encoded_key)
        if config.decider is not None and not all(map(is_request, found.updates)):
            raise InvalidData("these are no requests, which nobody can decide: drop them")
        some = found.updates[: fitting(_added_bytes(found))]
        left = found.updates[len(some) :]
        # `write_updates` counts these updates as added a second time; this takes the second count back in advance.
        count_added(tr, config, [(found.encoded_key, update) for update in some], again=True)
        # Without a time: the pass that set these updates aside has added them to the levels.
        # Updates that the former version of the combiner has set aside are for it: they go to the former shape.
        shape = config.under_former_shape() if config.conversion else None
        if config.decider is None:
            write_updates(tr, shape or config, [(decoded, update) for update in some])
        else:
            PackedAdd.of_checked(config, Checked([found.encoded_key] * len(some), some)).write(tr)
        return _Used(len(some), codec.encode([found.failure.to_stored(), *left]) if left else None)

    return retry_missed(db, name, key) + sum(
        _each_row(db, partial(_range, keys=queue, name=name, key=key), add, queue.end_of_aside)
    )


def drop_aside(db: Database, name: str, key: Any = ANY) -> int:
    """Drop updates set aside, of a queue or of one key; returns the number of pieces.

    Of missed reports only the error is dropped: the observers receive the keys with their next updates. Updates of a
    queue with a window or a roll-up stay in these. Raises `InvalidData` after all others if a piece has updates of the
    totals of a window: they are subtracted when they leave it, so they must be added first.
    """
    keys = QueueKeys(name)

    def drop(tr: Transaction, piece: bytes, value: bytes) -> _Used:
        config = read_config(tr, name)
        updates = updates_aside(keys, piece, value)
        if config.level_of is not None and config.level_of.is_window and not config.lists_keys and updates:
            raise InvalidData(
                f"updates of queue {name!r} will be subtracted when they leave the window, so that without them totals "
                f"would be too small: add them again with `cq aside retry {name}`"
            )
        if config.audit is not None:
            count_dropped(tr, config, updates)
        return _Used(1)

    dropped = sum(_each_row(db, partial(_notes, name=name, key=key), partial(_take, name=name, retry=False)))
    return dropped + sum(
        _each_row(db, partial(_range, keys=keys, name=name, key=key), drop, keys.end_of_aside)
    )


def retry_missed(db: Database, name: str, key: Any = ANY) -> int:
    """Have workers report the keys with missed reports again, or one of them; returns the number of keys.

    Each key is reported to the observers that have not received its value, with the value that they last received as
    the old one. Raises `QueueNotConfigured`.
    """
    return sum(_each_row(db, partial(_notes, name=name, key=key), partial(_take, name=name, retry=True)))


def _notes(tr: Transaction, name: str, key: Any) -> tuple[bytes, bytes]:
    return notes_of(name, _encoded(tr, name, key))


def _take(tr: Transaction, note: bytes, value: bytes, name: str, *, retry: bool) -> _Used:
    encoded = MissedKeys(name).notes.rest(note)[_HASH_BYTES:]
    return _Used(int(take_note(tr, name, encoded, retry=retry)))


def updates_aside(keys: QueueKeys, piece: bytes, value: bytes) -> list[tuple[bytes, Any]]:
    """(encoded key, update) of each update in a piece, for `cq.queue.ledger`; empty for an unreadable piece."""
    encoded = keys.parse_aside(piece)[0]
    try:
        content = codec.decode(value)
    except CorruptData:
        return []
    return [(encoded, update) for update in content[1:]] if encoded and isinstance(content, list) else []


def failures_by_key(pieces: Iterable[Aside]) -> dict[bytes, tuple[KeyFailure, int]]:
    """{encoded key: (failure, number of updates)}: the latest failure of each key, with the times and tries of all."""
    found: dict[bytes, tuple[KeyFailure, int]] = {}
    for each in pieces:
        earlier, number = found.get(each.encoded_key, (None, 0))
        found[each.encoded_key] = each.failure.merged(earlier), number + len(each.updates)
    return found


class _Used(NamedTuple):
    """The number of entries that a transaction used of a piece, and the encoded rest of the piece, or None."""

    number: int
    left: bytes | None = None


def _added_bytes(found: Aside) -> Iterator[int]:
    """The approximate bytes that the add of each update of a piece writes."""
    each = len(found.encoded_key) + _UPDATE_BYTES
    return (each + len(codec.encode(update)) for update in found.updates)


def _each_row(
    db: Database,
    range_of: Callable[[Transaction], tuple[bytes, bytes]],
    use: Callable[[Transaction, bytes, bytes], _Used],
    end_of_key: Callable[[bytes], bytes] | None = None,
) -> Iterator[int]:
    """Call `use` for each row of a range, and remove the used part in the same transaction; yields the numbers used.

    The rows are pieces that are set aside, or notes of missed reports. A transaction uses many small ones. If one of
    them is refused, the rows before it are used one by one, and then those after it. At the end it raises `InvalidData`
    about the refused ones.

    Of each key it takes the pieces that are there when it leaves the key unfinished for the first time. A worker may
    set the updates aside again before the next transaction. These pieces sort after the others of their key, and taking
    them, too, would never end.

    Args:
        db: a database of either store.
        range_of: returns the range of the rows.
        use: uses a row, given its key and value.
        end_of_key: returns the end of the pieces that have the key of this one; None for notes, one for each key.
    """
    tried = list[bytes]()

    def step(tr: Transaction, place: _Place, most: int) -> tuple[_Place, int] | None:
        tried.clear()
        first, end = range_of(tr)
        bounds = min(place.begin or first, end), min(place.end or end, end)
        # Not a snapshot read: two concurrent retries must not both use a piece.
        used = _use_some(tr, tr.get_range(*bounds, limit=most), use, tried)
        if used is None:
            return (_Place(end_of_key(place.end[:-1])), 0) if end_of_key and place.end else None
        following, number = used
        if end_of_key is None or place.end:
            return _Place(following, place.end), number
        last = end_of_key(tried[-1])
        rest = list(tr.snapshot.get_range(following, last, limit=1, reverse=True))
        return (_Place(following, after(rest[0].key)) if rest else _Place(last)), number

    place, most = _Place(), _MOST_PIECES
    refusals: list[CqError] = []
    while True:
        try:
            done = transact(db, partial(step, place=place, most=most))
        except (CorruptData, InvalidData) as error:
            if not tried:
                raise
            if most == 1:
                place = place._replace(begin=after(tried[-1]))
                refusals.append(error)
            most = 1
            continue
        if done is None:
            break
        place, number = done
        most = min(2 * most, _MOST_PIECES)
        yield number
    if refusals:
        raise InvalidData(f"pieces that stay set aside: {len(refusals):,}; the first one: {refusals[0]}")


class _Place(NamedTuple):
    """Where a transaction continues: the begin of a range and its end; empty for those of the whole range."""

    begin: bytes = b""
    end: bytes = b""


def _use_some(
    tr: Transaction,
    rows: Iterable[KeyValue],
    use: Callable[[Transaction, bytes, bytes], _Used],
    tried: list[bytes],
) -> tuple[bytes, int] | None:
    """Use pieces for a while, up to a number of bytes; returns where the next begin, and the number used, or None."""
    begun = runtime.monotonic()
    number, following = 0, None
    for row in rows:
        tried.append(row.key)
        used, left = use(tr, row.key, row.value)
        number += used
        if left is not None:
            tr.set(row.key, left)
            return row.key, number  # the next step continues with the rest of this piece
        tr.clear(row.key)
        following = after(row.key)
        is_late = runtime.monotonic() - begun > _USED_SECONDS
        if is_late or tr.get_approximate_size().wait() > _USED_BYTES:
            break
    return None if following is None else (following, number)


def _range(tr: TransactionRead, keys: QueueKeys, name: str, key: Any) -> tuple[bytes, bytes]:
    return keys.aside(_encoded(tr, name, key))


def _encoded(tr: TransactionRead, name: str, key: Any) -> bytes | None:
    """The encoded key, None for all keys; raises `QueueNotConfigured` and `InvalidData`."""
    config = read_config(tr, name)
    return None if key is ANY else config.key.encoder()(key)


def _parse(keys: QueueKeys, key: bytes, value: bytes) -> Aside:
    """The decoded piece; for an unreadable one, its bytes as the only update."""
    encoded_key, versionstamp, piece = keys.parse_aside(key)
    try:
        content = codec.decode(value)
        if not isinstance(content, list) or not content:
            raise CorruptData("an entry that was set aside is not one that cq wrote")
        failure = KeyFailure.from_stored(content[0])
        if key != keys.aside(encoded_key)[0] + versionstamp + piece.to_bytes(4, "big"):
            raise CorruptData("the key of an entry that was set aside is not one that cq wrote")
    except CorruptData as error:
        return Aside(b"", KeyFailure(printable(str(error))), [value])
    return Aside(encoded_key, failure, content[1:])


def _pieces(updates: list[Any]) -> Iterator[list[Any]]:
    part: list[Any] = []
    size = 0
    for update in updates:
        update_size = len(codec.encode(update))
        if part and size + update_size > _PIECE_BYTES:
            yield part
            part, size = [], 0
        part.append(update)
        size += update_size
    yield part
