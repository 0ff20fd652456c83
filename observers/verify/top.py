"""What a verification looks at in a queue's top: that the index says what the values do, and the counts what it does.

The passes that change values change the index in the same transaction, so at any one version the two agree, for all
values of which the top has been told. Only the generation that is configured is looked at: one that is being replaced
stands still. What differs is mended by building the top anew, from all values, while readers go on.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from cq.admin.backfill import read_states
from cq.admin.configure import rebuild_observer
from cq.app import App
from cq.config.queue import ObserverConfig, QueueConfig
from cq.encoding import codec
from cq.encoding.hashing import bucket_at
from cq.errors import ConfigurationError, CorruptData
from cq.keys import INCOMPLETE_VERSIONSTAMP, prefix_end
from cq.keys.top import TopKeys, split_group, split_node
from cq.observers.builtin import FACTORIES
from cq.observers.top import index as top
from cq.observers.top.index import MAX_ENTRY_BYTES, NAME, Index, IndexPlace
from cq.observers.top.scores import descending
from cq.observers.top.sort_keys import from_sort_key, to_sort_key
from cq.store.api import WANT_ALL, KeyValue, Value
from cq.verify.layout import parse_observer_data, parse_value
from cq.verify.missed import has_missed
from cq.verify.verification import Difference, Piece, Verification

COUNTS: Final = "counts of the top"
_COUNTED: Final = 5_000
"""Entries that are counted in one transaction, at most."""
_TRIES: Final = 3


def top_of(config: QueueConfig) -> ObserverConfig | None:
    """The top that a queue is configured with."""
    return next((each for each in config.observers if each.name == NAME), None)


class TopChecks:
    """Looks at one queue's top.

    Args:
        app: has the score and group functions that the top may be configured with.

    Attributes:
        problem: why the top cannot be compared with the values; empty when it can.
    """

    def __init__(self, app: App | None) -> None:
        self.problem = ""
        self._app = app or App()
        self._known: tuple[QueueConfig, Index | None] | None = None
        self._rebuilt = False

    # Rows of values and of the index

    def check_value(self, piece: Piece, rest: bytes, found: KeyValue) -> bytes | None:
        """A value of which the top has been told has its entry."""
        index, observer = self._index(piece.config), top_of(piece.config)
        if index is None or observer is None:
            return None
        try:
            hashed, encoded = parse_value(rest)
            key, value = piece.config.key.decode(encoded), codec.decode(found.value)
            if not _is_told(piece, observer.generation, hashed, rest):
                return None
            if has_missed(piece, observer.generation, encoded):
                return None
            place = index.place(key, value)
            entry = None if place is None else index.entry(place, to_sort_key(piece.config.key, key))
        except Exception:  # noqa: BLE001 - of what cannot be told to the top, an application's functions included
            return None
        if place is None or entry is None or len(entry) > MAX_ENTRY_BYTES:
            return None
        stored = piece.snapshot.get(entry)
        score = place.score

        def look() -> None:
            if stored.value is None:
                what = f"the top has no entry of its score, {score!r:.40}"
                piece.report("top-missing", found.key, what, partial(self._rebuild_later, piece), key=key)

        piece.defer(look)
        return None

    def check_data(self, piece: Piece, rest: bytes, found: KeyValue) -> bytes | None:
        """A row of what the configured top keeps."""
        observer = top_of(piece.config)
        try:
            generation, tail = parse_observer_data(rest)
        except CorruptData:
            return None
        if observer is None or generation != observer.generation:
            return None
        keys = TopKeys(piece.keys, generation)
        match tail[:1]:
            case b"i":
                self._check_entry(piece, keys, tail[1:], found)
            case b"m":
                self._check_mark(piece, keys, found)
            case b"c" | b"r" | b"n" | b"a":
                pass
            case _:
                fix = partial(piece.tr.clear, found.key)
                piece.report("top-unreadable", found.key, "no key of a top's begins so", fix)
        return None

    def _check_entry(self, piece: Piece, keys: TopKeys, data: bytes, found: KeyValue) -> None:
        """An entry stands where the value of its key says."""
        fix = partial(self._rebuild_later, piece)
        try:
            group, rest = split_group(data)
            score = codec.decode(found.value)
            place = descending(score)
            if not rest.startswith(place):
                raise CorruptData(f"it does not stand where its score does, {score!r:.40}")
            key = from_sort_key(piece.config.key, rest[len(place) :])
            encoded = piece.config.key.encoder()(key)
        except (CorruptData, ValueError) as error:
            piece.report("top-unreadable", found.key, str(error), fix)
            return
        index = self._index(piece.config)
        value = piece.snapshot.get(piece.keys.value(encoded))
        node = piece.snapshot.get(keys.node(group, place)) if index is not None and index.ranks else None

        def look() -> None:
            observer = top_of(piece.config)
            if observer is not None and has_missed(piece, observer.generation, encoded):
                return
            if value.value is None:
                piece.report("top-extra", found.key, "an entry of a key that has no value", fix, key=key)
            elif index is not None and not _stands(index, key, value.value, group, place):
                piece.report("top-extra", found.key, "an entry that its value does not have", fix, key=key)
            elif node is not None and node.value is None:
                piece.report("top-rank", found.key, "no count for ranks has the entry's score", fix, key=key)

        piece.defer(look)

    def _check_mark(self, piece: Piece, keys: TopKeys, found: KeyValue) -> None:
        """A cloud that is to be published is notified."""
        notification = piece.snapshot.get(keys.notification)

        def look() -> None:
            if notification.value is None:
                piece.report(
                    "cloud-notification",
                    found.key,
                    "a cloud is to be published, and no worker is told",
                    partial(piece.tr.set_versionstamped_value, keys.notification, INCOMPLETE_VERSIONSTAMP),
                )

        piece.defer(look)

    # Counts

    def look_at_counts(self, verification: Verification) -> Iterator[Difference]:
        """The part that compares counts with entries."""
        verification.part = COUNTS
        config, _ = verification.piece(lambda piece: piece.config)
        observer = top_of(config)
        if self.problem:
            verification.note(self.problem)
        if observer is None:
            return
        keys = TopKeys(verification.keys, observer.generation)
        counts, entries, nodes = keys.counts(), keys.all_entries(), keys.nodes()
        yield from verification.walk(counts, prefix_end(counts), partial(self._check_count, keys=keys))
        yield from verification.walk(entries, prefix_end(entries), partial(self._check_group, keys=keys))
        if observer.settings.get("ranks"):
            yield from verification.walk(nodes, prefix_end(nodes), partial(self._check_node, keys=keys))

    def _check_count(self, piece: Piece, row: KeyValue, keys: TopKeys) -> bytes | None:
        """The number of a group's entries."""
        if not _is_configured(piece, keys):
            return None
        try:
            group, rest = split_group(row.key[len(keys.counts()) :])
            if rest:
                raise CorruptData("the key is not one of a count")
        except CorruptData as error:
            piece.report("top-count", row.key, str(error), partial(self._rebuild_later, piece))
        else:
            self._compare(piece, "top-count", row, keys.entries(group))
        return None

    def _check_group(self, piece: Piece, row: KeyValue, keys: TopKeys) -> bytes | None:
        """A group that has entries has a count; goes on with the next group."""
        if not _is_configured(piece, keys):
            return None
        try:
            group, _ = split_group(row.key[len(keys.all_entries()) :])
        except CorruptData:
            return None
        count = piece.snapshot.get(keys.count(group))

        def look() -> None:
            if count.value is None:
                what = "entries of a group that has no count"
                piece.report("top-count", keys.count(group), what, partial(self._rebuild_later, piece))

        piece.defer(look)
        return prefix_end(keys.entries(group))

    def _check_node(self, piece: Piece, row: KeyValue, keys: TopKeys) -> bytes | None:
        """A count for ranks: the sum of those one byte longer, or the number of entries of one score."""
        if not _is_configured(piece, keys):
            return None
        fix = partial(self._rebuild_later, piece)
        try:
            group, place = split_node(row.key[len(keys.nodes()) :])
        except CorruptData as error:
            piece.report("top-rank", row.key, str(error), fix)
            return None
        below = piece.snapshot.get_range(*keys.nodes_below(group, place), streaming_mode=WANT_ALL)
        above = piece.snapshot.get(keys.node(group, place[:-1]) if place else keys.count(group))

        def look() -> None:
            counts = [_number(each.value) for each in below]
            if above.value is None:
                piece.report("top-rank", row.key, "a count for ranks that no shorter one has", fix)
            elif counts and sum(counts) != _number(row.value):
                what = f"{_number(row.value):,} entries counted for ranks, {sum(counts):,} one byte further"
                piece.report("top-rank", row.key, what, fix)
            elif not counts:
                self._compare(piece, "top-rank", row, keys.entries(group) + place)

        piece.defer(look)
        return None

    def _compare(self, piece: Piece, kind: str, row: KeyValue, prefix: bytes) -> None:
        """Compare a count with the entries under a prefix: in this piece, or afterwards when these are many."""
        entries = piece.snapshot.get_range(
            prefix, prefix_end(prefix), limit=_COUNTED + 1, streaming_mode=WANT_ALL
        )

        def look() -> None:
            there = len(entries.to_list())
            if there > _COUNTED:
                piece.follow_ups.append(partial(self._count_slowly, kind=kind, where=row.key, prefix=prefix))
            elif there != _number(row.value):
                piece.report(kind, row.key, _counted(row.value, there), partial(self._rebuild_later, piece))

        piece.defer(look)

    def _count_slowly(
        self, verification: Verification, kind: str, where: bytes, prefix: bytes
    ) -> Iterator[Difference]:
        """Count entries in several transactions; that is exact if no pass has been committed meanwhile."""
        verification.part = COUNTS
        for _ in range(_TRIES):
            (count, before), _ = verification.piece(partial(_count_and_sign, where=where))
            counted = verification.checked
            yield from verification.walk(prefix, prefix_end(prefix), lambda piece, row: None)
            entries = verification.checked - counted
            if entries == _number(count or b""):
                return
            (_, after), _ = verification.piece(partial(_count_and_sign, where=where))
            if before == after:
                if verification.repair:
                    yield from self._rebuild(verification)
                yield Difference(
                    kind, where, _counted(count or b"", entries), None, True, verification.repair
                )
                return
        verification.note(
            "counts of the top changed too fast to be compared: verify it again while the queue is paused"
        )

    # Mending

    def _rebuild_later(self, piece: Piece) -> None:
        if self._rebuild not in piece.follow_ups:
            piece.follow_ups.append(self._rebuild)

    def _rebuild(self, verification: Verification) -> Iterator[Difference]:
        """Have the passes build the top anew, from all values; once for all that differs."""
        if not self._rebuilt:
            self._rebuilt = True
            rebuild_observer(verification.db, verification.name, NAME)
        return iter(())

    # What it is made by

    def _index(self, config: QueueConfig) -> Index | None:
        """What writes the index of the configured top; None without one, or without its functions."""
        if self._known is None or self._known[0] != config:
            self._known = config, self._made(config)
        return self._known[1]

    def _made(self, config: QueueConfig) -> Index | None:
        observer = top_of(config)
        if observer is None:
            return None
        try:
            if observer.is_built_in:
                made: Any = top.observer(config, observer.settings, observer.generation)
            else:
                made = self._app.code(config, FACTORIES).observers[config.observers.index(observer)]
        except ConfigurationError as error:
            self.problem = f"the top was not compared with the values: {error}"
            return None
        return made if isinstance(made, Index) else None


def _is_configured(piece: Piece, keys: TopKeys) -> bool:
    """Whether these are still the keys of the top that is configured."""
    observer = top_of(piece.config)
    return observer is not None and TopKeys(piece.keys, observer.generation).data() == keys.data()


def _is_told(piece: Piece, generation: int, hashed: int, place: bytes) -> bool:
    """Whether an observer has been told of the value at a place in hash order."""
    config = piece.config
    state = piece.state(config.generation, bucket_at(hashed, config.buckets))
    if state is None:
        return False
    if generation in state.observers:
        cursor = state.observers[generation]
        return cursor is None or place <= cursor
    return generation <= config.backfilled_until


def _stands(index: Index, key: Any, value: bytes, group: str | None, place: bytes) -> bool:
    """Whether an entry stands where it is to; also when that cannot be told."""
    try:
        wanted: IndexPlace | None = index.place(key, codec.decode(value))
    except Exception:  # noqa: BLE001 - a value that is a difference of its own, or an application's functions
        return True
    return wanted is not None and wanted[:2] == (group, place)


def _count_and_sign(piece: Piece, where: bytes) -> tuple[bytes | None, object]:
    """A count, and what is another one once the top may have changed: by a pass, or as it is configured anew."""
    count: Value = piece.snapshot.get(where)
    tokens = [state.token for config in piece.shapes for state in read_states(piece.snapshot, config)]
    return count.value, (piece.config, tokens)


def _number(count: bytes) -> int:
    return int.from_bytes(count, "little", signed=True)


def _counted(count: bytes, there: int) -> str:
    return f"{_number(count):,} entries counted, {there:,} there"
