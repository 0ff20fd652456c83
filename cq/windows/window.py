"""`Window`: running totals of what has happened lately, such as the visits of the last ten minutes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from cq import keys
from cq.arguments import repeatable
from cq.combiners import Combiner
from cq.config.queue import QueueConfig, read_config
from cq.config.window import WindowSpec, milliseconds
from cq.encoding import codec
from cq.errors import ConfigurationConflict, InvalidData
from cq.keys import QueueKeys, place
from cq.keys.window import MAX_TIME_MS, WindowKeys
from cq.queue.combine_queue import CombineQueue, Page, write_updates
from cq.queue.packing import split_pairs
from cq.queue.window_rows import read_overdue
from cq.store.api import Transaction, TransactionRead, snapshot_of
from cq.windows.pending import read_changes, read_pending_sums
from cq.windows.statistics import WindowStatistics, read_statistics

TAKEN: Final = "taken"
LATE: Final = "late"
FUTURE: Final = "future"
_ONE_BYTES: Final = 8


class Window:
    """The running total of each key over a window of time: of what happened no longer ago than its width.

    It lies over a queue with the combiner `sum` and values of int, which is configured with the window:
    `cq.configure(db, "visits", window=(600, 10))`. Each add to the queue counts at once, and is taken out again by
    workers once it has left the window: exactly once, also after an outage, so a total is always the sum of what is
    in the window, and is one read. A handle without state, as `CombineQueue` is.

    Time is that of the clocks of those who add, take out and read: as far as these differ, what has just come
    or is about to leave counts or not.

    Args:
        queue: the queue, or its name.
        width, slice: in seconds; the window moves on by a slice at a time. If given, they must be those configured,
            else its first use raises `ConfigurationConflict`; the slice alone is a 60th part of the width.
    """

    def __init__(
        self,
        queue: CombineQueue | str,
        *,
        width: float | None = None,
        slice: float | None = None,  # noqa: A002 - the field's term
    ) -> None:
        self.queue = queue if isinstance(queue, CombineQueue) else CombineQueue(queue)
        self._wanted = None
        if width is not None:
            self._wanted = WindowSpec.parse((width,) if slice is None else (width, slice))
        elif slice is not None:
            raise InvalidData("expected a window's width besides its slice")

    def __repr__(self) -> str:
        return f"Window({self.queue!r})"

    @property
    def name(self) -> str:
        """Of the queue."""
        return self.queue.name

    @property
    def keys(self) -> QueueKeys:
        """Of the queue."""
        return self.queue.keys

    @property
    def combiner(self) -> Combiner | None:
        """Of the queue, if it was given one of its own."""
        return self.queue.combiner

    def add(
        self,
        tr: Transaction,
        updates: Mapping[Any, Any] | Iterable[tuple[Any, Any]],
        once: str | bytes | None = None,
        *,
        at: float | None = None,
        now: float | None = None,
    ) -> str:
        """Add updates of what happened at a time, as a part of the transaction.

        As blind as `CombineQueue.add`, with the same arguments and errors.

        Args:
            tr: a transaction of either store.
            updates: `{key: update}` or pairs, of ints of up to 64 bits.
            once: an operation id: of all transactions that add with it, only the first to commit counts.
            at: when it happened, in seconds since 1970; now, if left out.
            now: the present, by this machine's clock, if left out: for several windows to agree on it.

        Returns `"taken"`; or, with nothing added, `"late"` when that time has left the window already and `"future"`
        when it is more than a slice ahead. Either is counted, see `statistics`.
        """
        config, spec = self._config(tr)
        present = milliseconds(now)
        happened = present if at is None else _checked_time(at)
        due = spec.expires(happened)
        window = WindowKeys(self.name)
        if due <= present:
            return self._refuse(tr, updates, window.late, LATE)
        if happened > present + spec.slice:
            return self._refuse(tr, updates, window.future, FUTURE)
        write_updates(tr, self.keys, config, updates, once, due=due)
        return TAKEN

    def get(
        self, tr: TransactionRead, key: Any, *, now: float | None = None, pending: bool = False
    ) -> int | None:
        """The total of a key over the window; None when it is nothing. See `get_many`."""
        return self.get_many(tr, [key], now=now, pending=pending)[key]

    def get_many(
        self, tr: TransactionRead, wanted: Iterable[Any], *, now: float | None = None, pending: bool = False
    ) -> dict[Any, int | None]:
        """The totals of several keys over the window: `{key: total}`, None where it is nothing.

        Costs a read for each key and one of what is due and not taken out yet: mostly nothing. What is, is
        subtracted, and then what waits for these keys counts, too: so totals are right also when no worker
        has run for long.

        Args:
            tr: a transaction of either store, or its `.snapshot` to read without read conflicts.
            wanted: the keys.
            now: up to which time, in seconds since 1970: what leaves the window until then does not count. By this
                machine's clock, if left out; a time in the past does not bring back what has been taken out.
            pending: False: a key of which nothing is due has the total that was last combined. True: what waits counts,
                too, at the transaction's read version.

        Raises `BacklogTooDeep` when more than 1 MB is due and not taken out, or waits in one bucket;
        `PendingUnreadable` after an add to the keys' buckets in the same transaction; else as `CombineQueue.get`.
        """
        snapshot = snapshot_of(tr)
        config, _ = self._config(snapshot)
        encode = config.key.encoder()
        encoded = {key: encode(key) for key in repeatable(wanted, "keys")}
        futures = {key: tr.get(self.keys.value(each)) for key, each in encoded.items()}
        overdue = read_overdue(snapshot, config, milliseconds(now))
        exact = list(encoded.values()) if pending else [each for each in encoded.values() if each in overdue]
        waiting = read_pending_sums(snapshot, config, exact) if exact else {}
        found = {}
        for key, each in encoded.items():
            current = futures[key].value
            total = 0 if current is None else codec.decode(current)
            found[key] = (
                total + (waiting.get(each, 0) if pending or each in overdue else 0) - overdue.get(each, 0)
            )
        return {key: total or None for key, total in found.items()}

    def items(
        self,
        tr: TransactionRead,
        *,
        limit: int = 1000,
        after: bytes | None = None,
        now: float | None = None,
        pending: bool = False,
    ) -> Page:
        """About `limit` keys with their totals, in hash order, from `after` onward; as `CombineQueue.items`.

        With `pending`, or when something is due and not taken out yet, all that waits in the queue is read with each
        page. Raises as `get_many` does.
        """
        snapshot = snapshot_of(tr)
        config, _ = self._config(snapshot)
        page = self.queue.items(tr, limit=limit, after=after)
        if not (pending or read_overdue(snapshot, config, milliseconds(now))):
            return page
        changes = read_changes(snapshot, config, milliseconds(now))
        return Page(_changed(config, page, after or b"", changes), page.continuation)

    def statistics(self, tr: TransactionRead) -> WindowStatistics:
        """What was refused since the queue was made, and whether taking out gets on."""
        snapshot = snapshot_of(tr)
        self._config(snapshot)
        return read_statistics(snapshot, self.name)

    def _config(self, tr: TransactionRead) -> tuple[QueueConfig, WindowSpec]:
        """The queue's configuration, with its window; raises `ConfigurationConflict` if that is not the one wanted."""
        config = read_config(tr, self.name)
        if config.window is None or (self._wanted is not None and config.window != self._wanted):
            raise ConfigurationConflict(
                self.name, {"window": (config.window or "none", self._wanted or "one is expected")}
            )
        return config, config.window

    def _refuse(self, tr: Transaction, updates: object, counter: bytes, why: str) -> str:
        """Count updates that are not added: by an atomic addition, which conflicts with nothing."""
        number = len(split_pairs(updates)[0])
        tr.add(counter, number.to_bytes(_ONE_BYTES, "little"))
        return why


def _changed(
    config: QueueConfig, page: Page, after: bytes, changes: Mapping[bytes, int]
) -> list[tuple[Any, int]]:
    """The items of a page, which begins behind a place, with these changes and with keys that have no value yet."""
    encode = config.key.encoder()
    totals = {encode(key): value for key, value in page.items}
    for encoded, change in changes.items():
        where = place(encoded)
        if where > after and (page.continuation is None or where <= page.continuation):
            totals[encoded] = totals.get(encoded, 0) + change
    return [
        (config.key.decode(encoded), totals[encoded])
        for encoded in sorted(totals, key=keys.place)
        if totals[encoded]
    ]


def _checked_time(at: object) -> int:
    """A time in seconds since 1970, in milliseconds; raises `InvalidData`."""
    if type(at) not in (int, float) or not abs(at) < MAX_TIME_MS / 4000:  # type: ignore[arg-type]
        raise InvalidData(f"expected a time in seconds since 1970, got: {codec.shown(at)}")
    return milliseconds(at)  # type: ignore[arg-type]
