"""`Series`: a queue with a roll-up, to which updates are added under their own time."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Generic

from cq.arguments import repeatable
from cq.combiners import Combiner
from cq.config.queue import QueueConfig, read_config
from cq.config.rollup import RollUp, seconds_of
from cq.config.window import checked_time, milliseconds
from cq.errors import NotInStore
from cq.keys import QueueKeys
from cq.keys.window import WindowKeys
from cq.queue.adds import write_with_levels
from cq.queue.combine_queue import CombineQueue
from cq.queue.slots import Span
from cq.store.api import Transaction, TransactionRead, snapshot_of
from cq.type_variables import K, V
from cq.windows.refused import FUTURE, LATE, TAKEN, count_refused
from cq.windows.window import WindowStatistics, read_statistics


class Series(Generic[K, V]):
    """A queue with a roll-up: its values by minutes, hours, days ..., for updates that have a time of their own.

    `cq.configure(db, "hits", rollup="1m:2d,1h:60d,1d:forever")` creates the roll-up. `CombineQueue.add` adds updates
    as of now; `Series.add` as of their time. Read it with `CombineQueue.series` and `merged_series`. A series is a
    handle without state, like `CombineQueue`.

    Args:
        queue: the queue, or its name.
        late: the age at which updates are late: seconds, text such as `"1h"`, or a `timedelta`. Default and
            maximum: the retention of the shortest period.
    """

    def __init__(self, queue: CombineQueue[K, V] | str, *, late: Span | None = None) -> None:
        self.queue: CombineQueue[K, V] = queue if isinstance(queue, CombineQueue) else CombineQueue(queue)
        self._late = None if late is None else seconds_of(late)

    def __repr__(self) -> str:
        return f"Series({self.queue!r})"

    @property
    def name(self) -> str:
        """The queue's name."""
        return self.queue.name

    @property
    def keys(self) -> QueueKeys:
        """The queue's keys in the store."""
        return self.queue.keys

    @property
    def combiner(self) -> Combiner | None:
        """The combiner that the queue was given, if it is one of the application's."""
        return self.queue.combiner

    def add(
        self,
        tr: Transaction,
        updates: Mapping[K, V] | Collection[tuple[K, V]],
        once: str | bytes | None = None,
        *,
        at: float | None = None,
        now: float | None = None,
    ) -> str:
        """Add updates that happened at a given time, as a part of the transaction.

        A blind write like `CombineQueue.add`, with the same arguments and errors.

        Args:
            tr: a transaction of either store.
            updates: `{key: update}` or pairs, of the queue's types.
            once: an operation id: of all transactions that add with it, only the first to commit counts.
            at: time of the updates in seconds since 1970; by default now.
            now: the present in seconds since 1970; by default this machine's clock.

        Returns:
            `"taken"` if the updates were added; `"late"` if their time is too long ago, and `"future"` if it is more
            than a period of the finest level ahead. Late and future updates are not added, neither to the queue nor to
            its levels, only counted, see `statistics`.
        """
        config, rollup = self._config(tr)
        present = milliseconds(now)
        happened = present if at is None else checked_time(at)
        why = self._judge(rollup, happened, present)
        if why != TAKEN:
            window = WindowKeys(self.name)
            return count_refused(tr, updates, window.late if why == LATE else window.future, why)
        write_with_levels(tr, config, updates, once, [happened // 1000])
        return TAKEN

    def add_each(
        self,
        tr: Transaction,
        updates: Collection[tuple[K, V, float | None]],
        once: str | bytes | None = None,
        *,
        now: float | None = None,
    ) -> dict[str, int]:
        """Add updates that have different times: `[(key, update, at), ...]`, where `at` None is now.

        As `add`, with one row for the updates of a bucket, whatever their times. Returns the numbers of updates:
        `{"taken": 2, "late": 0, "future": 0}`.

        Args:
            tr: a transaction of either store.
            updates: triples of key, update and time in seconds since 1970.
            once: as for `add`.
            now: as for `add`.
        """
        config, rollup = self._config(tr)
        present, window = milliseconds(now), WindowKeys(self.name)
        judged: dict[str, list[tuple[tuple[K, V], int]]] = {TAKEN: [], LATE: [], FUTURE: []}
        for key, update, at in repeatable(updates, "updates"):
            happened = present if at is None else checked_time(at)
            judged[self._judge(rollup, happened, present)].append(((key, update), happened // 1000))
        pairs = {why: [pair for pair, _ in found] for why, found in judged.items()}
        if judged[TAKEN]:
            write_with_levels(tr, config, pairs[TAKEN], once, [time for _, time in judged[TAKEN]])
        for why, counter in ((LATE, window.late), (FUTURE, window.future)):
            if pairs[why]:
                count_refused(tr, pairs[why], counter, why)
        return {why: len(found) for why, found in pairs.items()}

    def statistics(self, tr: TransactionRead) -> WindowStatistics:
        """Updates refused since the queue was created; nothing is ever overdue."""
        snapshot = snapshot_of(tr)
        self._config(snapshot)
        return read_statistics(snapshot, self.name)

    def _judge(self, rollup: RollUp, happened: int, present: int) -> str:
        """Whether updates of a time are taken; both times in milliseconds since 1970."""
        finest = rollup.levels[0]
        start = happened // 1000 // finest.period * finest.period
        if finest.retention is not None and start + finest.retention <= present // 1000:
            return LATE
        if self._late is not None and happened < present - 1000 * self._late:
            return LATE
        return FUTURE if happened > present + 1000 * finest.period else TAKEN

    def _config(self, tr: TransactionRead) -> tuple[QueueConfig, RollUp]:
        """The queue's configuration and its roll-up; raises `NotInStore` if it has none."""
        config: Any = read_config(tr, self.name)
        if config.rollup is None:
            raise NotInStore(
                f"queue {self.name!r} has no roll-up: run `cq configure {self.name} --rollup 1m:2d,1h:60d`"
            )
        return config, config.rollup
