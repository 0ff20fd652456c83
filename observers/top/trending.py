"""The top of one period of a roll-up, and for each entry its rank in the period before."""

from __future__ import annotations

from typing import Any, Generic, NamedTuple

from cq import runtime
from cq.config.queue import QueueConfig, read_config
from cq.config.rollup import RollUpLevel, duration, seconds_of
from cq.config.window import checked_time
from cq.errors import NotInStore
from cq.observers.top.ranking import Ranking
from cq.queue.slots import Span
from cq.store.api import TransactionRead, snapshot_of
from cq.type_variables import K


class TrendingEntry(NamedTuple, Generic[K]):
    """A key of the top of a period.

    Attributes:
        key: a key of the queue.
        score: its value in the period.
        rank: 1 plus the number of keys with a strictly higher score in the period.
        before: its rank in the period before; None if it had no value there.
    """

    key: K
    score: Any
    rank: int
    before: int | None


def trending(
    tr: TransactionRead, queue: str, *, by: Span, at: float | None = None, limit: int = 20
) -> list[TrendingEntry[Any]]:
    """The keys with the highest values of a period, the highest first, with their ranks in the period before.

    The level of the period must keep a top by periods: `cq configure hits.1h --top`. All reads see one version of the
    store. Reads the top, and then for all entries together what `Ranking.ranks` reads.

    Args:
        tr: a transaction of either store, or its `.snapshot` to read without read conflicts.
        queue: the queue with the roll-up.
        by: the period, such as `"1h"`.
        at: a time in the period, in seconds since 1970; default: now.
        limit: maximum number of keys, at least 1.

    Raises:
        NotInStore: the queue has no level of this period, or the level has no top.
        InvalidConfiguration: the top of the level is not kept by periods, or keeps no ranks.
        NotReady: workers are still building the top.
    """
    config = read_config(snapshot_of(tr), queue)
    level = level_of_period(config, by)
    time = runtime.time() if at is None else checked_time(at) / 1000
    start = int(time // level.period * level.period)
    ranking: Ranking[Any, Any] = Ranking(level.queue_of(queue))
    page = ranking.page(tr, limit, group=str(start)).entries
    before = ranking.ranks(tr, [(*entry.key[:-1], start - level.period) for entry in page])
    found: list[TrendingEntry[Any]] = []
    for number, (entry, previous) in enumerate(zip(page, before, strict=True), 1):
        is_equal = bool(found) and found[-1].score == entry.score
        key = entry.key[:-1] if config.key.is_tuple else entry.key[0]
        found.append(TrendingEntry(key, entry.score, found[-1].rank if is_equal else number, previous))
    return found


def level_of_period(config: QueueConfig, by: Span) -> RollUpLevel:
    """The level of a period; raises `NotInStore` if the queue has none."""
    period = seconds_of(by)
    for level in config.rollup.levels if config.rollup else ():
        if level.period == period:
            return level
    has = f"its roll-up is {config.rollup}" if config.rollup else "it has no roll-up"
    raise NotInStore(f"queue {config.name!r} has no level of {duration(period)}: {has}")
