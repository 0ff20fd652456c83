"""Reading the top of a queue: the first, the last, those of a range of scores, how many, and ranks.

What a read costs is what it returns, whatever the number of keys. All reads see one version of the store, at which
the index is exact: it changes in the transactions that change values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from cq.admin.backfill import parse_generation
from cq.config.queue import QueueConfig, read_config
from cq.encoding import codec
from cq.errors import CodeMismatch, CorruptData, InvalidConfiguration, InvalidData, NotReady
from cq.keys import QueueKeys, after, prefix_end
from cq.keys.top import TopKeys, group_of
from cq.observers.top.index import COUNT_BYTES, NAME, GroupFunction, ScoreFunction, place_of
from cq.observers.top.scores import Score, descending
from cq.observers.top.sort_keys import from_sort_key
from cq.store.api import WANT_ALL, Database, Range, TransactionRead, Value, snapshot_of
from cq.store.transact import transact

_SCAN: Final = 1000


class RankedEntry(NamedTuple):
    """A key with its score; `value` only when it was asked for."""

    key: Any
    score: Any
    value: Any = None


class TopPage(NamedTuple):
    """A piece of the order, and where to go on: `continuation` is what `after=` takes, None when there is no more."""

    entries: list[RankedEntry]
    continuation: bytes | None


class Ranking:
    """Reads the top of a queue; a handle without state, for transactions of either store.

    Every method takes a transaction, or its `.snapshot` to read without conflicting with the passes that change what
    is read. Every method raises `QueueNotConfigured`; `InvalidConfiguration` when the queue keeps no top, when it has
    groups and none is named, and when one is named and it has none; and `NotReady` while its first top is being built.
    While another version of it is being built, the one before is read as it was when it was replaced.

    Args:
        name: the queue's name.
        score, group: those of the application that the top is configured with; only `rank` needs them.
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
    ) -> TopPage:
        """Up to `limit` entries from the top, the highest score first and equal scores by key, ascending.

        Args:
            limit: at least 1.
            group: whose top, for a queue with groups.
            bottom: from the end of that order backwards: the lowest score first.
            after: a continuation: begin behind that place, whether or not its key stands there still.
            lowest, highest: only scores from the one to the other, both included; InvalidData for NaN.
            values: with the values last reported, one more read for each entry, all at once.
        """
        if limit < 1:
            raise ValueError(f"expected a limit of 1 or more, got: {limit}")
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

    def scan(self, db: Database, *, group: str | None = None, bottom: bool = False) -> Iterator[RankedEntry]:
        """All entries from the top, or from the bottom, a transaction for each thousand of them.

        No consistent picture of one moment: a key whose score changes meanwhile may come twice, or not at all.
        """
        place: bytes | None = None
        while True:
            after = place
            page = transact(
                db,
                lambda tr: self.page(tr.snapshot, _SCAN, group=group, bottom=bottom, after=after),  # noqa: B023
            )
            yield from page.entries
            place = page.continuation
            if place is None:
                return

    def count(
        self,
        tr: TransactionRead,
        group: str | None = None,
        *,
        lowest: Score | None = None,
        highest: Score | None = None,
    ) -> int:
        """How many keys have a score, by one read; or a score in a range, both ends included, which takes ranks.

        Raises `InvalidConfiguration` for a range when the top keeps no ranks.
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
        """Up to `limit` groups that have keys, with how many, in a stable order, beginning behind the group `after`."""
        _, keys = self._open(tr, "")
        begin = keys.counts() + b"\x00\x01" if after is None else keys.count(after) + b"\x00"
        rows = tr.get_range(begin, prefix_end(keys.counts()), limit=limit, streaming_mode=WANT_ALL)
        return [(group_of(row.key[len(keys.counts()) :]) or "", _int(row.value)) for row in rows]

    def rank(self, tr: TransactionRead, key: Any) -> int | None:
        """1 plus the number of keys (of the key's group) with a strictly higher score; None when it has no score.

        Costs two rounds of reads: the value, then as many small ranges at once as the score has bytes, about one for
        every two digits. Raises `InvalidConfiguration` when the top keeps no ranks, `InvalidData` for a key that is not
        of the queue's type, `CodeMismatch` when the top is configured with functions that this reader lacks.
        """
        config = read_config(snapshot_of(tr), self.name)
        value = tr.get(self._queue.value(config.key.encoder()(key)))
        settings, keys = self._current(tr, config)
        self._check_functions(settings)
        if value.value is None:
            return None
        place = place_of(key, codec.decode(value.value), self._score, self._group)
        return None if place is None else self._rank(tr, keys, place.group, place.place)

    def rank_of_score(self, tr: TransactionRead, score: Score, group: str | None = None) -> int:
        """1 plus the number of keys with a strictly higher score than this one, which no key need have."""
        _, keys = self._open(tr, group)
        return self._rank(tr, keys, group, descending(score))

    def _rank(self, tr: TransactionRead, keys: TopKeys, group: str | None, place: bytes) -> int:
        path = _Path(tr, keys, group, place)
        self._root(tr, keys, group)
        return 1 + path.higher()

    def _root(self, tr: TransactionRead, keys: TopKeys, group: str | None) -> int:
        """How many keys the counts of ranks know of; raises when none are kept."""
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
        """Settings and keys of the generation to be read; no settings when another one is being built."""
        stored = snapshot_of(tr).get(self._queue.observer_current(NAME)).value
        if stored is None:
            raise missing(config)
        generation = parse_generation(stored)
        return settings_of(config, generation), TopKeys(self._queue, generation)

    def _check_functions(self, settings: Mapping[str, Any]) -> None:
        for what, function in (("score", self._score), ("group", self._group)):
            if settings and bool(settings.get(what)) != (function is not None):
                raise CodeMismatch(
                    f"the top of queue {self.name!r} has {'a' if settings.get(what) else 'no'} {what} function: "
                    "give Ranking(...) the functions that it is configured with"
                )

    def _with_values(
        self, tr: TransactionRead, config: QueueConfig, entries: list[RankedEntry]
    ) -> list[RankedEntry]:
        encode = config.key.encoder()
        found = [tr.get(self._queue.value(encode(entry.key))) for entry in entries]
        return [
            entry._replace(value=None if value.value is None else codec.decode(value.value))
            for entry, value in zip(entries, found, strict=True)
        ]


class _Path:
    """The counts beside the way to a score's place in the trie; all reads are under way once it is made."""

    def __init__(self, tr: TransactionRead, keys: TopKeys, group: str | None, place: bytes) -> None:
        self._before: list[Range] = [
            tr.get_range(*keys.nodes_before(group, place[:length]), streaming_mode=WANT_ALL)
            for length in range(1, len(place) + 1)
        ]
        self._here = tr.get(keys.node(group, place))

    def higher(self) -> int:
        """How many keys have a higher score."""
        return sum(_int(row.value) for rows in self._before for row in rows)

    def equal(self) -> int:
        """How many keys have this score."""
        return _number(self._here)


def missing(config: QueueConfig) -> NotReady | InvalidConfiguration:
    """Why there is no top to be read."""
    if any(observer.name == NAME for observer in config.observers):
        return NotReady(
            f"the top of queue {config.name!r} is being built, which takes a worker: read it later"
        )
    return InvalidConfiguration(
        f"queue {config.name!r} keeps no top: run `cq configure {config.name} --top` first"
    )


def settings_of(config: QueueConfig, generation: int) -> Mapping[str, Any]:
    """The settings of this generation of the queue's top; empty when another one has replaced them."""
    for observer in config.observers:
        if (observer.name, observer.generation) == (NAME, generation):
            return observer.settings
    return {}


def check_group(config: QueueConfig, settings: Mapping[str, Any], group: str | None) -> None:
    """Raises `InvalidConfiguration` unless there is a group if and only if the top is kept in groups."""
    if settings and bool(settings.get("group")) != (group is not None):
        raise InvalidConfiguration(
            f"the top of queue {config.name!r} is not kept in groups"
            if group is not None
            else f"the top of queue {config.name!r} is kept in groups: name one, `cq top {config.name} --groups` "
            "lists them"
        )


def entry_of(config: QueueConfig, place: bytes, score: bytes) -> RankedEntry:
    """The entry that stands in the index at this place, with this value."""
    number = codec.decode(score)
    try:
        expected = descending(number)
    except InvalidData as error:
        raise CorruptData(f"a score in the top of queue {config.name!r} is none: {error}") from None
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
    return _int(count.value or b"")


def _int(count: bytes) -> int:
    if len(count) > COUNT_BYTES:
        raise CorruptData(f"a count of a top is not one that cq wrote: {count[:40]!r}")
    return int.from_bytes(count, "little", signed=True)
