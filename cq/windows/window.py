"""`Window`: running totals over the recent past, such as the visits of the last ten minutes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic

from cq.arguments import repeatable
from cq.combiners import Combiner
from cq.config.queue import QueueConfig, read_config
from cq.config.window import WindowSpec, checked_time, milliseconds
from cq.encoding import codec
from cq.errors import ConfigurationConflict, InvalidData
from cq.keys import QueueKeys, place
from cq.keys.window import WindowKeys
from cq.queue.adds import write_updates, write_with_levels
from cq.queue.combine_queue import CombineQueue, Page, own_combiner
from cq.queue.rows import Updates
from cq.queue.slots import combined
from cq.queue.window_rows import read_overdue, removals
from cq.store.api import Transaction, TransactionRead, snapshot_of
from cq.type_variables import K, W
from cq.windows.pending import read_changes, read_pending_updates
from cq.windows.refused import FUTURE, LATE, TAKEN, count_refused
from cq.windows.slices import SliceReads


@dataclass(frozen=True, slots=True)
class WindowStatistics:
    """Updates that a window refused since its queue was created, and how far its expiry is late.

    Attributes:
        late: updates whose time had already left the window when they were added. They do not count in totals. A retry
            after an unknown commit result may count an update here twice.
        future: updates whose time was more than a slice ahead. They do not count in totals.
        overdue_seconds: how long the first row has been due; 0 if no row is due.
    """

    late: int
    future: int
    overdue_seconds: float


def read_statistics(snapshot: TransactionRead, name: str) -> WindowStatistics:
    """The statistics of a queue with a window: three reads."""
    window = WindowKeys(name)
    late, future = snapshot.get(window.late), snapshot.get(window.future)
    first = snapshot.get_range(*window.rows(), limit=1)
    overdue = [max(0, milliseconds(None) - window.due_of(row.key)) for row in first]
    return WindowStatistics(_counted(late.value), _counted(future.value), sum(overdue) / 1000)


def _counted(stored: bytes | None) -> int:
    return int.from_bytes(stored or b"", "little")


class Window(Generic[K, W]):
    """The running total of each key over a window of time: the sum of updates not older than the window's width.

    A window uses a queue configured with it: `cq.configure(db, "visits", window=(600, 10))`. Each add to the queue
    counts at once. A window is a handle without state, like `CombineQueue`.

    With the combiner `sum` and values of int or Decimal, or with the combiner `counter`, workers subtract an update
    when it leaves the window: exactly once, also after an outage. So a total is always the sum of the updates in the
    window, of Decimals with all their digits, and costs one read.

    With any other combiner except `last`, the slices are a level of a roll-up: a queue named after their length, such
    as `tags.10s`, has a value for each key and slice. A read combines the slices in the window, in the order of time.
    It costs one read for each slice and two more, so about 62 for a key by default. The queue itself
    (`CombineQueue.get`) has the latest update of each key. For a combiner of your own, give the queue with its
    combiner: `Window(CombineQueue("tags", combiner=mine))`.

    For type checkers, `Window[str, Decimal]` has keys of str and totals of Decimal; `Window[str]` has totals of int.

    Adders, workers and readers use their own clocks. As far as these differ, updates at either edge of the window
    may count or not.

    Args:
        queue: the queue, or its name.
        width: in seconds. If given, width and slice must match the configuration, else the first use raises
            `ConfigurationConflict`.
        slice: in seconds; the window moves by one slice at a time. It defaults to a 60th part of the width.
    """

    def __init__(
        self,
        queue: CombineQueue[K, W] | str,
        *,
        width: float | None = None,
        slice: float | None = None,  # noqa: A002 - the field's term
    ) -> None:
        self.queue = queue if isinstance(queue, CombineQueue) else CombineQueue(queue)
        self._required = None
        if width is not None:
            self._required = WindowSpec.parse((width,) if slice is None else (width, slice))
        elif slice is not None:
            raise InvalidData("expected a window's width with its slice")

    if not TYPE_CHECKING:

        def __class_getitem__(cls, types: Any) -> Any:
            # Before Python 3.13, type variables have no default while a program runs.
            return super().__class_getitem__(types if isinstance(types, tuple) else (types, int))

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
            updates: `{key: update}` or pairs, of the queue's types: ints, finite Decimals, or dicts of such
                counts.
            once: an operation id: of all transactions that add with it, only the first to commit counts.
            at: time of the updates in seconds since 1970; by default now.
            now: the present in seconds since 1970; by default this machine's clock. Give it if several windows must
                agree on it.

        Returns:
            `"taken"` if the updates were added; `"late"` if their time has already left the window, and `"future"` if
            it is more than a slice ahead. Late and future updates are not added, only counted, see `statistics`.
        """
        config, spec = self._config(tr)
        present = milliseconds(now)
        happened = present if at is None else checked_time(at)
        due = spec.expires(happened)
        window = WindowKeys(self.name)
        if due <= present:
            return count_refused(tr, updates, window.late, LATE)
        if happened > present + spec.slice:
            return count_refused(tr, updates, window.future, FUTURE)
        if config.merges_window:
            write_with_levels(tr, config, updates, once, [happened // 1000])
        else:
            write_updates(tr, self.keys, config, updates, once, due=due)
        return TAKEN

    def get(
        self, tr: TransactionRead, key: K, *, now: float | None = None, pending: bool = False
    ) -> W | None:
        """The total of a key over the window; None if it is 0, or a counter without items. See `get_many`."""
        return self.get_many(tr, [key], now=now, pending=pending)[key]

    def get_many(
        self, tr: TransactionRead, wanted: Collection[K], *, now: float | None = None, pending: bool = False
    ) -> dict[K, W | None]:
        """The totals of several keys over the window: `{key: total}`, None for a total of 0 or an empty counter.

        Reads each key, and the overdue rows: those that are due but not yet expired, usually few. For keys with overdue
        rows it subtracts these, and adds the pending updates. So totals are right even if no worker has run for long.

        Args:
            tr: a transaction of either store, or its `.snapshot` to read without read conflicts.
            wanted: the keys.
            now: end of the window, in seconds since 1970; by default this machine's clock. Updates that leave the
                window by then do not count. A time in the past does not bring back expired updates.
            pending: False: a key without overdue rows has the total that was last combined. True: queued updates
                count, too, at the transaction's read version.

        Raises:
            BacklogTooDeep: more than 1 MB is overdue, or queued in one bucket.
            PendingUnreadable: the same transaction has added to the keys' buckets.
            QueueNotConfigured: there is no such queue; and the other errors of `CombineQueue.get`.
        """
        snapshot = snapshot_of(tr)
        config, _ = self._config(snapshot)
        if config.merges_window:
            return self._slices(config, now, pending=pending).totals(tr, repeatable(wanted, "keys"))
        encode = config.key.encoder()
        encoded = {key: encode(key) for key in repeatable(wanted, "keys")}
        futures = {key: tr.get(self.keys.value(each)) for key, each in encoded.items()}
        overdue = read_overdue(snapshot, config, milliseconds(now))
        # An overdue update may itself still be queued: to subtract it is right only if queued updates count.
        with_pending = (
            list(encoded.values()) if pending else [each for each in encoded.values() if each in overdue]
        )
        waiting = read_pending_updates(snapshot, config, with_pending) if with_pending else {}
        combiner = own_combiner(self, config)
        found: dict[K, W | None] = {}
        for key, each in encoded.items():
            current = futures[key].value
            values = [] if current is None else [codec.decode(current)]
            if pending or each in overdue:
                values += [*waiting.get(each, ()), *removals(config, key, overdue.get(each, ()))]
            found[key] = combined(combiner, key, values)
        return found

    def items(
        self,
        tr: TransactionRead,
        *,
        limit: int = 1000,
        after: bytes | None = None,
        now: float | None = None,
        pending: bool = False,
    ) -> Page[K, W]:
        """About `limit` keys with their totals, in hash order, from `after` onward; see `CombineQueue.items`.

        With `pending`, or if rows are overdue, each page also reads all queued updates of the queue. Raises the errors
        of `get_many`.
        """
        snapshot = snapshot_of(tr)
        config, _ = self._config(snapshot)
        page = self.queue.items(tr, limit=limit, after=after)
        if config.merges_window:
            return self._slices(config, now, pending=pending).page(tr, page, after or b"")
        if not (pending or read_overdue(snapshot, config, milliseconds(now))):
            return page
        changes = read_changes(snapshot, config, milliseconds(now))
        combiner = own_combiner(self, config)
        return Page(_changed(combiner, config, page, after or b"", changes), page.continuation)

    def statistics(self, tr: TransactionRead) -> WindowStatistics:
        """Updates refused since the queue was created, and how far expiry is late."""
        snapshot = snapshot_of(tr)
        self._config(snapshot)
        return read_statistics(snapshot, self.name)

    def _slices(self, config: QueueConfig, now: float | None, *, pending: bool) -> SliceReads:
        return SliceReads(config, own_combiner(self, config), milliseconds(now), pending)

    def _config(self, tr: TransactionRead) -> tuple[QueueConfig, WindowSpec]:
        """The queue's configuration and its window; raises `ConfigurationConflict` if it has another window or none."""
        config = read_config(tr, self.name)
        if config.window is None or (self._required is not None and config.window != self._required):
            raise ConfigurationConflict(
                self.name, {"window": (config.window or "none", self._required or "one is expected")}
            )
        return config, config.window


def _changed(
    combiner: Combiner, config: QueueConfig, page: Page, after: bytes, changes: Updates
) -> list[tuple[Any, Any]]:
    """The items of a page that begins after a place, with these changes, and with keys that have no value yet."""
    encode = config.key.encoder()
    values = {encode(key): [value] for key, value in page.items}
    for encoded, updates in changes.items():
        where = place(encoded)
        # Keys without a stored value are on the page, too, if they sort between its ends.
        if where > after and (page.continuation is None or where <= page.continuation):
            values[encoded] = values.get(encoded, []) + updates
    items = []
    for encoded in sorted(values, key=place):
        key = config.key.decode(encoded)
        total = combined(combiner, key, values[encoded])
        if total is not None:
            items.append((key, total))
    return items
