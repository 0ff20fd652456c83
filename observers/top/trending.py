"""The top of one period of a roll-up or of a window, and for each entry its rank in the period before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple

from cq import runtime
from cq.config.queue import QueueConfig, read_config
from cq.config.rollup import RollUpLevel, key_without_time
from cq.config.window import WindowSpec, checked_time, milliseconds
from cq.durations import Span, duration, seconds_of
from cq.errors import InvalidConfiguration, NotInStore, NotReady
from cq.observers.top.cloud import CloudReader
from cq.observers.top.ranking import Ranking
from cq.store.api import TransactionRead
from cq.store.reads import snapshot_of
from cq.type_variables import K


class TrendingEntry(NamedTuple, Generic[K]):
    """A key of the top of a period.

    Attributes:
        key: a key of the queue.
        score: its value in the period.
        rank: 1 plus the number of keys with a strictly higher score in the period.
        before: its rank in the period before; None if it had no value there. For a window its rank in the cloud of
            that time; None if the cloud did not have the key, or was not published yet.
    """

    key: K
    score: Any
    rank: int
    before: int | None


def trending(
    tr: TransactionRead, queue: str, *, by: Span, at: float | None = None, limit: int = 20
) -> list[TrendingEntry[Any]]:
    """The keys with the highest values of a period, the highest first, with their ranks in the period before.

    The level of the period must keep a top by periods: `cq configure hits.1h --top`. A period as long as the window of
    a queue is the window, whose totals must keep a top: `cq configure hits.window --top`. The period before then ended
    one width ago, exact to a 60th of the width and the top's `every`. All reads see one version of the store.

    Reads the top, and then for all entries together what
    `Ranking.ranks` reads, or for a window the cloud as of that time.

    Args:
        tr: a transaction of either store, or its `.snapshot` to read without read conflicts.
        queue: the queue with the roll-up.
        by: the period, such as `"1h"`, or the width of the window.
        at: a time in the period, in seconds since 1970; default: now. A window has only the present.
        limit: maximum number of keys, at least 1.

    Raises:
        NotInStore: the queue has neither a level nor a window of this period, or it has no top.
        InvalidConfiguration: the top of the level is not kept by periods, or keeps no ranks; the top of the window is
            kept in groups, or a time is given for it.
        NotReady: workers are still building the top.
    """
    config = read_config(snapshot_of(tr), queue)
    window = config.window
    if window is not None and seconds_of(by) * 1000 == window.width:
        if at is not None:
            raise InvalidConfiguration(
                f"the window of queue {queue!r} has a top of the present only: give no time"
            )
        return _of_window(tr, config, window, limit)
    level = level_of_period(config, by)
    time = runtime.time() if at is None else checked_time(at) / 1000
    start = int(time // level.period * level.period)
    ranking: Ranking[Any, Any] = Ranking(level.queue_of(queue))
    page = ranking.page(tr, limit, group=str(start)).entries
    before = ranking.ranks(tr, [(*entry.key[:-1], start - level.period) for entry in page])
    keys = [key_without_time(config.key, entry.key) for entry in page]
    return _ranked(keys, [entry.score for entry in page], before)


def _of_window(
    tr: TransactionRead, config: QueueConfig, window: WindowSpec, limit: int
) -> list[TrendingEntry[Any]]:
    ranking: Ranking[Any, Any] = Ranking(config.totals_name)
    page = ranking.page(tr, limit).entries
    former = _ranks_as_of(tr, config.totals_name, milliseconds(None) - window.width)
    keys = [entry.key for entry in page]
    return _ranked(keys, [entry.score for entry in page], list(map(former.get, keys)))


def _ranks_as_of(tr: TransactionRead, name: str, time: int) -> dict[Any, int]:
    """The ranks of the keys in the cloud as of a time, in milliseconds; empty without one."""
    try:
        entries = CloudReader(name).read(tr, time / 1000).entries
    except (NotReady, NotInStore):
        return {}
    keys, scores = [entry.key for entry in entries], [entry.score for entry in entries]
    return {each.key: each.rank for each in _ranked(keys, scores, [None] * len(keys))}


def _ranked(
    keys: Sequence[Any], scores: Sequence[Any], before: Sequence[int | None]
) -> list[TrendingEntry[Any]]:
    """The entries of these keys, whose scores descend."""
    found: list[TrendingEntry[Any]] = []
    for number, (key, score, previous) in enumerate(zip(keys, scores, before, strict=True), 1):
        is_equal = bool(found) and found[-1].score == score
        found.append(TrendingEntry(key, score, found[-1].rank if is_equal else number, previous))
    return found


def level_of_period(config: QueueConfig, by: Span) -> RollUpLevel:
    """The level of a period; raises `NotInStore` if the queue has none."""
    period = seconds_of(by)
    for level in config.rollup.levels if config.rollup else ():
        if level.period == period:
            return level
    has = f"its roll-up is {config.rollup}" if config.rollup else "it has no roll-up"
    if config.window is not None:
        has += f", and its window is {config.window}"
    raise NotInStore(f"queue {config.name!r} has no level of {duration(period)}: {has}")
