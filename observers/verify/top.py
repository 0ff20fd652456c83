"""Checks of a queue's top and of its clouds: the index must agree with the values, counts and clouds with the index.

Passes change values and index in the same transaction, so at any version the two agree for all values that have been
reported to the top. Only the configured generation is checked, since passes no longer change a generation during its
replacement. The repair rebuilds the top from all values, while readers continue.

A cloud that differs from the top must have a mark, which the transaction that publishes it removes. The repair clears
and marks an unreadable cloud, so that a worker publishes it again. It clears kept versions that are unreadable.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from cq.app import App
from cq.config.queue import ObserverConfig, QueueConfig
from cq.encoding import codec
from cq.encoding.hashing import bucket_at
from cq.errors import ConfigurationError, CorruptData
from cq.keys import prefix_end
from cq.keys.top import CloudKeys, TopKeys, group_named
from cq.observers.builtin import FACTORIES
from cq.observers.top import index as top
from cq.observers.top.cloud import CloudHead, digest_of, first_entries
from cq.observers.top.index import MAX_ENTRY_BYTES, NAME, Index
from cq.observers.top.ranking import parse_count
from cq.observers.top.scores import descending
from cq.observers.top.sort_keys import from_sort_key, to_sort_key
from cq.store.api import WANT_ALL
from cq.verify.layout import parse
from cq.verify.piece import Found, Piece, RowCheck, Steps
from cq.verify.rows import has_missed

_COUNTED: Final = 100_000
"""The most entries of a count that are compared with it."""
_LAST_NUMBER: Final = (1 << 32) - 1


def top_of(config: QueueConfig) -> ObserverConfig | None:
    """The configured top of a queue, None without one."""
    return next((each for each in config.observers if each.name == NAME), None)


def rebuild(piece: Piece, found: Found) -> None:
    """Rebuild the top from all values, once for all differences."""
    piece.rebuilds.add(NAME)


class TopChecks:
    """The checks of one queue's top.

    Args:
        app: the application with the score and group functions of the top.
    """

    def __init__(self, app: App | None) -> None:
        self._app = app or App()
        self._indexes: dict[int, Index | str] = {}

    def check_value(self, piece: Piece, found: Found) -> None:
        """Check that a value which has been reported to the top has its entry."""
        observer = top_of(piece.config)
        index = None if observer is None else self._index(piece, observer)
        if index is None or observer is None:
            return
        try:
            hashed, encoded = parse("h4 key", found.rest)
            key, value = piece.config.key.decode(encoded), codec.decode(found.value)
            is_reported = _is_reported(piece, observer.generation, hashed, found.rest)
            if not is_reported or has_missed(piece, observer.generation, encoded):
                return
            place = index.place(key, value)
            entry = None if place is None else index.entry(place, to_sort_key(piece.config.key, key))
        except Exception:  # noqa: BLE001 - values that cannot be reported, also by errors of an application's functions
            return
        if place is not None and entry is not None and len(entry) <= MAX_ENTRY_BYTES:
            what = f"the top has no entry of its score, {place.score!r:.40}"
            piece.require(entry, "top-missing", found.key, what, partial(rebuild, piece, found), key=key)

    def check_data(self, piece: Piece, found: Found) -> None:
        """Check a row of the configured top."""
        observer = top_of(piece.config)
        if observer is None:
            return
        keys = TopKeys(piece.keys, observer.generation)
        if not found.key.startswith(keys.data):
            return
        rest = found.key[len(keys.data) :]
        row = Found(found.key, found.value, rest[1:])
        match rest[:1]:
            case b"i":
                check = partial(self._check_entry, keys=keys, observer=observer)
                RowCheck("top-unreadable", "length2 group? place", check, rebuild).run(piece, row)
            case b"c":
                check = partial(_check_count, keys=keys)
                RowCheck("top-count", "length2 group?", check, rebuild).run(piece, row)
            case b"r" if observer.settings.get("ranks"):
                check = partial(_check_node, keys=keys)
                RowCheck("top-rank", "length2 group? length2 place?", check, rebuild).run(piece, row)
            case b"m":
                what = "a cloud is marked for publication without a notification"
                fix = partial(piece.stamp, keys.notification)
                piece.require(keys.notification, "cloud-notification", found.key, what, fix)
            case b"r" | b"n" | b"a":
                pass
            case _:
                raise CorruptData("not a key of a top")

    def _check_entry(self, piece: Piece, found: Found, keys: TopKeys, observer: ObserverConfig) -> Steps:
        """Check that an entry has the place that follows from its key's value, and is counted."""
        group, rest = group_named(found.fields[0]), found.fields[1]
        score = codec.decode(found.value)
        place = descending(score)
        if not rest.startswith(place):
            raise CorruptData(f"its place is not that of its score, {score!r:.40}")
        key = from_sort_key(piece.config.key, rest[len(place) :])
        encoded = piece.config.key.encoder()(key)
        index = self._index(piece, observer)
        fix = partial(rebuild, piece, found)
        count = keys.count(group)
        piece.require(count, "top-count", count, "entries of a group that has no count", fix)
        value = piece.snapshot.get(piece.keys.value(encoded))
        node = piece.snapshot.get(keys.node(group, place)) if index is not None and index.ranks else None
        yield None
        kind, what = "top-extra", ""
        if value.value is None:
            what = "an entry of a key that has no value"
        elif index is not None and not _stands(index, key, value.value, group, place):
            what = "an entry that its value does not have"
        elif node is not None and node.value is None:
            kind, what = "top-rank", "no count for ranks has the entry's score"
        if what and not has_missed(piece, observer.generation, encoded):
            piece.report(kind, found.key, what, fix, key=key)

    # The index function

    def _index(self, piece: Piece, observer: ObserverConfig) -> Index | None:
        """The function that writes the configured index; None if this process lacks it."""
        if observer.generation not in self._indexes:
            self._indexes[observer.generation] = self._make_index(piece.config, observer)
        found = self._indexes[observer.generation]
        if isinstance(found, str):
            piece.notes.append(f"the top was not compared with the values: {found}")
            return None
        return found

    def _make_index(self, config: QueueConfig, observer: ObserverConfig) -> Index | str:
        """The function, or why this process lacks it."""
        try:
            if observer.is_built_in:
                made: Any = top.observer(config, observer.settings, observer.generation)
            else:
                made = self._app.code(config, FACTORIES).observers[config.observers.index(observer)]
        except ConfigurationError as error:
            return str(error)
        return made if isinstance(made, Index) else "its observer is not a top"


# Counts


def _check_count(piece: Piece, found: Found, keys: TopKeys) -> Steps:
    """Check the number of a group's entries."""
    return _compare(piece, "top-count", found, keys.entries(group_named(found.fields[0])))


def _check_node(piece: Piece, found: Found, keys: TopKeys) -> Steps:
    """Check a count for ranks: the sum of the counts one byte longer, or the number of entries of one score."""
    group, place = group_named(found.fields[0]), found.fields[1]
    fix = partial(rebuild, piece, found)
    above = keys.node(group, place[:-1]) if place else keys.count(group)
    piece.require(above, "top-rank", found.key, "a count for ranks that no shorter one has", fix)
    below = piece.snapshot.get_range(*keys.nodes_below(group, place), streaming_mode=WANT_ALL)
    yield None
    counts, count = [parse_count(each.value) for each in below], parse_count(found.value)
    if not counts:
        yield from _compare(piece, "top-rank", found, keys.entries(group) + place)
    elif sum(counts) != count:
        what = f"{count:,} entries counted for ranks, {sum(counts):,} one byte further"
        piece.report("top-rank", found.key, what, fix)


def _compare(piece: Piece, kind: str, found: Found, prefix: bytes) -> Steps:
    """Compare a count with the entries under a prefix, unless there are too many to be read at one version."""
    entries = piece.snapshot.get_range(
        prefix, prefix_end(prefix), limit=_COUNTED + 1, streaming_mode=WANT_ALL
    )
    yield None
    there, count = sum(1 for _ in entries), parse_count(found.value)
    if there > _COUNTED:
        piece.notes.append(f"counts of the top were not compared with more than {_COUNTED:,} entries")
    elif there != count:
        what = f"{count:,} entries counted, {there:,} there"
        piece.report(kind, found.key, what, partial(rebuild, piece, found))


def _is_reported(piece: Piece, generation: int, hashed: int, place: bytes) -> bool:
    """Whether the value at a place in hash order has been reported to an observer, by its backfill or a pass."""
    config = piece.config
    state = piece.state(config.generation, bucket_at(hashed, config.buckets))
    if state is None:
        return False
    if generation in state.observers:
        cursor = state.observers[generation]
        return cursor is None or place <= cursor
    return generation <= config.backfilled_until


def _stands(index: Index, key: Any, value: bytes, group: str | None, place: bytes) -> bool:
    """Whether an entry has the place that its value requires; True if the place cannot be computed."""
    try:
        wanted = index.place(key, codec.decode(value))
    except Exception:  # noqa: BLE001 - an unreadable value, reported separately, or an application's functions
        return True
    return wanted is not None and wanted[:2] == (group, place)


# Clouds


def check_cloud(piece: Piece, found: Found) -> None:
    """Check a row of the published clouds."""
    name, _, tail = found.rest.partition(b"\x00")
    observer = top_of(piece.config)
    if name != NAME.encode() or observer is None:
        return
    row = Found(found.key, found.value, tail[1:])
    match tail[:1]:
        case b"h":
            check = partial(_check_head, observer=observer)
            RowCheck("cloud-piece", "length2 group?", check).run(piece, row)
        case b"p":
            RowCheck("cloud-piece", "length2 group? version8 piece4", _check_piece).run(piece, row)
        case b"v":
            form = "length2 group? time8 version8 number4"
            RowCheck("cloud-piece", form, _check_kept).run(piece, row)
        case _:
            raise CorruptData("not a key of a cloud")


def _check_head(piece: Piece, found: Found, observer: ObserverConfig) -> Steps:
    """Check that a cloud can be read, and that it equals its top unless it is marked."""
    group = group_named(found.fields[0])
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
    yield None
    published = b"".join(each.value or b"" for each in pieces) if head.pieces else head.data
    if digest_of(published) != head.digest:
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


def _check_piece(piece: Piece, found: Found) -> Steps:
    """Check that a piece belongs to the published version."""
    group, version, number = found.fields
    stored = piece.snapshot.get(CloudKeys(piece.keys).head(group_named(group)))
    yield None
    try:
        head = CloudHead.from_bytes(stored.value) if stored.value is not None else None
    except CorruptData:
        return  # reported with the head
    if head is None or head.version != version or number >= head.pieces:
        raise CorruptData("a piece of a cloud that is not published")


def _check_kept(piece: Piece, found: Found) -> Steps:
    """Check that a kept version can be read: at each of its rows, as a row may lack its head."""
    group, time, version, number = found.fields
    key = partial(CloudKeys(piece.keys).kept, group_named(group), time, version)
    fix = partial(piece.tr.clear_range, key(0), key(_LAST_NUMBER))
    stored = piece.snapshot.get(key(0))
    yield None
    try:
        if stored.value is None:
            raise CorruptData("it has no head")
        head = CloudHead.from_bytes(stored.value)
        if number > head.pieces or (head.created, head.version) != (time, version):
            raise CorruptData("a row belongs to another version")
        head.entries(piece.snapshot, lambda each: key(each + 1))
    except CorruptData as error:
        piece.report("cloud-version", found.key, str(error), fix)


def _publish_again(piece: Piece, keys: CloudKeys, top: TopKeys, group: str | None) -> None:
    """Clear a cloud, and notify workers to publish it."""
    piece.tr.clear(keys.head(group))
    pieces = keys.pieces_of(group)
    piece.tr.clear_range(pieces, prefix_end(pieces))
    piece.stamp(top.mark(group))
    piece.stamp(top.notification)
