"""Checks of a queue's top: the index must agree with the values, and the counts with the index.

Passes change values and index in the same transaction, so at any version the two agree for all values that have been
reported to the top. Only the configured generation is checked, since passes no longer change a generation during its
replacement. The repair rebuilds the top from all values, while readers continue.
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
"""The most entries that one transaction counts."""
_TRIES: Final = 3


def top_of(config: QueueConfig) -> ObserverConfig | None:
    """The configured top of a queue, None without one."""
    return next((each for each in config.observers if each.name == NAME), None)


class TopChecks:
    """The checks of one queue's top.

    Args:
        app: the application with the score and group functions of the top.

    Attributes:
        problem: why the top cannot be compared with the values; empty if it can.
    """

    def __init__(self, app: App | None) -> None:
        self.problem = ""
        self._app = app or App()
        self._known: tuple[QueueConfig, Index | None] | None = None
        self._rebuilt = False

    # Rows of values and of the index

    def check_value(self, piece: Piece, rest: bytes, found: KeyValue) -> bytes | None:
        """Check that a value which has been reported to the top has its entry."""
        index, observer = self._index(piece.config), top_of(piece.config)
        if index is None or observer is None:
            return None
        try:
            hashed, encoded = parse_value(rest)
            key, value = piece.config.key.decode(encoded), codec.decode(found.value)
            if not _is_reported(piece, observer.generation, hashed, rest):
                return None
            if has_missed(piece, observer.generation, encoded):
                return None
            place = index.place(key, value)
            entry = None if place is None else index.entry(place, to_sort_key(piece.config.key, key))
        except Exception:  # noqa: BLE001 - values that cannot be reported, also by errors of an application's functions
            return None
        if place is None or entry is None or len(entry) > MAX_ENTRY_BYTES:
            return None
        stored = piece.snapshot.get(entry)
        score = place.score

        def check() -> None:
            if stored.value is None:
                what = f"the top has no entry of its score, {score!r:.40}"
                piece.report("top-missing", found.key, what, partial(self._rebuild_later, piece), key=key)

        piece.defer(check)
        return None

    def check_data(self, piece: Piece, rest: bytes, found: KeyValue) -> bytes | None:
        """Check a row of the configured top."""
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
                piece.report("top-unreadable", found.key, "not a key of a top", fix)
        return None

    def _check_entry(self, piece: Piece, keys: TopKeys, data: bytes, found: KeyValue) -> None:
        """Check that an entry has the place that follows from its key's value."""
        fix = partial(self._rebuild_later, piece)
        try:
            group, rest = split_group(data)
            score = codec.decode(found.value)
            place = descending(score)
            if not rest.startswith(place):
                raise CorruptData(f"its place is not that of its score, {score!r:.40}")
            key = from_sort_key(piece.config.key, rest[len(place) :])
            encoded = piece.config.key.encoder()(key)
        except (CorruptData, ValueError) as error:
            piece.report("top-unreadable", found.key, str(error), fix)
            return
        index = self._index(piece.config)
        value = piece.snapshot.get(piece.keys.value(encoded))
        node = piece.snapshot.get(keys.node(group, place)) if index is not None and index.ranks else None

        def check() -> None:
            observer = top_of(piece.config)
            if observer is not None and has_missed(piece, observer.generation, encoded):
                return
            if value.value is None:
                piece.report("top-extra", found.key, "an entry of a key that has no value", fix, key=key)
            elif index is not None and not _stands(index, key, value.value, group, place):
                piece.report("top-extra", found.key, "an entry that its value does not have", fix, key=key)
            elif node is not None and node.value is None:
                piece.report("top-rank", found.key, "no count for ranks has the entry's score", fix, key=key)

        piece.defer(check)

    def _check_mark(self, piece: Piece, keys: TopKeys, found: KeyValue) -> None:
        """Check that the publisher is notified if a cloud is marked for publication."""
        notification = piece.snapshot.get(keys.notification)

        def check() -> None:
            if notification.value is None:
                piece.report(
                    "cloud-notification",
                    found.key,
                    "a cloud is marked for publication without a notification",
                    partial(piece.tr.set_versionstamped_value, keys.notification, INCOMPLETE_VERSIONSTAMP),
                )

        piece.defer(check)

    # Counts

    def check_counts(self, verification: Verification) -> Iterator[Difference]:
        """The part of the verification that compares counts with entries."""
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
        """Check the number of a group's entries."""
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
        """Check that a group with entries has a count; returns the key of the next group."""
        if not _is_configured(piece, keys):
            return None
        try:
            group, _ = split_group(row.key[len(keys.all_entries()) :])
        except CorruptData:
            return None
        count = piece.snapshot.get(keys.count(group))

        def check() -> None:
            if count.value is None:
                what = "entries of a group that has no count"
                piece.report("top-count", keys.count(group), what, partial(self._rebuild_later, piece))

        piece.defer(check)
        return prefix_end(keys.entries(group))

    def _check_node(self, piece: Piece, row: KeyValue, keys: TopKeys) -> bytes | None:
        """Check a count for ranks: the sum of the counts one byte longer, or the number of entries of one score."""
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

        def check() -> None:
            counts = [_number(each.value) for each in below]
            if above.value is None:
                piece.report("top-rank", row.key, "a count for ranks that no shorter one has", fix)
            elif counts and sum(counts) != _number(row.value):
                what = f"{_number(row.value):,} entries counted for ranks, {sum(counts):,} one byte further"
                piece.report("top-rank", row.key, what, fix)
            elif not counts:
                self._compare(piece, "top-rank", row, keys.entries(group) + place)

        piece.defer(check)
        return None

    def _compare(self, piece: Piece, kind: str, row: KeyValue, prefix: bytes) -> None:
        """Compare a count with the entries under a prefix: in this piece, or after the walk if there are many."""
        entries = piece.snapshot.get_range(
            prefix, prefix_end(prefix), limit=_COUNTED + 1, streaming_mode=WANT_ALL
        )

        def check() -> None:
            there = len(entries.to_list())
            if there > _COUNTED:
                piece.follow_ups.append(partial(self._count_slowly, kind=kind, where=row.key, prefix=prefix))
            elif there != _number(row.value):
                piece.report(kind, row.key, _counted(row.value, there), partial(self._rebuild_later, piece))

        piece.defer(check)

    def _count_slowly(
        self, verification: Verification, kind: str, where: bytes, prefix: bytes
    ) -> Iterator[Difference]:
        """Compare a count with entries that several transactions count; exact if no pass commits in between."""
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

    # Repair

    def _rebuild_later(self, piece: Piece) -> None:
        if self._rebuild not in piece.follow_ups:
            piece.follow_ups.append(self._rebuild)

    def _rebuild(self, verification: Verification) -> Iterator[Difference]:
        """Start a rebuild of the top from all values, once for all differences."""
        if not self._rebuilt:
            self._rebuilt = True
            rebuild_observer(verification.db, verification.name, NAME)
        return iter(())

    # The index function

    def _index(self, config: QueueConfig) -> Index | None:
        """The function that writes the configured index; None without a top, or without its functions."""
        if self._known is None or self._known[0] != config:
            self._known = config, self._make_index(config)
        return self._known[1]

    def _make_index(self, config: QueueConfig) -> Index | None:
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
    """Whether these are still the keys of the configured top."""
    observer = top_of(piece.config)
    return observer is not None and TopKeys(piece.keys, observer.generation).data() == keys.data()


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
        wanted: IndexPlace | None = index.place(key, codec.decode(value))
    except Exception:  # noqa: BLE001 - an unreadable value, reported separately, or an application's functions
        return True
    return wanted is not None and wanted[:2] == (group, place)


def _count_and_sign(piece: Piece, where: bytes) -> tuple[bytes | None, object]:
    """A count, and a token that changes with each pass and each change of the configuration."""
    count: Value = piece.snapshot.get(where)
    tokens = [state.token for config in piece.shapes for state in read_states(piece.snapshot, config)]
    return count.value, (piece.config, tokens)


def _number(count: bytes) -> int:
    return int.from_bytes(count, "little", signed=True)


def _counted(count: bytes, there: int) -> str:
    return f"{_number(count):,} entries counted, {there:,} there"
