"""`Window`: the values of a queue over time: those of the last minutes, and by hours or days."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic

from cq import runtime
from cq.arguments import repeatable
from cq.combiners import Combiner
from cq.config.queue import QueueConfig, read_config
from cq.config.rollup import RollUpLevel
from cq.config.window import WindowSpec, checked_time, milliseconds
from cq.durations import Span, seconds_of
from cq.encoding.codec import shown
from cq.errors import NotInStore, WrongType
from cq.keys import QueueKeys
from cq.keys.expiry import ExpiryKeys
from cq.queue.adds import write_updates
from cq.queue.combine_queue import CombineQueue, Page, own_combiner
from cq.queue.packing import split_pairs
from cq.store.api import Transaction, TransactionRead
from cq.store.reads import snapshot_of
from cq.type_variables import K, W
from cq.windows.slices import WindowRead

TAKEN: Final = "taken"
LATE: Final = "late"
FUTURE: Final = "future"
_COUNTER_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class WindowStatistics:
    """Updates that a queue refused for their time since it was created, and how far its window is late.

    Attributes:
        late: updates that were too old when they were added. They do not count anywhere. A retry after an unknown
            commit result may count an update here twice.
        future: updates whose time was too far ahead. They do not count anywhere.
        overdue_seconds: how long the first slice has been due to leave the window; 0 if none is due.
    """

    late: int
    future: int
    overdue_seconds: float


def read_statistics(snapshot: TransactionRead, config: QueueConfig) -> WindowStatistics:
    """The statistics of a queue with a window or a roll-up: three reads."""
    queue = QueueKeys(config.name)
    late, future = snapshot.get(queue.late), snapshot.get(queue.future)
    overdue = 0.0
    if config.window is not None:
        index, kept = ExpiryKeys(config.slices_name), config.fed[config.slices_name]
        for row in snapshot.get_range(*index.entries(), limit=1):
            leaves = index.parse_entry(row.key)[0] + kept.width  # type: ignore[union-attr]
            overdue = max(0.0, runtime.time() - leaves / 1000)
    return WindowStatistics(_counted(late.value), _counted(future.value), overdue)


def _milliseconds(now: float | None) -> int:
    """The present in milliseconds; raises `InvalidData` unless it is a time."""
    return milliseconds(None) if now is None else checked_time(now)


def _triple(given: Any) -> tuple[Any, Any, Any]:
    """A key, an update and its time; raises `WrongType` for anything else."""
    if not isinstance(given, tuple | list) or len(given) != 3:
        raise WrongType(
            f"expected triples of key, update and time, as in `add_each(tr, [(key, update, at)])`, got: {shown(given)}"
        )
    return given[0], given[1], given[2]


def _counted(stored: bytes | None) -> int:
    return int.from_bytes(stored or b"", "little")


class Window(Generic[K, W]):
    """A queue with a window, a roll-up, or both: its values over time, for updates that have a time of their own.

    `cq.configure(db, "hits", window=(600, 10), rollup="1h:60d,1d:forever")` gives a queue a window of the last ten
    minutes, and its values by hours and days. `CombineQueue.add` adds updates as of now, `Window.add` as of their time.
    `get`, `get_many` and `items` read the window; `CombineQueue.series` and `merged_series` read periods of the
    roll-up. The queue itself has the values of all time. A handle without state, like `CombineQueue`.

    A total includes the updates of the width of the window, and older ones of the first slice: it moves by one
    slice at a time. It is right even if no worker runs: a read leaves out what has left the window by its clock.
    Sums of int or Decimal, and counters, have their totals in the queue `hits.window`, which can have a top, an export
    and other observers; a total is read by one request. Of all other combiners except `last`, and of sums of float, a
    read merges the slices, by one request for each, so by about 62 for a key by default. For a combiner of your own,
    give the queue with its combiner: `Window(CombineQueue("tags", combiner=mine))`.

    For type checkers, `Window[str, Decimal]` has keys of str and totals of Decimal; `Window[str]` has totals of int.

    Adders, workers and readers use their own clocks. As far as these differ, updates at either edge of the window
    may count or not.

    Args:
        queue: the queue, or its name.
        late: the age at which updates are late: seconds, text such as `"1h"`, or a `timedelta`. Default and maximum:
            the age at which they are in neither the window nor a period of the finest level of the roll-up.
    """

    def __init__(self, queue: CombineQueue[K, W] | str, *, late: Span | None = None) -> None:
        self.queue = queue if isinstance(queue, CombineQueue) else CombineQueue(queue)
        self._late = None if late is None else seconds_of(late)

    def __repr__(self) -> str:
        return f"Window({self.queue!r})"

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
        updates: Mapping[K, W] | Collection[tuple[K, W]],
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
            once: an operation id: of all transactions that add with it, only the first to commit counts. A transaction
                whose updates are all too late, or in the future, does not use the id up.
            at: time of the updates in seconds since 1970; by default now.
            now: the present in seconds since 1970; by default this machine's clock. Give it if several queues must
                agree on it.

        Returns:
            `"taken"` if the updates were added: they count in the window and in each period that includes their time
            and is kept. `"late"` if there is none, and `"future"` if their time is more than a slice or period ahead,
            whichever is shorter. Late and future updates are not added, only counted, see `statistics`.
        """
        config = self._timed(tr)
        present = _milliseconds(now)
        happened = present if at is None else checked_time(at)
        judged = self._judge(config, happened, present)
        if judged == TAKEN:
            write_updates(tr, config, updates, once, times=[happened])
        else:
            self._count_refused(tr, judged, len(split_pairs(updates)[0]))
        return judged

    def add_each(
        self,
        tr: Transaction,
        updates: Collection[tuple[K, W, float | None]],
        once: str | bytes | None = None,
        *,
        now: float | None = None,
    ) -> list[str]:
        """Add updates that have different times: `[(key, update, at), ...]`, where `at` None is now.

        As `add`, with one row for the updates of a bucket, whatever their times. Returns what `add` returns, for each
        update: `["taken", "late", "taken"]`.

        Args:
            tr: a transaction of either store.
            updates: triples of key, update and time in seconds since 1970.
            once: as for `add`.
            now: as for `add`.
        """
        config, present = self._timed(tr), _milliseconds(now)
        judged: list[str] = []
        taken: list[tuple[K, W]] = []
        times: list[int] = []
        for key, update, at in map(_triple, repeatable(updates, "updates")):
            happened = present if at is None else checked_time(at)
            judged.append(self._judge(config, happened, present))
            if judged[-1] == TAKEN:
                taken.append((key, update))
                times.append(happened)
        if taken:
            write_updates(tr, config, taken, once, times=times)
        for refused in (LATE, FUTURE):
            if number := judged.count(refused):
                self._count_refused(tr, refused, number)
        return judged

    def get(
        self, tr: TransactionRead, key: K, *, now: float | None = None, pending: bool = False
    ) -> W | None:
        """The total of a key over the window; None if it is 0, or a counter without items. See `get_many`."""
        return self.get_many(tr, [key], now=now, pending=pending)[key]

    def get_many(
        self, tr: TransactionRead, wanted: Collection[K], *, now: float | None = None, pending: bool = False
    ) -> dict[K, W | None]:
        """The totals of several keys over the window: `{key: total}`, None for a key without updates in it.

        A total of 0 is None, too, and so is a counter without items.

        Args:
            tr: a transaction of either store, or its `.snapshot` to read without read conflicts.
            wanted: the keys.
            now: end of the window, in seconds since 1970; by default this machine's clock. Updates that leave the
                window by then do not count. A time in the past does not bring back updates that have left.
            pending: False: a total includes the updates that workers have combined. True: queued updates count, too, at
                the transaction's read version; this reads all updates queued for the slices.

        Raises:
            BacklogTooDeep: more than 20,000 slices are due to leave, or more than 1 MB is queued in one bucket.
            PendingUnreadable: with `pending`, the same transaction has added to the queue.
            NotNow: with `pending`, a purge is not complete.
            NotInStore: the queue has no window.
            QueueNotConfigured: there is no such queue; and the other errors of `CombineQueue.get`.
        """
        return self._read(tr, now, pending=pending).totals(repeatable(wanted, "keys"))

    def items(
        self,
        tr: TransactionRead,
        *,
        limit: int = 1000,
        after: bytes | None = None,
        now: float | None = None,
        pending: bool = False,
    ) -> Page[K, W]:
        """About `limit` keys in the window with their totals, in hash order, from `after` onward.

        As `CombineQueue.items`. With `pending`, each page also reads all queued updates of the queue. Raises the errors
        of `get_many`.
        """
        return self._read(tr, now, pending=pending).page(limit, after)

    def statistics(self, tr: TransactionRead) -> WindowStatistics:
        """Updates refused since the queue was created, and how far the window is late."""
        snapshot = snapshot_of(tr)
        return read_statistics(snapshot, self._timed(snapshot))

    def _read(self, tr: TransactionRead, now: float | None, *, pending: bool) -> WindowRead:
        config = self._timed(snapshot_of(tr))
        if config.window is None:
            raise NotInStore(
                f"queue {self.name!r} has no window: run `cq configure {self.name} --window 10m/10s`"
            )
        return WindowRead(tr, config, own_combiner(self, config), _milliseconds(now), pending=pending)

    def _judge(self, config: QueueConfig, happened: int, present: int) -> str:
        """Whether updates of a time are taken; both times in milliseconds since 1970."""
        finest = config.rollup.levels[:1] if config.rollup else ()
        periods: list[RollUpLevel | WindowSpec] = [*finest, *([config.window] if config.window else [])]
        if all(each.is_over(each.period_of(happened), present) for each in periods):
            return LATE
        if self._late is not None and happened < present - 1000 * self._late:
            return LATE
        return FUTURE if happened > present + min(each.step for each in periods) else TAKEN

    def _count_refused(self, tr: Transaction, judged: str, number: int) -> None:
        """Count refused updates by an atomic addition, which conflicts with no other transaction."""
        counter = self.keys.late if judged == LATE else self.keys.future
        tr.add(counter, number.to_bytes(_COUNTER_BYTES, "little"))

    def _timed(self, tr: TransactionRead) -> QueueConfig:
        """The queue's configuration; raises `NotInStore` if its updates have no times."""
        config = read_config(tr, self.name)
        if not config.is_timed:
            raise NotInStore(
                f"queue {self.name!r} has neither a window nor a roll-up: run `cq configure {self.name} --window "
                "10m/10s` or `--rollup 1m:2d,1h:60d`"
            )
        return config


def reader_of(
    config: QueueConfig, combiner: Combiner | None = None
) -> CombineQueue[Any, Any] | Window[Any, Any]:
    """A handle that reads what users mean by the values of a queue: for the keys in a window, their totals now."""
    level = config.level_of
    if level is not None and level.is_window:
        return Window(CombineQueue(level.queue, combiner=combiner))
    return CombineQueue(config.name, combiner=combiner)
