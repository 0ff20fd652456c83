"""The reads of the dashboard: one function for each kind of topic, the findings of `cq doctor`, and lookups of keys."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final, NamedTuple

import cq
from cq import runtime
from cq.admin.queue_status import read_at_present
from cq.cells.cells import Cells, Move
from cq.cells.directory import CellStatus
from cq.cli.web.sampler import Reader, problem_of
from cq.config.flags import Flags, read_flags
from cq.config.queue import ObserverConfig, QueueConfig, queue_names, read_config
from cq.durations import duration
from cq.encoding.codec import KeyType, ValueType
from cq.encoding.json_values import key_from_word
from cq.errors import CorruptData, CqError, StoreError
from cq.failure import KeyFailure
from cq.feeds.messages import Message, decode_message
from cq.keys import QueueKeys
from cq.observers.feeds.changelog import changelog_of
from cq.observers.feeds.tasks import FeedStatus, read_all
from cq.observers.monitoring.diagnosis import Check, doctor
from cq.observers.monitoring.store_overview import overview
from cq.observers.telemetry.history import HistoryMinute, read_history
from cq.observers.top.cloud import Cloud, CloudReader
from cq.observers.top.index import LAST_PART
from cq.observers.top.index import NAME as TOP
from cq.observers.top.kept import window_of_totals
from cq.observers.top.ranking import RankedEntry, Ranking
from cq.observers.top.trending import TrendingEntry, trending
from cq.plain_text import describe
from cq.queue.rows import oldest_by_bucket
from cq.queue.set_aside import each_aside, failures_by_key
from cq.store import OpenDatabase
from cq.store.api import Transaction, TransactionRead, seconds_since
from cq.store.transact import transact
from cq.windows.window import reader_of

TOP_ENTRIES: Final = 10
CHANGES: Final = 20
"""The number of recent changes of a queue that a page shows."""
MAX_HISTORIES: Final = 1_000
MAX_ASIDE: Final = 200
"""The number of pieces set aside of a queue that a page shows."""


@dataclass(frozen=True, slots=True)
class QueueDetail:
    """What the page of one queue shows in addition to the overview.

    Attributes:
        config, flags: the configuration, and the pause, the limits and the priority.
        ages: {bucket: seconds since its oldest queued update} of buckets with queued updates.
        top: the first entries; None without a top. Those of a window, and of the present period of a level, have
            ranks in the period before.
        period: the length of this period in seconds; 0 for another top.
        groups: groups of the top with their numbers of keys, in place of `top`.
        cloud: the published cloud; None if there is none.
        missing: why there is no top or cloud yet; else empty.
        changes: the last changes, the newest first; None without a feed.
    """

    config: QueueConfig
    flags: Flags
    ages: Mapping[int, float]
    top: Sequence[RankedEntry[Any, Any] | TrendingEntry[Any]] | None = None
    period: int = 0
    groups: Sequence[tuple[str, int]] = ()
    cloud: Cloud | None = None
    missing: str = ""
    changes: Sequence[Message[Any]] | None = None


class AsideKey(NamedTuple):
    """A key with updates or reports that were set aside.

    Attributes:
        key: None for unreadable rows.
        failure: of its last piece, with the times and tries of all.
        updates: their number; 0 for a missed report.
    """

    key: Any
    failure: KeyFailure
    updates: int


class AsideOfQueue(NamedTuple):
    """Keys of a queue with updates or reports that were set aside; `is_cut` if there are more than these."""

    keys: Sequence[AsideKey]
    is_cut: bool


class CellsReading(NamedTuple):
    """The cells of a directory, and the unfinished moves."""

    cells: Sequence[CellStatus]
    moves: Sequence[Move]


def read_queue(db: OpenDatabase, name: str) -> QueueDetail:
    """The details of a queue, in one transaction; raises `QueueNotConfigured`."""

    def read(tr: Transaction) -> tuple[QueueDetail, dict[tuple[int, int], int | None]]:
        snapshot = tr.snapshot
        config, flags = read_config(snapshot, name), read_flags(snapshot, name)
        oldest = oldest_by_bucket(snapshot, QueueKeys(name))
        return QueueDetail(
            config, flags, {}, **_top(snapshot, config), changes=_changes(snapshot, config)
        ), oldest

    (detail, oldest), now = read_at_present(db, read)
    ages: dict[int, float] = {}
    for (_, number), version in oldest.items():
        if version is not None:
            ages[number] = max(seconds_since(version, now), ages.get(number, 0.0))
    return replace(detail, ages=ages)


def _top(tr: TransactionRead, config: QueueConfig) -> dict[str, Any]:
    """The fields of `QueueDetail` about the top."""
    observer = next((each for each in config.observers if each.name == TOP), None)
    if observer is None:
        return {}
    ranking, (source, period) = Ranking[Any, Any](config.name), _trend_of(tr, config, observer)
    found: dict[str, Any] = {"top": [], "period": period}
    try:
        if period:
            found["top"] = trending(tr, source, by=period, limit=TOP_ENTRIES)
        elif observer.settings.get("group"):
            found["groups"] = ranking.groups(tr, TOP_ENTRIES)
        else:
            found["top"] = ranking.page(tr, TOP_ENTRIES).entries
        if not observer.settings.get("group"):
            found["cloud"] = CloudReader(config.name).read(tr)
    except CqError as error:
        found["missing"] = str(error)
    return found


def _trend_of(tr: TransactionRead, config: QueueConfig, observer: ObserverConfig) -> tuple[str, int]:
    """The queue and the period in seconds of `trending` for a queue with a top; a period of 0 if it has no periods."""
    group, level = observer.settings.get("group"), config.level_of
    if level is not None and level.is_period and group == LAST_PART and observer.settings.get("ranks"):
        return level.queue, level.period
    window = window_of_totals(tr, config)
    if level is not None and window is not None and not group and window.width % 1000 == 0:
        return level.queue, window.width // 1000
    return config.name, 0


def _changes(tr: TransactionRead, config: QueueConfig) -> Sequence[Message[Any]] | None:
    changelog = changelog_of(config)
    if changelog is None:
        return None
    bounds = changelog.keys.messages(changelog.receiver)
    return [decode_message(row) for row in tr.get_range(*bounds, limit=CHANGES, reverse=True)]


def read_aside_of(db: OpenDatabase, name: str) -> AsideOfQueue:
    """The first keys with updates or reports set aside in a queue, without the updates; raises `QueueNotConfigured`."""

    key_type = transact(db, lambda tr: read_config(tr.snapshot, name)).key
    pieces = each_aside(db, name)
    failures = failures_by_key(islice(pieces, MAX_ASIDE))
    keys = [
        AsideKey(_key_or_none(key_type, encoded), failure, updates)
        for encoded, (failure, updates) in failures.items()
    ]
    return AsideOfQueue(keys, next(pieces, None) is not None)


def _key_or_none(key_type: KeyType, encoded: bytes) -> Any:
    try:
        return key_type.decode(encoded) if encoded else None
    except CorruptData:
        return None


def read_feeds(db: OpenDatabase, name: str) -> list[FeedStatus]:
    """All feeds."""
    return transact(db, lambda tr: read_all(tr.snapshot))


def read_cells(db: OpenDatabase, name: str) -> CellsReading:
    """The cells, if the store is a directory of cells."""
    cells = Cells(db)  # not closed: that would close the store, too, and this opens no other one
    return CellsReading(cells.cells(), list(cells.moves()))


def read_hour(db: OpenDatabase, name: str) -> dict[str, list[HistoryMinute]]:
    """The past hour of the first 1,000 queues, without the running minute."""
    names = transact(db, lambda tr: queue_names(tr.snapshot, MAX_HISTORIES))
    return {queue: minutes[:-1] for queue, minutes in read_history(db, names).items()}


READERS: Final[Mapping[str, Reader]] = {
    "overview": Reader(lambda db, name: overview(db), 2.0),
    "queue": Reader(read_queue, 2.0),
    "aside": Reader(read_aside_of, 4.0),
    "feeds": Reader(read_feeds, 4.0),
    "history": Reader(read_hour, 20.0),
    "cells": Reader(read_cells, 10.0),
}
"""{kind of topic: its reader}."""


# Lookups

SLOTS: Final = 60
"""Periods of a roll-up that a lookup reads, at most one more."""


@dataclass(frozen=True, slots=True)
class KeySeries:
    """The values of a key by the periods of one level of a roll-up.

    Attributes:
        levels: the names of all levels, such as `1h`, the finest first.
        level: the name of this level.
        period: the length of its periods, in seconds.
        type: the type of the values.
        slots: (start in seconds since 1970, value); None for a period without a value.
    """

    levels: Sequence[str]
    level: str
    period: int
    type: ValueType
    slots: Sequence[tuple[int, Any]]


@dataclass(frozen=True, slots=True)
class Lookup:
    """The answer to a lookup.

    Attributes:
        word: the key as the operator typed it.
        value: of the key; None without a value.
        problem: why the value is unknown; else empty.
        series: its values by periods; None for a queue without a roll-up.
    """

    word: str
    value: Any = None
    problem: str = ""
    series: KeySeries | None = None


def look_up(db: OpenDatabase, queue: str, word: str, by: str = "") -> Lookup:
    """The value of a key, as `cq get` reads it; `word` has the syntax of keys on the command line.

    If the queue has a roll-up, also its values by the periods of the level `by`, such as `1h`; by default, and if there
    is no such level, of the finest one.
    """

    def read(tr: Transaction) -> Lookup:
        config = read_config(tr.snapshot, queue)
        key = key_from_word(config.key, word)
        value = reader_of(config).get(tr.snapshot, key)
        return Lookup(word, value, series=_series(tr.snapshot, config, key, by))

    try:
        return transact(db, read)
    except Exception as error:  # noqa: BLE001 - also a combiner's, which stored values of another type make fail
        return Lookup(word, problem=problem_of(error) or describe(error))


def _series(tr: TransactionRead, config: QueueConfig, key: Any, by: str) -> KeySeries | None:
    if config.rollup is None:
        return None
    levels = {duration(each.period): each for each in config.rollup.levels}
    name = by if by in levels else next(iter(levels))
    period, retention = levels[name]
    span = SLOTS * period if retention is None else min(SLOTS * period, retention)
    # A sum without updates is 0. Other combiners, such as a minimum, have no such value.
    fill = 0 if config.combiner.name == "sum" else None
    # Slots of one period each need no combiner, so this also reads queues with a combiner of the application.
    slots = cq.CombineQueue[Any, Any](config.name).series(tr, key, last=span, by=period, fill=fill)
    return KeySeries(tuple(levels), name, period, config.value, slots)


# Checks


EVERY_SECONDS: Final = 60.0
"""Time between two runs while the page is open."""
_log = logging.getLogger(__name__)


class Checks:
    """The latest findings about a store. They are made in a thread: the sampler and the end of the server do not wait.

    Each check has a time limit of its own, so every run ends.

    Args:
        store: URL of the store; None: the default.
    """

    def __init__(self, store: str | None) -> None:
        self._store = store
        self._begun: float | None = None
        self._is_running = False
        self._found: list[Check] | None = None
        self._problem = ""

    def reader(self) -> Reader:
        """The reader of the findings."""
        return Reader(self._read, 1.0)

    def _read(self, db: OpenDatabase, name: str) -> list[Check] | None:
        """The findings of the last run, None before its end; begins the next run when it is due."""
        now = runtime.monotonic()
        if not self._is_running and (self._begun is None or now >= self._begun + EVERY_SECONDS):
            self._is_running, self._begun = True, now
            runtime.start_thread(self._run, "cq-web-checks")
        if self._problem:
            raise StoreError(self._problem)
        return self._found

    def _run(self) -> None:
        try:
            self._found, self._problem = list(doctor(self._store)), ""
        except Exception as error:  # noqa: BLE001 - a bug: the pages show it
            _log.exception("cq web: the checks cannot be made")
            self._problem = f"the checks failed: {describe(error)}"
        finally:
            self._is_running = False
