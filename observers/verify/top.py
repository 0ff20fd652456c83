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
from cq.app import App
from cq.config.queue import ObserverConfig, QueueConfig
from cq.encoding import codec
from cq.encoding.hashing import bucket_at
from cq.errors import ConfigurationError, CorruptData
from cq.keys import INCOMPLETE_VERSIONSTAMP, prefix_end
from cq.keys.top import TopKeys, split_group, split_node
from cq.observers.builtin import FACTORIES
from cq.observers.top import index as top
from cq.observers.top.index import MAX_ENTRY_BYTES, NAME, Index
from cq.observers.top.scores import descending
from cq.observers.top.sort_keys import from_sort_key, to_sort_key
from cq.store.api import WANT_ALL
from cq.verify.layout import parse_value
from cq.verify.missed import has_missed
from cq.verify.piece import Difference, Found, Piece, RowCheck, RowVisitor
from cq.verify.verification import Verification

_COUNTED: Final = 5_000
"""The most entries that one transaction counts."""
_TRIES: Final = 3


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

    Attributes:
        problem: why the top cannot be compared with the values; empty if it can.
    """

    def __init__(self, app: App | None) -> None:
        self.problem = ""
        self._app = app or App()
        self._known: tuple[QueueConfig, Index | None] | None = None
        # {key of a count with more entries than one transaction counts: kind of the difference, prefix of the entries}
        self._large: dict[bytes, tuple[str, bytes]] = {}

    # Rows of values and of the index

    def check_value(self, piece: Piece, found: Found) -> None:
        """Check that a value which has been reported to the top has its entry."""
        index, observer = self._index(piece.config), top_of(piece.config)
        if index is None or observer is None:
            return
        try:
            hashed, encoded = parse_value(found.rest)
            key, value = piece.config.key.decode(encoded), codec.decode(found.value)
            is_reported = _is_reported(piece, observer.generation, hashed, found.rest)
            if not is_reported or has_missed(piece, observer.generation, encoded):
                return
            place = index.place(key, value)
            entry = None if place is None else index.entry(place, to_sort_key(piece.config.key, key))
        except Exception:  # noqa: BLE001 - values that cannot be reported, also by errors of an application's functions
            return
        if place is None or entry is None or len(entry) > MAX_ENTRY_BYTES:
            return
        stored = piece.snapshot.get(entry)
        what = f"the top has no entry of its score, {place.score!r:.40}"

        def check() -> None:
            if stored.value is None:
                piece.report("top-missing", found.key, what, partial(rebuild, piece, found), key=key)

        piece.defer(check)

    def check_data(self, piece: Piece, found: Found) -> None:
        """Check a row of the configured top."""
        observer = top_of(piece.config)
        if observer is None:
            return
        data = TopKeys(piece.keys, observer.generation).data()
        if not found.key.startswith(data):
            return
        found = found._replace(rest=found.key[len(data) + 1 :])
        match found.key[len(data) : len(data) + 1]:
            case b"i":
                RowCheck("top-unreadable", self._check_entry, rebuild).run(piece, found)
            case b"m":
                _check_mark(piece, found)
            case b"c" | b"r" | b"n" | b"a":
                pass  # counts are checked after all rows
            case _:
                raise CorruptData("not a key of a top")

    def _check_entry(self, piece: Piece, found: Found) -> None:
        """Check that an entry has the place that follows from its key's value."""
        group, rest = split_group(found.rest)
        score = codec.decode(found.value)
        place = descending(score)
        if not rest.startswith(place):
            raise CorruptData(f"its place is not that of its score, {score!r:.40}")
        key = from_sort_key(piece.config.key, rest[len(place) :])
        encoded = piece.config.key.encoder()(key)
        keys, generation = _keys(piece)
        index = self._index(piece.config)
        value = piece.snapshot.get(piece.keys.value(encoded))
        node = piece.snapshot.get(keys.node(group, place)) if index is not None and index.ranks else None

        def check() -> None:
            kind = what = ""
            if value.value is None:
                kind, what = "top-extra", "an entry of a key that has no value"
            elif index is not None and not _stands(index, key, value.value, group, place):
                kind, what = "top-extra", "an entry that its value does not have"
            elif node is not None and node.value is None:
                kind, what = "top-rank", "no count for ranks has the entry's score"
            if kind and not has_missed(piece, generation, encoded):
                piece.report(kind, found.key, what, partial(rebuild, piece, found), key=key)

        piece.defer(check)

    # Counts

    def check_counts(self, verification: Verification) -> Iterator[Difference]:
        """Compare the counts of the top with its entries."""
        observer = top_of(verification.config())
        if self.problem:
            verification.note(self.problem)
        if observer is None:
            return
        keys = TopKeys(verification.keys, observer.generation)
        walks = [
            (keys.counts(), RowCheck("top-count", self._check_count, rebuild).run),
            (keys.all_entries(), _check_group),
            (keys.nodes(), RowCheck("top-rank", self._check_node, rebuild).run),
        ]
        for prefix, check in walks if observer.settings.get("ranks") else walks[:2]:
            yield from verification.walk(prefix, prefix_end(prefix), _of_generation(observer, check))
        for where, (kind, prefix) in self._large.items():
            yield from _count_slowly(verification, kind, where, prefix)

    def _check_count(self, piece: Piece, found: Found) -> None:
        """Check the number of a group's entries."""
        group, rest = split_group(found.rest)
        if rest:
            raise CorruptData("the key is not one of a count")
        self._compare(piece, "top-count", found, _keys(piece)[0].entries(group))

    def _check_node(self, piece: Piece, found: Found) -> None:
        """Check a count for ranks: the sum of the counts one byte longer, or the number of entries of one score."""
        group, place = split_node(found.rest)
        keys, _ = _keys(piece)
        below = piece.snapshot.get_range(*keys.nodes_below(group, place), streaming_mode=WANT_ALL)
        above = piece.snapshot.get(keys.node(group, place[:-1]) if place else keys.count(group))

        def check() -> None:
            counts = [_number(each.value) for each in below]
            what = ""
            if above.value is None:
                what = "a count for ranks that no shorter one has"
            elif counts and sum(counts) != _number(found.value):
                what = f"{_number(found.value):,} entries counted for ranks, {sum(counts):,} one byte further"
            elif not counts:
                self._compare(piece, "top-rank", found, keys.entries(group) + place)
            if what:
                piece.report("top-rank", found.key, what, partial(rebuild, piece, found))

        piece.defer(check)

    def _compare(self, piece: Piece, kind: str, found: Found, prefix: bytes) -> None:
        """Compare a count with the entries under a prefix: in this piece, or after the walks if there are many."""
        entries = piece.snapshot.get_range(
            prefix, prefix_end(prefix), limit=_COUNTED + 1, streaming_mode=WANT_ALL
        )

        def check() -> None:
            there = len(entries.to_list())
            if there > _COUNTED:
                self._large[found.key] = kind, prefix
            elif there != _number(found.value):
                what = _counted(found.value, there)
                piece.report(kind, found.key, what, partial(rebuild, piece, found))

        piece.defer(check)

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


def _keys(piece: Piece) -> tuple[TopKeys, int]:
    """The keys of the configured top, and its generation."""
    generation = next(each.generation for each in piece.config.observers if each.name == NAME)
    return TopKeys(piece.keys, generation), generation


def _of_generation(observer: ObserverConfig, check: RowVisitor) -> RowVisitor:
    """A check of rows that is skipped once this is no longer the configured generation."""

    def visit(piece: Piece, found: Found) -> bytes | None:
        current = top_of(piece.config)
        is_current = current is not None and current.generation == observer.generation
        return check(piece, found) if is_current else None

    return visit


def _check_mark(piece: Piece, found: Found) -> None:
    """Check that the publisher is notified if a cloud is marked for publication."""
    key = _keys(piece)[0].notification
    notification = piece.snapshot.get(key)

    def check() -> None:
        if notification.value is None:
            what = "a cloud is marked for publication without a notification"
            fix = partial(piece.tr.set_versionstamped_value, key, INCOMPLETE_VERSIONSTAMP)
            piece.report("cloud-notification", found.key, what, fix)

    piece.defer(check)


def _check_group(piece: Piece, found: Found) -> bytes | None:
    """Check that a group with entries has a count; returns the key of the next group."""
    try:
        group, _ = split_group(found.rest)
    except CorruptData:
        return None  # reported with the rows
    keys, _ = _keys(piece)
    key = keys.count(group)
    count = piece.snapshot.get(key)

    def check() -> None:
        if count.value is None:
            what = "entries of a group that has no count"
            piece.report("top-count", key, what, partial(rebuild, piece, found))

    piece.defer(check)
    return prefix_end(keys.entries(group))


def _count_slowly(verification: Verification, kind: str, where: bytes, prefix: bytes) -> Iterator[Difference]:
    """Compare a count with entries that several transactions count; exact if no pass commits in between."""
    for _ in range(_TRIES):
        (count, before), _ = verification.piece(partial(_count_and_sign, where=where))
        counted = verification.checked
        yield from verification.walk(prefix, prefix_end(prefix), lambda piece, found: None)
        entries = verification.checked - counted
        if entries == _number(count):
            return
        (_, after), _ = verification.piece(partial(_count_and_sign, where=where))
        if before == after:
            if verification.repair:
                verification.rebuild(NAME)
            yield Difference(kind, where, _counted(count, entries), None, True, verification.repair)
            return
    verification.note(
        "counts of the top changed too fast to be compared: verify it again while the queue is paused"
    )


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


def _count_and_sign(piece: Piece, where: bytes) -> tuple[bytes, object]:
    """A count, and a token that changes with each pass and each change of the configuration."""
    count = piece.snapshot.get(where)
    tokens = [state.token for config in piece.shapes for state in read_states(piece.snapshot, config)]
    return count.value or b"", (piece.config, tokens)


def _number(count: bytes) -> int:
    return int.from_bytes(count, "little", signed=True)


def _counted(count: bytes, there: int) -> str:
    return f"{_number(count):,} entries counted, {there:,} there"
