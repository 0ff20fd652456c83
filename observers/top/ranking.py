"""The reader of a queue's top: first and last entries, entries in a range of scores, counts, and ranks.

The cost of a read depends on its result, not on the number of keys. All reads see one version of the store, at which
the index is exact, since it changes in the transactions that change values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple

from cq.admin.backfill import parse_generation
from cq.arguments import check_limit
from cq.config.queue import QueueConfig, read_config
from cq.encoding import codec
from cq.errors import CodeMismatch, CorruptData, InvalidConfiguration, InvalidData, NotInStore, NotReady
from cq.keys import QueueKeys, after, prefix_end
from cq.keys.top import TopKeys, group_of
from cq.observers.top.index import (
    COUNT_BYTES,
    NAME,
    NUMBERS,
    GroupFunction,
    ScoreFunction,
    group_function,
    place_of,
)
from cq.observers.top.scores import Score, descending
from cq.observers.top.sort_keys import from_sort_key
from cq.store.api import WANT_ALL, Database, Range, TransactionRead, Value
from cq.store.bounded_reads import pages
from cq.store.reads import snapshot_of
from cq.type_variables import K, V

_SCAN: Final = 1000


class RankedEntry(NamedTuple, Generic[K, V]):
    """A key with its score; `value` only if requested."""

    key: K
    score: Any
    value: V | None = None


class TopPage(NamedTuple, Generic[K, V]):
    """A page of entries; pass `continuation` as `after=` for the next page, None after the last."""

    entries: list[RankedEntry[K, V]]
    continuation: bytes | None


class Ranking(Generic[K, V]):
    """Reads the top of a queue; a handle without state, for transactions of either store.

    Every method takes a transaction, or its `.snapshot` to read without conflicts with passes that change the index.
    Every method raises `QueueNotConfigured`; `InvalidConfiguration` if the queue has no top, if it has groups and no
    group is given, or the other way round; and `NotReady` during the backfill of the queue's first top. During the
    backfill of a later version, methods read the previous one, as it was at its replacement.

    Args:
        name: the queue's name.
        score: the application's function for scores that the top is configured with; only `rank` needs it.
        group: the application's function for groups, in the same way.
    """

    def __init__(
        self, name: str, *, score: ScoreFunction | None = None, group: GroupFunction | None = None
    ) -> None:
        self.name = name
        self._queue = QueueKeys(name)
        self._score = score
        self._group = group

    def page(
        self,
        tr: TransactionRead,
        limit: int = 100,
        *,
        group: str | None = None,
        bottom: bool = False,
        after: bytes | None = None,
        lowest: Score | None = None,
        highest: Score | None = None,
        values: bool = False,
    ) -> TopPage[K, V]:
        """Up to `limit` entries from the top, the highest score first and equal scores by key, ascending.

        Args:
            limit: at least 1.
            group: the group to read, for a queue with groups.
            bottom: read in reverse order: the lowest score first.
            after: the continuation of a page: begin after its place, even if its key has moved since.
            lowest: only scores from this one; NaN raises `InvalidData`.
            highest: only scores up to this one, included; NaN raises `InvalidData`.
            values: add the values last reported, by one more read for each entry, in parallel.
        """
        check_limit(limit)
        config, keys = self._open(tr, group)
        prefix = keys.entries(group)
        begin, end = _bounds(prefix, bottom, after, lowest, highest)
        if begin >= end:
            return TopPage([], None)
        rows = tr.get_range(begin, end, limit=limit, reverse=bottom, streaming_mode=WANT_ALL).to_list()
        entries = [entry_of(config, row.key[len(prefix) :], row.value) for row in rows]
        if values:
            entries = self._with_values(tr, config, entries)
        return TopPage(entries, rows[-1].key[len(prefix) :] if len(rows) == limit else None)

    def scan(
        self, db: Database, *, group: str | None = None, bottom: bool = False
    ) -> Iterator[RankedEntry[K, V]]:
        """All entries from the top, or from the bottom, in one transaction per 1,000 entries.

        The result is not consistent: a key whose score changes during the scan may come twice, or not at all.
        """
        read = pages(
            db, lambda tr, after: self.page(tr.snapshot, _SCAN, group=group, bottom=bottom, after=after)
        )
        for page in read:
            yield from page

    def count(
        self,
        tr: TransactionRead,
        group: str | None = None,
        *,
        lowest: Score | None = None,
        highest: Score | None = None,
    ) -> int:
        """The number of keys with a score, by one read; or with a score in a range, both ends included.

        Args:
            tr: a transaction of either store.
            group: the group to count, for a queue with groups.
            lowest: only scores from this one; NaN raises `InvalidData`.
            highest: only scores up to this one, included.

        Raises:
            InvalidConfiguration: a range is given, and the top keeps no ranks.
        """
        _, keys = self._open(tr, group)
        if lowest is None and highest is None:
            return _number(tr.get(keys.count(group)))
        below = None if lowest is None else _Path(tr, keys, group, descending(lowest))
        above = None if highest is None else _Path(tr, keys, group, descending(highest))
        root = self._root(tr, keys, group)
        not_below = root if below is None else below.higher() + below.equal()
        return max(0, not_below - (0 if above is None else above.higher()))

    def groups(
        self, tr: TransactionRead, limit: int = 1000, after: str | None = None
    ) -> list[tuple[str, int]]:
        """Up to `limit` (group, number of keys), for groups that have keys, in a stable order, from after `after`."""
        check_limit(limit)
        _, keys = self._open(tr, "")
        begin = keys.counts + b"\x00\x01" if after is None else keys.count(after) + b"\x00"
        rows = tr.get_range(begin, prefix_end(keys.counts), limit=limit, streaming_mode=WANT_ALL)
        return [(group_of(row.key[len(keys.counts) :]) or "", parse_count(row.value)) for row in rows]

    def rank(self, tr: TransactionRead, key: K) -> int | None:
        """1 plus the number of keys (of the key's group) with a strictly higher score; None if the key has no score.

        Costs two rounds of reads: the value, then in parallel one small range for each byte of the score, about one for
        every two digits. Raises `InvalidConfiguration` if the top keeps no ranks, `InvalidData` for a key of another
        type than the queue's, `CodeMismatch` if the top is configured with functions that this reader lacks.
        """
        return self.ranks(tr, [key])[0]

    def ranks(self, tr: TransactionRead, wanted: Sequence[K]) -> list[int | None]:
        """The rank of each of these keys, as `rank`, read concurrently: two rounds of reads for all of them.

        Args:
            tr: a transaction of either store, or its `.snapshot` to read without read conflicts.
            wanted: the keys.
        """
        config = read_config(snapshot_of(tr), self.name)
        encode = config.key.encoder()
        values = [tr.get(self._queue.value(encode(key))) for key in wanted]
        settings, keys = self._current(tr, config)
        group = group_function(config, settings, self._group)
        self._check_functions(settings, group)
        places = [
            None if value.value is None else place_of(key, codec.decode(value.value), self._score, group)
            for key, value in zip(wanted, values, strict=True)
        ]
        paths = [None if at is None else _Path(tr, keys, at.group, at.place) for at in places]
        for name in {at.group for at in places if at is not None}:
            self._root(tr, keys, name)
        return [None if path is None else 1 + path.higher() for path in paths]

    def _root(self, tr: TransactionRead, keys: TopKeys, group: str | None) -> int:
        """The number of keys in the counts for ranks; raises `InvalidConfiguration` if the top keeps no ranks."""
        root, count = tr.get(keys.node(group, b"")), tr.get(keys.count(group))
        if _number(root) != _number(count):
            raise InvalidConfiguration(
                f"the top of queue {self.name!r} keeps no ranks: declare it with ranks=True"
            )
        return _number(root)

    def _open(self, tr: TransactionRead, group: str | None) -> tuple[QueueConfig, TopKeys]:
        config = read_config(snapshot_of(tr), self.name)
        settings, keys = self._current(tr, config)
        check_group(config, settings, group)
        return config, keys

    def _current(self, tr: TransactionRead, config: QueueConfig) -> tuple[Mapping[str, Any], TopKeys]:
        settings, generation = current_settings(tr, config)
        return settings, TopKeys(self._queue, generation)

    def _check_functions(self, settings: Mapping[str, Any], group: GroupFunction | None) -> None:
        for what, function in (("score", self._score), ("group", group)):
            if settings and bool(settings.get(what)) != (function is not None):
                raise CodeMismatch(
                    f"the top of queue {self.name!r} has {'a' if settings.get(what) else 'no'} {what} function: "
                    "give Ranking(...) the functions that it is configured with"
                )

    def _with_values(
        self, tr: TransactionRead, config: QueueConfig, entries: list[RankedEntry[K, V]]
    ) -> list[RankedEntry[K, V]]:
        encode = config.key.encoder()
        found = [tr.get(self._queue.value(encode(entry.key))) for entry in entries]
        return [
            entry._replace(value=None if value.value is None else codec.decode(value.value))
            for entry, value in zip(entries, found, strict=True)
        ]


class _Path:
    """The counts along the path to a score in the trie; the constructor starts all reads in parallel."""

    def __init__(self, tr: TransactionRead, keys: TopKeys, group: str | None, place: bytes) -> None:
        self._before: list[Range] = [
            tr.get_range(*keys.nodes_before(group, place[:length]), streaming_mode=WANT_ALL)
            for length in range(1, len(place) + 1)
        ]
        self._here = tr.get(keys.node(group, place))

    def higher(self) -> int:
        """The number of keys with a higher score."""
        return sum(parse_count(row.value) for rows in self._before for row in rows)

    def equal(self) -> int:
        """The number of keys with this score."""
        return _number(self._here)


def current_settings(tr: TransactionRead, config: QueueConfig) -> tuple[Mapping[str, Any], int]:
    """Settings and number of the generation in use; settings are empty while another generation replaces it.

    Raises `NotReady` or `InvalidConfiguration` for a queue without a readable top.
    """
    stored = snapshot_of(tr).get(QueueKeys(config.name).observer_current(NAME)).value
    if stored is None:
        raise missing(config)
    generation = parse_generation(stored)
    return settings_of(config, generation), generation


def missing(config: QueueConfig) -> NotReady | InvalidConfiguration:
    """The error for a queue without a readable top."""
    if any(observer.name == NAME for observer in config.observers):
        return NotReady(
            f"the top of queue {config.name!r} is being built, which takes a worker: read it later"
        )
    how = f"run `cq configure {config.name} --top` first"
    if config.value.name not in NUMBERS:
        how = (
            f"its values are of type {config.value}, so declare a top with a score function in an application"
        )
    return NotInStore(f"queue {config.name!r} keeps no top: {how}")


def settings_of(config: QueueConfig, generation: int) -> Mapping[str, Any]:
    """The settings of this generation of the queue's top; empty if another generation is configured."""
    for observer in config.observers:
        if (observer.name, observer.generation) == (NAME, generation):
            return observer.settings
    return {}


def check_group(config: QueueConfig, settings: Mapping[str, Any], group: str | None) -> None:
    """Raise `InvalidConfiguration` unless a group is given if and only if the top has groups."""
    if settings and bool(settings.get("group")) != (group is not None):
        raise InvalidConfiguration(
            f"the top of queue {config.name!r} is not kept in groups"
            if group is not None
            else f"the top of queue {config.name!r} is kept in groups: name one, `cq top {config.name} --groups` "
            "lists them"
        )


def entry_of(config: QueueConfig, place: bytes, score: bytes) -> RankedEntry:
    """The entry of the index at this place, with this value; raises `CorruptData`."""
    number = codec.decode(score)
    try:
        expected = descending(number)
    except InvalidData as error:
        raise CorruptData(f"a score in the top of queue {config.name!r} is not a number: {error}") from None
    if not place.startswith(expected):
        raise CorruptData(f"a score in the top of queue {config.name!r} is not that of its place")
    return RankedEntry(from_sort_key(config.key, place[len(expected) :]), number)


def _bounds(
    prefix: bytes, bottom: bool, continuation: bytes | None, lowest: Score | None, highest: Score | None
) -> tuple[bytes, bytes]:
    begin = prefix if highest is None else prefix + descending(highest)
    end = prefix_end(prefix if lowest is None else prefix + descending(lowest))
    if continuation is None:
        return begin, end
    if bottom:
        return begin, min(end, prefix + continuation)
    return max(begin, after(prefix + continuation)), end


def _number(count: Value) -> int:
    return parse_count(count.value or b"")


def parse_count(count: bytes) -> int:
    """The number of entries in a stored count; raises `CorruptData`."""
    if len(count) > COUNT_BYTES:
        raise CorruptData(f"a count of a top is not one that cq wrote: {count[:40]!r}")
    return int.from_bytes(count, "little", signed=True)
